//! A node as the gossip knows it: everything that cannot change within one generation.
//!
//! - **foca's address of a node is its id**, not the address at which it listens. A node that comes back with
//!   its disk on another port is the same one, and another node on an old port is not.
//! - **Of two records of a node, the higher generation wins.** The upper 48 bits of a generation are the run
//!   of the program (kept on disk, see [`super::home`]). The lower 16 count how often the node was wrongly
//!   declared down in that run and came back. So a restart is above everything before it, and a return needs
//!   no write to the disk.

use std::net::SocketAddr;

use foca::Identity;
use net::id::{Member, NodeId, Role, Zone};

/// How many bits of a generation count returns within a run.
const RETURNS: u32 = 16;

/// The first generation of run `run`.
pub fn first_generation(run: u64) -> u64 {
    run << RETURNS
}

/// Which run a generation belongs to.
pub fn run_of(generation: u64) -> u64 {
    generation >> RETURNS
}

/// One generation of a node. Two are equal if node, generation and address are. The other fields depend on
/// these, and are not sent if only the receiver must be named.
#[derive(Clone, Debug)]
pub struct Incarnation {
    /// The node's id.
    pub node: NodeId,
    /// The run, and how many times it returned in it.
    pub generation: u64,
    /// Where it listens.
    pub address: SocketAddr,
    /// The zone it is in.
    pub zone: Zone,
    /// The node's purpose.
    pub role: Role,
    /// The node's share of what is tracked.
    pub weight: u16,
}

impl PartialEq for Incarnation {
    fn eq(&self, other: &Incarnation) -> bool {
        (self.node, self.generation, self.address) == (other.node, other.generation, other.address)
    }
}

impl Eq for Incarnation {}

impl Identity for Incarnation {
    type Addr = NodeId;

    fn renew(&self) -> Option<Incarnation> {
        Some(Incarnation { generation: self.generation.checked_add(1)?, ..self.clone() })
    }

    fn addr(&self) -> NodeId {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Incarnation) -> bool {
        // One generation at two addresses: a node's folder was copied. All nodes must choose the same one.
        (self.generation, self.address) > (adversary.generation, adversary.address)
    }
}

impl Incarnation {
    /// Adds the fields that change: how much its cache could store, and how busy it is, both in MiB.
    pub fn member(&self, free: u32, load: u16) -> Member {
        Member {
            node: self.node,
            generation: self.generation,
            address: self.address,
            zone: self.zone.clone(),
            role: self.role,
            weight: self.weight,
            free,
            load,
        }
    }
}

impl From<&Member> for Incarnation {
    fn from(member: &Member) -> Incarnation {
        Incarnation {
            node: member.node,
            generation: member.generation,
            address: member.address,
            zone: member.zone.clone(),
            role: member.role,
            weight: member.weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_is_above_every_return_of_the_run_before() {
        let who = Incarnation {
            node: NodeId([1; 16]),
            generation: first_generation(7),
            address: "10.0.0.1:1".parse().unwrap(),
            zone: Zone::default(),
            role: Role::Node,
            weight: 1,
        };
        let returned = (0..100).fold(who.clone(), |who, _| who.renew().unwrap());
        assert!(returned.win_addr_conflict(&who) && !who.win_addr_conflict(&returned));
        let restarted = Incarnation { generation: first_generation(8), ..who.clone() };
        assert!(restarted.win_addr_conflict(&returned));
        assert_eq!(run_of(returned.generation), 7);
        assert!(Incarnation { generation: u64::MAX, ..who }.renew().is_none());
    }
}
