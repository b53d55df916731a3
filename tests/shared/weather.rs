//! Work while something fails: a node, the database, the disk of a node.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::loopfs::LoopFs;
use covey_tests::program::wait;
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, requires_server, run_ok, say};

use crate::work::{make_tree, must_be_same, pack, unpack};

const LIMIT: Duration = Duration::from_secs(120);
/// How long a request to the database is tried.
const PATIENCE: Duration = Duration::from_secs(10);

/// A tree and its archive, and a folder on the volume to unpack it in.
fn archive(shared: &Shared, dirs: usize) -> (PathBuf, PathBuf) {
    let (tree, archive) = (shared.folder.path().join("tree"), shared.folder.path().join("tree.tar"));
    make_tree(&tree, dirs, 20);
    pack(&tree, &archive);
    fs::create_dir(shared.path(0, "into")).unwrap();
    (tree, archive)
}

/// The files below a folder, with their paths in it.
fn files(below: &Path, from: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files(below, &entry.path(), found);
        } else if entry.file_type().unwrap().is_file() {
            found.push(entry.path().strip_prefix(below).unwrap().to_owned());
        }
    }
}

fn wait_for_entries(folder: &Path, count: usize) {
    let end = Instant::now() + LIMIT;
    let found = || {
        let mut found = Vec::new();
        files(folder, folder, &mut found);
        found.len()
    };
    while found() < count {
        assert!(Instant::now() < end, "tar makes no progress");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What tar had unpacked is there and whole, but for its last moments. Only the file that it was at may lack
/// bytes.
#[test]
fn what_tar_unpacked_survives_a_kill_of_its_node() {
    requires!(Need::Covey, Need::Program("tar"), Need::Program("diff"));
    let mut shared = Shared::new(requires_server!(), 2);
    let (tree, archive) = archive(&shared, 100);
    let into = shared.path(0, "into");
    let mut command = unpack("-".as_ref(), &into);
    let mut tar = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut pipe, bytes) = (tar.stdin.take().unwrap(), fs::read(&archive).unwrap());
    std::thread::scope(|scope| {
        // The second half comes slowly, so that tar is still at work when the daemon is killed.
        scope.spawn(move || {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            let all = std::iter::once(first).chain(second.chunks(bytes.len() / 800));
            let mut pass_on = |part: &[u8]| {
                std::thread::sleep(Duration::from_millis(10));
                pipe.write_all(part).is_ok()
            };
            let _ = all.into_iter().all(&mut pass_on);
        });
        wait_for_entries(&shared.path(1, "into"), 60);
        shared.nodes[0].kill();
    });
    let status = wait(&mut tar, LIMIT).expect("tar should end");
    assert!(!status.success(), "tar ended before the daemon did");
    shared.nodes[0].mount();
    let mut left = Vec::new();
    files(&shared.path(1, "into"), &shared.path(1, "into"), &mut left);
    for node in 0..2 {
        let other = |path: &PathBuf| {
            fs::read(shared.path(node, "into").join(path)).unwrap() != fs::read(tree.join(path)).unwrap()
        };
        let partial: Vec<_> = left.iter().filter(|path| other(path)).collect();
        assert!(partial.len() <= 1, "node {node} lost bytes of {partial:?} of {} files", left.len());
    }
    say(format_args!("{} files were there after the kill", left.len()));
    run_ok(&mut unpack(&archive, &into), LIMIT);
    must_be_same(&tree, &shared.path(1, "into"));
}

#[test]
fn tar_does_not_notice_a_database_that_is_down_for_a_moment() {
    requires!(Need::Covey, Need::Program("tar"), Need::Program("diff"));
    let shared = Shared::new(requires_server!(), 2);
    let (tree, archive) = archive(&shared, 12);
    let mut tar = unpack(&archive, &shared.path(0, "into")).spawn().unwrap();
    wait_for_entries(&shared.path(1, "into"), 40);
    shared.server.down();
    std::thread::sleep(Duration::from_secs(3));
    shared.server.up();
    let status = wait(&mut tar, LIMIT).expect("tar should end");
    assert!(status.success(), "{}", shared.nodes[0].log());
    must_be_same(&tree, &shared.path(1, "into"));
}

/// No request waits longer than the patience, and all is well when the database is back.
#[test]
fn a_database_that_is_down_for_long_gives_errors_and_no_hang() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    for node in 0..2 {
        fs::write(shared.path(node, &format!("file{node}")), "before").unwrap();
        fs::File::open(shared.path(node, &format!("file{node}"))).unwrap().sync_all().unwrap();
    }
    // The second node has a lease on the folder. It goes on until its session may have ended.
    fs::metadata(shared.path(1, "file0")).unwrap();
    shared.server.down();
    std::thread::scope(|scope| {
        let check = |what: &'static str, done: std::io::Result<()>, began: Instant| {
            let error = done.expect_err(what);
            assert!(began.elapsed() < PATIENCE + Duration::from_secs(30), "{what}: {:?}", began.elapsed());
            assert!(!matches!(error.kind(), ErrorKind::NotFound), "{what}: {error}");
        };
        let [a, b] = [0, 1].map(|node| shared.path(node, ""));
        let (left, right) = (a.clone(), b.clone());
        scope.spawn(move || {
            let began = Instant::now();
            check("stat", fs::metadata(left.join("file1")).map(drop), began);
        });
        scope.spawn(move || {
            let began = Instant::now();
            check("create", fs::write(a.join("new"), "new"), began);
        });
        fs::metadata(right.join("file0")).expect("the lease is as good as before");
        std::thread::sleep(Duration::from_secs(14));
        scope.spawn(move || {
            let began = Instant::now();
            check("remove", fs::remove_file(right.join("file0")), began);
        });
        scope.spawn(move || {
            let began = Instant::now();
            check("list", fs::read_dir(b).map(drop), began);
        });
    });
    shared.server.up();
    let end = Instant::now() + Duration::from_secs(30);
    for node in 0..2 {
        while let Err(error) = fs::write(shared.path(node, "after"), "after") {
            assert!(Instant::now() < end, "node {node}: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
        for file in ["file0", "file1"] {
            assert_eq!(fs::read_to_string(shared.path(node, file)).unwrap(), "before");
        }
    }
}

/// The nodes reach the database and not each other. They go on, slowly.
#[test]
fn nodes_that_cannot_reach_each_other_share_names() {
    requires!(Need::Covey);
    // Nothing listens on this port: the first node is told to others under a wrong address.
    let shared = Shared::with(requires_server!(), 2, &["--advertise", "127.0.0.1:1"]);
    for round in 0..3 {
        let (node, other) = (round % 2, 1 - round % 2);
        fs::create_dir(shared.path(node, &format!("dir{round}"))).unwrap();
        let began = Instant::now();
        assert!(fs::metadata(shared.path(other, &format!("dir{round}"))).unwrap().is_dir());
        say(format_args!("seen after {:?}", began.elapsed()));
    }
}

/// Bytes that only the other node had were answered with EIO, although it was alive.
#[test]
fn regression_nodes_that_cannot_reach_each_other_share_bytes() {
    requires!(Need::Covey);
    let shared = Shared::with(requires_server!(), 2, &["--advertise", "127.0.0.1:1"]);
    for round in 0..2 {
        let (node, other, name) = (round, 1 - round, format!("file{round}"));
        let bytes = Rng::new(round as u64).bytes(60_000);
        fs::write(shared.path(node, &name), &bytes).unwrap();
        let began = Instant::now();
        assert!(fs::read(shared.path(other, &name)).unwrap() == bytes, "round {round}");
        say(format_args!("read after {:?}", began.elapsed()));
    }
    let end = Instant::now() + LIMIT;
    while !shared.nodes.iter().all(|node| node.log().contains("does not reach the node")) {
        assert!(Instant::now() < end, "it is not said");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A node that cannot upload, and whose disk is full, refuses new bytes. What it took can be read on all
/// nodes, and all is well when the origin is back.
#[test]
fn a_full_disk_of_a_node_loses_nothing() {
    requires!(Need::Covey, Need::Ext4);
    const LEN: usize = 8 << 20;
    let mut shared = Shared::new(requires_server!(), 1);
    let disk = LoopFs::new(96);
    shared.add_in(disk.path().join("node"));
    let (origin, away) = (shared.folder.path().join("origin"), shared.folder.path().join("away"));
    fs::rename(&origin, &away).unwrap();
    let path = |node, n: u64| shared.path(node, &format!("file{n}"));
    let full = (0..20).find_map(|n| Some((n, fs::write(path(1, n), Rng::new(n).bytes(LEN)).err()?)));
    let (written, error) = full.expect("160 MiB should not fit on a disk of 96 MiB");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(written >= 4, "only {written} files of 8 MiB fitted");
    let check = |when: &str| {
        for (node, n) in (0..2).flat_map(|node| (0..written).map(move |n| (node, n))) {
            assert!(fs::read(path(node, n)).unwrap() == Rng::new(n).bytes(LEN), "{when}: {n} on {node}");
        }
    };
    check("the origin is gone");
    // The other nodes go on, and so do removals on this one.
    fs::write(shared.path(0, "small"), "small").unwrap();
    assert_eq!(fs::read_to_string(shared.path(1, "small")).unwrap(), "small");
    fs::remove_file(path(1, written)).ok();
    fs::rename(&away, &origin).unwrap();
    let end = Instant::now() + LIMIT;
    while let Err(error) = fs::write(shared.path(1, "after"), Rng::new(99).bytes(LEN)) {
        assert!(Instant::now() < end, "no room although the origin is back: {error}");
        std::thread::sleep(Duration::from_millis(200));
    }
    check("the origin is back");
    assert!(fs::read(shared.path(0, "after")).unwrap() == Rng::new(99).bytes(LEN));
    // Before its disk.
    shared.nodes[1].unmount();
}
