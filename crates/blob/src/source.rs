//! The traits of sealed blobs: [`BlobSource`] gives bytes, [`Origin`] also takes and keeps them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use base::size::BLOB_MAX;
use base::time::BootTime;

use crate::access::Access;
use crate::completion::{Completion, Start};
use crate::records::Records;
use crate::stock::Buffer;
use crate::sums::Sums;

/// Why a blob's bytes are not available. The kinds are few: a caller acts differently on each.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The source does not have the blob; another may.
    #[error("blob {0} is not here")]
    Missing(BlobId),
    /// A copy exists and its bytes are not the blob's. The copy must not be used; another may be sound.
    #[error("blob {id} is damaged: {what}")]
    Damaged {
        /// Which blob.
        id: BlobId,
        /// A description for a person.
        what: String,
    },
    /// There is no room to write.
    #[error("no space left for blobs")]
    Full,
    /// The source did not answer in time, or not correctly; it may answer later.
    #[error("{0}")]
    Unavailable(String),
    /// The source answers but refuses the request: for example, a key was withdrawn, or a clock is wrong.
    /// Time alone does not repair this, a person may. So frequent retries are of no use; rare ones are
    /// enough.
    #[error("{0}")]
    Refused(String),
    /// The blob is a part of a foreign object that is another version by now, or is gone. Nothing brings this
    /// version back. A copy may still be in a cache.
    #[error("{0}")]
    Stale(String),
    /// Any other error of the system.
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

/// Immutable bytes in memory with several owners.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A source of the bytes of sealed blobs. Everything it returns is verified: damaged bytes are an error,
/// never returned.
pub trait BlobSource: Send + Sync {
    /// Fills `buf` with the blob's bytes from `offset` on. After an error the contents of `buf` are
    /// undefined. A range past the blob's end is an error (`Io`, invalid input).
    ///
    /// # Errors
    /// See [`BlobError`].
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError>;

    /// Reads as [`BlobSource::read_at`] does, with what is known about the reader's access pattern.
    ///
    /// # Errors
    /// As [`BlobSource::read_at`].
    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], _access: Access) -> Result<(), BlobError> {
        self.read_at(id, offset, buf)
    }

    /// Whether a read would be served from this machine, without waiting for a network. It decides on which
    /// thread a request is served, so it must be quick. A wrong answer costs time, not correctness.
    fn is_local(&self, id: &BlobId) -> bool;

    /// A hint that all of the blob will be read soon. Returns quickly: a source that can, fetches it in the
    /// background.
    fn will_need(&self, _id: &BlobId) {}

    /// A hint that these bytes of the blob will be read soon, but not those around them.
    fn will_need_part(&self, _id: &BlobId, _offset: u32, _len: u32) {}

    /// A user wants this blob to stay on this machine longer than others. Quick. A source without a cache
    /// ignores it.
    fn evict_last(&self, _id: &BlobId) {}

    /// Ends what [`BlobSource::evict_last`] said of all blobs. Those that still matter are named again.
    fn evict_as_usual(&self) {}

    /// Programs use this blob although no read arrives: the kernel has its bytes in memory. Counts as a read
    /// for eviction. Quick. True if the blob is on this machine, in a cache that evicts.
    fn in_use(&self, _id: &BlobId) -> bool {
        false
    }

    /// The file that holds the whole blob on this machine, and its sums. A reader may map it. Its bytes stay
    /// as they are while it is open or mapped, also when the blob is evicted. They are not verified.
    fn file_of(&self, _id: &BlobId) -> Option<(File, Sums)> {
        None
    }

    /// Begins a read that `completion` gets the bytes of, without waiting for them. Quick, never blocks.
    fn start_read(
        &self,
        _id: &BlobId,
        _range: Range<u32>,
        _access: Access,
        _completion: Completion,
    ) -> Start {
        Start::Read
    }
}

/// Whole 64 KiB groups of a blob, verified against its name, and the sums that verify the rest.
pub struct Part {
    /// The sums of the whole blob.
    pub sums: Sums,
    /// The offset of `bytes` in the blob: a multiple of a group.
    pub offset: u32,
    /// The bytes, up to the end of a group or of the blob.
    pub bytes: Buffer,
}

/// The error of a removal whose deadline has passed.
pub fn too_late() -> BlobError {
    BlobError::Unavailable(
        "the origin took too long to answer, so nothing more is removed for now".to_owned(),
    )
}

/// Receives a blob while it arrives. The bytes are not verified yet; the implementation does that.
pub trait Onto: Send + Sync {
    /// Reports that `bytes` more bytes have arrived, of anything. So a waiter can distinguish a slow origin
    /// from a stalled one.
    fn came(&self, bytes: u64);

    /// Bytes of the blob from `offset` on, and the sums that arrived with it. The sums' name is right; the
    /// rest of them may be wrong. The same bytes may arrive twice, and those before them have arrived.
    ///
    /// Returns false if they are wrong, or of no use to it. The fetcher then keeps them, and those that
    /// follow.
    fn take(&self, sums: &Sums, offset: u32, bytes: &[u8]) -> bool;

