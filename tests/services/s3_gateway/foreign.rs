//! A bucket that Covey did not write, served read-through: `covey s3 NAME=s3://BUCKET/PREFIX`, a real S3
//! server in this process that counts, and a proxy that breaks what happens between the two. The client is
//! boto3.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use covey_tests::program::environment;
use covey_tests::{Need, Rng, requires, scratch};
use s3server::{BUCKET, Fault, Proxy, Rule, Server};

use super::{Gateway, PATIENCE, python_or_skip, script};

const MIB: usize = 1 << 20;

struct World {
    server: Server,
    proxy: Proxy,
    folder: tempfile::TempDir,
    python: PathBuf,
}

impl World {
    fn new(python: PathBuf) -> World {
        environment(s3server::environment());
        let server = Server::start();
        let proxy = Proxy::start(server.address(), 7);
        World { server, proxy, folder: scratch(), python }
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let file = self.server.folder().join("set").join(key);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    fn remove(&self, key: &str) {
        std::fs::remove_file(self.server.folder().join("set").join(key)).unwrap();
    }

    /// A gateway whose bucket `data` is the folder `set` of the store's bucket.
    fn gateway(&self, revalidate: &str) -> Gateway {
        let cache = self.folder.path().join("cache");
        let (source, endpoint) = (format!("data=s3://{BUCKET}/set"), self.proxy.endpoint());
        let options =
            ["--endpoint", &endpoint, "--cache", cache.to_str().unwrap(), "--revalidate", revalidate];
        Gateway::start(&[source], &options)
    }

    /// Runs one step of foreign.py.
    fn step(&self, gateway: &Gateway, args: &[&str]) {
        let mut all = vec![args[0], gateway.endpoint.as_str(), "data"];
        all.extend(&args[1..]);
        script(&self.python, "foreign.py", &all);
    }

    /// GETs and HEADs of objects that the store received during some work.
    fn counts(&self, work: impl FnOnce()) -> (u64, u64) {
        let before = self.server.counts();
        work();
        let after = self.server.counts();
        (after.get - before.get, after.head - before.head)
    }
}

macro_rules! world_or_skip {
    () => {{
        requires!(Need::Covey, Need::Program("python3"));
        World::new(python_or_skip!("boto3"))
    }};
}

fn file(folder: &Path, bytes: &[u8]) -> String {
    let path = folder.join("expected");
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A second GET asks the store for nothing, and one after a restart only for the version: the bytes are on
/// the disk.
#[test]
fn an_object_is_fetched_once_and_stays_on_the_disk() {
    let world = world_or_skip!();
    let bytes = Rng::new(1).bytes(5 * MIB + 321);
    world.put("deep/large", &bytes);
    world.put("small", b"hello");
    let expected = file(world.folder.path(), &bytes);
    let gateway = world.gateway("never");
    let get = |gateway: &Gateway| world.step(gateway, &["get", "deep/large", &expected]);
    assert_eq!(world.counts(|| get(&gateway)), (6, 1), "each part once");
    assert_eq!(world.counts(|| get(&gateway)), (0, 0));
    assert_eq!(world.counts(|| world.step(&gateway, &["head", "deep/large", &expected])), (0, 0));
    gateway.end();
    let gateway = world.gateway("never");
    assert_eq!(world.counts(|| get(&gateway)), (0, 1), "after a restart");
    world.step(&gateway, &["conditions", "small", "hello"]);
    gateway.end();
}

#[test]
fn revalidate_says_how_often_the_store_is_asked() {
    let world = world_or_skip!();
    let old = file(world.folder.path(), b"old");
    let new = world.folder.path().join("new");
    std::fs::write(&new, b"newer").unwrap();
    let new = new.to_str().unwrap();
    for (revalidate, heads, after) in
        [("never", 0, old.as_str()), ("1h", 0, old.as_str()), ("always", 3, new)]
    {
        world.put("key", b"old");
        let gateway = world.gateway(if revalidate == "1h" { "3600s" } else { revalidate });
        let get = |expected: &str| world.step(&gateway, &["get", "key", expected]);
        get(&old);
        let counts = world.counts(|| (0..3).for_each(|_| get(&old)));
        assert_eq!(counts, (0, heads), "{revalidate}");
        world.put("key", b"newer");
        get(after);
        gateway.end();
    }
    // An entry gets old by itself.
    world.put("key", b"old");
    let gateway = world.gateway("1s");
    world.step(&gateway, &["get", "key", &old]);
    world.put("key", b"newer");
    let began = Instant::now();
    world.step(&gateway, &["until", "key", new]);
    assert!(began.elapsed() < PATIENCE);
    world.remove("key");
    world.step(&gateway, &["gone", "key"]);
    gateway.end();
}

/// The bytes of two versions never mix: a connection is cut, and the next request sees the new version.
#[test]
fn an_object_that_is_replaced_during_a_get_is_cut() {
    let world = world_or_skip!();
    let (old, new) = (Rng::new(2).bytes(24 * MIB), Rng::new(3).bytes(24 * MIB));
    world.put("key", &old);
    let (old, replaced) = (file(world.folder.path(), &old), world.folder.path().join("replaced"));
    std::fs::write(&replaced, &new).unwrap();
    let gateway = world.gateway("never");
    let object = world.server.folder().join("set/key");
    world.step(&gateway, &["replaced", "key", &old, replaced.to_str().unwrap(), object.to_str().unwrap()]);
    gateway.end();
}

#[test]
fn a_client_without_the_right_gets_nothing_of_what_is_cached() {
    let world = world_or_skip!();
    world.put("key", b"a cached secret");
    let expected = file(world.folder.path(), b"a cached secret");
    let gateway = world.gateway("never");
    world.step(&gateway, &["get", "key", &expected]);
    assert_eq!(world.counts(|| world.step(&gateway, &["refused", "key", "a cached secret"])), (0, 0));
    gateway.end();
}

#[test]
fn what_clients_write_goes_to_the_store_and_is_seen_at_once() {
    let world = world_or_skip!();
    world.put("key", b"old");
    let gateway = world.gateway("never");
    world.step(&gateway, &["writes", "key"]);
    assert_eq!(std::fs::read(world.server.folder().join("set/written")).unwrap(), b"written by a client");
    gateway.end();
}

#[test]
fn a_range_of_a_large_object_fetches_only_what_is_near() {
    let world = world_or_skip!();
    let bytes = Rng::new(4).bytes(32 * MIB);
    world.put("key", &bytes);
    let expected = file(world.folder.path(), &bytes);
    let gateway = world.gateway("never");
    let (gets, _) = world.counts(|| world.step(&gateway, &["range", "key", &expected, "20000000", "1000"]));
    assert_eq!(gets, 1);
    let (gets, _) = world.counts(|| world.step(&gateway, &["range", "key", &expected, "20000500", "100"]));
    assert_eq!(gets, 0);
    gateway.end();
}

#[test]
fn a_store_that_is_down_leaves_what_is_fresh() {
    let world = world_or_skip!();
    world.put("key", b"here");
    world.put("other", b"there");
    let expected = file(world.folder.path(), b"here");
    let gateway = world.gateway("never");
    world.step(&gateway, &["get", "key", &expected]);
    world.proxy.down();
    world.step(&gateway, &["get", "key", &expected]);
    world.step(&gateway, &["away", "other"]);
    world.proxy.up();
    world.step(&gateway, &["exists", "other"]);
    world.proxy.add(Rule::new(Fault::Status(503)).path("third"));
    world.step(&gateway, &["away", "third"]);
    gateway.end();
    let gateway = world.gateway("always");
    world.step(&gateway, &["get", "key", &expected]);
    world.proxy.down();
    world.step(&gateway, &["away", "key"]);
    gateway.end();
}

#[test]
fn wrong_buckets_of_others_are_refused() {
    requires!(Need::Covey);
    let folder = scratch();
    let keys = super::keys(folder.path());
    let says_with = |keys_of_store: &str, args: &[&str], words: &str| {
        let mut command = covey_tests::program::covey();
        command.args(["s3", "--listen", "127.0.0.1:0", "--keys"]).arg(&keys).args(args);
        command.env("HOME", folder.path()).env("AWS_EC2_METADATA_DISABLED", "true").env_remove("AWS_PROFILE");
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
            command.env(name, keys_of_store);
        }
        let done = covey_tests::run(&mut command, Duration::from_secs(60));
        assert!(!done.status.success() && done.stderr.contains(words), "{done:?}");
    };
    let says = |args: &[&str], words: &str| says_with("", args, words);
    says(&["data=s3://bucket"], "no keys were found");
    says_with("key", &["data=s3://bucket/a b"], "cannot be served");
    says(&["data=s3://bucket", "--revalidate", "sometimes"], "never, always, or a time");
    says(&["a12=s3://bucket", "b12=s3://other", "--join", "127.0.0.1:1"], "one bucket");
}
