//! What this node tells of what it has: to a blob's tracker at once, and, when who is there has changed, all of it again to trackers that are new.
//!
//! A depot tells nobody: it is found by its name.

use base::BlobId;

use super::Inner;
use super::finding::Finding;
use crate::id::{NodeId, Role};
use crate::message::{Note, What};

/// So many blobs a round are told to trackers that are new.
const TOLD_A_ROUND: usize = 400;

impl Inner {
    /// Tells a tracker, or this node as a tracker.
    pub(super) fn note(&self, tracker: NodeId, note: Note) {
        if tracker == self.own {
            self.tracker.lock().note(self.now(), self.own, &note);
        } else {
            self.notes.push(tracker, note);
        }
    }

    /// Tells the first tracker of a blob, or who else listens. A depot tells nobody: it is found by its name.
    pub(super) fn note_first(&self, id: &BlobId, what: What) {
        if self.role == Role::Depot {
            return;
        }
        let group = self.groups.of(id);
        for listener in self.listeners(group) {
            self.note(listener, Note { group, blob: *id, what });
        }
    }

    /// Has all that is here told to those who track it now and did not before.
    pub(super) fn tell_all(&self) {
        let Some(holdings) = self.holdings().filter(|_| self.role == Role::Node) else { return };
        let mut all = Vec::new();
        holdings.list(&mut |id| {
            all.push(*id);
            true
        });
        *self.untold.lock() = all;
    }

    /// A part of that.
    pub(super) fn tell_some(&self) {
        let room = TOLD_A_ROUND.min(self.notes.room());
        let some: Vec<BlobId> = {
            let mut untold = self.untold.lock();
            let keep = untold.len().saturating_sub(room);
            untold.split_off(keep)
        };
        if some.is_empty() {
            // All have heard what they had to: what comes next is compared with this.
            *self.before.lock() = None;
            self.fresh.lock().clear();
            return;
        }
        let (before, fresh) = (self.before.lock().clone(), self.fresh.lock().clone());
        for id in some {
            let group = self.groups.of(&id);
            if self.finding == Finding::Table {
                self.note_first(&id, What::Have);
                continue;
            }
            let first = self.placed.lock().trackers(group).first().copied();
            let was = before.as_ref().and_then(|before| before.trackers(group).first().copied());
            if let Some(tracker) = first.filter(|first| Some(*first) != was || fresh.contains(first)) {
                self.note(tracker, Note { group, blob: id, what: What::Have });
            }
        }
    }
}
