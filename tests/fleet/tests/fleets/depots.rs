//! Depots that fail: killed, stopped, with a full disk, and one of two.
//!
//! A depot is between the nodes of a zone and the store. So if it fails, its readers get the bytes from
//! another depot or from the store; where neither is left, they get an error in time. Every byte is compared.

use std::time::{Duration, Instant};

use base::BlobId;
use base::size::BLOB_MAX;
use blob::Sums;
use nets::fleet::until_sent;
use nets::readers::fails_within;
use nets::tree::File;
use nets::{Fleet, How, Node, Tree, requires_nets, say};

/// The deadline of a request to a daemon here, and the time that a read may take: several requests, on a busy
/// machine.
const DEADLINE: &str = "deadline=20";
const WITHIN: Duration = Duration::from_secs(40);
/// A depot's link in bits per second: all data takes more than ten seconds over it.
const THIN: u64 = 40_000_000;
/// This much has come over a link when data is flowing. Membership traffic is smaller.
const FLOWING: u64 = 2 << 20;
/// What a depot leaves free on its disk, however large the disk is.
const FLOOR: u64 = 1 << 30;

fn fleet(nodes: usize, seed: u64) -> Fleet {
    Fleet::joined(Tree::of_tests(), nodes, seed, &How::default().with(DEADLINE))
}

/// Two nodes, and two depots of their zone that have all data.
fn two(seed: u64, how: &How) -> (Fleet, Vec<Node>) {
    let mut fleet = Fleet::joined(Tree::of_tests(), 2, seed, how);
    let depots = fleet.with_depots(2, None);
    fill(&fleet);
    (fleet, depots)
}

/// Makes the depots fetch all data. No byte passes through the node that requests it.
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

/// Restarts these nodes with empty caches, and waits until they know all members.
fn forget(fleet: &mut Fleet, nodes: &[usize], all: u64) {
    fleet.end_and_forget(nodes);
    fleet.start();
    fleet.converge(all, nets::fleet::HANG);
}

/// The bytes that these nodes received from depots. Parts from depots are not counted separately.
fn from_depots(fleet: &Fleet) -> u64 {
    fleet.sum("/fleet/depot/bytes")
}

/// All nodes read everything, whatever happened before.
fn must_be_well(fleet: &mut Fleet, seed: u64) {
    fleet.heal();
    fleet.start();
    fleet.settle(nets::fleet::HANG);
    let nodes: Vec<usize> = (0..fleet.nodes.len()).collect();
    fleet.must_read(&nodes, 4, 10, seed, WITHIN);
}

/// When a depot is killed while nodes read through it, they lose only time: the store is still there. The
/// depot restarts with its disk, and serves from it.
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
    assert!(fleet.sum("/fleet/failed") > before, "fetches in flight failed, and that is counted");
    assert!(
        fleet.sum("/fleet/origin/bytes") + fleet.sum("/fleet/origin_part/bytes") > 0,
        "bytes should come from the store"
    );
    depot.port.heal();
    depot.start();
    forget(&mut fleet, &[0, 1], 3);
    must_be_well(&mut fleet, 202);
    assert!(from_depots(&fleet) > 0, "it serves what it had: {:#}", depot.status());
    assert!(depot.figure("/far/cache/blobs") > 0, "{:#}", depot.status());
    fleet.end();
    depot.end();
}

/// A stopped depot keeps its connections open and does not answer: no read waits for it longer than its
/// deadline.
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
        // Longer than nodes wait for an answer, and shorter than the time until it is declared dead.
        std::thread::sleep(Duration::from_secs(6));
    });
    report.must_be_whole([0, 1], "both, while their depot said nothing");
    assert!(fleet.troubles(&[0, 1]) > before, "no node noticed that it was stopped");
    depots[0].thaw();
    depots[0].port.heal();
    must_be_well(&mut fleet, 204);
}

/// A depot whose disk fills keeps what fits and passes on what it cannot keep. A depot with a completely full
/// disk does no harm. When there is space again, it keeps blobs again.
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
    // Another program took all the remaining space.
    depot.resize_cache(None);
    forget(&mut fleet, &[0, 1], 3);
    let report = fleet.must_read(&[0, 1], 6, 30, 206, WITHIN);
    let status = depot.status();
    say(format_args!("full: {} reads, the depot keeps {}", report.right(), status["far"]["cache"]));
    assert!(depot.figure("/far/cache/evicted_bytes") > 0, "below its floor it evicts: {status:#}");
    depot.resize_cache(Some(FLOOR + (256 << 20)));
    forget(&mut fleet, &[0, 1], 3);
    fleet.warm(0);
    must_be_well(&mut fleet, 207);
    let status = depot.status();
    say(format_args!("with room: the depot keeps {}", status["far"]["cache"]));
    assert!(depot.figure("/far/cache/bytes") > 0, "{status:#}");
}

/// The depot that has more blobs.
fn larger(depots: &[Node]) -> usize {
    usize::from(depots[1].figure("/far/cache/blobs") > depots[0].figure("/far/cache/blobs"))
}

