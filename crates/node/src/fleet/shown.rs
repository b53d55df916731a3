//! A fleet as it is shown: who is there, and where bytes came from.

use std::sync::Arc;

use cache::NodeCache;
use peer::fleet::Fleet;
use peer::id::{Role, Seen};
use serde::{Deserialize, Serialize};

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

impl From<&Seen> for PeerRow {
    fn from(seen: &Seen) -> PeerRow {
        let member = &seen.member;
        PeerRow {
            node: member.node.to_string(),
            address: member.address.to_string(),
            zone: member.zone.to_string(),
            role: match member.role {
                Role::Node => "node",
                Role::Depot => "depot",
            }
            .to_owned(),
            generation: member.generation,
            weight: member.weight,
            free_mib: member.free,
            load_mib: member.load,
            state: match (seen.is_own, seen.is_suspect) {
                (true, _) => "own",
                (false, false) => "there",
                (false, true) => "silent",
            }
            .to_owned(),
        }
    }
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
    /// The figures now.
    pub fn of(fleet: &Fleet, cache: &Arc<NodeCache>) -> FleetStatus {
        let (counts, net, near) = (fleet.counts(), fleet.net_counts(), cache.stats());
        let seen = fleet.seen();
        let depots = seen.iter().filter(|seen| seen.member.role == Role::Depot).count();
        let tier = |hits, bytes| TierStatus { hits, bytes };
        FleetStatus {
            node: fleet.node().to_string(),
            address: fleet.address().map(|address| address.to_string()).unwrap_or_default(),
            encrypted: Some(fleet.is_encrypted()),
            nodes: seen.len() as u64,
            depots: depots as u64,
            memory: tier(near.memory_reads, near.memory_bytes),
            disk: tier(near.disk_reads, near.disk_bytes),
            peer: tier(counts.peer_blobs, counts.peer_bytes),
            stream: tier(counts.stream_blobs, counts.stream_bytes),
            depot: tier(counts.depot_blobs, counts.depot_bytes),
            origin: tier(counts.origin_blobs, counts.origin_bytes),
            part: tier(counts.peer_parts, counts.peer_part_bytes),
            depot_part: tier(counts.depot_parts, counts.depot_part_bytes),
            origin_part: tier(counts.origin_parts, counts.origin_part_bytes),
            origin_told: counts.origin_told,
            origin_hedged: counts.origin_hedged,
            origin_alone: counts.origin_alone,
            failed: counts.failed,
            hedges: counts.hedges,
            asks_late: counts.asks_late,
            direct: counts.direct,
            asks: counts.asks,
            answered: counts.answered,
            sent_bytes: net.blob_bytes_out,
            received_bytes: net.blob_bytes_in,
            corrupt: net.corrupt,
        }
    }

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
