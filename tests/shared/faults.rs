//! Histories while something fails: a node, the database, an answer.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use covey_tests::shared::Shared;
use covey_tests::shared::names::{round, round_where};
use covey_tests::{Need, requires, requires_server, say, seeds};
use servers::Relay;

/// A new folder for a round, on each node.
fn folders(shared: &Shared, seed: u64) -> Vec<PathBuf> {
    let name = format!("round{seed}");
    fs::create_dir(shared.path(0, &name)).unwrap();
    (0..shared.nodes.len()).map(|node| shared.path(node, &name)).collect()
}

fn rounds() -> u64 {
    std::env::var("COVEY_ROUNDS").ok().map_or(5, |text| text.parse().unwrap())
}

#[test]
fn names_are_linearizable() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 3);
    for seed in seeds(1, rounds()) {
        let clients = 2 + (seed % 7) as usize;
        round(&folders(&shared, seed), clients, 100 / clients, seed, || ());
    }
}

#[test]
fn names_are_linearizable_while_a_node_is_killed() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 3);
    for seed in seeds(100, rounds()) {
        let folders = folders(&shared, seed);
        let victim = (seed % 3) as usize;
        round_where(&folders, 6, 16, seed, true, || {
            std::thread::sleep(Duration::from_millis(20 + seed * 37 % 200));
            shared.nodes[victim].kill();
        });
        shared.nodes[victim].mount();
    }
}

#[test]
fn names_are_linearizable_while_answers_are_lost() {
    requires!(Need::Covey);
    let server = requires_server!();
    let relay = Relay::new(server.port());
    let shared = Shared::through(server, relay.port(), 2);
    for seed in seeds(200, rounds()) {
        let folders = folders(&shared, seed);
        round(&folders, 4, 24, seed, || {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(30));
                relay.lose.store(1 + seed % 3, Ordering::SeqCst);
            }
        });
        relay.lose.store(0, Ordering::SeqCst);
    }
}

#[test]
fn names_are_linearizable_while_the_database_restarts() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    for seed in seeds(300, rounds().div_ceil(3)) {
        let folders = folders(&shared, seed);
        round(&folders, 4, 24, seed, || {
            std::thread::sleep(Duration::from_millis(50));
            shared.server.down();
            shared.server.up();
        });
    }
}

/// A node that is stopped for longer than its session has nothing to say when it goes on: the others are not
/// held up, and it does not show them as they were before.
#[test]
fn a_stopped_node_shows_nothing_old() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::write(shared.path(0, "file"), "old").unwrap();
    assert_eq!(fs::read_to_string(shared.path(1, "file")).unwrap(), "old");
    shared.nodes[1].freeze(true);
    fs::write(shared.path(0, "file"), "new").unwrap();
    std::thread::sleep(Duration::from_secs(17));
    shared.nodes[1].freeze(false);
    let end = std::time::Instant::now() + Duration::from_secs(30);
    let mut errors = 0;
    let seen = loop {
        match fs::read_to_string(shared.path(1, "file")) {
            Ok(text) => break text,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
        errors += 1;
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(seen, "new");
    say(format_args!("{errors} errors before it had joined again"));
    fs::write(shared.path(1, "file"), "again").unwrap();
    assert_eq!(fs::read_to_string(shared.path(0, "file")).unwrap(), "again");
}

/// What a node had stored, and not uploaded, is there again when the node is.
#[test]
fn a_killed_node_comes_back_with_its_bytes() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    for n in 0..20 {
        fs::write(shared.path(1, &format!("file{n}")), vec![n; 20_000]).unwrap();
    }
    // What another node has seen is stored.
    assert_eq!(fs::read_dir(shared.path(0, "")).unwrap().count(), 20);
    shared.nodes[1].kill();
    assert_eq!(fs::read_dir(shared.path(0, "")).unwrap().count(), 20);
    let missing = (0..20).filter(|n| fs::read(shared.path(0, &format!("file{n}"))).is_err()).count();
    say(format_args!("{missing} of 20 files cannot be read while the node is gone"));
    shared.nodes[1].mount();
    for node in 0..2 {
        for n in 0..20 {
            let bytes = fs::read(shared.path(node, &format!("file{n}"))).unwrap();
            assert!(bytes == vec![n; 20_000], "file{n} on node {node}");
        }
    }
}

