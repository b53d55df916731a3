//! Changes that are acknowledged and not yet in the engine, in one batch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use base::Ino;
use hashbrown::{HashMap, HashSet};

use super::row::Holder;
use crate::key::{Key, tags};
use crate::record::{decode_i64, decode_u64, encode_i64, encode_u64};
use crate::store::{Commit, Expect, FreshData, Limit, Value};

/// A change makes at most so many units. Each takes a row and a check.
const MADE_MOST: usize = 1;

/// What the changes of a batch make of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    Put(Value),
    Del,
    Add(i64),
    Max(u64),
}

impl Effect {
    /// How long the row's value is.
    fn bytes(&self) -> usize {
        match self {
            Effect::Put(value) => value.len(),
            Effect::Del => 0,
            Effect::Add(_) | Effect::Max(_) => 8,
        }
    }

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
    /// What the names that it changes were before it.
    names_before: HashMap<Key, Expect>,
    /// The bytes of the rows.
    bytes: usize,
    /// How many of the rows are added to.
    adds: usize,
    /// When its first change was made.
    since: Option<Instant>,
}

impl Batch {
    fn effect(&mut self, key: &Key, effect: Effect) {
        let before = self.rows.remove(key);
        if let Some(before) = &before {
            self.bytes -= key.as_bytes().len() + before.bytes();
            self.adds -= usize::from(matches!(before, Effect::Add(_)));
        }
        let effect = match before {
            Some(before) => before.then(effect),
            None => effect,
        };
        self.bytes += key.as_bytes().len() + effect.bytes();
        self.adds += usize::from(matches!(effect, Effect::Add(_)));
        self.rows.insert(key.clone(), effect);
    }

    /// Whether it stays within the limit if this change is added. The rows of both are counted, also those
    /// that they share.
    fn takes(&self, commit: &Commit, leases: usize, checks: usize, limit: Limit) -> bool {
        let puts = commit.puts.iter().map(|(key, value)| (key, value.len()));
        let counters = commit.adds.iter().map(|(key, _)| (key, 8));
        let all = puts.chain(commit.dels.iter().map(|key| (key, 0))).chain(counters);
        let all = all.chain(commit.maxs.iter().map(|(key, _)| (key, 8)));
        let (rows, bytes) =
            all.fold((0, 0), |(rows, bytes), (key, value)| (rows + 1, bytes + key.as_bytes().len() + value));
        let rests = self.leases.len() + self.made.len() + self.checks.len() + self.adds;
        let rests = rests + leases + MADE_MOST + checks + commit.adds.len();
        let rows = self.rows.len() + rows + MADE_MOST;
        rows <= limit.rows && self.bytes + bytes <= limit.bytes && rests <= limit.checks
    }

    /// Adds a change that was made under the leases of these units.
    pub fn add(&mut self, commit: &Commit, units: Vec<(Ino, Value)>, checks: Vec<(Key, Expect)>) {
        for (key, expect) in commit.checks.iter().filter(|(key, _)| key.tag() == tags::DENTRY) {
            if !self.rows.contains_key(key) {
                self.names_before.entry(key.clone()).or_insert_with(|| expect.clone());
            }
        }
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
    pub fn make(&mut self, ino: Ino, lease: &Value) {
        self.effect(&Key::lease(ino), Effect::Put(lease.clone()));
        self.made.insert(ino);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// How many bytes its rows have.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Names that are made or removed.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.rows.keys().filter_map(name_in)
    }

    /// What the names that it changes were before it.
    pub fn names_before(&self) -> impl Iterator<Item = (Key, Expect)> {
        self.names_before.iter().map(|(key, expect)| (key.clone(), expect.clone()))
    }

    /// The lease rows that must be there before the batch.
    pub fn needed(&self) -> impl Iterator<Item = (Ino, &Value)> {
        let needed = self.leases.iter().filter(|(unit, _)| !self.made.contains(*unit));
        needed.map(|(unit, row)| (*unit, row))
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
        commit.checks.extend(self.needed().map(|(unit, row)| (Key::lease(unit), Expect::Is(row.clone()))));
        // No other node can know of these yet.
        commit.checks.extend(self.made.iter().map(|unit| (Key::lease(*unit), Expect::Absent)));
        commit
    }
}

impl Batch {
    /// The batch as the next one of a session, of which the engine has `last`. So it is applied once, however
    /// often it is sent.
    pub fn numbered(&self, me: Holder, last: u64) -> Commit {
        let (key, mut commit) = (Key::batch(me.node, me.epoch), self.commit());
        let before = if last == 0 { Expect::Absent } else { Expect::Is(encode_u64(last)) };
        commit.checks.push((key.clone(), before));
        commit.puts.push((key, encode_u64(last + 1)));
        commit.session = Some(me.into());
        commit
    }
}

/// The name in a key of a directory entry.
pub(super) fn name_in(key: &Key) -> Option<String> {
    key.as_dentry().map(|dentry| format!("{:?}", String::from_utf8_lossy(dentry.name)))
}

/// The batches that are not in the engine, and how far the earlier ones are.
pub(super) struct Queue {
    pub filling: Batch,
    /// Batches that are as large as the engine likes them. They come before the one that is being filled, in
    /// this order.
    full: VecDeque<Batch>,
    /// The number of the batch that is being filled.
    pub current: u64,
    /// All batches up to this one are in the engine.
    pub done: u64,
    /// The batch that is being committed.
    pub flying: Option<Arc<Batch>>,
    /// When the oldest change was made that is not in the engine.
    pub oldest: Option<Instant>,
    /// Something waits for the batch: do not let it grow.
    pub hurry: bool,
    /// How large a batch of several changes may be.
    limit: Limit,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new(Limit::NONE)
    }
}

