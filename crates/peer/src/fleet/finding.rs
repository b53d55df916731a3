//! How a node finds out who has a blob: from the blob's tracker, or from a table of its own.
//!
//! ```text
//!   Tracker   who has come to have a blob ──► its tracker              who wants it ──► its tracker
//!   Table     who has come to have a blob ──► every node of the zone   who wants it ──► his own table
//! ```
//!
//! The table is there to be measured against the tracker, on nodes that do all else in the same way: it is the same
//! [`Tracker`](crate::tracker::Tracker), which each node keeps for itself and for all blobs. What it hears, it hears as soon as a tracker would,
//! from whoever has the blob and not by way of others: no gossip is sooner, or costs less, where nodes are few. What it cannot do is to make one
//! node fetch for all: a lease that a node gives itself nobody else knows of.

use super::Inner;
use crate::id::{NodeId, Role};
use crate::message::Group;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finding {
    /// A group's tracker is asked and told.
    #[default]
    Tracker,
    /// Every node is told of every copy, and asks itself.
    Table,
}

impl Inner {
    /// Who is asked about a group, the first choice first.
    pub(super) fn trackers(&self, group: Group) -> Vec<NodeId> {
        match self.finding {
            Finding::Tracker => self.placed.lock().trackers(group).to_vec(),
            Finding::Table => vec![self.own],
        }
    }

    /// Who is told what has become of a blob here.
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
