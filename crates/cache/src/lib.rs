//! The node's disk: open packs, and the cache of blobs of a remote origin.
//!
//! A program's write is appended to an open pack. Where the pack and the origin share a filesystem, the file
//! of the sealed pack *becomes* the origin's blob. So every byte is written once.
//!
//! - [`DiskPacks`]: a folder with a file for each open pack.
//! - [`MemoryPacks`]: open packs in memory, for volumes in memory and for tests.
//!
//! Both pass one conformance suite (`tests.rs`), over origins that link, copy and share.
//!
//! - [`NodeCache`]: a folder of blobs in front of a remote origin. It implements the origin's trait itself.
//! - [`NameCache`]: ranges of blobs that hold names, kept on disk as they were read.
//! - [`residency`]: which cached blobs stay.
//! - [`upload`]: which blobs the origin lacks, and how they get there.
//! - [`Beside`]: a cache, and what the other caches of its volume on this machine have.
//! - [`KeptPacks`]: copies of other nodes' packs, of a shared volume.
//! - [`SharedDisk`]: open packs on a disk that they share with the cache.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

mod beside;
mod disk;
mod kept;
mod memory;
mod names;
pub mod node;
pub mod residency;
mod shared_disk;
#[cfg(test)]
mod tests;
pub mod upload;

use std::io;

use base::PackNo;
use base::size::BLOB_MAX;
use blob::BlobError;

pub use beside::Beside;
pub use disk::DiskPacks;
pub use kept::{KeptPacks, KeptStats};
pub use memory::{MemoryPacks, memory_room};
pub use names::NameCache;
pub use node::pending::{Pending, Pinned, StoresNothing};
pub use node::{
    CacheOptions, CacheStats, Evict, Evicted, MayDelete, NodeCache, NodeParts, Report, Warmed, Watch,
    default_budget, default_floor,
};
pub use shared_disk::{Reclaim, SharedDisk};
pub use upload::{UploadOptions, UploadStats, Uploads, Waiting};

/// The end of a range in a pack. An error if it lies past the maximum size of a blob.
fn end_of(pack: PackNo, offset: u32, len: usize) -> Result<u32, BlobError> {
    let end = u64::from(offset) + len as u64;
    u32::try_from(end).ok().filter(|end| *end <= BLOB_MAX).ok_or_else(|| {
        let what = format!("pack {pack}: a range of {len} bytes at {offset} reaches past 4 MiB");
        BlobError::Io(io::Error::new(io::ErrorKind::InvalidInput, what))
    })
}

fn no_such_pack(pack: PackNo) -> BlobError {
    BlobError::Io(io::Error::new(io::ErrorKind::NotFound, format!("pack {pack} is not open on this node")))
}

fn exists_already(pack: PackNo) -> BlobError {
    BlobError::Io(io::Error::new(io::ErrorKind::AlreadyExists, format!("pack {pack} exists already")))
}

fn too_short(pack: PackNo, wanted: u32, holds: u64) -> BlobError {
    let what = format!("pack {pack} holds {holds} bytes, not {wanted}");
    BlobError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, what))
}
