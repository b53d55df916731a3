//! What this node reports about its blobs: each change to the blob's tracker at once, and after a change of
//! the membership all blobs to the trackers that are new.
//!
//! A depot reports nothing. Nodes find it by the blob's id.

use base::BlobId;
use net::id::{NodeId, Role};
use net::message::{Group, Note, What};

use super::Inner;

/// How many blobs a round are reported to new trackers.
const REPORTED_A_ROUND: usize = 400;

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
        *self.unreported.lock() = all;
    }

    /// Sends a part of these reports.
    pub(super) fn report_some(&self) {
        let room = REPORTED_A_ROUND.min(self.notes.room());
        let some: Vec<BlobId> = {
            let mut unreported = self.unreported.lock();
            let keep = unreported.len().saturating_sub(room);
            unreported.split_off(keep)
        };
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
