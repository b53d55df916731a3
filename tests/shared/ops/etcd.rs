//! Shared volumes whose names are in etcd: a cluster of three members, and nodes with real mounts.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::Node;
use covey_tests::shared::etcd::Volume;
use covey_tests::{Need, requires, say};

use super::clones::{COLLECTS, cloned_and_compacted};
use super::failover::{Stop, Writer, content};
use super::publish::{LIMIT, Published, fill, publish, same};
use super::single::numbers;

/// What one node writes the other reads. Every command that takes an address takes this one.
#[test]
fn two_nodes_share_a_volume_in_etcd() {
    requires!(Need::Covey);
    let Some(mut volume) = Volume::new(2) else { return };
    fill(&volume.path(0, ""), 1);
    fill(&volume.path(1, "second"), 2);
    same(&volume.path(0, ""), &volume.path(1, ""));
    fs::rename(volume.path(1, "dir"), volume.path(1, "moved")).unwrap();
    fs::remove_dir_all(volume.path(0, "second/dir/below")).unwrap();
    // More names than a transaction has operations.
    fs::create_dir(volume.path(0, "many")).unwrap();
    for n in 0..700 {
        fs::write(volume.path(0, &format!("many/{n}")), [n as u8; 700]).unwrap();
    }
    // More pages than a transaction has checks, truncated and removed at once.
    let large = File::create(volume.path(0, "large")).unwrap();
    let piece = vec![7; 4096];
    for page in 0..150u64 {
        std::os::unix::fs::FileExt::write_all_at(&large, &piece, page << 22).unwrap();
    }
    large.sync_all().unwrap();
    fs::copy(volume.path(0, "large"), volume.path(0, "copy")).unwrap();
    large.set_len(9).unwrap();
    same(&volume.path(0, ""), &volume.path(1, ""));
    fs::remove_file(volume.path(1, "copy")).unwrap();
    fs::remove_dir_all(volume.path(1, "many")).unwrap();
    let lock = File::open(volume.path(0, "large")).unwrap();
    lock.lock().unwrap();

    let sessions = run_ok(covey().args(["sessions", "--json", &volume.address]), LIMIT).json();
    let alive = sessions.as_array().unwrap().iter().filter(|row| row["alive"] == true).count();
    assert_eq!(alive, 2, "{sessions}");
    run_ok(covey().args(["locks", "--json", &volume.address]), LIMIT);
    let checked = run(covey().args(["fsck", "--json", &volume.address]), LIMIT);
    assert!(checked.code() == 0 && checked.json()["sound"] == true, "{checked:?}");
    let doctor = run(covey().args(["doctor", &volume.address]), LIMIT);
    for says in ["knows the leader", "the volume work is there", "old ones are not piling up"] {
        assert!(doctor.stdout.contains(says), "{says}: {doctor:?}");
    }
    publish(&volume.path(1, ""), "nightly");
    let name = format!("file:{}@nightly", volume.at("origin").display());
    {
        let published = Published::mount(&name, volume.at("tree"));
        same(&volume.path(0, ""), &published.mountpoint);
    }
    let other = volume.with("other");
    let restore = |more: &[&str]| run(covey().args(["restore", &name, &other]).args(more), LIMIT);
    let said = restore(&["--take-over"]);
    assert!(said.code() == 1 && said.stderr.contains("in use by 2 nodes"), "{said:?}");
    drop((lock, large));
    volume.nodes.iter_mut().for_each(|node| node.unmount());
    let said = restore(&["--take-over"]);
    assert!(said.status.success(), "{said:?}");
    let node = Node::new(volume.folder.path(), &other, "other");
    let published = Published::mount(&name, volume.at("again"));
    same(&published.mountpoint, &node.mountpoint);
}

