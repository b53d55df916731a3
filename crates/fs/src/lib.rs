//! POSIX semantics over names and blobs.
//!
//! - [`api`]: the [`api::Filesystem`] trait, the types that cross it, and nothing else. A transport (`fuse`) knows
//!   only this; so a volume, a null server and other backends can be mounted by the same transport.
//! - [`volume`]: the real filesystem; `serve` is its face to the transport and `ops` what it does, one file per family.
//! - [`follow`]: one tree after another, as one filesystem.
//! - [`clone`], [`fsck`], [`publish`], [`stats`]: what is done to a volume as a whole, by the command line.
//! - `packs`, `gc`: where bytes go, and how they go away; `equal`: whether bytes that are stored can stand for new ones.
//! - [`errno`]: the one table from errors to error numbers.

pub mod access;
mod ahead;
pub mod api;
mod bytes;
pub mod clone;
mod equal;
pub mod errno;
pub mod follow;
pub mod fsck;
pub mod gc;
mod numbers;
mod ops;
mod packs;
mod paths;
pub mod publish;
mod refs;
mod serve;
mod space;
pub mod stats;
#[cfg(test)]
mod tests;
pub mod volume;

pub use api::Filesystem;
pub use errno::Errno;
pub use volume::{FormatRequest, OpenError, Options, Parts, Volume};
