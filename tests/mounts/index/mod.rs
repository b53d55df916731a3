//! `covey index`: the real program, a real S3 server in this process, and a proxy that changes what happens
//! between the two.

mod lister;
mod public;
mod scale;

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok, covey_run, environment, wait};
use covey_tests::{Finished, Need, Rng, Volume, requires};
use s3server::{BUCKET, Canned, Fault, Proxy, Rule, Server};

struct World {
    server: Server,
    proxy: Proxy,
    volume: Volume,
    folder: tempfile::TempDir,
}

impl World {
    fn new(seed: u64) -> World {
        let server = Server::start();
        let proxy = Proxy::start(server.address(), seed);
        let mut variables = s3server::environment();
        // For commands that only read the tree. A mount has an option for it.
        variables.push(("COVEY_BUCKET_ENDPOINTS".to_owned(), proxy.endpoint()));
        environment(variables);
        let folder = covey_tests::scratch();
        let volume = Volume::below(folder.path(), &[]);
        World { server, proxy, volume, folder }
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let file = self.server.folder().join(key);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    fn remove(&self, key: &str) {
        std::fs::remove_file(self.server.folder().join(key)).unwrap();
    }

    fn arguments(&self, prefix: &str, more: &[&str]) -> Vec<String> {
        let (from, endpoint) = (format!("s3://{BUCKET}/{prefix}"), self.proxy.endpoint());
        let volume = self.volume.source.to_str().unwrap();
        let first = ["index", &from, volume, "data", "--endpoint", &endpoint, "--json"];
        first.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    fn index(&self, more: &[&str]) -> Finished {
        covey_run(&self.arguments("set", more))
    }

    fn tree(&self) -> String {
        format!("file:{}@data", self.volume.source.join("blobs").display())
    }

    fn cache(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("cache-{name}"))
    }

    /// Mounts the tree with a cache of its own.
    fn mount(&self, name: &str, more: &[&str]) -> Mount {
        let at = self.folder.path().join(name);
        std::fs::create_dir_all(&at).unwrap();
        let cache = self.cache(name);
        let words = ["mount", "-d", "--cache", cache.to_str().unwrap(), &self.tree(), at.to_str().unwrap()];
        covey_ok(&words.into_iter().chain(more.iter().copied()).collect::<Vec<&str>>());
        Mount { at, mounted: true }
    }
}

/// A mount of a tree.
struct Mount {
    at: PathBuf,
    mounted: bool,
}

impl Mount {
    fn path(&self) -> &Path {
        &self.at
    }

    fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.at.join(name)
    }

    fn umount(mut self) {
        self.mounted = false;
        let done = covey_tests::volume::umount(&self.at);
        assert!(done.status.success(), "covey umount: {done:?}");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            let _ = covey_run(&["umount", "--lazy", self.at.to_str().unwrap()]);
        }
    }
}

