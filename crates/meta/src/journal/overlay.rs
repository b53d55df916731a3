//! What is not in the database yet: rows of recent commits, in two generations.
//!
//! ```text
//!   get:   active  ->  draining  ->  (clean rows)  ->  database
//! ```
//!
//! Commits write to *active*. When it is to be drained it becomes *draining* and does not change any more
//! until the database holds it. A row to remove is kept as none and hides the database's row.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::engine::Final;
use crate::key::{Key, KeyRange};
use crate::store::Value;

/// Rows by key; none: the row is to be removed.
pub(super) type RowMap = BTreeMap<Key, Option<Value>>;

/// Overhead of a row beside its bytes: two counted allocations and a slot of the tree.
const ROW_OVERHEAD: usize = 128;

/// How much commits have put into one generation, or into both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// The number of rows.
    pub(super) rows: usize,
    /// The rows' bytes in memory, with the overhead.
    pub(super) bytes: usize,
}

/// Rows as of one record of the log, to be written to the database.
pub(super) struct Generation {
    pub(super) rows: RowMap,
    /// The last record whose rows are included.
    pub(super) upto: u64,
    bytes: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Overlay {
    active: RowMap,
    active_bytes: usize,
    draining: Option<Arc<Generation>>,
    /// Changes with every commit.
    version: u64,
}

impl Overlay {
    /// The row's value here; none if the overlay does not have the row.
    pub(super) fn get(&self, key: &Key) -> Option<&Option<Value>> {
        self.active.get(key).or_else(|| self.draining.as_ref()?.rows.get(key))
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The size of *active*.
    pub(super) fn active_size(&self) -> Size {
        Size { rows: self.active.len(), bytes: self.active_bytes }
    }

    /// The size of both generations.
    pub(super) fn size(&self) -> Size {
        let Size { mut rows, mut bytes } = self.active_size();
        if let Some(draining) = &self.draining {
            rows += draining.rows.len();
            bytes += draining.bytes;
        }
        Size { rows, bytes }
    }

    /// Applies a commit's rows.
    pub(super) fn apply(&mut self, rows: Vec<Final>) {
        let weigh = |key: &Key, value: &Option<Value>| {
            key.as_bytes().len() + value.as_ref().map_or(0, |value| value.len()) + ROW_OVERHEAD
        };
        for (key, value) in rows {
            let key_len = key.as_bytes().len();
            self.active_bytes += weigh(&key, &value);
            if let Some(before) = self.active.insert(key, value) {
                self.active_bytes -= key_len + before.map_or(0, |value| value.len()) + ROW_OVERHEAD;
            }
        }
        self.version += 1;
    }

    pub(super) fn draining(&self) -> Option<&Arc<Generation>> {
        self.draining.as_ref()
    }

    /// Turns *active*, which holds the rows up to record `upto`, into the generation to drain, even if it is
    /// empty. False if there is one already.
    pub(super) fn rotate(&mut self, upto: u64) -> bool {
        if self.draining.is_some() {
            return false;
        }
        let (rows, bytes) = (std::mem::take(&mut self.active), std::mem::take(&mut self.active_bytes));
        self.draining = Some(Arc::new(Generation { rows, upto, bytes }));
        true
    }

    /// Drops the generation: the database holds it.
    pub(super) fn drained(&mut self) -> Option<Arc<Generation>> {
        self.draining.take()
    }

    /// The overlay's rows at the beginning of a range, in order, until `limit` present rows are included.
    /// These suffice for the first `limit` rows of overlay and database together.
    pub(super) fn capture(&self, range: &KeyRange, limit: usize) -> Vec<Final> {
        let mut captured = Vec::new();
        if range.start >= range.end {
            return captured;
        }
        let bounds = (Bound::Included(&range.start), Bound::Excluded(&range.end));
        let mut newer = self.active.range::<Key, _>(bounds).peekable();
        let older = self.draining.as_ref().map(|generation| generation.rows.range::<Key, _>(bounds));
        let mut older = older.into_iter().flatten().peekable();
        let mut live = 0;
        while live < limit {
            let next = match (newer.peek(), older.peek()) {
                (Some((new, _)), Some((old, _))) if new == old => {
                    older.next();
                    newer.next()
                }
                (Some((new, _)), Some((old, _))) if old < new => older.next(),
                (Some(_), _) => newer.next(),
                (None, _) => older.next(),
            };
            let Some((key, value)) = next else { break };
            live += usize::from(value.is_some());
            captured.push((key.clone(), value.clone()));
        }
        captured
    }
}

/// Merges captured rows with those of the database below them.
pub(super) struct Merge {
    above: std::iter::Peekable<std::vec::IntoIter<Final>>,
    out: Vec<(Key, Value)>,
    limit: usize,
}

impl Merge {
    pub(super) fn new(rows: Vec<Final>, limit: usize) -> Merge {
        Merge { above: rows.into_iter().peekable(), out: Vec::new(), limit }
    }

    /// Adds the database's next row. False when there are enough.
    pub(super) fn below(&mut self, key: &[u8], value: &[u8]) -> bool {
        while let Some((above, hides)) = self.above.next_if(|(above, _)| above.as_bytes() <= key) {
            let same = above.as_bytes() == key;
            if !self.push(above, hides) {
                return false;
            }
            if same {
                return true;
            }
        }
        self.push(Key::from_bytes(key), Some(value.into()))
    }

    /// Ends the merge: the database has no more rows.
    pub(super) fn finish(mut self) -> Vec<(Key, Value)> {
        while self.out.len() < self.limit {
            let Some((key, value)) = self.above.next() else { break };
            self.push(key, value);
        }
        self.out
    }

    fn push(&mut self, key: Key, value: Option<Value>) -> bool {
        self.out.extend(value.map(|value| (key, value)));
        self.out.len() < self.limit
    }
}
