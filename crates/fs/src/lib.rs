//! POSIX semantics over names and blobs.
//!
//! - [`api`]: the [`api::Filesystem`] trait, the types that cross it, and nothing else. A transport (`fuse`) knows
//!   only this; so a volume, a null server and other backends can be mounted by the same transport.
//! - [`errno`]: the one table from this crate's errors to error numbers.

pub mod api;
pub mod errno;

pub use api::Filesystem;
pub use errno::Errno;
