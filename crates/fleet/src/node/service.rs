//! What this node does for other nodes: it tracks groups, sends blobs, lists the members and, as a depot,
//! fetches blobs that it does not have.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::BlobId;
use fetch::{Arriving, Join, Purpose};
use hashbrown::HashSet;
use net::id::{NodeId, Role};
use net::message::{Answer, Ask, Note};
use net::transport::{Content, CopyState, Listed, Prefix, Roll, Service, Then, Unfilled};

use super::Inner;
use super::counters::Counters;

/// A depot fetches this many blobs at a time for other nodes. Further requesters go to the origin.
pub(super) const FILLING: usize = 64;
/// And this many for warming, where further requesters are told to ask again: warming must not delay readers.
pub(super) const WARMING: usize = 16;

/// The node as its transport sees it.
pub(super) struct Serving(pub(super) Weak<Inner>);

/// Counts fetches in flight for other nodes.
#[derive(Default)]
pub(super) struct Filling(AtomicUsize);

impl Filling {
    /// Adds one, if there are fewer than `most`.
    pub(super) fn begin(&self, most: usize) -> bool {
        let room = |count: usize| (count < most).then_some(count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok()
    }

    pub(super) fn end(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Service for Serving {
    fn ask(&self, from: NodeId, ask: Ask) -> Vec<Answer> {
        let Some(inner) = self.0.upgrade() else { return vec![Answer::NotMine; ask.blobs.len()] };
        if !inner.placed.lock().trackers(ask.group).contains(&inner.own) {
            return vec![Answer::NotMine; ask.blobs.len()];
        }
        Counters::one(&inner.counters.answered);
        // What the cache is still writing can be sent too. This check opens files, so it happens before the
        // tracker is locked.
        let here = |id: &&BlobId| inner.holds(id) || inner.table.has_whole(id);
        let held: HashSet<BlobId> = ask.blobs.iter().filter(here).copied().collect();
        let backlog = inner.backlog();
        let mut tracker = inner.tracker.lock();
        tracker.raise_load(inner.own, backlog);
        tracker.ask(inner.now(), from, &ask, &|id| held.contains(id))
    }

    fn notes(&self, from: NodeId, notes: Vec<Note>) {
        let Some(inner) = self.0.upgrade() else { return };
        {
            let mut tracker = inner.tracker.lock();
            notes.iter().for_each(|note| tracker.note(inner.now(), from, note));
        }
        inner.keep(&notes);
    }

    fn content(&self, id: &BlobId) -> Option<Content> {
        let inner = self.0.upgrade()?;
        let arriving = inner.table.serve(id);
        if let Some(recent) = arriving.as_ref().filter(|arriving| arriving.is_whole()) {
            return Some(Content::Arriving(Arc::clone(recent)));
        }
        if let Some(held) = inner.holdings().and_then(|holdings| holdings.open(id)) {
            return Some(Content::Held(held));
        }
        match arriving {
            Some(arriving) => Some(Content::Arriving(arriving)),
            None if inner.role == Role::Depot => inner.fill(id).map(Content::Arriving),
            None => None,
        }
    }

    fn fill(&self, id: &BlobId, then: Then) {
        match self.0.upgrade() {
            Some(inner) if inner.role == Role::Depot => inner.warm(id, then),
            _ => then(Err(Unfilled::NoDepot)),
        }
    }

    fn members(&self, after: NodeId, most: usize) -> Roll {
        self.0.upgrade().map(|inner| inner.seen_after(after, most)).unwrap_or_default()
    }

    fn suspect(&self, id: &BlobId) -> CopyState {
        let Some(inner) = self.0.upgrade() else { return CopyState::Absent };
        inner.table.forget(id);
        inner.holdings().map_or(CopyState::Absent, |holdings| holdings.suspect(id))
    }

    fn is_member(&self, address: IpAddr) -> bool {
        let is = |inner: Arc<Inner>| inner.addresses.lock().values().any(|known| known.ip() == address);
        self.0.upgrade().is_some_and(is)
    }

    fn list(&self, prefix: Prefix, most: usize) -> Listed {
        let mut listed = Listed::default();
        let inner = self.0.upgrade();
        if let Some(holdings) = inner.as_ref().and_then(|inner| inner.holdings()) {
            holdings.list(&mut |id| {
                if prefix.holds(id) {
                    listed.more = listed.blobs.len() >= most;
                    if !listed.more {
                        listed.blobs.push(*id);
                    }
                }
                !listed.more
            });
        }
        listed
    }
}

impl Inner {
    /// Whether the blob could be sent.
    pub(super) fn holds(&self, id: &BlobId) -> bool {
        self.holdings().is_some_and(|holdings| holdings.open(id).is_some())
    }

    /// Begins to fetch a blob for another node. None: this depot's cache is not open yet, or too many such
    /// fetches are in flight.
    fn fill(self: &Arc<Inner>, id: &BlobId) -> Option<Arc<Arriving>> {
        self.holdings()?;
        if !self.filling.begin(FILLING) {
            return None;
        }
        let lead = match self.table.join_whole(id, Purpose::Others) {
            Join::Leader(lead) => lead,
            Join::Follower(fetch) => {
                self.filling.end();
                return Some(self.table.buffer_of(&fetch));
            }
        };
        let (inner, buffer) = (Arc::clone(self), lead.buffer());
        let work = move || {
            if inner.lead_for_others(lead).is_ok() {
                Counters::one(&inner.counters.filled);
            }
            inner.filling.end();
        };
        if base::thread::spawn("covey-fill", work).is_err() {
            // The lead went with the work, so the fetch has ended.
            self.filling.end();
            return None;
        }
        Some(buffer)
    }
}
