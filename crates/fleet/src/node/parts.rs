//! A part of a blob, for a small read. It is requested from a node that has the blob, and served before the
//! rest arrives.
//!
//! Whether a read fetches a part or the whole is decided by the cache (`cache::node::partial`), on a single
//! node as in a fleet. A part comes from here:
//!
//! ```text
//!   already in flight ────────────────────────► as soon as the bytes are there
//!   the first tracker: SERVE, GO ─────────────► 64 KiB groups and the sums from that node, then the second
//!                      WAIT ──────────────────► the same from the fetching node, when they are there
//!                      NOT MINE ──────────────► from the depot or the origin: no other requester yet
//!                      LEASE ─► if there is a depot: given back, and the same from the depot
//!                               else: the whole is fetched behind, for all nodes;
//!                                     meanwhile the part comes from the origin
//!   no answer, or a failure ──────────────────► the whole, by the plan
//! ```
//!
//! - **After a part from a node, nothing follows.** A read of one page of a blob that the zone has moves
//!   little more than that page.
//! - **Nor after a part from a depot.** It fetches the whole for the zone, and sends parts on request. If
//!   every reader fetched the whole over its own link, its next read would wait for it: with one reader on
//!   200 Mbit/s, 182 ms for 128 KiB instead of about ten.
//! - **With the lease and no depot, the rest follows**, because the next requester is told to wait for this
//!   node, and because one part from the origin for each of many nodes costs more than the whole for all. The
//!   lease goes to the second node that wants a part. A node that reads at random what no other node reads
//!   fetches parts only. So the whole is requested from the origin once, and before that one node requests
//!   parts.
//! - A part is verified with the blob's own sums, whose hash is the blob's id, like everything that is kept
//!   ([`net::transport::Net::read_groups`]).
//! - A part has no plan. Each step has a time limit, and what misses it is left to the plan of the whole,
//!   which tries every source.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::BlobId;
use base::phase::{self, Phase};
use base::size::{BLOB_MAX, GROUP};
use blob::{BlobError, Part};
use fetch::{Announcement, Arrivals, Join, PartLead, Purpose, WholeLead};
use net::id::NodeId;
use net::message::{Answer, Ask, Note, What};
use net::transport::Fail;

use super::Inner;
use super::counters::Counters;
use crate::plan::Pace;

/// How many blobs are fetched behind their parts at a time. Each takes a thread, and 4 MiB until the cache
/// has it.
const FOLLOWING: usize = 8;
/// Upper bound on the wait for a node in one step. The plan of the whole has its own time after it. A step is
/// this long only if dozens of parts are wanted at once ([`Inner::pace`]): 256 parts of 192 KiB take two
/// seconds on a link of 200 Mbit/s. Fetching the whole instead of each late part would take twenty times as
/// long.
const STEP_MOST: Duration = Duration::from_secs(8);
/// A step is also at most this fraction of the time that the reader has. Two holders may be tried, then the
/// whole blob.
const STEP_FRACTION: u32 = 6;

/// Where to get a part.
#[derive(Debug, PartialEq, Eq)]
enum PartSource {
    /// From these nodes, which have the blob, one after the other, each within this time.
    Nodes(Vec<NodeId>, Duration),
    /// From this node, which is fetching it.
    Coming(NodeId, Duration),
    /// From the depot or the origin: this node is to fetch the blob, under this lease.
    Lease(u64),
    /// From the depot or the origin. No other node wants it.
    Alone,
    /// The tracker did not answer.
    Nowhere,
}

impl PartSource {
    /// The meaning of a tracker's answer. A node that is itself waiting may have to wait for the origin, so
    /// it gets at least the origin's time.
    fn of(answer: Option<Answer>, tracker: NodeId, own: NodeId, pace: &Pace) -> PartSource {
        let nodes = |nodes: &[Option<NodeId>]| {
            let others = nodes.iter().flatten().copied().filter(|node| *node != own).collect();
            PartSource::Nodes(others, pace.peer)
        };
        match answer {
            Some(Answer::Serve) => nodes(&[Some(tracker)]),
            Some(Answer::Go { first, second }) => nodes(&[Some(first), second]),
            Some(Answer::Wait { parent, .. }) => PartSource::Coming(parent, pace.stream.max(pace.origin)),
            Some(Answer::Lease { lease, .. }) => PartSource::Lease(lease),
            Some(Answer::NotMine) => PartSource::Alone,
            None => PartSource::Nowhere,
        }
    }
}

/// The requested range.
#[derive(Clone, Copy)]
struct Wanted {
    id: BlobId,
    offset: u32,
    len: u32,
}

