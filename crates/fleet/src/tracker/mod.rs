//! The tracker: one node knows which nodes have the blobs of a group and which are fetching them, and answers
//! where to get them.
//!
//! It is a value without I/O. The caller passes the time, what the other nodes say, and which nodes are gone.
//! The same code runs in a node and in the simulation.
//!
//! For each blob in a question, the first of these rules that applies gives the answer:
//!
//! 1. The requester already has the live lease (its answer was lost, or it takes longer): the same **lease**,
//!    renewed.
//! 2. **Serve**, if the tracker has the blob itself and a free slot, does not have much else to send, no
//!    other node follows it, and the requester's upstream does not have the blob.
//! 3. Other nodes have it, or are fetching it and will have it: the least busy of up to four random ones with
//!    a free slot. Some count as a little busier than they are: a node that is still fetching the blob, a
//!    node that already sends it to another, a node that is not the requester's upstream, and a node that
//!    another node follows. If the chosen one has the blob: **go** there (and to the second holder of the
//!    four, if the first is slow). If it is fetching the blob: **wait** there.
//! 4. All slots are taken: the same with the least busy of all, beyond the number of slots.
//! 5. No node has it or fetches it, or the requester got errors from all that do: a **lease**. An earlier
//!    lease of another node ends.
//!
//! If the requester wants only **a part** of a blob, the answers are the same, and nothing is recorded. The
//! requester takes no slot, and no node is sent to it, because it will not have the blob. If no node has the
//! blob, the first node that wants a part gets NOT MINE and takes the part from elsewhere: one node that
//! reads a little is no reason to fetch the whole. A second node that wants a part of it gets a normal lease:
//! it fetches the whole blob for all.
//!
//! A node **follows** its upstream, the node that sends it the most, and says so in each question. If several
//! nodes follow the same node, the first counts, until it follows another or has not said so for a while.
//! Nodes that read the same data in the same order thus form a chain, and those that begin at different
//! places form a ring. Each link then carries one stream in and one out, which is the most there is to have.
//! Two nodes with the same upstream get half a link each, and so do all nodes behind them.
//!
//! Invariants:
//!
//! - Every blob in a question gets an answer, at once.
//! - A blob has at most one live lease. A lease ends when its node has the blob, has failed, is refused
//!   twice, is gone, or is late.
//! - No requester is sent to itself, to a node that it excluded, to a node that is gone, or to a node that
//!   waits for the requester ([`blob_state`]).
//! - Memory is bounded ([`Limits`]). The blob that was asked about longest ago is forgotten first. That costs
//!   at most another fetch.
//!
//! A slot is taken when a node is named. It is freed by the requester's next message about that blob (it has
//! it, was refused, asks again), or by time. A node says in its own questions how busy it is. In between, the
//! tracker adds the work that it gave to the node, and much more if a requester got nothing there. So a node
//! that died is hardly named any more, even before the membership knows. All of this fades within seconds.
//! That nothing has arrived *yet* does not count as a refusal: the only holder of a blob still has it, even
//! if it is slow.

mod blob_state;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use base::BlobId;

use crate::plan::Window;
use base::dice::Dice;
use blob_state::{BlobState, FETCHING, Lease, Pick, Requester};
use names::{NOBODY, Names, No};
use net::id::NodeId;
use net::message::{Answer, Ask, Note, What};

pub use blob_state::SLOTS;

/// After this many refusals the tracker does not believe that a node has the blob or is fetching it.
pub const REFUSALS: u8 = 2;

/// MiB. A node that refused, or is silent, is taken to be this much busier.
const PENALTY: i16 = 1_024;

/// The minimum length of a lease. With a shorter one, a brief network delay would cost a second fetch.
const LEASE_LEAST: Duration = Duration::from_millis(250);
/// The maximum length. A node that has got nothing by then should try the origin itself.
const LEASE_MOST: Duration = Duration::from_secs(30);
/// A node that was sent to a source is believed to be fetching for this many times the length of a lease.
const BELIEF: u64 = 4;
/// The assumed time of a fetch from the origin before one was seen.
const ASSUMED: Duration = Duration::from_millis(333);

/// How much a tracker may remember.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blobs.
    pub blobs: usize,
    /// Records of nodes that have a blob or are fetching it, in total. A record takes 16 bytes, or 28 if a
    /// blob has many.
    pub copies: usize,
}

