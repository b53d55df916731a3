//! The names of blobs that went unread: eight bytes of each, and what room it had.
//!
//! First in, first out, as many as would have filled the room given. Two blobs may have the same eight bytes; one of them then gets a
//! place in main that it has not earned. What came back and went again may be forgotten a little early.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use base::BlobId;

/// The numbers are parts of hashes already.
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
    /// In the order of their going. One that was taken is still in it, and counts for nothing.
    order: VecDeque<(u64, u32)>,
    /// How many in `order` have this name and were not taken.
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

    /// A blob went that took `bytes`; of all that went, those are remembered that took no more than `room` together.
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

    /// Whether the blob went lately. It is forgotten then.
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
        // A name that was taken and went again is known again, and goes with its own age.
        ghosts.add(&id(6), PAGE, 4 * PAGE);
        assert!(ghosts.take(&id(7)) || ghosts.take(&id(6)));
        (20..24).for_each(|n| ghosts.add(&id(n), PAGE, 4 * PAGE));
        assert!(!ghosts.take(&id(6)) && !ghosts.take(&id(9)) && ghosts.take(&id(20)));
        assert_eq!((ghosts.order.len(), ghosts.pages), (4, 4));
        ghosts.add(&id(1), 100 * PAGE, 4 * PAGE);
        assert!(ghosts.names.is_empty() && ghosts.order.is_empty() && ghosts.pages == 0);
    }
}