fn left_out(done: &Finished) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let list = done.json()["first_left_out"].as_array().unwrap().clone();
    list.iter().map(|one| (text(&one["key"]), text(&one["why"]))).collect()
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Names, bytes, ranges and attributes are the bucket's, no byte was copied, and what did not change is not
/// published again.
#[test]
fn a_bucket_is_mounted_as_it_is() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(1);
    let mut rng = Rng::new(5);
    let large = rng.bytes((9 << 20) + 777);
    world.put("set/large.bin", &large);
    world.put("set/a b/é&<", b"odd name");
    world.put("set/empty", b"");
    world.put("beside", b"not below the prefix");
    for n in 0..1500 {
        world.put(&format!("set/part {}/f{n}", n % 10), format!("object {n}").as_bytes());
    }
    let first = world.index(&[]);
    assert_eq!((first.code(), first.json()["objects"].as_u64()), (0, Some(1503)), "{first:?}");
    assert_eq!(world.server.counts().get, 0, "nothing was read");
    let again = world.index(&[]);
    assert_eq!((again.code(), again.json()["unchanged"].as_bool()), (0, Some(true)), "{again:?}");

    let mounted = world.mount("one", &[]);
    let names: BTreeSet<String> = std::fs::read_dir(mounted.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let parts = (0..10).map(|n| format!("part {n}"));
    let expected = ["a b", "empty", "large.bin"].map(str::to_owned).into_iter().chain(parts).collect();
    assert_eq!(names, expected);
    let file = std::fs::File::open(mounted.join("large.bin")).unwrap();
    let mut range = vec![0; 300_000];
    file.read_exact_at(&mut range, (3 << 20) - 1000).unwrap();
    assert!(range == large[(3 << 20) - 1000..][..300_000]);
    assert!(std::fs::read(mounted.join("large.bin")).unwrap() == large);
    assert_eq!(std::fs::read(mounted.join("a b/é&<")).unwrap(), b"odd name");
    assert_eq!(std::fs::read(mounted.join("empty")).unwrap(), b"");
    for n in 0..1500 {
        let found = std::fs::read(mounted.join(format!("part {}/f{n}", n % 10))).unwrap();
        assert_eq!(found, format!("object {n}").as_bytes());
    }
    let source = std::fs::metadata(world.server.folder().join("set/large.bin")).unwrap();
    let shown = std::fs::metadata(mounted.join("large.bin")).unwrap();
    assert_eq!((shown.mtime(), shown.mode()), (source.mtime(), 0o100_644));
    assert_eq!(std::fs::metadata(mounted.join("part 3")).unwrap().mode(), 0o040_755);
    let mut etag = [0; 100];
    let length = rustix::fs::getxattr(mounted.join("empty"), "user.covey.etag", &mut etag[..]).unwrap();
    assert!(length > 0);
    let gets = world.server.counts().get;
    assert!(std::fs::read(mounted.join("large.bin")).unwrap() == large);
    assert_eq!(world.server.counts().get, gets, "a second read is served by this node");
    assert_eq!(errno(std::fs::write(mounted.join("new"), b"x")), libc::EROFS);

    // A small change keeps the numbers of everything else, and writes few nodes.
    let numbers = |name: &str| std::fs::metadata(mounted.join(name)).unwrap().ino();
    let before = (numbers("large.bin"), numbers("part 3"), numbers("part 3/f13"));
    world.put("set/part 3/new", b"new");
    let third = world.index(&[]);
    let (new, all) = (third.json()["new_nodes"].as_u64().unwrap(), third.json()["nodes"].as_u64().unwrap());
    assert!(third.code() == 0 && new < all, "{third:?}");
    drop(file);
    mounted.umount();
    let mounted = world.mount("one", &[]);
    let numbers = |name: &str| std::fs::metadata(mounted.join(name)).unwrap().ino();
    assert_eq!(before, (numbers("large.bin"), numbers("part 3"), numbers("part 3/f13")));
    assert_eq!(std::fs::read(mounted.join("part 3/new")).unwrap(), b"new");
    mounted.umount();

    other_commands(&world);
}

/// What other commands do with such a tree.
fn other_commands(world: &World) {
    let listed = covey_run(&["published", world.volume.source.to_str().unwrap(), "--json"]);
    assert_eq!(listed.json()[0]["source"], format!("s3://{BUCKET}/set"), "{listed:?}");
    let read = covey_run(&["cat", &format!("{}:/part 3/new", world.tree())]);
    assert_eq!((read.code(), &*read.stdout), (0, "new"), "{read:?}");
    let restored = covey_run(&["restore", &world.tree(), world.folder.path().join("r").to_str().unwrap()]);
    assert_eq!(restored.code(), 2, "{restored:?}");
    assert!(restored.stderr.contains("covey import"), "{restored:?}");
    assert!(world.volume.fsck().is_none_or(|done| done.code() == 0));
}

