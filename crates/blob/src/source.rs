//! The seams for sealed blobs: [`BlobSource`] gives bytes, [`Origin`] also takes and keeps them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use base::size::BLOB_MAX;
use base::time::BootTime;

use crate::access::Access;
use crate::coming::{Coming, Then};
use crate::records::Records;
use crate::stock::Buffer;
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
    /// The source did not answer in time, or not as it should; it may answer later.
    #[error("{0}")]
    Unavailable(String),
    /// The source answers and will not serve us: a key that was withdrawn, a clock that is wrong. Time alone does not mend it, a person may;
    /// so asking again and again is of no use, and now and then is enough.
    #[error("{0}")]
    Refused(String),
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

    /// The same for a reader of whom is known how it goes on.
    ///
    /// # Errors
    /// As [`BlobSource::read_at`].
    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], _access: Access) -> Result<(), BlobError> {
        self.read_at(id, offset, buf)
    }

    /// Whether a read would be answered from this machine, without waiting for a network. Used to decide on which
    /// thread a request is served, so it must be quick; a wrong answer costs time, not truth.
    fn is_near(&self, id: &BlobId) -> bool;

    /// All of the blob will be read soon. A hint, quick to give: who can, fetches it in the background.
    fn will_need(&self, _id: &BlobId) {}

    /// These bytes of the blob will be read soon, and not what is around them. A hint as well.
    fn will_need_part(&self, _id: &BlobId, _offset: u32, _len: u32) {}

    /// Has `then` told of these bytes by whoever is fetching the blob, as soon as they are here. Quick, and waits for nothing.
    fn coming(&self, _id: &BlobId, _offset: u32, _len: u32, _then: Then) -> Coming {
        Coming::No
    }
}

/// Whole 64 KiB groups of a blob, compared with its name, and what the rest can be compared with.
pub struct Part {
    /// Of the whole blob.
    pub sums: Sums,
    /// Where in the blob `bytes` begin: a multiple of a group.
    pub offset: u32,
    /// The bytes, up to the end of a group or of the blob.
    pub bytes: Buffer,
}

/// The answer to a removal whose time is over.
pub fn too_late() -> BlobError {
    BlobError::Unavailable(
        "the origin took too long to answer, so nothing more is removed for now".to_owned(),
    )
}

/// Takes a blob as it comes. What it is given is compared with nothing yet: that is for it to do.
pub trait Onto: Send + Sync {
    /// So many bytes more have come, of whatever: whoever waits can tell a slow origin from one that has stopped.
    fn came(&self, bytes: u64);

    /// Bytes of the blob from `offset` on, and the sums that came with it: their name is right, the rest of them may not be. The same bytes
    /// may come twice, those before them have come.
    /// False: they are wrong, or of no use to it. Whoever brings them keeps them then, and those that follow.
    fn take(&self, sums: &Sums, offset: u32, bytes: &[u8]) -> bool;

    /// All of the blob has been taken, and is right.
    fn is_whole(&self) -> bool;
}

/// The object store that holds a volume's blobs for good.
pub trait Origin: BlobSource + Records {
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

    /// Everything stored so far is in the origin for good when this returns: not in a queue on this machine, and safe from a power cut there.
    /// An origin that stores at once has only to sync.
    ///
    /// # Errors
    /// `Unavailable` when that took longer than `patience`; what was to be stored still is, later. See [`BlobError`].
    fn settle(&self, _patience: Duration) -> Result<(), BlobError> {
        self.sync()
    }

    /// Removes a blob; one that is not there is no error.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn remove(&self, id: &BlobId) -> Result<(), BlobError>;

    /// Removes several, in as few requests as the origin allows; those that are not there are no error. After `until` no request is sent any
    /// more, also no second try: by then others may rely on it that this origin's blobs stay.
    ///
    /// # Errors
    /// See [`BlobError`]; `Unavailable` when `until` came first. Some of them may be gone then.
    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        ids.iter().try_for_each(|id| match base::time::boot() < until {
            true => self.remove(id),
            false => Err(too_late()),
        })
    }

    /// Looks afresh whether the place is still the origin that was opened. If not, why: its marker is missing, or is another volume's.
    ///
    /// # Errors
    /// That cannot be told, because the origin does not answer. See [`BlobError`].
    fn look(&self) -> Result<Option<String>, BlobError> {
        Ok(None)
    }

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

    /// The whole blob and its sums, compared with its name: for a cache, which keeps both.
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
        if sums.id() != *id {
            return Err(BlobError::Damaged {
                id: *id,
                what: format!("its bytes have the hash {}", sums.id()),
            });
        }
        Ok((sums, bytes))
    }

    /// The same for one who wants to use the blob's beginning before its end has come. `Ok(None)`: `onto` has all of it. One that gets
    /// blobs at once, or knows nothing of them before their end, gives them as [`Origin::fetch`] does.
    ///
    /// # Errors
    /// As [`Origin::fetch`]; `onto` may have a part then.
    fn fetch_onto(&self, id: &BlobId, onto: &Arc<dyn Onto>) -> Result<Option<(Sums, Buffer)>, BlobError> {
        let _ = onto;
        self.fetch(id).map(Some)
    }

    /// How many blobs at a time are worth fetching before anybody waits for them: more would only stand in one another's way on their line.
    fn ahead_at_once(&self) -> usize {
        usize::MAX
    }

    /// At least the groups that `len` bytes from `offset` on lie in, each compared with the blob's name. An origin behind a
    /// network fetches little more than these.
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

    /// Whether one who has parts of a blob and wants all of it should ask for the rest in parts. If not, the whole is
    /// better asked for at once, because others want it too.
    fn rest_by_parts(&self, id: &BlobId) -> bool {
        let _ = id;
        true
    }

    /// How a person would name it: `file:/srv/blobs`, `mem:`.
    fn describe(&self) -> String;
}