impl Default for Limits {
    /// About 150 MiB when full.
    fn default() -> Limits {
        Limits { blobs: 500_000, copies: 4_000_000 }
    }
}

/// What a tracker has done and knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// SERVE answers.
    pub served: u64,
    /// GO answers.
    pub sent: u64,
    /// LEASE answers.
    pub leased: u64,
    /// Of these, leases for a blob that other nodes have or are fetching, because the requester could reach
    /// none of them.
    pub overtaken: u64,
    /// Of these, leases after one that ended before its node was known to have the blob.
    pub expired: u64,
    /// WAIT answers.
    pub waited: u64,
    /// Answers that named a node although all slots were taken.
    pub crowded: u64,
    /// Blobs forgotten for lack of space.
    pub forgotten: u64,
    /// Blobs known now.
    pub blobs: u64,
    /// Records now.
    pub copies: u64,
}

impl Counts {
    /// Leases for a blob that had been leased before, or that other nodes have. Each may have cost one more
    /// fetch from the origin.
    pub fn again(&self) -> u64 {
        self.expired + self.overtaken
    }
}

/// See the module.
#[derive(Debug)]
pub struct Tracker {
    own: NodeId,
    limits: Limits,
    dice: Dice,
    names: Names,
    states: HashMap<BlobId, BlobState>,
    /// Blobs in the order of the last question.
    order: BTreeMap<u64, BlobId>,
    stamp: u64,
    /// When loads last faded, in microseconds.
    faded: u64,
    /// Where the next tick continues.
    cursor: u64,
    leases: u64,
    copies: usize,
    fetches: Window,
    counts: Counts,
}

impl Tracker {
    /// A tracker that knows nothing. `seed` determines its choices and the ids of its leases. In a node it is
    /// random.
    pub fn new(own: NodeId, seed: u64, limits: Limits) -> Tracker {
        Tracker {
            own,
            limits,
            dice: Dice::new(seed),
            names: Names::default(),
            states: HashMap::new(),
            order: BTreeMap::new(),
            stamp: 0,
            faded: 0,
            cursor: 0,
            // A lease of an earlier run must not be mistaken for one of this run.
            leases: seed << 32,
            copies: 0,
            fetches: Window::new(ASSUMED),
            counts: Counts::default(),
        }
    }

    /// Answers a question: one answer for each of its blobs, in their order. `now` is in microseconds from
    /// any starting point and never goes backwards. `held` says whether this node has a blob itself.
    pub fn ask(&mut self, now: u64, from: NodeId, ask: &Ask, held: &dyn Fn(&BlobId) -> bool) -> Vec<Answer> {
        let requester = self.names.heard(from, now);
        self.names.set_load(requester, ask.backlog);
        // Before `not` is resolved, which may contain this node.
        self.names.number(self.own);
        let not: Vec<No> = ask.not.iter().filter_map(|node| self.names.find(node)).collect();
        let upstream = ask.sender.and_then(|node| self.names.find(&node));
        // A request for a part names no upstream, and does not change which node the requester follows.
        let follows = !ask.part && self.names.follows(requester, upstream, now);
        let upstream = upstream.filter(|_| follows);
        let requester = Requester { node: requester, not: &not, upstream, now, part: ask.part };
        ask.blobs.iter().map(|blob| self.answer(&requester, *blob, held(blob))).collect()
    }

    /// A node has at least this many MiB to send, according to another source. A node calls it for itself
    /// before each answer.
    pub fn raise_load(&mut self, node: NodeId, mib: u16) {
        let no = self.names.number(node);
        let load = self.names.load(no).max(mib);
        self.names.set_load(no, load);
    }

    fn answer(&mut self, requester: &Requester<'_>, blob: BlobId, held: bool) -> Answer {
        let own = self.names.number(self.own);
        self.touch(blob);
        let state = self.states.entry(blob).or_default();
        let before = state.len();
        state.sweep(requester.now, &mut self.names);
        if held {
            state.holds(own, &mut self.names);
        } else if state.get(own).is_some_and(|copy| copy.holds) {
            state.remove(own, &mut self.names);
        }
        let time = (self.fetches.p99() * 3).clamp(LEASE_LEAST, LEASE_MOST);
        let live = state.live_lease(requester.now, &self.names);
        let answer = match live.filter(|lease| lease.node == requester.node) {
            Some(lease) => {
                state.lease = Some(Lease { until: requester.now + micros(time), ..lease });
                self.counts.leased += 1;
                Answer::Lease { lease: lease.id, time }
            }
            None => {
                if !requester.part {
                    state.detach(requester.node, &mut self.names);
                }
                let pick = self.choose(requester, blob, own, held);
                match pick {
                    Some(pick) => self.send(requester, blob, pick, own, live, time),
                    None if requester.part
                        && self.states.entry(blob).or_default().wants_alone(requester.node) =>
                    {
                        Answer::NotMine
                    }
                    None => self.lease(requester, blob, live, time),
                }
            }
        };
        let after = self.states.get(&blob).map_or(0, BlobState::len);
        self.copies = (self.copies + after).saturating_sub(before);
        self.make_room(blob);
        answer
    }

