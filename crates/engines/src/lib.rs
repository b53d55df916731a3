//! The databases that hold the names of a shared volume.
//!
//! - [`address`]: an address of a shared volume, and what can be done with one.
//! - `postgres` and `etcd`: the engines. Each is a feature of this crate, because its client takes long to
//!   compile. Nothing stands in front of them: all nodes ask the database itself.
//!
//! What a node needs of such a database is [`meta::engine::database::Database`]. What a commit means is in
//! `meta` too, once for all engines.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod address;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod check;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod pool;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod secrets;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod url;

pub use address::Address;
#[cfg(feature = "etcd")]
pub use etcd::Etcd;
#[cfg(feature = "postgres")]
pub use postgres::Postgres;
