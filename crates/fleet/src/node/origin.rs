//! The fleet as an origin: fetches follow the plan, and all other calls go to the origin behind it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use base::time::BootTime;
use blob::coming::{Coming, Then, Told};
use blob::source::SharedBytes;
use blob::{BlobError, BlobSource, Buffer, Origin, Part, Records, Sums};
use net::arriving::Await;

use super::Fleet;
use super::counters::Counters;

impl BlobSource for Fleet {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let part = self.fetch_part(id, offset, buf.len() as u32)?;
        let start = (offset - part.offset) as usize;
        let bytes = part.bytes.get(start..start + buf.len());
        buf.copy_from_slice(bytes.ok_or_else(|| past_end(id, &part.sums))?);
        Ok(())
    }

    fn is_near(&self, _: &BlobId) -> bool {
        false
    }

    /// `then` runs in the loop that reads the connection on which the bytes arrive.
    fn coming(&self, id: &BlobId, offset: u32, len: u32, then: Then) -> Coming {
        let end = offset.checked_add(len).filter(|_| !self.inner.is_alone());
        let Some(end) = end else { return Coming::No };
        let inner = Arc::downgrade(&self.inner);
        let then = Box::new(move |told: Told<'_>| {
            let came = told.is_ok();
            let used = then(told);
            if let Some(inner) = inner.upgrade().filter(|_| came && used) {
                Counters::one(&inner.counters.direct);
            }
            used
        });
        let wait = Await { range: offset..end, then };
        let begun = self.inner.transit.give(id, wait, base::time::monotonic());
        if begun { Coming::Begun } else { Coming::Unbegun }
    }
}

fn past_end(id: &BlobId, sums: &Sums) -> BlobError {
    blob::folder::past_end(id, sums.size())
}

impl Records for Fleet {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.inner.origin.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.inner.origin.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.inner.origin.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.inner.origin.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.inner.origin.records(folder)
    }
}

impl Origin for Fleet {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        self.inner.origin.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.inner.origin.put(id, sums, bytes)
    }

    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        self.inner.origin.put_shared(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        self.inner.origin.sync()
    }

    fn settle(&self, patience: Duration) -> Result<(), BlobError> {
        self.inner.origin.settle(patience)
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.inner.origin.remove(id)
    }

    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        self.inner.origin.remove_many(ids, until)
    }

    fn look(&self) -> Result<Option<String>, BlobError> {
        self.inner.origin.look()
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        self.inner.origin.size(id)
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.inner.origin.list(each)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.inner.origin.verify(id)
    }

    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        self.inner.obtain(id)
    }

    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        if self.inner.is_alone() {
            return self.inner.origin.fetch_part(id, offset, len);
        }
        self.inner.obtain_part(id, offset, len)
    }

    fn rest_by_parts(&self, id: &BlobId) -> bool {
        self.inner.is_alone() || self.inner.wants_alone(id)
    }

    fn ahead_at_once(&self) -> usize {
        if self.inner.is_alone() { usize::MAX } else { self.inner.capacity.prefetches() }
    }

    fn describe(&self) -> String {
        self.inner.origin.describe()
    }
}
