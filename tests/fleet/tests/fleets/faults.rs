//! Each fault on its own: what readers get during the fault, and that everything works when it is over.
//!
//! Every read is compared with the published bytes and must end in time. Nodes that the fault does not affect
//! have no error at all. With nodes that know one another (`covey mount --join`), the same tests prove the
//! same of a fleet, and some prove more.

use std::time::{Duration, Instant};

use base::size::BLOB_MAX;
use nets::clock::Clock;
use nets::evil::{Evil, Lie};
use nets::fleet::{HANG, until_sent};
use nets::readers::Plan;
use nets::{Fleet, How, Report, Tree, requires_nets, say};
use s3server::{Fault, Rule};

/// The deadline of a request to a daemon here, and the time that a read may take: several requests, on a busy
/// machine.
const DEADLINE: &str = "deadline=20";
const WITHIN: Duration = Duration::from_secs(40);

/// Bits per second of a link over which all data takes more than ten seconds.
const THIN: u64 = 40_000_000;
/// This much has come over a link when file data is flowing, and not only control messages.
const FLOWING: u64 = 2 << 20;

fn fleet(nodes: usize, seed: u64) -> Fleet {
    fleet_with(nodes, seed, DEADLINE)
}

fn fleet_with(nodes: usize, seed: u64, deadline: &str) -> Fleet {
    let mut fleet = Fleet::joined(Tree::of_tests(), nodes, seed, &How::default().with(deadline));
    fleet.start();
    fleet
}

/// Reads on these nodes during `work` and for a moment longer.
fn while_reading(fleet: &mut Fleet, nodes: &[usize], seed: u64, work: impl FnOnce(&mut Fleet)) -> Report {
    fleet.while_reading(nodes, seed, WITHIN, work)
}

/// The numbers of all nodes.
fn all(fleet: &Fleet) -> Vec<usize> {
    (0..fleet.nodes.len()).collect()
}

/// After the fault, all nodes read everything.
fn must_be_well(fleet: &mut Fleet, seed: u64) {
    fleet.heal();
    fleet.start();
    fleet.settle(HANG);
    let nodes = all(fleet);
    fleet.must_read(&nodes, 4, 10, seed, WITHIN);
}

/// Without a fault, every byte is right on every node, and no read fails.
#[test]
fn a_fleet_reads_what_was_published() {
    requires_nets!();
    let mut fleet = fleet(3, 1);
    for node in &fleet.nodes {
        assert!(
            node.log().contains("nodes are known"),
            "the node should wait until it knows the others: {}",
            node.log()
        );
    }
    fleet.must_read(&[0, 1, 2], 6, 30, 1, WITHIN);
    let blobs = fleet.store.blobs();
    let gets: u64 = blobs.values().map(|got| got.gets).sum();
    say(format_args!("{} blobs, {gets} GETs", blobs.len()));
    assert!(!blobs.is_empty());
    fleet.end();
}

/// Two nodes: the first has only names, the second has everything and is behind a slow link. So the first
/// node's reads use that link for many seconds, until a test breaks it.
fn behind_a_thin_line(seed: u64) -> Fleet {
    let mut fleet = Fleet::joined(Tree::of_tests(), 2, seed, &How::default().with(DEADLINE));
    fleet.start();
    fleet.warm(1);
    fleet.converge(2, HANG);
    // Names are cached: from now on only file data comes over the link.
    fleet.names(0);
    fleet.nodes[1].port.shape(Some(THIN));
    fleet
}

/// When a node is killed in the middle of a transfer, its readers lose only time. It restarts with its cache.
#[test]
fn a_node_killed_in_the_middle_of_a_range() {
    requires_nets!();
    let mut fleet = behind_a_thin_line(2);
    for round in 0..3 {
        let failed = fleet.nodes[0].figure("/fleet/failed");
        let report = while_reading(&mut fleet, &[0], 20 + round, |fleet| {
            until_sent(&fleet.nodes[1].port, FLOWING);
            fleet.nodes[1].kill();
        });
        report.must_be_whole([0], "the other");
        let status = fleet.nodes[0].status();
        assert!(fleet.nodes[0].figure("/fleet/failed") > failed, "no transfer was in flight: {status:#}");
        let from_peers = fleet.nodes[0].figure("/fleet/received_bytes");
        assert!(from_peers > 0, "nothing had come: {status:#}");
        fleet.nodes[1].port.heal();
        fleet.start();
        // Again, with an empty cache on the first node and the old cache on the killed one.
        fleet.nodes[0].end();
        fleet.nodes[0].lose_cache();
        fleet.start();
        fleet.converge(2, HANG);
        fleet.names(0);
        fleet.nodes[1].port.shape(Some(THIN));
    }
    must_be_well(&mut fleet, 2);
}

