//! POSIX semantics over names and blobs.
//!
//! - [`api`]: the [`api::Filesystem`] trait and the types in its signatures, nothing else. A transport
//!   (`fuse`) depends only on this trait. So the same transport can mount a volume, a null server or any
//!   other backend.
//! - [`volume`]: the real filesystem. `serve` implements the trait for it; `ops` implements the operations,
//!   one file per family.
//! - [`shared`]: what is different in a volume that several nodes write to.
//! - [`follow`]: serves a series of trees, each newer than the last, as one filesystem.
//! - [`handover`]: a volume is closed and opened again while the kernel refers to its inodes.
//! - [`trash`]: what was removed, and how it comes back or is deleted.
//! - [`clone`], [`fsck`], [`publish`], [`stats`]: what the command line does to a whole volume.
//! - [`locks`]: byte-range and whole-file locks, as a table without clocks and threads.
//! - `packs`: where new bytes are stored. `gc`: how unused bytes are freed. `equal`: whether a new write may
//!   refer to bytes that are stored already.
//! - [`errno`]: the one table from errors to error numbers.
//! - [`why`]: the reasons of errors, for callers in this process.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod access;
pub mod api;
mod bytes;
pub mod clone;
mod counters;
mod elsewhere;
mod equal;
pub mod errno;
pub mod follow;
pub mod fsck;
pub mod gc;
pub mod handover;
pub mod locks;
mod numbering;
mod numbers;
mod ops;
mod packs;
mod page;
mod paths;
pub mod pieces;
mod prefetch;
pub mod publish;
pub mod quota;
pub mod read_plan;
mod refs;
mod serve;
pub mod shared;
mod space;
pub mod stats;
#[cfg(test)]
mod tests;
pub mod trash;
pub mod volume;
pub mod why;

pub use api::Filesystem;
pub use errno::Errno;
pub use volume::{FormatRequest, OpenError, Options, Parts, Volume};
