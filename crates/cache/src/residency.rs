//! Which blobs stay on the node's disk: a decision without a disk and without a clock.
//!
//! The order is S3-FIFO's. Most blobs are read once and never again; so a newcomer gets a tenth of the room and, unless it is read
//! again there, goes before any that has proved itself.
//!
//! ```text
//!                   seen lately, by its ghost ─────────────┐
//!                                                          ▼
//!   newcomer ──► small (10 %) ──read again──────────────► main ──┐ read since: once more round
//!                  │    ▲                                  │  ▲──┘
//!                  ▼    │ no longer pinned                 ▼
//!                ghost  held: pinned, never a victim      gone
//! ```
//!
//! A scan of any length passes through the small queue and leaves main as it was. The ghosts remember the names of what went unread
//! from the small queue, as many as would fill main: what comes back while its ghost is there skips the small queue.
//!
//! **A read counts once in ten seconds.** A blob of 4 MiB is read in dozens of requests, one pack holds many small files that are read
//! together; all this is one use of the blob, and only a later one is a second.
//!
//! **What is dear to fetch again stays longer.** A read gives credit, four points for what only the far origin has and fewer for what
//! a neighbour has too; it takes four points to leave the small queue for main, or to go round in main once more.
//!
//! **The zone's only copy goes last.** What only the far origin has besides, while other blobs here could be had from a neighbour or a depot, is
//! spared once in each queue that it passes: it goes round one time more before it is a victim. Who fetched a blob from the origin for everybody
//! counts as its keeper ([`Cost::Origin`]), those who have it from him do not, so in a zone of full disks the copies go before the last one.
//! Where all cost the same, as on a machine that is alone, nothing is spared and the order is as above.
//!
//! **What is pinned is no victim**, under any pressure: whoever asks for a victim says what is pinned, and a candidate that is, is set
//! aside among the held, of which a few are looked at again each time.
//!
//! An entry takes 52 bytes and 5 to 10 in the table that finds it; a ghost about 30.

mod ghost;
pub mod index;
mod queue;
#[cfg(test)]
mod tests;

use base::BlobId;
use base::size::BLOB_MAX;

use ghost::Ghosts;
use queue::{Lists, Queue, Slot};

/// Reads within so many seconds are one.
pub const ONE_USE_S: u32 = 10;
/// What a stay in main, or the way there, costs.
const STAY: u8 = 4;
const CREDIT_MAX: u8 = 3 * STAY;
/// The small queue's part of the budget.
const SMALL_PART: u64 = 10;
/// So many are spared for one victim at most; then the next one goes, whatever it costs.
const SPARED_MOST: usize = 64;
/// How many held ones are looked at again for each victim.
const HELD_LOOKS: usize = 16;

/// How dear it is to fetch a blob again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Only from the origin.
    Origin,
    /// Also from a cache in this zone.
    Depot,
    /// Also from a neighbour.
    Peer,
}

impl Cost {
    fn credit(self) -> u8 {
        match self {
            Cost::Origin => STAY,
            Cost::Depot => STAY / 2,
            Cost::Peer => STAY / 4,
        }
    }

    /// Whether it can be had without the origin.
    fn is_cheap(self) -> bool {
        self != Cost::Origin
    }

    fn from_code(code: u8) -> Cost {
        match code {
            1 => Cost::Depot,
            2 => Cost::Peer,
            _ => Cost::Origin,
        }
    }

    fn code(self) -> u8 {
        self as u8
    }
}

/// Where a blob stands; what is kept of that over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Among the newcomers.
    New,
    /// It was read again.
    Proven,
}

/// A blob that is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Which.
    pub id: BlobId,
    /// Its size in bytes.
    pub size: u32,
}

/// What room a blob takes on a disk: whole pages, and one for its sums.
pub fn charge(size: u32) -> u64 {
    u64::from(size).next_multiple_of(4096) + 4096
}

/// The blobs that are here, and their order. Times are in seconds since any moment, the same for all calls. See the [module](self).
pub struct Policy {
    lists: Lists,
    ghosts: Ghosts,
    budget: u64,
    /// How many could be had without the origin.
    cheap: usize,
    promoted: Vec<BlobId>,
}

