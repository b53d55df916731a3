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

/// What is remembered of a pack.
#[derive(Clone, Copy)]
enum Entry {
    At(Place),
    /// Another node has named it so. The origin may not have it yet.
    Named(BlobId),
}

#[derive(Default)]
struct Shard {
    young: HashMap<PackNo, Entry>,
    old: HashMap<PackNo, Entry>,
}

impl Shard {
    fn get(&mut self, pack: PackNo) -> Option<Entry> {
        if let Some(entry) = self.young.get(&pack) {
            return Some(*entry);
        }
        let entry = self.old.remove(&pack)?;
        self.put(pack, entry);
        Some(entry)
    }

    fn put(&mut self, pack: PackNo, entry: Entry) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(pack, entry);
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
        match self.shard(pack).lock().get(pack)? {
            Entry::At(place) => Some(place),
            Entry::Named(_) => None,
        }
    }

    pub(crate) fn put(&self, pack: PackNo, place: Place) {
        self.shard(pack).lock().put(pack, Entry::At(place));
    }

    /// The blob of another node's pack that the origin may not have yet. Bytes of it that are here are those
    /// of the pack, since neither ever changes. Where they are not here, the pack's row and its owner say
    /// where to read them.
    pub(crate) fn named(&self, pack: PackNo) -> Option<BlobId> {
        match self.shard(pack).lock().get(pack)? {
            Entry::At(_) => None,
            Entry::Named(blob) => Some(blob),
        }
    }

    /// Remembers the [name](Table::named) of another node's pack.
    pub(crate) fn put_named(&self, pack: PackNo, blob: BlobId) {
        self.shard(pack).lock().put(pack, Entry::Named(blob));
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

    /// A blob that the origin may not have yet must not be read as one that it has.
    #[test]
    fn the_name_of_a_pack_is_no_place() {
        let (table, pack, blob) = (Table::new(), PackNo(7), BlobId([3; 32]));
        table.put_named(pack, blob);
        assert_eq!((table.get(pack), table.named(pack)), (None, Some(blob)));
        table.put(pack, Place::Blob(blob));
        assert_eq!((table.get(pack), table.named(pack)), (Some(Place::Blob(blob)), None));
        table.put_named(pack, blob);
        table.drop(pack);
        assert_eq!((table.get(pack), table.named(pack)), (None, None));
    }
}
