//! Ghosts: the names of blobs that were evicted without a second read. A ghost is eight bytes of the name,
//! and the space the blob took.
//!
//! First in, first out, as many as would have filled the given room. Two blobs may share the same eight
//! bytes. Then one of them gets a place in main that it has not earned. A blob that returned and was evicted
//! again may be forgotten a little early.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use base::BlobId;

/// A hasher for numbers that are parts of hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// See the module.
pub(super) struct Ghosts {
    /// In the order of eviction. A ghost that was taken stays here without effect.
    order: VecDeque<(u64, u32)>,
    /// How many ghosts in `order` have this name and were not taken.
    names: HashMap<u64, u32, BuildHasherDefault<AsIs>>,
    pages: u64,
}

const PAGE: u64 = 4096;

fn name(id: &BlobId) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| id.0[i + 16]))
}

impl Ghosts {
    pub(super) fn new() -> Ghosts {
        Ghosts { order: VecDeque::new(), names: HashMap::default(), pages: 0 }
    }

    /// Adds a blob that took `bytes`. Drops the oldest ghosts until the rest took at most `room` together.
    pub(super) fn add(&mut self, id: &BlobId, bytes: u64, room: u64) {
        let pages = bytes.div_ceil(PAGE) as u32;
        self.order.push_back((name(id), pages));
        *self.names.entry(name(id)).or_insert(0) += 1;
        self.pages += u64::from(pages);
        while self.pages * PAGE > room
            && let Some((name, pages)) = self.order.pop_front()
        {
            self.pages -= u64::from(pages);
            self.forget(name);
        }
    }

    fn forget(&mut self, name: u64) {
        if let Some(count) = self.names.get_mut(&name) {
            *count -= 1;
            if *count == 0 {
                self.names.remove(&name);
            }
        }
    }

    /// Whether the blob was evicted recently. Removes its ghost.
    pub(super) fn take(&mut self, id: &BlobId) -> bool {
        self.names.remove(&name(id)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_lately_is_known_once() {
        let mut ghosts = Ghosts::new();
        let id = |n: u8| BlobId([n; 32]);
        (0..10).for_each(|n| ghosts.add(&id(n), PAGE, 4 * PAGE));
        assert!(!ghosts.take(&id(5)) && ghosts.take(&id(6)) && !ghosts.take(&id(6)));
        // A ghost that was taken and added again is found again, and expires with its own age.
        ghosts.add(&id(6), PAGE, 4 * PAGE);
        assert!(ghosts.take(&id(7)) || ghosts.take(&id(6)));
        (20..24).for_each(|n| ghosts.add(&id(n), PAGE, 4 * PAGE));
        assert!(!ghosts.take(&id(6)) && !ghosts.take(&id(9)) && ghosts.take(&id(20)));
        assert_eq!((ghosts.order.len(), ghosts.pages), (4, 4));
        ghosts.add(&id(1), 100 * PAGE, 4 * PAGE);
        assert!(ghosts.names.is_empty() && ghosts.order.is_empty() && ghosts.pages == 0);
    }
}
