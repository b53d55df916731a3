//! Changes that are acknowledged and not yet in the engine, in one batch.

use std::collections::BTreeMap;
use std::time::Instant;

use base::Ino;
use hashbrown::{HashMap, HashSet};

use super::row::Mode;
use super::state::Unit;
use crate::key::{Key, tags};
use crate::record::{decode_i64, decode_u64, encode_i64, encode_u64};
use crate::store::{Commit, Expect, FreshData, Value};

/// What the changes of a batch make of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    Put(Value),
    Del,
    Add(i64),
    Max(u64),
}

impl Effect {
    /// Both effects, one after the other.
    fn then(self, next: Effect) -> Effect {
        match (self, next) {
            (Effect::Add(a), Effect::Add(b)) => Effect::Add(a.saturating_add(b)),
            (Effect::Max(a), Effect::Max(b)) => Effect::Max(a.max(b)),
            (Effect::Put(value), Effect::Add(by)) => sum(Some(&value), by),
            (Effect::Del, Effect::Add(by)) => sum(None, by),
            (Effect::Put(value), Effect::Max(to)) => highest(Some(&value), to),
            (Effect::Del, Effect::Max(to)) => highest(None, to),
            (_, next) => next,
        }
    }
}

fn sum(value: Option<&[u8]>, by: i64) -> Effect {
    added(value, by).map_or(Effect::Del, Effect::Put)
}

fn highest(value: Option<&[u8]>, to: u64) -> Effect {
    raised(value, to).map_or(Effect::Del, Effect::Put)
}

/// A counter's row after an addition.
pub(super) fn added(value: Option<&[u8]>, by: i64) -> Option<Value> {
    let sum = decode_i64(value).unwrap_or(0).saturating_add(by);
    (sum != 0).then(|| encode_i64(sum))
}

/// The row of a raised value.
pub(super) fn raised(value: Option<&[u8]>, to: u64) -> Option<Value> {
    Some(encode_u64(decode_u64(value).unwrap_or(0).max(to)))
}

/// Changes that become one commit.
#[derive(Default)]
pub(super) struct Batch {
    rows: HashMap<Key, Effect>,
    fresh: Vec<FreshData>,
    /// The lease rows under which the changes were made.
    leases: BTreeMap<Ino, Value>,
    /// Of these, the ones that the batch itself makes.
    made: HashSet<Ino>,
    /// Rows that other nodes may read, and no node changes, while this node has its leases.
    checks: HashMap<Key, Expect>,
}

impl Batch {
    fn effect(&mut self, key: &Key, effect: Effect) {
        let before = self.rows.remove(key);
        let effect = match before {
            Some(before) => before.then(effect),
            None => effect,
        };
        self.rows.insert(key.clone(), effect);
    }

    /// Adds a change that was made under the leases of these units.
    pub fn add(&mut self, commit: &Commit, units: Vec<(Ino, Value)>, checks: Vec<(Key, Expect)>) {
        commit.puts.iter().for_each(|(key, value)| self.effect(key, Effect::Put(value.clone())));
        commit.dels.iter().for_each(|key| self.effect(key, Effect::Del));
        commit.adds.iter().for_each(|(key, by)| self.effect(key, Effect::Add(*by)));
        commit.maxs.iter().for_each(|(key, to)| self.effect(key, Effect::Max(*to)));
        self.fresh.extend(&commit.fresh);
        self.leases.extend(units);
        for (key, expect) in checks {
            self.checks.entry(key).or_insert(expect);
        }
    }

    /// Adds the lease of a unit that this node has made.
    pub fn make(&mut self, ino: Ino, unit: &Unit) {
        debug_assert_eq!(unit.mode, Mode::Write);
        self.effect(&Key::lease(ino), Effect::Put(unit.lease.clone()));
        self.made.insert(ino);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The inodes that the batch is about.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        let about = |key: &Key| {
            let is_inode = matches!(key.tag(), tags::INODE | tags::DENTRY | tags::EXTENTS | tags::XATTR);
            key.number().filter(|_| is_inode).map(Ino)
        };
        self.rows.keys().filter_map(about)
    }

    /// The batch as a commit, which holds only if the leases do.
    pub fn commit(&self) -> Commit {
        let mut commit = Commit { fresh: self.fresh.clone(), ..Commit::default() };
        for (key, effect) in &self.rows {
            match effect {
                Effect::Put(value) => commit.puts.push((key.clone(), value.clone())),
                Effect::Del => commit.dels.push(key.clone()),
                Effect::Add(0) => {}
                Effect::Add(by) => commit.adds.push((key.clone(), *by)),
                Effect::Max(to) => commit.maxs.push((key.clone(), *to)),
            }
        }
        commit.checks.extend(self.checks.iter().map(|(key, expect)| (key.clone(), expect.clone())));
        let leases = self.leases.iter().filter(|(unit, _)| !self.made.contains(*unit));
        commit.checks.extend(leases.map(|(unit, lease)| (Key::lease(*unit), Expect::Is(lease.clone()))));
        // No other node can know of these yet.
        commit.checks.extend(self.made.iter().map(|unit| (Key::lease(*unit), Expect::Absent)));
        commit
    }
}

/// The batch that is being filled, and how far the earlier ones are.
pub(super) struct Queue {
    pub filling: Batch,
    /// The number of the batch that is being filled.
    pub current: u64,
    /// All batches up to this one are in the engine.
    pub done: u64,
    /// How many rows are in the batch that is being committed.
    pub flying: usize,
    /// When the oldest change was made that is not in the engine.
    pub oldest: Option<Instant>,
    /// Something waits for the batch: do not let it grow.
    pub hurry: bool,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { filling: Batch::default(), current: 1, done: 0, flying: 0, oldest: None, hurry: false }
    }
}

impl Queue {
    /// The last batch that has a change.
    pub fn last(&self) -> u64 {
        if self.filling.is_empty() { self.current - 1 } else { self.current }
    }

    /// How many rows are not in the engine.
    pub fn rows(&self) -> usize {
        self.filling.rows() + self.flying
    }

    /// The batch to commit next, with its number.
    pub fn take(&mut self) -> (u64, Batch) {
        let batch = std::mem::take(&mut self.filling);
        self.flying = batch.rows();
        self.current += 1;
        self.hurry = false;
        (self.current - 1, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Memory;
    use crate::store::MetaStore;

    /// A batch does what its changes do one after the other.
    #[test]
    fn a_batch_is_the_sum_of_its_changes() {
        let keys: Vec<Key> = (1..6).map(|n| Key::subdirs(Ino(n))).collect();
        for seed in 0..500u64 {
            let mut dice = base::dice::Dice::new(seed);
            let (one, all) = (Memory::new(), Memory::new());
            let mut batch = Batch::default();
            for step in 0..12u64 {
                let key = keys[dice.below(5)].clone();
                let number = 1 + dice.below(4) as u64;
                let mut commit = Commit::default();
                // A row is a counter or a maximum, not both.
                let counts = key.number().is_some_and(|n| n % 2 == 0);
                match dice.below(4) {
                    0 => commit.puts.push((key, encode_u64(number))),
                    1 => commit.dels.push(key),
                    _ if counts => commit.adds.push((key, if step % 2 == 0 { 1 } else { -1 })),
                    _ => commit.maxs.push((key, number)),
                }
                one.commit(commit.clone()).unwrap();
                batch.add(&commit, Vec::new(), Vec::new());
            }
            all.commit(batch.commit()).unwrap();
            assert_eq!(one.get_many(&keys).unwrap(), all.get_many(&keys).unwrap(), "seed {seed}");
        }
    }
}
