//! Depots in trouble: killed, stopped, with a full disk, and one of two.
//!
//! A depot stands between the nodes of a zone and the store, so whatever becomes of it, whoever reads through it gets the bytes
//! elsewhere, from another depot or from the store; where there is no elsewhere, an error in time. Every byte is compared.

use std::time::Duration;

use nets::fleet::until_sent;
use nets::readers::Plan;
use nets::{Fleet, How, Node, Report, Tree, requires_nets, say};

/// What a request to a daemon is given here, and what a read may take then: several requests, on a busy machine.
const DEADLINE: &str = "deadline=8";
const WITHIN: Duration = Duration::from_secs(40);
/// A depot's link, bits in a second: all there is takes more than ten seconds over it.
const THIN: u64 = 40_000_000;
/// So much has come over a link when bytes are flowing: no membership is that talkative.
const FLOWING: u64 = 2 << 20;
/// What a depot leaves free of its disk, whatever the disk is.
const FLOOR: u64 = 1 << 30;

fn fleet(nodes: usize, seed: u64) -> Fleet {
    Fleet::joined(Tree::of_tests(), nodes, seed, &How::default().with(DEADLINE))
}

/// Has depots fetch all that there is; no byte comes by the node that asks for it.
fn fill(fleet: &Fleet) {
    let sum = covey_tests::program::covey_ok(&[
        "warm".as_ref(),
        "--depot".as_ref(),
        fleet.nodes[0].mnt().as_os_str(),
        "--json".as_ref(),
    ]);
    let sum = sum.json();
    assert!(sum["failed_count"] == 0 && sum["fetched_blobs"].as_u64() > Some(0), "{sum}");
}

/// These nodes begin anew, with nothing, and know everybody.
fn forget(fleet: &mut Fleet, nodes: &[usize], all: u64) {
    for &node in nodes {
        fleet.nodes[node].end();
        fleet.nodes[node].lose_cache();
    }
    fleet.start();
    fleet.converge(all, nets::fleet::HANG);
}

/// What these nodes got from depots, in bytes; parts come from depots, too, but are not told apart.
fn from_depots(fleet: &Fleet) -> u64 {
    fleet.sum("/fleet/depot/bytes")
}

/// Everybody reads everything, whatever there was before.
fn must_be_well(fleet: &mut Fleet, seed: u64) {
    fleet.heal();
    fleet.start();
    fleet.settle(Duration::from_secs(30));
    let nodes: Vec<usize> = (0..fleet.nodes.len()).collect();
    fleet.must_read(&nodes, 4, 10, seed, WITHIN);
}

/// A depot that is killed while nodes read through it costs them nothing but time: the store is still there. It comes back with its
/// disk, and serves from it.
#[test]
fn a_depot_killed_while_nodes_read_through_it() {
    requires_nets!();
    let mut fleet = fleet(2, 201);
    let mut depots = fleet.with_depots(1, None);
    let depot = &mut depots[0];
    fill(&fleet);
    depot.port.shape(Some(THIN));
    let before = fleet.sum("/fleet/failed");
    let report = fleet.while_reading(&[0, 1], 201, WITHIN, |_| {
        until_sent(&depot.port, FLOWING);
        depot.kill();
        std::thread::sleep(Duration::from_secs(2));
    });
    report.must_be_whole([0, 1], "both, without their depot");
    assert!(fleet.sum("/fleet/failed") > before, "what was on its way came to nothing, and that is counted");
    assert!(fleet.sum("/fleet/origin/bytes") + fleet.sum("/fleet/origin_part/bytes") > 0, "the store has it");
    depot.port.heal();
    depot.start();
    forget(&mut fleet, &[0, 1], 3);
    must_be_well(&mut fleet, 202);
    assert!(from_depots(&fleet) > 0, "it serves what it had: {:#}", depot.status());
    assert!(depot.figure("/far/cache/blobs") > 0, "{:#}", depot.status());
    fleet.end();
    depot.end();
}

/// A depot that is stopped keeps its connections and says nothing: nobody waits for it longer than a read may take.
#[test]
fn a_depot_that_is_stopped() {
    requires_nets!();
    let mut fleet = fleet(2, 203);
    let depots = fleet.with_depots(1, None);
    fill(&fleet);
    depots[0].port.shape(Some(THIN));
    let before = fleet.troubles(&[0, 1]);
    let report = fleet.while_reading(&[0, 1], 203, WITHIN, |_| {
        until_sent(&depots[0].port, FLOWING);
        depots[0].freeze();
        // Longer than nodes wait for anybody, and less than until it is given up.
        std::thread::sleep(Duration::from_secs(6));
    });
    report.must_be_whole([0, 1], "both, while their depot said nothing");
    assert!(fleet.troubles(&[0, 1]) > before, "nobody noticed that it was stopped");
    depots[0].thaw();
    depots[0].port.heal();
    must_be_well(&mut fleet, 204);
}

