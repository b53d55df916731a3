//! The lowest crate: names for things, and the only access to what is not deterministic.
//!
//! Nothing here does I/O, except that a secret is read from its file, a file is locked, and a line is
//! printed. Every other crate depends on this one, and this one depends on none of them.
//!
//! - [`id`]: inode numbers, pack numbers, blob ids.
//! - [`scale`]: the scale of histograms.
//! - [`size`]: the sizes that the format fixes (a blob, a segment, a group, an inline file).
//! - [`time`]: [`time::Timestamp`], and access to the clocks.
//! - [`deadline`]: one time limit for everything that is done for one piece of work.
//! - [`phase`]: how the time of a request is spent.
//! - [`dice`]: pseudo-random numbers that a seed determines.
//! - [`lock`]: locks on files, and what else a process that was just forked keeps in use.
//! - [`out`]: lines for the person in front of a terminal.
//! - [`places`]: what strangers may take of a listener.
//! - [`random`], [`thread`]: access to random bytes and to threads.
//! - [`trial`]: for tests: checks that neither a slow machine nor a fork breaks.
//! - [`secret`]: what machines must know to talk to one another, and the keys that derive from it.
//! - [`must`]: access for "cannot happen". It panics with a sentence that says why it cannot.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod deadline;
pub mod dice;
pub mod id;
#[allow(clippy::disallowed_methods, reason = "this module is the only access to them")]
pub mod lock;
pub mod must;
pub mod out;
pub mod phase;
pub mod places;
#[allow(clippy::disallowed_methods, reason = "this module is the only access to them")]
pub mod random;
pub mod scale;
pub mod secret;
pub mod size;
#[allow(clippy::disallowed_methods, reason = "this module is the only access to them")]
pub mod thread;
#[allow(clippy::disallowed_methods, reason = "this module is the only access to them")]
pub mod time;
pub mod trial;

pub use deadline::Deadline;
pub use id::{BlobId, ForeignObject, Ino, PackNo};
pub use must::Must;
pub use time::Timestamp;
