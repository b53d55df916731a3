//! Nodes of a fleet on this machine: the real program, real mounts, an S3 server as the origin, all over loopback.
//!
//! What a fleet does when parts of it fail is shown in namespaces of its own (`tests/fleet`); here is that it works as it is typed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok, covey_run, environment, wait};
use covey_tests::{Need, Rng, Volume, requires};
use s3server::{BUCKET, Server};
use serde_json::Value;

/// A store with a published tree, and the fleet's secret.
struct World {
    server: Server,
    volume: Volume,
    files: Vec<(String, Vec<u8>)>,
    folder: tempfile::TempDir,
}

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within 60 s");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl World {
    fn new() -> World {
        environment(s3server::environment());
        let server = Server::start();
        let folder = covey_tests::scratch();
        let endpoint = server.endpoint();
        let origin = format!("s3://{BUCKET}/prefix");
        let volume = Volume::below(folder.path(), &["--origin", &origin, "--endpoint", &endpoint]);
        let mut rng = Rng::new(11);
        let sizes = [9 << 20, 5 << 20, 300_000, 40_000, 3_000, 100];
        let files = sizes.iter().enumerate().map(|(n, size)| (format!("f{n}"), rng.bytes(*size))).collect();
        let world = World { server, volume, files, folder };
        let mounted = world.volume.mount();
        world.files.iter().for_each(|(name, bytes)| fs::write(mounted.join(name), bytes).unwrap());
        world.publish();
        mounted.umount();
        covey_ok(&["fleet", "secret", world.secret().to_str().unwrap()]);
        world
    }

    fn publish(&self) {
        covey_ok(&["publish", self.volume.source.to_str().unwrap(), "latest"]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn secret(&self) -> PathBuf {
        self.path("secret")
    }

    /// Objects of the store that are blobs.
    fn blobs(&self) -> u64 {
        fn count(dir: &Path) -> u64 {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .map(|entry| {
                    let is_blob = entry.file_name().len() >= 64;
                    if entry.path().is_dir() { count(&entry.path()) } else { u64::from(is_blob) }
                })
                .sum()
        }
        count(&self.server.folder())
    }

    fn words(&self, name: &str, join: Option<&str>) -> Vec<String> {
        let mut words: Vec<String> = ["--endpoint", &self.server.endpoint()].map(str::to_owned).into();
        words.extend(["--cache".into(), self.path(&format!("cache-{name}")).display().to_string()]);
        words.extend(["--secret-file".into(), self.secret().display().to_string()]);
        match join {
            Some(address) => words.extend(["--join".into(), address.to_owned()]),
            None => words.extend(["--listen".into(), "127.0.0.1:0".into()]),
        }
        words
    }

    fn mount(&self, name: &str, join: Option<&str>, more: &[&str]) -> Mount {
        let at = self.path(name);
        fs::create_dir_all(&at).unwrap();
        let tree = format!("s3://{BUCKET}/prefix@latest");
        let mut words = vec!["mount".to_owned(), "-d".to_owned(), tree, at.display().to_string()];
        words.extend(self.words(name, join));
        words.extend(more.iter().map(|word| (*word).to_owned()));
        covey_ok(&words);
        Mount { at }
    }
}

/// A node's mount.
struct Mount {
    at: PathBuf,
}

impl Mount {
    fn json(&self, command: &str) -> Value {
        covey_ok(&[command, self.at.to_str().unwrap(), "--json"]).json()
    }

    fn address(&self) -> String {
        self.json("status")["fleet"]["address"].as_str().unwrap().to_owned()
    }

    fn nodes(&self) -> usize {
        self.json("peers").as_array().unwrap().len()
    }

    fn read_all(&self, world: &World) {
        for (name, bytes) in &world.files {
            let found = fs::read(self.at.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == *bytes, "{name} holds other bytes");
        }
    }

    fn hits(&self, tier: &str) -> u64 {
        self.json("status")["fleet"][tier]["hits"].as_u64().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = covey_run(&["umount", "--lazy", self.at.to_str().unwrap()]);
    }
}

struct Depot(Child);

impl Drop for Depot {
    fn drop(&mut self) {
        // SAFETY: kill(2) on a child that was not waited for yet.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        if wait(&mut self.0, Duration::from_secs(20)).is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Three nodes start at once on a cold tree: every byte is right, and the store is asked for each blob once, whoever wanted it.
#[test]
fn three_nodes_read_a_tree_and_the_store_gives_each_blob_once() {
    requires!(Need::Covey);
    let world = World::new();
    let first = world.mount("a", None, &[]);
    let address = first.address();
    let nodes = [world.mount("b", Some(&address), &[]), world.mount("c", Some(&address), &[]), first];
    soon("all see all", || nodes.iter().all(|node| node.nodes() == 3));
    std::thread::scope(|scope| {
        nodes.iter().for_each(|node| drop(scope.spawn(|| node.read_all(&world))));
    });
    let sum = |tier: &str| nodes.iter().map(|node| node.hits(tier)).sum::<u64>();
    let hedged: u64 =
        nodes.iter().map(|node| node.json("status")["fleet"]["origin_hedged"].as_u64().unwrap()).sum();
    let (origin, others) = (sum("origin"), sum("peer") + sum("stream"));
    assert!(origin <= world.blobs() + hedged, "{origin} fetches of {} blobs, {hedged} hedged", world.blobs());
    assert!(others > 0, "nothing came from a neighbour");
    // A node that comes later, with the store's blobs all held by others, needs the store for names only.
    let late = world.mount("late", Some(&address), &[]);
    soon("it sees them", || late.nodes() == 4);
    late.read_all(&world);
    let table = covey_ok(&["peers", late.at.to_str().unwrap()]).stdout;
    assert!(table.contains("ADDRESS") && table.lines().count() == 5, "{table}");
    let text = covey_ok(&["status", late.at.to_str().unwrap()]).stdout;
    assert!(text.contains("bytes came from"), "{text}");
}

/// Who unmounts says farewell: the others do not wait for a silence of seconds to know it.
#[test]
fn regression_a_node_that_is_unmounted_leaves_the_fleet() {
    requires!(Need::Covey);
    let world = World::new();
    let first = world.mount("a", None, &[]);
    let second = world.mount("b", Some(&first.address()), &[]);
    soon("they see each other", || first.nodes() == 2 && second.nodes() == 2);
    let since = Instant::now();
    covey_ok(&["umount", second.at.to_str().unwrap()]);
    while first.nodes() != 1 {
        // A node that only falls silent is given up after five seconds and more.
        assert!(since.elapsed() < Duration::from_secs(4), "it is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A depot stands between the nodes and the store, and is no mount.
#[test]
fn a_depot_serves_nodes_and_ends_with_a_signal() {
    requires!(Need::Covey);
    let world = World::new();
    let node = world.mount("a", None, &[]);
    let folder = world.path("cache-depot");
    let mut command = covey();
    command.args(["depot", "--origin", &format!("s3://{BUCKET}/prefix"), "--size", "1G"]);
    command.args(world.words("depot", Some(&node.address())));
    let log = fs::File::create(world.path("depot.log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let depot = Depot(command.spawn().unwrap());
    soon("they see each other", || node.nodes() == 2);
    node.read_all(&world);
    assert!(node.hits("depot") > 0, "{}", node.json("status"));
    let seen = covey_ok(&["peers", folder.to_str().unwrap(), "--json"]).json();
    assert!(
        seen.as_array().unwrap().iter().any(|row| row["role"] == "depot" && row["state"] == "own"),
        "{seen}"
    );
    drop(depot);
    let said = fs::read_to_string(world.path("depot.log")).unwrap();
    assert!(said.contains("ending"), "{said}");
}

/// The next publication comes to the whole fleet, and to each node once.
#[test]
fn a_fleet_follows_what_is_published() {
    requires!(Need::Covey);
    let mut world = World::new();
    let first = world.mount("a", None, &["--follow=0.2"]);
    let second = world.mount("b", Some(&first.address()), &["--follow=0.2"]);
    soon("they see each other", || first.nodes() == 2 && second.nodes() == 2);
    first.read_all(&world);
    let mounted = world.volume.mount();
    world.files[0].1 = Rng::new(12).bytes(7 << 20);
    fs::write(mounted.join("f0"), &world.files[0].1).unwrap();
    fs::write(mounted.join("new"), "new").unwrap();
    covey_ok(&["publish", mounted.join("").to_str().unwrap(), "latest"]);
    mounted.umount();
    soon("the new tree is shown by both", || first.at.join("new").exists() && second.at.join("new").exists());
    first.read_all(&world);
    second.read_all(&world);
}

/// What is missing or wrong is said before anything listens.
#[test]
fn what_a_fleet_needs_is_said() {
    requires!(Need::Covey);
    let folder = covey_tests::scratch();
    let at = folder.path().to_str().unwrap().to_owned();
    environment(s3server::environment());
    let refused = |words: &[&str], wanted: &str| {
        let done = covey_run(words);
        assert!(!done.status.success() && done.stderr.contains(wanted), "{words:?}: {done:?}");
    };
    let tree = "s3://bucket/prefix@latest";
    refused(&["mount", "/nowhere", &at, "--join", "127.0.0.1:1"], "");
    refused(&["mount", "mem:", &at, "--join", "127.0.0.1:1"], "published tree");
    refused(&["mount", tree, &at, "--secret-file", "/x"], "--join");
    refused(&["mount", "file:/x@latest", &at, "--join", "127.0.0.1:1"], "object store");
    refused(
        &["depot", "--origin", "s3://bucket/x", "--cache", &at, "--join", "127.0.0.1:1"],
        "covey fleet secret",
    );
    refused(&["depot", "--origin", "s3://bucket/x", "--cache", &at], "--listen");
}
