//! Eviction policies of a full disk: the node cache's own, and those that it is compared with.
//!
//! All count the same space for a blob (`cache::residency::charge`) and stay within the same budget. [`Own`]
//! is the real type. The others follow their inventors' descriptions, with bytes where these count entries:
//!
//! - [`Lru`], [`Fifo`]: by last use, by arrival.
//! - [`S3Fifo`]: a tenth of the space is for new blobs. A blob that is read more than once there moves to the
//!   main queue. Of all others only the names are kept, for as many blobs as fit into the main queue. A blob
//!   at the main queue's end that was read since is requeued, up to three times.
//! - [`Belady`]: knows the future. The blob whose next read is the latest is evicted first, and a blob that
//!   is never read again is not kept at all. With blobs of one size nothing has more hits. With different
//!   sizes the optimum would take years to compute, and this is the customary approximation.
//!
//! All blobs have the same cost here: it is one node's disk without a fleet, so a miss can only be fetched
//! from the origin. In a fleet a node's own policy knows the other holders of a blob, which the other
//! policies cannot be told. [`crate::steady`] runs it that way.

use std::collections::{BTreeSet, VecDeque};

use base::BlobId;
use cache::residency::{Cost, Policy};

use crate::trace::Trace;

/// Reads of a node in a second. They define the policy's ten seconds.
pub const READS_PER_S: usize = 50;

/// A cache that becomes full.
pub trait Evict {
    /// A read, the `at`-th of its trace. Returns whether the blob was there. Afterwards it is, if the policy
    /// keeps it.
    fn read(&mut self, at: usize, blob: u32) -> bool;
    /// A later request of the same read.
    fn again(&mut self, at: usize, blob: u32);
    /// How much space is used now.
    fn bytes(&self) -> u64;
}

/// The names of the policies, in the order of [`all`].
pub const NAMES: [&str; 5] = ["covey", "LRU", "FIFO", "S3-FIFO", "Belady"];

/// One of each.
pub fn all(trace: &Trace, budget: u64) -> [Box<dyn Evict + '_>; 5] {
    let charges = &trace.charges[..];
    [
        Box::new(Own { policy: Policy::new(budget), ids: &trace.ids, sizes: &trace.sizes }),
        Box::new(Lru::new(charges, budget)),
        Box::new(Fifo {
            queue: VecDeque::new(),
            here: vec![false; charges.len()],
            room: Room::new(charges, budget),
        }),
        Box::new(S3Fifo::new(charges, budget)),
        Box::new(Belady::new(trace, budget)),
    ]
}

/// The node cache's own policy.
pub struct Own<'t> {
    policy: Policy,
    ids: &'t [BlobId],
    sizes: &'t [u32],
}

impl Own<'_> {
    fn now(at: usize) -> u32 {
        (at / READS_PER_S) as u32
    }
}

impl Evict for Own<'_> {
    fn read(&mut self, at: usize, blob: u32) -> bool {
        let (id, size) = (&self.ids[blob as usize], self.sizes[blob as usize]);
        if self.policy.touch(id, Self::now(at)) {
            return true;
        }
        self.policy.insert(id, size, Cost::Origin, Self::now(at));
        while self.policy.bytes() > self.policy.budget() && self.policy.victim(&|_| false).is_some() {}
        self.policy.take_ranked();
        false
    }

    fn again(&mut self, at: usize, blob: u32) {
        self.policy.touch(&self.ids[blob as usize], Self::now(at));
    }

    fn bytes(&self) -> u64 {
        self.policy.bytes()
    }
}

/// The used part of a budget.
struct Room<'t> {
    charges: &'t [u64],
    budget: u64,
    taken: u64,
}

impl<'t> Room<'t> {
    fn new(charges: &'t [u64], budget: u64) -> Room<'t> {
        Room { charges, budget, taken: 0 }
    }

    fn take(&mut self, blob: u32) {
        self.taken += self.charges[blob as usize];
    }

    fn give(&mut self, blob: u32) {
        self.taken -= self.charges[blob as usize];
    }

    fn is_over(&self) -> bool {
        self.taken > self.budget
    }
}

/// By last use. The order has an entry for each use. Entries that a later use has replaced are skipped.
pub struct Lru<'t> {
    order: VecDeque<(u32, usize)>,
    /// By blob: its last use, counted from 1, or 0 if it is not here.
    used: Vec<usize>,
    uses: usize,
    room: Room<'t>,
}

impl<'t> Lru<'t> {
    fn new(charges: &'t [u64], budget: u64) -> Lru<'t> {
        Lru {
            order: VecDeque::new(),
            used: vec![0; charges.len()],
            uses: 0,
            room: Room::new(charges, budget),
        }
    }
}

impl Evict for Lru<'_> {
    fn read(&mut self, _: usize, blob: u32) -> bool {
        self.uses += 1;
        let hit = std::mem::replace(&mut self.used[blob as usize], self.uses) != 0;
        self.order.push_back((blob, self.uses));
        if !hit {
            self.room.take(blob);
        }
        while self.room.is_over()
            && let Some((old, use_)) = self.order.pop_front()
        {
            if self.used[old as usize] == use_ {
                self.used[old as usize] = 0;
                self.room.give(old);
            }
        }
        hit
    }

