//! The parameters of the world, and the ids of its nodes and blobs. Times are microseconds, sizes bytes.

use base::BlobId;
use base::dice::Dice;
use net::id::NodeId;
use net::message::Group;

/// A blob's size.
pub const BLOB: u64 = 4 << 20;
/// The default capacity of a link in a microsecond, each way: 25 Gb/s.
pub const LINK: f64 = 3_125.0;
/// Half of a round trip.
pub const HALF_TRIP: u64 = 125;
/// A stream is this much behind its parent.
pub const PIECE: u64 = 256 << 10;
/// The rate of one GET, in bytes per microsecond.
pub const GET_RATE: f64 = 100.0;
/// The rate of all GETs of the zone together.
pub const ZONE_RATE: f64 = 25_000.0;
/// The median time to the origin's first byte.
pub const FIRST_BYTE: f64 = 30_000.0;
/// The standard deviation of its logarithm.
pub const SIGMA: f64 = 0.6;
/// A connection to a node that does not answer is given up after this time.
pub const GIVE_UP: u64 = 2_000_000;
/// The membership knows of a death after this time.
pub const KNOWN: u64 = 10_000_000;
/// Notes are collected for this time.
pub const GATHER: u64 = 100_000;
/// A node that has evicted a blob reports it within this time. In the meantime a request for it may fail, and
/// nothing else is wrong.
pub const GATHER_GONE: u64 = 1_000_000;
/// The header of a frame.
pub const FRAME: u64 = 32;
/// The headers of a packet: Ethernet, IP, TCP.
pub const PACKET: u64 = 66;
/// Blobs in a group.
pub const GROUP: u32 = 16;

/// How nodes find the holders of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// They ask the blob's tracker.
    Tracker,
    /// From a table that each node has a copy of, spread by gossip. See [`crate::gossip`].
    Gossip {
        /// The time between two rounds, in microseconds.
        period: u64,
        /// A node is in the table as soon as it begins to fetch.
        early: bool,
    },
}

/// Depots of the zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depots {
    /// How many.
    pub count: u32,
    /// How many blobs each has room for.
    pub room: u32,
}

/// The parameters that can be chosen.
#[derive(Clone, Debug)]
pub struct Model {
    /// How many nodes.
    pub nodes: u32,
    /// How many blobs there are.
    pub blobs: u32,
    /// The seed of all random choices.
    pub seed: u64,
    /// How many nodes of a thousand are slow.
    pub slow_per_mille: u32,
    /// How many nodes of a thousand crash while reading.
    pub crash_per_mille: u32,
    /// How many times slower a slow node's link is.
    pub slowness: f64,
    /// The depots. Their numbers follow those of the nodes.
    pub depots: Depots,
    /// How nodes find the holders of a blob.
    pub holders: Holders,
    /// The capacity of a link in a microsecond, each way.
    pub link: f64,
    /// A disk treats every blob as if only the origin had it, whatever its source. A real node does not. For
    /// comparison.
    pub same_cost: bool,
    /// Nodes have random weights of 50, 100 and 200, instead of a node's default.
    pub mixed_weights: bool,
}

impl Model {
    /// A model without faults.
    pub fn new(nodes: u32, blobs: u32, seed: u64) -> Model {
        Model {
            nodes,
            blobs,
            seed,
            slow_per_mille: 0,
            crash_per_mille: 0,
            slowness: 10.0,
            depots: Depots::default(),
            holders: Holders::Tracker,
            link: LINK,
            same_cost: false,
            mixed_weights: false,
        }
    }
}

/// The id of a node. Its bits are scattered, and the number can be read back.
pub fn node_id(no: u32) -> NodeId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&Dice::new(u64::from(no)).roll().to_be_bytes());
    id[12..].copy_from_slice(&no.to_be_bytes());
    NodeId(id)
}

/// The number of a node.
pub fn node_no(node: &NodeId) -> u32 {
    let [.., a, b, c, d] = node.0;
    u32::from_be_bytes([a, b, c, d])
}

/// The id of a blob. All of it is scattered but the last part, from which the number can be read back.
pub fn blob_id(no: u32) -> BlobId {
    let (mut id, mut dice) = ([0; 32], Dice::new(u64::from(no)));
    for part in id.chunks_exact_mut(8) {
        part.copy_from_slice(&dice.roll().to_be_bytes());
    }
    id[28..].copy_from_slice(&no.to_be_bytes());
    BlobId(id)
}

/// The number of a blob.
pub fn blob_no(blob: &BlobId) -> u32 {
    let [.., a, b, c, d] = blob.0;
    u32::from_be_bytes([a, b, c, d])
}

/// The group of a blob. Neighbours are in one group.
pub fn group_of(blob: u32) -> Group {
    Group(u64::from(blob / GROUP))
}

/// The time to the origin's first byte.
pub fn first_byte(dice: &mut Dice) -> u64 {
    // Box and Muller: a normal number from two uniform ones.
    let (a, b) = (1.0 - dice.unit(), dice.unit());
    let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    (FIRST_BYTE * (SIGMA * normal).exp()) as u64
}

/// How long this many bytes take at a rate of bytes per microsecond.
pub fn takes(bytes: u64, rate: f64) -> u64 {
    (bytes as f64 / rate) as u64
}
