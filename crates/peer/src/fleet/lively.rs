//! Which nodes send this one anything, whatever it is: who does is busy and not gone, also for a blob of which nothing has come yet.
//! And who of them sends most: trackers are told, and name it again rather than an equal.

use std::collections::HashMap;

use base::size::BLOB_MAX;
use parking_lot::Mutex;

use crate::id::NodeId;

/// So many nodes are remembered; beyond that those that were heard longest ago are forgotten, half of them at once.
const MOST: usize = 1_024;
/// Who has sent something since then is sending, microseconds.
const FRESH: u64 = 500_000;

/// What came longer ago than this counts half, microseconds, and half of that after as long again.
const HALF: u64 = 1_000_000;
/// Who has sent nothing for so long is nobody's sender.
const SENDER: u64 = 4 * HALF;
/// Nor is who sends less than such a part of what the line brings in a second. It is about an eighth, for of late are two seconds.
const FAIR: u64 = 4;

/// What is known of one node.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// When it sent something last.
    at: u64,
    /// Bytes of late, as they counted at `since`.
    bytes: u64,
    since: u64,
}

impl Heard {
    /// As they count now.
    fn aged(self, now: u64) -> Heard {
        let halves = now.saturating_sub(self.since) / HALF;
        let bytes = self.bytes.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0);
        Heard { bytes, since: self.since + halves * HALF, ..self }
    }
}

#[derive(Debug, Default)]
struct Nodes {
    all: HashMap<NodeId, Heard>,
    /// Who sends most.
    most: Option<NodeId>,
}

/// When who sent something last, in the plans' microseconds, and who sends most.
#[derive(Debug, Default)]
pub(super) struct Lively(Mutex<Nodes>);

impl Lively {
    /// So many bytes of some blob came from it.
    pub(super) fn heard(&self, now: u64, node: NodeId, bytes: u64) {
        let Nodes { all, most } = &mut *self.0.lock();
        if all.len() >= MOST && !all.contains_key(&node) {
            let mut times: Vec<u64> = all.values().map(|heard| heard.at).collect();
            let (_, middle, _) = times.select_nth_unstable(MOST / 2);
            let middle = *middle;
            all.retain(|_, heard| heard.at > middle);
        }
        let heard = all.entry(node).or_default();
        *heard = heard.aged(now);
        (heard.at, heard.bytes) = (now, heard.bytes.saturating_add(bytes));
        let bytes = heard.bytes;
        let before = most.and_then(|most| all.get(&most)).map_or(0, |heard| heard.aged(now).bytes);
        if bytes >= before {
            *most = Some(node);
        }
    }

    /// Who sends most of late, more than a single blob, and a fair part of the `rate` that the line carries (bytes a second): who stays with a node must have
    /// something of it.
    pub(super) fn sender(&self, now: u64, rate: u64) -> Option<NodeId> {
        let nodes = self.0.lock();
        let least = u64::from(BLOB_MAX).max(rate / FAIR);
        let sends = |node: &NodeId| {
            let heard = nodes.all.get(node).map(|heard| heard.aged(now));
            heard.is_some_and(|heard| now < heard.at + SENDER && heard.bytes > least)
        };
        nodes.most.filter(sends)
    }

    /// When it sent something last, if that is known.
    pub(super) fn last(&self, node: NodeId) -> Option<u64> {
        self.0.lock().all.get(&node).map(|heard| heard.at)
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
        lively.heard(3, node(1), 1);
        lively.heard(5, node(1), 1);
        assert_eq!(lively.last(node(1)), Some(5));
        assert!(lively.is_fresh(500_004, node(1)) && !lively.is_fresh(500_005, node(1)));
        assert!(!lively.is_fresh(5, node(2)));
        (0..3_000).for_each(|n| lively.heard(10 + u64::from(n), node(n), 1));
        assert!(lively.0.lock().all.len() <= MOST);
        assert_eq!((lively.last(node(2_999)), lively.last(node(7))), (Some(3_009), None));
    }
    #[test]
    fn who_sends_most_of_late_is_the_sender() {
        let (lively, [a, b]) = (Lively::default(), [1, 2].map(|n| NodeId([n; 16])));
        let blob = u64::from(BLOB_MAX);
        lively.heard(0, a, blob);
        assert_eq!(lively.sender(0, 0), None, "a single one");
        lively.heard(0, a, 3 * blob);
        lively.heard(10, b, 3 * blob);
        assert_eq!(lively.sender(10, 0), Some(a), "less is not more for being later");
        // What came long ago counts little.
        lively.heard(HALF, b, blob);
        assert_eq!(lively.sender(HALF, 0), Some(b));
        lively.heard(HALF, a, blob);
        assert_eq!((lively.sender(HALF, 0), lively.sender(HALF + SENDER, 0)), (Some(a), None));
        // Over a line that carries far more it is a slow one, and no reason to stay.
        assert_eq!([blob, 100 * blob].map(|rate| lively.sender(HALF, rate)), [Some(a), None]);
    }
}
