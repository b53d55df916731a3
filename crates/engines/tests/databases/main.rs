//! All stores of rows: what they promise, and what PostgreSQL and etcd do when servers are lost.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod etcd_commits;
mod etcd_setup;
mod names_engines;
mod postgres_commits;
mod postgres_setup;
mod postgres_upgrade;
mod shared_store;
mod store_conformance;
mod volumes;

#[path = "../../../meta/tests/support/mod.rs"]
mod support;
