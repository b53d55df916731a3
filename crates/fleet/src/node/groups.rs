//! Which group a blob is in.
//!
//! The large pieces of a file are packs with neighbouring numbers, so [`TOGETHER`] consecutive packs form a
//! group: read-ahead in a file asks one tracker. All nodes learn the numbers from the same published tree.
//! Lenders mount no tree and learn them from other nodes' notes. A blob without a known group is a group of
//! its own. If nodes know different groups, two trackers may each have the blob fetched once, and no more is
//! lost.

use std::collections::HashMap;
use std::sync::Arc;

use base::BlobId;
use net::message::Group;
use parking_lot::RwLock;

/// How many packs form a group.
pub const TOGETHER: u64 = 16;
/// How many blobs are remembered, at about 50 bytes each. They cover two tebibytes of data.
const MOST: usize = 500_000;

/// What is known about the groups of blobs. Clones share it.
#[derive(Clone, Default)]
pub struct Groups(Arc<RwLock<HashMap<BlobId, u64>>>);

impl Groups {
    /// An empty table.
    pub fn new() -> Groups {
        Groups::default()
    }

    /// Records that the pack of this number is this blob. False if no more can be remembered.
    pub fn learn(&self, blob: &BlobId, pack: u64) -> bool {
        self.put(blob, pack / TOGETHER)
    }

    /// Another node says that the blob is in this group. If it names the blob's own group, it does not know
    /// the group either.
    pub(super) fn hear(&self, blob: &BlobId, group: Group) -> bool {
        group == Group::alone(blob) || self.put(blob, group.0)
    }

    fn put(&self, blob: &BlobId, group: u64) -> bool {
        if self.0.read().get(blob).is_some_and(|known| *known <= group) {
            return true;
        }
        let mut known = self.0.write();
        if known.len() >= MOST && !known.contains_key(blob) {
            return false;
        }
        // Two packs with the same bytes are one blob. The lower number counts, so that the order of lookups
        // does not matter.
        let entry = known.entry(*blob).or_insert(group);
        *entry = group.min(*entry);
        true
    }

    /// The blob's group.
    pub fn of(&self, blob: &BlobId) -> Group {
        self.0.read().get(blob).map_or_else(|| Group::alone(blob), |group| Group(*group))
    }

    /// How many blobs are known.
    pub fn len(&self) -> usize {
        self.0.read().len()
    }

    /// Whether no blob is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_together_and_strangers_alone() {
        let groups = Groups::new();
        let id = |n: u8| BlobId([n; 32]);
        assert!(groups.is_empty() && groups.of(&id(1)) == Group::alone(&id(1)));
        for (blob, pack) in [(1, 32), (2, 47), (3, 48)] {
            assert!(groups.learn(&id(blob), pack));
        }
        assert_eq!([1, 2, 3].map(|n| groups.of(&id(n))), [Group(2), Group(2), Group(3)]);
        assert!(groups.learn(&id(3), 5) && groups.learn(&id(3), 100));
        assert_eq!((groups.of(&id(3)), groups.len()), (Group(0), 3), "the lower of two numbers");
        assert!(groups.hear(&id(4), Group(7)) && groups.hear(&id(4), Group::alone(&id(4))));
        assert_eq!(groups.of(&id(4)), Group(7), "a node that knows none changes nothing");
    }
}