impl Policy {
    /// None yet, for so many bytes as [`charge`] counts them.
    pub fn new(budget: u64) -> Policy {
        Policy { lists: Lists::new(), ghosts: Ghosts::new(), budget, cheap: 0, promoted: Vec::new() }
    }

    /// So many will come, so that they need not be moved while they do.
    pub fn prepare_for(&mut self, count: usize) {
        self.lists.reserve(count);
    }

    /// The bytes that all may take together.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// What they take.
    pub fn bytes(&self) -> u64 {
        self.lists.bytes()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lists.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the blob is one of them.
    pub fn contains(&self, id: &BlobId) -> bool {
        self.lists.find(id).is_some()
    }

    /// A blob came. False, and nothing changed but its use, if it was here.
    pub fn insert(&mut self, id: &BlobId, size: u32, cost: Cost, now: u32) -> bool {
        let queue = if self.ghosts.take(id) { Queue::Main } else { Queue::Small };
        self.add(id, size, cost, queue, now)
    }

    /// A blob came that is pinned.
    pub fn insert_held(&mut self, id: &BlobId, size: u32, cost: Cost, now: u32) -> bool {
        self.add(id, size, cost, Queue::Held, now)
    }

    /// A blob that was here before a restart, in the order of their coming. It is not sure to be there until [`Policy::confirm`].
    pub fn restore(&mut self, id: &BlobId, size: u32, cost: Cost, rank: Rank) {
        let queue = if rank == Rank::Proven { Queue::Main } else { Queue::Small };
        if let Some((at, _)) = self.put(id, size, cost, queue, 0) {
            self.lists.slot_mut(at).confirmed = false;
        }
    }

    /// A restored blob had proven itself before the restart.
    pub fn prove(&mut self, id: &BlobId) {
        if let Some(at) = self.lists.find(id) {
            self.lists.take_out(at);
            self.lists.push(Queue::Main, at);
        }
    }

    fn add(&mut self, id: &BlobId, size: u32, cost: Cost, queue: Queue, now: u32) -> bool {
        self.put(id, size, cost, queue, now).is_some_and(|(_, new)| new)
    }

    /// Its place, and whether it is new.
    fn put(&mut self, id: &BlobId, size: u32, cost: Cost, queue: Queue, now: u32) -> Option<(u32, bool)> {
        if size > BLOB_MAX {
            return None;
        }
        if let Some(at) = self.lists.find(id) {
            self.lists.slot_mut(at).confirmed = true;
            if queue == Queue::Held && self.lists.slot(at).queue != Queue::Held {
                self.lists.take_out(at);
                self.lists.push(Queue::Held, at);
            }
            self.touch(id, now);
            return Some((at, false));
        }
        self.cheap += usize::from(cost.is_cheap());
        let slot = Slot::new(*id, size, cost.code(), now);
        Some((self.lists.add(queue, slot), true))
    }

    /// A blob was read. False if it is not here.
    pub fn touch(&mut self, id: &BlobId, now: u32) -> bool {
        let Some(at) = self.lists.find(id) else { return false };
        let slot = self.lists.slot_mut(at);
        if now.saturating_sub(slot.used_s) >= ONE_USE_S {
            slot.used_s = now;
            slot.credit = CREDIT_MAX.min(slot.credit + Cost::from_code(slot.cost()).credit());
        }
        true
    }

    /// A blob is gone, for another reason than this policy's. Its size, if it was here.
    pub fn remove(&mut self, id: &BlobId) -> Option<u32> {
        self.lists.find(id).map(|at| self.take(at).size)
    }

    fn take(&mut self, at: u32) -> Slot {
        let slot = self.lists.remove(at);
        self.cheap -= usize::from(Cost::from_code(slot.cost()).is_cheap());
        slot
    }

    /// The next that has to go if room is needed; it is no longer here then. `None` when all that are left are pinned.
    pub fn victim(&mut self, is_pinned: &dyn Fn(&BlobId) -> bool) -> Option<Victim> {
        self.look_at_held(is_pinned);
        let mut spared = 0;
        loop {
            let crowded = self.lists.bytes_of(Queue::Small) > self.budget / SMALL_PART;
            let from = match (self.lists.oldest(Queue::Small), self.lists.oldest(Queue::Main)) {
                (Some(small), main) if crowded || main.is_none() => small,
                (_, Some(main)) => main,
                (Some(small), None) => small,
                (None, None) => return None,
            };
            if spared < SPARED_MOST && self.spare(from, is_pinned) {
                spared += 1;
            } else if let Some(victim) = self.judge(from, is_pinned) {
                return Some(victim);
            }
        }
    }

    /// Lets the oldest of its queue go round once more, if it would go now and is dearer than others here.
    fn spare(&mut self, at: u32, is_pinned: &dyn Fn(&BlobId) -> bool) -> bool {
        let slot = *self.lists.slot(at);
        let dear = self.cheap > 0 && !Cost::from_code(slot.cost()).is_cheap();
        if !dear || slot.is_spared() || slot.credit >= STAY || is_pinned(&slot.id) {
            return false;
        }
        self.lists.take_out(at);
        self.lists.slot_mut(at).set_spared(true);
        self.lists.push(slot.queue, at);
        true
    }

    /// The oldest of its queue: it goes, or it moves on.
    fn judge(&mut self, at: u32, is_pinned: &dyn Fn(&BlobId) -> bool) -> Option<Victim> {
        let slot = *self.lists.slot(at);
        if is_pinned(&slot.id) {
            self.lists.take_out(at);
            self.lists.push(Queue::Held, at);
            return None;
        }
        if slot.credit >= STAY {
            self.lists.take_out(at);
            let left = if slot.queue == Queue::Main { slot.credit - STAY } else { 0 };
            let moved = self.lists.slot_mut(at);
            moved.credit = left;
            moved.set_spared(false);
            self.lists.push(Queue::Main, at);
            if slot.queue != Queue::Main {
                self.promoted.push(slot.id);
            }
            return None;
        }
        self.take(at);
        if slot.queue == Queue::Small {
            self.ghosts.add(&slot.id, charge(slot.size), self.budget - self.budget / SMALL_PART);
        }
        Some(Victim { id: slot.id, size: slot.size })
    }

    /// Those that are pinned no more become newcomers.
    fn look_at_held(&mut self, is_pinned: &dyn Fn(&BlobId) -> bool) {
        for _ in 0..HELD_LOOKS.min(self.lists.len_of(Queue::Held)) {
            let Some(at) = self.lists.oldest(Queue::Held) else { break };
            self.lists.take_out(at);
            let still = is_pinned(&self.lists.slot(at).id);
            self.lists.push(if still { Queue::Held } else { Queue::Small }, at);
        }
    }

    /// Looks at all that are held; to be called when there is no victim although something was unpinned.
    pub fn look_at_all_held(&mut self, is_pinned: &dyn Fn(&BlobId) -> bool) {
        for _ in 0..self.lists.len_of(Queue::Held).div_ceil(HELD_LOOKS) {
            self.look_at_held(is_pinned);
        }
    }

    /// Those that became proven since this was last asked.
    pub fn take_promoted(&mut self) -> Vec<BlobId> {
        std::mem::take(&mut self.promoted)
    }

    /// The blob was seen on the disk. False if it was not known.
    pub fn confirm(&mut self, id: &BlobId) -> bool {
        let found = self.lists.find(id);
        found.into_iter().for_each(|at| self.lists.slot_mut(at).confirmed = true);
        found.is_some()
    }

    /// Those from before a restart that were not seen since.
    pub fn unconfirmed(&self) -> Vec<BlobId> {
        self.lists.slots().filter(|slot| !slot.confirmed).map(|slot| slot.id).collect()
    }

    /// All of them, each queue from the oldest on: what [`Policy::restore`] wants to hear.
    pub fn each(&self, mut each: impl FnMut(&BlobId, u32, Cost, Rank)) {
        for queue in [Queue::Main, Queue::Held, Queue::Small] {
            let rank = if queue == Queue::Main { Rank::Proven } else { Rank::New };
            self.lists.each_of(queue, |slot| each(&slot.id, slot.size, Cost::from_code(slot.cost()), rank));
        }
    }
}
