//! The eviction policy and its index under one lock, so that every decision is recorded at once.
//!
//! The index is only an aid ([`crate::residency::index`]), so a failure to write it is not fatal. It stays as
//! it is and is rewritten when the disk works again. Deletions in the origin are the exception. If a blob
//! that was to be deleted is stored again, that must be durable before the blob is: otherwise a power cut
//! would revive the deletion. So [`Ledger::sync`] fails when it cannot record that.
//!
//! **Locks.** The lock is held for lookups and one `write(2)`. Under it only the check for pinned blobs is
//! called. A long index is rewritten without the lock.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use base::BlobId;
use parking_lot::{Mutex, MutexGuard};

use super::options::{CacheOptions, share};
use crate::residency::index::{Index, Record, Rewrite};
use crate::residency::{Cost, Policy, Rank, Victim, charge};

/// An index with fewer records than this is never rewritten. A longer one is, when fewer than half of its
/// records are needed.
const LONG: u64 = 20_000;
/// At most this many blobs that are to be kept are awaited. Fetches that are in flight are fewer.
const TO_KEEP: usize = 256;
/// After this many deletions the index is made durable.
const MANY: usize = 10_000;

/// See the module.
pub(super) struct Ledger {
    path: PathBuf,
    began: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    policy: Policy,
    /// Whether the budget follows from the space on the disk.
    by_space: bool,
    /// `None` once closed, or if it could not be opened.
    index: Option<Index>,
    closed: bool,
    /// Blobs to be deleted in the origin.
    unwanted: HashSet<BlobId>,
    /// Deletions that were done or cancelled since the index was last durable. After a power cut they are
    /// outstanding again.
    settled: HashSet<BlobId>,
    /// Whether one of the `settled` blobs was stored again since.
    stored_again: bool,
    /// Records appended while the index is being rewritten.
    meanwhile: Option<Vec<Record>>,
    /// Blobs that a user wants to keep, and that are not here yet, with the newest first.
    to_keep: VecDeque<BlobId>,
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
            // A broken index is rewritten later.
            let _ = index.append(records);
        }
    }

    fn log_ranked(&mut self) {
        let ranked = self.policy.take_ranked().into_iter();
        let ranked: Vec<Record> = ranked.map(|(id, rank)| Record::Ranked(id, rank)).collect();
        self.log(&ranked);
    }

    /// Keeps a blob that has just arrived, if that was asked for.
    fn keep_if_asked(&mut self, id: &BlobId) {
        if let Some(at) = self.to_keep.iter().position(|other| other == id) {
            self.to_keep.remove(at);
            self.policy.keep(id);
            self.log_ranked();
        }
    }

    fn all(&self) -> Vec<Record> {
        let mut all = Vec::with_capacity(self.policy.len() + self.unwanted.len());
        self.policy.each(|id, size, cost, rank| all.push(Record::Here { id: *id, size, cost, rank }));
        all.extend(self.unwanted.iter().map(|id| Record::Unwanted(*id)));
        all
    }
}

impl Ledger {
    /// Reads the index. Also returns why it cannot be written, if so. Then it counts as empty. Without a
    /// budget, it follows from what the blobs here take and from what is available beside them.
    pub(super) fn open(
        path: &Path,
        budget: Option<u64>,
        available: impl FnOnce() -> Option<u64>,
    ) -> (Ledger, io::Result<()>) {
        let (by_space, usual) = (budget.is_none(), CacheOptions::default().budget.unwrap_or_default());
        let mut policy = Policy::new(budget.unwrap_or(usual));
        let (mut unwanted, mut settled) = (HashSet::new(), HashSet::new());
        policy.prepare_for(Index::expected(path));
        let opened = Index::open(path, &mut |record| match record {
            Record::Here { id, size, cost, rank } => policy.restore(&id, size, cost, rank),
            Record::Gone(id) => {
                policy.remove(&id);
            }
            Record::Ranked(id, rank) => policy.rank(&id, rank),
            Record::Unwanted(id) => {
                unwanted.insert(id);
            }
            Record::Settled(id) => {
                unwanted.remove(&id);
                settled.insert(id);
            }
        });
        if by_space && let Some(available) = available() {
            policy.set_budget(share(available.saturating_add(policy.bytes())));
        }
        let (index, said) = match opened {
            Ok(index) => (Some(index), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // The process that wrote these records may have been killed before they were durable.
        let stored_again = !settled.is_empty();
        let (meanwhile, to_keep) = (None, VecDeque::new());
        let closed = false;
        let inner =
            Inner { policy, by_space, index, closed, unwanted, settled, stored_again, meanwhile, to_keep };
        let ledger =
            Ledger { path: path.to_owned(), began: base::time::monotonic(), inner: Mutex::new(inner) };
        (ledger, said)
    }

    /// The deletions in the origin that were outstanding when the index was last written.
    pub(super) fn unwanted(&self) -> Vec<BlobId> {
        self.inner.lock().unwanted.iter().copied().collect()
    }

    fn lock(&self) -> (MutexGuard<'_, Inner>, u32) {
        let now = base::time::monotonic().duration_since(self.began).as_secs();
        // Times before the start of this process count as long ago.
        (
            self.inner.lock(),
            u32::try_from(now).unwrap_or(u32::MAX).saturating_add(crate::residency::ONE_USE_S),
        )
    }

    /// Records a read. Returns whether the blob is here.
    pub(super) fn touch(&self, id: &BlobId) -> bool {
        let (mut inner, now) = self.lock();
        inner.policy.touch(id, now)
    }

    pub(super) fn contains(&self, id: &BlobId) -> bool {
        self.inner.lock().policy.contains(id)
    }

    /// Records a new blob. `held` says that it is pinned.
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

    /// Records a new copy of a blob that other places hold too. `cost` is the cost of fetching it again.
    pub(super) fn insert_copy(&self, id: &BlobId, size: u32, cost: Cost) {
        let (mut inner, now) = self.lock();
        if inner.policy.insert(id, size, cost, now) {
            inner.log(&[Record::Here { id: *id, size, cost, rank: Rank::New }]);
        }
        inner.keep_if_asked(id);
    }

    /// Records that a user wants to keep a blob. One that is not here yet is kept when it arrives.
    pub(super) fn keep(&self, id: &BlobId) {
        let mut inner = self.inner.lock();
        if inner.policy.keep(id) {
            inner.log_ranked();
        } else if !inner.to_keep.contains(id) {
            inner.to_keep.truncate(TO_KEEP - 1);
            inner.to_keep.push_front(*id);
        }
    }

    /// Ends that for all blobs.
    pub(super) fn keep_none(&self) {
        let mut inner = self.inner.lock();
        inner.to_keep.clear();
        inner.policy.keep_none();
        inner.log_ranked();
    }

    /// All blobs that are here.
    pub(super) fn all(&self) -> Vec<BlobId> {
        let inner = self.inner.lock();
        let mut all = Vec::with_capacity(inner.policy.len());
        inner.policy.each(|id, _, _, _| all.push(*id));
        all
    }

    /// Records that a blob is gone.
    pub(super) fn remove(&self, id: &BlobId) {
        let mut inner = self.inner.lock();
        if inner.policy.remove(id).is_some() {
            inner.log(&[Record::Gone(*id)]);
        }
    }

    /// Selects the blobs to evict so that `bytes` become free, at most `most` of them, and removes them from
    /// the index.
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
        inner.log_ranked();
        inner.log(&victims.iter().map(|victim| Record::Gone(victim.id)).collect::<Vec<_>>());
        victims
    }

    /// The number of blobs, the bytes they take, and the budget.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        let policy = &self.inner.lock().policy;
        (policy.len() as u64, policy.bytes(), policy.budget())
    }

