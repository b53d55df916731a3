//! All stores of rows: what they promise, and what PostgreSQL and etcd do when servers are lost.

mod etcd_commits;
mod etcd_setup;
mod names_engines;
mod postgres_commits;
mod postgres_setup;
mod postgres_upgrade;
mod shared_store;
mod store_conformance;

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../../../meta/tests/support/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../../../meta/tests/support/server.rs"]
mod server;
#[path = "../../../meta/tests/support/mod.rs"]
mod support;
