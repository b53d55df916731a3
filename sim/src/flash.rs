//! A flash crowd: all nodes start within a second and read the same blobs in the same order, 16 at a time.

use crate::cache::Cache;
use crate::model::{Model, PACKET};
use crate::outcome::Outcome;
use crate::world::{Event, World};

/// How many blobs are wanted at once.
const AHEAD: usize = 16;
/// How many of these are requested in one go.
const STEP: usize = 8;
/// The starts are spread over this time, in microseconds.
const SPREAD: usize = 1_000_000;
/// No run takes this long. A node that has not finished then never will.
const END: u64 = 3_600_000_000;

impl World {
    /// A blob has arrived. The reader continues.
    pub(crate) fn got(&mut self, no: u32) {
        if !self.scattered {
            self.go_on(no);
        }
    }

    /// A node begins, or reads again.
    pub(crate) fn read(&mut self, no: u32) {
        if self.scattered { self.read_any(no) } else { self.go_on(no) }
    }

    /// Keeps as many blobs in flight as a reader reads ahead.
    fn go_on(&mut self, no: u32) {
        let (now, blobs) = (self.now, self.model.blobs);
        let node = &mut self.nodes[no as usize];
        if !node.alive {
            return;
        }
        if node.next >= blobs {
            if node.jobs.is_empty() {
                node.done.get_or_insert(now);
            }
            return;
        }
        if node.jobs.len() + STEP > AHEAD {
            return;
        }
        let more = (AHEAD - node.jobs.len()) as u32;
        let from = node.next;
        let to = blobs.min(from + more);
        node.next = to;
        for blob in from..to {
            self.tally.reads += 1;
            self.begin(no, blob);
        }
    }
}

/// Runs it to the end.
pub fn run(model: Model) -> Outcome {
    let blobs = model.blobs;
    let mut world = World::new(model, || Cache::all(blobs));
    for no in 0..world.model.nodes {
        let start = world.dice.below(SPREAD) as u64;
        world.at(start, Event::Read(no));
        if world.dice.below(1_000) < world.model.crash_per_mille as usize {
            let at = start + world.dice.below(2 * SPREAD) as u64;
            world.at(at, Event::Crash(no));
        }
    }
    let over = |world: &World| world.nodes.iter().all(|node| !node.alive || node.done.is_some());
    world.run(END, over);
    outcome(&world)
}

fn outcome(world: &World) -> Outcome {
    let alive = || world.nodes.iter().filter(|node| node.alive);
    let last = alive().filter_map(|node| node.done).max().unwrap_or(0);
    let whole =
        alive().filter(|node| node.rate >= world.model.link).filter_map(|node| node.done).max().unwrap_or(0);
    let seconds = last as f64 / 1e6;
    let nodes = world.model.nodes;
    let most = |of: fn(&crate::world::Node) -> u64| world.nodes.iter().map(of).max().unwrap_or(0) as f64;
    Outcome {
        nodes,
        depots: world.model.depots.count,
        blobs: world.model.blobs,
        seed: world.model.seed,
        seconds,
        seconds_whole: whole as f64 / 1e6,
        crashed: nodes - alive().count() as u32,
        unfinished: alive().filter(|node| node.done.is_none()).count() as u32,
        coordination: world.tally.bytes as f64 / f64::from(nodes) / seconds,
        packets: (world.tally.bytes + PACKET * world.tally.messages) as f64 / f64::from(nodes) / seconds,
        coordination_most: most(|node| node.heard) / seconds,
        egress_most: most(|node| node.sent) / 1e9,
        tally: world.tally.clone(),
    }
}
