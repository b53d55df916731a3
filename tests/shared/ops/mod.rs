//! Operating shared volumes: publishing, restoring, checking, locks, and databases that fail over.
//!
//! The nodes are real daemons with real mounts on this machine, and the databases are real servers. The
//! modules beside this one test what a program may rely on.

mod away;
mod checks;
mod claims;
mod clones;
mod collect;
mod detach;
mod etcd;
mod failover;
mod gate;
mod manual;
mod mistakes;
mod promote;
mod promote_live;
mod promote_mistakes;
mod promote_mounted;
mod publish;
mod repair;
mod restore;
mod single;
mod trash;
mod upgrade;