    /// Which node to name: this node if it has the blob and a free slot, otherwise the best of a few.
    fn choose(&mut self, requester: &Requester<'_>, blob: BlobId, own: No, held: bool) -> Option<Pick> {
        let state = self.states.get(&blob)?;
        let serves = held && requester.node != own && !requester.not.contains(&own);
        let idle = self.names.load(own) < FETCHING;
        let another =
            requester.upstream.is_some_and(|upstream| upstream != own && state.get(upstream).is_some());
        let followed = self.names.follower(own, requester.now).is_some_and(|other| other != requester.node);
        if serves
            && idle
            && !another
            && !followed
            && state.get(own).is_some_and(|copy| requester.part || copy.children < SLOTS)
        {
            return Some(Pick { node: own, holds: true, second: None });
        }
        state.pick(requester, &self.names, &mut self.dice)
    }

    fn send(
        &mut self,
        requester: &Requester<'_>,
        blob: BlobId,
        pick: Pick,
        own: No,
        live: Option<Lease>,
        time: Duration,
    ) -> Answer {
        let state = self.states.entry(blob).or_default();
        if !requester.part {
            let full = state.get(pick.node).is_some_and(|copy| copy.children >= SLOTS);
            self.counts.crowded += u64::from(full);
            state.fetches(requester.node, pick.node, requester.now + BELIEF * micros(time), &mut self.names);
        }
        if !pick.holds {
            self.counts.waited += 1;
            let left = live.map(|lease| Duration::from_micros(lease.until - requester.now));
            return Answer::Wait { parent: self.names.node(pick.node), time: left.unwrap_or(time) };
        }
        if pick.node == own {
            self.counts.served += 1;
            return Answer::Serve;
        }
        self.counts.sent += 1;
        let second = pick.second.map(|second| self.names.node(second));
        Answer::Go { first: self.names.node(pick.node), second }
    }

    fn lease(
        &mut self,
        requester: &Requester<'_>,
        blob: BlobId,
        live: Option<Lease>,
        time: Duration,
    ) -> Answer {
        self.counts.leased += 1;
        self.leases = self.leases.wrapping_add(1);
        let state = self.states.entry(blob).or_default();
        let overtakes = live.is_some() || state.has_holder_beside(requester.node, &self.names);
        self.counts.overtaken += u64::from(overtakes);
        state.drop_ended_lease(requester.now, &self.names);
        self.counts.expired += u64::from(std::mem::take(&mut state.ended) && !overtakes);
        state.fetches(requester.node, NOBODY, requester.now + BELIEF * micros(time), &mut self.names);
        let until = requester.now + micros(time);
        state.lease = Some(Lease { id: self.leases, node: requester.node, since: requester.now, until });
        Answer::Lease { lease: self.leases, time }
    }

    /// Processes a note. If a node has a blob that nobody asked about, the blob is remembered too. So a new
    /// tracker learns which blobs exist.
    pub fn note(&mut self, now: u64, from: NodeId, note: &Note) {
        let has = matches!(note.what, What::Have | What::Fetching);
        if !self.states.contains_key(&note.blob) {
            if !has {
                return;
            }
            self.touch(note.blob);
        }
        let from = self.names.heard(from, now);
        let Tracker { states, names, fetches, copies, .. } = self;
        let state = states.entry(note.blob).or_default();
        let before = state.len();
        match note.what {
            What::Have => {
                if let Some(lease) = state.lease.take_if(|lease| lease.node == from) {
                    fetches.record(Duration::from_micros(now.saturating_sub(lease.since)));
                }
                state.ended = false;
                state.holds(from, names);
            }
            // The node passes on what arrives. If its fetch fails, it refuses. A node whose lease is known
            // here is already recorded as fetching.
            What::Fetching => {
                if state.lease.is_none_or(|lease| lease.node != from) {
                    state.holds(from, names);
                }
            }
            What::Gone => {
                if state.get(from).is_some_and(|copy| copy.holds) {
                    state.remove(from, names);
                }
            }
            What::Failed { lease: id } => {
                if state.lease.take_if(|lease| lease.node == from && lease.id == id).is_some() {
                    state.remove(from, names);
                }
            }
            What::Refused { by } => Self::refused(state, from, &by, names),
            What::Silent { by } => {
                // The silent node keeps its blob and its lease. If two nodes in its queue could declare a
                // slow node dead, and it is the only holder of a blob, every node would fetch the blob again.
                if let Some(by) = names.find(&by).filter(|by| *by != from) {
                    names.add_load(by, PENALTY);
                }
            }
        }
        *copies = (*copies + state.len()).saturating_sub(before);
        self.make_room(note.blob);
    }

