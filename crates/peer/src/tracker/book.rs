//! What a tracker knows of one blob: who has it, who is fetching it, and from whom.
//!
//! ```text
//!     origin ─► lease ─► a ─┬─► b ─┬─► f            holder h ─┬─► x
//!                           ├─► c  └─► g                      └─► y ───► z
//!                           ├─► d
//!                           └─► e            each node that fetches names its parent; at most SLOTS children each
//! ```
//!
//! - A record is 16 bytes. Records of nodes that fetch form trees. A tree is *rooted* if its top is a holder or has the live lease; only nodes of rooted
//!   trees are ever named to an asker, and never one below the asker itself. So nobody waits for himself, and whoever waits, waits for bytes that
//!   somebody really gets.
//! - Nothing is repaired when a node in the middle is lost: those below are not rooted any more, are named to nobody, notice by themselves and ask again.

use std::collections::HashMap;

use super::names::{NOBODY, Names, No};
use crate::dice::Dice;

/// So many nodes at once take a blob from one node.
pub const SLOTS: u16 = 4;
/// So many candidates are compared.
const SAMPLE: usize = 4;
/// So many random draws before all records are looked at.
const DRAWS: usize = 16;
/// Nobody is told to wait at the end of a longer chain.
const DEEPEST: usize = 64;
/// From so many records on an index by node stands beside them.
const INDEXED: usize = 48;

/// Deadlines of records in units of 2^14 microseconds (16 ms), compared modulo 2^32: right for 400 days each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(u32);

impl Moment {
    /// The unit's end, so that nothing ends early.
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
    /// From whom it takes the blob; [`NOBODY`] for holders and who has the lease.
    pub(super) parent: No,
    /// Whoever fetches is believed to until then.
    until: Moment,
    pub(super) children: u16,
    pub(super) refusals: u8,
    pub(super) holds: bool,
}

/// The records of a blob in no order, found by node.
#[derive(Debug, Default)]
struct Crowd {
    copies: Vec<Copy>,
    index: Option<HashMap<No, u32>>,
}

impl Crowd {
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
    /// When it was given, microseconds.
    pub(super) since: u64,
    /// When it ends.
    pub(super) until: u64,
}

/// Who is named to an asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) node: No,
    pub(super) holds: bool,
    /// Another holder.
    pub(super) second: Option<No>,
}

/// A candidate as it is compared: the lower the better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// MiB that it has to send, [`CHILD`] for each who takes this blob from it, and [`FETCHING`] if it does not have the blob yet.
    burden: u16,
    children: u16,
    depth: u16,
    fetches: bool,
    /// A draw: who is first in the book is not for that reason named to everybody.
    draw: u16,
    at: usize,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    crowd: Crowd,
    pub(super) lease: Option<Lease>,
    /// The first node that wanted a part of it while nobody had it.
    parted: Option<No>,
    /// Its place in the order of asking.
    pub(super) stamp: u64,
    swept: u64,
}

/// How long between two looks at all records of a blob, in microseconds.
const SWEEP: u64 = 250_000;

/// The askers' circumstances, the same for all candidates.
pub(super) struct Asker<'a> {
    pub(super) node: No,
    /// Not these.
    pub(super) not: &'a [No],
    /// Whom it follows: who sends it most, and nobody else as much.
    pub(super) sender: Option<No>,
    /// Microseconds.
    pub(super) now: u64,
    /// A part is wanted: that takes no slot.
    pub(super) part: bool,
}

impl Book {
    pub(super) fn len(&self) -> usize {
        self.crowd.copies.len()
    }

    /// A node wants a part of what nobody has. True if no other node wanted one before.
    pub(super) fn wants_alone(&mut self, node: No) -> bool {
        *self.parted.get_or_insert(node) == node
    }

