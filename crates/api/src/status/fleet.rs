//! The figures of a node in a fleet, and the other nodes that it knows.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::remote_side::RemoteStatus;

/// A node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRow {
    /// The node's name, 32 hexadecimal digits.
    pub node: String,
    /// Where it listens.
    pub address: String,
    /// The node's zone.
    pub zone: String,
    /// `node` or `depot`.
    pub role: String,
    /// The run of the node: the upper 48 bits count its starts.
    pub generation: u64,
    /// The node's share of the fleet's bookkeeping.
    pub weight: u16,
    /// The free space of its cache, in MiB.
    pub free_mib: u32,
    /// The data queued for sending, in MiB.
    pub load_mib: u16,
    /// `own` (`asked` for a node that was asked from outside), `there`, or `silent` if it has not answered
    /// recently.
    pub state: String,
    /// Bytes of blobs that the asked node received from it. Absent if a fleet was asked from outside, and
    /// from older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
    /// Bytes of blobs that the asked node sent to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
}

/// A node of the fleet, and what it has of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRow {
    /// The node.
    #[serde(flatten)]
    pub peer: PeerRow,
    /// Blobs of the file that the node was asked about: at most 512, spread over the file.
    pub asked: u64,
    /// Of these, the ones that it has. None if it did not answer.
    pub held: Option<u64>,
}

/// Questions of other nodes that a program in the driver of an interface answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InDriver {
    /// The interface.
    pub interface: String,
    /// `driver`, or `kernel` if the driver cannot run programs.
    pub mode: String,
    /// Questions that it answered.
    pub answered: u64,
    /// Questions that it left to the daemon.
    pub passed: u64,
    /// Whether the program's table has no room for all names. Then it leaves questions to the daemon.
    pub is_full: bool,
}

/// Reads and fetches answered by one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Reads for the local tiers, blobs for the remote ones.
    pub hits: u64,
    /// Bytes of the reads or blobs.
    pub bytes: u64,
}

/// The figures of a node in a fleet. Field names are stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The node's name.
    pub node: String,
    /// Where it listens.
    pub address: String,
    /// Whether its connections are encrypted. Absent from older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// The answers from the driver, with `--xdp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_driver: Option<InDriver>,
    /// Nodes that are present, this one included.
    pub nodes: u64,
    /// Of these, depots.
    pub depots: u64,
    /// Reads from memory.
    pub memory: TierStatus,
    /// Reads from this node's disk.
    pub disk: TierStatus,
    /// Blobs from nodes that had them.
    pub peer: TierStatus,
    /// Blobs from nodes that were still fetching them.
    pub stream: TierStatus,
    /// Blobs from depots.
    pub depot: TierStatus,
    /// Blobs from the origin.
    pub origin: TierStatus,
    /// Parts of blobs from other nodes, without the rest of the blob.
    #[serde(default)]
    pub part: TierStatus,
    /// Parts from depots.
    #[serde(default)]
    pub depot_part: TierStatus,
    /// Parts from the origin.
    #[serde(default)]
    pub origin_part: TierStatus,
    /// Fetches from the origin because the tracker said so.
    pub origin_told: u64,
    /// Fetches from the origin because the fleet was slow.
    pub origin_hedged: u64,
    /// Fetches from the origin because no node could be asked.
    pub origin_alone: u64,
    /// Fetches from other nodes that failed.
    pub failed: u64,
    /// Second fetches, started because the first took long.
    pub hedges: u64,
    /// Questions to trackers that were not answered in time.
    #[serde(default)]
    pub asks_late: u64,
    /// Second leases that this node gave as a tracker, because the node with the first one was late, or the
    /// nodes with the blob could not be reached. Each may have cost one more fetch from the origin.
    #[serde(default)]
    pub leases_again: u64,
    /// Ranges that the receiving I/O loop gave directly to local readers.
    #[serde(default)]
    pub direct: u64,
    /// Questions that this node asked trackers.
    pub asks: u64,
    /// Questions that this node answered as a tracker.
    pub answered: u64,
    /// Bytes of blobs sent to other nodes.
    pub sent_bytes: u64,
    /// Bytes of blobs received from other nodes.
    pub received_bytes: u64,
    /// Answers that were not the blob's bytes.
    pub corrupt: u64,
}

impl FleetStatus {
    /// Each tier with its name, the nearest first.
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

/// The figures of a depot or a lender. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LentStatus {
    /// The folder of its cache.
    #[serde(with = "crate::raw_path")]
    pub folder: PathBuf,
    /// The origin whose blobs it keeps.
    pub origin: String,
    /// `depot` or `lender`.
    pub role: String,
    /// The zone of the depot or lender.
    pub zone: String,
    /// The process id of the depot or lender.
    pub pid: u32,
    /// How long it has served.
    pub uptime_seconds: u64,
    /// Blobs fetched because a node asked for their bytes.
    pub filled_blobs: u64,
    /// Blobs fetched by a request to warm them.
    pub warmed_blobs: u64,
    /// Copies made of the blobs that it tracks.
    pub kept_blobs: u64,
    /// Bytes of memory that the process holds.
    pub memory_bytes: u64,
    /// The peak of that.
    pub memory_peak_bytes: u64,
    /// The figures of the cache, and of the requests to the origin.
    #[serde(rename = "far")]
    pub remote_side: RemoteStatus,
    /// The other nodes, and where bytes came from.
    pub fleet: FleetStatus,
}
