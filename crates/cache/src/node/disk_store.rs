//! The disk store of the cache, as a trait: a [`BlobFolder`], or one that fails on demand.

use std::io;
use std::path::{Path, PathBuf};

use base::BlobId;
use blob::{BlobError, BlobFolder, BlobSource, Space, Sums};

pub(super) use crate::disk::space_at;

/// Blobs on the node's disk. [`BlobFolder`] documents the operations.
pub trait DiskStore: BlobSource {
    /// Takes a blob that is in a file, permanently.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError>;

    /// Takes a blob that is in memory, permanently.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError>;

    /// Keeps a copy of a blob that also exists elsewhere.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn keep(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError>;

    /// Keeps a copy of a blob that is read from memory now and from the disk only later. The blob also exists
    /// elsewhere.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn keep_for_later(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.keep(id, sums, bytes)
    }

    /// Makes adopted and put blobs durable.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn sync(&self) -> Result<(), BlobError>;

    /// Removes a blob. An absent blob is no error.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn remove(&self, id: &BlobId) -> Result<(), BlobError>;

    /// Removes a copy of a blob that also exists elsewhere, to make room for other copies.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn retire(&self, id: &BlobId) -> Result<(), BlobError> {
        self.remove(id)
    }

    /// The blob's size, if it is there.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError>;

    /// The sums beside the blob.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn sums(&self, id: &BlobId) -> Result<Sums, BlobError>;

    /// Verifies the whole blob against its name.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn verify(&self, id: &BlobId) -> Result<(), BlobError>;

    /// The path of the blob's file.
    fn file(&self, id: &BlobId) -> PathBuf;

    /// The blobs whose names begin with a byte, and their sizes.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn list_of(&self, first: u8) -> Result<Vec<(BlobId, u64)>, BlobError>;

    /// Tests whether the folder can be written to.
    ///
    /// # Errors
    /// The system's error.
    fn probe(&self) -> io::Result<()>;

    /// Free space of its disk.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn space(&self) -> Result<Space, BlobError>;
}

impl DiskStore for BlobFolder {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        BlobFolder::adopt(self, id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        BlobFolder::put(self, id, sums, bytes)
    }

    fn keep(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        BlobFolder::keep(self, id, sums, bytes)
    }

    fn keep_for_later(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        BlobFolder::keep_for_later(self, id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        BlobFolder::sync(self)
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        BlobFolder::remove(self, id)
    }

    fn retire(&self, id: &BlobId) -> Result<(), BlobError> {
        BlobFolder::retire(self, id)
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        BlobFolder::size(self, id)
    }

    fn sums(&self, id: &BlobId) -> Result<Sums, BlobError> {
        BlobFolder::sums(self, id)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        BlobFolder::verify(self, id)
    }

    fn file(&self, id: &BlobId) -> PathBuf {
        BlobFolder::file(self, id)
    }

    fn list_of(&self, first: u8) -> Result<Vec<(BlobId, u64)>, BlobError> {
        let mut all = Vec::new();
        BlobFolder::list_of(self, first, &mut |id, size| {
            all.push((id, size));
            true
        })?;
        Ok(all)
    }

    fn probe(&self) -> io::Result<()> {
        BlobFolder::probe(self)
    }

    fn space(&self) -> Result<Space, BlobError> {
        Ok(space_at(self.dir())?)
    }
}
