//! The list of members at one moment, and how two such lists differ.

use std::cmp::Ordering;

use net::id::{Member, NodeId};

/// The list of members. It is a value: it does not change, but is replaced by a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Increases with each change of the members, their addresses or their weights, but not of loads. So
    /// placement is the same for all rosters of one epoch. Each node counts its own epochs.
    pub epoch: u64,
    /// All members, including this node, in the order of ids.
    pub members: Vec<Member>,
    digest: u32,
}

/// What has changed from one epoch to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The new epoch.
    pub epoch: u64,
    /// Nodes that joined or came back. A node that was restarted is here and in [`Change::gone`].
    pub joined: Vec<Member>,
    /// Nodes that left, were declared down, or were restarted.
    pub gone: Vec<NodeId>,
}

/// Compares everything but the loads.
fn same(a: &Member, b: &Member) -> bool {
    Member { free: 0, load: 0, ..a.clone() } == Member { free: 0, load: 0, ..b.clone() }
}

impl Roster {
    /// From these members, in any order.
    pub fn new(epoch: u64, mut members: Vec<Member>) -> Roster {
        members.sort_unstable_by_key(|member| member.node);
        let one = |member: &Member| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&member.node.0).update(&member.generation.to_be_bytes());
            let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
            u32::from_be_bytes([a, b, c, d])
        };
        let digest = members.iter().fold(0, |sum: u32, member| sum.wrapping_add(one(member)));
        Roster { epoch, members, digest }
    }

    /// A number that is equal for two nodes if they see the same generations of the same nodes, and almost
    /// never otherwise.
    pub fn digest(&self) -> u32 {
        self.digest
    }

    /// A member by its id.
    pub fn get(&self, node: NodeId) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&node, |member| member.node).ok()?;
        self.members.get(at)
    }

    /// The roster after `before`, and what has changed, unless only loads have.
    pub fn follow(before: &Roster, members: Vec<Member>) -> (Roster, Option<Change>) {
        let mut roster = Roster::new(before.epoch, members);
        let mut change = Change { epoch: before.epoch + 1, ..Change::default() };
        let mut changed = false;
        let (mut old, mut new) = (before.members.iter().peekable(), roster.members.iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.node.cmp(&b.node),
            };
            let gone = if order.is_le() { old.next() } else { None };
            let joined = if order.is_ge() { new.next() } else { None };
            if let (Some(a), Some(b)) = (gone, joined) {
                changed |= !same(a, b);
                // A return within a run is the same process, which still knows everything.
                if super::who::run_of(a.generation) == super::who::run_of(b.generation) {
                    continue;
                }
            }
            changed = true;
            change.gone.extend(gone.map(|member| member.node));
            change.joined.extend(joined.cloned());
        }
        if !changed {
            return (roster, None);
        }
        roster.epoch = change.epoch;
        (roster, Some(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::who::first_generation;
    use net::id::{Role, Zone};

    fn member(node: u8, run: u64, load: u16) -> Member {
        Member {
            node: NodeId([node; 16]),
            generation: first_generation(run),
            address: "10.0.0.1:1".parse().unwrap(),
            zone: Zone::default(),
            role: Role::Node,
            weight: 1,
            free: 0,
            load,
        }
    }

    #[test]
    fn changes_are_named_and_loads_are_none() {
        let first = Roster::new(4, vec![member(3, 1, 0), member(1, 1, 0), member(2, 1, 0)]);
        assert_eq!(first.get(NodeId([2; 16])), Some(&member(2, 1, 0)));
        let (same, change) = Roster::follow(&first, vec![member(1, 1, 9), member(2, 1, 0), member(3, 1, 0)]);
        assert_eq!((same.epoch, same.members[0].load, change), (4, 9, None));

        let (next, change) = Roster::follow(&same, vec![member(4, 1, 0), member(2, 2, 0), member(3, 1, 5)]);
        let change = change.unwrap();
        assert_eq!(next.epoch, 5);
        assert_eq!(change.joined, [member(2, 2, 0), member(4, 1, 0)]);
        assert_eq!(change.gone, [NodeId([1; 16]), NodeId([2; 16])]);

        let mut returned = member(3, 1, 5);
        returned.generation += 1;
        let (last, change) = Roster::follow(&next, vec![member(2, 2, 0), returned, member(4, 1, 0)]);
        let change = change.unwrap();
        assert_eq!(
            (last.epoch, change.joined.len(), change.gone.len()),
            (6, 0, 0),
            "a new epoch, but no node joined"
        );
    }
}
