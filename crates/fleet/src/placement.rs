//! Which nodes track a group, and which depots keep a blob: weighted rendezvous hashing.
//!
//! Every node draws a number for the group, computed from the node's id and the group alone. The best draws
//! win. So nodes that agree on the members agree on the answer without communication. When a node joins or
//! leaves, only the groups move that it wins or had won.
//!
//! With a node's draw u, uniform in (0, 1), its score is -ln(u) / weight, and the lowest score wins. This is
//! the first of several exponential clocks to fire, so each node wins in proportion to its weight. Two
//! machines must never differ in the last bit of a logarithm, so no floating point is used. The logarithm is
//! to base 2, in fixed point, by repeated squaring ([`cost`]). It is needed only to compare *different*
//! weights: among nodes of one weight the highest draw is the lowest score. So nodes are kept in classes of
//! equal weight. A lookup draws once for each node, and takes logarithms of the few best of each class.
//!
//! All of this is fixed permanently, because nodes of different versions must agree. docs/PROTOCOL.md
//! ("Placement") specifies every step, including a blob's group and key, and a test pins a vector.

use std::collections::HashMap;

use base::BlobId;

use base::dice::mix;
use net::id::{Member, NodeId, Role, Zone};
use net::message::Group;

/// The number of trackers of a group. The first is asked, the others when it is silent.
pub const TRACKERS: usize = 3;

/// The nodes of one zone at one state of the membership, as far as placement needs them.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    epoch: u64,
    trackers: Classes,
    depots: Classes,
}

impl Placement {
    /// The nodes of `zone` among `members`. `epoch` is the membership's: a number that changes with every
    /// change of the members. The order does not matter. If a node is named twice, the later record counts.
    pub fn new<'a>(epoch: u64, zone: &Zone, members: impl IntoIterator<Item = &'a Member>) -> Placement {
        let mut there: HashMap<NodeId, (u16, Role)> = HashMap::new();
        for member in members.into_iter().filter(|member| member.zone == *zone) {
            there.insert(member.node, (member.weight, member.role));
        }
        let mut nodes: Vec<(u16, NodeId, Role)> =
            there.into_iter().map(|(node, (weight, role))| (weight, node, role)).collect();
        nodes.retain(|(weight, ..)| *weight > 0);
        nodes.sort_unstable();
        let depots = nodes.iter().filter(|(.., role)| *role == Role::Depot);
        let depots = Classes::new(depots.map(|(weight, node, _)| (*weight, *node)));
        Placement {
            epoch,
            trackers: Classes::new(nodes.iter().map(|(weight, node, _)| (*weight, *node))),
            depots,
        }
    }

    /// The epoch of the membership from which this was made.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The group's trackers, rank 1 first: up to [`TRACKERS`], or fewer if there are fewer nodes.
    pub fn trackers(&self, group: Group) -> Vec<NodeId> {
        self.trackers.best(group.0, TRACKERS)
    }

    /// Up to `count` depots that keep the blob, the first choice first.
    pub fn depots(&self, blob: &BlobId, count: usize) -> Vec<NodeId> {
        self.depots.best(Group::alone(blob).0, count)
    }

    /// Whether this node is a depot of the zone.
    pub fn is_depot(&self, node: NodeId) -> bool {
        self.depots.0.iter().flat_map(|class| &class.nodes).any(|(_, depot)| *depot == node)
    }

    /// How many depots there are.
    pub fn depot_count(&self) -> usize {
        self.depots.0.iter().map(|class| class.nodes.len()).sum()
    }

    /// How many nodes can be trackers.
    pub fn len(&self) -> usize {
        self.trackers.0.iter().map(|class| class.nodes.len()).sum()
    }

    /// Whether no node can be a tracker.
    pub fn is_empty(&self) -> bool {
        self.trackers.0.is_empty()
    }
}

/// A [`Placement`] that caches the trackers of recently used groups, because a lookup is a walk over all
/// nodes.
#[derive(Debug, Default)]
pub struct Placed {
    placement: Placement,
    groups: HashMap<Group, Vec<NodeId>>,
}

