//! Connections of one cgroup to the store go to this node's S3 gateway instead. The clients are unmodified.
//!
//! When nothing listens at the address of the gateway, new connections go to the store, as if nothing were
//! attached. Connections that exist stay where they are. The client sees the address of the store as its
//! peer.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use aya::Ebpf;
use aya::programs::Program;
use serde::Serialize;

use crate::counts;
use crate::object::{self, Cost, REDIRECT, Setting, WatchError, refused};
use crate::status::{self, OF_REDIRECT};
use crate::store::{LINK, open_cgroup};

/// Connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Redirected {
    /// To the gateway.
    pub redirected: u64,
    /// To the store, because the gateway did not listen.
    pub direct: u64,
}

/// A cgroup whose connections are redirected, until this is dropped.
pub struct Redirect {
    object: Ebpf,
}

impl Redirect {
    /// Redirects the cgroup's connections to `store` to `gateway`.
    ///
    /// # Errors
    /// `cgroup` is no cgroup, both addresses are the same, or the kernel refuses the programs.
    pub fn attach(cgroup: &Path, store: SocketAddr, gateway: SocketAddr) -> Result<Redirect, WatchError> {
        if store == gateway {
            let same = format!("{store} is the store and the gateway: name two addresses");
            return Err(WatchError::NotThere(same));
        }
        if gateway.ip().is_unspecified() {
            let none =
                format!("{gateway} is no address to connect to: name one at which the gateway listens");
            return Err(WatchError::NotThere(none));
        }
        if store.is_ipv4() != gateway.is_ipv4() {
            let mixed = "a connection stays IPv4 or IPv6: name two addresses of the same kind".to_owned();
            return Err(WatchError::NotThere(mixed));
        }
        let folder = open_cgroup(cgroup)?;
        let btf = object::btf()?;
        let settings = [
            ("store", Setting::Address(words(store.ip()))),
            ("store_port", Setting::U16(store.port())),
            ("gateway", Setting::Address(words(gateway.ip()))),
            ("gateway_port", Setting::U16(gateway.port())),
        ];
        let mut object = object::load(REDIRECT, &btf, &settings)?;
        for program in OF_REDIRECT {
            status::load(&mut object, &btf, program)?;
        }
        // The programs that hide the gateway come first: a client never sees a peer that it did not ask for.
        for name in ["peer_ipv4", "peer_ipv6", "connect_ipv4", "connect_ipv6"] {
            let Some(Program::CgroupSockAddr(program)) = object.program_mut(name) else { continue };
            let done = program.attach(&folder, LINK);
            done.map_err(|error| refused(name, &error))?;
        }
        Ok(Redirect { object })
    }

    /// Connections so far.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counts(&self) -> Result<Redirected, WatchError> {
        let at = |what| counts::sum(&self.object, "counts", what);
        Ok(Redirected { redirected: at(0)?, direct: at(1)? })
    }

    /// What the programs cost ([`object::costs`]).
    pub fn costs(&self) -> Vec<Cost> {
        object::costs(&self.object)
    }
}

/// An address as the programs compare it: IPv4 addresses as ::ffff:a.b.c.d, in network byte order.
fn words(address: IpAddr) -> [u32; 4] {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(octets.chunks_exact(4)) {
        *word = u32::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}