    fn refused(state: &mut BlobState, from: No, by: &NodeId, names: &mut Names) {
        let Some(by) = names.find(by).filter(|by| *by != from) else { return };
        // For all blobs, until the node itself says how busy it is. A dead node says nothing any more.
        names.add_load(by, PENALTY);
        if state.get(from).is_some_and(|copy| copy.parent == by) {
            state.detach(from, names);
        }
        if state.refused(by) >= REFUSALS {
            state.remove(by, names);
            state.lease = state.lease.filter(|lease| lease.node != by);
        }
    }

    /// The membership says that a node is gone. No requester is sent there any more, and its leases are free.
    /// If it returns, it is known by its later messages.
    pub fn member_gone(&mut self, node: &NodeId) {
        if *node != self.own {
            self.names.forget(node);
        }
    }

    /// To be called about once a second or more often. Drops expired records, for a part of the blobs each
    /// time.
    pub fn tick(&mut self, now: u64) {
        if now >= self.faded + FADING {
            self.faded = now;
            self.names.fade();
            self.names.forget_idle(now, &self.own);
        }
        let part: Vec<(u64, BlobId)> =
            self.order.range(self.cursor..).take(TICK).map(|(stamp, blob)| (*stamp, *blob)).collect();
        self.cursor = part.last().filter(|_| part.len() == TICK).map_or(0, |(stamp, _)| stamp + 1);
        for (stamp, blob) in part {
            let Some(state) = self.states.get_mut(&blob) else { continue };
            let before = state.len();
            state.sweep(now, &mut self.names);
            self.copies = self.copies.saturating_sub(before - state.len());
            if state.is_empty() {
                self.states.remove(&blob);
                self.order.remove(&stamp);
            }
        }
    }

    /// What it has done so far and knows now.
    pub fn counts(&self) -> Counts {
        Counts { blobs: self.states.len() as u64, copies: self.copies as u64, ..self.counts }
    }

    /// How many nodes are known to have the blob, for tests.
    #[cfg(test)]
    pub(crate) fn holders(&self, blob: &BlobId) -> usize {
        self.states.get(blob).map_or(0, BlobState::holders)
    }

    /// How long a lease lasts now: three times the p99 of fetches.
    pub fn lease_time(&self) -> Duration {
        (self.fetches.p99() * 3).clamp(LEASE_LEAST, LEASE_MOST)
    }

    /// Makes the blob the most recently mentioned one.
    fn touch(&mut self, blob: BlobId) {
        self.stamp += 1;
        let state = self.states.entry(blob).or_default();
        self.order.remove(&state.stamp);
        state.stamp = self.stamp;
        self.order.insert(self.stamp, blob);
    }

    /// Forgets the blobs that were mentioned longest ago, never `kept`, until the limits are met.
    fn make_room(&mut self, kept: BlobId) {
        while self.states.len() > self.limits.blobs || self.copies > self.limits.copies {
            let Some((stamp, blob)) = self.order.iter().next().map(|(stamp, blob)| (*stamp, *blob)) else {
                return;
            };
            if blob == kept {
                return;
            }
            self.order.remove(&stamp);
            if let Some(mut state) = self.states.remove(&blob) {
                self.copies = self.copies.saturating_sub(state.len());
                state.clear(&mut self.names);
                self.counts.forgotten += 1;
            }
        }
    }
}

/// How often loads fade, in microseconds.
const FADING: u64 = 1_000_000;
/// How many blobs one tick looks at.
const TICK: usize = 1_024;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 16)
}
