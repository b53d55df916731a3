//! Deterministic random files: every byte and every name follows from a seed, a number of files and a size.
//!
//! A program that knows these three can derive the whole corpus by itself. So a benchmark and the filesystem
//! that it measures agree on the content of each name without exchanging anything or reading a listing.
//!
//! - [`spec`]: the three numbers, and how they are written on a command line.
//! - [`content`]: from (seed, index, size) to bytes, and from bytes to a name. **Version 1; never changed.**
//! - [`memory`]: all of it in one mapping, as a frozen filesystem.
//!
//! A corpus is a filesystem without a volume: no names database, no blobs, no cache. It shows what
//! [`fs::api::Filesystem`] is for: anything that implements it can be mounted.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod content;
pub mod memory;
pub mod spec;

pub use memory::{Corpus, MakeError};
pub use spec::{Spec, SpecError};

#[cfg(test)]
mod tests;
