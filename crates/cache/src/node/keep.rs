//! What is put on the disk, and what goes for it.
//!
//! A fetched blob is kept if it fits into the budget and leaves the floor of free space, after others have gone for it; if it does not, it is
//! kept in memory for a while. Blobs go in batches, and a little more than is needed, so that not every newcomer has to wait for a removal.
//! Removing a file that somebody reads takes nothing from the reader.
//!
//! **A blob's turn.** Whoever changes what is known of a blob and its file (stores, keeps, removes) holds one of 64 locks, chosen by the
//! blob. A victim is looked at again under it: if it was stored or fetched again meanwhile, it stays.
//!
//! A disk that turns out to be full although the figures said otherwise gets one try more, after much has gone; then, as for every other
//! error of writing, nothing more is kept for a while ([`super::health`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::BlobId;
use base::size::MIB;
use blob::{BlobError, Part};

use super::pool::{Job, Landed};
use super::{Core, Evict, Evicted};
use crate::residency::{Victim, charge};

/// How much more than needed goes at once.
const SLACK: u64 = 32 * MIB;
/// How much goes when the disk was full all the same.
const HARDER: u64 = 64 * MIB;
/// Victims that are chosen at once.
const BATCH: usize = 64;
/// Writers must never find the disk full because of this cache: at least so much is left to them, or a sixteenth of a small disk.
const OTHERS: u64 = 256 * MIB;

/// Room that a blob will take which is about to be written: others who look for room at the same time leave it.
struct Coming<'a> {
    core: &'a Core,
    room: u64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.core.coming.fetch_sub(self.room, Ordering::AcqRel);
    }
}

/// What becomes of the files of blobs that go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Those that come are written over them: nothing is short but the budget.
    Reused,
    /// They give their room to the disk.
    Removed,
}