/// Two depots share the data, each blob on one of them. When one dies while it serves, readers continue with
/// the other and the store.
#[test]
fn one_of_two_depots_dies_while_it_serves() {
    requires_nets!();
    let (mut fleet, mut depots) = two(208, &How::default().with(DEADLINE));
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
    assert!(fleet.sum("/fleet/failed") > before.1, "fetches in flight failed, and that is counted");
    assert!(from_depots(&fleet) > before.0, "bytes should come from depots");
    assert!(depots[1 - victim].figure("/fleet/sent_bytes") > sent, "the other depot should have sent bytes");
    depots[victim].port.heal();
    depots[victim].start();
    forget(&mut fleet, &[0, 1], 4);
    must_be_well(&mut fleet, 209);
    fleet.end();
    depots.iter_mut().for_each(Node::end);
}

/// How many of the blobs that [`touch_all`] reads a depot keeps.
fn touched_blobs(fleet: &Fleet, depot: &Node) -> u64 {
    let page = u64::from(BLOB_MAX);
    let blobs = fleet.tree.large().flat_map(|file| {
        [0..page, page..file.size].map(|range| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.fill(range.start, &mut bytes);
            Sums::of(&bytes).id()
        })
    });
    let blobs: Vec<BlobId> = blobs.collect();
    let stored: Vec<String> =
        fleet.tree.blobs().iter().map(|path| path.file_name().unwrap().display().to_string()).collect();
    assert!(blobs.iter().all(|id| stored.contains(&id.to_string())), "each page is a blob of its own");
    let kept = depot.cache().join("blobs");
    blobs.iter().filter(|id| kept.join(format!("{:02x}/{id}", id.0[0])).exists()).count() as u64
}

/// Reads a little at the beginning and near the end of every large file, all at once. Returns how many reads
/// gave bytes, and how many an error. Each is in a blob of its own.
fn touch_all(fleet: &Fleet, node: usize, within: Duration) -> (u64, u64) {
    let mnt = fleet.nodes[node].mnt();
    let touch = |file: &File, from: u64| {
        let begun = Instant::now();
        let read = nets::readers::read(&mnt, file, from, 4096);
        let (took, name) = (begun.elapsed(), file.path.display());
        assert!(took < within, "{name} at {from} took {took:?}");
        match &read {
            Ok(bytes) => {
                assert_eq!((bytes.len(), file.differs(from, bytes)), (4096, None), "{name} at {from}")
            }
            Err(errno) => assert_eq!(*errno, libc::EIO, "{name} at {from}"),
        }
        read.is_ok()
    };
    let places = fleet.tree.large().flat_map(|file| [(file, 0), (file, file.size - 8192)]);
    let came: Vec<bool> = std::thread::scope(|scope| {
        let touch = &touch;
        let threads: Vec<_> = places.map(|(file, from)| scope.spawn(move || touch(file, from))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let right = came.iter().filter(|came| **came).count() as u64;
    (right, came.len() as u64 - right)
}

/// The store is unreachable and one of two depots is dead. Blobs of the other depot are read; the rest is an
/// error in time, until the store is reachable again.
#[test]
fn one_of_two_depots_and_no_store() {
    requires_nets!();
    let how = How::default().with("deadline=3");
    let (mut fleet, mut depots) = two(210, &how);
    fleet.names(0);
    fleet.names(1);
    let victim = larger(&depots);
    let has = touched_blobs(&fleet, &depots[1 - victim]);
    fleet.store.proxy.down();
    // With both depots, the store is not needed.
    fleet.warm(0);
    fleet.nodes[0].end();
    fleet.nodes[0].lose_cache();
    let sent = depots[1 - victim].figure("/fleet/sent_bytes");
    depots[victim].kill();
    // First no node knows about the death, then all do.
    for known in [false, true] {
        if known {
            fleet.converge(2, nets::fleet::HANG);
        }
        // Reads of available blobs may wait behind reads of unavailable ones, which take all slots, until
        // their own three seconds are over. They succeed at a later attempt.
        let (mut most, end) = (0, Instant::now() + nets::fleet::HANG);
        while most < has && Instant::now() < end {
            let (right, errors) = touch_all(&fleet, 1, fails_within(how.deadline()));
            say(format_args!("{right} right, {errors} errors; the other depot has {has}"));
            assert!(errors > 0, "a blob that no node has is an error");
            most = right.max(most);
        }
        assert!(most >= has, "what the other depot has can be read: {most} of {has}");
    }
    let status = fleet.nodes[1].status();
    assert!(depots[1 - victim].figure("/fleet/sent_bytes") > sent, "the depot sent them: {status:#}");
    assert!(
        status["fleet"]["failed"].as_u64() > Some(0),
        "the dead depot failed, and that is counted: {status:#}"
    );
    let log = fleet.nodes[1].log();
    let says = ["was not served within", "did not arrive within the deadline", "nothing listens"];
    assert!(says.iter().any(|why| log.contains(why)), "{log}");
    must_be_well(&mut fleet, 211);
}
