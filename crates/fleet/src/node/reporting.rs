//! What this node reports about its blobs: each change to the blob's tracker at once, and after a change of
//! the membership all blobs to the trackers that are new.
//!
//! A depot reports nothing. Nodes find it by the blob's id.

use std::collections::HashSet;

use base::BlobId;
use net::id::{NodeId, Role};
use net::message::{Group, Note, What};

use super::Inner;

/// How many blobs a round are reported to new trackers.
const REPORTED_A_ROUND: usize = 400;

/// Blobs that are to be reported. The next one is the last.
#[derive(Default)]
pub(super) struct Unreported(Vec<BlobId>);

impl Unreported {
    /// All blobs are to be reported. Those that were to be reported anyway come first, in their order. So
    /// each one has its turn, however often the membership changes.
    fn add(&mut self, all: Vec<BlobId>) {
        if self.0.is_empty() {
            self.0 = all;
            return;
        }
        let mut others: HashSet<BlobId> = all.into_iter().collect();
        let mut first = std::mem::take(&mut self.0);
        first.retain(|id| others.remove(id));
        self.0 = others.into_iter().chain(first).collect();
    }

    /// At most this many of them.
    fn take(&mut self, room: usize) -> Vec<BlobId> {
        self.0.split_off(self.0.len().saturating_sub(room))
    }
}

impl Inner {
    /// The nodes to ask about a group, the first choice first.
    pub(super) fn trackers(&self, group: Group) -> Vec<NodeId> {
        self.placed.lock().trackers(group).to_vec()
    }

    /// Notifies a tracker, which may be this node.
    pub(super) fn note(&self, tracker: NodeId, note: Note) {
        if tracker == self.own {
            self.tracker.lock().note(self.now(), self.own, &note);
        } else {
            self.notes.push(tracker, note);
        }
    }

    /// Notifies the first tracker of a blob. A depot reports nothing: nodes find it by the blob's id.
    pub(super) fn note_first(&self, id: &BlobId, what: What) {
        if self.role == Role::Depot {
            return;
        }
        let group = self.groups.of(id);
        let first = self.trackers(group).first().copied();
        if let Some(tracker) = first {
            self.note(tracker, Note { group, blob: *id, what });
        }
    }

    /// Schedules reports of all blobs here to the nodes that track them now and did not before.
    pub(super) fn report_all(&self) {
        let Some(holdings) = self.holdings().filter(|_| self.role == Role::Node) else { return };
        let mut all = Vec::new();
        holdings.list(&mut |id| {
            all.push(*id);
            true
        });
        self.unreported.lock().add(all);
    }

    /// Sends a part of these reports.
    pub(super) fn report_some(&self) {
        let room = REPORTED_A_ROUND.min(self.notes.room());
        let some = self.unreported.lock().take(room);
        if some.is_empty() {
            // All reports are sent. The next change is compared with the current placement.
            *self.before.lock() = None;
            self.fresh.lock().clear();
            return;
        }
        let (before, fresh) = (self.before.lock().clone(), self.fresh.lock().clone());
        for id in some {
            let group = self.groups.of(&id);
            let first = self.trackers(group).first().copied();
            let was = before.as_ref().and_then(|before| before.trackers(group).first().copied());
            if let Some(tracker) = first.filter(|first| Some(*first) != was || fresh.contains(first)) {
                self.note(tracker, Note { group, blob: id, what: What::Have });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each change of the membership began anew, with the same blobs. The others were never reported while
    /// nodes came and went.
    #[test]
    fn regression_each_blob_is_reported_however_often_members_change() {
        let id = |n: u32| {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&n.to_le_bytes());
            BlobId(id)
        };
        let mut unreported = Unreported::default();
        let mut reported = HashSet::new();
        for round in 0..8 {
            if round % 2 == 0 {
                // One of them is evicted later.
                unreported.add((0..2000 - u32::from(round > 0)).map(id).collect());
            }
            reported.extend(unreported.take(REPORTED_A_ROUND));
        }
        assert!((0..1999).all(|n| reported.contains(&id(n))), "{} of them", reported.len());
        let rest = unreported.take(usize::MAX);
        assert!(!rest.contains(&id(1999)), "it is not here any more");
    }
}
