//! Blobs that the origin does not have yet: the interface between the node's cache and its uploads.
//!
//! The cache records every blob that is stored here ([`Pending::note`]). From then on the blob is *pinned*:
//! its bytes exist nowhere else, and the cache keeps its copy while [`Pending::is_pending`] is true. The
//! implementation queues, retries and counts uploads. To the cache it is only a set of blobs that survives a
//! crash of the process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::BlobId;
use blob::{BlobError, Sums};

/// How much is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Blobs that the origin does not have yet.
    pub blobs: u64,
    /// Bytes of the pinned blobs.
    pub bytes: u64,
}

/// The blobs that wait for their upload to the origin. Called from many threads. Only [`Pending::settle`]
/// waits for the network.
pub trait Pending: Send + Sync {
    /// Records that the origin needs this blob and may not have it yet. `file` is the blob's file in the
    /// node's folder of blobs. It holds exactly the blob's bytes and is never written again. Its name may
    /// disappear as soon as the blob is no longer pending, so the implementation keeps a link of its own.
    /// When this returns, the record survives a kill. Recording a blob twice is no error. A blob that was
    /// forgotten during its upload is wanted again.
    ///
    /// # Errors
    /// See [`BlobError`]. The blob then counts as not stored.
    fn note(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError>;

    /// Whether the blob is recorded and the origin has not confirmed it. Also true while the upload of a
    /// forgotten blob is still in flight. So when this is false, nothing of the blob will reach the origin
    /// any more. Must be quick: every candidate of an eviction calls it.
    fn is_pending(&self, id: &BlobId) -> bool;

    /// Records that the blob is no longer wanted, so no further upload begins. Does not wait for one in
    /// flight ([`Pending::is_pending`] tells when it has ended). Forgetting an unknown blob is no error.
    ///
    /// # Errors
    /// See [`BlobError`]. The blob is still recorded then.
    fn forget(&self, id: &BlobId) -> Result<(), BlobError>;

    /// Records that a read found the blob missing or damaged in the origin. When it is stored again, an
    /// earlier upload no longer counts.
    fn doubt(&self, _id: &BlobId) {}

    /// The link to a pending blob's bytes, if it is pending. A power cut may have taken the link in the
    /// folder of blobs.
    fn file(&self, id: &BlobId) -> Option<PathBuf>;

    /// All pending blobs with their sizes in bytes, in no particular order.
    fn list(&self) -> Vec<(BlobId, u64)>;

    /// How much is pending.
    fn pinned(&self) -> Pinned;

    /// Makes the records durable. Only [`Pending::settle`] says that the blobs are in the origin.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn sync(&self) -> Result<(), BlobError>;

    /// Waits until all blobs recorded so far are in the origin.
    ///
    /// # Errors
    /// `Unavailable`, with the reason, if that takes longer than `patience`. See [`BlobError`].
    fn settle(&self, patience: Duration) -> Result<(), BlobError>;
}

/// For a node that stores nothing, such as a read-only mount. Nothing is ever pending.
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
