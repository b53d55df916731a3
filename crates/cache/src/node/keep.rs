//! Keeping blobs on the disk, and evicting others for them.
//!
//! A fetched blob is kept if it fits into the budget and leaves the floor of free space, after evictions. If
//! it does not fit, it is kept in memory for a while. Evictions run in batches and free a little more than
//! needed, so that not every new blob waits for one. Removing a file does not disturb its readers.
//!
//! **A blob's lock.** A change to a blob's file and to its record (store, keep, remove) holds one of 64
//! locks, chosen by the blob. An eviction checks its victim again under that lock: a blob that was stored or
//! fetched again meanwhile stays.
//!
//! A disk that turns out to be full although the figures said otherwise gets one retry after a large
//! eviction. If that fails too, nothing more is kept for a while, as after any other write error
//! ([`super::health`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::BlobId;
use base::size::MIB;
use blob::{BlobError, Part};
use fetch::{Completed, Purpose};

use super::pool::Job;
use super::{Core, Evict, Evicted};
use crate::residency::{Victim, charge};

/// How much more than needed an eviction frees.
const SLACK: u64 = 32 * MIB;
/// How much is evicted if the disk was full despite the figures.
const HARDER: u64 = 64 * MIB;
/// How many victims are selected at once.
const BATCH: usize = 64;
/// Space left to others, so that the cache never makes writers find the disk full: at least this much, or a
/// sixteenth of a small disk.
const OTHERS: u64 = 256 * MIB;

/// Room reserved for a blob that is about to be written. Others that look for room at the same time leave it.
struct Reserved<'a> {
    core: &'a Core,
    room: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.core.reserved.fetch_sub(self.room, Ordering::AcqRel);
    }
}

/// What happens to the files of evicted blobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// New blobs overwrite them: only the budget is short, not the disk's space.
    Reused,
    /// The files are deleted, so that their space is free.
    Removed,
}

/// The result of an eviction.
#[derive(Default)]
struct Freed {
    /// As [`charge`] counts.
    room: u64,
    evicted: Evicted,
}

impl Freed {
    fn add(&mut self, size: u32) {
        self.room += charge(size);
        self.evicted.blobs += 1;
        self.evicted.bytes += u64::from(size);
    }
}

impl Core {
    pub(super) fn run(self: &Arc<Core>, job: Job) {
        match job {
            Job::Keep(completed) => self.keep(*completed),
            Job::Tend => self.tend(),
            Job::Tidy => {
                if let Err(error) = self.ledger.write_anew() {
                    self.health.failed(&error.into());
                }
            }
            Job::Fetch(hint) => self.follow(hint),
        }
    }

    /// Runs the job in the background, or here if the background threads do not take it.
    pub(super) fn run_later(self: &Arc<Core>, job: Job) {
        if let Err(job) = self.pool.push(self, job) {
            self.run(job);
        }
    }

    /// Puts a fetched blob on the disk, or in memory if it cannot be kept. Then it leaves the table.
    pub(super) fn keep(self: &Arc<Core>, mut completed: Completed) {
        let (id, part) = (&completed.id, &completed.part);
        let ahead = completed.purpose == Purpose::Prefetch;
        if self.keep_on_disk(id, part, ahead) {
            // A prefetched blob stays in memory until its reader has passed it.
            let mut memory = self.memory.lock();
            let gone = if ahead { memory.forget_passed(id) } else { memory.forget(id) };
            drop(memory);
            drop(gone);
            completed.kept();
            if self.ledger.is_long() {
                self.run_later(Job::Tidy);
            }
        } else {
            self.counters.not_kept.add(1);
            if !ahead {
                let gone = self.memory.lock().keep(id, Arc::clone(part));
                drop(gone);
            }
        }
    }

    fn keep_on_disk(&self, id: &BlobId, part: &Part, ahead: bool) -> bool {
        if self.closed.is() || !self.may_write() {
            return false;
        }
        let Some(reserved) = self.room_for(charge(part.sums.size())) else { return false };
        let room = reserved.room;
        let mut kept = self.write(id, part, ahead, reserved);
        if matches!(kept, Err(BlobError::Full)) {
            let some = HARDER.min(self.ledger.totals().1 / 4);
            self.evict_bytes(some.max(2 * room), Fate::Removed);
            kept = match self.room_for(room) {
                Some(reserved) => self.write(id, part, ahead, reserved),
                None => return false,
            };
        }
        match kept {
            Ok(()) => {
                self.counters.kept_blobs.add(1);
                self.counters.kept_bytes.add(u64::from(part.sums.size()));
                true
            }
            Err(error) => {
                self.health.failed(&error);
                false
            }
        }
    }

    /// Whether the disk may be written to. Rewrites the index when the disk works again.
    fn may_write(&self) -> bool {
        self.health.may_write(|| {
            self.disk_store.probe()?;
            self.ledger.write_anew()
        })
    }

