//! Small worlds, many seeds: no node hangs, nothing is fetched twice without need, and a seed determines
//! everything.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

use sim::model::{Depots, Holders, Model};
use sim::{flash, steady};

/// P4's bound is for a fleet without faults.
#[test]
fn a_crowd_fetches_each_blob_once() {
    for (nodes, seed) in [(2, 1), (10, 2), (50, 3), (200, 4)] {
        let outcome = flash::run(Model::new(nodes, 64, seed));
        assert_eq!(outcome.gets(), 1.0, "{}", outcome.row());
        assert_eq!((outcome.unfinished, outcome.tally.errors), (0, 0), "{}", outcome.row());
    }
}

/// A slow node read everything before the others started. The nodes in its queue hedged, and reported it as
/// if it had refused. It was believed to have nothing, and nearly every blob was fetched twice. Seen with 300
/// nodes and 320 blobs.
#[test]
fn regression_a_slow_node_ahead_of_all_others_does_not_double_the_fetches() {
    let model = Model { crash_per_mille: 100, slow_per_mille: 50, ..Model::new(300, 64, 1) };
    let outcome = flash::run(model);
    assert_eq!((outcome.unfinished, outcome.tally.errors), (0, 0), "{}", outcome.row());
    assert!(outcome.gets() < 1.2, "{}", outcome.row());
}

#[test]
fn a_larger_crowd_takes_hardly_longer() {
    let small = flash::run(Model::new(10, 128, 5));
    let large = flash::run(Model::new(400, 128, 5));
    assert!(large.seconds < 1.5 * small.seconds, "{}\n{}", small.row(), large.row());
}

/// A tenth crashes, a twentieth is slow. All others finish soon and without an error.
#[test]
fn every_live_node_gets_everything() {
    for seed in 1..=8 {
        let model = Model { crash_per_mille: 100, slow_per_mille: 50, ..Model::new(50, 64, seed) };
        let outcome = flash::run(model);
        assert_eq!((outcome.unfinished, outcome.tally.errors), (0, 0), "seed {seed}: {}", outcome.row());
        assert!(outcome.seconds < 15.0, "seed {seed}: {}", outcome.row());
        assert!(outcome.gets() < 2.0, "seed {seed}: {}", outcome.row());
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let model = || Model { crash_per_mille: 100, slow_per_mille: 50, ..Model::new(40, 64, 9) };
    assert_eq!(flash::run(model()), flash::run(model()));
    let other = flash::run(Model { seed: 10, ..model() });
    assert_ne!(flash::run(model()), other);
    let steadily = || steady::run(Model::new(10, 5_000, 9), 10);
    assert_eq!(steadily(), steadily());
}

#[test]
fn everyday_reading_costs_little_coordination() {
    let outcome = steady::run(Model::new(50, 100_000, 1), 20);
    assert_eq!(outcome.tally.errors, 0, "{}", outcome.steady_row());
    assert!(outcome.coordination < 10_000.0, "{}", outcome.steady_row());
}

/// A depot holds what the nodes have evicted. The origin is asked less, and nothing is lost.
#[test]
fn a_depot_spares_the_origin() {
    let run = |count| {
        let depots = Depots { count, room: 18_000 };
        steady::run(Model { depots, ..Model::new(3, 20_000, 1) }, 200)
    };
    let (without, with) = (run(0), run(1));
    assert_eq!((with.tally.errors, without.tally.from_depots), (0, 0), "{}", with.steady_row());
    assert!(with.tally.from_depots > with.tally.reads / 20, "{}", with.steady_row());
    assert!(with.saved() > without.saved() + 0.1, "{}\n{}", without.steady_row(), with.steady_row());
}

/// A disk that knows which blobs came from a neighbour evicts those first, so the zone's disks hold more
/// together. The price is that a node finds less on its own disk.
#[test]
fn disks_that_know_what_a_blob_costs_spare_the_origin() {
    let run = |same_cost| steady::run(Model { same_cost, ..Model::new(30, 40_000, 1) }, 120);
    let (same, by_tier) = (run(true), run(false));
    assert!(by_tier.saved() > same.saved() + 0.02, "{}\n{}", same.steady_row(), by_tier.steady_row());
    assert!(by_tier.gets() < same.gets(), "{}\n{}", same.steady_row(), by_tier.steady_row());
    assert!(by_tier.tally.local < same.tally.local, "{}\n{}", same.steady_row(), by_tier.steady_row());
}

/// The order of trackers does not matter for their purpose.
#[test]
fn nodes_of_different_weights_fetch_each_blob_once() {
    let outcome = flash::run(Model { mixed_weights: true, ..Model::new(100, 64, 3) });
    assert_eq!((outcome.gets(), outcome.unfinished, outcome.tally.errors), (1.0, 0, 0), "{}", outcome.row());
}

/// What the tracker is good for: with a gossiped table, nodes of a crowd learn too late which nodes have a
/// blob.
#[test]
fn a_table_that_is_gossiped_about_is_late_and_costs_more() {
    let run = |holders| flash::run(Model { holders, ..Model::new(50, 64, 1) });
    let tracker = run(Holders::Tracker);
    for early in [false, true] {
        let table = run(Holders::Gossip { period: 200_000, early });
        assert_eq!((table.unfinished, table.tally.errors), (0, 0), "{}", table.row());
        assert!(table.gets() > 2.0 * tracker.gets(), "{}\n{}", tracker.row(), table.row());
        assert!(table.coordination > 2.0 * tracker.coordination, "{}\n{}", tracker.row(), table.row());
    }
}
