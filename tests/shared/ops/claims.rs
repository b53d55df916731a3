//! Which database holds the names: copies of it, earlier states of it, and servers that take its place.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::{Node, Shared};
use covey_tests::{Need, requires, requires_server};

use super::collect::{stored, synced, until};
use super::publish::{LIMIT, Published, publish};

const COLLECTS: [&str; 2] = ["-o", "gc_delay=1,fsync=origin"];
const FILES: usize = 5;

fn bytes(name: &str) -> Vec<u8> {
    name.bytes()
        .cycle()
        .take(400_000)
        .enumerate()
        .map(|(at, byte)| byte.wrapping_add((at / 977) as u8))
        .collect()
}

fn fill(root: &Path, word: &str) {
    (0..FILES).for_each(|n| synced(&root.join(format!("{word}{n}")), &bytes(&format!("{word}{n}"))));
}

fn must_have(root: &Path, word: &str) {
    for name in (0..FILES).map(|n| format!("{word}{n}")) {
        let found = fs::read(root.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(found == bytes(&name), "{name}");
    }
}

fn is_refused(done: std::io::Result<()>) {
    assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EROFS));
}

/// A dump was restored beside the live volume, and mounted for writing without a word. What was removed there
/// was deleted in the origin, where the live volume still referred to it.
#[test]
fn regression_a_restored_copy_of_the_database_deletes_nothing() {
    requires!(Need::Covey);
    let mut shared = Shared::with(requires_server!(), 1, &COLLECTS);
    fill(&shared.path(0, ""), "before");
    let dump = shared.server.dump("covey");
    fill(&shared.path(0, ""), "after");
    shared.server.restore("copy", &dump);
    let address = shared.address.replace("/covey?", "/copy?");
    let origin = shared.folder.path().join("origin");
    let held = stored(&origin);

    let mut copy = Node::with(shared.folder.path(), &address, "copy", &COLLECTS);
    let log = copy.log();
    assert!(log.contains("mounted for reading only") && log.contains("covey origin claim"), "{log}");
    must_have(&copy.mountpoint, "before");
    is_refused(fs::remove_file(copy.mountpoint.join("before0")));
    is_refused(fs::write(copy.mountpoint.join("new"), "new"));
    let _ = run(covey().arg("gc").arg(&copy.mountpoint), LIMIT);
    copy.unmount();
    assert_eq!(stored(&origin), held);
    must_have(&shared.path(0, ""), "before");

    // The live volume goes on, and deletes what is its own.
    (0..FILES).for_each(|n| fs::remove_file(shared.path(0, &format!("after{n}"))).unwrap());
    until("the blobs of removed files are deleted", || stored(&origin) < held);

    // A person may decide that the copy is the volume from now on.
    shared.nodes[0].unmount();
    let claimed = run_ok(covey().args(["origin", "claim", "--json", &address]), LIMIT).json();
    // The live volume may have made another claim, while it deleted.
    let before = claimed["before"].as_str().unwrap();
    assert!(before.contains("is a copy") || before.contains("restored from a backup"), "{claimed}");
    let again = run_ok(covey().args(["origin", "claim", "--json", &address]), LIMIT).json();
    assert!(again["before"].is_null() && again["claim"] == claimed["claim"], "{again}");
    copy.try_mount(&COLLECTS).unwrap();
    fs::write(copy.mountpoint.join("new"), "new").unwrap();
    shared.nodes[0].mount();
    assert!(shared.nodes[0].log().contains("mounted for reading only"), "{}", shared.nodes[0].log());
    is_refused(fs::write(shared.path(0, "new"), "new"));
}

