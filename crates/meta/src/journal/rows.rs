//! Clean rows: what the database said of keys that were asked for lately, also that there is no such row.
//!
//! Bounded in bytes. Each shard has a young half and an old half: a row that is used moves to the young one; when that is full, the
//! old one goes as a whole. So a row costs nothing beside itself, and hot rows stay.
//!
//! A row here equals the database's, unless the overlay hides it. The journal keeps that true: it fills this only under its gate,
//! and brings it up to date before a drained generation goes.

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::overlay::RowMap;
use crate::key::Key;
use crate::store::Value;

const SHARDS: usize = 16;
/// What a row takes beside its bytes.
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
    /// Of at most about `bytes` in all.
    pub(super) fn new(bytes: usize) -> CleanRows {
        CleanRows { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), half_bytes: bytes / SHARDS / 2 }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        // Keys of a kind differ in their last bytes.
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

    /// These rows are now in the database.
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
            // Larger than is worth keeping; and what stood here is no longer true.
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
