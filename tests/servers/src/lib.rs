//! Servers that hold the names of shared volumes, for tests: a PostgreSQL server or an etcd cluster on this
//! machine, with a folder and ports of its own, and relays in front of them.
//!
//! Nothing here knows the product. A test that wants a volume in a server asks for the server's port.

// Tests may unwrap and start threads, and so may this library, which only they use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod etcd;
mod port;
mod postgres;
mod relay;
mod run;

pub use etcd::Cluster;
pub use port::free_port;
pub use postgres::{Server, Wrap};
pub use relay::{Holding, Relay};