/// A depot whose disk fills keeps what it has room for and gives on what it cannot keep; one with a disk that is full to the last byte
/// does no harm; when there is room again, it keeps again.
#[test]
fn a_depot_whose_disk_is_full() {
    requires_nets!();
    let mut fleet = fleet(2, 205);
    let room = 24 << 20;
    let depots = fleet.with_depots(1, Some(FLOOR + room));
    let depot = &depots[0];
    fleet.must_read(&[0, 1], 6, 30, 205, WITHIN);
    let status = depot.status();
    assert!(depot.figure("/filled_blobs") > 0 && depot.figure("/far/cache/bytes") <= room, "{status:#}");
    // Somebody else has taken all the rest.
    depot.resize_cache(None);
    forget(&mut fleet, &[0, 1], 3);
    let report = fleet.must_read(&[0, 1], 6, 30, 206, WITHIN);
    let status = depot.status();
    say(format_args!("full: {} reads, the depot keeps {}", report.right(), status["far"]["cache"]));
    depot.resize_cache(Some(FLOOR + (256 << 20)));
    forget(&mut fleet, &[0, 1], 3);
    fleet.warm(0);
    must_be_well(&mut fleet, 207);
    let status = depot.status();
    say(format_args!("with room: the depot keeps {}", status["far"]["cache"]));
    assert!(depot.figure("/far/cache/bytes") > 0, "{status:#}");
}

/// Two depots of a zone, which have all that there is, and how many blobs each.
fn two(seed: u64) -> (Fleet, Vec<Node>) {
    let mut fleet = fleet(2, seed);
    let depots = fleet.with_depots(2, None);
    fill(&fleet);
    (fleet, depots)
}

/// The one that has more.
fn larger(depots: &[Node]) -> usize {
    usize::from(depots[1].figure("/far/cache/blobs") > depots[0].figure("/far/cache/blobs"))
}

/// Two depots share what there is, each blob on one of them. When one dies while it serves, readers go on from the other and the store.
#[test]
fn one_of_two_depots_dies_while_it_serves() {
    requires_nets!();
    let (mut fleet, mut depots) = two(208);
    let kept: Vec<u64> = depots.iter().map(|depot| depot.figure("/far/cache/blobs")).collect();
    let blobs = fleet.tree.blobs().len() as u64;
    say(format_args!("{blobs} blobs, of which depots keep {kept:?}"));
    assert!(kept.iter().all(|&kept| kept > 0), "both have some: {kept:?} of {blobs}");
    assert!(kept.iter().sum::<u64>() <= blobs, "no blob is kept twice: {kept:?} of {blobs}");
    let victim = larger(&depots);
    depots[victim].port.shape(Some(THIN));
    let before = (from_depots(&fleet), fleet.sum("/fleet/failed"));
    let sent = depots[1 - victim].figure("/fleet/sent_bytes");
    let report = fleet.while_reading(&[0, 1], 208, WITHIN, |_| {
        until_sent(&depots[victim].port, FLOWING);
        depots[victim].kill();
        std::thread::sleep(Duration::from_secs(2));
    });
    report.must_be_whole([0, 1], "both nodes, with one depot");
    assert!(fleet.sum("/fleet/failed") > before.1, "what was on its way came to nothing, and that is counted");
    assert!(from_depots(&fleet) > before.0, "depots served");
    assert!(depots[1 - victim].figure("/fleet/sent_bytes") > sent, "the other one served");
    depots[victim].port.heal();
    depots[victim].start();
    forget(&mut fleet, &[0, 1], 4);
    must_be_well(&mut fleet, 209);
    fleet.end();
    depots.iter_mut().for_each(Node::end);
}

/// The store is away and one of two depots is dead: what the other has is read, the rest is an error in time, until the store is back.
#[test]
fn one_of_two_depots_and_no_store() {
    requires_nets!();
    let (mut fleet, mut depots) = two(210);
    fleet.names(0);
    fleet.names(1);
    let victim = larger(&depots);
    depots[victim].kill();
    fleet.store.proxy.down();
    let plan = Plan { reads: Some(4), ..fleet.plan(6, 210) };
    let report: Report = fleet.join_of(&plan);
    report.must_be_true(WITHIN, "one depot, no store");
    say(format_args!("{} right, {} errors: {report:?}", report.right(), report.errors()));
    assert!(report.right() > 0 && from_depots(&fleet) > 0, "what the other depot has: {report:?}");
    assert!(report.errors() > 0, "what nobody has: {report:?}");
    must_be_well(&mut fleet, 211);
}
