//! A part of a blob, for whoever reads a little of it: asked of a node that has it, and served before the rest has come.
//!
//! One rule says what comes whole, on a node that is alone and in a fleet: the cache's (`cache::node::partial`). A part comes here:
//!
//! ```text
//!   on its way here already ──────────────────► as soon as the bytes are there
//!   the first tracker: SERVE, GO ─────────────► groups of 64 KiB and the blob's sums from that node, then the second
//!                      WAIT ──────────────────► the same from the node that is fetching it, when they are there
//!                      NOT MINE ──────────────► from the depot or the origin: no other node wanted a part of it yet
//!                      LEASE ─► where there is a depot: given back, and the same from the depot
//!                               else: the whole is fetched behind, for everybody; the part is had from the origin meanwhile
//!   no answer, no luck ───────────────────────► the whole, by the plan
//! ```
//!
//! - **From a node nothing follows**: who looks at one page of a blob that the zone has moves little more than that page.
//! - **From a depot neither**: it fetches the whole for the zone, and gives a part to each who asks. That every such reader brought the whole over his own
//!   line would make his next read wait for it: with one reader on 200 Mbit/s, 182 ms for 128 KiB instead of some ten.
//! - **With the lease and no depot the rest follows**, because whoever asks next is told to wait for this node, and because one part from the origin for
//!   each of many nodes is dearer than the whole for all. The lease is given to the second node that wants a part: a node that reads at random what
//!   nobody else reads fetches parts only. So the origin is asked for the whole once, and for parts by one node before that.
//! - A part is checked with the blob's own sums, which lead to its name, like everything that is kept ([`crate::net::Net::read_groups`]).
//! - A part has no plan: each step has its time, and what does not come in it is left to the plan of the whole, which never gives up.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::BlobId;
use base::phase::{self, Phase};
use base::size::{BLOB_MAX, GROUP};
use blob::{BlobError, Part};

use super::Inner;
use super::counters::Counters;
use super::transit::Seat;
use crate::arriving::Arriving;
use crate::id::NodeId;
use crate::message::{Answer, Ask, Note, What};
use crate::net::Fail;
use crate::plan::Pace;

/// So many blobs are fetched at a time behind their parts: each takes a thread, and 4 MiB until the cache has it.
const FOLLOWING: usize = 8;
/// No step waits longer for a node: the plan of the whole has its own time after it. So long it is only where dozens are wanted at once
/// ([`Inner::pace`]): 256 parts of 192 KiB take two seconds of a line of 200 Mbit/s, and a whole in the place of each that is late would take twenty times that.
const STEP_MOST: Duration = Duration::from_secs(8);

/// Where a part is had.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// From these, which have it, one after the other, each in this time.
    Nodes(Vec<NodeId>, Duration),
    /// From this one, which is fetching it.
    Coming(NodeId, Duration),
    /// This node is to fetch the blob, and this is its right to.
    Lease(u64),
    /// From the depot or the origin: nobody else wants it.
    Alone,
    /// The tracker did not answer.
    Nowhere,
}

impl Told {
    /// What a tracker's answer means. What a node that is itself still waiting has to wait for comes from the origin.
    fn of(answer: Option<Answer>, tracker: NodeId, own: NodeId, pace: &Pace) -> Told {
        let nodes = |nodes: &[Option<NodeId>]| {
            let others = nodes.iter().flatten().copied().filter(|node| *node != own).collect();
            Told::Nodes(others, pace.peer.min(STEP_MOST))
        };
        match answer {
            Some(Answer::Serve) => nodes(&[Some(tracker)]),
            Some(Answer::Go { first, second }) => nodes(&[Some(first), second]),
            Some(Answer::Wait { parent, .. }) => {
                Told::Coming(parent, pace.stream.max(pace.origin).min(STEP_MOST))
            }
            Some(Answer::Lease { lease, .. }) => Told::Lease(lease),
            Some(Answer::NotMine) => Told::Alone,
            None => Told::Nowhere,
        }
    }
}

/// What is wanted.
#[derive(Clone, Copy)]
struct Wanted {
    id: BlobId,
    offset: u32,
    len: u32,
}