    fn again(&mut self, _: usize, _: u32) {}

    fn bytes(&self) -> u64 {
        self.room.taken
    }
}

/// By arrival.
pub struct Fifo<'t> {
    queue: VecDeque<u32>,
    here: Vec<bool>,
    room: Room<'t>,
}

impl Evict for Fifo<'_> {
    fn read(&mut self, _: usize, blob: u32) -> bool {
        if std::mem::replace(&mut self.here[blob as usize], true) {
            return true;
        }
        self.queue.push_back(blob);
        self.room.take(blob);
        while self.room.is_over()
            && let Some(old) = self.queue.pop_front()
        {
            self.here[old as usize] = false;
            self.room.give(old);
        }
        false
    }

    fn again(&mut self, _: usize, _: u32) {}

    fn bytes(&self) -> u64 {
        self.room.taken
    }
}

/// Where a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Gone,
    Ghost,
    Small,
    Main,
}

/// See the module.
pub struct S3Fifo<'t> {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Evicted blobs, with a number for each eviction. A blob that came back is in another state, or has a
    /// later number.
    ghosts: VecDeque<(u32, u32)>,
    left: Vec<u32>,
    stands: Vec<Stand>,
    /// Reads since it was inserted or requeued, up to [`S3Fifo::MOST`].
    reads: Vec<u8>,
    small_bytes: u64,
    ghost_bytes: u64,
    room: Room<'t>,
}

impl<'t> S3Fifo<'t> {
    const MOST: u8 = 3;

    fn new(charges: &'t [u64], budget: u64) -> S3Fifo<'t> {
        S3Fifo {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            left: vec![0; charges.len()],
            stands: vec![Stand::Gone; charges.len()],
            reads: vec![0; charges.len()],
            small_bytes: 0,
            ghost_bytes: 0,
            room: Room::new(charges, budget),
        }
    }

    fn evict(&mut self) {
        if self.small_bytes >= self.room.budget / 10 && self.evict_small() {
            return;
        }
        if !self.evict_main() {
            self.evict_small();
        }
    }

    /// Runs until one is evicted. False if all have moved on.
    fn evict_small(&mut self) -> bool {
        while let Some(blob) = self.small.pop_front() {
            let at = blob as usize;
            self.small_bytes -= self.room.charges[at];
            if self.reads[at] > 1 {
                (self.stands[at], self.reads[at]) = (Stand::Main, 0);
                self.main.push_back(blob);
                continue;
            }
            self.room.give(blob);
            self.haunt(blob);
            return true;
        }
        false
    }

    fn evict_main(&mut self) -> bool {
        while let Some(blob) = self.main.pop_front() {
            let at = blob as usize;
            if self.reads[at] > 0 {
                self.reads[at] -= 1;
                self.main.push_back(blob);
                continue;
            }
            self.stands[at] = Stand::Gone;
            self.room.give(blob);
            return true;
        }
        false
    }

    fn haunt(&mut self, blob: u32) {
        let at = blob as usize;
        self.left[at] += 1;
        self.stands[at] = Stand::Ghost;
        self.ghosts.push_back((blob, self.left[at]));
        self.ghost_bytes += self.room.charges[at];
        while self.ghost_bytes > self.room.budget / 10 * 9
            && let Some((old, leaving)) = self.ghosts.pop_front()
        {
            self.ghost_bytes -= self.room.charges[old as usize];
            if self.stands[old as usize] == Stand::Ghost && self.left[old as usize] == leaving {
                self.stands[old as usize] = Stand::Gone;
            }
        }
    }
}

impl Evict for S3Fifo<'_> {
    fn read(&mut self, at: usize, blob: u32) -> bool {
        let index = blob as usize;
        let stood = self.stands[index];
        if matches!(stood, Stand::Small | Stand::Main) {
            self.again(at, blob);
            return true;
        }
        // Space is made before it is inserted, so that it is not the first to be evicted.
        while self.room.taken + self.room.charges[index] > self.room.budget
            && !(self.small.is_empty() && self.main.is_empty())
        {
            self.evict();
        }
        self.reads[index] = 0;
        if stood == Stand::Ghost {
            self.stands[index] = Stand::Main;
            self.main.push_back(blob);
        } else {
            self.stands[index] = Stand::Small;
            self.small_bytes += self.room.charges[index];
            self.small.push_back(blob);
        }
        self.room.take(blob);
        false
    }

    fn again(&mut self, _: usize, blob: u32) {
        let reads = &mut self.reads[blob as usize];
        *reads = (*reads + 1).min(Self::MOST);
    }

    fn bytes(&self) -> u64 {
        self.room.taken
    }
}

