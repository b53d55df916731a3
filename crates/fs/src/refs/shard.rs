//! Counts of references, a few bytes for each inode.
//!
//! Inodes that are made together have neighbouring numbers, and the kernel refers to most of them once. So a
//! block holds the counts of sixteen neighbours, a byte for each. A count that a byte does not hold is in a
//! table of its own.

use base::Ino;
use hashbrown::HashMap;

/// How many neighbours a block holds.
const BLOCK: usize = 16;
/// In a block: the count is in [`Shard::many`].
const MANY: u8 = u8::MAX;

/// The counts of some inodes. Those that are zero are absent.
#[derive(Default)]
pub(super) struct Shard {
    blocks: HashMap<u64, [u8; BLOCK]>,
    /// The counts that are not less than [`MANY`].
    many: HashMap<u64, u64>,
    held: usize,
}

/// The number of an inode's block. All inodes of a block belong in one shard.
pub(super) fn block(ino: Ino) -> u64 {
    ino.0 / BLOCK as u64
}

fn place(ino: Ino) -> usize {
    (ino.0 % BLOCK as u64) as usize
}

impl Shard {
    /// The count of an inode.
    pub(super) fn get(&self, ino: Ino) -> u64 {
        match self.blocks.get(&block(ino)).map_or(0, |counts| counts[place(ino)]) {
            MANY => self.many.get(&ino.0).copied().unwrap_or(0),
            few => u64::from(few),
        }
    }

    pub(super) fn set(&mut self, ino: Ino, count: u64) {
        let few = u8::try_from(count).unwrap_or(MANY);
        let counts = self.blocks.entry(block(ino)).or_default();
        let before = std::mem::replace(&mut counts[place(ino)], few);
        let is_empty = few == 0 && *counts == [0; BLOCK];
        self.held = self.held + usize::from(few != 0) - usize::from(before != 0);
        if few == MANY {
            self.many.insert(ino.0, count);
        } else if before == MANY {
            self.many.remove(&ino.0);
        }
        if is_empty {
            self.blocks.remove(&block(ino));
            if self.blocks.capacity() > 64 && self.blocks.len() < self.blocks.capacity() / 4 {
                self.blocks.shrink_to(self.blocks.len() * 2);
            }
        }
    }

    /// How many inodes have a count.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// All inodes that have a count.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let inos =
            self.blocks.keys().flat_map(|block| (0..BLOCK as u64).map(move |at| block * BLOCK as u64 + at));
        inos.map(|ino| (ino, self.get(Ino(ino)))).filter(|(_, count)| *count > 0)
    }

    /// How many bytes the tables take.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.blocks.allocation_size() + self.many.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::dice::Dice;
    use std::collections::BTreeMap;

    #[test]
    fn it_counts_as_a_plain_table_does() {
        let (mut dice, mut shard, mut model) = (Dice::new(7), Shard::default(), BTreeMap::new());
        for _ in 0..20_000 {
            // Numbers near each other, near the end of all numbers too, and counts around what a byte holds.
            let ino = [0, 1 << 40, u64::MAX - 99][dice.below(3)] + dice.below(100) as u64;
            let count = [0, 0, 1, 2, 254, 255, 256, 1 << 33][dice.below(8)];
            shard.set(Ino(ino), count);
            model.insert(ino, count);
            model.retain(|_, count| *count > 0);
            assert_eq!(shard.get(Ino(ino)), count);
            assert_eq!(shard.held(), model.len());
        }
        assert_eq!(shard.all().collect::<BTreeMap<_, _>>(), model);
        model.keys().for_each(|ino| shard.set(Ino(*ino), 0));
        assert_eq!((shard.held(), shard.blocks.len(), shard.many.len()), (0, 0, 0));
    }
}
