//! `covey publish` of a shared volume.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, environment, run, run_ok, wait};
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, proc, requires, requires_server, say, tree};

pub const LIMIT: Duration = Duration::from_secs(120);

/// Files of all kinds: in the names, in a pack with others, in packs of their own, with holes, links.
pub fn fill(root: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    fs::create_dir_all(root.join("dir/below")).unwrap();
    for (n, len) in [0, 1, 512, 513, 4096, 100_000, 1 << 20, 5 << 20].into_iter().enumerate() {
        fs::write(root.join(format!("dir/file{n}")), rng.bytes(len)).unwrap();
    }
    let holes = File::create(root.join("dir/below/holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, &rng.bytes(10_000), 9 << 20).unwrap();
    fs::hard_link(root.join("dir/file5"), root.join("dir/below/other")).unwrap();
    symlink("file5", root.join("dir/link")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("dir/file1"), "user.mark", b"value", flags).unwrap();
}

/// A published tree that is mounted. It is unmounted when this is dropped.
pub struct Published {
    pub mountpoint: PathBuf,
    daemon: Child,
}

impl Published {
    /// Mounts `ORIGIN@NAME`, and accepts the key that signed it: a restored volume has another one.
    pub fn mount(tree: &str, mountpoint: PathBuf) -> Published {
        let key = key(tree, &[]);
        Published::mount_with(tree, mountpoint, &["--key", &key])
    }

    /// The same with these arguments.
    pub fn mount_with(tree: &str, mountpoint: PathBuf, more: &[&str]) -> Published {
        fs::create_dir_all(&mountpoint).unwrap();
        let mut command = covey();
        command.args(["mount", tree]).args(more).arg(&mountpoint).stdin(Stdio::null()).current_dir("/");
        command.stdout(Stdio::null());
        let mut published = Published { daemon: command.spawn().unwrap(), mountpoint };
        let end = Instant::now() + LIMIT;
        while !proc::is_fuse_mount(&published.mountpoint) {
            let ended = published.daemon.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{tree} was not mounted: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        published
    }
}

/// The key that signed `ORIGIN@NAME`.
pub fn key(tree: &str, reach: &[&str]) -> String {
    let (origin, name) = tree.rsplit_once('@').unwrap();
    let list = run_ok(covey().args(["published", "--json", origin]).args(reach), LIMIT).json();
    let row = list.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
    row["key"].as_str().unwrap().to_owned()
}

impl Drop for Published {
    fn drop(&mut self) {
        run(covey().arg("umount").arg(&self.mountpoint), LIMIT);
        if wait(&mut self.daemon, LIMIT).is_none() {
            self.daemon.kill().ok();
            self.daemon.wait().ok();
        }
    }
}

pub fn same(left: &Path, right: &Path) {
    let differences = tree::differences("left", &tree::read(left), "right", &tree::read(right));
    assert!(differences.is_empty(), "{} and {}: {differences:#?}", left.display(), right.display());
}

pub fn publish(node: &Path, name: &str) -> serde_json::Value {
    run_ok(covey().args(["publish", "--json"]).arg(node).arg(name), LIMIT).json()
}

/// A tree that one node publishes holds what another node wrote just before, although the bytes are only on
/// that node.
#[test]
fn any_node_publishes_what_all_have_written() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 3);
    fill(&shared.path(0, ""), 1);
    fill(&shared.path(1, "second"), 2);
    let done = publish(&shared.path(2, ""), "nightly");
    assert_eq!((done["unchanged"].as_bool(), done["sequence"].as_u64()), (Some(false), Some(1)));
    let at = |name: &str| shared.folder.path().join(name);
    let name = format!("{}@nightly", shared.origin());
    {
        let published = Published::mount(&name, at("first"));
        same(&shared.path(0, ""), &published.mountpoint);
        // What is written later is not in it.
        fs::write(shared.path(0, "later"), "later").unwrap();
        assert!(!published.mountpoint.join("later").exists());
    }
    let same_again = publish(&shared.path(1, ""), "later");
    let unchanged = publish(&shared.path(0, ""), "later");
    assert_eq!(
        (same_again["unchanged"].as_bool(), unchanged["unchanged"].as_bool()),
        (Some(false), Some(true))
    );
    run_ok(covey().args(["unpublish"]).arg(shared.path(1, "")).arg("later"), LIMIT);
    // Another node publishes under the same name, with the same key.
    let again = publish(&shared.path(0, ""), "nightly");
    assert_eq!(again["sequence"].as_u64(), Some(2));
    let folder = publish(&shared.path(1, "second"), "folder");
    assert_eq!(folder["sequence"].as_u64(), Some(1));
    let list = run_ok(covey().args(["published", "--json"]).arg(shared.path(1, "")), LIMIT).json();
    let keys: Vec<&str> = list.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{list}");
    {
        let published = Published::mount(&name, at("second"));
        same(&shared.path(1, ""), &published.mountpoint);
        let published = Published::mount(&format!("{}@folder", shared.origin()), at("folder"));
        same(&shared.path(1, "second"), &published.mountpoint);
    }
    run_ok(covey().args(["unpublish"]).arg(shared.path(2, "")).arg("folder"), LIMIT);
    let list = run_ok(covey().args(["published", "--json"]).arg(shared.path(1, "")), LIMIT).json();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    // A node that is not mounted publishes too: the command joins with its folder.
    shared.nodes[2].unmount();
    let closed = publish(&shared.nodes[2].folder.clone(), "closed");
    assert_eq!(closed["sequence"].as_u64(), Some(1));
}

/// A published tree can be read by everybody that can read the origin. The secret by which nodes know each
/// other, and the key that signs, are rows of the volume too.
#[test]
fn a_published_tree_holds_no_secret() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 1);
    fs::write(shared.path(0, "file"), "in the names").unwrap();
    publish(&shared.path(0, ""), "nightly");
    let row = |name: &str| {
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let text =
            shared.server.sql(&format!("select encode(v, 'hex') from covey_kv where k = '\\x00{hex}'"));
        let bytes = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
        bytes.map(|two| u8::from_str_radix(two, 16).unwrap()).collect::<Vec<u8>>()
    };
    let (secret, key) = (row("secret"), row("publisher"));
    assert!(secret.len() > 20 && key.len() > 60);
    let mut files = 0;
    let mut seen = false;
    let mut todo = vec![shared.folder.path().join("origin")];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        assert!(!has(secret.trim_ascii()) && !has(&key[10..42]), "{}", path.display());
        seen |= has(b"in the names");
        files += 1;
    }
    assert!(seen, "the rows of the tree should be among the {files} files");
}

