//! The trait of the copies that a node keeps of other nodes' packs.
//!
//! A pack that is no blob in the origin yet is on the disk of the node that writes it. A node keeps the
//! ranges of it that were synced there, so that they are on two disks. A range that is named never changes,
//! so a copy is right for as long as it exists.

use base::PackNo;

use crate::source::BlobError;

/// A copy of a pack, as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptPack {
    /// Which pack.
    pub pack: PackNo,
    /// Increases with each range that is added.
    pub version: u64,
}

/// Copies of other nodes' packs on this node's disk.
pub trait Kept: Send + Sync {
    /// Reads a range. False if not all of it is here.
    ///
    /// # Errors
    /// `Io` (invalid data) for bytes that are damaged; see [`BlobError`].
    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<bool, BlobError>;

    /// The ranges (offset, length) that are here, in order. Ranges that touch are joined.
    fn ranges(&self, pack: PackNo) -> Vec<(u32, u32)>;

    /// All packs of which something is here.
    fn list(&self) -> Vec<KeptPack>;

    /// Deletes a copy, if nothing was added to it since it had this version. `None`: in any case.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn remove(&self, pack: PackNo, version: Option<u64>) -> Result<(), BlobError>;
}
