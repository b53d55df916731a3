//! A store for tests: one map behind one lock. It refuses commits that break the rules of [`crate::Commit`].

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use crate::key::{Key, KeyRange};
use crate::record::{decode_i64, decode_u64, encode_i64, encode_u64};
use crate::store::{Commit, CommitError, Expect, MetaStore, Rows, StoreError, Value};

#[derive(Default)]
pub(crate) struct TestStore {
    pub rows: Mutex<BTreeMap<Key, Value>>,
    /// Reads and commits so far.
    pub calls: std::sync::atomic::AtomicUsize,
}

impl TestStore {
    fn called(&self) {
        self.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Writes a row without any check, to plant damage.
    pub fn plant(&self, key: Key, value: Option<Value>) {
        let mut rows = self.rows.lock().unwrap();
        match value {
            Some(value) => rows.insert(key, value),
            None => rows.remove(&key),
        };
    }
}

fn assert_sound(commit: &Commit) {
    let mut seen = HashSet::new();
    let puts = commit.puts.iter().map(|(key, _)| key);
    let adds = commit.adds.iter().map(|(key, _)| key);
    let maxs = commit.maxs.iter().map(|(key, _)| key);
    for key in puts.chain(&commit.dels).chain(adds).chain(maxs) {
        assert!(seen.insert(key.clone()), "{key:?} occurs twice in {commit:?}");
    }
}

impl MetaStore for TestStore {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.called();
        Ok(self.rows.lock().unwrap().get(key).cloned())
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        true
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.called();
        let rows = self.rows.lock().unwrap();
        Ok(keys.iter().map(|key| rows.get(key).cloned()).collect())
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.called();
        let rows = self.rows.lock().unwrap();
        let found = rows.range(range.start.clone()..range.end.clone()).take(limit);
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.called();
        assert_sound(&commit);
        let mut rows = self.rows.lock().unwrap();
        let holds = |(key, expect): &&(Key, Expect)| match (expect, rows.get(key)) {
            (Expect::Is(value), Some(row)) => value == row,
            (Expect::Absent, None) | (Expect::Exists, Some(_)) => true,
            _ => false,
        };
        let failed: Vec<Key> =
            commit.checks.iter().filter(|c| !holds(c)).map(|(key, _)| key.clone()).collect();
        let not_empty =
            commit.empty.iter().any(|r| rows.range(r.start.clone()..r.end.clone()).next().is_some());
        if !failed.is_empty() || not_empty {
            let rows = failed.into_iter().map(|key| (key.clone(), rows.get(&key).cloned())).collect();
            return Err(CommitError::Conflict { rows, not_empty });
        }
        rows.extend(commit.puts);
        for key in commit.dels {
            rows.remove(&key);
        }
        for (key, by) in commit.adds {
            match decode_i64(rows.get(&key).map(|v| &v[..])).unwrap() + by {
                0 => rows.remove(&key),
                sum => rows.insert(key, encode_i64(sum)),
            };
        }
        for (key, to) in commit.maxs {
            let max = decode_u64(rows.get(&key).map(|v| &v[..])).unwrap().max(to);
            rows.insert(key, encode_u64(max));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