/// A volume of one node that is killed in use is promoted into etcd, and is the same volume there.
#[test]
fn a_volume_is_promoted_into_etcd() {
    requires!(Need::Covey);
    let Some(volume) = Volume::new(0) else { return };
    let (single, before) = (volume.at("single"), volume.at("before"));
    let origin = format!("file:{}", volume.at("single-origin").display());
    run_ok(covey().arg("format").arg(&single).args(["--origin", &origin]), LIMIT);
    let inos = {
        let mut node = Node::new(volume.folder.path(), &single.display().to_string(), "before");
        fill(&node.mountpoint, 3);
        // More names than a transaction has operations, and more bytes than a request.
        fs::create_dir(node.mountpoint.join("many")).unwrap();
        for n in 0..3000 {
            fs::write(node.mountpoint.join(format!("many/{n}")), [n as u8; 500]).unwrap();
        }
        fs::remove_file(node.mountpoint.join("many/7")).unwrap();
        publish(&node.mountpoint, "first");
        run_ok(Command::new("cp").arg("-a").arg(&node.mountpoint).arg(&before), LIMIT);
        let inos = numbers(&node.mountpoint);
        node.kill();
        inos
    };
    let address = volume.with("promoted");
    let promote = || run(covey().args(["promote", "--json"]).arg(&single).arg(&address), LIMIT);
    let done = promote();
    assert!(done.code() == 0 && done.json()["rows"].as_u64() > Some(9000), "{done:?}");
    let first = Node::new(volume.folder.path(), &single.display().to_string(), "first");
    let second = Node::new(volume.folder.path(), &address, "second");
    for node in [&first, &second] {
        same(&before, &node.mountpoint);
        assert_eq!(numbers(&node.mountpoint), inos);
    }
    fs::write(second.mountpoint.join("dir/new"), "written").unwrap();
    assert_eq!(fs::read_to_string(first.mountpoint.join("dir/new")).unwrap(), "written");
    fs::remove_dir_all(first.mountpoint.join("many")).unwrap();
    assert!(!second.mountpoint.join("many").exists());
    assert_eq!(publish(&second.mountpoint, "first")["sequence"].as_u64(), Some(2));
    let checked = run(covey().args(["fsck", "--json", &address]), LIMIT);
    assert!(checked.code() == 0 && checked.json()["sound"] == true, "{checked:?}");
    drop((first, second));
    assert_eq!(run(covey().args(["fsck", "--repair", &address]), LIMIT).code(), 0);
    let again = promote();
    assert!(again.code() == 1 && again.stderr.contains("node of a shared volume already"), "{again:?}");
}

/// As on other volumes; see there.
#[test]
fn a_volume_in_etcd_is_cloned_and_compacted() {
    requires!(Need::Covey);
    let Some(volume) = Volume::new(0) else { return };
    let nodes = ["0", "1"].map(|name| Node::with(volume.folder.path(), &volume.address, name, &COLLECTS));
    cloned_and_compacted(&nodes, &volume.address, &volume.at("origin"));
}

