//! Shared volumes: many nodes write one tree, with its names in a real PostgreSQL server or etcd
//! cluster.
//!
//! The nodes are real daemons with real mounts on this machine. What they see is checked by a history checker
//! ([`covey_tests::shared::names`]), and by what a program may rely on: a name is there for all when it is
//! there for one, and a file that was closed on one node is read whole on another. [`ops`] operates such
//! volumes. `make test-shared` runs the long form.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod copies;
mod data;
mod etcd;
mod faults;
mod fleet;
mod journal;
mod killed;
mod listing;
mod locks;
mod ops;
mod programs;
mod quotas;
mod random;
mod refusals;
mod trash;
mod weather;
mod work;
