//! The copies that nodes of a shared volume keep of one another's packs.

use serde::{Deserialize, Serialize};

/// Copies of packs that are not in the origin yet. Field names are stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesStatus {
    /// Packs of other nodes of which this node has a copy.
    pub packs: u64,
    /// What these copies take on the disk.
    pub bytes: u64,
    /// What they may take: `-o keep_max`.
    pub max_bytes: u64,
    /// Requests to keep more that were refused for want of room, since the volume was opened.
    pub refused: u64,
    /// The number of the node that has copies of this node's packs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<u32>,
    /// Bytes of this node that it has.
    pub sent_bytes: u64,
}
