//! An origin that also reads a bucket that others fill: [`ForeignOrigin`].
//!
//! Covey's own blobs are named by their bytes' hash. The bytes of a foreign object are not known before they
//! are read, so its parts are named by the object's version: see [`BlobId`]. Such a name does not say where
//! the object is. A [`Locate`] does, for example a published tree.
//!
//! **A read names the version** (`If-Match` with the listed ETag), and the answer's ETag and size are
//! compared, too. If the object is another one now, or is gone, the read fails with [`BlobError::Stale`]. The
//! bytes of two versions never come together.
//!
//! **A part is [`PART`] long** and is fetched as a whole. A cache keeps sums of whole blobs, and a range of a
//! part does not give them. So the part's length is the least that a small read costs. At 1 MiB, a request
//! takes about as long for its first byte as for its bytes (20 to 50 ms at 50 MB/s per connection), so a
//! smaller part would save little time for the footer of a file, and would cost a sequential reader more
//! requests, which stores charge for. A larger one would fetch up to four times what the footer needs.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::phase::{self, Phase};
use base::time::BootTime;
use base::{BlobId, ForeignObject, Timestamp};
use blob::completion::{Completion, Start};
use blob::folder::past_end;
use blob::source::{Onto, SharedBytes};
use blob::{Access, BlobError, BlobSource, Buffer, Origin, Part, Records, Sums};

use crate::{Bucket, Object, Unread};

/// The length of every part of an object but the last, in bytes. Published trees rely on it: it never
/// changes.
pub const PART: u32 = 1 << 20;

/// Where a version of an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The key, without the prefix with which the [`Bucket`] was opened.
    pub key: String,
    /// The ETag, without quotes.
    pub etag: String,
    /// The size in bytes.
    pub size: u64,
}

/// Finds an object by its identity.
pub trait Locate: Send + Sync {
    /// Where it is. None: this object is not known.
    ///
    /// # Errors
    /// It cannot be determined now. See [`BlobError`].
    fn locate(&self, object: ForeignObject) -> Result<Option<Location>, BlobError>;
}

/// The identity of a version of an object. `key` is the full key, `etag` has no quotes. `endpoint` is that of
/// the store as its user writes it; none for the store's own.
pub fn identity(
    scheme: &str,
    endpoint: Option<&str>,
    bucket: &str,
    key: &str,
    etag: &str,
    size: u64,
) -> ForeignObject {
    let endpoint = endpoint.unwrap_or("");
    let folder = key.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut object = [0; 20];
    let (beside, own) = object.split_at_mut(4);
    hash_into(&[scheme, endpoint, bucket, folder], 0, beside);
    hash_into(&[scheme, endpoint, bucket, key, etag], size, own);
    ForeignObject(object)
}

