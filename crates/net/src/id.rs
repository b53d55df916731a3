//! The id of a node, and what the other nodes know about it.

use std::fmt;
use std::net::SocketAddr;

/// A node's id. It is random, generated once and kept on the node's disk, so that a node that returns with
/// its cache is the same node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    /// A new one.
    pub fn random() -> NodeId {
        NodeId(base::random::id16())
    }
}

impl fmt::Display for NodeId {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "node:{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

/// The longest name of a zone, in bytes.
pub const ZONE_MAX: usize = 63;

/// The name of a zone. Nodes near one another have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(String);

/// The text is not a valid name of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a zone's name is 1 to 63 letters, digits, '.', '_' or '-'")]
pub struct NotAZone;

impl Zone {
    /// # Errors
    /// [`NotAZone`].
    pub fn new(name: &str) -> Result<Zone, NotAZone> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let fine = (1..=ZONE_MAX).contains(&name.len()) && name.chars().all(allowed);
        if fine { Ok(Zone(name.to_owned())) } else { Err(NotAZone) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Zone {
    fn default() -> Zone {
        Zone("default".to_owned())
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The purpose of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Serves a mount, or lends its disk.
    Node,
    /// The zone's cache server. It is asked after the peers and before the origin.
    Depot,
}

/// What is known about a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node's id.
    pub node: NodeId,
    /// Which run of the node this is. Of two records, the one with the higher generation is newer.
    pub generation: u64,
    /// Where it listens: UDP for membership, TCP for everything else, on the same port.
    pub address: SocketAddr,
    /// The zone it is in.
    pub zone: Zone,
    /// The node's purpose.
    pub role: Role,
    /// The node's share of what is tracked, and of what depots hold, relative to the other nodes. With 0 it
    /// takes part in neither.
    pub weight: u16,
    /// How much its cache could still store, in MiB.
    pub free: u32,
    /// How busy it is: MiB that it is about to send.
    pub load: u16,
}

/// A member in the form that is shown to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What is known about it.
    pub member: Member,
    /// Whether the member is the node that made this list.
    pub is_own: bool,
    /// Whether the member has not answered recently.
    pub is_suspect: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_have_plain_names() {
        assert_eq!(Zone::new("eu-1a").unwrap().to_string(), "eu-1a");
        for bad in ["", "a b", "a/b", "ü", &"x".repeat(64)] {
            assert_eq!(Zone::new(bad), Err(NotAZone), "{bad:?}");
        }
        assert_eq!(NodeId([0xab; 16]).to_string(), "ab".repeat(16));
    }
}
