//! What a tracker knows about one blob: which nodes have it, which nodes are fetching it, and from where.
//!
//! ```text
//!     origin ─► lease ─► a ─┬─► b ─┬─► f            holder h ─┬─► x
//!                           ├─► c  └─► g                      └─► y ───► z
//!                           ├─► d
//!                           └─► e            each fetching node has a parent; at most SLOTS children each
//! ```
//!
//! - A record takes 16 bytes. The records of fetching nodes form trees. A tree is *rooted* if its top is a
//!   holder or has the live lease. Only nodes of rooted trees are named to a requester, and never a node
//!   below the requester itself. So no node waits for itself, and every node that waits, waits for bytes that
//!   some node really receives.
//! - Nothing is repaired when a node in the middle is lost. The nodes below it are no longer rooted and are
//!   not named to anyone. They notice by themselves and ask again.

use std::collections::HashMap;

use super::names::{NOBODY, Names, No};
use base::dice::Dice;

/// Upper bound on the nodes that take a blob from one node at once.
pub const SLOTS: u16 = 4;
/// The number of candidates that are compared.
const SAMPLE: usize = 4;
/// The number of random draws that are made before all records are examined.
const DRAWS: usize = 16;
/// No node is told to wait at the end of a longer chain.
const DEEPEST: usize = 64;
/// With more records than this, an index by node is kept beside them.
const INDEXED: usize = 48;

/// Deadlines of records, in units of 2^14 microseconds (16 ms), compared modulo 2^32. Valid for 400 days in
/// each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(u32);

impl Moment {
    /// Rounds up to the unit's end, so that nothing ends early.
    pub(super) fn after(micros: u64) -> Moment {
        Moment((micros >> 14).wrapping_add(1) as u32)
    }

    fn is_over(self, now: u64) -> bool {
        ((now >> 14) as u32).wrapping_sub(self.0) as i32 >= 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) node: No,
    /// The node from which it takes the blob. [`NOBODY`] for holders and for the node with the lease.
    pub(super) parent: No,
    /// Until when a fetching node is believed to be fetching.
    until: Moment,
    pub(super) children: u16,
    pub(super) refusals: u8,
    pub(super) holds: bool,
}

/// The records of a blob in no particular order, found by node.
#[derive(Debug, Default)]
struct Records {
    copies: Vec<Copy>,
    index: Option<HashMap<No, u32>>,
}

impl Records {
    fn at(&self, node: No) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&node).map(|at| *at as usize),
            None => self.copies.iter().position(|copy| copy.node == node),
        }
    }

    fn push(&mut self, copy: Copy) {
        self.copies.push(copy);
        if let Some(index) = &mut self.index {
            index.insert(copy.node, self.copies.len() as u32 - 1);
        } else if self.copies.len() > INDEXED {
            self.index =
                Some(self.copies.iter().enumerate().map(|(at, copy)| (copy.node, at as u32)).collect());
        }
    }

    fn remove(&mut self, at: usize) -> Copy {
        let copy = self.copies.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(&copy.node);
            if let Some(moved) = self.copies.get(at) {
                index.insert(moved.node, at as u32);
            }
        }
        copy
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) id: u64,
    pub(super) node: No,
    /// When it was given, in microseconds.
    pub(super) since: u64,
    /// When it ends.
    pub(super) until: u64,
}

/// The node that is named to a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) node: No,
    pub(super) holds: bool,
    /// Another holder.
    pub(super) second: Option<No>,
}

/// A candidate in the form in which candidates are compared. The lowest is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// MiB that it has to send, plus [`CHILD`] for each node that takes this blob from it, plus [`FETCHING`]
    /// if it does not have the blob yet.
    burden: u16,
    children: u16,
    depth: u16,
    fetches: bool,
    /// A random draw, so that the first record is not named to every requester.
    draw: u16,
    at: usize,
}

#[derive(Debug, Default)]
pub(super) struct BlobState {
    records: Records,
    pub(super) lease: Option<Lease>,
    /// The last lease ended before its node was known to have the blob, and none was given since.
    pub(super) ended: bool,
    /// The first node that wanted a part of it while no node had it.
    parted: Option<No>,
    /// The blob's place in the order of questions.
    pub(super) stamp: u64,
    swept: u64,
}

/// The time between two sweeps over all records of a blob, in microseconds.
const SWEEP: u64 = 250_000;

/// What is known about the requester. It is the same for all candidates.
pub(super) struct Requester<'a> {
    pub(super) node: No,
    /// Nodes that must not be named.
    pub(super) not: &'a [No],
    /// The upstream that it follows, if it is the first to follow that node.
    pub(super) upstream: Option<No>,
    /// Microseconds.
    pub(super) now: u64,
    /// Only a part is wanted. That takes no slot.
    pub(super) part: bool,
}

impl BlobState {
    pub(super) fn len(&self) -> usize {
        self.records.copies.len()
    }

    /// A node wants a part of a blob that no node has. True if no other node wanted one before.
    pub(super) fn wants_alone(&mut self, node: No) -> bool {
        *self.parted.get_or_insert(node) == node
    }