fn hash_into(texts: &[&str], size: u64, out: &mut [u8]) {
    let mut hasher = blake3::Hasher::new_derive_key("covey foreign object 1");
    for text in texts {
        // The length keeps two neighbouring texts apart.
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.update(&size.to_le_bytes()).finalize_xof().fill(out);
}

/// How many parts an object of `size` bytes has. None: more than can be numbered.
pub fn parts(size: u64) -> Option<u32> {
    u32::try_from(size.div_ceil(u64::from(PART))).ok()
}

/// The bytes of a part of an object of `size` bytes. None: it has no such part.
pub fn range_of(part: u32, size: u64) -> Option<Range<u64>> {
    let start = u64::from(part) * u64::from(PART);
    (start < size).then(|| start..size.min(start + u64::from(PART)))
}

/// An origin, and a bucket that is read for the blobs that are parts of its objects. Nothing is ever written
/// to the bucket, and no foreign blob to the origin.
pub struct ForeignOrigin {
    inner: Arc<dyn Origin>,
    bucket: Bucket,
    locate: Arc<dyn Locate>,
}

impl ForeignOrigin {
    /// An origin that serves `inner`'s blobs, and those of the objects that `locate` finds in `bucket`.
    pub fn new(inner: Arc<dyn Origin>, bucket: Bucket, locate: Arc<dyn Locate>) -> ForeignOrigin {
        ForeignOrigin { inner, bucket, locate }
    }

    /// A foreign blob's object, and its range there. None: it is not foreign.
    fn place(&self, id: &BlobId) -> Result<Option<(Object, Range<u64>)>, BlobError> {
        let Some((object, part)) = id.as_foreign() else { return Ok(None) };
        let location = self.locate.locate(object)?.ok_or(BlobError::Missing(*id))?;
        let range = range_of(part, location.size).ok_or(BlobError::Missing(*id))?;
        let Location { key, etag, size } = location;
        // The time is of no use to a read.
        Ok(Some((Object { key, size, etag, modified: Timestamp::from_nanos(0) }, range)))
    }

    fn get(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BlobError> {
        let name = || format!("{}{}", self.bucket.url(), object.key);
        self.bucket.read(object, range).map_err(|unread| match unread {
            Unread::Changed => BlobError::Stale(format!(
                "{} is not the version that was listed any more (ETag {}): it was replaced or removed",
                name(),
                object.etag
            )),
            Unread::Denied(error) => BlobError::Refused(error.to_string()),
            Unread::Object(what) => BlobError::Refused(format!("{}: {what}", name())),
            Unread::Store(error) => BlobError::Unavailable(error.to_string()),
        })
    }
}

/// Refuses to store a foreign blob in Covey's own origin, or to remove it there.
pub(crate) fn own(id: &BlobId) -> Result<(), BlobError> {
    if !id.is_foreign() {
        return Ok(());
    }
    let what = format!("blob {id} is a part of a foreign object, which an origin never holds");
    Err(BlobError::Io(io::Error::new(io::ErrorKind::InvalidInput, what)))
}

impl BlobSource for ForeignOrigin {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read_as(id, offset, buf, Access::default())
    }

    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], access: Access) -> Result<(), BlobError> {
        let Some((object, range)) = self.place(id)? else {
            return self.inner.read_as(id, offset, buf, access);
        };
        let _phase = phase::enter(Phase::Origin);
        let len = range.end - range.start;
        if u64::from(offset) + buf.len() as u64 > len {
            return Err(past_end(id, len as u32));
        }
        if !buf.is_empty() {
            let start = range.start + u64::from(offset);
            buf.copy_from_slice(&self.get(&object, start..start + buf.len() as u64)?);
        }
        Ok(())
    }

    fn is_local(&self, id: &BlobId) -> bool {
        !id.is_foreign() && self.inner.is_local(id)
    }

    fn will_need(&self, id: &BlobId) {
        if !id.is_foreign() {
            self.inner.will_need(id);
        }
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        if !id.is_foreign() {
            self.inner.will_need_part(id, offset, len);
        }
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        if id.is_foreign() { None } else { self.inner.file_of(id) }
    }

    fn start_read(&self, id: &BlobId, range: Range<u32>, access: Access, completion: Completion) -> Start {
        if id.is_foreign() {
            return Start::Read;
        }
        self.inner.start_read(id, range, access, completion)
    }
}

impl Records for ForeignOrigin {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.inner.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.inner.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.inner.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.inner.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.inner.records(folder)
    }
}

impl Origin for ForeignOrigin {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        own(id)?;
        self.inner.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        own(id)?;
        self.inner.put(id, sums, bytes)
    }

    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        own(id)?;
        self.inner.put_shared(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        self.inner.sync()
    }

    fn settle(&self, patience: Duration) -> Result<(), BlobError> {
        self.inner.settle(patience)
    }

    fn is_settled(&self, id: &BlobId) -> bool {
        self.inner.is_settled(id)
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        own(id)?;
        self.inner.remove(id)
    }

    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        ids.iter().try_for_each(own)?;
        self.inner.remove_many(ids, until)
    }

    fn look(&self) -> Result<Option<String>, BlobError> {
        self.inner.look()
    }

    /// Of a foreign blob: the size that its object had when it was listed.
    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        match self.place(id) {
            Ok(Some((_, range))) => Ok(Some(range.end - range.start)),
            Ok(None) => self.inner.size(id),
            Err(BlobError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The inner origin's blobs.
    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.inner.list(each)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        if id.is_foreign() { self.fetch(id).map(drop) } else { self.inner.verify(id) }
    }

    /// A foreign blob's sums are computed from the bytes as they arrive. The store's own connection is what
    /// protects them until then.
    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        let Some((object, range)) = self.place(id)? else { return self.inner.fetch(id) };
        let _phase = phase::enter(Phase::Origin);
        let got = self.get(&object, range)?;
        let mut bytes = Buffer::with_room(got.len());
        bytes.extend_from_slice(&got);
        Ok((Sums::of(&bytes), bytes))
    }

    fn fetch_onto(&self, id: &BlobId, onto: &Arc<dyn Onto>) -> Result<Option<(Sums, Buffer)>, BlobError> {
        if id.is_foreign() { self.fetch(id).map(Some) } else { self.inner.fetch_onto(id, onto) }
    }

    /// Of a foreign blob: all of it. See the [module](self).
    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        if !id.is_foreign() {
            return self.inner.fetch_part(id, offset, len);
        }
        let size = self.size(id)?.ok_or(BlobError::Missing(*id))?;
        if u64::from(offset) + u64::from(len) > size {
            return Err(past_end(id, size as u32));
        }
        let (sums, bytes) = self.fetch(id)?;
        Ok(Part { sums, offset: 0, bytes })
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[cfg(test)]
mod tests;