impl Wanted {
    /// The groups that it lies in, in a blob of this size; none if it does not lie in it.
    fn groups(&self, size: u32) -> Option<(u32, u32)> {
        let end = self.offset.checked_add(self.len).filter(|end| *end <= size)?;
        Some((self.offset - self.offset % GROUP, end.next_multiple_of(GROUP).min(size)))
    }
}

impl Inner {
    /// At least these bytes of a blob; `len` is at least 1.
    pub(super) fn obtain_part(
        self: &Arc<Inner>,
        id: &BlobId,
        offset: u32,
        len: u32,
    ) -> Result<Part, BlobError> {
        let wanted = Wanted { id: *id, offset, len };
        if wanted.groups(BLOB_MAX).is_some() && len > 0 {
            let _phase = phase::enter(Phase::Peer);
            self.parts.fetch_add(1, Ordering::Relaxed);
            let part = match self.transit.board(id) {
                Seat::Passenger(arriving) => self.part_of_coming(&arriving, wanted),
                Seat::Pilot(arriving) => self.part_from_elsewhere(arriving, wanted),
            };
            self.parts.fetch_sub(1, Ordering::Relaxed);
            if let Some(part) = part? {
                return Ok(part);
            }
        }
        let (sums, bytes) = self.obtain(id)?;
        if u64::from(offset) + u64::from(len) > u64::from(sums.size()) {
            return Err(blob::folder::past_end(id, sums.size()));
        }
        Ok(Part { sums, offset: 0, bytes })
    }

    /// How long nodes have for a part, and trackers to answer: the longer the more are wanted.
    pub(super) fn pace(&self) -> Pace {
        Pace::of(&self.latencies.lock(), self.parts.load(Ordering::Relaxed))
    }

    /// From a blob that is on its way here, as soon as the bytes are. None: nobody goes on with it.
    fn part_of_coming(&self, arriving: &Arc<Arriving>, wanted: Wanted) -> Result<Option<Part>, BlobError> {
        Counters::one(&self.counters.shared);
        let end = (wanted.offset + wanted.len).next_multiple_of(GROUP);
        match arriving.wait_for(end, base::time::monotonic() + self.deadline) {
            Ok(()) => Ok(part_of(arriving, wanted)),
            Err(Fail::Late(time)) => {
                Err(BlobError::Unavailable(format!("{} did not arrive within {time:.0?}", wanted.id)))
            }
            Err(_) => Ok(None),
        }
    }

    /// The blob is under way from before the question on: as soon as this node has a lease others are told to wait for it, and find it coming.
    fn part_from_elsewhere(
        self: &Arc<Inner>,
        arriving: Arc<Arriving>,
        wanted: Wanted,
    ) -> Result<Option<Part>, BlobError> {
        let told = self
            .ask_for_part(&wanted.id)
            .map(|(tracker, answer)| (tracker, Told::of(answer, tracker, self.own, &self.pace())));
        let depot = self.placed.lock().placement().depots(&wanted.id, 1).first().copied();
        let depot = depot.filter(|depot| *depot != self.own);
        if matches!(told, Some((_, Told::Lease(_)))) && depot.is_none() {
            return self.part_with_lease(arriving, wanted).map(Some);
        }
        self.transit.given_up(&wanted.id, &arriving, base::time::monotonic());
        Ok(match told {
            Some((tracker, Told::Nodes(nodes, time))) => {
                self.part_from_holders(&nodes, tracker, wanted, time)
            }
            // Nothing of this is told: the plan of the whole says what has to be said.
            Some((_, Told::Coming(node, time))) => self.part_from(node, wanted, time).ok(),
            Some((tracker, Told::Lease(lease))) => {
                let (group, what) = (self.groups.of(&wanted.id), What::Failed { lease });
                self.note(tracker, Note { group, blob: wanted.id, what });
                Some(self.part_from_depot(depot, wanted)?)
            }
            Some((_, Told::Alone)) => Some(self.part_from_depot(depot, wanted)?),
            Some((_, Told::Nowhere)) | None => None,
        })
    }

