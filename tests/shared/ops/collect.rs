//! What is removed on nodes leaves the origin, and nothing else does.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, environment, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, requires_server, say};
use s3server::{Fault, Proxy, Rule};

use super::publish::{LIMIT, Published, publish, same};

/// Longer than anything takes here: an inode without a name is deleted after two sessions, or after eight if
/// no node has its lease.
const PATIENCE: Duration = Duration::from_secs(300);

/// The bytes of all blobs of a folder.
pub fn stored(folder: &Path) -> u64 {
    let size = |entry: fs::DirEntry| match entry.path().is_dir() {
        true => stored(&entry.path()),
        false if entry.file_name().len() == 64 => entry.metadata().map_or(0, |found| found.len()),
        false => 0,
    };
    fs::read_dir(folder).into_iter().flatten().flatten().map(size).sum()
}

pub fn synced(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// The blobs in a folder of blobs, or in a bucket.
pub fn blobs(folder: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_blob = name.len() == 64;
        count += if entry.path().is_dir() { blobs(&entry.path()) } else { usize::from(is_blob) };
    }
    count
}

/// How many rows of a kind there are.
fn rows(shared: &Shared, tag: u8) -> usize {
    let sql = format!("select count(*) from covey_kv where substring(k from 1 for 1) = '\\x{tag:02x}'");
    shared.server.sql(&sql).parse().unwrap()
}

pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Looks for these files on all nodes, so that no kernel remembers one that was removed.
fn look(shared: &Shared) {
    for node in 0..shared.nodes.len() {
        for n in 0..12 {
            let _ = fs::metadata(shared.path(node, &format!("file{n}")));
        }
    }
}

pub fn gc(node: &Path) -> serde_json::Value {
    run_ok(covey().args(["gc", "--json"]).arg(node), LIMIT).json()
}

fn sound(shared: &Shared) {
    let done = run(covey().args(["fsck", &shared.address]), LIMIT);
    assert_eq!(done.code(), 0, "{}{}", done.stdout, done.stderr);
}

/// Files that two nodes wrote, and removed, cut and wrote over for each other.
#[test]
fn blobs_of_removed_files_leave_the_origin() {
    requires!(Need::Covey);
    let mut shared = Shared::with(requires_server!(), 2, &["-o", "gc_delay=1,fsync=origin"]);
    let origin = shared.folder.path().join("origin");
    let mut rng = Rng::new(1);
    let mut kept = Vec::new();
    for n in 0..12 {
        let bytes = rng.bytes(200_000 + n);
        synced(&shared.path(n % 2, &format!("file{n}")), &bytes);
        kept.push(bytes);
    }
    assert_eq!(blobs(&origin), 12);
    for (n, kept) in kept.iter_mut().enumerate().take(9) {
        let path = shared.path(1 - n / 3 % 2, &format!("file{n}"));
        match n % 3 {
            0 => fs::remove_file(&path).unwrap(),
            1 => File::options().write(true).open(&path).unwrap().set_len(0).unwrap(),
            _ => {
                *kept = rng.bytes(1000);
                synced(&path, kept);
            }
        }
    }
    until("twelve blobs become six", || {
        look(&shared);
        blobs(&origin) == 6
    });
    until("nothing is left of the others", || rows(&shared, 0x1c) + rows(&shared, 0x1d) == 0);
    let check = |shared: &Shared| {
        for node in 0..2 {
            for n in [2, 5, 8, 9, 10, 11] {
                let read = fs::read(shared.path(node, &format!("file{n}"))).unwrap();
                assert!(read == kept[n], "file{n} on node {node}");
            }
        }
    };
    check(&shared);
    // Nothing is left to do, also for a node that does it without a mount.
    shared.nodes[1].unmount();
    let folder = shared.nodes[1].folder.clone();
    for place in [&shared.nodes[0].mountpoint, &folder] {
        let done = gc(place);
        assert_eq!(
            (&done["blobs"], &done["garbage_bytes"], &done["waiting_bytes"]),
            (&6.into(), &0.into(), &0.into())
        );
    }
    shared.nodes[1].mount();
    check(&shared);
    sound(&shared);
}

