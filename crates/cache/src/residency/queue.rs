//! Four queues over one table of slots.
//!
//! A slot is in exactly one queue and links to its neighbours by index. So removing one from the middle is as
//! quick as from an end. The indices of removed slots are reused.

use base::{BlobId, Must};
use hashbrown::HashTable;

use super::charge;

/// No slot.
const NONE: u32 = u32::MAX;

/// A flag in a slot's cost: see [`Slot::is_spared`]. A separate byte would make every slot four bytes longer.
const SPARED: u8 = 0x80;

/// Names a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Queue {
    Small = 0,
    Main = 1,
    Held = 2,
    Kept = 3,
}

/// One blob.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) id: BlobId,
    pub(super) size: u32,
    newer: u32,
    older: u32,
    /// When it was last used, in seconds.
    pub(super) used_s: u32,
    pub(super) credit: u8,
    /// The cost of fetching it again, and [`SPARED`].
    cost: u8,
    pub(super) queue: Queue,
    /// Seen on the disk by this process.
    pub(super) confirmed: bool,
}

impl Slot {
    pub(super) fn new(id: BlobId, size: u32, cost: u8, used_s: u32) -> Slot {
        Slot {
            id,
            size,
            newer: NONE,
            older: NONE,
            used_s,
            credit: 0,
            cost,
            queue: Queue::Small,
            confirmed: true,
        }
    }

    /// The code of its cost.
    pub(super) fn cost(&self) -> u8 {
        self.cost & !SPARED
    }

    /// Whether it was given an extra round in its queue already.
    pub(super) fn is_spared(&self) -> bool {
        self.cost & SPARED != 0
    }

    pub(super) fn set_spared(&mut self, spared: bool) {
        self.cost = self.cost() | if spared { SPARED } else { 0 };
    }
}

struct List {
    newest: u32,
    oldest: u32,
    len: usize,
    bytes: u64,
}

/// The queues, and the slots of all of them.
pub(super) struct Lists {
    table: HashTable<u32>,
    slots: Vec<Slot>,
    /// Head of the list of free slots, linked by `older`.
    free: u32,
    lists: [List; 4],
}

/// Names are hashes already. Their first bytes choose folders and shards, so this takes others.
fn hash(id: &BlobId) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| id.0[i + 8]))
}

impl Lists {
    pub(super) fn new() -> Lists {
        let list = |_| List { newest: NONE, oldest: NONE, len: 0, bytes: 0 };
        Lists { table: HashTable::new(), slots: Vec::new(), free: NONE, lists: [0, 1, 2, 3].map(list) }
    }

    pub(super) fn reserve(&mut self, count: usize) {
        let slots = &self.slots;
        self.table.reserve(count, |at| hash(&slots[*at as usize].id));
        self.slots.reserve(count);
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lists.iter().map(|list| list.bytes).sum()
    }

    pub(super) fn len_of(&self, queue: Queue) -> usize {
        self.lists[queue as usize].len
    }

    pub(super) fn bytes_of(&self, queue: Queue) -> u64 {
        self.lists[queue as usize].bytes
    }

    pub(super) fn find(&self, id: &BlobId) -> Option<u32> {
        self.table.find(hash(id), |at| self.slots[*at as usize].id == *id).copied()
    }

    pub(super) fn slot(&self, at: u32) -> &Slot {
        &self.slots[at as usize]
    }

    pub(super) fn slot_mut(&mut self, at: u32) -> &mut Slot {
        &mut self.slots[at as usize]
    }

    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        let at = self.lists[queue as usize].oldest;
        (at != NONE).then_some(at)
    }

    /// Adds a blob that is in no queue yet.
    pub(super) fn add(&mut self, queue: Queue, slot: Slot) -> u32 {
        let at = if self.free == NONE {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).must("a disk holds fewer than four thousand million blobs")
        } else {
            let at = self.free;
            self.free = self.slots[at as usize].older;
            self.slots[at as usize] = slot;
            at
        };
        let slots = &self.slots;
        self.table.insert_unique(hash(&slot.id), at, |at| hash(&slots[*at as usize].id));
        self.push(queue, at);
        at
    }

    /// Forgets a blob.
    pub(super) fn remove(&mut self, at: u32) -> Slot {
        self.take_out(at);
        let slot = self.slots[at as usize];
        if let Ok(entry) = self.table.find_entry(hash(&slot.id), |other| *other == at) {
            entry.remove();
        }
        // Only the link of a free slot matters. The slot counts as confirmed, so that it is never listed as
        // unconfirmed.
        self.slots[at as usize] = Slot { older: self.free, confirmed: true, ..slot };
        self.free = at;
        slot
    }

    /// Appends a slot that is in no queue to the newest end of one.
    pub(super) fn push(&mut self, queue: Queue, at: u32) {
        let list = &mut self.lists[queue as usize];
        let before = list.newest;
        list.newest = at;
        if before == NONE {
            list.oldest = at;
        }
        let slot = &mut self.slots[at as usize];
        (slot.queue, slot.newer, slot.older) = (queue, NONE, before);
        list.len += 1;
        list.bytes += charge(slot.size);
        if before != NONE {
            self.slots[before as usize].newer = at;
        }
    }

    /// Takes a slot out of its queue. It must be pushed or removed next.
    pub(super) fn take_out(&mut self, at: u32) {
        let Slot { queue, newer, older, size, .. } = self.slots[at as usize];
        let list = &mut self.lists[queue as usize];
        match newer {
            NONE => list.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        list.len -= 1;
        list.bytes -= charge(size);
    }

    pub(super) fn each_of(&self, queue: Queue, mut each: impl FnMut(&Slot)) {
        let mut at = self.lists[queue as usize].oldest;
        while at != NONE {
            let slot = &self.slots[at as usize];
            each(slot);
            at = slot.newer;
        }
    }

    /// All slots, including free ones, which count as confirmed.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_as_small_as_the_essay_says() {
        assert_eq!(size_of::<Slot>(), 52);
    }

    #[test]
    fn slots_move_between_queues_and_places_are_used_again() {
        let mut lists = Lists::new();
        let id = |n: u8| BlobId([n; 32]);
        (0..10).for_each(|n| {
            lists.add(Queue::Small, Slot::new(id(n), 100, 0, 0));
        });
        for n in [3, 0, 9] {
            let at = lists.find(&id(n)).unwrap();
            lists.take_out(at);
            lists.push(Queue::Main, at);
        }
        let order = |lists: &Lists, queue| {
            let mut all = Vec::new();
            lists.each_of(queue, |slot| all.push(slot.id.0[0]));
            all
        };
        assert_eq!(order(&lists, Queue::Main), [3, 0, 9]);
        assert_eq!(order(&lists, Queue::Small), [1, 2, 4, 5, 6, 7, 8]);
        for n in [1, 8, 5] {
            let at = lists.find(&id(n)).unwrap();
            assert_eq!(lists.remove(at).id, id(n));
        }
        (20..23).for_each(|n| {
            lists.add(Queue::Held, Slot::new(id(n), 100, 0, 0));
        });
        assert_eq!((lists.slots.len(), lists.len()), (10, 10));
        assert_eq!(order(&lists, Queue::Small), [2, 4, 6, 7]);
        assert_eq!(order(&lists, Queue::Held), [20, 21, 22]);
        assert_eq!(lists.bytes(), 10 * charge(100));
        assert_eq!((lists.len_of(Queue::Small), lists.bytes_of(Queue::Main)), (4, 3 * charge(100)));
        assert!(lists.find(&id(1)).is_none() && lists.find(&id(22)).is_some());
    }
}
