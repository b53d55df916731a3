//! One running Covey: what is mounted, published, followed and lent, and the parts of which it consists.
//!
//! ```text
//!   running.rs      a mount from beginning to end: opened, mounted, answering, closed
//!   mount.rs        what a mount serves: a volume, a published tree, a corpus
//!   opened.rs       the wiring: a volume's folder becomes lock, journal, packs, origin, volume
//!   far.rs          an origin behind a network: the node's cache before it, the uploads beside it
//!   fleet.rs        a node of a fleet: what is lent, and to which fleet it belongs
//!   frozen.rs       a published tree as what a mount serves; follow.rs: moving to what is published next
//!   claim.rs        which folder may write to an origin
//!   publish.rs      publishing; again.rs: again and again while mounted; publisher.rs: who a folder is in its origin
//!   options.rs      how a volume is opened and mounted; origins.rs: an origin as a person writes it
//!   volume_dir.rs   what lies where in a volume's folder; mounts.rs, trust.rs: what is mounted where, and by whom
//!   watch.rs        looking on at a mount; metrics.rs: figures for Prometheus; status.rs: a volume's figures
//!   info.rs         what a file is made of; refused.rs, errno.rs: what is said when something cannot be done
//!   control.rs      asking a daemon; log.rs, notify.rs: what a daemon says of itself
//!   limits.rs       what was inherited and would end a daemon: lifted, or refused; signals.rs: those that end one
//!   own.rs, secrets.rs, sys.rs   files of this program's own, what is secret, system calls
//! ```
//!
//! Front ends are above it: the command line, and whatever else mounts, publishes or lends. Nothing here knows of commands, of
//! their arguments or of a terminal.

pub mod again;
pub mod claim;
pub mod control;
pub mod corpus;
pub mod errno;
pub mod far;
pub mod fleet;
pub mod follow;
pub mod frozen;
pub mod info;
pub mod limits;
pub mod log;
pub mod metrics;
pub mod mount;
pub mod mounts;
pub mod notify;
pub mod opened;
pub mod options;
pub mod origins;
pub mod others;
pub mod own;
pub mod publish;
pub mod publisher;
pub mod refused;
pub mod running;
pub mod secrets;
pub mod signals;
pub mod status;
pub mod sys;
pub mod trust;
pub mod volume_dir;
pub mod watch;