    fn write(&self, id: &BlobId, part: &Part, ahead: bool, reserved: Reserved<'_>) -> Result<(), BlobError> {
        let _turn = self.turn(id);
        // The reader that continues gets a prefetched blob from memory, and so does a peer that wants it soon
        // (`fetch::table`).
        match ahead {
            true => self.disk_store.keep_for_later(id, &part.sums, &part.bytes)?,
            false => self.disk_store.keep(id, &part.sums, &part.bytes)?,
        }
        // From here on the index counts it, so its reservation ends.
        self.ledger.insert_copy(id, part.sums.size(), self.cost(id));
        drop(reserved);
        self.inserted(id);
        Ok(())
    }

    /// Makes room for one more blob beside those being written. None if there is no room. Calls run one after
    /// the other, so that no call evicts blobs for room that another has just made.
    fn room_for(&self, room: u64) -> Option<Reserved<'_>> {
        let _one = self.making_room.lock();
        let total = self.reserved.load(Ordering::Acquire) + room;
        let (needed, fate) = self.needed(total);
        if needed > 0 && self.evict_bytes(needed + self.slack(), fate).room < needed {
            if fate == Fate::Removed {
                self.health.kept_out(|| self.floor_line());
            }
            return None;
        }
        self.health.let_in();
        self.reserved.fetch_add(room, Ordering::AcqRel);
        Some(Reserved { core: self, room })
    }

    /// The line that tells the operator why nothing is kept.
    fn floor_line(&self) -> String {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let free = self.disk_store.space().map_or(0, |space| space.available);
        format!(
            "the cache keeps nothing: {} MiB are free on its disk, and {} MiB stay free for others (cache_floor); free some room \
             there, or mount with a smaller cache_floor",
            mib(free),
            mib(self.floor())
        )
    }

    /// By how much the blobs here plus `more` exceed the budget.
    fn over_budget(&self, more: u64) -> u64 {
        let (_, bytes, budget) = self.ledger.totals();
        (bytes + more).saturating_sub(budget)
    }

    /// How many bytes are missing for `more` to leave the floor free. Zero if the disk does not report its
    /// space: a write then fails by itself.
    pub(super) fn below_floor(&self, more: u64) -> u64 {
        match self.disk_store.space() {
            Ok(space) => (self.floor_of(space.total) + more).saturating_sub(space.available),
            Err(_) => 0,
        }
    }

    fn floor_of(&self, total: u64) -> u64 {
        self.options.floor.max(OTHERS.min(total / 16))
    }

    /// How much is left free for others.
    pub(super) fn floor(&self) -> u64 {
        self.disk_store.space().map_or(self.options.floor, |space| self.floor_of(space.total))
    }

    fn slack(&self) -> u64 {
        SLACK.min(self.ledger.totals().1 / 64)
    }

    /// Whether something must be evicted, after stores or because others filled the disk.
    pub(super) fn is_crowded(&self) -> bool {
        self.over_budget(0) > 0 || self.below_floor(0) > 0
    }

    /// Evicts the excess.
    pub(super) fn tend(&self) {
        self.tending.store(false, Ordering::Release);
        let (needed, fate) = self.needed(0);
        if needed > 0 {
            self.evict_bytes(needed + self.slack(), fate);
        }
    }

    /// How much must be evicted for `more` to fit, and how.
    fn needed(&self, more: u64) -> (u64, Fate) {
        let floor = self.below_floor(more);
        (self.over_budget(more).max(floor), if floor > 0 { Fate::Removed } else { Fate::Reused })
    }

    /// Evicts blobs until `room` is free. Frees less only if the rest is pinned or the disk fails.
    fn evict_bytes(&self, room: u64, fate: Fate) -> Freed {
        let mut freed = Freed::default();
        while freed.room < room {
            let victims = self.ledger.victims(room - freed.room, BATCH, &|id| self.pending.is_pending(id));
            if victims.is_empty() {
                break;
            }
            for (at, victim) in victims.iter().enumerate() {
                match self.let_go(victim, fate) {
                    Ok(true) => freed.add(victim.size),
                    Ok(false) => {}
                    Err(error) => {
                        let rest = &victims[at..];
                        rest.iter().for_each(|victim| self.ledger.insert(&victim.id, victim.size, false));
                        self.health.failed(&error);
                        return freed;
                    }
                }
            }
        }
        freed
    }

    /// Removes a victim's file, unless the blob was stored or fetched again.
    fn let_go(&self, victim: &Victim, fate: Fate) -> Result<bool, BlobError> {
        let _turn = self.turn(&victim.id);
        if self.pending.is_pending(&victim.id) {
            self.ledger.insert(&victim.id, victim.size, true);
            return Ok(false);
        }
        if self.ledger.contains(&victim.id) {
            return Ok(false);
        }
        match fate {
            Fate::Reused => self.disk_store.retire(&victim.id)?,
            Fate::Removed => self.disk_store.remove(&victim.id)?,
        }
        self.evicted(&victim.id);
        self.counters.evicted_blobs.add(1);
        self.counters.evicted_bytes.add(u64::from(victim.size));
        Ok(true)
    }

    /// Evicts blobs on request.
    pub(super) fn evict(&self, what: Evict) -> Evicted {
        let (_, bytes, _) = self.ledger.totals();
        let target = match what {
            Evict::All => {
                let gone = self.memory.lock().clear();
                drop(gone);
                0
            }
            Evict::To(target) => target,
        };
        self.evict_bytes(bytes.saturating_sub(target), Fate::Removed).evicted
    }
}
