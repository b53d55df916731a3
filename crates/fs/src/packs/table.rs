//! A cache of the pack table: where each pack's bytes are.
//!
//! It is bounded: two generations per shard. An entry that is read moves to the young generation. When that
//! is full, it becomes the old one, and the old one is dropped. An entry may be out of date (the pack was
//! sealed, or deleted). A read that fails for that reason drops the entry and looks again.

use base::{BlobId, PackNo};
use hashbrown::HashMap;
use parking_lot::Mutex;

const SHARDS: usize = 16;
/// Entries of one generation of a shard. 2 x 16 x 2,048 entries of 56 bytes are at most 4 MiB, including a
/// hash table's unused slots.
const GENERATION: usize = 2048;

/// Where a pack's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In an open pack of this node.
    Open,
    /// In a blob.
    Blob(BlobId),
}

#[derive(Default)]
struct Shard {
    young: HashMap<PackNo, Place>,
    old: HashMap<PackNo, Place>,
}

impl Shard {
    fn put(&mut self, pack: PackNo, place: Place) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(pack, place);
    }
}

/// The cache. See the [module](self).
pub(crate) struct Table {
    shards: [Mutex<Shard>; SHARDS],
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, pack: PackNo) -> &Mutex<Shard> {
        &self.shards[pack.0 as usize % SHARDS]
    }

    pub(crate) fn get(&self, pack: PackNo) -> Option<Place> {
        let mut shard = self.shard(pack).lock();
        if let Some(place) = shard.young.get(&pack) {
            return Some(*place);
        }
        let place = shard.old.remove(&pack)?;
        shard.put(pack, place);
        Some(place)
    }

    pub(crate) fn put(&self, pack: PackNo, place: Place) {
        self.shard(pack).lock().put(pack, place);
    }

    pub(crate) fn drop(&self, pack: PackNo) {
        let mut shard = self.shard(pack).lock();
        shard.young.remove(&pack);
        shard.old.remove(&pack);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_bounded_and_keeps_what_is_used() {
        let table = Table::new();
        table.put(PackNo(0), Place::Open);
        for n in 1..200_000 {
            table.put(PackNo(n), Place::Open);
            assert_eq!(table.get(PackNo(0)), Some(Place::Open));
        }
        let entries: usize = table.shards.iter().map(|s| s.lock()).map(|s| s.young.len() + s.old.len()).sum();
        assert!(entries <= 2 * SHARDS * GENERATION);
        table.drop(PackNo(0));
        assert_eq!(table.get(PackNo(0)), None);
    }
}
