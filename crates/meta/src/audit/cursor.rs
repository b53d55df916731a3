//! Iterates over all rows of one kind, a batch at a time.

use std::collections::VecDeque;

use crate::key::{Key, KeyRange};
use crate::store::{MetaStore, StoreError, Value};

const BATCH: usize = 1024;

/// Rows of a range, in order.
pub(super) struct Cursor<'a> {
    store: &'a dyn MetaStore,
    rest: Option<KeyRange>,
    batch: VecDeque<(Key, Value)>,
    /// Rows read since [`Cursor::take_read`].
    read: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(store: &'a dyn MetaStore, range: KeyRange) -> Cursor<'a> {
        Cursor { store, rest: Some(range), batch: VecDeque::new(), read: 0 }
    }

    /// All rows of a kind.
    pub fn kind(store: &'a dyn MetaStore, tag: u8) -> Cursor<'a> {
        Cursor::new(store, Key::kind(tag))
    }

    fn fill(&mut self) -> Result<(), StoreError> {
        if !self.batch.is_empty() {
            return Ok(());
        }
        let Some(range) = self.rest.take() else { return Ok(()) };
        let rows = self.store.scan(&range, BATCH)?;
        self.read += rows.len();
        if rows.len() == BATCH {
            self.rest = rows.last().map(|(last, _)| KeyRange { start: last.successor(), end: range.end });
        }
        self.batch = rows.into();
        Ok(())
    }

    pub fn next(&mut self) -> Result<Option<(Key, Value)>, StoreError> {
        self.fill()?;
        Ok(self.batch.pop_front())
    }

    /// The number that the next row is about. A key too short to have one counts as 0, a number that no inode
    /// and no pack has.
    pub fn number(&mut self) -> Result<Option<u64>, StoreError> {
        self.fill()?;
        Ok(self.batch.front().map(|(key, _)| key.number().unwrap_or(0)))
    }

    /// The next row if it is about this number.
    pub fn next_of(&mut self, number: u64) -> Result<Option<(Key, Value)>, StoreError> {
        if self.number()? == Some(number) { self.next() } else { Ok(None) }
    }

    /// How many rows were read since the last call.
    pub fn take_read(&mut self) -> usize {
        std::mem::take(&mut self.read)
    }
}