/// Programs create and remove files on all nodes while one publishes. Every tree is whole.
#[test]
fn programs_go_on_writing_while_a_shared_volume_is_published() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    const ROUNDS: u64 = 4;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in 0..2 {
            let folder = shared.path(node, &format!("of{node}"));
            let stop = &stop;
            scope.spawn(move || {
                fs::create_dir(&folder).unwrap();
                let mut rng = Rng::new(node as u64);
                for n in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    // A file of a pair is renamed into place after the other one was written.
                    let bytes = rng.bytes(20_000);
                    fs::write(folder.join("new"), &bytes).unwrap();
                    fs::rename(folder.join("new"), folder.join(format!("a{n}"))).unwrap();
                    fs::write(folder.join("new"), &bytes).unwrap();
                    fs::rename(folder.join("new"), folder.join(format!("b{n}"))).unwrap();
                    if n >= 5 {
                        fs::remove_file(folder.join(format!("b{}", n - 5))).unwrap();
                        fs::remove_file(folder.join(format!("a{}", n - 5))).unwrap();
                    }
                }
            });
        }
        let published = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..ROUNDS).for_each(|round| {
                drop(publish(&shared.path((round % 2) as usize, ""), &format!("r{round}")))
            });
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        published.unwrap();
    });
    for round in 0..ROUNDS {
        let name = format!("{}@r{round}", shared.origin());
        let published = Published::mount(&name, shared.folder.path().join(format!("r{round}")));
        for node in 0..2 {
            let Ok(entries) = fs::read_dir(published.mountpoint.join(format!("of{node}"))) else { continue };
            for entry in entries.map(|entry| entry.unwrap()) {
                let bytes = fs::read(entry.path()).unwrap();
                let name = entry.file_name().into_string().unwrap();
                if let Some(number) = name.strip_prefix('b') {
                    let first = fs::read(entry.path().with_file_name(format!("a{number}"))).unwrap();
                    assert!(first == bytes, "round {round}: {name} on {node}");
                }
            }
        }
    }
}