impl Wanted {
    /// The groups that cover the range in a blob of this size. None if it is not within the blob.
    fn groups(&self, size: u32) -> Option<(u32, u32)> {
        let end = self.offset.checked_add(self.len).filter(|end| *end <= size)?;
        Some((self.offset - self.offset % GROUP, end.next_multiple_of(GROUP).min(size)))
    }
}

impl Inner {
    /// At least these bytes of a blob, for the leader of their fetch.
    pub(super) fn obtain_part(
        self: &Arc<Inner>,
        lead: &PartLead,
        offset: u32,
        len: u32,
    ) -> Result<Part, BlobError> {
        let wanted = Wanted { id: *lead.id(), offset, len };
        if wanted.groups(BLOB_MAX).is_some() && len > 0 {
            let _phase = phase::enter(Phase::Peer);
            self.parts.fetch_add(1, Ordering::Relaxed);
            let part = self.part_from_fleet(lead, wanted);
            self.parts.fetch_sub(1, Ordering::Relaxed);
            if let Some(part) = part? {
                return Ok(part);
            }
        }
        match self.table.join_whole(lead.id(), Purpose::Others) {
            Join::Leader(whole) => self.part_of_whole(whole, wanted),
            // Its leader may be waiting for this part, so this does not wait for it.
            Join::Follower(_) => self.part_from_origin(wanted),
        }
    }

    /// Fetches the whole blob instead, and gives it to all.
    fn part_of_whole(self: &Arc<Inner>, lead: WholeLead, wanted: Wanted) -> Result<Part, BlobError> {
        let whole = self.whole(&lead).map(|(sums, bytes)| Part { sums, offset: 0, bytes });
        let whole = lead.finish(whole)?;
        if u64::from(wanted.offset) + u64::from(wanted.len) > u64::from(whole.sums.size()) {
            return Err(blob::folder::past_end(&wanted.id, whole.sums.size()));
        }
        Ok(Part { sums: whole.sums.clone(), offset: 0, bytes: whole.bytes.clone() })
    }

    /// How long nodes have for a part, and trackers to answer. The time grows with the number of wanted
    /// parts. It is a fraction of what the reader still has, so that other sources can be tried.
    pub(super) fn pace(&self) -> Pace {
        let most = (self.left() / STEP_FRACTION).min(STEP_MOST);
        Pace::of(&self.latencies.lock(), self.parts.load(Ordering::Relaxed)).at_most(most)
    }

    /// Other nodes can wait for the blob here from before the question on. As soon as this node has a lease,
    /// they are told to do so. None: the whole must be fetched, by the plan.
    fn part_from_fleet(
        self: &Arc<Inner>,
        lead: &PartLead,
        wanted: Wanted,
    ) -> Result<Option<Part>, BlobError> {
        let announcement = lead.announce();
        let source = self
            .ask_for_part(&wanted.id)
            .map(|(tracker, answer)| (tracker, PartSource::of(answer, tracker, self.own, &self.pace())));
        let depot = self.placed.lock().placement().depots(&wanted.id, 1).first().copied();
        let depot = depot.filter(|depot| *depot != self.own);
        if matches!(source, Some((_, PartSource::Lease(_)))) && depot.is_none() {
            return self.part_with_lease(&announcement, wanted).map(Some);
        }
        drop(announcement);
        let arrivals = lead.arrivals();
        Ok(match source {
            Some((tracker, PartSource::Nodes(nodes, time))) => {
                self.part_from_holders(&nodes, tracker, wanted, time, &arrivals)
            }
            // Nothing of this is reported to trackers. The plan of the whole reports what is necessary.
            Some((_, PartSource::Coming(node, time))) => self.part_from(node, wanted, time, &arrivals).ok(),
            Some((tracker, PartSource::Lease(lease))) => {
                let (group, what) = (self.groups.of(&wanted.id), What::Failed { lease });
                self.note(tracker, Note { group, blob: wanted.id, what });
                Some(self.part_from_depot(depot, wanted, &arrivals)?)
            }
            Some((_, PartSource::Alone)) => Some(self.part_from_depot(depot, wanted, &arrivals)?),
            Some((_, PartSource::Nowhere)) | None => None,
        })
    }

    /// Asks the first of the blob's trackers and no other.
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
            // A late answer may still be on its way. The plan of the whole finds out.
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

    /// Whether no other node has this blob, wants it or has wanted it, and it is not in flight here. Then its
    /// missing parts are fetched as parts. Otherwise the whole blob comes by the plan: from the nodes that
    /// have it, once for all that want it. A lease that this question gained belongs to the plan, which asks
    /// the same tracker.
    pub(super) fn wants_alone(&self, id: &BlobId) -> bool {
        if self.table.serve(id).is_some() {
            return false;
        }
        matches!(self.ask_for_part(id), Some((_, Some(Answer::NotMine))))
    }