impl Queue {
    /// An empty queue for an engine with this limit.
    pub fn new(limit: Limit) -> Queue {
        Queue {
            filling: Batch::default(),
            full: VecDeque::new(),
            current: 1,
            done: 0,
            flying: None,
            oldest: None,
            hurry: false,
            limit,
        }
    }

    /// Adds a change that was made under the leases of these units. A change is never divided.
    pub fn add(
        &mut self,
        commit: &Commit,
        units: Vec<(Ino, Value)>,
        checks: Vec<(Key, Expect)>,
        now: Instant,
    ) {
        if !self.filling.is_empty() && !self.filling.takes(commit, units.len(), checks.len(), self.limit) {
            self.full.push_back(std::mem::take(&mut self.filling));
            self.current += 1;
        }
        self.filling.since.get_or_insert(now);
        self.filling.add(commit, units, checks);
    }

    /// Whether nothing waits to be committed.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.filling.is_empty()
    }

    /// Whether a batch is as large as it may become.
    pub fn is_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// The last batch that has a change.
    pub fn last(&self) -> u64 {
        if self.filling.is_empty() { self.current - 1 } else { self.current }
    }

    /// Whether a batch waits no more: it is being committed, or is in the engine.
    pub fn is_taken(&self, batch: u64) -> bool {
        batch < self.current - self.full.len() as u64
    }

    /// How many rows are not in the engine.
    pub fn rows(&self) -> usize {
        let flying = self.flying.iter().map(|batch| batch.rows());
        self.full.iter().map(Batch::rows).chain(flying).sum::<usize>() + self.filling.rows()
    }

    /// When the oldest change was made that waits to be committed.
    pub fn since(&self) -> Option<Instant> {
        self.full.front().unwrap_or(&self.filling).since
    }

    /// The batch to commit next, with its number.
    pub fn take(&mut self) -> (u64, Arc<Batch>) {
        let batches = self.full.len() as u64;
        let (number, batch) = match self.full.pop_front() {
            Some(batch) => (self.current - batches, batch),
            None => {
                self.current += 1;
                (self.current - 1, std::mem::take(&mut self.filling))
            }
        };
        // Those that wait say so again when this batch is done.
        self.hurry = false;
        let batch = Arc::new(batch);
        self.flying = Some(Arc::clone(&batch));
        (number, batch)
    }

    /// All batches, which are not to be committed any more, without the one that is being committed.
    pub fn take_all(&mut self) -> Vec<Batch> {
        let mut all: Vec<Batch> = self.full.drain(..).collect();
        all.push(std::mem::take(&mut self.filling));
        self.current += 1;
        (self.flying, self.oldest, self.hurry) = (None, None, false);
        self.done = self.current - 1;
        all
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

    /// Batches follow one another in the order of their changes, each within the limit, and together they do
    /// what the changes do.
    #[test]
    fn a_batch_that_is_full_is_followed_by_another() {
        let limit = Limit { rows: 5, bytes: 200, checks: 3 };
        let keys: Vec<Key> = (1..9).map(|n| Key::subdirs(Ino(n))).collect();
        for seed in 0..300u64 {
            let mut dice = base::dice::Dice::new(seed);
            let (one, all) = (Memory::new(), Memory::new());
            let (mut queue, now) = (Queue::new(limit), base::time::monotonic());
            let mut expected = 0;
            for step in 0..40u64 {
                let mut commit = Commit::default();
                for key in &keys {
                    if dice.below(4) != 0 {
                        continue;
                    }
                    match dice.below(3) {
                        0 => commit.puts.push((key.clone(), vec![step as u8; dice.below(60)].into())),
                        1 => commit.dels.push(key.clone()),
                        _ => commit.maxs.push((Key::dir_changed(Ino(key.number().unwrap())), step)),
                    }
                }
                if commit.is_empty() {
                    continue;
                }
                one.commit(commit.clone()).unwrap();
                queue.add(&commit, vec![(Ino(step % 5), encode_u64(step))], Vec::new(), now);
                if dice.below(6) == 0 {
                    let (number, batch) = queue.take();
                    expected += 1;
                    assert_eq!(number, expected);
                    all.commit(Commit { checks: Vec::new(), ..batch.commit() }).unwrap();
                }
            }
            let last = queue.last();
            while expected < last {
                let (number, batch) = queue.take();
                expected += 1;
                assert_eq!(number, expected);
                // A change that alone is larger is a batch of its own.
                let is_within = batch.rows() <= limit.rows && batch.bytes <= limit.bytes;
                assert!(is_within || batch.leases.len() == 1, "{} rows", batch.rows());
                assert!(batch.leases.len() <= limit.checks);
                all.commit(Commit { checks: Vec::new(), ..batch.commit() }).unwrap();
            }
            assert!(queue.is_empty());
            let rows = |store: &Memory| store.scan(&Key::kind(tags::SUBDIRS), usize::MAX).unwrap();
            let times = |store: &Memory| store.scan(&Key::kind(tags::DIR_CHANGED), usize::MAX).unwrap();
            assert_eq!((rows(&one), times(&one)), (rows(&all), times(&all)), "seed {seed}");
        }
    }
}