/// Nodes are killed while they write, remove and delete. What is there can be read all the time.
#[test]
fn deletion_goes_on_after_kills() {
    requires!(Need::Covey);
    let more = ["-o", "gc_delay=0.2,fsync=origin"];
    let mut shared = Shared::with(requires_server!(), 3, &more);
    let origin = shared.folder.path().join("origin");
    let mut rng = Rng::new(2);
    // Few contents, so that equal blobs come and go.
    let contents: Vec<Vec<u8>> = (0..5).map(|n| rng.bytes(100_000 + n)).collect();
    let mut model = [None; 6];
    for round in 0..8 {
        let victim = round % 3;
        for step in 0..12 {
            let (file, content) = (rng.below(6) as usize, rng.below(5) as usize);
            let path = shared.path(rng.below(3) as usize, &format!("file{file}"));
            match rng.below(4) {
                0 if model[file].is_some() => {
                    fs::remove_file(&path).unwrap();
                    model[file] = None;
                }
                _ => {
                    synced(&path, &contents[content]);
                    model[file] = Some(content);
                }
            }
            if step == 6 {
                std::thread::sleep(Duration::from_millis(rng.below(2000)));
            }
        }
        // What was removed is stored too.
        fs::read_dir(shared.path((victim + 1) % 3, "")).unwrap().count();
        shared.nodes[victim].kill();
        shared.nodes[victim].try_mount(&more).unwrap();
        for (file, content) in model.iter().enumerate() {
            let read = fs::read(shared.path(victim, &format!("file{file}"))).ok();
            assert!(read.as_ref() == content.map(|content| &contents[content]), "round {round}: file{file}");
        }
    }
    gc(&shared.nodes[0].mountpoint);
    std::thread::sleep(Duration::from_secs(1));
    gc(&shared.nodes[0].mountpoint);
    say(format_args!("{} blobs are there", blobs(&origin)));
    for node in 0..3 {
        for (file, content) in model.iter().enumerate() {
            let read = fs::read(shared.path(node, &format!("file{file}"))).ok();
            assert!(read.as_ref() == content.map(|content| &contents[content]), "file{file} on node {node}");
        }
    }
    sound(&shared);
}

/// A node stops while it tries to delete a blob, for longer than its session. Another node deletes the blob
/// and stores an equal one. The first goes on, and does not delete that.
#[test]
fn a_node_that_was_stopped_does_not_delete_later() {
    requires!(Need::Covey);
    environment(s3server::environment());
    let (server, store) = (requires_server!(), s3server::Server::start());
    let proxy = Proxy::start(store.address(), 1);
    let (folder, hosts) = (covey_tests::scratch(), format!("127.0.0.1:{}", server.port()));
    let (origin, endpoint) = (format!("s3://{}/work", s3server::BUCKET), proxy.endpoint());
    let more = ["-o", "gc_delay=0.2,fsync=origin"];
    let shared = Shared::stored(server, folder, &hosts, 2, &more, &[&origin, "--endpoint", &endpoint]);
    let bytes = Rng::new(3).bytes(150_000);
    synced(&shared.path(0, "file"), &bytes);
    assert_eq!(blobs(&store.folder()), 1);
    proxy.add(Rule::new(Fault::SlowDown).only(s3server::Method::DELETE));
    File::options().write(true).open(shared.path(0, "file")).unwrap().set_len(0).unwrap();
    until("the node tries to delete", || proxy.faults().happened() > 0);
    shared.nodes[0].freeze(true);
    proxy.faults().clear();
    until("another node deletes", || blobs(&store.folder()) == 0);
    synced(&shared.path(1, "again"), &bytes);
    assert_eq!(blobs(&store.folder()), 1);
    let before = store.counts().delete;
    shared.nodes[0].freeze(false);
    until("it answers again", || fs::metadata(shared.path(0, "again")).is_ok());
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!((store.counts().delete, blobs(&store.folder())), (before, 1));
    assert!(fs::read(shared.path(0, "again")).unwrap() == bytes);
    sound(&shared);
}