/// What an eviction came to.
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
            Job::Keep(landed) => {
                self.keep(&landed);
                landed.done();
            }
            Job::Tend => self.tend(),
            Job::Tidy => {
                if let Err(error) = self.books.write_anew() {
                    self.health.failed(&error.into());
                }
            }
            Job::Fetch(hint) => self.follow(hint),
        }
    }

    /// Has it done in the background, or here if there is no background.
    pub(super) fn run_later(self: &Arc<Core>, job: Job) {
        if let Err(job) = self.pool.push(self, job) {
            self.run(job);
        }
    }

    /// Puts away what was fetched.
    pub(super) fn keep(self: &Arc<Core>, landed: &Landed) {
        let Landed { id, part, ahead, .. } = landed;
        if self.keep_on_disk(id, part, *ahead) {
            // What was fetched ahead of its reader stays in memory until he has passed it.
            let mut memory = self.memory.lock();
            let gone = if *ahead { memory.forget_passed(id) } else { memory.forget(id) };
            drop(memory);
            drop(gone);
            if self.books.is_long() {
                self.run_later(Job::Tidy);
            }
        } else {
            self.counters.not_kept.add(1);
            if !*ahead {
                let gone = self.memory.lock().keep(id, Arc::clone(part));
                drop(gone);
            }
        }
    }

    fn keep_on_disk(&self, id: &BlobId, part: &Part, ahead: bool) -> bool {
        if self.closed.is() || !self.may_write() {
            return false;
        }
        let Some(coming) = self.room_for(charge(part.sums.size())) else { return false };
        let room = coming.room;
        let mut kept = self.write(id, part, ahead, coming);
        if matches!(kept, Err(BlobError::Full)) {
            let some = HARDER.min(self.books.totals().1 / 4);
            self.evict_bytes(some.max(2 * room), Fate::Removed);
            kept = match self.room_for(room) {
                Some(coming) => self.write(id, part, ahead, coming),
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

    /// Whether the disk may be written to; when it is found to work again, its index is written anew.
    fn may_write(&self) -> bool {
        self.health.may_write(|| {
            self.shelf.probe()?;
            self.books.write_anew()
        })
    }

    fn write(&self, id: &BlobId, part: &Part, ahead: bool, coming: Coming<'_>) -> Result<(), BlobError> {
        let _turn = self.turn(id);
        // Who reads on gets it from memory, and so does a neighbour who wants it soon (`peer::fleet::transit`).
        match ahead {
            true => self.shelf.keep_for_later(id, &part.sums, &part.bytes)?,
            false => self.shelf.keep(id, &part.sums, &part.bytes)?,
        }
        // From here on it counts as here, and no longer as coming.
        self.books.insert_copy(id, part.sums.size(), self.cost(id));
        drop(coming);
        self.came(id);
        Ok(())
    }

    /// Makes room for one more beside those that are just being written; nothing if there is none. One after the other, so that nobody
    /// lets go of blobs for what another has made room for.
    fn room_for(&self, room: u64) -> Option<Coming<'_>> {
        let _one = self.making_room.lock();
        let total = self.coming.load(Ordering::Acquire) + room;
        let (needed, fate) = self.needed(total);
        if needed > 0 && self.evict_bytes(needed + self.slack(), fate).room < needed {
            if fate == Fate::Removed {
                self.health.kept_out(|| self.floor_line());
            }
            return None;
        }
        self.health.let_in();
        self.coming.fetch_add(room, Ordering::AcqRel);
        Some(Coming { core: self, room })
    }

    /// For a person: why nothing is kept.
    fn floor_line(&self) -> String {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let free = self.shelf.space().map_or(0, |space| space.available);
        format!(
            "the cache keeps nothing: {} MiB are free on its disk, and {} MiB stay free for others (cache_floor); free some room \
             there, or mount with a smaller cache_floor",
            mib(free),
            mib(self.floor())
        )
    }

    /// By how much the blobs here, with `more`, pass the budget.
    fn over_budget(&self, more: u64) -> u64 {
        let (_, bytes, budget) = self.books.totals();
        (bytes + more).saturating_sub(budget)
    }

    /// How much is missing for `more` to leave the floor free. A disk that does not tell is left to say so itself.
    pub(super) fn below_floor(&self, more: u64) -> u64 {
        match self.shelf.space() {
            Ok(space) => (self.floor_of(space.total) + more).saturating_sub(space.available),
            Err(_) => 0,
        }
    }

    fn floor_of(&self, total: u64) -> u64 {
        self.options.floor.max(OTHERS.min(total / 16))
    }

    /// What is left free for others.
    pub(super) fn floor(&self) -> u64 {
        self.shelf.space().map_or(self.options.floor, |space| self.floor_of(space.total))
    }

    fn slack(&self) -> u64 {
        SLACK.min(self.books.totals().1 / 64)
    }

    /// Whether something has to go, for blobs that were stored or for others who filled the disk.
    pub(super) fn is_crowded(&self) -> bool {
        self.over_budget(0) > 0 || self.below_floor(0) > 0
    }

    /// Lets go of what is too much.
    pub(super) fn tend(&self) {
        self.tending.store(false, Ordering::Release);
        let (needed, fate) = self.needed(0);
        if needed > 0 {
            self.evict_bytes(needed + self.slack(), fate);
        }
    }

    /// How much has to go for `more` to come, and how.
    fn needed(&self, more: u64) -> (u64, Fate) {
        let floor = self.below_floor(more);
        (self.over_budget(more).max(floor), if floor > 0 { Fate::Removed } else { Fate::Reused })
    }

    /// Lets go of blobs until `room` was made. Less is made only when the rest is pinned, or the disk fails.
    fn evict_bytes(&self, room: u64, fate: Fate) -> Freed {
        let mut freed = Freed::default();
        while freed.room < room {
            let victims = self.books.victims(room - freed.room, BATCH, &|id| self.pending.is_pending(id));
            if victims.is_empty() {
                break;
            }
            for (at, victim) in victims.iter().enumerate() {
                match self.let_go(victim, fate) {
                    Ok(true) => freed.add(victim.size),
                    Ok(false) => {}
                    Err(error) => {
                        let rest = &victims[at..];
                        rest.iter().for_each(|victim| self.books.insert(&victim.id, victim.size, false));
                        self.health.failed(&error);
                        return freed;
                    }
                }
            }
        }
        freed
    }

    /// Removes a victim's file, unless the blob came again.
    fn let_go(&self, victim: &Victim, fate: Fate) -> Result<bool, BlobError> {
        let _turn = self.turn(&victim.id);
        if self.pending.is_pending(&victim.id) {
            self.books.insert(&victim.id, victim.size, true);
            return Ok(false);
        }
        if self.books.contains(&victim.id) {
            return Ok(false);
        }
        match fate {
            Fate::Reused => self.shelf.retire(&victim.id)?,
            Fate::Removed => self.shelf.remove(&victim.id)?,
        }
        self.went(&victim.id);
        self.counters.evicted_blobs.add(1);
        self.counters.evicted_bytes.add(u64::from(victim.size));
        Ok(true)
    }

    /// Lets go of blobs because somebody asks for it.
    pub(super) fn evict(&self, what: Evict) -> Evicted {
        let (_, bytes, _) = self.books.totals();
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
