//! Rows as they were seen last, to plan an operation without asking for them again.
//!
//! In a shared volume each look at a row is a round trip, and another node may have changed the row since. A
//! commit checks the rows that its plan rests on, and brings the fresh ones if one has changed. So an
//! operation is planned with what was seen last, and mostly costs the one round trip of its commit. Nothing
//! is ever *answered* from here: a refusal that rests on such rows is checked first.

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::key::Key;
use crate::store::{Commit, Value};

/// Rows of one generation.
const GENERATION: usize = 4096;

#[derive(Default)]
struct Generations {
    young: HashMap<Key, Option<Value>>,
    old: HashMap<Key, Option<Value>>,
}

/// The rows. Bounded: two generations. When the young one is full it becomes the old one, and the old one is
/// dropped.
#[derive(Default)]
pub(super) struct Guesses(Mutex<Generations>);

impl Guesses {
    /// A row was seen. `None`: it is absent.
    pub(super) fn saw(&self, key: &Key, value: Option<&Value>) {
        let mut rows = self.0.lock();
        if rows.young.len() >= GENERATION {
            rows.old = std::mem::take(&mut rows.young);
        }
        rows.young.insert(key.clone(), value.cloned());
    }

    /// How a row was seen last.
    pub(super) fn of(&self, key: &Key) -> Option<Option<Value>> {
        let rows = self.0.lock();
        rows.young.get(key).or_else(|| rows.old.get(key)).cloned()
    }

    /// A commit was made.
    pub(super) fn made(&self, commit: &Commit) {
        commit.puts.iter().for_each(|(key, value)| self.saw(key, Some(value)));
        commit.dels.iter().for_each(|key| self.saw(key, None));
        let mut rows = self.0.lock();
        // What these rows are now is known to the engine only.
        for key in commit.adds.iter().map(|(key, _)| key).chain(commit.maxs.iter().map(|(key, _)| key)) {
            rows.young.remove(key);
            rows.old.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_last_is_known_within_a_bound() {
        let guesses = Guesses::default();
        let key = |n: u64| Key::inode(base::Ino(n));
        let value = |n: u8| Value::from(&[n][..]);
        assert_eq!(guesses.of(&key(1)), None);
        guesses.saw(&key(1), None);
        assert_eq!(guesses.of(&key(1)), Some(None));
        let commit = Commit { puts: vec![(key(1), value(1))], adds: vec![(key(2), 1)], ..Commit::default() };
        guesses.saw(&key(2), Some(&value(2)));
        guesses.made(&commit);
        assert_eq!((guesses.of(&key(1)), guesses.of(&key(2))), (Some(Some(value(1))), None));
        (10..10_000).for_each(|n| guesses.saw(&key(n), None));
        assert_eq!(guesses.of(&key(1)), None, "it is old");
        let rows = guesses.0.lock();
        assert!(rows.young.len() + rows.old.len() <= 2 * GENERATION);
    }
}