    /// Nothing is known about the blob.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.lease.is_none() && self.parted.is_none()
    }

    pub(super) fn get(&self, node: No) -> Option<&Copy> {
        self.records.at(node).map(|at| &self.records.copies[at])
    }

    /// How many nodes have the blob, for tests.
    #[cfg(test)]
    pub(super) fn holders(&self) -> usize {
        self.records.copies.iter().filter(|copy| copy.holds).count()
    }

    /// Whether another node has the blob, as far as is known.
    pub(super) fn has_holder_beside(&self, node: No, names: &Names) -> bool {
        self.records.copies.iter().any(|copy| copy.holds && copy.node != node && !names.is_gone(copy.node))
    }

    /// The lease, if a node has the right to fetch from the origin now.
    pub(super) fn live_lease(&self, now: u64, names: &Names) -> Option<Lease> {
        self.lease.filter(|lease| lease.until > now && !names.is_gone(lease.node))
    }

    /// Records that the node has the blob. True if that is new.
    pub(super) fn holds(&mut self, node: No, names: &mut Names) -> bool {
        let Some(at) = self.records.at(node) else {
            names.hold(node);
            self.records.push(Copy {
                node,
                parent: NOBODY,
                until: Moment(0),
                children: 0,
                refusals: 0,
                holds: true,
            });
            return true;
        };
        self.free_slot(at, names);
        let copy = &mut self.records.copies[at];
        copy.refusals = 0;
        !std::mem::replace(&mut copy.holds, true)
    }

    /// Records that the node fetches the blob from `parent`, or by itself. This is believed until `until`
    /// microseconds.
    pub(super) fn fetches(&mut self, node: No, parent: No, until: u64, names: &mut Names) {
        if let Some(at) = self.records.at(parent) {
            self.records.copies[at].children += 1;
            names.add_load(parent, LOAD);
        }
        let until = Moment::after(until);
        match self.records.at(node) {
            Some(at) => {
                self.free_slot(at, names);
                let copy = &mut self.records.copies[at];
                (copy.parent, copy.until, copy.holds) = (parent, until, false);
            }
            None => {
                names.hold(node);
                self.records.push(Copy { node, parent, until, children: 0, refusals: 0, holds: false });
            }
        }
    }

    /// The node no longer takes the blob from any node.
    pub(super) fn detach(&mut self, node: No, names: &mut Names) {
        if let Some(at) = self.records.at(node) {
            self.free_slot(at, names);
        }
    }

    /// Removes everything known about the node.
    pub(super) fn remove(&mut self, node: No, names: &mut Names) {
        if let Some(at) = self.records.at(node) {
            self.free_slot(at, names);
            if self.records.remove(at).children > 0 {
                // Otherwise their slots would later be freed at the next node that gets this number.
                let orphans = self.records.copies.iter_mut().filter(|copy| copy.parent == node);
                orphans.for_each(|copy| copy.parent = NOBODY);
            }
            names.release(node);
        }
    }

    /// Removes everything.
    pub(super) fn clear(&mut self, names: &mut Names) {
        self.records.copies.iter().for_each(|copy| names.release(copy.node));
        self.records = Records::default();
    }

    /// Counts a refusal by the node and returns how many there were.
    pub(super) fn refused(&mut self, node: No) -> u8 {
        let Some(at) = self.records.at(node) else { return 0 };
        let copy = &mut self.records.copies[at];
        copy.refusals = copy.refusals.saturating_add(1);
        copy.refusals
    }

    fn free_slot(&mut self, at: usize, names: &mut Names) {
        let parent = std::mem::replace(&mut self.records.copies[at].parent, NOBODY);
        if let Some(above) = self.records.at(parent) {
            let copy = &mut self.records.copies[above];
            copy.children = copy.children.saturating_sub(1);
            names.add_load(parent, -LOAD);
        }
    }

    /// Called from time to time. Drops nodes that are gone, and nodes that have not reported since they
    /// should have had the blob.
    pub(super) fn sweep(&mut self, now: u64, names: &mut Names) {
        if now < self.swept.saturating_add(SWEEP) {
            return;
        }
        self.swept = now;
        let leased = self.live_lease(now, names).map(|lease| lease.node);
        let over = |copy: &Copy| names.is_gone(copy.node) || !copy.holds && copy.until.is_over(now);
        let lost: Vec<No> =
            self.records.copies.iter().filter(|copy| over(copy)).map(|copy| copy.node).collect();
        for node in lost.into_iter().filter(|node| Some(*node) != leased) {
            self.remove(node, names);
        }
        self.drop_ended_lease(now, names);
    }

    /// Drops a lease that is no longer live. Its node is then not known to have the blob.
    pub(super) fn drop_ended_lease(&mut self, now: u64, names: &Names) {
        let live = self.live_lease(now, names);
        self.ended |= live.is_none() && self.lease.is_some();
        self.lease = live;
    }

    /// The best of a few nodes from which the requester could take the blob. If no node has a free slot, the
    /// least loaded holder takes one more. If there is no holder, the least loaded fetching node does. A slow
    /// neighbour is better than the origin.
    pub(super) fn pick(&self, requester: &Requester<'_>, names: &Names, dice: &mut Dice) -> Option<Pick> {
        let count = self.len();
        if count == 0 {
            return None;
        }
        let mut found: Vec<Candidate> = Vec::with_capacity(SAMPLE);
        if count > DRAWS {
            let upstream = requester.upstream.and_then(|upstream| self.records.at(upstream));
            for at in upstream.into_iter().chain((0..DRAWS).map(|_| dice.below(count))) {
                let free =
                    self.candidate(at, requester, names).filter(|candidate| candidate.children < SLOTS);
                found.extend(free.filter(|free| found.iter().all(|other| other.at != free.at)));
                if found.len() == SAMPLE {
                    break;
                }
            }
        }
        if found.is_empty() {
            let start = dice.below(count);
            let all = (start..count).chain(0..start);
            let mut full: Option<Candidate> = None;
            for candidate in all.filter_map(|at| self.candidate(at, requester, names)) {
                if candidate.children < SLOTS {
                    found.push(candidate);
                    // A few records are all compared, so that no holder is overlooked.
                    if count > DRAWS && found.len() == SAMPLE {
                        break;
                    }
                } else if full.is_none_or(|best| candidate < best) {
                    full = Some(candidate);
                }
            }
            if found.is_empty() {
                found.extend(full);
            }
        }
        found.iter_mut().for_each(|candidate| candidate.draw = dice.below(1 << 16) as u16);
        found.sort_unstable();
        let first = found.first()?;
        let second = found.get(1).filter(|second| !first.fetches && !second.fetches);
        let node = |candidate: &Candidate| self.records.copies[candidate.at].node;
        Some(Pick { node: node(first), holds: !first.fetches, second: second.map(node) })
    }

    /// The record as a candidate, if it can be named to the requester.
    fn candidate(&self, at: usize, requester: &Requester<'_>, names: &Names) -> Option<Candidate> {
        let copy = self.records.copies[at];
        if copy.node == requester.node || names.is_gone(copy.node) || requester.not.contains(&copy.node) {
            return None;
        }
        let depth = self.depth(&copy, requester, names)?;
        let fetches = !copy.holds;
        let children = if requester.part { 0 } else { copy.children };
        let ahead = if fetches { FETCHING } else { 0 } + CHILD.saturating_mul(children);
        let followed = names.follower(copy.node, requester.now).is_some_and(|other| other != requester.node);
        let other = if requester.upstream == Some(copy.node) { 0 } else { OTHER };
        let other = other + if followed { FOLLOWED } else { 0 };
        let burden = names.load(copy.node).saturating_add(ahead + other);
        Some(Candidate { burden, children, depth, fetches, draw: 0, at })
    }

    /// How far the node is from a holder or the lease. None if it is not rooted, if the requester is above
    /// it, or if it is too far away.
    fn depth(&self, copy: &Copy, requester: &Requester<'_>, names: &Names) -> Option<u16> {
        let leased = self.live_lease(requester.now, names).map(|lease| lease.node);
        let mut above = *copy;
        for depth in 0..DEEPEST {
            if above.node == requester.node || names.is_gone(above.node) {
                return None;
            }
            if above.holds || Some(above.node) == leased {
                return Some(depth as u16);
            }
            if above.until.is_over(requester.now) {
                return None;
            }
            above = *self.get(above.parent)?;
        }
        None
    }

    /// Checks the invariants, for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for copy in &self.records.copies {
            let children = self.records.copies.iter().filter(|child| child.parent == copy.node).count();
            assert_eq!(usize::from(copy.children), children, "{self:?}");
            assert!(!(copy.holds && copy.parent != NOBODY), "{self:?}");
            let (mut above, mut steps) = (copy, 0);
            while let Some(parent) = self.get(above.parent) {
                (above, steps) = (parent, steps + 1);
                assert!(steps <= self.len(), "a circle: {self:?}");
            }
        }
    }
}

/// MiB. A holder that has this much more to send is named only after a node that is still fetching. Otherwise
/// the first node, which is the only holder, would send each blob once for each of its slots, and all would
/// wait for its link. The value is two blobs. A fetching node passes bytes on as they arrive, so it is little
/// worse than a holder. On fast links no node has that much to send.
pub(super) const FETCHING: u16 = 8;
/// MiB. A node that already sends this blob counts as this much busier for each receiver. Then a node that
/// got the blob from it is named instead, and the cost of a blob is spread over the nodes that have it. This
/// works even while no loads are known.
const CHILD: u16 = 8;
/// MiB. A node that is not the requester's upstream counts as this much busier. Nodes that keep one upstream
/// form a chain or a ring, in which each link carries one stream in and one out. With a new random choice for
/// each blob, some links would carry two streams at a time and others none.
const OTHER: u16 = 16;
/// MiB. A node that another node follows counts as this much busier. Otherwise two nodes would stay with one
/// upstream and get half its link each. A node without a follower is the end of a chain, and its link has
/// room.
const FOLLOWED: u16 = 8;
/// MiB that a named node is about to send.
const LOAD: i16 = 4;