/// How many groups are cached. Then the cache is cleared, which is cheaper than to track which were used
/// last.
const REMEMBERED: usize = 65_536;

impl Placed {
    /// With an empty cache.
    pub fn new(placement: Placement) -> Placed {
        Placed { placement, groups: HashMap::new() }
    }

    /// Takes a new state of the membership. The cache is cleared if the epoch differs.
    pub fn update(&mut self, placement: Placement) {
        if placement.epoch != self.placement.epoch {
            self.groups.clear();
        }
        self.placement = placement;
    }

    /// See [`Placement::trackers`].
    pub fn trackers(&mut self, group: Group) -> &[NodeId] {
        if self.groups.len() >= REMEMBERED && !self.groups.contains_key(&group) {
            self.groups.clear();
        }
        self.groups.entry(group).or_insert_with(|| self.placement.trackers(group))
    }

    /// The placement itself.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
}

/// Nodes by weight.
#[derive(Clone, Debug, Default)]
struct Classes(Vec<Class>);

#[derive(Clone, Debug)]
struct Class {
    weight: u16,
    /// The node, and what its id contributes to its draws.
    nodes: Vec<(u64, NodeId)>,
}

impl Classes {
    /// From nodes in order of their weight.
    fn new(nodes: impl Iterator<Item = (u16, NodeId)>) -> Classes {
        let mut classes: Vec<Class> = Vec::new();
        for (weight, node) in nodes {
            let entry = (seed(node), node);
            match classes.last_mut() {
                Some(class) if class.weight == weight => class.nodes.push(entry),
                _ => classes.push(Class { weight, nodes: vec![entry] }),
            }
        }
        Classes(classes)
    }

    /// The `count` best nodes for the key, the best first.
    fn best(&self, key: u64, count: usize) -> Vec<NodeId> {
        let mut found: Vec<(u64, NodeId)> = Vec::new();
        let key = mix(key);
        for class in &self.0 {
            // Highest draw first; of equal draws the lower id.
            let mut top: Vec<(u64, NodeId)> = Vec::with_capacity(count + 1);
            for &(seed, node) in &class.nodes {
                let drawn = draw(key, seed);
                if top.len() == count && top.last().is_none_or(|(worst, _)| drawn <= *worst) {
                    continue;
                }
                let at = top.partition_point(|(other, name)| (*other, node) > (drawn, *name));
                top.insert(at, (drawn, node));
                top.truncate(count);
            }
            found.extend(top.into_iter().map(|(drawn, node)| (score(drawn, class.weight), node)));
        }
        found.sort_unstable();
        found.truncate(count);
        found.into_iter().map(|(_, node)| node).collect()
    }
}

/// What a node's id contributes to its draws.
fn seed(node: NodeId) -> u64 {
    let name = u128::from_be_bytes(node.0);
    mix(mix((name >> 64) as u64).wrapping_add(name as u64))
}

/// A node's number for a key. The key is already mixed.
fn draw(key: u64, seed: u64) -> u64 {
    mix(key ^ seed)
}

/// Bits after the point of [`cost`].
const FRACTION: u32 = 32;

/// -log2((draw + 1) / 2^64) in fixed point: 0 for the highest draw, 64 for the lowest. It never increases
/// with the draw.
fn cost(drawn: u64) -> u64 {
    let number = u128::from(drawn) + 1;
    let whole = number.ilog2();
    // 1 <= x < 2, with 63 bits after the point. Squaring doubles the logarithm: a carry past 2 is its next
    // bit.
    let mut x = if whole > 63 { 1u128 << 63 } else { number << (63 - whole) };
    let mut log = u64::from(whole);
    for _ in 0..FRACTION {
        x = (x * x) >> 63;
        log <<= 1;
        if x >> 64 != 0 {
            x >>= 1;
            log |= 1;
        }
    }
    (64 << FRACTION) - log
}

/// Lower is better: the cost divided by the weight.
fn score(drawn: u64, weight: u16) -> u64 {
    // The cost has at most 39 bits, so 24 more fit.
    (cost(drawn) << 24) / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests;