    /// From the first node that delivers. A node that does not have the blob is reported to the tracker.
    fn part_from_holders(
        &self,
        nodes: &[NodeId],
        tracker: NodeId,
        wanted: Wanted,
        time: Duration,
        arrivals: &Arrivals,
    ) -> Option<Part> {
        nodes.iter().find_map(|node| match self.part_from(*node, wanted, time, arrivals) {
            Ok(part) => Some(part),
            // The node is busy, or the path to it is slow. It still has the blob.
            Err(Fail::Late(_) | Fail::Busy) => None,
            Err(_) => {
                let (group, what) = (self.groups.of(&wanted.id), What::Refused { by: *node });
                self.note(tracker, Note { group, blob: wanted.id, what });
                None
            }
        })
    }

    fn part_from(
        &self,
        node: NodeId,
        wanted: Wanted,
        time: Duration,
        arrivals: &Arrivals,
    ) -> Result<Part, Fail> {
        let (Some(net), Some(peer)) = (self.net(), self.peer(node)) else { return Err(Fail::Closed) };
        let call = net.read_groups(peer, &wanted.id, wanted.offset, wanted.len, time);
        // Readers of these bytes are notified by the receiving loop and do not wait for this thread.
        let (arrivals, from) = (arrivals.clone(), wanted.offset - wanted.offset % GROUP);
        call.on_arrival(move |bytes| arrivals.arrived(from, bytes));
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
                // A node that is late may be waiting for the origin.
                if !matches!(fail, Fail::Late(_)) {
                    self.doubt(node, &fail);
                }
                Err(fail)
            }
        }
    }

    /// Returns a part of a blob for which this node has the lease. The whole is fetched behind, under the
    /// same lease, and the part does not wait for it. If too many blobs are being fetched so, the part waits
    /// for the whole. If the whole is in flight already, that fetch's plan gets the same lease.
    fn part_with_lease(
        self: &Arc<Inner>,
        announcement: &Announcement,
        wanted: Wanted,
    ) -> Result<Part, BlobError> {
        match announcement.begin_whole() {
            Some(lead) if self.filling.begin(FOLLOWING) => self.follow(lead),
            Some(lead) => return self.part_of_whole(lead, wanted),
            None => {}
        }
        self.part_from_origin(wanted)
    }

    /// From the depot. If it does not deliver in time, from the origin.
    fn part_from_depot(
        &self,
        depot: Option<NodeId>,
        wanted: Wanted,
        arrivals: &Arrivals,
    ) -> Result<Part, BlobError> {
        let time = self.pace().depot;
        match depot.and_then(|depot| self.part_from(depot, wanted, time, arrivals).ok()) {
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

    /// Fetches a whole blob on its own thread. The cache learns of it from the table. Without a thread, the
    /// fetch ends at once, and the lease by itself.
    fn follow(self: &Arc<Inner>, mut lead: WholeLead) {
        let inner = Arc::clone(self);
        let work = move || {
            let whole = inner.whole(&lead).map(|(sums, bytes)| Part { sums, offset: 0, bytes });
            // The lease does not wait for memory. The bytes count from now on, until they are on the disk.
            if let Ok(part) = &whole {
                let _ = lead.reserve(part.bytes.len() as u64);
            }
            // An error is reported to the next requester.
            let _ = lead.finish(whole);
            inner.filling.end();
        };
        if base::thread::spawn("covey-follow", work).is_err() {
            self.filling.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Latencies;

    #[test]
    fn what_a_tracker_says_of_a_part() {
        let node = |n: u8| NodeId([n; 16]);
        let pace = Pace::from(&Latencies::default());
        let source = |answer| PartSource::of(answer, node(1), node(9), &pace);
        assert_eq!(source(Some(Answer::Serve)), PartSource::Nodes(vec![node(1)], pace.peer));
        let go = |first, second| Some(Answer::Go { first: node(first), second });
        assert_eq!(source(go(2, Some(node(3)))), PartSource::Nodes(vec![node(2), node(3)], pace.peer));
        assert_eq!(
            source(go(9, Some(node(3)))),
            PartSource::Nodes(vec![node(3)], pace.peer),
            "a node should not ask itself"
        );
        let wait = Answer::Wait { parent: node(4), time: Duration::ZERO };
        assert_eq!(source(Some(wait)), PartSource::Coming(node(4), pace.stream.max(pace.origin)));
        assert_eq!(source(Some(Answer::Lease { lease: 1, time: Duration::ZERO })), PartSource::Lease(1));
        assert_eq!([source(Some(Answer::NotMine)), source(None)], [PartSource::Alone, PartSource::Nowhere]);
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
