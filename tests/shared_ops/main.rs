//! Operating shared volumes: publishing, restoring, checking, locks, and databases that fail over.
//!
//! The nodes are real daemons with real mounts on this machine, and the databases are real servers. What a
//! program may rely on is tested by `tests/shared`.

mod away;
mod checks;
mod clones;
mod collect;
mod etcd;
#[allow(dead_code, unused_imports, reason = "each test program uses its part")]
#[path = "../shared/etcd_rig.rs"]
mod etcd_rig;
mod failover;
mod gate;
mod mistakes;
mod promote;
mod promote_live;
mod promote_mistakes;
mod promote_mounted;
mod publish;
mod repair;
mod restore;
#[allow(dead_code, unused_imports, reason = "each test program uses its part")]
#[path = "../shared/rig.rs"]
mod rig;
mod single;
mod trash;
mod upgrade;