    /// Asks the first of the blob's trackers, and nobody else.
    fn ask_for_part(&self, id: &BlobId) -> Option<(NodeId, Option<Answer>)> {
        let group = self.groups.of(id);
        let mut trackers = self.trackers(group);
        self.silence.lock().order(self.now(), &mut trackers);
        let tracker = *trackers.first()?;
        let net = self.net()?;
        let ask = Ask {
            group,
            blobs: vec![*id],
            backlog: net.backlog(),
            not: Vec::new(),
            sender: None,
            part: true,
        };
        Counters::one(&self.counters.asks);
        if tracker == self.own {
            let answers = self.tracker.lock().ask(self.now(), self.own, &ask, &|_| false);
            return Some((tracker, answers.first().copied()));
        }
        let answer = match net.ask(self.peer(tracker)?, &ask, self.pace().answer).wait() {
            Ok(answers) => {
                self.silence.lock().answered(&tracker);
                answers.first().copied()
            }
            // What is late may be on its way; the plan of the whole finds out.
            Err(Fail::Late(_)) => {
                self.not_heard(tracker);
                None
            }
            Err(fail) => {
                self.doubt(tracker, &fail);
                None
            }
        };
        Some((tracker, answer))
    }

    /// Whether no other node has this blob, wants it or has wanted it, and it is not on its way here: then the rest of
    /// it comes as its parts did. If not, the whole comes by the plan: from those who have it, once for all who want it,
    /// and passed on while it comes. A lease that is had by asking is the plan's, which asks the same tracker.
    pub(super) fn wants_alone(&self, id: &BlobId) -> bool {
        if self.transit.get(id).is_some() || self.handed.lock().contains_key(id) {
            return false;
        }
        matches!(self.ask_for_part(id), Some((_, Some(Answer::NotMine))))
    }

    /// From the first that gives it; who does not have it is told of to the tracker.
    fn part_from_holders(
        &self,
        nodes: &[NodeId],
        tracker: NodeId,
        wanted: Wanted,
        time: Duration,
    ) -> Option<Part> {
        nodes.iter().find_map(|node| match self.part_from(*node, wanted, time) {
            Ok(part) => Some(part),
            // It is busy, or the way to it is slow: it has the blob all the same.
            Err(Fail::Late(_) | Fail::Busy) => None,
            Err(_) => {
                let (group, what) = (self.groups.of(&wanted.id), What::Refused { by: *node });
                self.note(tracker, Note { group, blob: wanted.id, what });
                None
            }
        })
    }

    fn part_from(&self, node: NodeId, wanted: Wanted, time: Duration) -> Result<Part, Fail> {
        let (Some(net), Some(peer)) = (self.net(), self.peer(node)) else { return Err(Fail::Closed) };
        let call = net.read_groups(peer, &wanted.id, wanted.offset, wanted.len, time);
        // Whoever reads it here does not wait for this thread.
        let (transit, id, from) =
            (Arc::clone(&self.transit), wanted.id, wanted.offset - wanted.offset % GROUP);
        call.on_arrival(move |bytes| transit.came(&id, from, bytes));
        match call.wait() {
            Ok((sums, bytes)) => {
                let counters = &self.counters;
                let (parts, part_bytes) = match self.is_depot(node) {
                    true => (&counters.depot_parts, &counters.depot_part_bytes),
                    false => (&counters.peer_parts, &counters.peer_part_bytes),
                };
                Counters::one(parts);
                Counters::add(part_bytes, bytes.len() as u64);
                Ok(Part { sums, offset: wanted.offset - wanted.offset % GROUP, bytes: bytes.into() })
            }
            Err(fail) => {
                Counters::one(&self.counters.failed);
                // Whoever is late with this may be waiting for the origin.
                if !matches!(fail, Fail::Late(_)) {
                    self.doubt(node, &fail);
                }
                Err(fail)
            }
        }
    }

    /// This node has the lease: the whole is fetched behind, with the same lease, and the part does not wait for it. Where nobody
    /// could keep the whole, or too many are fetched so already, it does.
    fn part_with_lease(
        self: &Arc<Inner>,
        arriving: Arc<Arriving>,
        wanted: Wanted,
    ) -> Result<Part, BlobError> {
        if !self.follow(&wanted.id, &arriving) {
            let (sums, bytes) = self.pilot(&wanted.id, arriving)?;
            wanted.groups(sums.size()).ok_or_else(|| blob::folder::past_end(&wanted.id, sums.size()))?;
            return Ok(Part { sums, offset: 0, bytes });
        }
        drop(arriving);
        self.part_from_origin(wanted)
    }

