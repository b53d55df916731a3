//! An origin that stores and removes only while its folder's claim holds. A volume changes its origin only
//! through this type.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use base::time::BootTime;
use blob::completion::{Completion, Start};
use blob::source::Onto;
use blob::{Access, BlobError, BlobSource, Buffer, Origin, Part, Records, SharedBytes, Sums};

use super::FRESH;
use super::keeper::Keeper;

/// The shortest time that the origin gets to answer.
const LEAST: Duration = Duration::from_millis(100);

/// See the [module](self).
pub struct Guarded {
    inner: Arc<dyn Origin>,
    keeper: Arc<Keeper>,
}

impl Guarded {
    /// Wraps an origin.
    pub fn new(inner: Arc<dyn Origin>, keeper: Arc<Keeper>) -> Guarded {
        Guarded { inner, keeper }
    }

    fn may_change_records(&self) -> Result<(), BlobError> {
        self.keeper.may_remove().map(drop)
    }
}

impl BlobSource for Guarded {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.inner.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.inner.is_local(id)
    }

    fn will_need(&self, id: &BlobId) {
        self.inner.will_need(id);
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        self.inner.will_need_part(id, offset, len);
    }

    fn evict_last(&self, id: &BlobId) {
        self.inner.evict_last(id);
    }

    fn evict_as_usual(&self) {
        self.inner.evict_as_usual();
    }

    fn in_use(&self, id: &BlobId) -> bool {
        self.inner.in_use(id)
    }

    fn start_read(&self, id: &BlobId, range: Range<u32>, access: Access, completion: Completion) -> Start {
        self.inner.start_read(id, range, access, completion)
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        self.inner.file_of(id)
    }
}

impl Records for Guarded {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.inner.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.may_change_records()?;
        self.inner.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.may_change_records()?;
        self.inner.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.may_change_records()?;
        self.inner.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.inner.records(folder)
    }
}

impl Origin for Guarded {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        self.keeper.may_store()?;
        self.inner.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.keeper.may_store()?;
        self.inner.put(id, sums, bytes)
    }

    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        self.keeper.may_store()?;
        self.inner.put_shared(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        self.inner.sync()
    }

    /// Everything is stored permanently only if the place is still the origin, and this volume's.
    fn settle(&self, patience: Duration) -> Result<(), BlobError> {
        let until = base::time::boot().plus(patience);
        self.inner.settle(patience)?;
        self.keeper.verify_within(until.since(base::time::boot()).max(LEAST), FRESH)
    }

    fn is_settled(&self, id: &BlobId) -> bool {
        self.inner.is_settled(id)
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.remove_many(std::slice::from_ref(id), BootTime::NEVER)
    }

    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        // Counted before the check, so that an orderly close either refuses it or waits for it.
        let _removal = self.keeper.removal();
        let until = self.keeper.may_remove()?.min(until);
        self.inner.remove_many(ids, until)
    }

    fn look(&self) -> Result<Option<String>, BlobError> {
        self.inner.look()
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        self.inner.size(id)
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.inner.list(each)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.inner.verify(id)
    }

    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        self.inner.fetch(id)
    }

    fn fetch_onto(&self, id: &BlobId, onto: &Arc<dyn Onto>) -> Result<Option<(Sums, Buffer)>, BlobError> {
        self.inner.fetch_onto(id, onto)
    }

    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        self.inner.fetch_part(id, offset, len)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
