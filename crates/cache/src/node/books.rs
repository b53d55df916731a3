//! The policy and its index under one lock: what is decided is written down at once.
//!
//! The index only helps ([`crate::residency::index`]), so an index that cannot be written is no reason to stop: it is left as it is and written
//! anew when the disk works again. The exception are deletions in the origin: that a blob which was to be deleted is stored again has to be
//! durable before the blob is, or a power cut would bring the deletion back. So [`Books::sync`] fails when that cannot be written down.
//!
//! **Locks.** Held for lookups and one `write(2)`; what is pinned is asked for under it, nothing else is called. A long index
//! is written anew outside of it.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use base::BlobId;
use parking_lot::{Mutex, MutexGuard};

use crate::residency::index::{Index, Record, Rewrite};
use crate::residency::{Cost, Policy, Rank, Victim, charge};

/// An index with fewer records than this is never written anew, and one with more when fewer than half of them are needed.
const LONG: u64 = 20_000;
/// After so many deletions the index is made durable.
const MANY: usize = 10_000;

/// See the module.
pub(super) struct Books {
    path: PathBuf,
    began: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    policy: Policy,
    /// `None` once closed, or while it could not even be opened.
    index: Option<Index>,
    closed: bool,
    /// To be deleted in the origin.
    unwanted: HashSet<BlobId>,
    /// Deletions that were done or called off since the index was last durable: for a power cut they are still to be done.
    settled: HashSet<BlobId>,
    /// One of these blobs was stored again since.
    stored_again: bool,
    /// What is appended while the index is written anew.
    meanwhile: Option<Vec<Record>>,
}

impl Inner {
    fn log(&mut self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.extend_from_slice(records);
        }
        if let Some(index) = &mut self.index {
            // A broken index is written anew in time.
            let _ = index.append(records);
        }
    }

    fn log_promoted(&mut self) {
        let promoted: Vec<Record> = self.policy.take_promoted().into_iter().map(Record::Proven).collect();
        self.log(&promoted);
    }

    fn all(&self) -> Vec<Record> {
        let mut all = Vec::with_capacity(self.policy.len() + self.unwanted.len());
        self.policy.each(|id, size, cost, rank| all.push(Record::Here { id: *id, size, cost, rank }));
        all.extend(self.unwanted.iter().map(|id| Record::Unwanted(*id)));
        all
    }
}

