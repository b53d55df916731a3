//! A fleet in a status: its nodes, and where bytes came from.

use std::sync::Arc;

use api::status::fleet::{FleetStatus, PeerRow, TierStatus};
use cache::NodeCache;
use fleet::node::Fleet;
use net::id::{Role, Seen};

/// A node as a row of the list.
pub fn peer(seen: &Seen) -> PeerRow {
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
        received_bytes: None,
        sent_bytes: None,
    }
}

/// All nodes, with the bytes of blobs between this node and each of them.
pub fn peers(fleet: &Fleet) -> Vec<PeerRow> {
    let flows = fleet.flows();
    let row = |seen: &Seen| {
        let bytes = flows.get(&seen.member.node).copied().unwrap_or_default();
        PeerRow { received_bytes: Some(bytes.received), sent_bytes: Some(bytes.sent), ..peer(seen) }
    };
    fleet.seen().iter().map(row).collect()
}

/// The current figures of a node.
pub fn of(fleet: &Fleet, cache: &Arc<NodeCache>) -> FleetStatus {
    let (counts, net, local) = (fleet.counts(), fleet.net_counts(), cache.stats());
    let seen = fleet.seen();
    let depots = seen.iter().filter(|seen| seen.member.role == Role::Depot).count();
    let tier = |hits, bytes| TierStatus { hits, bytes };
    FleetStatus {
        node: fleet.node().to_string(),
        address: fleet.address().map(|address| address.to_string()).unwrap_or_default(),
        encrypted: Some(fleet.is_encrypted()),
        in_driver: None,
        nodes: seen.len() as u64,
        depots: depots as u64,
        memory: tier(local.memory_reads, local.memory_bytes),
        disk: tier(local.disk_reads, local.disk_bytes),
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
        leases_again: fleet.tracker_counts().again(),
        direct: counts.direct,
        asks: counts.asks,
        answered: counts.answered,
        sent_bytes: net.blob_bytes_out,
        received_bytes: net.blob_bytes_in,
        corrupt: net.corrupt,
    }
}
