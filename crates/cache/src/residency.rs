//! Which blobs stay on the node's disk: a decision that needs no disk and no clock.
//!
//! The algorithm is S3-FIFO. Most blobs are read once and never again. So a new blob enters a small queue
//! with a tenth of the room. Unless it is read again there, it is evicted before any proven blob.
//!
//! ```text
//!                   seen recently, by its ghost ───────────┐
//!                                                          ▼
//!   new blob ──► small (10 %) ──read again──────────────► main ──┐ read since: one more round
//!                  │    ▲                                  │  ▲──┘
//!                  ▼    │ no longer pinned                 ▼
//!                ghost  held: pinned, never a victim      evicted
//!
//!   kept: a user's hint, last
//! ```
//!
//! A scan of any length passes through the small queue and leaves main unchanged. The ghosts remember the
//! names of blobs evicted from the small queue, as many as would fill main. A blob that returns while its
//! ghost exists skips the small queue.
//!
//! **Reads within ten seconds count once.** A blob of 4 MiB is read in dozens of requests, and one pack holds
//! many small files that are read together. All this is one use of the blob. Only a later read is a second
//! use.
//!
//! **Blobs that are expensive to fetch again stay longer.** A read gives credit: four points for a blob that
//! only the remote origin has, and fewer for one that a peer has too. It takes four points to move from the
//! small queue to main, or to stay in main for another round.
//!
//! **The zone's only copy is evicted last.** This applies to a blob that otherwise only the remote origin
//! has, while other blobs here are also held by a peer or a depot. Such a blob is spared once in each queue:
//! it makes one more round before it becomes a victim. A node that fetched a blob from the origin for the
//! zone counts as its keeper ([`Cost::Origin`]). Nodes that got it from that node do not. So in a zone of
//! full disks, the other copies are evicted before the last one. If all blobs cost the same, as on a single
//! machine, nothing is spared.
//!
//! **A pinned blob is never a victim**, under any pressure. The caller that asks for a victim says what is
//! pinned. A pinned candidate moves to the held queue. Each call checks a few held blobs again.
//!
//! **What users want to keep is evicted last.** A read on behalf of a file with the hint `keep` moves the
//! blob to the kept queue. It has at most half of the budget. When more is kept, the blobs whose last such
//! read is longest ago move to main. A blob of the kept queue is a victim only if no other is left.
//!
//! An entry takes 52 bytes, plus 5 to 10 in its lookup table. A ghost takes about 30.

mod ghost;
pub mod index;
mod queue;
#[cfg(test)]
mod tests;

use base::BlobId;
use base::size::BLOB_MAX;

use ghost::Ghosts;
use queue::{Lists, Queue, Slot};

/// Reads within this many seconds count as one.
pub const ONE_USE_S: u32 = 10;
/// The credit for a move to main, or for another round there.
const STAY: u8 = 4;
const CREDIT_MAX: u8 = 3 * STAY;
/// The small queue gets one part in this many of the budget.
const SMALL_PART: u64 = 10;
/// Kept blobs get one part in this many of the budget.
const KEPT_PART: u64 = 2;
/// At most this many blobs are spared for one victim. Then the next one is evicted, whatever it costs.
const SPARED_MOST: usize = 64;
/// How many held blobs are checked again for each victim.
const HELD_LOOKS: usize = 16;

/// What it costs to fetch a blob again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Only the origin has it.
    Origin,
    /// A cache server in this zone has it too.
    Depot,
    /// A peer has it too.
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

    /// Whether it can be fetched without the origin.
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

/// A blob's rank, as the index keeps it over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// A new blob, in the small or the held queue.
    New,
    /// A blob that was read again.
    Proven,
    /// A user wants to keep it.
    Kept,
}

/// A blob to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The blob's name.
    pub id: BlobId,
    /// The blob's size in bytes.
    pub size: u32,
}

fn queue_of(rank: Rank) -> Queue {
    match rank {
        Rank::New => Queue::Small,
        Rank::Proven => Queue::Main,
        Rank::Kept => Queue::Kept,
    }
}

/// The disk space that a blob takes: whole pages, and one page for its sums.
pub fn charge(size: u32) -> u64 {
    u64::from(size).next_multiple_of(4096) + 4096
}