/// A stopped node keeps its connections open and does not answer: its readers turn to another source in time.
#[test]
fn a_node_that_is_stopped() {
    requires_nets!();
    let mut fleet = behind_a_thin_line(3);
    let before = fleet.troubles(&[0]);
    let report = while_reading(&mut fleet, &[0], 31, |fleet| {
        until_sent(&fleet.nodes[1].port, FLOWING);
        fleet.nodes[1].freeze();
        std::thread::sleep(Duration::from_secs(5));
    });
    report.must_be_whole([0], "the other");
    assert!(fleet.troubles(&[0]) > before, "no node noticed: {:#}", fleet.nodes[0].status());
    must_be_well(&mut fleet, 3);
}

/// A node behind a slow link does not slow the others down much.
#[test]
fn a_node_behind_a_slow_link() {
    requires_nets!();
    let mut fleet = fleet(3, 4);
    fleet.must_read(&[1], 4, 10, 40, WITHIN);
    let report = while_reading(&mut fleet, &[0, 2], 41, |fleet| {
        fleet.nodes[1].port.shape(Some(2_000_000));
        std::thread::sleep(Duration::from_secs(3));
    });
    report.must_be_whole([0, 2], "the others");
    must_be_well(&mut fleet, 4);
}

/// Nodes that cannot reach one another, but can reach the store, keep reading. A node that reaches nothing
/// has errors in time. After the partition, everything works.
#[test]
fn a_partition_and_its_healing() {
    requires_nets!();
    // No read fails here, however busy the machine is.
    let mut fleet = Fleet::joined(Tree::of_tests(), 4, 5, &How::default().with("deadline=30"));
    fleet.start();
    let nodes = all(&fleet);
    let report = while_reading(&mut fleet, &nodes, 50, |fleet| {
        for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
            fleet.part(a, b);
        }
        std::thread::sleep(Duration::from_secs(3));
    });
    report.must_be_whole(nodes.clone(), "two halves that see the store");
    fleet.heal();
    let report = while_reading(&mut fleet, &nodes, 51, |fleet| {
        // One way only: what it sends is lost, what is sent to it arrives.
        fleet.nodes[0].port.lose(&fleet.nodes[1].port);
        std::thread::sleep(Duration::from_secs(2));
    });
    report.must_be_whole(nodes.clone(), "a one-way partition");
    fleet.heal();
    let report = while_reading(&mut fleet, &nodes, 52, |fleet| {
        fleet.nodes[3].port.plug(false);
        std::thread::sleep(Duration::from_secs(3));
        fleet.nodes[3].port.plug(true);
    });
    report.must_be_whole([0, 1, 2], "the nodes that were plugged in");
    must_be_well(&mut fleet, 5);
}

/// When every second request to the store fails, the origin layer handles it: readers see no error.
#[test]
fn a_store_that_throttles_and_fails() {
    requires_nets!();
    let mut fleet = fleet(2, 6);
    fleet.store.proxy.add(Rule::new(Fault::SlowDown).chance(0.2));
    fleet.store.proxy.add(Rule::new(Fault::Status(500)).chance(0.2));
    fleet.store.proxy.add(Rule::new(Fault::CutAnswer(100_000)).chance(0.1));
    let report = while_reading(&mut fleet, &[0, 1], 60, |_| std::thread::sleep(Duration::from_secs(3)));
    assert!(fleet.store.proxy.faults().happened() > 0);
    report.must_be_whole([0, 1], "both");
    must_be_well(&mut fleet, 6);
}

