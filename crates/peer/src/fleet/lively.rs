//! Which nodes send this one anything, whatever it is: who does is busy and not gone, also for a blob of which nothing has come yet.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::id::NodeId;

/// So many nodes are remembered; beyond that those that were heard longest ago are forgotten, half of them at once.
const MOST: usize = 1_024;
/// Who has sent something since then is sending, microseconds.
const FRESH: u64 = 500_000;

/// When who sent something last, in the plans' microseconds.
#[derive(Debug, Default)]
pub(super) struct Lively(Mutex<HashMap<NodeId, u64>>);

impl Lively {
    /// Bytes of some blob came from it.
    pub(super) fn heard(&self, now: u64, node: NodeId) {
        let mut nodes = self.0.lock();
        if nodes.len() >= MOST && !nodes.contains_key(&node) {
            let mut times: Vec<u64> = nodes.values().copied().collect();
            let (_, middle, _) = times.select_nth_unstable(MOST / 2);
            let middle = *middle;
            nodes.retain(|_, at| *at > middle);
        }
        nodes.insert(node, now);
    }

    /// When it sent something last, if that is known.
    pub(super) fn last(&self, node: NodeId) -> Option<u64> {
        self.0.lock().get(&node).copied()
    }

    /// Whether it is sending now.
    pub(super) fn is_fresh(&self, now: u64, node: NodeId) -> bool {
        self.last(node).is_some_and(|last| now < last.saturating_add(FRESH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_counts_and_the_oldest_are_forgotten() {
        let lively = Lively::default();
        let node = |n: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_be_bytes());
            NodeId(id)
        };
        assert_eq!(lively.last(node(1)), None);
        lively.heard(3, node(1));
        lively.heard(5, node(1));
        assert_eq!(lively.last(node(1)), Some(5));
        assert!(lively.is_fresh(500_004, node(1)) && !lively.is_fresh(500_005, node(1)));
        assert!(!lively.is_fresh(5, node(2)));
        (0..3_000).for_each(|n| lively.heard(10 + u64::from(n), node(n)));
        assert!(lively.0.lock().len() <= MOST);
        assert_eq!((lively.last(node(2_999)), lively.last(node(7))), (Some(3_009), None));
    }
}