/// The blobs that are here, and their order. Times are seconds since a fixed moment. See the [module](self).
pub struct Policy {
    lists: Lists,
    ghosts: Ghosts,
    budget: u64,
    /// How many blobs could be fetched without the origin.
    cheap: usize,
    /// Blobs with a new rank since they were last taken.
    ranked: Vec<(BlobId, Rank)>,
}

impl Policy {
    /// Starts empty, with a budget in bytes as [`charge`] counts them.
    pub fn new(budget: u64) -> Policy {
        Policy { lists: Lists::new(), ghosts: Ghosts::new(), budget, cheap: 0, ranked: Vec::new() }
    }

    /// Reserves space for this many blobs, so that inserting them moves nothing.
    pub fn prepare_for(&mut self, count: usize) {
        self.lists.reserve(count);
    }

    /// The bytes that all blobs may take together.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Changes how many bytes all blobs may take together.
    pub fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// The bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.lists.bytes()
    }

    /// How many blobs there are.
    pub fn len(&self) -> usize {
        self.lists.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the blob is one of them.
    pub fn contains(&self, id: &BlobId) -> bool {
        self.lists.find(id).is_some()
    }

    /// Inserts a blob. If it is already here, this returns false and only counts as a use.
    pub fn insert(&mut self, id: &BlobId, size: u32, cost: Cost, now: u32) -> bool {
        let queue = if self.ghosts.take(id) { Queue::Main } else { Queue::Small };
        self.add(id, size, cost, queue, now)
    }

    /// Inserts a blob that is pinned.
    pub fn insert_held(&mut self, id: &BlobId, size: u32, cost: Cost, now: u32) -> bool {
        self.add(id, size, cost, Queue::Held, now)
    }

    /// Restores a blob of a former run, in the order of insertion. Its presence is uncertain until
    /// [`Policy::confirm`].
    pub fn restore(&mut self, id: &BlobId, size: u32, cost: Cost, rank: Rank) {
        let queue = queue_of(rank);
        if let Some((at, _)) = self.put(id, size, cost, queue, 0) {
            self.lists.slot_mut(at).confirmed = false;
        }
    }

    /// Gives a restored blob the rank that it got before the restart.
    pub fn rank(&mut self, id: &BlobId, rank: Rank) {
        if let Some(at) = self.lists.find(id) {
            self.shift(at, queue_of(rank));
        }
    }

    /// Records that a user wants to keep a blob, and that it was read just now. A pinned blob is kept from
    /// its next such read on. False if it is not here.
    pub fn keep(&mut self, id: &BlobId) -> bool {
        let Some(at) = self.lists.find(id) else { return false };
        match self.lists.slot(at).queue {
            Queue::Held => return true,
            Queue::Kept => {}
            Queue::Small | Queue::Main => self.ranked.push((*id, Rank::Kept)),
        }
        self.shift(at, Queue::Kept);
        while self.kept_bytes() > self.budget / KEPT_PART {
            let Some(oldest) = self.lists.oldest(Queue::Kept) else { break };
            self.keep_no_more(oldest);
        }
        true
    }

    /// Ends the special treatment of all kept blobs.
    pub fn keep_none(&mut self) {
        while let Some(oldest) = self.lists.oldest(Queue::Kept) {
            self.keep_no_more(oldest);
        }
    }

    fn keep_no_more(&mut self, at: u32) {
        self.shift(at, Queue::Main);
        self.ranked.push((self.lists.slot(at).id, Rank::Proven));
    }

    /// Moves a slot to the newest end of a queue.
    fn shift(&mut self, at: u32, queue: Queue) {
        self.lists.take_out(at);
        self.lists.push(queue, at);
    }

    /// The bytes that kept blobs take.
    pub fn kept_bytes(&self) -> u64 {
        self.lists.bytes_of(Queue::Kept)
    }

    fn add(&mut self, id: &BlobId, size: u32, cost: Cost, queue: Queue, now: u32) -> bool {
        self.put(id, size, cost, queue, now).is_some_and(|(_, new)| new)
    }

    /// Inserts a blob, or counts a use of it. Returns its slot, and whether it is new. None: it is too large.
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

    /// Records a read of a blob. False if it is not here.
    pub fn touch(&mut self, id: &BlobId, now: u32) -> bool {
        let Some(at) = self.lists.find(id) else { return false };
        let slot = self.lists.slot_mut(at);
        if now.saturating_sub(slot.used_s) >= ONE_USE_S {
            slot.used_s = now;
            slot.credit = CREDIT_MAX.min(slot.credit + Cost::from_code(slot.cost()).credit());
        }
        true
    }

    /// Removes a blob that is gone for another reason than an eviction. Returns its size, if it was here.
    pub fn remove(&mut self, id: &BlobId) -> Option<u32> {
        self.lists.find(id).map(|at| self.take(at).size)
    }

    fn take(&mut self, at: u32) -> Slot {
        let slot = self.lists.remove(at);
        self.cheap -= usize::from(Cost::from_code(slot.cost()).is_cheap());
        slot
    }

    /// Removes the next blob to evict and returns it. `None` if only pinned blobs are left.
    pub fn victim(&mut self, is_pinned: &dyn Fn(&BlobId) -> bool) -> Option<Victim> {
        self.look_at_held(is_pinned);
        let mut spared = 0;
        loop {
            let crowded = self.lists.bytes_of(Queue::Small) > self.budget / SMALL_PART;
            let from = match (self.lists.oldest(Queue::Small), self.lists.oldest(Queue::Main)) {
                (Some(small), main) if crowded || main.is_none() => small,
                (_, Some(main)) => main,
                (Some(small), None) => small,
                (None, None) => self.lists.oldest(Queue::Kept)?,
            };
            if spared < SPARED_MOST && self.spare(from, is_pinned) {
                spared += 1;
            } else if let Some(victim) = self.judge(from, is_pinned) {
                return Some(victim);
            }
        }
    }

    /// Gives the oldest of a queue one more round, if it would be evicted now and costs more than others
    /// here.
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

    /// Evicts the oldest of a queue, or moves it on.
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
                self.ranked.push((slot.id, Rank::Proven));
            }
            return None;
        }
        self.take(at);
        if slot.queue == Queue::Small {
            self.ghosts.add(&slot.id, charge(slot.size), self.budget - self.budget / SMALL_PART);
        }
        Some(Victim { id: slot.id, size: slot.size })
    }

    /// Moves held blobs that are no longer pinned to the small queue.
    fn look_at_held(&mut self, is_pinned: &dyn Fn(&BlobId) -> bool) {
        for _ in 0..HELD_LOOKS.min(self.lists.len_of(Queue::Held)) {
            let Some(at) = self.lists.oldest(Queue::Held) else { break };
            self.lists.take_out(at);
            let still = is_pinned(&self.lists.slot(at).id);
            self.lists.push(if still { Queue::Held } else { Queue::Small }, at);
        }
    }

    /// Checks all held blobs again. For callers that got no victim although blobs were unpinned.
    pub fn look_at_all_held(&mut self, is_pinned: &dyn Fn(&BlobId) -> bool) {
        for _ in 0..self.lists.len_of(Queue::Held).div_ceil(HELD_LOOKS) {
            self.look_at_held(is_pinned);
        }
    }

    /// The blobs that got another rank since the last call.
    pub fn take_ranked(&mut self) -> Vec<(BlobId, Rank)> {
        std::mem::take(&mut self.ranked)
    }

    /// Records that the blob was seen on the disk. False if it was unknown.
    pub fn confirm(&mut self, id: &BlobId) -> bool {
        let found = self.lists.find(id);
        found.into_iter().for_each(|at| self.lists.slot_mut(at).confirmed = true);
        found.is_some()
    }

    /// The blobs of a former run that were not seen since.
    pub fn unconfirmed(&self) -> Vec<BlobId> {
        self.lists.slots().filter(|slot| !slot.confirmed).map(|slot| slot.id).collect()
    }

    /// All blobs, each queue from the oldest on: the order that [`Policy::restore`] expects.
    pub fn each(&self, mut each: impl FnMut(&BlobId, u32, Cost, Rank)) {
        for queue in [Queue::Main, Queue::Kept, Queue::Held, Queue::Small] {
            let rank = match queue {
                Queue::Main => Rank::Proven,
                Queue::Kept => Rank::Kept,
                Queue::Held | Queue::Small => Rank::New,
            };
            self.lists.each_of(queue, |slot| each(&slot.id, slot.size, Cost::from_code(slot.cost()), rank));
        }
    }
}