/// A store that never answers: a read of a blob that only the store has is an error, and the log says why.
/// The origin layer or the fleet must give up before the mount does, because the mount does not know the
/// reason.
#[test]
fn a_store_that_never_answers() {
    requires_nets!();
    let mut fleet = Fleet::joined(Tree::of_tests(), 2, 16, &How::default().with("deadline=6"));
    fleet.start();
    fleet.names(0);
    fleet.store.proxy.add(Rule::new(Fault::Hang).only_gets());
    let file = fleet.tree.large().next().unwrap();
    let began = Instant::now();
    let read = std::fs::read(fleet.nodes[0].mnt().join(&file.path));
    let (took, log) = (began.elapsed(), fleet.nodes[0].log());
    assert!(read.is_err() && took < WITHIN, "{:?} after {took:?}", read.map(|all| all.len()));
    let why = ["did not arrive within the deadline", "no answer in"];
    assert!(why.iter().any(|why| log.contains(why)), "{log}");
    must_be_well(&mut fleet, 16);
}

/// A store behind a slow link: right bytes, or an error in time.
#[test]
fn a_store_on_a_thin_line() {
    requires_nets!();
    // Reads may fail here, and a test that waits for them should not wait long.
    let mut fleet = fleet_with(2, 7, "deadline=8");
    let report = while_reading(&mut fleet, &[0, 1], 70, |fleet| {
        fleet.store.port.shape(Some(20_000_000));
        std::thread::sleep(Duration::from_secs(4));
    });
    assert!(report.right() > 0, "{report:?}");
    must_be_well(&mut fleet, 7);
}

fn outage(time: Duration, seed: u64) {
    let mut fleet = fleet(2, seed);
    // The first node reads everything, the second only names.
    fleet.warm(0);
    fleet.names(1);
    let report = while_reading(&mut fleet, &[0], seed, |fleet| {
        fleet.store.proxy.down();
        std::thread::sleep(time);
    });
    report.must_be_whole([0], "the node that has everything");
    // The second node has no data: it reads from the first.
    let plan = Plan { nodes: vec![1], reads: Some(3), ..fleet.plan(2, seed + 1) };
    let report = fleet.join_of(&plan);
    report.must_be_true(WITHIN, "while the store is away");
    report.must_be_whole([1], "what a peer has can be read");
    let status = fleet.nodes[1].status();
    let from_peers = status.pointer("/fleet/peer/bytes").and_then(serde_json::Value::as_u64);
    assert!(from_peers.is_some_and(|bytes| bytes > 0), "{status:#}");
    must_be_well(&mut fleet, seed);
}

/// While the store is unreachable, everything that is cached here or held by a peer stays readable.
#[test]
fn an_outage_of_the_store() {
    requires_nets!();
    outage(Duration::from_secs(4), 8);
}

#[test]
#[ignore = "minutes: make test-fleet"]
fn long_an_outage_of_a_minute() {
    requires_nets!();
    outage(Duration::from_secs(60), 9);
}

/// A node whose disk is full caches nothing more, and keeps reading.
#[test]
fn a_node_whose_disk_fills() {
    requires_nets!();
    let mut fleet = Fleet::joined(Tree::of_tests(), 2, 10, &How::default().with("cache_floor=1M"));
    fleet.nodes[0].cache_on_tmpfs(24 << 20);
    fleet.start();
    fleet.must_read(&[0, 1], 4, 20, 100, WITHIN);
    // Another program fills the rest of the disk.
    let rest = fleet.nodes[0].cache().join("somebody-elses");
    let filled = std::fs::write(&rest, vec![1; 64 << 20]);
    assert!(filled.is_err(), "the write should fail on the full disk");
    let before = fleet.nodes[0].figure("/fleet/received_bytes");
    fleet.must_read(&[0, 1], 4, 20, 101, WITHIN);
    let status = fleet.nodes[0].status();
    assert!(
        fleet.nodes[0].figure("/fleet/received_bytes") > before,
        "what it cannot keep it reads from the other: {status:#}"
    );
    assert!(fleet.nodes[0].figure("/far/cache/bytes") < fleet.tree.bytes() / 2, "{status:#}");
    std::fs::remove_file(rest).unwrap();
    must_be_well(&mut fleet, 10);
    fleet.end();
}

