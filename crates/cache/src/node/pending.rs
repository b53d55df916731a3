//! What the origin does not have yet, and must get: the seam between the node's cache and whoever uploads.
//!
//! The cache says of every blob that is stored here that the origin wants it ([`Pending::note`]). From then on the blob is *pinned*: its
//! bytes are in no other place, and the cache does not let go of its own copy while [`Pending::is_pending`] says so. How uploads are
//! queued, tried again and counted is the other side's business; here it is only a set of blobs that survives a kill.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::BlobId;
use blob::{BlobError, Sums};

/// How much is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Blobs that the origin does not have yet.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The blobs that are on their way to the origin. Called from many threads; nothing here waits for the network but [`Pending::settle`].
pub trait Pending: Send + Sync {
    /// The origin needs this blob, and has it perhaps not yet. `file` is its file in the node's folder of blobs: it holds
    /// exactly its bytes and is never written again, but its name may go as soon as the blob is pending no more; so the callee keeps a link
    /// of its own. When this returns, a kill forgets nothing. Noting again what is noted is no error; what was forgotten while
    /// it was being uploaded is wanted again.
    ///
    /// # Errors
    /// See [`BlobError`]; then the blob counts as not stored.
    fn note(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError>;

    /// Whether the blob is noted and the origin has not confirmed it. Also true while an upload that was forgotten is still under way:
    /// so when it is false, nothing of this blob will reach the origin any more. Quick: it is asked for every candidate of an eviction.
    fn is_pending(&self, id: &BlobId) -> bool;

    /// The blob is not wanted any more: no further attempt begins. Does not wait for one that is under way ([`Pending::is_pending`] tells
    /// when it has ended). Forgetting what is not noted is no error.
    ///
    /// # Errors
    /// See [`BlobError`]; then it is still noted.
    fn forget(&self, id: &BlobId) -> Result<(), BlobError>;

    /// A read found that the origin lacks the blob, or has it damaged: when it is stored again, nothing that was known of an earlier upload counts.
    fn doubt(&self, _id: &BlobId) {}

    /// Where the link to a pending blob's bytes is, if it is pending: the folder of blobs may have lost its own to a power cut.
    fn file(&self, id: &BlobId) -> Option<PathBuf>;

    /// All that is pending, with sizes in bytes, in no order.
    fn list(&self) -> Vec<(BlobId, u64)>;

    /// How much that is.
    fn pinned(&self) -> Pinned;

    /// Makes the notes survive a power cut. That they are in the origin is [`Pending::settle`]'s to say.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn sync(&self) -> Result<(), BlobError>;

    /// Waits until everything noted so far is in the origin.
    ///
    /// # Errors
    /// `Unavailable` when that takes longer than `patience`, with the reason why it does; see [`BlobError`].
    fn settle(&self, patience: Duration) -> Result<(), BlobError>;
}

/// For a node that stores nothing (a published tree, a volume that is only looked at): there is never anything pending.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoresNothing;

impl Pending for StoresNothing {
    fn note(&self, _: &BlobId, _: &Sums, _: &Path) -> Result<(), BlobError> {
        Err(std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem).into())
    }

    fn is_pending(&self, _: &BlobId) -> bool {
        false
    }

    fn forget(&self, _: &BlobId) -> Result<(), BlobError> {
        Ok(())
    }

    fn file(&self, _: &BlobId) -> Option<PathBuf> {
        None
    }

    fn list(&self) -> Vec<(BlobId, u64)> {
        Vec::new()
    }

    fn pinned(&self) -> Pinned {
        Pinned::default()
    }

    fn sync(&self) -> Result<(), BlobError> {
        Ok(())
    }

    fn settle(&self, _: Duration) -> Result<(), BlobError> {
        Ok(())
    }
}