/// See the module.
pub struct Belady<'t> {
    /// By read: when the same blob is read next.
    next: Vec<u32>,
    /// By blob: when it is read next, if it is here.
    here: Vec<u32>,
    order: BTreeSet<(u32, u32)>,
    room: Room<'t>,
}

/// Not read again.
const NEVER: u32 = u32::MAX;

impl<'t> Belady<'t> {
    fn new(trace: &'t Trace, budget: u64) -> Belady<'t> {
        let mut next = vec![NEVER; trace.reads.len()];
        let mut seen = vec![NEVER; trace.charges.len()];
        for (at, blob) in trace.reads.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut seen[*blob as usize], at as u32);
        }
        let here = vec![NEVER; trace.charges.len()];
        Belady { next, here, order: BTreeSet::new(), room: Room::new(&trace.charges, budget) }
    }
}

impl Evict for Belady<'_> {
    fn read(&mut self, at: usize, blob: u32) -> bool {
        let next = self.next[at];
        let was = std::mem::replace(&mut self.here[blob as usize], next);
        let hit = was != NEVER;
        if hit {
            self.order.remove(&(was, blob));
            self.room.give(blob);
        }
        if next == NEVER {
            return hit;
        }
        self.order.insert((next, blob));
        self.room.take(blob);
        while self.room.is_over()
            && let Some((_, last)) = self.order.pop_last()
        {
            self.here[last as usize] = NEVER;
            self.room.give(last);
        }
        hit
    }

    fn again(&mut self, _: usize, _: u32) {}

    fn bytes(&self) -> u64 {
        self.room.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Kind;
    use cache::residency::charge;

    /// A trace of blobs of one size, so that a budget is a number of blobs.
    fn trace(reads: &[u32]) -> Trace {
        let blobs = reads.iter().max().map_or(0, |last| last + 1);
        let sizes = vec![4096; blobs as usize];
        Trace {
            kind: Kind::ALL[0],
            reads: reads.to_vec(),
            ids: (0..blobs).map(crate::model::blob_id).collect(),
            charges: sizes.iter().map(|size| charge(*size)).collect(),
            sizes,
        }
    }

    fn hits(reads: &[u32], room: u64) -> [Vec<u32>; 5] {
        let trace = trace(reads);
        all(&trace, room * charge(4096)).map(|mut policy| {
            let hit = |(at, blob): (usize, &u32)| policy.read(at, *blob).then_some(at as u32);
            reads.iter().enumerate().filter_map(hit).collect()
        })
    }

    #[test]
    fn each_policy_does_what_its_name_says() {
        // With room for three: the fourth blob evicts 0 by arrival, and 1 by last use.
        let [_, lru, fifo, _, belady] = hits(&[0, 1, 2, 0, 3, 0, 1, 2], 3);
        assert_eq!(lru, [3, 5]);
        assert_eq!(fifo, [3]);
        // 3 is never read again, so it is not kept.
        assert_eq!(belady, [3, 5, 6, 7]);
    }

    #[test]
    fn textbook_s3_fifo_keeps_what_was_read_twice_through_a_scan() {
        let mut reads: Vec<u32> = (0..5).collect();
        reads.extend((0..5).chain(0..5));
        reads.extend(100..200);
        let then = reads.len() as u32;
        reads.extend(0..5);
        let [_, lru, fifo, s3, _] = hits(&reads, 20);
        let late = |hits: &[u32]| hits.iter().filter(|at| **at >= then).count();
        assert_eq!((late(&lru), late(&fifo), late(&s3)), (0, 0, 5));
    }

    #[test]
    fn a_ghost_comes_back_to_the_main_queue() {
        let mut reads: Vec<u32> = (0..30).collect();
        // 5 left the small queue a short while ago. After another scan it is still there.
        reads.push(5);
        reads.extend(40..60);
        reads.push(5);
        let [_, _, _, s3, _] = hits(&reads, 20);
        assert_eq!(s3, [reads.len() as u32 - 1]);
    }

    #[test]
    fn no_policy_exceeds_the_budget_or_beats_the_future() {
        for kind in [Kind::ALL[1], Kind::ALL[4]] {
            let mut trace = Trace::new(kind, 60_000, 3);
            trace.charges.iter_mut().for_each(|bytes| *bytes = charge(4 << 20));
            trace.sizes.iter_mut().for_each(|size| *size = 4 << 20);
            let budget = 2_000 * charge(4 << 20);
            let hits = all(&trace, budget).map(|mut policy| {
                let hits = trace.reads.iter().enumerate().filter(|(at, blob)| {
                    let hit = policy.read(*at, **blob);
                    policy.again(*at, **blob);
                    assert!(policy.bytes() <= budget);
                    hit
                });
                hits.count()
            });
            let [rest @ .., belady] = hits;
            assert!(rest.iter().all(|hits| *hits > 0 && *hits < belady), "{hits:?}");
        }
    }
}