/// As after a power cut: all nodes start at the same time, with the caches that they had.
#[test]
fn all_nodes_restarted_at_once() {
    requires_nets!();
    let mut fleet = fleet(3, 11);
    (0..3).for_each(|node| fleet.warm(node));
    // The caches are written behind the reads.
    let end = Instant::now() + Duration::from_secs(20);
    let is_kept = |node: &nets::Node| node.figure("/far/cache/bytes") >= fleet.tree.bytes() * 9 / 10;
    while !fleet.nodes.iter().all(is_kept) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    fleet.store.forget();
    let report = while_reading(&mut fleet, &[0, 1, 2], 110, |fleet| {
        fleet.nodes.iter_mut().for_each(nets::Node::kill);
    });
    assert!(report.right() > 0);
    let begun = Instant::now();
    fleet.start();
    (0..3).for_each(|node| fleet.warm(node));
    let blobs = fleet.store.blobs();
    let gets: u64 = blobs.values().map(|got| got.gets).sum();
    say(format_args!("all read again {:.1?} after the restart, {gets} GETs of blobs", begun.elapsed()));
    let nodes = fleet.nodes.len() as u64;
    assert!(gets <= 6 * nodes, "what they had was fetched again: {blobs:?}");
    // Each read everything and had most of it. How much of that was still in memory varies.
    let own = fleet.sum("/fleet/disk/bytes") + fleet.sum("/fleet/memory/bytes");
    assert!(own > fleet.tree.bytes() * nodes / 2, "they read from their own disks: {own} bytes");
    fleet.end();
}

/// All nodes read the same at the same time: each blob is fetched from the store once.
#[test]
fn a_crowd_asks_the_store_once() {
    requires_nets!();
    let mut fleet = fleet(4, 12);
    fleet.store.forget();
    std::thread::scope(|scope| {
        for node in 0..4 {
            let fleet = &fleet;
            scope.spawn(move || fleet.warm(node));
        }
    });
    let blobs = fleet.store.blobs();
    let bytes: u64 = blobs.values().map(|got| got.bytes).sum();
    say(format_args!(
        "{} blobs, {} GETs, {:.2} times the bytes",
        blobs.len(),
        blobs.values().map(|got| got.gets).sum::<u64>(),
        bytes as f64 / fleet.tree.bytes() as f64
    ));
    // On a busy machine some fetches are late. They are hedged, or their lease ends and another node is told
    // to fetch the blob too.
    let told = fleet.sum("/fleet/origin_told").saturating_sub(blobs.len() as u64);
    let late = told + fleet.troubles(&[0, 1, 2, 3]);
    let once = fleet.tree.bytes() * 3 / 2;
    assert!(bytes <= once + late * u64::from(BLOB_MAX), "{late} times late: {blobs:?}");
    // Without the fleet it would be four times.
    assert!(bytes <= fleet.tree.bytes() * 3, "{late} times late: {blobs:?}");
    fleet.end();
}

