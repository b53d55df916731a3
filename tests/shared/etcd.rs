//! Histories on a shared volume in etcd, while its leader, a node or an answer fails.

use std::fs;
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