/// The database was lost, and its last dump was restored under the same address, while nodes were mounted. A
/// node that had joined after the dump and a new one got one number, and overwrote each other's files.
#[test]
fn regression_a_dump_restored_under_mounted_nodes_is_another_database() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 1);
    synced(&shared.path(0, "first"), b"first");
    let dump = shared.server.dump("covey");
    shared.add();
    synced(&shared.path(1, "late"), b"late");
    shared.server.sql_in("postgres", "drop database covey with (force)");
    shared.server.restore("covey", &dump);
    let refused = |path: &Path| {
        let done = fs::File::create(path).and_then(|mut file| {
            file.write_all(b"lost")?;
            file.sync_all()
        });
        assert!(done.is_err(), "{}", path.display());
    };
    (0..2).for_each(|node| refused(&shared.path(node, &format!("no{node}"))));
    // The new database has no claim: it is read until somebody says that it is the one.
    let mut new = shared.add_of(&shared.address, "new");
    assert_eq!(fs::read(new.mountpoint.join("first")).unwrap(), b"first");
    is_refused(fs::write(new.mountpoint.join("new"), "new"));
    new.unmount();
    for node in &mut shared.nodes {
        node.kill();
    }
    let end = Instant::now() + LIMIT;
    loop {
        let done = run(covey().args(["origin", "claim", &shared.address]), LIMIT);
        if done.status.success() {
            break;
        }
        assert!(done.stderr.contains("nodes have joined") && Instant::now() < end, "{done:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
    new.try_mount(&[]).unwrap();
    synced(&new.mountpoint.join("new"), b"new");
    let other = shared.add_of(&shared.address, "other");
    assert_eq!(fs::read(other.mountpoint.join("new")).unwrap(), b"new");
    // The second number is that of the node that looked before.
    let numbers =
        shared.server.sql("select string_agg(number::text, ' ' order by number) from covey_session");
    assert_eq!(numbers, "1 2 1027", "no number of before is given to a node that writes");
    assert_eq!(run(covey().args(["fsck", &shared.address]), LIMIT).code(), 0);
}

/// What was published after the dump is not in its rows. So a search for blobs that no row names deleted
/// those of the tree.
#[test]
fn regression_a_tree_that_was_published_after_the_dump_keeps_its_blobs() {
    published_after_the_dump(true);
}

/// The rows of the dump do not know who signs. So the claimed volume was taken for another one than the owner
/// of the origin, and could not be mounted for writing.
#[test]
fn regression_a_dump_from_before_the_first_publication_can_be_claimed() {
    published_after_the_dump(false);
}

fn published_after_the_dump(and_before: bool) {
    requires!(Need::Covey);
    let mut shared = Shared::with(requires_server!(), 1, &COLLECTS);
    fill(&shared.path(0, ""), "before");
    if and_before {
        publish(&shared.path(0, ""), "nightly");
    }
    // No session is in the dump.
    shared.nodes[0].unmount();
    let dump = shared.server.dump("covey");
    shared.nodes[0].mount();
    fill(&shared.path(0, ""), "after");
    publish(&shared.path(0, ""), "nightly");
    shared.nodes[0].unmount();
    shared.server.sql_in("postgres", "drop database covey with (force)");
    shared.server.restore("covey", &dump);
    run_ok(covey().args(["origin", "claim", &shared.address]), LIMIT);
    let node = Node::with(shared.folder.path(), &shared.address, "new", &COLLECTS);
    must_have(&node.mountpoint, "before");
    for _ in 0..3 {
        run_ok(covey().arg("gc").arg(&node.mountpoint), LIMIT);
        std::thread::sleep(Duration::from_millis(1500));
    }
    let tree = format!("{}@nightly", shared.origin());
    let published = Published::mount(&tree, shared.folder.path().join("tree"));
    must_have(&published.mountpoint, "before");
    must_have(&published.mountpoint, "after");
    drop(published);
    fill(&node.mountpoint, "new");
    publish(&node.mountpoint, "nightly");
    let published = Published::mount(&tree, shared.folder.path().join("tree"));
    must_have(&published.mountpoint, "new");
}

/// A standby takes the place of its primary. Nodes that saw it claim the origin for it, so that what is
/// removed is still deleted there, and new nodes write.
#[test]
fn a_promoted_standby_holds_the_names() {
    requires!(Need::Covey);
    let primary = requires_server!();
    let standby = primary.standby();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    let shared = Shared::made(primary, &hosts, 1, &COLLECTS);
    fill(&shared.path(0, ""), "file");
    let origin = shared.folder.path().join("origin");
    let held = stored(&origin);
    shared.server.kill();
    standby.promote();
    let late = Node::with(shared.folder.path(), &shared.address, "late", &COLLECTS);
    synced(&late.mountpoint.join("new"), b"new");
    let end = Instant::now() + LIMIT;
    for n in 0..FILES {
        // The node may have missed the renewal of its session meanwhile.
        while fs::remove_file(shared.path(0, &format!("file{n}"))).is_err() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    until("the blobs of removed files are deleted", || stored(&origin) < held);
}

/// A standby that lacks the last commits takes the place of its primary. Nodes store again what they had been
/// told is stored, and go on without a new mount.
#[test]
fn regression_commits_that_a_standby_lacks_are_stored_again() {
    requires!(Need::Covey);
    let primary = requires_server!();
    // The standby has the directories.
    let early = primary.standby();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), early.port());
    let shared = Shared::made(primary, &hosts, 2, &[]);
    for node in 0..2 {
        fs::create_dir(shared.path(node, &format!("of{node}"))).unwrap();
        synced(&shared.path(node, &format!("of{node}/first")), b"first");
    }
    shared.server.sql("alter system reset synchronous_standby_names; select pg_reload_conf()");
    early.down();
    let name = |node: usize, n: usize| format!("of{node}/file{n}");
    for (node, n) in (0..2).flat_map(|node| (0..20).map(move |n| (node, n))) {
        synced(&shared.path(node, &name(node, n)), name(node, n).as_bytes());
    }
    shared.server.kill();
    early.up();
    early.promote();
    let end = Instant::now() + LIMIT;
    for node in 0..2 {
        let path = shared.path(node, &format!("of{node}/after"));
        let write = || fs::write(&path, "after").and_then(|()| fs::File::open(&path)?.sync_all());
        while let Err(error) = write() {
            assert!(Instant::now() < end, "node {node}: {error}: {}", shared.nodes[node].log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    for (by, node, n) in (0..2).flat_map(|by| (0..40).map(move |at| (by, at / 20, at % 20))) {
        let found = fs::read(shared.path(by, &name(node, n)));
        let log = || shared.nodes[node].log();
        assert!(found.is_ok_and(|found| found == name(node, n).as_bytes()), "{}: {}", name(node, n), log());
    }
    assert_eq!(run(covey().args(["fsck", &shared.address]), LIMIT).code(), 0);
}

/// A cluster of etcd that was put back to an earlier state has the same id. A node that has seen more than it
/// knows uses it no more, until it is mounted again.
#[test]
fn a_cluster_that_was_put_back_is_not_used_any_more() {
    requires!(Need::Covey);
    let Some(cluster) = servers::Cluster::with(1, &[]) else {
        return covey_tests::say(format_args!("skipped: lacks etcd"));
    };
    let hosts = cluster.hosts();
    let mut volume = covey_tests::shared::etcd::Volume::through(cluster, &hosts, 1);
    synced(&volume.path(0, "first"), b"first");
    let again = |back: bool| {
        volume.cluster.kill(0);
        let (now, old) = (volume.cluster.path("m0"), volume.cluster.path("m0.old"));
        let (from, to) = if back { (&old, &now) } else { (&now, &old) };
        if back {
            fs::remove_dir_all(to).unwrap();
        }
        run_ok(std::process::Command::new("cp").arg("-a").args([from, to]), LIMIT);
        volume.cluster.up(0);
        volume.cluster.leader();
    };
    again(false);
    let write = |name: &str| {
        let path = volume.path(0, name);
        fs::write(&path, name).and_then(|()| fs::File::open(&path)?.sync_all())
    };
    let end = Instant::now() + LIMIT;
    while write("more").is_err() {
        assert!(Instant::now() < end, "{}", volume.nodes[0].log());
        std::thread::sleep(Duration::from_millis(200));
    }
    again(true);
    assert!(write("lost").is_err());
    let log = volume.nodes[0].log();
    assert!(log.contains("was put back to an earlier state") && log.contains("mount it again"), "{log}");
    volume.nodes[0].kill();
    volume.nodes[0].mount();
    synced(&volume.path(0, "again"), b"again");
    assert!(!volume.path(0, "more").exists());
}
