//! The trait of the packs: blobs under construction.
//!
//! ```text
//!   create --> write ... write --> seal ----------------> retire
//!              (append-only)       (hash, sums, origin    (removes the open name; only after
//!                                   adopts; the open       the pack's row says "sealed" durably)
//!                                   name stays)
//! ```
//!
//! The caller allocates ranges of a pack. Each is written once, possibly by several threads in parallel.

use base::{BlobId, PackNo};

use crate::source::BlobError;
use crate::sums::crc32c;

/// Space on the node's disk, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The size of the filesystem, or of the part that may be used.
    pub total: u64,
    /// What an ordinary user can still write.
    pub available: u64,
    /// Free space beyond that: the part that the filesystem reserves for root.
    pub reserve: u64,
}

/// The store of this node's open packs. Implementations: a folder, memory, and a failing form for tests.
pub trait PackStore: Send + Sync {
    /// Starts an empty pack. The number has never been used before.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn create(&self, pack: PackNo) -> Result<(), BlobError>;

    /// Writes a range that was not written before. When it returns, the bytes survive a kill of this process.
    /// They survive a power cut only after [`PackStore::sync`].
    ///
    /// # Errors
    /// `Full` when there is no room; then nothing refers to the range. See [`BlobError`].
    fn write(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError>;

    /// Writes a range as [`PackStore::write`] does, and returns the CRC32C of the bytes. A store that
    /// computes it anyway need not do it twice.
    ///
    /// # Errors
    /// As [`PackStore::write`].
    fn write_summed(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<u32, BlobError> {
        self.write(pack, offset, bytes)?;
        Ok(crc32c(bytes))
    }

    /// Whether the pack holds, at `offset`, bytes with this CRC32C. A store that keeps sums uses it as the
    /// sum of the range from then on. So what the log of names can prove after a crash is also checked on
    /// every later read.
    ///
    /// # Errors
    /// As [`PackStore::read`]. Missing or different bytes are not an error.
    fn prove(&self, pack: PackNo, offset: u32, len: u32, crc: u32) -> Result<bool, BlobError> {
        let mut bytes = vec![0; len as usize];
        match self.read(pack, offset, &mut bytes) {
            Ok(()) => Ok(crc32c(&bytes) == crc),
            // A later attempt may succeed.
            Err(error @ (BlobError::Unavailable(_) | BlobError::Refused(_))) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Reads from a pack that has not been retired. A store on a disk verifies what it returns: bytes that
    /// differ from what was written are an error.
    ///
    /// # Errors
    /// `Io` (unexpected end of file) past what was written, `Io` (invalid data) for bytes that are damaged;
    /// see [`BlobError`].
    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError>;

    /// Makes all that was written to these packs survive a power cut. Skips a pack that no longer exists
    /// (retired, and synced at that time; or discarded).
    ///
    /// # Errors
    /// See [`BlobError`]. After an error it is unknown what is durable.
    fn sync(&self, packs: &[PackNo]) -> Result<(), BlobError>;

    /// Turns the pack's first `len` bytes into a blob that the origin holds. No write to the pack may be in
    /// progress or follow. The open name stays, and so do reads by pack number, until [`PackStore::retire`].
    /// May be repeated after a crash.
    ///
    /// # Errors
    /// `Io` (invalid data) when bytes are damaged: they never get a name that would make them right. See
    /// [`BlobError`]. The pack then stays open and can be sealed again.
    fn seal(&self, pack: PackNo, len: u32) -> Result<BlobId, BlobError>;

    /// Makes these sealed packs' blobs durable in the origin, then removes their open names.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError>;

    /// Deletes an open pack. Nothing may refer to any of its bytes.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn discard(&self, pack: PackNo) -> Result<(), BlobError>;

    /// The packs that have an open name, with their lengths in bytes. After a crash this finds what is left.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError>;

    /// Space on the disk that open packs are written to. Quick enough to be called before every large write.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn space(&self) -> Result<Space, BlobError>;
}
