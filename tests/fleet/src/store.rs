//! The object store: an S3 server behind a proxy with faults, in a namespace of its own.
//!
//! Both are threads of this process that were started inside the namespace, so a test switches faults and reads counts by calling
//! them, while nodes reach the proxy by the net alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use s3server::{BUCKET, Got, Proxy, Rule, Server};

use crate::net::{Net, Port};

/// The last part of its address.
const NUMBER: u8 = 2;
/// Where the proxy listens.
const PORT: u16 = 9000;
/// How the names of blobs begin, below a volume's prefix.
const BLOBS: &str = "/blobs/";

/// A store with the bucket [`BUCKET`]. See the [module](self).
pub struct Store {
    /// What goes wrong between the nodes and it, and its switch.
    pub proxy: Proxy,
    /// The server itself, with its counts.
    pub server: Server,
    /// Its place on the net: slow, pulled out.
    pub port: Port,
}

impl Store {
    /// An empty one; lots of faults are drawn from `seed`.
    pub fn empty(net: &Net, seed: u64) -> Store {
        Store::with(net, seed, Server::start)
    }

    /// One that has what is in a folder, which nobody changes.
    pub fn over(net: &Net, seed: u64, root: &Path) -> Store {
        Store::with(net, seed, || Server::start_over(root))
    }

    fn with(net: &Net, seed: u64, start: impl FnOnce() -> Server + Send) -> Store {
        let port = net.port("store", NUMBER);
        let listen = (port.address(), PORT).into();
        let (server, proxy) = port.inside(|| {
            let server = start();
            let proxy = Proxy::start_at(listen, server.address(), seed);
            (server, proxy)
        });
        Store { proxy, server, port }
    }

    /// How nodes name it.
    pub fn endpoint(&self) -> String {
        self.proxy.endpoint()
    }

    /// The origin with this prefix.
    pub fn origin(prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// As stores are: the first byte comes after a lognormal time with this median, then 100 MB/s.
    pub fn be_like_a_store(&self, median: Duration) {
        self.proxy.add(Rule::new(s3server::Fault::WaitLike { median, sigma: 0.6 }).only_gets());
        self.proxy.add(Rule::new(s3server::Fault::WaitPerMib(Duration::from_micros(10_486))).only_gets());
    }

    /// What was got of each blob since [`Store::forget`].
    pub fn blobs(&self) -> BTreeMap<String, Got> {
        let got = self.server.got().into_iter();
        got.filter(|(key, _)| key.contains(BLOBS) || key.starts_with(BLOBS.trim_start_matches('/'))).collect()
    }

    /// Bytes of answers that whoever is at this port was given.
    pub fn given_to(&self, port: &Port) -> u64 {
        self.proxy.given().get(&port.address()).copied().unwrap_or(0)
    }

    /// Begins to count anew.
    pub fn forget(&self) {
        self.server.forget();
    }

    /// No more faults; it is there, and its line is wide.
    pub fn heal(&self) {
        self.proxy.faults().clear();
        self.proxy.up();
        self.port.heal();
    }
}
