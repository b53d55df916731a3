//! Merges questions about neighbouring blobs: a tracker answers for sixteen blobs of a group as quickly as
//! for one.
//!
//! ```text
//!   want a ──► ASK a ─────────────► answer
//!   want b, c, d ... wait ──────────► ASK b c d   or 2 ms after the first, if its answer takes longer
//! ```
//!
//! The first question is sent at once. Later ones to the same tracker about the same group wait for the end
//! of the first, which is one round trip to a neighbour. Then all of them are sent as one question. So
//! read-ahead in a file takes few messages, and a single miss is not delayed.

use std::collections::HashMap;
use std::time::Duration;

use base::BlobId;
use net::id::NodeId;
use net::message::{ASK_MAX, Group};
use parking_lot::Mutex;

/// The longest time that a question waits to be merged.
pub(super) const COMPANY: Duration = Duration::from_millis(2);

/// What questions must have in common to be merged: the tracker, the group and the excluded nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) tracker: NodeId,
    pub(super) group: Group,
    pub(super) not: Vec<NodeId>,
}

/// The blobs of one question, with the waiter for each.
pub(super) type Together<T> = Vec<(BlobId, T)>;

struct Row<T> {
    under_way: u32,
    waiting: Together<T>,
}

/// See the [module](self). `T` is the waiter for an answer.
pub(super) struct Questions<T>(Mutex<HashMap<Key, Row<T>>>);

impl<T> Default for Questions<T> {
    fn default() -> Questions<T> {
        Questions(Mutex::default())
    }
}

impl<T> Questions<T> {
    /// Adds a question and returns what must be sent now. For each that is sent, [`Questions::ended`] must be
    /// called once.
    pub(super) fn ask(&self, key: &Key, blob: BlobId, who: T) -> Option<Together<T>> {
        let mut all = self.0.lock();
        let row = all.entry(key.clone()).or_insert(Row { under_way: 0, waiting: Vec::new() });
        row.waiting.push((blob, who));
        let goes = row.under_way == 0 || row.waiting.len() >= ASK_MAX;
        goes.then(|| {
            row.under_way += 1;
            std::mem::take(&mut row.waiting)
        })
    }

    /// The answer takes long. Returns the waiting questions to be sent now. They count as sent.
    pub(super) fn is_slow(&self, key: &Key) -> Option<Together<T>> {
        let mut all = self.0.lock();
        let row = all.get_mut(key).filter(|row| !row.waiting.is_empty())?;
        row.under_way += 1;
        Some(std::mem::take(&mut row.waiting))
    }

    /// A sent question is answered, or never will be. Returns the waiting questions to be sent.
    pub(super) fn ended(&self, key: &Key) -> Option<Together<T>> {
        let mut all = self.0.lock();
        let row = all.get_mut(key)?;
        if row.waiting.is_empty() {
            row.under_way -= 1;
            if row.under_way == 0 {
                all.remove(key);
            }
            return None;
        }
        Some(std::mem::take(&mut row.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tracker: u8) -> Key {
        Key { tracker: NodeId([tracker; 16]), group: Group(1), not: Vec::new() }
    }

    fn blobs<T>(together: Option<Together<T>>) -> Vec<u8> {
        together.into_iter().flatten().map(|(blob, _)| blob.0[0]).collect()
    }

    #[test]
    fn the_first_goes_at_once_and_the_others_go_together() {
        let questions = Questions::default();
        let ask = |tracker, blob: u8| blobs(questions.ask(&key(tracker), BlobId([blob; 32]), ()));
        assert_eq!(ask(1, 1), [1]);
        assert_eq!((ask(1, 2), ask(1, 3)), (vec![], vec![]));
        assert_eq!(ask(2, 9), [9], "another tracker's is another question");
        assert_eq!(blobs(questions.ended(&key(1))), [2, 3]);
        assert_eq!(ask(1, 4), []);
        assert_eq!(blobs(questions.is_slow(&key(1))), [4]);
        assert!(questions.is_slow(&key(1)).is_none());
        assert_eq!(ask(1, 5), [], "two are under way");
        assert_eq!(blobs(questions.ended(&key(1))), [5]);
        for _ in 0..2 {
            assert!(questions.ended(&key(1)).is_none());
        }
        assert!(questions.ended(&key(2)).is_none());
        assert!(questions.0.lock().is_empty(), "nothing is left behind");
        assert_eq!(ask(1, 6), [6]);
    }

    #[test]
    fn a_question_is_never_longer_than_it_may_be() {
        let questions = Questions::default();
        let sent: Vec<usize> = (0..40)
            .map(|n| questions.ask(&key(1), BlobId([n; 32]), ()).map_or(0, |together| together.len()))
            .collect();
        assert_eq!((sent.iter().sum::<usize>(), sent.iter().max()), (33, Some(&ASK_MAX)));
        assert_eq!(questions.ended(&key(1)).map(|rest| rest.len()), Some(7));
    }
}
