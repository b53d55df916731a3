//! Bytes: everything stored, cached or sent is a blob: immutable, at most 4 MiB, named by the BLAKE3 of its
//! bytes.
//!
//! A blob under construction is a *pack*: append-only while open, a blob once sealed. A file is a list of
//! *extents*, each a range of a pack. This crate computes on bytes and hashes, reads and writes folders of
//! blobs, and defines the traits through which the other crates exchange blobs:
//!
//! - [`source::BlobSource`]: gives the bytes of a blob; a folder, memory, a peer, or an object store.
//! - [`source::Origin`]: the permanent store of a volume's blobs.
//! - [`records::Records`]: the few small things of an origin that have names of their own.
//! - [`claim`]: one of these records: which folder may write to an origin.
//! - [`pack::PackStore`]: this node's open packs; the write path.
//!
//! - [`access`]: how a file is read, if a user or program has declared it.
//! - [`completion`]: reads that are completed when their bytes arrive.
//! - [`extent`]: the extents of one 4 MiB range of a file, as a value with its operations.
//! - [`sums`]: the checksums beside a blob that let a part of it be checked: chaining values and CRCs.
//! - [`folder`]: blobs as files, each with its sums beside it. A `file:` origin and a node's cache consist of
//!   these.
//! - [`gate::Gate`]: where writers wait when the origin is behind (backpressure).
//! - [`kept::Kept`]: the copies that a node keeps of other nodes' packs.
//! - [`stock`]: a pool of buffers for the bytes of blobs.
//! - [`failing`]: implementations with faults that a test switches on.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod access;
pub mod claim;
pub mod completion;
pub mod extent;
pub mod failing;
pub mod folder;
pub mod gate;
pub mod kept;
pub mod pack;
pub mod records;
pub mod source;
pub mod stock;
pub mod sums;

pub use access::Access;
pub use extent::{Extent, ExtentPage};
pub use folder::BlobFolder;
pub use gate::Gate;
pub use kept::{Kept, KeptPack};
pub use pack::{PackStore, Space};
pub use records::Records;
pub use source::{BlobError, BlobSource, Origin, Part, SharedBytes};
pub use stock::Buffer;
pub use sums::Sums;
