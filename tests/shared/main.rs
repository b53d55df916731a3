//! Shared volumes: many nodes write one tree, with its names in a real PostgreSQL server or etcd
//! cluster.
//!
//! The nodes are real daemons with real mounts on this machine. What they see is checked by a history checker
//! ([`checker`]), and by what a program may rely on: a name is there for all when it is there for one, and a
//! file that was closed on one node is read whole on another. `make test-shared` runs the long form.

mod checker;
mod copies;
mod data;
mod etcd;
#[allow(dead_code, reason = "each test program uses its part")]
mod etcd_rig;
mod faults;
mod journal;
mod listing;
mod locks;
mod names;
mod quotas;
mod refusals;
#[allow(dead_code, reason = "each test program uses its part")]
mod rig;
mod trash;
mod weather;
mod work;
