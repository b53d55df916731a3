//! Bytes of blobs between this node and each other one, since it started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::counters::Counters;
use crate::id::NodeId;

/// Nodes that are remembered: as many as a fleet has at most.
const NODES_MAX: usize = 16 << 10;

/// The live counters of one other node.
#[derive(Default)]
pub(crate) struct Flow {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Flow {
    pub(crate) fn add_received(&self, bytes: u64) {
        Counters::add(&self.received, bytes);
    }

    pub(crate) fn add_sent(&self, bytes: u64) {
        Counters::add(&self.sent, bytes);
    }
}

/// Bytes of blobs between this node and another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// From the other node.
    pub received: u64,
    /// To the other node.
    pub sent: u64,
}

/// The live counters of all nodes. The lock is held for no wait.
#[derive(Default)]
pub(crate) struct Flows(Mutex<HashMap<NodeId, Arc<Flow>>>);

impl Flows {
    /// The counters of a node. Those of an address without a name are in no list.
    pub(crate) fn of(&self, node: Option<NodeId>) -> Arc<Flow> {
        let Some(node) = node else { return Arc::default() };
        let mut all = self.0.lock();
        if all.len() >= NODES_MAX && !all.contains_key(&node) {
            // Nodes without a connection are forgotten.
            all.retain(|_, flow| Arc::strong_count(flow) > 1);
        }
        Arc::clone(all.entry(node).or_default())
    }

    /// The values now.
    pub(crate) fn now(&self) -> std::collections::HashMap<NodeId, Bytes> {
        let bytes = |flow: &Arc<Flow>| Bytes {
            received: flow.received.load(Ordering::Relaxed),
            sent: flow.sent.load(Ordering::Relaxed),
        };
        self.0.lock().iter().map(|(node, flow)| (*node, bytes(flow))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_a_connection_are_forgotten_when_there_are_too_many() {
        let flows = Flows::default();
        let name = |n: usize| NodeId((n as u128).to_be_bytes());
        let kept = flows.of(Some(name(1)));
        kept.add_sent(5);
        flows.of(None).add_sent(7);
        (2..=NODES_MAX + 1).for_each(|n| flows.of(Some(name(n))).add_received(1));
        let now = flows.now();
        assert_eq!(now.len(), 2, "the one with a connection, and the last one");
        assert_eq!(now[&name(1)], Bytes { received: 0, sent: 5 });
    }
}
