//! How a node finds the holders of a blob: through the blob's tracker, or in a table of its own.
//!
//! ```text
//!   Tracker   a new holder ──► the blob's tracker          a requester ──► the blob's tracker
//!   Table     a new holder ──► every node of the zone      a requester ──► its own table
//! ```
//!
//! The table exists to be measured against the tracker, on nodes that are the same otherwise. It is the same
//! [`Tracker`](crate::tracker::Tracker), which each node keeps for itself and for all blobs. Holders report
//! to it directly, as soon as to a tracker. With few nodes no gossip is faster or cheaper. But a table cannot
//! make one node fetch for all: no other node knows of a lease that a node gives itself.

use super::Inner;
use crate::id::{NodeId, Role};
use crate::message::Group;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finding {
    /// Holders report to a group's tracker, and requesters ask it.
    #[default]
    Tracker,
    /// Holders report to every node, and each node asks its own table.
    Table,
}

impl Inner {
    /// The nodes to ask about a group, the first choice first.
    pub(super) fn trackers(&self, group: Group) -> Vec<NodeId> {
        match self.finding {
            Finding::Tracker => self.placed.lock().trackers(group).to_vec(),
            Finding::Table => vec![self.own],
        }
    }

    /// The nodes to notify of what happened to a blob here.
    pub(super) fn listeners(&self, group: Group) -> Vec<NodeId> {
        match self.finding {
            Finding::Tracker => self.placed.lock().trackers(group).first().copied().into_iter().collect(),
            Finding::Table => {
                let Some(members) = self.members.get() else { return vec![self.own] };
                let roster = members.roster();
                let nodes = roster.members.iter().filter(|member| member.role == Role::Node);
                nodes.map(|member| member.node).collect()
            }
        }
    }
}
