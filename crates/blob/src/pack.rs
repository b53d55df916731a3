//! The seam for packs: blobs in the making.
//!
//! ```text
//!   create --> write ... write --> seal ----------------> retire
//!              (append-only)       (hash, sums, origin    (the open name goes; only after the
//!                                   adopts; the open       pack's row says "sealed" durably)
//!                                   name stays)
//! ```
//!
//! Ranges of a pack are handed out by the caller and written once each, possibly by several threads at a time.

use base::{BlobId, PackNo};

use crate::source::BlobError;
use crate::sums::crc32c;

/// Room on the node's disk, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The size of the filesystem (or of what may be used of it).
    pub total: u64,
    /// What can still be written by an ordinary user.
    pub available: u64,
}

/// This node's open packs. Implementations: a folder, memory, and a failing form for tests.
pub trait PackStore: Send + Sync {
    /// Starts an empty pack. The number has never been used before.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn create(&self, pack: PackNo) -> Result<(), BlobError>;

    /// Writes a range that was not written before. When it returns, the bytes survive a kill of this process, and
    /// a power cut only after [`PackStore::sync`].
    ///
    /// # Errors
    /// `Full` when there is no room; nothing then refers to the range. See [`BlobError`].
    fn write(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError>;

    /// The same, and gives the CRC32C of the bytes: a store that sums them up anyway need not do it twice.
    ///
    /// # Errors
    /// As [`PackStore::write`].
    fn write_summed(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<u32, BlobError> {
        self.write(pack, offset, bytes)?;
        Ok(crc32c(bytes))
    }

    /// Whether the pack holds, at `offset`, bytes with this CRC32C. A store that keeps sums takes it from then on for the sum of
    /// the range: so what the log of names can prove after a crash is checked on every later read, too.
    ///
    /// # Errors
    /// As [`PackStore::read`]; bytes that are not there, or differ, are none.
    fn prove(&self, pack: PackNo, offset: u32, len: u32, crc: u32) -> Result<bool, BlobError> {
        let mut bytes = vec![0; len as usize];
        match self.read(pack, offset, &mut bytes) {
            Ok(()) => Ok(crc32c(&bytes) == crc),
            // It may answer later.
            Err(error @ (BlobError::Unavailable(_) | BlobError::Refused(_))) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Reads from a pack that has not been retired. A store on a disk checks what it gives: bytes that are not those that were written
    /// are an error.
    ///
    /// # Errors
    /// `Io` (unexpected end of file) past what was written, `Io` (invalid data) for bytes that are damaged; see [`BlobError`].
    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError>;

    /// Makes all that was written to these packs survive a power cut. A pack that is gone (retired: it was synced
    /// then; or discarded) is passed over.
    ///
    /// # Errors
    /// See [`BlobError`]. After an error nothing is known of what is durable.
    fn sync(&self, packs: &[PackNo]) -> Result<(), BlobError>;

    /// Turns the pack's first `len` bytes into a blob that the origin holds. No write to it is under way or comes later.
    /// The open name stays, and so do reads by pack number, until [`PackStore::retire`]. May be repeated after a crash.
    ///
    /// # Errors
    /// `Io` (invalid data) when bytes are damaged: they are never given a name that would make them right. See [`BlobError`]; the pack then
    /// stays open and can be sealed again.
    fn seal(&self, pack: PackNo, len: u32) -> Result<BlobId, BlobError>;

    /// Makes these sealed packs' blobs durable in the origin, then lets go of their open names.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError>;

    /// Throws an open pack away: no name refers to any byte of it.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn discard(&self, pack: PackNo) -> Result<(), BlobError>;

    /// The packs that have an open name, with their lengths in bytes. What a crash left is found here.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError>;

    /// Room on the disk that open packs are written to. Quick enough to be asked before every large write.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn space(&self) -> Result<Space, BlobError>;
}
