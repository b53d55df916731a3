//! Which group a blob is in.
//!
//! A file's large pieces are packs with neighbouring numbers, so [`TOGETHER`] packs in a row are a group: who reads ahead in a file asks one
//! tracker. All nodes learn the numbers from the same published tree, and lenders, which mount none, from what others tell them. A blob that none is known of is a group of its own; where nodes
//! differ in what they know, two trackers may each have the blob fetched once, and no more is lost.

use std::collections::HashMap;
use std::sync::Arc;

use base::BlobId;
use parking_lot::RwLock;

use crate::message::Group;

/// So many packs make a group.
pub const TOGETHER: u64 = 16;
/// So many blobs are remembered, about 50 bytes each: two tebibytes of data.
const MOST: usize = 500_000;

/// What is known of blobs' groups. Clones are the same.
#[derive(Clone, Default)]
pub struct Groups(Arc<RwLock<HashMap<BlobId, u64>>>);

impl Groups {
    /// Nothing is known.
    pub fn new() -> Groups {
        Groups::default()
    }

    /// A pack of this number is this blob. False when no more can be remembered.
    pub fn learn(&self, blob: &BlobId, pack: u64) -> bool {
        self.put(blob, pack / TOGETHER)
    }

    /// Another node says that the blob is in this group. One that is none but the blob's own says that he knows as little.
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
        // Two packs with the same bytes are one blob: the lower number, whoever looks first.
        let entry = known.entry(*blob).or_insert(group);
        *entry = group.min(*entry);
        true
    }

    /// The blob's group.
    pub fn of(&self, blob: &BlobId) -> Group {
        self.0.read().get(blob).map_or_else(|| Group::alone(blob), |group| Group(*group))
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.0.read().len()
    }

    /// Whether none is.
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
        assert_eq!(groups.of(&id(4)), Group(7), "who knows none takes nothing back");
    }
}
