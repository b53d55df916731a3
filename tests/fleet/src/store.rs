//! The object store: an S3 server behind a proxy with faults, in a namespace of its own.
//!
//! Both are threads of this process, started inside the namespace. So a test switches faults and reads counts
//! by calling them, while nodes reach the proxy only over the network.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use s3server::{BUCKET, Got, Proxy, Rule, Server};

use crate::net::{Net, Port};

/// The last part of its address.
const NUMBER: u8 = 2;
/// The proxy's port.
const PORT: u16 = 9000;
/// The prefix of blobs' names, below a volume's prefix.
const BLOBS: &str = "/blobs/";

/// A store with the bucket [`BUCKET`]. See the [module](self).
pub struct Store {
    /// The proxy between the nodes and the server, with its faults and its switch.
    pub proxy: Proxy,
    /// The server itself, with its counts.
    pub server: Server,
    /// Its port on the network: can be slowed or unplugged.
    pub port: Port,
}

impl Store {
    /// An empty store. Random faults use `seed`.
    pub fn empty(net: &Net, seed: u64) -> Store {
        Store::with(net, seed, Server::start)
    }

    /// A store over the contents of a folder, which does not change.
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

    /// The endpoint that nodes use.
    pub fn endpoint(&self) -> String {
        self.proxy.endpoint()
    }

    /// The origin with this prefix.
    pub fn origin(prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// Answers like real stores: the first byte after a lognormal time with this median, the rest at 100
    /// MB/s.
    pub fn be_like_a_store(&self, median: Duration) {
        self.proxy.add(Rule::new(s3server::Fault::WaitLike { median, sigma: 0.6 }).only_gets());
        self.proxy.add(Rule::new(s3server::Fault::WaitPerMib(Duration::from_micros(10_486))).only_gets());
    }

    /// What was fetched of each blob since [`Store::forget`].
    pub fn blobs(&self) -> BTreeMap<String, Got> {
        let got = self.server.got().into_iter();
        got.filter(|(key, _)| key.contains(BLOBS) || key.starts_with(BLOBS.trim_start_matches('/'))).collect()
    }

    /// Bytes of answers that went to this port.
    pub fn given_to(&self, port: &Port) -> u64 {
        self.proxy.given().get(&port.address()).copied().unwrap_or(0)
    }

    /// Resets the counts.
    pub fn forget(&self) {
        self.server.forget();
    }

    /// Removes all faults and limits.
    pub fn heal(&self) {
        self.proxy.faults().clear();
        self.proxy.up();
        self.port.heal();
    }
}