    /// From the depot, and if it does not give it in time from the origin.
    fn part_from_depot(&self, depot: Option<NodeId>, wanted: Wanted) -> Result<Part, BlobError> {
        let time = self.pace().depot.min(STEP_MOST);
        match depot.and_then(|depot| self.part_from(depot, wanted, time).ok()) {
            Some(part) => Ok(part),
            None => self.part_from_origin(wanted),
        }
    }

    fn part_from_origin(&self, wanted: Wanted) -> Result<Part, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let part = self.origin.fetch_part(&wanted.id, wanted.offset, wanted.len)?;
        Counters::one(&self.counters.origin_parts);
        Counters::add(&self.counters.origin_part_bytes, part.bytes.len() as u64);
        Ok(part)
    }

    /// Fetches a blob on a thread of its own, and then has the cache ask for it, which gets what came; false if it does not.
    fn follow(self: &Arc<Inner>, id: &BlobId, arriving: &Arc<Arriving>) -> bool {
        let Some(cache) = self.filler.get().and_then(Weak::upgrade) else { return false };
        if !self.filling.begin(FOLLOWING) {
            return false;
        }
        let (inner, blob, coming) = (Arc::clone(self), *id, Arc::clone(arriving));
        let work = move || {
            // What is wrong is said to whoever asks next.
            if let Ok(whole) = inner.pilot(&blob, coming) {
                inner.handed.lock().insert(blob, whole);
                let _ = cache.fetch(&blob);
                // Somebody else may have brought it there meanwhile.
                inner.handed.lock().remove(&blob);
            }
            inner.filling.end();
        };
        let begun = base::thread::spawn("covey-follow", work).is_ok();
        if !begun {
            self.filling.end();
        }
        begun
    }
}

/// The groups of it, which are there.
fn part_of(arriving: &Arriving, wanted: Wanted) -> Option<Part> {
    let (from, to) = wanted.groups(arriving.size()?)?;
    // Sums that are in doubt are made anew from all of it.
    let sums = arriving.sums().filter(|_| !arriving.is_doubtful())?;
    let bytes = arriving.bytes(from..to)?.to_vec();
    Some(Part { sums: (**sums).clone(), offset: from, bytes: bytes.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Latencies;

    #[test]
    fn what_a_tracker_says_of_a_part() {
        let node = |n: u8| NodeId([n; 16]);
        let pace = Pace::from(&Latencies::default());
        let told = |answer| Told::of(answer, node(1), node(9), &pace);
        assert_eq!(told(Some(Answer::Serve)), Told::Nodes(vec![node(1)], pace.peer));
        let go = |first, second| Some(Answer::Go { first: node(first), second });
        assert_eq!(told(go(2, Some(node(3)))), Told::Nodes(vec![node(2), node(3)], pace.peer));
        assert_eq!(told(go(9, Some(node(3)))), Told::Nodes(vec![node(3)], pace.peer), "never itself");
        let wait = Answer::Wait { parent: node(4), time: Duration::ZERO };
        assert_eq!(told(Some(wait)), Told::Coming(node(4), pace.stream.max(pace.origin)));
        assert_eq!(told(Some(Answer::Lease { lease: 1, time: Duration::ZERO })), Told::Lease(1));
        assert_eq!([told(Some(Answer::NotMine)), told(None)], [Told::Alone, Told::Nowhere]);
    }

    #[test]
    fn a_range_lies_in_whole_groups_of_its_blob() {
        let groups = |offset, len, size| Wanted { id: BlobId([0; 32]), offset, len }.groups(size);
        assert_eq!(groups(70_000, 100, 200_000), Some((65_536, 131_072)));
        assert_eq!(groups(0, 1, 100), Some((0, 100)), "the last group is as long as the blob");
        assert_eq!(groups(65_535, 2, BLOB_MAX), Some((0, 131_072)));
        assert_eq!((groups(99, 2, 100), groups(u32::MAX, 2, BLOB_MAX)), (None, None));
    }
}
