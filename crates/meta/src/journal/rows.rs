//! Clean rows: the database's answers for keys that were read recently, including "no such row".
//!
//! Bounded in bytes. Each shard has a young half and an old half. A row that is used moves to the young half.
//! When that is full, the old half is dropped as a whole. So a row has no bookkeeping of its own, and hot
//! rows stay.
//!
//! A row here equals the database's, unless the overlay hides it. The journal ensures that: it fills this
//! only inside its gate, and updates it before a drained generation is dropped.

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::overlay::RowMap;
use crate::key::Key;
use crate::store::Value;

const SHARDS: usize = 16;
/// Overhead of a row beside its bytes.
const ROW_OVERHEAD: usize = 96;

type Half = HashMap<Key, Option<Value>>;

#[derive(Default)]
struct Shard {
    young: Half,
    young_bytes: usize,
    old: Half,
}

/// See the module.
pub(super) struct CleanRows {
    shards: Vec<Mutex<Shard>>,
    half_bytes: usize,
}

impl CleanRows {
    /// Holds about `bytes` in all at most.
    pub(super) fn new(bytes: usize) -> CleanRows {
        CleanRows { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), half_bytes: bytes / SHARDS / 2 }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        // Keys of one kind differ in their last bytes.
        let bytes = key.as_bytes();
        let mix = bytes
            .iter()
            .rev()
            .take(8)
            .fold(0usize, |mix, byte| mix.wrapping_mul(31).wrapping_add(usize::from(*byte)));
        &self.shards[(mix ^ (mix >> 7)) % SHARDS]
    }

    pub(super) fn get(&self, key: &Key) -> Option<Option<Value>> {
        let mut shard = self.shard(key).lock();
        if let Some(row) = shard.young.get(key) {
            return Some(row.clone());
        }
        let (key, row) = shard.old.remove_entry(key)?;
        self.keep(&mut shard, key, row.clone());
        Some(row)
    }

    pub(super) fn insert(&self, key: &Key, row: &Option<Value>) {
        self.keep(&mut self.shard(key).lock(), key.clone(), row.clone());
    }

    /// Updates rows that were just written to the database.
    pub(super) fn refresh(&self, rows: &RowMap) {
        for (key, row) in rows {
            let mut shard = self.shard(key).lock();
            shard.old.remove(key);
            if shard.young.contains_key(key) {
                self.keep(&mut shard, key.clone(), row.clone());
            }
        }
    }

    fn keep(&self, shard: &mut Shard, key: Key, row: Option<Value>) {
        let weigh = |row: &Option<Value>| row.as_ref().map_or(0, |value| value.len());
        let added = weigh(&row) + key.as_bytes().len() + ROW_OVERHEAD;
        if added > self.half_bytes / 8 {
            // The row is too large to be kept, and what was kept for this key is outdated.
            if let Some(before) = shard.young.remove(&key) {
                shard.young_bytes -= weigh(&before) + key.as_bytes().len() + ROW_OVERHEAD;
            }
            shard.old.remove(&key);
            return;
        }
        let key_len = key.as_bytes().len();
        if let Some(before) = shard.young.insert(key, row) {
            shard.young_bytes -= weigh(&before) + key_len + ROW_OVERHEAD;
        }
        shard.young_bytes += added;
        if shard.young_bytes > self.half_bytes {
            shard.old = std::mem::take(&mut shard.young);
            shard.young_bytes = 0;
        }
    }
}
