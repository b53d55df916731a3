//! Nodes of a fleet on this machine: the real program, real mounts, an S3 server as the origin, all over
//! loopback.
//!
//! `tests/fleet` shows how a fleet behaves when parts of it fail. These tests show that it works as a user
//! starts it.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

mod follow;
mod foreign;
mod sealed;

use covey_tests::program::{covey, covey_ok, covey_run, environment, wait};
use covey_tests::{Need, Rng, Volume, requires};
use s3server::{BUCKET, Canned, Fault, Proxy, Rule, Server};
use serde_json::Value;

/// A store with a published tree, and the fleet's secret.
struct World {
    server: Server,
    volume: Volume,
    files: Vec<(String, Vec<u8>)>,
    folder: tempfile::TempDir,
}

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within 120 s");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl World {
    fn new() -> World {
        World::of(&[9 << 20, 5 << 20, 300_000, 40_000, 3_000, 100])
    }

    /// With files of these sizes.
    fn of(sizes: &[usize]) -> World {
        environment(s3server::environment());
        let server = Server::start();
        let folder = covey_tests::scratch();
        let endpoint = server.endpoint();
        let origin = format!("s3://{BUCKET}/prefix");
        let volume = Volume::below(folder.path(), &["--origin", &origin, "--endpoint", &endpoint]);
        let mut rng = Rng::new(11);
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

    /// The number of blobs in the store.
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

    fn words(&self, endpoint: &str, name: &str, join: Option<&str>) -> Vec<String> {
        let mut words: Vec<String> = ["--endpoint", endpoint].map(str::to_owned).into();
        words.extend(["--cache".into(), self.path(&format!("cache-{name}")).display().to_string()]);
        words.extend(["--secret-file".into(), self.secret().display().to_string()]);
        match join {
            Some(address) => words.extend(["--join".into(), address.to_owned()]),
            None => words.extend(["--listen".into(), "127.0.0.1:0".into()]),
        }
        words
    }

    fn mount(&self, name: &str, join: Option<&str>, more: &[&str]) -> Mount {
        self.mount_by(&self.server.endpoint(), name, join, more)
    }

    /// The same, with another endpoint of the store.
    fn mount_by(&self, endpoint: &str, name: &str, join: Option<&str>, more: &[&str]) -> Mount {
        self.mount_tree("latest", endpoint, name, join, more)
    }

    /// The same for another published tree.
    fn mount_tree(&self, tree: &str, endpoint: &str, name: &str, join: Option<&str>, more: &[&str]) -> Mount {
        let at = self.path(name);
        fs::create_dir_all(&at).unwrap();
        let tree = format!("s3://{BUCKET}/prefix@{tree}");
        let mut words = vec!["mount".to_owned(), "-d".to_owned(), tree, at.display().to_string()];
        words.extend(self.words(endpoint, name, join));
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

/// A node without a mount: a depot, or a lender.
struct Depot(Child, PathBuf);

impl Depot {
    fn start(world: &World, command: &str, name: &str, join: &str, more: &[&str]) -> Depot {
        let mut typed = covey();
        typed.args([command, "--origin", &format!("s3://{BUCKET}/prefix"), "--size", "1G"]);
        typed.args(world.words(&world.server.endpoint(), name, Some(join))).args(more);
        let log = fs::File::create(world.path(&format!("{name}.log"))).unwrap();
        typed.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Depot(typed.spawn().unwrap(), world.path(&format!("cache-{name}")))
    }

    fn folder(&self) -> &str {
        self.1.to_str().unwrap()
    }

    fn status(&self) -> Value {
        covey_ok(&["status", self.folder(), "--json"]).json()
    }

    fn blobs(&self) -> u64 {
        covey_ok(&["cache", "status", self.folder(), "--json"]).json()["blobs"].as_u64().unwrap()
    }
}

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

/// How often the fleet was slow or failing, as happens on a busy machine. Then a blob may be fetched from the
/// store once more.
fn troubles(fleet: &Value) -> u64 {
    ["origin_hedged", "origin_alone", "asks_late", "leases_again", "failed"]
        .iter()
        .map(|name| fleet[name].as_u64().unwrap())
        .sum()
}

/// Three nodes start at once on a cold tree. Every byte is right, and each blob is fetched from the store
/// once for all of them.
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
    let late: u64 = nodes.iter().map(|node| troubles(&node.json("status")["fleet"])).sum();
    // Mounting reads the tree's root, a blob like any other, and may do so before the node knows other nodes.
    let alone = nodes.len() as u64 - 1;
    let (origin, others) = (sum("origin"), sum("peer") + sum("stream"));
    assert!(
        origin <= world.blobs() + alone + late,
        "{origin} fetches of {} blobs, {late} times in trouble",
        world.blobs()
    );
    assert!(others > 0, "nothing came from a peer");
    // A node that joins later, when other nodes hold all of the store's blobs, needs the store only for
    // names.
    let late = world.mount("late", Some(&address), &[]);
    soon("it sees them", || late.nodes() == 4);
    late.read_all(&world);
    let table = covey_ok(&["peers", late.at.to_str().unwrap()]).stdout;
    assert!(table.contains("ADDRESS") && table.lines().count() == 5, "{table}");
    let text = covey_ok(&["status", late.at.to_str().unwrap()]).stdout;
    assert!(text.contains("bytes came from"), "{text}");
}

/// Small reads of a large file move few bytes. A node that reads a page here and there fetches the groups
/// around them from the node that has the file, and no whole blob. Regular steps are recognized and
/// prefetched, each once.
#[test]
fn a_node_that_reads_a_little_moves_little() {
    requires!(Need::Covey);
    let world = World::of(&[64 << 20]);
    let (name, bytes) = &world.files[0];
    let first = world.mount("a", None, &[]);
    first.read_all(&world);
    let second = world.mount("b", Some(&first.address()), &[]);
    soon("they see each other", || first.nodes() == 2 && second.nodes() == 2);
    // Now that there are two nodes, the first one tells the other which blobs of the other's share it has.
    std::thread::sleep(Duration::from_millis(700));
    let file = fs::File::open(second.at.join(name)).unwrap();
    // Only the requested bytes: another test covers the kernel's own readahead.
    // SAFETY: a hint about an open descriptor.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let status = || second.json("status")["fleet"].clone();
    let received = || status()["received_bytes"].as_u64().unwrap();
    let (before, from_origin) = (received(), second.hits("origin"));
    let mut some = [0; 4096];
    for step in 0..12usize {
        let at = step * (5 << 20) + 12_345;
        file.read_exact_at(&mut some, at as u64).unwrap();
        assert_eq!(some, bytes[at..at + 4096], "at {at}");
    }
    // On a busy machine a blob may be read before its tracker knows of the holder. Then the store sends the
    // part, and later the whole blob.
    let (moved, parts, other) = (received() - before, second.hits("part"), second.hits("origin_part"));
    println!("12 reads of 4 KiB moved {moved} bytes in {parts} parts, and the store gave {other}");
    let late = || {
        let status = status();
        troubles(&status) + status["hedges"].as_u64().unwrap()
    };
    assert!(
        parts + other >= 12 && parts > 0 && moved <= (16 + late()) * (128 << 10),
        "{moved} bytes, {parts} and {other} parts"
    );
    // A second place in the same blobs does not fetch them whole.
    for step in 0..12usize {
        let at = step * (5 << 20) + 12_345 + 300_000;
        file.read_exact_at(&mut some, at as u64).unwrap();
        assert_eq!(some, bytes[at..at + 4096], "at {at}");
    }
    assert!(received() - before <= (32 + late()) * (128 << 10), "{}", status());
    let most = from_origin + other + late();
    assert!(second.hits("origin") <= most, "the other has them all: {}", status());
}

/// A mapping that is read from its end: the preceding blobs are prefetched.
#[test]
fn a_mapping_that_is_read_backward_is_prefetched() {
    requires!(Need::Covey);
    const SIZE: usize = 32 << 20;
    let world = World::of(&[SIZE]);
    let (name, bytes) = &world.files[0];
    let mount = world.mount("a", None, &[]);
    let file = fs::File::open(mount.at.join(name)).unwrap();
    // SAFETY: a new mapping of a file that nothing changes, of the file's size, at an address the system
    // chooses.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    // SAFETY: the mapping exists until `munmap` below.
    let mapped = unsafe { std::slice::from_raw_parts(map.cast::<u8>(), SIZE) };
    let half = SIZE / 2 + (1 << 20);
    for at in (half..SIZE).rev().step_by(64 << 10) {
        assert_eq!(mapped[at], bytes[at], "at {at}");
    }
    // Nothing of the first half was touched, and its last blob is local.
    let held = || mount.json("status")["far"]["cache"]["bytes"].as_u64().unwrap_or(0);
    soon("the preceding blobs are local", || held() > (SIZE - half) as u64 + (2 << 20));
    println!("{} MiB here after {} MiB were read backward", held() >> 20, (SIZE - half) >> 20);
    // SAFETY: nothing uses the slice from here on.
    unsafe { libc::munmap(map, SIZE) };
}

/// A node that unmounts says goodbye, so the others need not wait for seconds of silence.
#[test]
fn regression_a_node_that_is_unmounted_leaves_the_fleet() {
    requires!(Need::Covey);
    let world = World::new();
    let first = world.mount("a", None, &[]);
    // A node that only falls silent is declared dead after five seconds or more. A busy machine may delay a
    // goodbye as much, and the commands, but not each time.
    let quick = (0..10).any(|n| {
        let second = world.mount(&format!("node-{n}"), Some(&first.address()), &[]);
        soon("they see each other", || first.nodes() == 2 && second.nodes() == 2);
        covey_ok(&["umount", second.at.to_str().unwrap()]);
        let since = Instant::now();
        soon("one node remains", || first.nodes() == 1);
        since.elapsed() < Duration::from_secs(3)
    });
    assert!(quick, "each of ten nodes was declared dead instead of leaving");
}

/// A depot is between the nodes and the store, and has no mount.
#[test]
fn a_depot_serves_nodes_and_ends_with_a_signal() {
    requires!(Need::Covey);
    let world = World::new();
    let node = world.mount("a", None, &[]);
    let depot = Depot::start(&world, "depot", "depot", &node.address(), &[]);
    soon("they see each other", || node.nodes() == 2);
    node.read_all(&world);
    assert!(node.hits("depot") > 0, "{}", node.json("status"));
    let seen = covey_ok(&["peers", depot.folder(), "--json"]).json();
    assert!(
        seen.as_array().unwrap().iter().any(|row| row["role"] == "depot" && row["state"] == "own"),
        "{seen}"
    );
    let status = depot.status();
    assert!(status["role"] == "depot" && status["filled_blobs"].as_u64().unwrap() > 0, "{status}");
    assert!(
        status["far"]["cache"]["blobs"].as_u64().unwrap() > 0 && status["fleet"]["nodes"] == 2,
        "{status}"
    );
    let text = covey_ok(&["status", depot.folder()]).stdout;
    assert!(text.contains("for nodes that read") && text.contains("origin asked"), "{text}");
    let kept = covey_ok(&["cache", "status", depot.folder()]).stdout;
    assert!(kept.contains("folder") && depot.blobs() > 0, "{kept}");
    let folder = depot.folder().to_owned();
    drop(depot);
    for command in [&["status"][..], &["cache", "status"], &["peers"]] {
        let done = covey_run(&[command, &[&folder]].concat());
        assert!(done.code() == 1 && done.stderr.contains("does not run"), "{done:?}");
    }
    let said = fs::read_to_string(world.path("depot.log")).unwrap();
    assert!(said.contains("ending"), "{said}");
}

/// The whole fleet moves to the next publication, each node once.
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

/// A depot is filled before any node reads. The bytes do not pass through the node that requests it.
#[test]
fn a_depot_is_warmed_by_a_node_that_does_not_carry_the_bytes() {
    requires!(Need::Covey);
    let world = World::new();
    let node = world.mount("a", None, &[]);
    let (at, address) = (node.at.to_str().unwrap(), node.address());
    let none = covey_run(&["warm", "--depot", at]);
    assert!(none.code() == 1 && none.stderr.contains("no depot is in this node's zone"), "{none:?}");
    let elsewhere = Depot::start(&world, "depot", "far", &address, &["--zone", "elsewhere"]);
    let depot = Depot::start(&world, "depot", "depot", &address, &[]);
    soon("they see each other", || node.nodes() == 3);
    let sum = covey_ok(&["warm", "--depot", at, "--json"]).json();
    let number = |name: &str| sum[name].as_u64().unwrap();
    assert!(number("fetched_blobs") > 0 && number("fetched_bytes") > 14 << 20, "{sum}");
    assert_eq!((number("failed_count"), number("here_blobs")), (0, 0), "{sum}");
    assert_eq!(depot.status()["warmed_blobs"], sum["fetched_blobs"]);
    assert!(depot.blobs() >= number("fetched_blobs") && elsewhere.blobs() == 0);
    let fleet = &node.json("status")["fleet"];
    let received: u64 =
        ["peer", "stream", "depot", "origin"].iter().map(|tier| fleet[tier]["bytes"].as_u64().unwrap()).sum();
    assert!(received < 1 << 20, "{received} bytes came by the node that asked: {fleet}");
    // Again: everything is there. The text output is checked, too.
    let again = covey_ok(&["warm", "--depot", at]).stdout;
    assert!(again.contains("0 blobs (0 B) fetched by the depots") && again.contains("were there"), "{again}");
    // A node that joins later reads from the depot. Names may come from the store, files may not.
    let late = world.mount("b", Some(&address), &[]);
    soon("it sees them", || late.nodes() == 4);
    late.read_all(&world);
    // The depot may also be the tracker, which serves like any node. On a busy machine the store may be
    // asked, too.
    let status = &late.json("status")["fleet"];
    let troubled = troubles(status);
    let came = late.hits("depot") + late.hits("peer");
    assert!(came > 0 && late.hits("origin") <= 3 + troubled, "{status}");
    drop(depot);
    let gone = covey_run(&["warm", "--depot", at]);
    assert!(gone.code() == 1, "{gone:?}");
}

/// A published tree has the store's figures too, and a refused key is one of them.
#[test]
fn a_store_that_refuses_is_seen_in_the_metrics() {
    requires!(Need::Covey);
    let world = World::new();
    let proxy = Proxy::start(world.server.address(), 5);
    let free = format!("127.0.0.1:{}", covey_tests::free_port());
    let mount = Mount { at: world.path("a") };
    fs::create_dir(&mount.at).unwrap();
    let (tree, cache) = (format!("s3://{BUCKET}/prefix@latest"), world.path("cache"));
    let (at, cache) = (mount.at.to_str().unwrap(), cache.to_str().unwrap());
    let endpoint = proxy.endpoint();
    covey_ok(&["mount", "-d", &tree, at, "--endpoint", &endpoint, "--cache", cache, "--metrics", &free]);
    let value = |name: &str| {
        let mut page = std::net::TcpStream::connect(&free).unwrap();
        page.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        page.read_to_string(&mut text).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert_eq!((value("covey_origin_refusals_total"), value("covey_origin_refusing")), (0, 0));
    proxy.add(Rule::new(Fault::Answer(Canned::UnknownKey)));
    fs::read(mount.at.join("f0")).unwrap_err();
    assert!(value("covey_origin_refusals_total") > 0 && value("covey_origin_refusing") == 1);
    proxy.faults().clear();
    soon("it is asked again", || fs::read(mount.at.join("f0")).is_ok_and(|read| read == world.files[0].1));
    assert_eq!(value("covey_origin_refusing"), 0);
    soon("it is kept", || value("covey_cache_blobs") > 0);
}

/// The findings of `covey doctor` for a node: it can be reached, and its zone has no depot.
#[test]
fn a_node_is_looked_at_by_the_doctor() {
    requires!(Need::Covey);
    let world = World::new();
    let node = world.mount("a", None, &[]);
    let found = covey_run(&["doctor", "--json"]).json();
    let address = node.address();
    let of = |name: &str, text: &str| {
        let checks = found.as_array().unwrap().iter();
        checks
            .filter(|check| check["name"] == name)
            .any(|check| check["found"].as_str().unwrap().contains(text))
    };
    assert!(of("fleet", &format!("answers at {address}; 0 others")) && of("depot", "no depot"), "{found:#}");
}

/// A node's own cache can be warmed like a volume's.
#[test]
fn regression_a_published_tree_can_be_warmed() {
    requires!(Need::Covey);
    // The command used to say that it has no cache, because it looked only at volumes with a remote origin.
    let world = World::new();
    let node = world.mount("a", None, &[]);
    let sum = covey_ok(&["warm", node.at.to_str().unwrap(), "--json"]).json();
    assert!(sum["fetched_blobs"].as_u64().unwrap() > 0 && sum["failed_count"] == 0, "{sum}");
    let mounted = world.volume.mount();
    let done = covey_run(&["warm", "--depot", mounted.join("f0").to_str().unwrap()]);
    assert!(done.code() == 1 && done.stderr.contains("no node of a fleet"), "{done:?}");
    mounted.umount();
}

/// A client that knows only an address and the secret can list the fleet, and is not a member.
#[test]
fn a_fleet_is_seen_from_outside() {
    requires!(Need::Covey);
    let world = World::new();
    let first = world.mount("a", None, &[]);
    let address = first.address();
    let second = world.mount("b", Some(&address), &["--zone", "elsewhere"]);
    soon("they see each other", || first.nodes() == 2 && second.nodes() == 2);
    let secret = world.secret().display().to_string();
    let look = |more: &[&str]| {
        covey_ok(&[&["peers", "--join", &address, "--secret-file", &secret, "--json"][..], more].concat())
            .json()
    };
    let all = look(&[]);
    let rows = all.as_array().unwrap();
    assert!(rows.len() == 2 && rows.iter().any(|row| row["state"] == "asked"), "{all}");
    assert_eq!(look(&["--zone", "elsewhere"]).as_array().unwrap().len(), 1);
    assert_eq!(first.nodes(), 2, "a client that only asks should not become a member");
    let table = covey_ok(&["peers", "--join", &address, "--secret-file", &secret]).stdout;
    assert!(table.contains("ADDRESS") && table.lines().count() == 3, "{table}");
    let other = world.path("other-secret").display().to_string();
    covey_ok(&["fleet", "secret", &other]);
    let refused = |join: &str, secret: &str, wanted: &str| {
        let since = Instant::now();
        let done = covey_run(&["peers", "--join", join, "--secret-file", secret]);
        assert!(done.code() == 1 && done.stderr.contains(wanted), "{done:?}");
        assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    };
    refused(&address, &other, "the fleet's secret differs");
    refused("127.0.0.1:1", &secret, "no node of a fleet can be reached at 127.0.0.1:1");
    // A listener that never answers.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    refused(&mute.local_addr().unwrap().to_string(), &secret, "no node of a fleet can be reached");
    let unnamed = covey_run(&["peers", "--join", &address]);
    assert!(unnamed.code() == 2 && unnamed.stderr.contains("--secret-file"), "{unnamed:?}");
}

/// A lender's disk holds copies of its zone's blobs, and serves them after the nodes that fetched them have
/// left.
#[test]
fn a_lender_keeps_what_nodes_had() {
    requires!(Need::Covey);
    let world = World::new();
    let first = world.mount("a", None, &[]);
    let address = first.address();
    // The tracker of all blobs in the zone, so that all are copied to it.
    let lender = Depot::start(&world, "lend", "lent", &address, &["--weight", "60000"]);
    soon("they see each other", || first.nodes() == 2);
    first.read_all(&world);
    let had = first.json("status")["far"]["cache"]["blobs"].as_u64().unwrap();
    soon("it has copies", || lender.blobs() + 1 >= had);
    let status = lender.status();
    assert!(status["role"] == "lender" && status["kept_blobs"].as_u64().unwrap() > 0, "{status}");
    let asked = |status: &Value| status["fleet"]["origin"]["hits"].as_u64().unwrap();
    let troubled = troubles(&status["fleet"]);
    assert!(asked(&status) <= 1 + troubled, "copies come from the nodes: {status}");
    let own = covey_ok(&["peers", lender.folder(), "--json"]).json();
    assert!(own.as_array().unwrap().iter().all(|row| row["role"] == "node"), "{own}");
    // It is not a depot.
    let done = covey_run(&["warm", "--depot", first.at.to_str().unwrap()]);
    assert!(done.code() == 1 && done.stderr.contains("no depot"), "{done:?}");
    let late = world.mount("b", Some(&address), &[]);
    drop(first);
    soon("they are two again", || late.nodes() == 2);
    late.read_all(&world);
    let status = late.json("status");
    let troubled = troubles(&status["fleet"]);
    assert!(late.hits("peer") > 0 && asked(&status) <= 3 + troubled, "{status}");
    // Two programs cannot share one folder.
    let twice = covey_run(
        &[
            &["lend", "--origin", &format!("s3://{BUCKET}/prefix")].map(str::to_owned)[..],
            &world.words(&world.server.endpoint(), "lent", Some(&address)),
        ]
        .concat(),
    );
    assert!(twice.code() == 1 && twice.stderr.contains("--cache DIR"), "{twice:?}");
    let evict = || covey_ok(&["cache", "evict", "--all", lender.folder(), "--json"]).json();
    let evicted = evict();
    assert!(evicted["blobs"].as_u64().unwrap() > 0, "{evicted}");
    // The other node announces what it has read a few tenths of a second later, and it is copied again. On a
    // busy machine that is after the eviction.
    soon("nothing is left", || {
        let left = lender.blobs();
        if left > 0 {
            evict();
        }
        left == 0
    });
}

/// Missing or wrong parameters are reported before anything listens.
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
    refused(&["lend", "--origin", "s3://bucket/x", "--cache", &at], "a lender has a fleet to serve");
    refused(&["peers"], "--join");
    refused(&["peers", &at, "--join", "127.0.0.1:1"], "--join");
    refused(&["peers", "--join", "nonsense", "--secret-file", "/x"], "secret");
}
