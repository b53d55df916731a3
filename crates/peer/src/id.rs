//! What a node is called, and what the others know of it.

use std::fmt;
use std::net::SocketAddr;

/// A node's name: random, made once and kept on its disk, so that a node that comes back with its cache is the same one.
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

/// Nodes near one another bear the same zone's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(String);

/// The text was no zone's name.
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

    /// Its name.
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

/// What a node is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Serves a mount, or lends its disk.
    Node,
    /// The zone's cache server: asked after the peers and before the origin.
    Depot,
}

/// What is known of a node that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeId,
    /// Which run of it: of two records the one with the higher generation is the newer.
    pub generation: u64,
    /// Where it listens: UDP for membership, TCP for everything else, on the same port.
    pub address: SocketAddr,
    /// Where it is.
    pub zone: Zone,
    /// What it is there for.
    pub role: Role,
    /// Its share of what is tracked, and of what depots hold, relative to the others'; 0 takes part in neither.
    pub weight: u16,
    /// What its cache could still take, in MiB.
    pub free: u32,
    /// Bytes it is about to send, in MiB: how busy it is.
    pub load: u16,
}

/// A node as it is shown to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What is known of it.
    pub member: Member,
    /// It is the one that says so.
    pub is_own: bool,
    /// It has not answered lately.
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