/// A reader meets files that are replaced, and whose blobs are deleted, all the time.
#[test]
fn reads_go_on_while_another_node_replaces_and_deletes() {
    requires!(Need::Covey);
    let shared = Shared::with(requires_server!(), 2, &["-o", "gc_delay=0.05,fsync=origin"]);
    let (folder, stop) = (shared.path(0, "dir"), AtomicBool::new(false));
    fs::create_dir(&folder).unwrap();
    let content = |version: u64| {
        let mut bytes = Rng::new(version).bytes(60_000);
        bytes[..8].copy_from_slice(&version.to_be_bytes());
        bytes
    };
    synced(&folder.join("file"), &content(0));
    let reads = std::thread::scope(|scope| {
        let (shared, stop) = (&shared, &stop);
        let reader = scope.spawn(move || {
            let mut reads = 0;
            while !stop.load(Ordering::Relaxed) {
                let read = fs::read(shared.path(1, "dir/file")).unwrap();
                let version = u64::from_be_bytes(read[..8].try_into().unwrap());
                assert!(read == content(version), "version {version}");
                reads += 1;
            }
            reads
        });
        let end = Instant::now() + Duration::from_secs(60);
        let mut version = 0;
        while Instant::now() < end && !reader.is_finished() {
            version += 1;
            synced(&folder.join("new"), &content(version));
            fs::rename(folder.join("new"), folder.join("file")).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        (version, reader.join().unwrap())
    });
    say(format_args!("{} versions, {} reads", reads.0, reads.1));
    let origin = shared.folder.path().join("origin");
    until("all but the last are deleted", || {
        let _ = fs::metadata(shared.path(1, "dir/file"));
        blobs(&origin) == 1
    });
}

/// A copy by reference, and a published tree, keep the bytes of a file that is removed.
#[test]
fn copies_and_published_trees_keep_what_is_removed() {
    requires!(Need::Covey);
    let shared = Shared::with(requires_server!(), 2, &["-o", "gc_delay=0.2,fsync=origin"]);
    let origin = shared.folder.path().join("origin");
    let mut rng = Rng::new(5);
    let (copied, published) = (rng.bytes(300_000), rng.bytes(400_000));
    synced(&shared.path(0, "copied"), &copied);
    fs::create_dir(shared.path(0, "tree")).unwrap();
    synced(&shared.path(0, "tree/published"), &published);
    run_ok(covey().args(["publish", "--json"]).arg(shared.path(1, "tree")).arg("nightly"), LIMIT);
    let tree = format!("{}@nightly", shared.origin());
    let from = File::open(shared.path(1, "copied")).unwrap();
    let to = File::create(shared.path(1, "copy")).unwrap();
    let done = rustix::fs::copy_file_range(&from, None, &to, None, copied.len()).unwrap();
    assert_eq!(done, copied.len());
    drop((from, to));
    let before = blobs(&origin);
    fs::remove_file(shared.path(0, "copied")).unwrap();
    fs::remove_dir_all(shared.path(0, "tree")).unwrap();
    // Two of three packs: the copy keeps the first.
    until("the pack is forgotten", || {
        rows(&shared, 0x0f) - rows(&shared, 0x12) < 10 && rows(&shared, 0x12) == 1
    });
    assert_eq!(blobs(&origin), before, "both blobs and the tree's are kept");
    for node in 0..2 {
        assert!(fs::read(shared.path(node, "copy")).unwrap() == copied);
    }
    let mount = Published::mount(&tree, shared.folder.path().join("mounted"));
    assert!(fs::read(mount.mountpoint.join("published")).unwrap() == published);
    drop(mount);
    run_ok(covey().arg("unpublish").arg(&shared.nodes[0].mountpoint).arg("nightly"), LIMIT);
    gc(&shared.nodes[0].mountpoint);
    assert_eq!(blobs(&origin), 1, "the copy's");
    sound(&shared);
    let mut file = vec![0; 1000];
    File::open(shared.path(0, "copy")).unwrap().read_exact_at(&mut file, 1000).unwrap();
    assert!(file == copied[1000..2000]);
    publish(&shared.nodes[0].mountpoint, "nightly");
    let again = Published::mount(&tree, shared.folder.path().join("mounted"));
    same(&shared.path(0, ""), &again.mountpoint);
}

/// What is in the files of [`mostly_dead_blobs_are_compacted`].
struct Files {
    whole: Vec<Vec<u8>>,
    small: Vec<Vec<u8>>,
}

impl Files {
    fn path(shared: &Shared, node: usize, n: usize) -> PathBuf {
        shared.path(node, &format!("dir{}/file{n}", n % 2))
    }

    fn check(&self, shared: &Shared, nodes: &[usize]) {
        for node in nodes {
            for (n, bytes) in self.whole.iter().enumerate() {
                assert!(fs::read(Files::path(shared, *node, n)).unwrap() == *bytes, "file{n} on {node}");
            }
            for (n, bytes) in self.small.iter().enumerate().filter(|(n, _)| n % 6 == 0) {
                assert!(fs::read(shared.path(*node, &format!("small/{n}"))).unwrap() == *bytes, "small/{n}");
            }
        }
    }

    /// Writes over most of each file, by its node (0) or the other one (1).
    fn overwrite(&mut self, shared: &Shared, rng: &mut Rng, other: usize) {
        for (n, bytes) in self.whole.iter_mut().enumerate() {
            let new = rng.bytes(800_000);
            let path = Files::path(shared, (n + other) % 2, n);
            let file = File::options().write(true).open(path).unwrap();
            let at = other * 100_000;
            file.write_all_at(&new, at as u64).unwrap();
            file.sync_all().unwrap();
            bytes[at..at + 800_000].copy_from_slice(&new);
        }
    }
}

/// Two nodes write files and write over most of their bytes, or remove most of them. What is stored shrinks
/// to what is there: without a command where a node works in its own directory, and with one where another
/// node does. Nothing of it is lost with a node that has moved bytes.
#[test]
fn mostly_dead_blobs_are_compacted() {
    requires!(Need::Covey);
    let mut shared = Shared::with(requires_server!(), 2, &["-o", "gc_delay=1,fsync=origin"]);
    let origin = shared.folder.path().join("origin");
    let mut rng = Rng::new(11);
    let used = 8 * 900_000 + 10 * 30_000;
    let whole = (0..8).map(|_| rng.bytes(900_000)).collect();
    let small = (0..60).map(|_| rng.bytes(30_000)).collect();
    let mut files = Files { whole, small };
    for (n, bytes) in files.whole.iter().enumerate() {
        fs::create_dir_all(shared.path(n % 2, &format!("dir{}", n % 2))).unwrap();
        synced(&Files::path(&shared, n % 2, n), bytes);
    }
    fs::create_dir(shared.path(0, "small")).unwrap();
    for (n, bytes) in files.small.iter().enumerate() {
        fs::write(shared.path(0, &format!("small/{n}")), bytes).unwrap();
    }
    File::open(shared.path(0, "small/0")).unwrap().sync_all().unwrap();
    // Opened before anything moves.
    let open: Vec<File> = (0..8).map(|n| File::open(Files::path(&shared, n % 2, n)).unwrap()).collect();
    files.overwrite(&shared, &mut rng, 0);
    let full = stored(&origin);
    assert!(full > 2 * used - 1_000_000, "{full}");
    for n in (0..60).filter(|n| n % 6 != 0) {
        fs::remove_file(shared.path(0, &format!("small/{n}"))).unwrap();
    }
    until("each node compacts what it wrote", || {
        let _ = fs::read_dir(shared.path(0, "small")).unwrap().count();
        stored(&origin) < used + used / 10
    });
    say(format_args!("{full} bytes became {}; {used} are in use", stored(&origin)));
    for (n, file) in open.iter().enumerate() {
        let mut read = vec![0; 900_000];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == files.whole[n], "through a descriptor from before");
    }
    files.check(&shared, &[0, 1]);
    // Now the other node of each directory, which both have used.
    let open: Vec<File> = (0..8).map(|n| File::open(Files::path(&shared, n % 2, n)).unwrap()).collect();
    files.overwrite(&shared, &mut rng, 1);
    let (full, mut moved) = (stored(&origin), 0);
    until("a request compacts all", || {
        moved += gc(&shared.nodes[0].mountpoint)["moved_bytes"].as_u64().unwrap();
        stored(&origin) < used + used / 10
    });
    say(format_args!("{full} bytes became {}; {moved} were moved", stored(&origin)));
    assert!(moved > 0);
    for (n, file) in open.iter().enumerate() {
        let mut read = vec![0; 900_000];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == files.whole[n], "through a descriptor from before");
    }
    drop(open);
    files.check(&shared, &[0, 1]);
    sound(&shared);
    // A node that has moved bytes is lost, with its folder.
    shared.nodes[0].kill();
    fs::remove_dir_all(&shared.nodes[0].folder).unwrap();
    files.check(&shared, &[1]);
    shared.add();
    files.check(&shared, &[1, 2]);
    sound(&shared);
}