/// The tracker that granted leases is killed and restarts with an empty state: no node waits for its leases.
#[test]
fn a_tracker_lost_while_it_holds_leases() {
    requires_nets!();
    let mut fleet = fleet(4, 13);
    fleet.store.be_like_a_store(Duration::from_millis(200));
    // Behind slow links, fetches are still in flight when the tracker dies.
    fleet.nodes.iter().for_each(|node| node.port.shape(Some(THIN)));
    let (mut leases, mut troubles) = (0, 0);
    // Any node may be the tracker of a blob, so each of them is killed once while fetches are in flight.
    for victim in 0..4 {
        let others: Vec<usize> = (0..4).filter(|&node| node != victim).collect();
        let report = while_reading(&mut fleet, &others, 130 + victim as u64, |fleet| {
            fleet.nodes[victim].kill();
            let begun = Instant::now();
            std::thread::sleep(Duration::from_secs(2));
            // On a busy machine it takes longer until a node wants a blob of this tracker.
            while troubles + fleet.troubles(&others) == 0 && begun.elapsed() < Duration::from_secs(15) {
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        if report.errors() > 0 {
            others.iter().for_each(|&node| say(format_args!("node {node}: {}", fleet.nodes[node].log())));
        }
        report.must_have_no_error(others.clone(), "the others");
        leases += fleet.sum("/fleet/origin_told");
        troubles += fleet.troubles(&others);
        // All nodes restart with empty caches, so that there is something to fetch the next time.
        fleet.end_and_forget(&[0, 1, 2, 3]);
        fleet.start();
    }
    say(format_args!("{leases} leases, {troubles} times in trouble"));
    assert!(leases > 0, "no lease was granted");
    assert!(troubles > 0, "no node noticed that the tracker was gone");
    must_be_well(&mut fleet, 13);
}

/// A node's wall clock jumps, a day forward and then a day back, while the node reads and others read from
/// it. The others have no error. The node has none from its peers either. But a store refuses a client whose
/// clock is that wrong, so a read of a blob that only the store has may fail until the clock is right.
#[test]
fn a_clock_that_jumps() {
    requires_nets!();
    if nets::clock::library().is_none() {
        say(format_args!("skipped: lacks libfaketime (apt-get install faketime)"));
        return;
    }
    const DAY: i64 = 86_400;
    let mut fleet = fleet_with(3, 15, "deadline=8");
    let file = fleet.nodes[1].mnt().with_file_name("clock");
    for (number, seconds) in [DAY, -DAY].into_iter().enumerate() {
        fleet.end_and_forget(&[0, 1, 2]);
        fleet.nodes[1].clock = Clock::new(&file);
        fleet.start();
        let report = while_reading(&mut fleet, &[0, 1, 2], 150 + number as u64, |fleet| {
            fleet.nodes[1].clock.iter().for_each(|clock| clock.jump(seconds));
        });
        report.must_be_whole([0, 2], &format!("the others, {seconds} s"));
        for node in [0, 2] {
            let status = fleet.nodes[node].status();
            assert_eq!(
                status["fleet"]["nodes"], 3,
                "a node with a wrong clock should stay a member: {status:#}"
            );
        }
        assert_eq!(fleet.sum("/fleet/corrupt"), 0, "its bytes should be accepted as right");
        say(format_args!("{seconds} s: {} errors of the node itself", report.errors()));
        // Proof that the clock did jump: the store refuses a node that starts with it. The node mounts what
        // it knows of the tree, and says why.
        fleet.nodes[1].end();
        fleet.nodes[1].spawn();
        fleet.nodes[1].await_mounted(WITHIN).unwrap();
        let status = fleet.nodes[1].status();
        let why = status["far"]["away"]["why"].as_str().unwrap_or_default();
        assert!(why.contains("clock differs"), "{status:#}");
        fleet.nodes[1].end();
        fleet.nodes[1].clock.iter().for_each(|clock| clock.jump(0));
        must_be_well(&mut fleet, 15);
    }
    fleet.end();
}

/// Why the wall clock does not matter: a fleet decides by the monotonic clock, or by a time from its caller.
/// Certificates are the exception, because their expiry is a wall-clock time.
#[test]
fn nothing_in_the_fleet_looks_at_the_time_of_day() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut left: Vec<_> = ["net/src", "fleet/src", "cache/src/node.rs", "cache/src/residency.rs"]
        .iter()
        .map(|path| root.join(path))
        .collect();
    let mut looked = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        if path.ends_with("net/src/tls.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        looked += 1;
        for door in ["time::now(", "SystemTime", "RealtimeCoarse"] {
            assert!(!text.contains(door), "{} looks at the time of day: {door}", path.display());
        }
    }
    assert!(looked > 5, "only {looked} files were found");
}

/// A member that sends wrong bytes, with right or wrong checksums, or only half of them: no node accepts them
/// as the blob, all nodes read what was published, and the liar's failures are counted.
#[test]
fn a_member_that_lies() {
    requires_nets!();
    for (number, lie) in Lie::ALL.into_iter().enumerate() {
        let mut fleet = fleet(3, 140 + number as u64);
        let evil = Evil::join(&fleet, "evil", 60, lie);
        let end = Instant::now() + HANG;
        while evil.sees() < 4 {
            assert!(Instant::now() < end, "it sees {} nodes", evil.sees());
            std::thread::sleep(Duration::from_millis(50));
        }
        loop {
            // Trackers learn from it what it claims to have. On a busy machine that may take longer.
            std::thread::sleep(Duration::from_secs(1));
            (0..3).for_each(|node| fleet.warm(node));
            fleet.must_read(&[0, 1, 2], 6, 10, 141, WITHIN);
            let (sent, failed) = (evil.lies_sent(), fleet.sum("/fleet/failed"));
            say(format_args!("{lie:?}: sent {sent} times, never accepted"));
            if sent > 0 && failed > 0 {
                break;
            }
            assert!(Instant::now() < end, "{sent} lies were sent, and {failed} fetches failed");
            fleet.end_and_forget(&[0, 1, 2]);
            fleet.start();
        }
        fleet.end();
    }
}
