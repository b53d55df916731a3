//! Peer activity: a peer that sent something recently is alive, only busy. This holds even if nothing has
//! come yet of the blob in question. And the upstream: the peer that sends the most. Trackers are told of it
//! and prefer it among equals.

use std::collections::HashMap;

use base::size::BLOB_MAX;
use net::id::NodeId;
use parking_lot::Mutex;

/// How many nodes are remembered. Beyond that, the half that was heard longest ago is forgotten at once.
const MOST: usize = 1_024;
/// A node that sent something within this time is sending, in microseconds.
const FRESH: u64 = 500_000;

/// Bytes that arrived longer ago than this count half, in microseconds. After the same time again they count
/// a quarter.
const HALF: u64 = 1_000_000;
/// A node that has sent nothing for this long cannot be the upstream.
const UPSTREAM: u64 = 4 * HALF;
/// Nor can a node that sends less than this fraction of what the link delivers in a second. In effect it is
/// about an eighth, because the window averages two seconds.
const FAIR: u64 = 4;

/// What is known about one node.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// When it last sent something.
    at: u64,
    /// Recent bytes, as they counted at `since`.
    bytes: u64,
    since: u64,
}

impl Heard {
    /// Returns this record with the recent bytes as they count now.
    fn aged(self, now: u64) -> Heard {
        let halves = now.saturating_sub(self.since) / HALF;
        let bytes = self.bytes.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0);
        Heard { bytes, since: self.since + halves * HALF, ..self }
    }
}

#[derive(Debug, Default)]
struct Nodes {
    all: HashMap<NodeId, Heard>,
    /// The node that sends the most.
    most: Option<NodeId>,
}

/// When each node last sent something, in the plans' microseconds, and which sends the most.
#[derive(Debug, Default)]
pub struct Activity(Mutex<Nodes>);

impl Activity {
    /// Counts bytes of any blob from the node.
    pub fn heard(&self, now: u64, node: NodeId, bytes: u64) {
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

    /// The upstream: the node that sent the most recently, if it sent more than a single blob and a fair
    /// share of `rate`, the link's capacity (bytes a second). Staying with a node must be worthwhile.
    pub fn upstream(&self, now: u64, rate: u64) -> Option<NodeId> {
        let nodes = self.0.lock();
        let least = u64::from(BLOB_MAX).max(rate / FAIR);
        let sends = |node: &NodeId| {
            let heard = nodes.all.get(node).map(|heard| heard.aged(now));
            heard.is_some_and(|heard| now < heard.at + UPSTREAM && heard.bytes > least)
        };
        nodes.most.filter(sends)
    }

    /// When it last sent something, if known.
    pub fn last(&self, node: NodeId) -> Option<u64> {
        self.0.lock().all.get(&node).map(|heard| heard.at)
    }

    /// Whether it is sending now.
    pub fn is_fresh(&self, now: u64, node: NodeId) -> bool {
        self.last(node).is_some_and(|last| now < last.saturating_add(FRESH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_counts_and_the_oldest_are_forgotten() {
        let activity = Activity::default();
        let node = |n: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_be_bytes());
            NodeId(id)
        };
        assert_eq!(activity.last(node(1)), None);
        activity.heard(3, node(1), 1);
        activity.heard(5, node(1), 1);
        assert_eq!(activity.last(node(1)), Some(5));
        assert!(activity.is_fresh(500_004, node(1)) && !activity.is_fresh(500_005, node(1)));
        assert!(!activity.is_fresh(5, node(2)));
        (0..3_000).for_each(|n| activity.heard(10 + u64::from(n), node(n), 1));
        assert!(activity.0.lock().all.len() <= MOST);
        assert_eq!((activity.last(node(2_999)), activity.last(node(7))), (Some(3_009), None));
    }
    #[test]
    fn the_node_that_sent_the_most_recently_is_the_upstream() {
        let (activity, [a, b]) = (Activity::default(), [1, 2].map(|n| NodeId([n; 16])));
        let blob = u64::from(BLOB_MAX);
        activity.heard(0, a, blob);
        assert_eq!(activity.upstream(0, 0), None, "one blob should not make a node the upstream");
        activity.heard(0, a, 3 * blob);
        activity.heard(10, b, 3 * blob);
        assert_eq!(activity.upstream(10, 0), Some(a), "fewer bytes should not win because they are newer");
        // Bytes that arrived long ago count little.
        activity.heard(HALF, b, blob);
        assert_eq!(activity.upstream(HALF, 0), Some(b));
        activity.heard(HALF, a, blob);
        assert_eq!((activity.upstream(HALF, 0), activity.upstream(HALF + UPSTREAM, 0)), (Some(a), None));
        // On a link that carries far more it is a slow node, and no reason to stay.
        assert_eq!([blob, 100 * blob].map(|rate| activity.upstream(HALF, rate)), [Some(a), None]);
    }
}
