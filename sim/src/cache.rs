//! A node's disk, as blob numbers: all that ever came, or as many as there is room for, by second chance.

use std::collections::HashMap;

/// See the module.
#[derive(Debug)]
pub enum Cache {
    /// A bit for each blob.
    All(Vec<u64>),
    /// A clock: the hand passes those used since it came by last, once.
    Some {
        /// Blob, and whether it was used.
        ring: Vec<(u32, bool)>,
        /// Where in the ring.
        places: HashMap<u32, u32>,
        /// The next to look at.
        hand: usize,
        /// So many have room.
        room: usize,
    },
}

impl Cache {
    /// Everything has room.
    pub fn all(blobs: u32) -> Cache {
        Cache::All(vec![0; blobs as usize / 64 + 1])
    }

    /// So many have room.
    pub fn of(room: usize) -> Cache {
        Cache::Some { ring: Vec::new(), places: HashMap::new(), hand: 0, room }
    }

    /// Whether it is there.
    pub fn has(&self, blob: u32) -> bool {
        match self {
            Cache::All(bits) => bits[blob as usize / 64] >> (blob % 64) & 1 == 1,
            Cache::Some { places, .. } => places.contains_key(&blob),
        }
    }

    /// The node itself reads it; says whether it was there.
    pub fn read(&mut self, blob: u32) -> bool {
        let there = self.has(blob);
        if let Cache::Some { ring, places, .. } = self
            && let Some(at) = places.get(&blob)
        {
            ring[*at as usize].1 = true;
        }
        there
    }

    /// Keeps it; says which had to go for it.
    pub fn keep(&mut self, blob: u32) -> Option<u32> {
        match self {
            Cache::All(bits) => {
                bits[blob as usize / 64] |= 1 << (blob % 64);
                None
            }
            Cache::Some { places, .. } if places.contains_key(&blob) => None,
            Cache::Some { ring, places, room, .. } if ring.len() < *room => {
                places.insert(blob, ring.len() as u32);
                ring.push((blob, false));
                None
            }
            Cache::Some { ring, places, hand, .. } => {
                while ring[*hand].1 {
                    ring[*hand].1 = false;
                    *hand = (*hand + 1) % ring.len();
                }
                let (gone, _) = std::mem::replace(&mut ring[*hand], (blob, false));
                places.remove(&gone);
                places.insert(blob, *hand as u32);
                *hand = (*hand + 1) % ring.len();
                Some(gone)
            }
        }
    }

    /// Calls `each` with all that is there, in an order that does not depend on chance.
    pub fn each(&self, mut each: impl FnMut(u32)) {
        match self {
            Cache::All(bits) => {
                let all = 0..bits.len() as u32 * 64;
                all.filter(|blob| self.has(*blob)).for_each(each);
            }
            Cache::Some { ring, .. } => ring.iter().for_each(|(blob, _)| each(*blob)),
        }
    }
}