impl Books {
    /// Reads the index. Also says why it cannot be written, if it cannot; then everything is as if it had been empty.
    pub(super) fn open(path: &Path, budget: u64) -> (Books, io::Result<()>) {
        let (mut policy, mut unwanted, mut settled) = (Policy::new(budget), HashSet::new(), HashSet::new());
        policy.prepare_for(Index::expected(path));
        let opened = Index::open(path, &mut |record| match record {
            Record::Here { id, size, cost, rank } => policy.restore(&id, size, cost, rank),
            Record::Gone(id) => {
                policy.remove(&id);
            }
            Record::Proven(id) => policy.prove(&id),
            Record::Unwanted(id) => {
                unwanted.insert(id);
            }
            Record::Settled(id) => {
                unwanted.remove(&id);
                settled.insert(id);
            }
        });
        let (index, said) = match opened {
            Ok(index) => (Some(index), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // Whoever wrote this may have been killed before it was durable.
        let stored_again = !settled.is_empty();
        let inner = Inner { policy, index, closed: false, unwanted, settled, stored_again, meanwhile: None };
        let books = Books { path: path.to_owned(), began: base::time::monotonic(), inner: Mutex::new(inner) };
        (books, said)
    }

    /// What was to be deleted in the origin when the index was last written.
    pub(super) fn unwanted(&self) -> Vec<BlobId> {
        self.inner.lock().unwanted.iter().copied().collect()
    }

    fn lock(&self) -> (MutexGuard<'_, Inner>, u32) {
        let now = base::time::monotonic().duration_since(self.began).as_secs();
        // Moments before this process count as long ago.
        (
            self.inner.lock(),
            u32::try_from(now).unwrap_or(u32::MAX).saturating_add(crate::residency::ONE_USE_S),
        )
    }

    /// Notes a read; whether the blob is here.
    pub(super) fn touch(&self, id: &BlobId) -> bool {
        let (mut inner, now) = self.lock();
        inner.policy.touch(id, now)
    }

    pub(super) fn contains(&self, id: &BlobId) -> bool {
        self.inner.lock().policy.contains(id)
    }

    /// A blob came; `held` says that it is pinned.
    pub(super) fn insert(&self, id: &BlobId, size: u32, held: bool) {
        let (mut inner, now) = self.lock();
        let new = match held {
            true => inner.policy.insert_held(id, size, Cost::Origin, now),
            false => inner.policy.insert(id, size, Cost::Origin, now),
        };
        if new {
            inner.log(&[Record::Here { id: *id, size, cost: Cost::Origin, rank: Rank::New }]);
        }
    }

    /// A copy came of what is elsewhere too, and would cost this much to fetch again.
    pub(super) fn insert_copy(&self, id: &BlobId, size: u32, cost: Cost) {
        let (mut inner, now) = self.lock();
        if inner.policy.insert(id, size, cost, now) {
            inner.log(&[Record::Here { id: *id, size, cost, rank: Rank::New }]);
        }
    }

    /// All that are here.
    pub(super) fn all(&self) -> Vec<BlobId> {
        let inner = self.inner.lock();
        let mut all = Vec::with_capacity(inner.policy.len());
        inner.policy.each(|id, _, _, _| all.push(*id));
        all
    }

    /// A blob is gone.
    pub(super) fn remove(&self, id: &BlobId) {
        let mut inner = self.inner.lock();
        if inner.policy.remove(id).is_some() {
            inner.log(&[Record::Gone(*id)]);
        }
    }

    /// Those that have to go so that `bytes` become free, at most `most` of them. They are no longer here then.
    pub(super) fn victims(
        &self,
        bytes: u64,
        most: usize,
        is_pinned: &dyn Fn(&BlobId) -> bool,
    ) -> Vec<Victim> {
        let mut inner = self.inner.lock();
        let (mut victims, mut freed, mut looked) = (Vec::new(), 0, false);
        while freed < bytes && victims.len() < most {
            match inner.policy.victim(is_pinned) {
                Some(victim) => {
                    freed += charge(victim.size);
                    victims.push(victim);
                }
                None if looked => break,
                None => {
                    looked = true;
                    inner.policy.look_at_all_held(is_pinned);
                }
            }
        }
        inner.log_promoted();
        inner.log(&victims.iter().map(|victim| Record::Gone(victim.id)).collect::<Vec<_>>());
        victims
    }

    /// Blobs, the bytes they take, and how many they may take.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        let policy = &self.inner.lock().policy;
        (policy.len() as u64, policy.bytes(), policy.budget())
    }

    /// The blob is to be deleted in the origin.
    pub(super) fn unwant(&self, id: &BlobId) {
        let mut inner = self.inner.lock();
        if inner.unwanted.insert(*id) {
            inner.log(&[Record::Unwanted(*id)]);
        }
    }

    /// They were deleted there.
    pub(super) fn deleted(&self, ids: &[BlobId]) {
        let mut inner = self.inner.lock();
        let mut settled = Vec::new();
        for id in ids {
            if inner.unwanted.remove(id) {
                inner.settled.insert(*id);
                settled.push(Record::Settled(*id));
            }
        }
        inner.log(&settled);
        if inner.settled.len() > MANY
            && let Some(index) = &mut inner.index
            && index.sync().is_ok()
        {
            inner.settled.clear();
        }
    }

    /// It is stored again, so it is not to be deleted.
    pub(super) fn want(&self, id: &BlobId) {
        let mut inner = self.inner.lock();
        if inner.unwanted.remove(id) {
            inner.settled.insert(*id);
            inner.log(&[Record::Settled(*id)]);
        }
        inner.stored_again |= inner.settled.contains(id);
    }

    /// Makes it durable that what was stored again is not to be deleted.
    pub(super) fn sync(&self) -> io::Result<()> {
        if !self.inner.lock().stored_again {
            return Ok(());
        }
        if self.inner.lock().index.as_ref().is_none_or(Index::is_broken) {
            self.write_anew()?;
        }
        let mut inner = self.inner.lock();
        let index = inner.index.as_mut().filter(|index| !index.is_broken());
        index.ok_or_else(|| io::Error::other("the cache's index cannot be written"))?.sync()?;
        inner.settled.clear();
        inner.stored_again = false;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn durable_len(&self) -> u64 {
        self.inner.lock().index.as_ref().map_or(0, Index::durable_len)
    }

    /// The disk was walked: of a folder, these are there. Those that were not known are said to be new.
    pub(super) fn seen(&self, found: &[(BlobId, u32)]) {
        let (mut inner, now) = self.lock();
        let mut records = Vec::new();
        for (id, size) in found {
            if !inner.policy.confirm(id) && inner.policy.insert(id, *size, Cost::Origin, now) {
                records.push(Record::Here { id: *id, size: *size, cost: Cost::Origin, rank: Rank::New });
            }
        }
        inner.log(&records);
    }

    /// Those that were here before this process and were not seen since.
    pub(super) fn unconfirmed(&self) -> Vec<BlobId> {
        self.inner.lock().policy.unconfirmed()
    }

    /// Whether the index should be written anew.
    pub(super) fn is_long(&self) -> bool {
        let inner = self.inner.lock();
        let needed = (inner.policy.len() + inner.unwanted.len()) as u64;
        let wanting =
            |index: &Index| index.is_broken() || index.records() > LONG && index.records() / 2 > needed;
        inner.meanwhile.is_none() && inner.index.as_ref().is_some_and(wanting)
    }

    /// Writes the index anew; does nothing while somebody else does.
    ///
    /// # Errors
    /// What the system says; the index is as it was.
    pub(super) fn write_anew(&self) -> io::Result<()> {
        let all = {
            let mut inner = self.inner.lock();
            if inner.closed || inner.meanwhile.is_some() {
                return Ok(());
            }
            inner.meanwhile = Some(Vec::new());
            inner.all()
        };
        let new = Rewrite::begin(&self.path, &all);
        let mut inner = self.inner.lock();
        let meanwhile = inner.meanwhile.take().unwrap_or_default();
        if inner.closed {
            return Ok(());
        }
        inner.index = Some(new?.install(&meanwhile)?);
        Ok(())
    }

    /// Nothing is written any more.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.index = None;
    }
}