/// After fsync(2), no byte depends on the node that wrote it.
#[test]
fn what_was_synced_is_there_without_its_writer() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    for n in 0..5u8 {
        let path = shared.path(1, &format!("file{n}"));
        fs::write(&path, vec![n; 200_000]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
    }
    shared.nodes[1].kill();
    fs::remove_dir_all(&shared.nodes[1].folder).unwrap();
    for n in 0..5u8 {
        assert!(fs::read(shared.path(0, &format!("file{n}"))).unwrap() == vec![n; 200_000]);
    }
}

/// What another node has read is not lost with the node that wrote it.
#[test]
fn what_a_reader_has_seen_outlives_its_writer() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    fs::create_dir(shared.path(1, "dir")).unwrap();
    for round in 0..3 {
        let text = |n: usize| format!("round {round}, turn {n}: ").repeat(40);
        let turns = 10 + round;
        for n in 0..turns {
            fs::write(shared.path(1, "dir/file"), text(n)).unwrap();
            assert_eq!(fs::read_to_string(shared.path(0, "dir/file")).unwrap(), text(n));
        }
        fs::File::create_new(shared.path(1, &format!("dir/last{round}"))).unwrap();
        assert!(fs::exists(shared.path(0, &format!("dir/last{round}"))).unwrap());
        shared.nodes[1].kill();
        if round == 0 {
            // Another node takes its lease over.
            fs::write(shared.path(0, "dir/own"), "own").unwrap();
        }
        let names = fs::read_dir(shared.path(0, "dir")).unwrap().count();
        assert_eq!(names, 3 + round, "round {round}");
        shared.nodes[1].mount();
        assert_eq!(fs::read_to_string(shared.path(0, "dir/file")).unwrap(), text(turns - 1));
        fs::write(shared.path(1, "dir/file"), text(turns)).unwrap();
        assert_eq!(fs::read_to_string(shared.path(0, "dir/file")).unwrap(), text(turns));
    }
}

/// A reader has borrowed a folder and is stopped. Its loan ends by itself, so the writer goes on soon, and
/// the reader shows nothing old.
#[test]
fn a_reader_that_is_stopped_delays_a_change_a_little() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::create_dir(shared.path(0, "dir")).unwrap();
    // On a busy machine some rounds take longer, or the reader gets the lease and no loan. A writer that
    // waits for the reader itself, or for the end of its session, takes more than two seconds each time.
    let (mut took, mut quick) = (Vec::new(), 0);
    while quick < 5 {
        let round = took.len();
        assert!(round < 20, "{took:?}");
        let (old, new) = (format!("old {round}"), format!("new {round}"));
        fs::write(shared.path(0, "dir/file"), &old).unwrap();
        assert_eq!(read_at_last(&shared.path(1, "dir/file")), old);
        shared.nodes[1].freeze(true);
        let began = std::time::Instant::now();
        fs::write(shared.path(0, "dir/file"), &new).unwrap();
        let waited = began.elapsed();
        shared.nodes[1].freeze(false);
        assert_eq!(read_at_last(&shared.path(1, "dir/file")), new, "round {round}");
        took.push(waited);
        quick += usize::from(waited < Duration::from_secs(2));
    }
}

/// What the first read gives that succeeds. A node that was stopped for longer than its session has errors
/// until it has joined again.
fn read_at_last(path: &std::path::Path) -> String {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        match fs::read_to_string(path) {
            Ok(text) => return text,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