/// An object that was replaced or removed is an error for readers that have it open and for new ones. The
/// bytes of two versions never come together.
#[test]
fn a_changed_object_is_stale() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(2);
    let mut rng = Rng::new(6);
    let (old, new) = (rng.bytes(5 << 20), rng.bytes(5 << 20));
    for name in ["changed", "gone", "cached"] {
        world.put(&format!("set/{name}"), &old);
    }
    assert_eq!(world.index(&[]).code(), 0);
    let mounted = world.mount("one", &[]);
    assert!(std::fs::read(mounted.join("cached")).unwrap() == old);
    let open = std::fs::File::open(mounted.join("changed")).unwrap();
    let mut first = vec![0; 4096];
    open.read_exact_at(&mut first, 0).unwrap();
    assert!(first == old[..4096]);
    ["changed", "cached"].iter().for_each(|name| world.put(&format!("set/{name}"), &new));
    world.remove("set/gone");
    let mut last = vec![0; 4096];
    let last_read = open.read_exact_at(&mut last, (5 << 20) - 4096);
    assert_eq!(errno(last_read), libc::ESTALE);
    assert_eq!(errno(std::fs::read(mounted.join("changed"))), libc::ESTALE);
    assert_eq!(errno(std::fs::read(mounted.join("gone"))), libc::ESTALE);
    // What this node has is the version that the tree names.
    assert!(std::fs::read(mounted.join("cached")).unwrap() == old);
    drop(open);
    mounted.umount();
    assert_eq!(world.index(&[]).code(), 0);
    let mounted = world.mount("one", &[]);
    assert!(std::fs::read(mounted.join("changed")).unwrap() == new);
    assert!(std::fs::read(mounted.join("cached")).unwrap() == new);
    assert_eq!(errno(std::fs::read(mounted.join("gone"))), libc::ENOENT);
    mounted.umount();
}

/// A mount that follows the name shows what the next listings find, without a new mount.
#[test]
fn a_mount_follows_the_bucket() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(3);
    world.put("set/a", b"one");
    assert_eq!(world.index(&[]).code(), 0);
    let mounted = world.mount("one", &["--follow=0.3"]);
    assert_eq!(std::fs::read(mounted.join("a")).unwrap(), b"one");
    let mut command = covey();
    command.args(world.arguments("set", &["--follow", "--every", "1s"]));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    world.put("set/a", b"two, longer");
    world.put("set/b/c", b"new");
    until("the new version", || std::fs::read(mounted.join("a")).is_ok_and(|bytes| bytes == b"two, longer"));
    until("the new file", || std::fs::read(mounted.join("b/c")).is_ok_and(|bytes| bytes == b"new"));
    world.remove("set/b/c");
    until("the end of the file", || !mounted.join("b/c").exists());
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child.id() as i32).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let ended = covey_tests::program::wait(&mut child, Duration::from_secs(30)).unwrap();
    assert!(ended.success(), "{ended}: a signal ends it in good order");
    mounted.umount();
}

/// Keys that cannot be paths are named, counted and written to a file, and the others are there. A key that
/// was listed twice, as in a bucket that changes meanwhile, counts once.
#[test]
fn keys_that_cannot_be_names_are_reported() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(4);
    let long = "n".repeat(256);
    let keys = [
        "set/good",
        "set/a//b",
        "set/./x",
        "set/../x",
        &*format!("set/{long}"),
        "set/nul\0",
        "set/file",
        "set/file-a",
        "set/file/below",
        "set/marker/",
        "set/bytes/",
        "set/good",
        "set//",
        "set/line\nend",
    ];
    let size = |key: &str| if key.ends_with("marker/") { 0 } else { 5 };
    let listed: Vec<(String, u64, String)> =
        keys.iter().enumerate().map(|(n, key)| ((*key).to_owned(), size(key), format!("e{n}"))).collect();
    let mut listed = listed;
    listed.push(("set/no-etag".to_owned(), 5, String::new()));
    world.proxy.add(Rule::new(Fault::Answer(Canned::Listing(listed))));
    let file = world.folder.path().join("skipped.json");
    let done = world.index(&["--skipped", file.to_str().unwrap()]);
    assert_eq!(done.code(), 1, "{done:?}");
    let found: BTreeSet<String> = left_out(&done).into_iter().map(|(key, _)| key).collect();
    let expected = ["a//b", "./x", "../x", &*long, "nul\0", "file", "bytes/", "/", "line\nend", "no-etag"];
    assert_eq!(found, expected.iter().map(|key| (*key).to_owned()).collect());
    assert_eq!(done.json()["left_out"].as_u64(), Some(expected.len() as u64));
    let words: Vec<String> =
        world.arguments("set", &[]).into_iter().filter(|word| word != "--json").collect();
    let shown = covey_run(&words);
    assert!(shown.code() == 1 && shown.stderr.contains("left out: a//b ("), "{shown:?}");
    assert!(shown.stdout.contains("Nothing has changed"), "{shown:?}");
    let written = std::fs::read_to_string(&file).unwrap();
    let keys: BTreeSet<String> = written
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["key"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(keys, found);
    world.proxy.faults().clear();
    let mounted = world.mount("one", &[]);
    let names: BTreeSet<String> = std::fs::read_dir(mounted.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, ["good", "file", "file-a", "marker"].map(str::to_owned).into_iter().collect());
    assert!(mounted.join("file/below").is_file() && mounted.join("marker").is_dir());
    assert_eq!(std::fs::read_dir(mounted.join("marker")).unwrap().count(), 0);
    mounted.umount();
}

