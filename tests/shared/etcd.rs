//! Histories on a shared volume in etcd, while its leader, a node or an answer fails.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use covey_tests::shared::etcd::Volume;
use covey_tests::shared::names::{round, round_again, round_where};
use covey_tests::{Need, requires, say, seeds};
use servers::{Cluster, Relay};

/// A new folder for a round, on each node. It is stored, so it outlives the node that made it.
fn folders(volume: &Volume, seed: u64) -> Vec<PathBuf> {
    let name = format!("round{seed}");
    fs::create_dir(volume.path(0, &name)).unwrap();
    fs::File::open(volume.path(0, &name)).unwrap().sync_all().unwrap();
    (0..volume.nodes.len()).map(|node| volume.path(node, &name)).collect()
}

fn rounds() -> u64 {
    std::env::var("COVEY_ROUNDS").ok().map_or(3, |text| text.parse().unwrap())
}

#[test]
fn names_in_etcd_are_linearizable() {
    requires!(Need::Covey);
    let Some(volume) = Volume::new(3) else { return };
    for seed in seeds(400, rounds()) {
        let clients = 2 + (seed % 7) as usize;
        round(&folders(&volume, seed), clients, 100 / clients, seed, || ());
    }
}

#[test]
fn names_in_etcd_are_linearizable_while_the_leader_is_killed() {
    requires!(Need::Covey);
    let Some(volume) = Volume::new(2) else { return };
    for seed in seeds(500, rounds().div_ceil(2)) {
        let folders = folders(&volume, seed);
        let leader = volume.cluster.leader();
        round(&folders, 4, 24, seed, || {
            std::thread::sleep(Duration::from_millis(20 + seed * 37 % 100));
            volume.cluster.kill(leader);
            volume.cluster.leader();
        });
        volume.cluster.up(leader);
    }
}

#[test]
fn names_in_etcd_are_linearizable_while_answers_are_lost_and_a_node_is_killed() {
    requires!(Need::Covey);
    let Some(cluster) = Cluster::start() else {
        say(format_args!("skipped: lacks etcd"));
        return;
    };
    let relays: Vec<Relay> = (0..3).map(|at| Relay::new(cluster.port(at))).collect();
    let hosts: Vec<String> = relays.iter().map(|relay| format!("127.0.0.1:{}", relay.port())).collect();
    let mut volume = Volume::through(cluster, &hosts.join(","), 3);
    for seed in seeds(600, rounds()) {
        let folders = folders(&volume, seed);
        let victim = (seed % 3) as usize;
        let is_killed = seed % 2 == 0;
        round_where(&folders, 4, 20, seed, is_killed, || {
            for turn in 0..4 {
                std::thread::sleep(Duration::from_millis(30));
                relays.iter().for_each(|relay| relay.lose.store(1 + seed % 2, Ordering::SeqCst));
                if turn == 2 && is_killed {
                    volume.nodes[victim].kill();
                }
            }
        });
        relays.iter().for_each(|relay| relay.lose.store(0, Ordering::SeqCst));
        if is_killed {
            volume.nodes[victim].mount();
        }
    }
}

/// The same as in PostgreSQL, with a cluster that stands still before the kill.
#[test]
fn names_in_etcd_are_linearizable_when_a_killed_node_comes_back() {
    requires!(Need::Covey);
    let Some(mut volume) = Volume::new(3) else { return };
    let said = |volume: &Volume| -> usize {
        volume.nodes.iter().map(|node| node.log().matches("earlier process").count()).sum()
    };
    // On a busy machine it may happen that no kill came at the right moment. Then there are more rounds.
    for seed in seeds(650, rounds()).chain(10_000..10_020) {
        if seed >= 10_000 && said(&volume) > 0 {
            break;
        }
        let victim = (seed % 3) as usize;
        let all = folders(&volume, seed);
        let folders: Vec<PathBuf> = [0, 1, 0, 2].map(|node| all[(victim + node) % 3].clone()).into();
        round_again(&folders, 4, 20, seed, || {
            std::thread::sleep(Duration::from_millis(5 + seed * 37 % 60));
            fs::write(all[victim].join("lease"), "").unwrap();
            (0..3).for_each(|member| volume.cluster.freeze(member, true));
            std::thread::sleep(Duration::from_millis(2 + seed * 11 % 30));
            volume.nodes[victim].kill();
            (0..3).for_each(|member| volume.cluster.freeze(member, false));
            volume.nodes[victim].mount();
        });
    }
    assert!(said(&volume) > 0, "no kill left anything to store");
}

/// A node that is stopped for longer than its session shows nothing old when it goes on, and joins again.
#[test]
fn a_stopped_node_of_a_volume_in_etcd_shows_nothing_old() {
    requires!(Need::Covey);
    let Some(volume) = Volume::new(2) else { return };
    fs::write(volume.path(0, "file"), "old").unwrap();
    assert_eq!(fs::read_to_string(volume.path(1, "file")).unwrap(), "old");
    volume.nodes[1].freeze(true);
    fs::write(volume.path(0, "file"), "new").unwrap();
    std::thread::sleep(Duration::from_secs(19));
    volume.nodes[1].freeze(false);
    let end = Instant::now() + Duration::from_secs(30);
    let seen = loop {
        match fs::read_to_string(volume.path(1, "file")) {
            Ok(text) => break text,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(seen, "new");
    fs::write(volume.path(1, "file"), "again").unwrap();
    assert_eq!(fs::read_to_string(volume.path(0, "file")).unwrap(), "again");
}

/// fsync(2) took a minute and failed with EIO, and other nodes could not read what was there.
#[test]
fn regression_a_full_etcd_is_read_on_all_nodes_and_goes_on_when_it_has_space() {
    requires!(Need::Covey);
    let Some(cluster) = Cluster::with(1, &["--quota-backend-bytes", "8388608"]) else {
        say(format_args!("skipped: lacks etcd"));
        return;
    };
    let hosts = cluster.hosts();
    let volume = Volume::through(cluster, &hosts, 2);
    fs::create_dir(volume.path(0, "dir")).unwrap();
    let synced = |name: &str| {
        let mut file = fs::File::create(volume.path(0, name))?;
        file.write_all(&[7; 400])?;
        file.sync_all()
    };
    synced("dir/first").unwrap();
    let failed = (0..40_000).find_map(|n| {
        // The same names again and again: what is compacted frees most of it.
        let name = format!("dir/{}", n % 50);
        let began = Instant::now();
        let done = if n % 50 == 49 { synced(&name) } else { fs::write(volume.path(0, &name), [7; 400]) };
        done.err().map(|error| (error, began.elapsed()))
    });
    let (error, took) = failed.expect("40,000 files, each a change, do not fit");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(took < Duration::from_secs(45), "{took:?}");
    for node in 0..2 {
        assert_eq!(fs::read(volume.path(node, "dir/first")).unwrap(), [7; 400], "node {node}");
        assert!(fs::read_dir(volume.path(node, "dir")).unwrap().count() > 40, "node {node}");
    }
    assert!(fs::write(volume.path(1, "dir/other"), "x").is_err());
    let log = volume.nodes[0].log();
    assert!(log.contains("reached its quota") && log.contains("etcdctl defrag"), "{log}");
    volume.cluster.make_space();
    let end = Instant::now() + Duration::from_secs(120);
    for (node, name) in [(0, "dir/again"), (1, "dir/other")] {
        while let Err(error) = fs::write(volume.path(node, name), "again") {
            assert!(Instant::now() < end, "node {node} does not go on: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    assert_eq!(fs::read_to_string(volume.path(1, "dir/again")).unwrap(), "again");
}