/// The leader is killed while nodes write, and then a node. Everything that was acknowledged is there.
#[test]
fn the_leader_and_a_node_are_killed_while_nodes_write() {
    requires!(Need::Covey);
    let Some(mut volume) = Volume::new(2) else { return };
    let stop = AtomicBool::new(false);
    let writers = [Writer::new(), Writer::new()];
    let folders: Vec<PathBuf> = (0..2).map(|node| volume.path(node, &format!("of{node}"))).collect();
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        for (writer, folder) in writers.iter().zip(&folders) {
            let stop = &stop;
            scope.spawn(move || writer.run(folder, stop));
        }
        for _ in 0..2 {
            writers.iter().for_each(|writer| writer.wait_for(20));
            let leader = volume.cluster.leader();
            volume.cluster.kill(leader);
            writers.iter().for_each(|writer| writer.wait_for(20));
            volume.cluster.up(leader);
        }
        drop(stopping);
    });
    let there = |volume: &Volume| {
        for (writer, folder) in writers.iter().zip(["of0", "of1"]) {
            let names = writer.acknowledged.lock().unwrap();
            say(format_args!("{} files, {} errors", names.len(), writer.errors.load(Ordering::Relaxed)));
            for (node, name) in (0..2).flat_map(|node| names.iter().map(move |name| (node, name))) {
                let text = fs::read_to_string(volume.path(node, folder).join(name)).unwrap();
                assert!(text == content(name), "{folder}/{name} on node {node}");
            }
        }
    };
    there(&volume);
    // A node dies with a file that was synced. The other one goes on, and takes over what was leased.
    let mut file = File::create(volume.path(0, "of0/last")).unwrap();
    file.write_all(b"last").unwrap();
    file.sync_all().unwrap();
    drop(file);
    volume.nodes[0].kill();
    let begun = Instant::now();
    while let Err(error) = fs::write(volume.path(1, "of0/after"), "1") {
        assert!(begun.elapsed() < Duration::from_secs(60), "the dead node's folder stays locked: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    volume.nodes[0].mount();
    there(&volume);
    for node in 0..2 {
        assert_eq!(fs::read_to_string(volume.path(node, "of0/last")).unwrap(), "last");
        assert_eq!(fs::read_to_string(volume.path(node, "of0/after")).unwrap(), "1");
    }
    assert_eq!(run(covey().args(["fsck", &volume.address]), LIMIT).code(), 0);
}

/// Wrong arguments: each gives a line that names the mistake, and one that says what to do.
#[test]
fn each_mistake_with_an_address_of_etcd_has_its_line() {
    requires!(Need::Covey);
    let Some(volume) = Volume::new(0) else { return };
    let (none, away) = (volume.with("none"), "etcd://127.0.0.1:1/?volume=work");
    let origin = format!("file:{}", volume.at("else").display());
    let user = volume.address.replace("etcd://", "etcd://me@");
    let password = volume.address.replace("etcd://", "etcd://me:s3cret@");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["format", &volume.address, "--origin", &origin], 1, "has a volume work already"),
        (&["format", &volume.with("new")], 2, "needs an origin"),
        (&["format", &volume.with("a%20b"), "--origin", &origin], 2, "letters, digits"),
        (&["fsck", &none], 1, "has no volume none"),
        (&["locks", &none], 1, "has no volume none"),
        (&["sessions", &none], 1, "has no volume none"),
        (&["mount", &none, "/mnt"], 1, "has no volume none"),
        (&["fsck", away], 1, "check that etcd runs there"),
        (&["fsck", "etcd://no-such-host.invalid/?volume=v"], 1, "has no address"),
        (&["sessions", "etcd://a,/?volume=work"], 2, "name the server"),
        (&["sessions", &user], 1, "there is no password"),
        (&["sessions", &password], 2, "ETCD_PASSFILE or ETCD_PASSWORD"),
    ];
    for (args, status, says) in cases {
        let done = run(covey().args(*args).env_remove("ETCD_PASSWORD").env_remove("ETCD_PASSFILE"), LIMIT);
        let lines: Vec<&str> = done.stderr.lines().collect();
        assert!(done.code() == *status && done.stderr.contains(says), "{args:?}: {done:?}");
        assert!(lines.first().is_some_and(|line| line.starts_with("covey: ")), "{args:?}: {done:?}");
        assert!(!done.stderr.contains("panicked") && !done.stderr.contains("s3cret"), "{args:?}: {done:?}");
        assert!(done.stdout.is_empty(), "{args:?}: {done:?}");
    }
    // A format that failed leaves no volume.
    let taken = volume.at("taken");
    fs::write(&taken, "a file").unwrap();
    let bad = format!("file:{}", taken.display());
    assert_eq!(run(covey().args(["format", &volume.with("new"), "--origin", &bad]), LIMIT).code(), 1);
    let done = run(covey().args(["fsck", &volume.with("new")]), LIMIT);
    assert!(done.stderr.contains("has no volume new"), "{done:?}");
}