/// Killed at any moment, an index leaves no file behind and what was published as it was.
#[test]
fn a_killed_index_leaves_nothing() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(5);
    for n in 0..2500 {
        world.put(&format!("set/f{n}"), b"x");
    }
    assert_eq!(world.index(&[]).code(), 0);
    let all = |folder: &Path| {
        let mut names: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        names
    };
    let before = all(&world.volume.source);
    world.put("set/new", b"x");
    world.proxy.add(Rule::new(Fault::Wait(Duration::from_millis(100))));
    for round in 0..6 {
        let mut command = covey();
        command.args(world.arguments("set", &[])).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(60 + round * 120));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(all(&world.volume.source), before);
    }
    world.proxy.faults().clear();
    let done = world.index(&[]);
    assert_eq!((done.code(), done.json()["objects"].as_u64()), (0, Some(2501)), "{done:?}");
    world.volume.must_be_clean();
}

/// Mistakes are one message each, and nothing is published.
#[test]
fn mistakes_are_said() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(6);
    let nothing = world.index(&[]);
    assert!(nothing.code() != 0 && nothing.stderr.contains("no object below"), "{nothing:?}");
    world.put("set/a", b"one");
    let mounted = world.volume.mount();
    let busy = world.index(&[]);
    assert!(busy.code() == 2 && busy.stderr.contains("is mounted"), "{busy:?}");
    mounted.umount();
    let no = covey_run(&["index", "/etc", world.volume.source.to_str().unwrap(), "data"]);
    assert!(no.code() == 2 && no.stderr.contains("is no bucket"), "{no:?}");
    let published = covey_run(&["publish", world.volume.source.to_str().unwrap(), "data"]);
    assert_eq!(published.code(), 0, "{published:?}");
    let taken = world.index(&[]);
    assert!(taken.code() == 2 && taken.stderr.contains("covey unpublish"), "{taken:?}");
    let unpublished = covey_run(&["unpublish", world.volume.source.to_str().unwrap(), "data"]);
    assert_eq!(unpublished.code(), 0);
    assert_eq!(world.index(&[]).code(), 0);
    let mut command = covey();
    command.args(["ls", &world.tree()]).env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    let keyless = covey_tests::program::run(command.env("HOME", "/nonexistent"), Duration::from_secs(60));
    assert!(keyless.code() != 0 && keyless.stderr.contains("cannot use the bucket"), "{keyless:?}");
    std::fs::remove_dir_all(world.server.folder()).unwrap();
    let gone = covey_run(&["ls", &world.tree()]);
    assert!(gone.code() != 0 && gone.stderr.contains("cannot use the bucket"), "{gone:?}");
}

/// The files of a cache that hold bytes, or those with the sums of these bytes.
fn cached(cache: &Path, sums: bool) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![cache.to_owned()]);
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            let is_one = name.trim_end_matches(".sums").len() == 64 && name.ends_with(".sums") == sums;
            if path.is_dir() {
                todo.push(path);
            } else if is_one {
                found.push(path);
            }
        }
    }
    found
}