/// Bytes that only a dead node has cannot be published. The error names the node, and what was published
/// before stays.
#[test]
fn bytes_of_a_dead_node_are_named() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    fs::write(shared.path(0, "file"), "1").unwrap();
    publish(&shared.path(0, ""), "nightly");
    fs::write(shared.path(1, "lost"), vec![3; 40_000]).unwrap();
    assert!(shared.path(0, "lost").exists(), "its name is in the database");
    shared.nodes[1].kill();
    let done = run(covey().arg("publish").arg(shared.path(0, "")).arg("nightly"), LIMIT);
    if done.status.success() {
        say(format_args!("the node had uploaded its bytes before it was killed"));
        return;
    }
    assert!(done.code() == 1 && done.stderr.contains("only on the node"), "{done:?}");
    let published =
        Published::mount(&format!("{}@nightly", shared.origin()), shared.folder.path().join("tree"));
    assert!(published.mountpoint.join("file").exists() && !published.mountpoint.join("lost").exists());
    drop(published);
    shared.nodes[1].mount();
    publish(&shared.path(0, ""), "nightly");
}

/// A mount that publishes by itself does so for a shared volume too, whichever node changed it.
#[test]
fn a_shared_mount_publishes_again_and_again() {
    requires!(Need::Covey);
    let shared = Shared::with(requires_server!(), 2, &["--publish-every", "1s"]);
    let rows = || {
        let list = run_ok(covey().args(["published", "--json", &shared.origin()]), LIMIT).json();
        list.as_array().unwrap().first().map_or(0, |row| row["files"].as_u64().unwrap())
    };
    let end = Instant::now() + LIMIT;
    for files in [2, 3] {
        fs::write(shared.path(files % 2, &format!("file{files}")), "1").unwrap();
        // The root is one of them.
        while rows() != files as u64 {
            assert!(Instant::now() < end, "it is not published: {} files", rows());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The same with an object store: the bytes of other nodes come from the store, or from a node that has not
/// uploaded them yet. The volume is restored from there.
#[test]
fn a_tree_in_an_object_store_is_published_and_restored() {
    requires!(Need::Covey);
    environment(s3server::environment());
    let (server, store) = (requires_server!(), s3server::Server::start());
    let (folder, hosts) = (covey_tests::scratch(), format!("127.0.0.1:{}", server.port()));
    let (origin, endpoint) = (format!("s3://{}/work", s3server::BUCKET), store.endpoint());
    let reach = ["--endpoint", &endpoint];
    let mut shared = Shared::stored(
        server,
        folder,
        &hosts,
        2,
        &["-o", "fsync=local"],
        &[&[&*origin], &reach[..]].concat(),
    );
    fill(&shared.path(0, ""), 1);
    fill(&shared.path(1, "second"), 2);
    publish(&shared.path(1, ""), "nightly");
    fill(&shared.path(0, "third"), 3);
    publish(&shared.path(1, ""), "nightly");
    let tree = format!("{origin}@nightly");
    let at = |name: &str| shared.folder.path().join(name);
    let cache = at("cache").display().to_string();
    let published = Published::mount_with(&tree, at("tree"), &["--cache", &cache, reach[0], reach[1]]);
    same(&shared.path(0, ""), &published.mountpoint);
    // Nothing is read from the nodes any more.
    let address = shared.address.replace("volume=work", "volume=other");
    let kept = at("kept");
    run_ok(std::process::Command::new("cp").arg("-a").arg(&published.mountpoint).arg(&kept), LIMIT);
    shared.nodes.iter_mut().for_each(|node| node.kill());
    let sql = "update covey_session set expires = clock_timestamp()";
    shared.server.sql(sql);
    run_ok(covey().args(["restore", "--take-over", &tree, &address]).args(reach), LIMIT);
    let node = shared.add_of(&address, "other");
    same(&kept, &node.mountpoint);
    fill(&node.mountpoint.join("fourth"), 4);
    publish(&node.mountpoint, "nightly");
}
