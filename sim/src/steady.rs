//! Steady reading: each node reads by Zipf's law, from a disk with room for a part of the blobs.

use crate::cache::Cache;
use crate::model::{Model, PACKET};
use crate::outcome::{Outcome, Tally};
use crate::world::{Event, World};

/// The exponent.
const SKEW: f64 = 0.9;
/// Reads of a node in a second.
const READS: f64 = 50.0;
/// Blobs that a node's disk has room for.
const ROOM: u32 = 2_000;

impl World {
    /// A node reads a blob by its popularity, and schedules its next read.
    pub(crate) fn read_any(&mut self, no: u32) {
        let blob = self.popular();
        let pause = -(1.0 - self.dice.unit()).ln() / READS * 1e6;
        self.at(self.now + pause as u64, Event::Read(no));
        if !self.nodes[no as usize].alive {
            return;
        }
        let counted = u64::from(self.now >= self.counted_from);
        self.tally.reads += counted;
        let now = self.now;
        if self.nodes[no as usize].cache.read(blob, now) {
            self.tally.local += counted;
        } else {
            self.begin(no, blob);
        }
    }

    /// The inverse of the law's integral, treated as continuous. It is close enough from the second rank on.
    fn popular(&mut self) -> u32 {
        let blobs = f64::from(self.model.blobs);
        let power = 1.0 - SKEW;
        let rank = (self.dice.unit() * ((blobs + 1.0).powf(power) - 1.0) + 1.0).powf(1.0 / power);
        (rank as u32).clamp(1, self.model.blobs) - 1
    }
}

/// Runs for `seconds`. The second half counts.
pub fn run(model: Model, seconds: u64) -> Outcome {
    let mut world = World::new(model, || Cache::of(ROOM));
    world.scattered = true;
    for no in 0..world.model.nodes {
        let start = world.dice.below(1_000_000) as u64;
        world.at(start, Event::Read(no));
    }
    let half = seconds * 500_000;
    world.counted_from = half;
    world.run(half, |_| false);
    world.tally = Tally::default();
    world.nodes.iter_mut().for_each(|node| (node.heard, node.sent) = (0, 0));
    world.run(2 * half, |_| false);
    let watched = half as f64 / 1e6;
    let nodes = world.model.nodes;
    let most = |of: fn(&crate::world::Node) -> u64| world.nodes.iter().map(of).max().unwrap_or(0) as f64;
    Outcome {
        nodes,
        depots: world.model.depots.count,
        blobs: world.model.blobs,
        seed: world.model.seed,
        seconds: watched,
        seconds_whole: watched,
        crashed: 0,
        unfinished: 0,
        coordination: world.tally.bytes as f64 / f64::from(nodes) / watched,
        packets: (world.tally.bytes + PACKET * world.tally.messages) as f64 / f64::from(nodes) / watched,
        coordination_most: most(|node| node.heard) / watched,
        egress_most: most(|node| node.sent) / 1e9,
        tally: world.tally,
    }
}
