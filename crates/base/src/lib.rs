//! The bottom room: names for things, and the only doors to what is not deterministic.
//!
//! Nothing here does I/O. Every other crate imports this one and this one imports none of them.
//!
//! - [`id`]: inode numbers, pack numbers, blob ids.
//! - [`size`]: the sizes that the format fixes (a blob, a segment, a group, an inline file).
//! - [`time`]: [`time::Timestamp`], and the door to the clocks.
//! - [`deadline`]: one bound for all that is done for it.
//! - [`phase`]: what a request's time is spent on.
//! - [`random`], [`thread`]: the doors to random bytes and to threads.
//! - [`must`]: the door for "cannot happen": it panics with a sentence that says why it could not.

pub mod deadline;
pub mod id;
pub mod must;
pub mod phase;
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub mod random;
pub mod size;
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub mod thread;
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub mod time;

pub use deadline::Deadline;
pub use id::{BlobId, Ino, PackNo};
pub use must::Must;
pub use time::Timestamp;