    /// Whether all of the blob was taken and verified.
    fn is_whole(&self) -> bool;
}

/// The object store that holds a volume's blobs permanently.
pub trait Origin: BlobSource + Records {
    /// Takes a blob into the origin. `file` holds exactly its bytes, is never written again, and stays where
    /// it is (an origin on the same filesystem links it, so that every byte is written once). Storing a blob
    /// that is already there is not an error. When this returns, a read finds the blob. It survives a power
    /// cut only after [`Origin::sync`].
    ///
    /// # Errors
    /// See [`BlobError`].
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError>;

    /// Takes a blob into the origin as [`Origin::adopt`] does, from bytes in memory.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError>;

    /// Takes a blob into the origin as [`Origin::put`] does. The origin may keep `bytes` instead of a copy:
    /// an in-memory origin then shares the pack's own bytes.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        self.put(id, sums, (*bytes).as_ref())
    }

    /// Makes every blob taken so far survive a power cut (the names: the writer of `adopt`ed data syncs
    /// that).
    ///
    /// # Errors
    /// See [`BlobError`].
    fn sync(&self) -> Result<(), BlobError>;

    /// When this returns, everything stored so far is in the origin permanently: not in a queue on this
    /// machine, and safe from a power cut there. For an origin that stores at once, this is a sync.
    ///
    /// # Errors
    /// `Unavailable` when that took longer than `patience`. The rest is still stored later. See
    /// [`BlobError`].
    fn settle(&self, _patience: Duration) -> Result<(), BlobError> {
        self.sync()
    }

    /// Whether a blob that this node stored is in the origin permanently, as after [`Origin::settle`] and
    /// [`Origin::sync`]. Quick: asks no other machine.
    fn is_settled(&self, _id: &BlobId) -> bool {
        true
    }

    /// Removes a blob; a missing one is not an error.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn remove(&self, id: &BlobId) -> Result<(), BlobError>;

    /// Removes several, in as few requests as the origin allows; missing ones are not an error. After `until`
    /// no request is sent any more, not even a retry: from then on others may rely on this origin's blobs.
    ///
    /// # Errors
    /// See [`BlobError`]; `Unavailable` when `until` came first. Some blobs may then be removed.
    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        ids.iter().try_for_each(|id| match base::time::boot() < until {
            true => self.remove(id),
            false => Err(too_late()),
        })
    }

    /// Checks again whether the place is still the origin that was opened. If not, returns why: its marker is
    /// missing, or is another volume's.
    ///
    /// # Errors
    /// The origin does not answer, so it cannot be determined. See [`BlobError`].
    fn look(&self) -> Result<Option<String>, BlobError> {
        Ok(None)
    }

    /// The blob's size in bytes, if it is there.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError>;

    /// Calls `each` with every blob and its size, in no order, until it returns false.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError>;

    /// Reads the whole blob and compares it with its name, not only with the sums beside it. For `fsck`.
    ///
    /// # Errors
    /// `Damaged` or `Missing` if so; see [`BlobError`].
    fn verify(&self, id: &BlobId) -> Result<(), BlobError>;

    /// The whole blob and its sums, verified against its name: for a cache, which keeps both.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        let size = self.size(id)?.ok_or(BlobError::Missing(*id))?;
        let too_large = || BlobError::Damaged { id: *id, what: format!("it would have {size} bytes") };
        let size = u32::try_from(size).ok().filter(|size| *size <= BLOB_MAX).ok_or_else(too_large)?;
        let mut bytes = Buffer::with_len(size as usize);
        self.read_at(id, 0, &mut bytes)?;
        let sums = Sums::of(&bytes);
        if !sums.belong_to(id) {
            return Err(BlobError::Damaged {
                id: *id,
                what: format!("its bytes have the hash {}", sums.id()),
            });
        }
        Ok((sums, bytes))
    }

    /// Fetches a blob as [`Origin::fetch`] does, for a caller that uses the blob's beginning before its end
    /// has arrived. `Ok(None)`: `onto` has all of it. An origin that gets blobs in one piece returns them as
    /// [`Origin::fetch`] does.
    ///
    /// # Errors
    /// As [`Origin::fetch`]; `onto` may then have a part.
    fn fetch_onto(&self, id: &BlobId, onto: &Arc<dyn Onto>) -> Result<Option<(Sums, Buffer)>, BlobError> {
        let _ = onto;
        self.fetch(id).map(Some)
    }

    /// At least the groups that contain the `len` bytes from `offset` on, each verified against the blob's
    /// name. An origin behind a network fetches little more than these.
    ///
    /// # Errors
    /// See [`BlobError`]; a range past the blob's end as with [`BlobSource::read_at`].
    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        let (sums, bytes) = self.fetch(id)?;
        if u64::from(offset) + u64::from(len) > u64::from(sums.size()) {
            return Err(crate::folder::past_end(id, sums.size()));
        }
        Ok(Part { sums, offset: 0, bytes })
    }

    /// The origin's name for a person: `file:/srv/blobs`, `mem:`.
    fn describe(&self) -> String;
}