    /// Nothing is known of the blob.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.lease.is_none() && self.parted.is_none()
    }

    pub(super) fn get(&self, node: No) -> Option<&Copy> {
        self.crowd.at(node).map(|at| &self.crowd.copies[at])
    }

    /// The lease, if somebody has the right to fetch from the origin now.
    pub(super) fn live_lease(&self, now: u64, names: &Names) -> Option<Lease> {
        self.lease.filter(|lease| lease.until > now && !names.is_gone(lease.node))
    }

    /// The node has the blob. True if that is new.
    pub(super) fn holds(&mut self, node: No, names: &mut Names) -> bool {
        let Some(at) = self.crowd.at(node) else {
            names.hold(node);
            self.crowd.push(Copy {
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
        let copy = &mut self.crowd.copies[at];
        copy.refusals = 0;
        !std::mem::replace(&mut copy.holds, true)
    }

    /// The node fetches the blob from `parent`, or by itself, and is believed to until `until` microseconds.
    pub(super) fn fetches(&mut self, node: No, parent: No, until: u64, names: &mut Names) {
        if let Some(at) = self.crowd.at(parent) {
            self.crowd.copies[at].children += 1;
            names.add_load(parent, LOAD);
        }
        let until = Moment::after(until);
        match self.crowd.at(node) {
            Some(at) => {
                self.free_slot(at, names);
                let copy = &mut self.crowd.copies[at];
                (copy.parent, copy.until, copy.holds) = (parent, until, false);
            }
            None => {
                names.hold(node);
                self.crowd.push(Copy { node, parent, until, children: 0, refusals: 0, holds: false });
            }
        }
    }

    /// The node takes it from nobody any more.
    pub(super) fn detach(&mut self, node: No, names: &mut Names) {
        if let Some(at) = self.crowd.at(node) {
            self.free_slot(at, names);
        }
    }

    /// Nothing is known of the node any more.
    pub(super) fn remove(&mut self, node: No, names: &mut Names) {
        if let Some(at) = self.crowd.at(node) {
            self.free_slot(at, names);
            if self.crowd.remove(at).children > 0 {
                // Their slots must not be freed at whoever bears this number next.
                let orphans = self.crowd.copies.iter_mut().filter(|copy| copy.parent == node);
                orphans.for_each(|copy| copy.parent = NOBODY);
            }
            names.release(node);
        }
    }

    /// Removes everything.
    pub(super) fn clear(&mut self, names: &mut Names) {
        self.crowd.copies.iter().for_each(|copy| names.release(copy.node));
        self.crowd = Crowd::default();
    }

    /// One more was refused by it; says how often that has happened.
    pub(super) fn refused(&mut self, node: No) -> u8 {
        let Some(at) = self.crowd.at(node) else { return 0 };
        let copy = &mut self.crowd.copies[at];
        copy.refusals = copy.refusals.saturating_add(1);
        copy.refusals
    }

    fn free_slot(&mut self, at: usize, names: &mut Names) {
        let parent = std::mem::replace(&mut self.crowd.copies[at].parent, NOBODY);
        if let Some(above) = self.crowd.at(parent) {
            let copy = &mut self.crowd.copies[above];
            copy.children = copy.children.saturating_sub(1);
            names.add_load(parent, -LOAD);
        }
    }

    /// Now and then: drops who is gone, and who has not been heard of since it was to have the blob.
    pub(super) fn sweep(&mut self, now: u64, names: &mut Names) {
        if now < self.swept.saturating_add(SWEEP) {
            return;
        }
        self.swept = now;
        let leased = self.live_lease(now, names).map(|lease| lease.node);
        let over = |copy: &Copy| names.is_gone(copy.node) || !copy.holds && copy.until.is_over(now);
        let lost: Vec<No> =
            self.crowd.copies.iter().filter(|copy| over(copy)).map(|copy| copy.node).collect();
        for node in lost.into_iter().filter(|node| Some(*node) != leased) {
            self.remove(node, names);
        }
        self.lease = self.live_lease(now, names);
    }

    /// The best of a few that the asker could take it from. Where nobody has a free slot, the least loaded holder takes one more,
    /// and where there is no holder the least loaded who fetches: rather a slow neighbour than the origin.
    pub(super) fn pick(&self, asker: &Asker<'_>, names: &Names, dice: &mut Dice) -> Option<Pick> {
        let count = self.len();
        if count == 0 {
            return None;
        }
        let mut found: Vec<Candidate> = Vec::with_capacity(SAMPLE);
        if count > DRAWS {
            let sender = asker.sender.and_then(|sender| self.crowd.at(sender));
            for at in sender.into_iter().chain((0..DRAWS).map(|_| dice.below(count))) {
                let free = self.candidate(at, asker, names).filter(|candidate| candidate.children < SLOTS);
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
            for candidate in all.filter_map(|at| self.candidate(at, asker, names)) {
                if candidate.children < SLOTS {
                    found.push(candidate);
                    // Few are all compared: so a holder is not overlooked.
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
        let node = |candidate: &Candidate| self.crowd.copies[candidate.at].node;
        Some(Pick { node: node(first), holds: !first.fetches, second: second.map(node) })
    }

    /// The record as a candidate, if it can be named to the asker.
    fn candidate(&self, at: usize, asker: &Asker<'_>, names: &Names) -> Option<Candidate> {
        let copy = self.crowd.copies[at];
        if copy.node == asker.node || names.is_gone(copy.node) || asker.not.contains(&copy.node) {
            return None;
        }
        let depth = self.depth(&copy, asker, names)?;
        let fetches = !copy.holds;
        let children = if asker.part { 0 } else { copy.children };
        let ahead = if fetches { FETCHING } else { 0 } + CHILD.saturating_mul(children);
        let followed = names.follower(copy.node, asker.now).is_some_and(|other| other != asker.node);
        let other = if asker.sender == Some(copy.node) { 0 } else { OTHER };
        let other = other + if followed { FOLLOWED } else { 0 };
        let burden = names.load(copy.node).saturating_add(ahead + other);
        Some(Candidate { burden, children, depth, fetches, draw: 0, at })
    }

    /// How far it is from a holder or the lease; none if it is not rooted, if the asker is above it, or if it is too far.
    fn depth(&self, copy: &Copy, asker: &Asker<'_>, names: &Names) -> Option<u16> {
        let leased = self.live_lease(asker.now, names).map(|lease| lease.node);
        let mut above = *copy;
        for depth in 0..DEEPEST {
            if above.node == asker.node || names.is_gone(above.node) {
                return None;
            }
            if above.holds || Some(above.node) == leased {
                return Some(depth as u16);
            }
            if above.until.is_over(asker.now) {
                return None;
            }
            above = *self.get(above.parent)?;
        }
        None
    }

    /// What must always be true of it, for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for copy in &self.crowd.copies {
            let children = self.crowd.copies.iter().filter(|child| child.parent == copy.node).count();
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

/// MiB: who has so much more to send than one that is still fetching is named after it. Else the node that is ahead of the others, and so the only holder,
/// sends each blob once for each of its slots, and all wait for its link. Two blobs: what is still coming is passed on as it comes, so it is little worse
/// than what is here; and where links are fast, nobody has as much to send.
pub(super) const FETCHING: u16 = 8;
/// MiB: so much busier is taken to be who sends this very blob to one already. Whoever gets it from him is named instead, and what a blob costs is spread
/// over those who have it, also while nobody knows how busy they are.
const CHILD: u16 = 8;
/// MiB: so much busier is taken to be whom the asker does not follow. Nodes that keep to one sender form a row or a ring, in which each line
/// carries one stream in and one out. Drawn anew for each blob, some lines would carry two at a time and others none.
const OTHER: u16 = 16;
/// MiB: so much busier is taken to be whom another follows: else two would stay with one sender, and have half its line each. Whom nobody follows is the end of a
/// row, and has a line to spare.
const FOLLOWED: u16 = 8;
/// MiB that whoever is named is about to send.
const LOAD: i16 = 4;
