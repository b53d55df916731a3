//! The figures of a node of a fleet, and the others that it knows.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::far::FarStatus;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRow {
    /// Its name, 32 hexadecimal digits.
    pub node: String,
    /// Where it listens.
    pub address: String,
    /// Where it is.
    pub zone: String,
    /// `node` or `depot`.
    pub role: String,
    /// Which run of it: the upper 48 bits count its starts.
    pub generation: u64,
    /// Its share.
    pub weight: u16,
    /// What its cache could still take, in MiB.
    pub free_mib: u32,
    /// What it is about to send, in MiB.
    pub load_mib: u16,
    /// `own` (or `asked`, of one that was asked from outside), `there`, or `silent` when it has not answered lately.
    pub state: String,
}

/// Reads and fetches answered by one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Reads of the near tiers, blobs of the far ones.
    pub hits: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a node of a fleet did. Field names are stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// This node.
    pub node: String,
    /// Where it listens.
    pub address: String,
    /// Whether its connections are encrypted; absent from older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// Nodes that are there, this one included.
    pub nodes: u64,
    /// Of these, depots.
    pub depots: u64,
    /// Reads from memory.
    pub memory: TierStatus,
    /// Reads from this node's disk.
    pub disk: TierStatus,
    /// Blobs from nodes that had them.
    pub peer: TierStatus,
    /// Blobs from nodes that were fetching them.
    pub stream: TierStatus,
    /// Blobs from depots.
    pub depot: TierStatus,
    /// Blobs from the origin.
    pub origin: TierStatus,
    /// Parts of blobs from other nodes, without the rest.
    #[serde(default)]
    pub part: TierStatus,
    /// Parts from depots.
    #[serde(default)]
    pub depot_part: TierStatus,
    /// Parts from the origin.
    #[serde(default)]
    pub origin_part: TierStatus,
    /// Fetches from the origin as the tracker said.
    pub origin_told: u64,
    /// Fetches from the origin because the fleet was slow.
    pub origin_hedged: u64,
    /// Fetches from the origin because nobody could be asked.
    pub origin_alone: u64,
    /// Fetches from other nodes that failed.
    pub failed: u64,
    /// Second fetches because the first took long.
    pub hedges: u64,
    /// Questions to trackers that were not answered in time.
    #[serde(default)]
    pub asks_late: u64,
    /// Ranges that readers here were given by the loop that received them.
    #[serde(default)]
    pub direct: u64,
    /// Questions asked of trackers, and answered as one.
    pub asks: u64,
    /// See [`FleetStatus::asks`].
    pub answered: u64,
    /// Bytes of blobs sent to others.
    pub sent_bytes: u64,
    /// Bytes of blobs received from others.
    pub received_bytes: u64,
    /// Answers that were not the blob's bytes.
    pub corrupt: u64,
}

impl FleetStatus {
    /// Each tier with its word, the nearest first.
    pub fn tiers(&self) -> [(&'static str, TierStatus); 9] {
        [
            ("memory", self.memory),
            ("disk", self.disk),
            ("peer", self.peer),
            ("stream", self.stream),
            ("depot", self.depot),
            ("origin", self.origin),
            ("part", self.part),
            ("depot_part", self.depot_part),
            ("origin_part", self.origin_part),
        ]
    }
}

/// A depot's or lender's figures. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LentStatus {
    /// The folder of its cache.
    #[serde(with = "crate::raw_path")]
    pub folder: PathBuf,
    /// Whose blobs it keeps.
    pub origin: String,
    /// `depot` or `lender`.
    pub role: String,
    /// Where it is.
    pub zone: String,
    /// Its process.
    pub pid: u32,
    /// Since when it serves.
    pub uptime_seconds: u64,
    /// Blobs that it fetched because a node asked for their bytes.
    pub filled_blobs: u64,
    /// Blobs that it fetched because somebody warmed it.
    pub warmed_blobs: u64,
    /// Copies that it made of what it tracks.
    pub kept_blobs: u64,
    /// Bytes of memory that the process holds.
    pub memory_bytes: u64,
    /// The most it ever held.
    pub memory_peak_bytes: u64,
    /// Its cache, and what it asked of the origin.
    pub far: FarStatus,
    /// Who is there, and where bytes came from.
    pub fleet: FleetStatus,
}
