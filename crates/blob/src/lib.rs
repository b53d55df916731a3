//! Bytes: what is stored, cached or sent is a blob, immutable, at most 4 MiB, named by the BLAKE3 of its bytes.
//!
//! A blob in the making is a *pack*: append-only while open, a blob once sealed. A file is a list of *extents*, each a
//! range of a pack. This crate computes on bytes and hashes, reads and writes folders of blobs, and holds the seams
//! that the rooms above and beside it meet at:
//!
//! - [`source::BlobSource`]: "the bytes of this blob, please"; a folder, memory, a peer, an object store, or tiers of them.
//! - [`source::Origin`]: where a volume's blobs live for good.
//! - [`records::Records`]: the few small things of an origin that have names of their own.
//! - [`claim`]: one of them: which folder may write to an origin.
//! - [`pack::PackStore`]: this node's open packs; the write path.
//!
//! - [`access`]: how a file is read, where somebody has said so.
//! - [`coming`]: bytes that are on their way, handed over by whoever brings them.
//! - [`extent`]: the extents of one 4 MiB range of a file, as a value with its algebra.
//! - [`sums`]: what lies beside a blob so that a part of it can be checked: chaining values and CRCs.
//! - [`folder`]: blobs as files, each with its sums beside it; what a `file:` origin and a node's cache consist of.
//! - [`tiered`]: several sources asked one after the other.
//! - [`gate::Gate`]: where writers wait when the origin is behind.
//! - [`stock`]: memory for the bytes of a blob, which is used again.
//! - [`failing`]: the seams with faults that a test switches on.

pub mod access;
pub mod claim;
pub mod coming;
pub mod extent;
pub mod failing;
pub mod folder;
pub mod gate;
pub mod pack;
pub mod records;
pub mod source;
pub mod stock;
pub mod sums;
pub mod tiered;

pub use access::Access;
pub use coming::Coming;
pub use extent::{Extent, ExtentPage};
pub use folder::BlobFolder;
pub use gate::Gate;
pub use pack::{PackStore, Space};
pub use records::Records;
pub use source::{BlobError, BlobSource, Origin, Part, SharedBytes};
pub use stock::Buffer;
pub use sums::Sums;
pub use tiered::Tiered;
