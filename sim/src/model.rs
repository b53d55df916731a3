//! The figures of the world, and the names of what is in it. Times are microseconds, sizes bytes.

use base::BlobId;
use peer::dice::Dice;
use peer::id::NodeId;
use peer::message::Group;

/// A blob's size.
pub const BLOB: u64 = 4 << 20;
/// What a link moves in a microsecond, each way, if nothing else is said: 25 Gb/s.
pub const LINK: f64 = 3_125.0;
/// Half of the way there and back.
pub const HALF_TRIP: u64 = 125;
/// A stream is behind its parent by so much.
pub const PIECE: u64 = 256 << 10;
/// One GET, bytes per microsecond.
pub const GET_RATE: f64 = 100.0;
/// All GETs of the zone together.
pub const ZONE_RATE: f64 = 25_000.0;
/// The origin's first byte: the median.
pub const FIRST_BYTE: f64 = 30_000.0;
/// And the spread of its logarithm.
pub const SIGMA: f64 = 0.6;
/// A connection to a node that answers nothing is given up after so long.
pub const GIVE_UP: u64 = 2_000_000;
/// The membership knows of a death after so long.
pub const KNOWN: u64 = 10_000_000;
/// Notes are gathered for so long.
pub const GATHER: u64 = 100_000;
/// A node that has dropped a blob says so within this: nothing is wrong meanwhile, but a probe that misses.
pub const GATHER_GONE: u64 = 1_000_000;
/// The header of a frame.
pub const FRAME: u64 = 32;
/// The headers of a packet: Ethernet, IP, TCP.
pub const PACKET: u64 = 66;
/// Blobs of a group.
pub const GROUP: u32 = 16;

/// How nodes know who has a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// They ask its tracker.
    Tracker,
    /// From a table that each node has a copy of, spread by gossip: see [`crate::gossip`].
    Gossip {
        /// From one round to the next, microseconds.
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
    /// What each has room for, in blobs.
    pub room: u32,
}

/// What may be chosen.
#[derive(Clone, Debug)]
pub struct Model {
    /// How many nodes.
    pub nodes: u32,
    /// How many blobs there are.
    pub blobs: u32,
    /// What decides everything that is left to chance.
    pub seed: u64,
    /// So many nodes of a thousand are slow.
    pub slow_per_mille: u32,
    /// So many nodes of a thousand crash while reading.
    pub crash_per_mille: u32,
    /// A slow node's link is so many times slower.
    pub slowness: f64,
    /// Their numbers follow those of the nodes.
    pub depots: Depots,
    /// How nodes know who has a blob.
    pub holders: Holders,
    /// What a link moves in a microsecond, each way.
    pub link: f64,
    /// A disk takes every blob for one that only the origin has, wherever it came from; a node does not. To compare with.
    pub same_cost: bool,
    /// Nodes have weights of 50, 100 and 200, by lot, and not all the one that is a node's unless it is told another.
    pub mixed_weights: bool,
}

impl Model {
    /// No faults.
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

/// A node by its number: scattered, and the number can be read off again.
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

/// A blob by its number: every part of the name is scattered but the last, from which the number can be read off again.
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

/// Neighbours are of one group.
pub fn group_of(blob: u32) -> Group {
    Group(u64::from(blob / GROUP))
}

/// How long the origin takes to its first byte.
pub fn first_byte(dice: &mut Dice) -> u64 {
    // Box and Muller: a normal number from two even ones.
    let (a, b) = (1.0 - dice.unit(), dice.unit());
    let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    (FIRST_BYTE * (SIGMA * normal).exp()) as u64
}

/// How long so many bytes take at a rate of bytes per microsecond.
pub fn takes(bytes: u64, rate: f64) -> u64 {
    (bytes as f64 / rate) as u64
}
