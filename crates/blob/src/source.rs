//! The seams for sealed blobs: [`BlobSource`] gives bytes, [`Origin`] also takes and keeps them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::BlobId;

use crate::sums::Sums;

/// Why a blob's bytes could not be had. The kinds are few: a caller does something else for each.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// This source does not have the blob; another may.
    #[error("blob {0} is not here")]
    Missing(BlobId),
    /// A copy is there and its bytes are not the blob's. The copy must not be used; another may be sound.
    #[error("blob {id} is damaged: {what}")]
    Damaged {
        /// Which blob.
        id: BlobId,
        /// What was seen, for a person.
        what: String,
    },
    /// There is no room to write.
    #[error("no space left for blobs")]
    Full,
    /// The source did not answer in time or refused; it may answer later.
    #[error("{0}")]
    Unavailable(String),
    /// Anything else the system said.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BlobError::Full,
            _ => BlobError::Io(error),
        }
    }
}

/// Bytes in memory that several hold and nobody changes any more.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where bytes of sealed blobs come from. What is given has been verified: damaged bytes are an error, never bytes.
pub trait BlobSource: Send + Sync {
    /// Fills `buf` with the blob's bytes from `offset` on; after an error, what it holds is undefined. A range past the blob's end is an error (`Io`, invalid input).
    ///
    /// # Errors
    /// See [`BlobError`].
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError>;

    /// Whether a read would be answered from this machine, without waiting for a network. Used to decide on which
    /// thread a request is served, so it must be quick; a wrong answer costs time, not truth.
    fn is_near(&self, id: &BlobId) -> bool;

    /// All of the blob will be read soon. A hint, quick to give: who can, fetches it in the background.
    fn will_need(&self, _id: &BlobId) {}
}

/// The object store that holds a volume's blobs for good.
pub trait Origin: BlobSource {
    /// Takes a blob into the origin; `file` holds exactly its bytes, is never written again, and stays where it is
    /// (an origin on the same filesystem links it, so that every byte is written once). Storing what is already there is no error.
    /// When this returns, a read finds the blob; it survives a power cut only after [`Origin::sync`].
    ///
    /// # Errors
    /// See [`BlobError`].
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError>;

    /// The same for bytes in memory.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError>;

    /// The same, where the origin may keep `bytes` instead of a copy: an origin in memory then shares the pack's own.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        self.put(id, sums, (*bytes).as_ref())
    }

    /// Makes every blob taken so far survive a power cut (the names: `adopt`ed data is synced by who wrote it).
    ///
    /// # Errors
    /// See [`BlobError`].
    fn sync(&self) -> Result<(), BlobError>;

    /// Removes a blob; one that is not there is no error.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn remove(&self, id: &BlobId) -> Result<(), BlobError>;

    /// The blob's size in bytes, if it is there.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError>;

    /// Calls `each` with every blob and its size, in no order, until it answers false.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError>;

    /// Reads the whole blob and compares it with its name (not only with what lies beside it). For `fsck`.
    ///
    /// # Errors
    /// `Damaged` or `Missing` when it is; see [`BlobError`].
    fn verify(&self, id: &BlobId) -> Result<(), BlobError>;

    /// How a person would name it: `file:/srv/blobs`, `mem:`.
    fn describe(&self) -> String;
}