/// A flipped bit in the cache, in the bytes or in the sums beside them, is never read: the copy is dropped
/// and the range is fetched again.
#[test]
fn damage_in_the_cache_is_never_served() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(7);
    let bytes = Rng::new(8).bytes((3 << 20) + 500);
    world.put("set/f", &bytes);
    assert_eq!(world.index(&[]).code(), 0);
    for damage in ["bytes", "sums", "short"] {
        let mounted = world.mount("one", &[]);
        assert!(std::fs::read(mounted.join("f")).unwrap() == bytes);
        // The cache is written behind the reads.
        let end = Instant::now() + Duration::from_secs(60);
        while [false, true].iter().any(|sums| cached(&world.cache("one"), *sums).len() < 4) {
            assert!(Instant::now() < end, "the bytes are not in the cache");
            std::thread::sleep(Duration::from_millis(20));
        }
        mounted.umount();
        for path in cached(&world.cache("one"), damage == "sums") {
            let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 20).unwrap();
            match damage {
                "short" => file.set_len(21).unwrap(),
                _ => file.write_all_at(&[byte[0] ^ 1], 20).unwrap(),
            }
        }
        let mounted = world.mount("one", &[]);
        assert!(std::fs::read(mounted.join("f")).unwrap() == bytes, "after damage to the {damage}");
        mounted.umount();
    }
}

/// Everybody who publishes a tree chooses its endpoint, and got this machine's keys there.
#[test]
fn regression_an_endpoint_that_only_a_tree_names_gets_no_keys() {
    requires!(Need::Covey);
    let world = World::new(30);
    world.put("set/f", b"bytes");
    assert_eq!(world.index(&[]).code(), 0);
    let at = world.folder.path().join("tree");
    std::fs::create_dir_all(&at).unwrap();
    let endpoint = world.proxy.endpoint();
    let mount = |more: &[&str]| {
        let mut command = covey();
        command.env("COVEY_BUCKET_ENDPOINTS", "https://other.example");
        command.args(["mount", "-d", "--cache"]).arg(world.cache("tree")).args(more);
        command.arg(world.tree()).arg(&at);
        covey_tests::program::run(&mut command, Duration::from_secs(60))
    };
    let before = world.server.got().len();
    let refused = mount(&[]);
    let option = format!("bucket_endpoint={endpoint}");
    assert!(refused.code() == 1 && refused.stderr.contains(&option), "{refused:?}");
    assert_eq!(world.server.got().len(), before, "nothing was asked there");
    let done = mount(&["-o", &option]);
    assert_eq!(done.code(), 0, "{done:?}");
    let mounted = Mount { at, mounted: true };
    assert_eq!(std::fs::read(mounted.join("f")).unwrap(), b"bytes");
    mounted.umount();
}

/// With the store away, the first Ctrl-C was only noted: the listing did not look, and a second one was
/// needed.
#[test]
fn regression_one_ctrl_c_ends_an_index_of_a_silent_store() {
    requires!(Need::Covey);
    environment(s3server::environment());
    let folder = covey_tests::scratch();
    let volume = Volume::below(folder.path(), &[]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let log = folder.path().join("log");
    let mut command = covey();
    command.args([
        "index",
        "s3://bucket/set",
        volume.source.to_str().unwrap(),
        "data",
        "--endpoint",
        &endpoint,
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let held = silent.accept().unwrap();
    // SAFETY: the child is ours and has not been waited for, so its number is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let status = wait(&mut child, Duration::from_secs(60));
    let log = std::fs::read_to_string(log).unwrap();
    let Some(status) = status else {
        child.kill().unwrap();
        panic!("one signal did not end it: {log}");
    };
    assert!(status.code() == Some(130) && log.contains("stopping"), "{status}: {log}");
    drop(held);
    // Its folder is free, and another index would publish.
    assert_eq!(covey_ok(&["fsck", "--json", volume.source.to_str().unwrap()]).json()["sound"], true);
}
