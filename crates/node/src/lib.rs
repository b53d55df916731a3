//! One running Covey: what is mounted, published, followed and lent, and the parts that this needs.
//!
//! ```text
//!   running.rs      a mount from beginning to end: open, mount, answer, close
//!   mount.rs        what a mount serves: a volume, a published tree, a corpus
//!   opened.rs       the wiring: a volume's folder becomes lock, journal, packs, origin, volume
//!   remote_side.rs  a remote origin: the node's cache in front of it, the uploads beside it
//!   fleet.rs        a node of a fleet: what it lends, and to which fleet it belongs
//!   reader.rs       a published tree that a process reads itself, without a mount
//!   frozen.rs       a published tree as the source of a mount
//!   follow.rs       moving a mount to the next published tree
//!   claim.rs        which folder may write to an origin
//!   publish.rs      publishing once
//!   published.rs    what is published
//!   again.rs        publishing repeatedly while mounted
//!   publisher.rs    the identity of a volume's folder in its origin
//!   options.rs      how a volume is opened and mounted
//!   origins.rs      an origin as a person writes it
//!   bucket.rs       buckets of others, as sources of imports
//!   read_through.rs buckets of others, with this node's disk as their cache
//!   volume_dir.rs   the files in a volume's folder
//!   mounts.rs       which mount a path is in
//!   trust.rs        which mounts and daemons are believed
//!   others.rs       copies of a mount in other namespaces and places
//!   watch.rs        watching a mount
//!   metrics.rs      figures for Prometheus
//!   heat.rs         which parts of files are read most, and what follows for the cache
//!   status.rs       a volume's figures
//!   info.rs         what a file consists of
//!   hint.rs         which access hint applies to a file
//!   import.rs       imports into a mounted volume
//!   kernel.rs       the kernel's caches, for changes that it did not ask for
//!   corpus.rs       a mounted corpus
//!   refused.rs      failures for operations that cannot be done
//!   errno.rs        error numbers as failures
//!   paths.rs        the name of an inode
//!   control.rs      requests to a daemon
//!   log.rs          the log of a daemon
//!   notify.rs       notifications to a service manager
//!   limits.rs       inherited resource limits, lifted or refused
//!   signals.rs      signals that end a command
//!   secrets.rs      secrets, and how they are removed from texts
//!   memory.rs       memory of this process
//! ```
//!
//! Front ends are above this crate: the command line, and anything else that mounts, publishes or lends.
//! Nothing here knows commands, their arguments or a terminal.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod again;
pub mod bucket;
pub mod claim;
pub mod control;
pub mod corpus;
pub mod errno;
pub mod fleet;
pub mod follow;
pub mod foreign;
pub mod frozen;
pub mod heat;
pub mod hint;
mod holders;
mod import;
pub mod index;
pub mod info;
pub mod kernel;
pub mod limits;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod mount;
pub mod mounts;
pub mod notify;
pub mod opened;
pub mod options;
pub mod origins;
pub mod others;
mod paths;
pub mod publish;
pub mod published;
pub mod publisher;
#[cfg(feature = "stores")]
pub mod read_through;
pub mod reader;
pub mod refused;
pub mod remote_side;
pub mod running;
pub mod secrets;
pub mod shared;
pub mod signals;
pub mod status;
mod trash;
pub mod trust;
pub mod volume_dir;
pub mod watch;
