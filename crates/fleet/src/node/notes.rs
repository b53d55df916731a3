//! Collects notes for trackers: which blobs were inserted, which were evicted, which could not be fetched.
//!
//! A single note is worth little, and nothing after minutes. So notes wait a tenth of a second to be sent
//! together. If a tracker does not receive them, they are dropped: it learns the same from later questions
//! and refusals.

use std::collections::HashMap;

use net::id::NodeId;
use net::message::{NOTES_MAX, Note};
use parking_lot::Mutex;

/// Upper bound on waiting notes. Further ones are dropped.
const MOST: usize = 64 * NOTES_MAX;

#[derive(Default)]
struct Queue {
    by_tracker: HashMap<NodeId, Vec<Note>>,
    len: usize,
}

/// The notes to be sent. See the [module](self).
#[derive(Default)]
pub(super) struct Notes(Mutex<Queue>);

impl Notes {
    /// Adds a note to the next message.
    pub(super) fn push(&self, tracker: NodeId, note: Note) {
        let mut queue = self.0.lock();
        if queue.len < MOST {
            queue.by_tracker.entry(tracker).or_default().push(note);
            queue.len += 1;
        }
    }

    /// All waiting notes, in messages of valid size.
    pub(super) fn take(&self) -> Vec<(NodeId, Vec<Note>)> {
        let queue = std::mem::take(&mut *self.0.lock());
        let messages = |(tracker, notes): (NodeId, Vec<Note>)| {
            let chunks: Vec<_> = notes.chunks(NOTES_MAX).map(|chunk| (tracker, chunk.to_vec())).collect();
            chunks
        };
        queue.by_tracker.into_iter().flat_map(messages).collect()
    }

    /// Drops the notes for a node that has left.
    pub(super) fn forget(&self, tracker: &NodeId) {
        let mut queue = self.0.lock();
        let gone = queue.by_tracker.remove(tracker).map_or(0, |notes| notes.len());
        queue.len -= gone;
    }

    /// How many more notes fit.
    pub(super) fn room(&self) -> usize {
        MOST.saturating_sub(self.0.lock().len)
    }
}

#[cfg(test)]
mod tests {
    use base::BlobId;

    use super::*;
    use net::message::{Group, What};

    #[test]
    fn notes_are_gathered_by_tracker_and_bounded() {
        let notes = Notes::default();
        let note = |n: u64| Note { group: Group(n), blob: BlobId([n as u8; 32]), what: What::Have };
        let (a, b) = (NodeId([1; 16]), NodeId([2; 16]));
        (0..600).for_each(|n| notes.push(a, note(n)));
        notes.push(b, note(1));
        notes.forget(&b);
        let taken = notes.take();
        assert_eq!(
            taken.iter().map(|(node, notes)| (*node, notes.len())).collect::<Vec<_>>(),
            [(a, 256), (a, 256), (a, 88)]
        );
        assert!(notes.take().is_empty() && notes.room() == MOST);
        (0..MOST as u64 + 10).for_each(|n| notes.push(a, note(n)));
        assert_eq!(notes.room(), 0);
    }
}