    /// Records that the blob is to be deleted in the origin.
    pub(super) fn unwant(&self, id: &BlobId) {
        let mut inner = self.inner.lock();
        if inner.unwanted.insert(*id) {
            inner.log(&[Record::Unwanted(*id)]);
        }
    }

    /// Records that they were deleted in the origin.
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

    /// Cancels the blob's deletion, because it is stored again.
    pub(super) fn want(&self, id: &BlobId) {
        let mut inner = self.inner.lock();
        if inner.unwanted.remove(id) {
            inner.settled.insert(*id);
            inner.log(&[Record::Settled(*id)]);
        }
        inner.stored_again |= inner.settled.contains(id);
    }

    /// Makes the cancelled deletions of blobs that were stored again durable.
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

    /// Records the blobs that the walk of the disk found in a folder. Adds those that were unknown.
    pub(super) fn seen(&self, found: &[(BlobId, u32)]) {
        let (mut inner, now) = self.lock();
        let (mut records, mut unknown) = (Vec::new(), 0);
        for (id, size) in found {
            if !inner.policy.confirm(id) && inner.policy.insert(id, *size, Cost::Origin, now) {
                records.push(Record::Here { id: *id, size: *size, cost: Cost::Origin, rank: Rank::New });
                unknown += charge(*size);
            }
        }
        if inner.by_space {
            // They were on the disk at the start, so their space did not count as available.
            let budget = inner.policy.budget().saturating_add(share(unknown));
            inner.policy.set_budget(budget);
        }
        inner.log(&records);
    }

    /// The blobs of a former run that the walk has not found.
    pub(super) fn unconfirmed(&self) -> Vec<BlobId> {
        self.inner.lock().policy.unconfirmed()
    }

    /// Whether the index should be rewritten.
    pub(super) fn is_long(&self) -> bool {
        let inner = self.inner.lock();
        let needed = (inner.policy.len() + inner.unwanted.len()) as u64;
        let wanting =
            |index: &Index| index.is_broken() || index.records() > LONG && index.records() / 2 > needed;
        inner.meanwhile.is_none() && inner.index.as_ref().is_some_and(wanting)
    }

    /// Rewrites the index. Does nothing if another thread is rewriting it.
    ///
    /// # Errors
    /// The system's error. The index is unchanged then.
    pub(super) fn write_anew(&self) -> io::Result<()> {
        let Some(all) = self.begin_anew() else { return Ok(()) };
        self.finish_anew(Rewrite::begin(&self.path, &all))
    }

    /// The records of a new index. `None` if it is not to be written. Otherwise [`Ledger::finish_anew`] must
    /// follow.
    pub(super) fn begin_anew(&self) -> Option<Vec<Record>> {
        let mut inner = self.inner.lock();
        if inner.closed || inner.meanwhile.is_some() {
            return None;
        }
        inner.meanwhile = Some(Vec::new());
        Some(inner.all())
    }

    /// Replaces the index by the new one.
    pub(super) fn finish_anew(&self, new: io::Result<Rewrite>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let meanwhile = inner.meanwhile.take().unwrap_or_default();
        if inner.closed {
            return Ok(());
        }
        inner.index = Some(new?.install(&meanwhile)?);
        Ok(())
    }

    /// Stops all writing.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.index = None;
    }
}
