//! fsync(2) and the copy on a second node: what was synced is there without its writer, also if the origin
//! does not answer.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, environment, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, requires_server, say};
use s3server::{Proxy, Server as Store};
use servers::Server;

/// What no step of these tests takes.
const LIMIT: Duration = Duration::from_secs(90);

/// A shared volume whose origin is behind a proxy.
struct Rig {
    shared: Shared,
    proxy: Proxy,
    store: Store,
}

impl Rig {
    /// `each`: the options of each node.
    fn new(server: Server, each: &[&[&'static str]]) -> Rig {
        environment(s3server::environment());
        let store = Store::start();
        let proxy = Proxy::start(store.address(), 1);
        let hosts = format!("127.0.0.1:{}", server.port());
        let (origin, endpoint) = (format!("s3://{}/work", s3server::BUCKET), proxy.endpoint());
        let stored = [&*origin, "--endpoint", &endpoint];
        let mut shared = Shared::stored(server, covey_tests::scratch(), &hosts, 0, &[], &stored);
        each.iter().for_each(|options| shared.add_with(options));
        Rig { shared, proxy, store }
    }

    fn blobs(&self) -> usize {
        files(&self.store.folder())
    }

    /// A figure of `covey status --json` of a node.
    fn figure(&self, node: usize, path: &[&str]) -> u64 {
        let mut status = covey();
        status.args(["status", "--json"]).arg(&self.shared.nodes[node].mountpoint);
        let said = run_ok(&mut status, LIMIT).json();
        let one = said.get(0).unwrap_or(&said);
        path.iter().fold(one, |value, name| &value[*name]).as_u64().unwrap_or(0)
    }

    /// Bytes that a node keeps for others.
    fn kept(&self, node: usize) -> u64 {
        self.figure(node, &["copies", "bytes"])
    }
}

fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

/// Writes a file and syncs it. Returns how long the sync took.
fn synced(path: &Path, bytes: &[u8]) -> std::io::Result<Duration> {
    fs::write(path, bytes)?;
    let began = Instant::now();
    File::open(path)?.sync_all()?;
    Ok(began.elapsed())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Contents in a shared pack, over packs of its own, and over the end of a page.
fn contents() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(11);
    [600, 4096, 200_000, 1 << 20, 5 << 20].map(|len| rng.bytes(len)).to_vec()
}

fn write_all(shared: &Shared, node: usize, contents: &[Vec<u8>]) -> Duration {
    let took =
        |(n, bytes): (usize, &Vec<u8>)| synced(&shared.path(node, &format!("file{n}")), bytes).unwrap();
    contents.iter().enumerate().map(took).max().unwrap()
}

fn must_read(shared: &Shared, node: usize, contents: &[Vec<u8>], when: &str) {
    for (n, bytes) in contents.iter().enumerate() {
        let read = fs::read(shared.path(node, &format!("file{n}")));
        let read = read.unwrap_or_else(|error| {
            panic!("{when}: file{n} on {node}: {error}: {}", shared.nodes[node].log())
        });
        assert!(read == *bytes, "{when}: file{n} on {node}");
    }
}

/// The writer is killed and loses its disk right after fsync(2), while the origin does not answer. The node
/// with the copy is killed and started again. When the origin is back it gets everything, and then nothing
/// depends on that node either.
#[test]
fn what_was_synced_outlives_its_writer_while_the_origin_is_away() {
    requires!(Need::Covey);
    outlives(Duration::ZERO);
}

/// The same when the writer has already named its packs as blobs, which wait to be uploaded.
#[test]
fn what_waits_to_be_uploaded_outlives_its_writer() {
    requires!(Need::Covey);
    outlives(Duration::from_secs(12));
}

fn outlives(pause: Duration) {
    let mut rig = Rig::new(requires_server!(), &[&[], &[], &[]]);
    let contents = contents();
    rig.proxy.down();
    let took = write_all(&rig.shared, 1, &contents);
    say(format_args!("the longest fsync took {took:?}"));
    // Written over in the middle: a range of another pack.
    let patched = rig.shared.path(1, "file3");
    let file = File::options().write(true).open(&patched).unwrap();
    file.write_all_at(&[7; 5000], 300_000).unwrap();
    file.sync_all().unwrap();
    let mut contents = contents;
    contents[3][300_000..305_000].fill(7);
    std::thread::sleep(pause);
    rig.shared.nodes[1].kill();
    fs::remove_dir_all(&rig.shared.nodes[1].folder).unwrap();
    assert_eq!((rig.kept(0), rig.kept(2) > 6 << 20), (0, true), "the next node keeps all of it");
    // Before the writer's session has ended, and so before what it synced is another node's.
    rig.shared.nodes[2].kill();
    rig.shared.nodes[2].mount();
    for node in [0, 2] {
        must_read(&rig.shared, node, &contents, "the writer is gone, and the keeper was started anew");
    }
    rig.proxy.up();
    until("the origin gets all of it", || {
        rig.kept(2) == 0
            && rig.figure(2, &["open_packs"]) == 0
            && rig.figure(2, &["far", "uploads", "blobs"]) == 0
    });
    rig.shared.nodes[2].kill();
    fs::remove_dir_all(&rig.shared.nodes[2].folder).unwrap();
    rig.shared.add();
    for node in [0, 3] {
        must_read(&rig.shared, node, &contents, "the keeper is gone too");
    }
}

/// The writer was killed, and comes back with its folder after its files have moved to the keeper.
#[test]
fn a_writer_that_comes_back_finds_what_was_taken_over() {
    requires!(Need::Covey);
    let mut rig = Rig::new(requires_server!(), &[&[], &[]]);
    let contents = contents();
    rig.proxy.down();
    write_all(&rig.shared, 0, &contents);
    rig.shared.nodes[0].kill();
    rig.proxy.up();
    until("the keeper takes over", || rig.kept(1) == 0);
    rig.shared.nodes[0].mount();
    for node in 0..2 {
        must_read(&rig.shared, node, &contents, "it is back");
    }
    synced(&rig.shared.path(0, "more"), &contents[2]).unwrap();
    assert!(fs::read(rig.shared.path(1, "more")).unwrap() == contents[2]);
    for node in 0..2 {
        run_ok(covey().arg("flush").arg(&rig.shared.nodes[node].mountpoint), LIMIT);
    }
    run_ok(covey().arg("fsck").arg(&rig.shared.address), LIMIT);
}

/// The copy is dropped when the origin has the bytes, and nothing was sent that no program synced.
#[test]
fn copies_go_when_the_origin_has_the_bytes() {
    requires!(Need::Covey);
    let rig = Rig::new(requires_server!(), &[&[], &[]]);
    fs::write(rig.shared.path(0, "not-synced"), vec![1; 3 << 20]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(rig.kept(1), 0);
    let contents = contents();
    write_all(&rig.shared, 0, &contents);
    until("the copies go", || rig.kept(1) == 0);
    must_read(&rig.shared, 1, &contents, "the origin has them");
}

/// Without another node fsync(2) waits for the origin. It never returns with the bytes on one disk only.
#[test]
fn without_another_node_fsync_waits_for_the_origin() {
    requires!(Need::Covey);
    let rig = Rig::new(requires_server!(), &[&["-o", "timeout=3"]]);
    let before = rig.blobs();
    synced(&rig.shared.path(0, "file"), &[5; 10_000]).unwrap();
    assert!(rig.blobs() > before, "the origin has it");
    rig.proxy.down();
    let began = Instant::now();
    let error = synced(&rig.shared.path(0, "other"), &[6; 10_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    rig.proxy.up();
    until("it is synced when the origin is back", || {
        File::open(rig.shared.path(0, "other")).unwrap().sync_all().is_ok()
    });
}

/// The bytes that only the dead machine had were on the copied disk, and no node could read them.
#[test]
fn regression_a_folder_that_is_copied_brings_back_what_only_it_had() {
    requires!(Need::Covey);
    let mut rig = Rig::new(requires_server!(), &[&["-o", "fsync=local"], &[]]);
    let mut rng = Rng::new(21);
    let contents: Vec<(String, Vec<u8>)> =
        (0..8).map(|n| (format!("file{n}"), rng.bytes(200 + n * 40_000))).collect();
    rig.proxy.down();
    for (name, bytes) in &contents {
        fs::write(rig.shared.path(0, name), bytes).unwrap();
    }
    // The names are in the database, and the bytes on the first node's disk alone.
    File::open(rig.shared.path(0, "file0")).unwrap().sync_all().unwrap();
    let node = &mut rig.shared.nodes[0];
    node.kill();
    let copy = node.folder.with_extension("copy");
    let done = std::process::Command::new("cp").arg("-a").arg(&node.folder).arg(&copy).status().unwrap();
    assert!(done.success());
    fs::remove_dir_all(&node.folder).unwrap();
    node.folder = copy;
    node.try_mount(&[]).unwrap();
    let said = node.log();
    assert!(said.contains("this folder is a copy of the folder of node 1"), "{said}");
    let read = |rig: &Rig, node: usize| {
        contents
            .iter()
            .all(|(name, bytes)| fs::read(rig.shared.path(node, name)).is_ok_and(|got| got == *bytes))
    };
    until("the other node reads them from the copy", || read(&rig, 1));
    assert!(read(&rig, 0), "and the node with the copy itself");
    rig.proxy.up();
    until("they are in the origin", || rig.kept(0) == 0);
    rig.shared.nodes[0].kill();
    assert!(read(&rig, 1), "nothing depends on the copy any more");
}

/// The bytes of a node are lost with its disk: the user says so, and the files are renamed.
#[test]
fn files_of_a_lost_disk_are_renamed() {
    requires!(Need::Covey);
    let mut rig = Rig::new(requires_server!(), &[&["-o", "fsync=local"], &[]]);
    fs::create_dir(rig.shared.path(1, "dir")).unwrap();
    synced(&rig.shared.path(1, "kept"), &[1; 30_000]).unwrap();
    rig.proxy.down();
    for name in ["dir/lost", "dir/taken", "dir/taken.covey-lost"] {
        fs::write(rig.shared.path(0, name), vec![2; 30_000]).unwrap();
    }
    File::open(rig.shared.path(0, "dir/lost")).unwrap().sync_all().unwrap();
    rig.shared.nodes[0].kill();
    fs::remove_dir_all(&rig.shared.nodes[0].folder).unwrap();
    rig.proxy.up();
    let fsck = |rig: &Rig, more: &[&str]| {
        let done = covey().arg("fsck").args(more).arg(&rig.shared.address).output().unwrap();
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.code(), text)
    };
    let lost = ["--repair", "--lost-node", "1"];
    let (status, said) = fsck(&rig, &lost);
    assert!(status == Some(1) && said.contains("the volume is mounted on"), "{said}");
    rig.shared.nodes[1].unmount();
    // A repair waits until the session of the dead node has ended. Nothing is renamed unasked.
    for repair in [&["--repair"][..], &[]] {
        let (status, said) = fsck(&rig, repair);
        assert!(status == Some(1) && said.contains("--lost-node 1") && said.contains("/dir/lost,"), "{said}");
    }
    let (_, said) = fsck(&rig, &["--repair", "--lost-node", "7"]);
    assert!(said.contains("no missing bytes are on the disk of node 7"), "a wrong number is said: {said}");
    let (status, said) = fsck(&rig, &lost);
    assert!(status == Some(0) && said.contains("mended"), "{said}");
    let (status, said) = fsck(&rig, &[]);
    assert!(
        status == Some(0) && said.contains("/dir/lost.covey-lost"),
        "what is renamed is only noted: {said}"
    );
    rig.shared.nodes[1].try_mount(&[]).unwrap();
    let mut names: Vec<String> = fs::read_dir(rig.shared.path(1, "dir"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["lost.covey-lost", "taken.covey-lost", "taken.covey-lost.1"]);
    assert_eq!(fs::read(rig.shared.path(1, "kept")).unwrap(), [1; 30_000]);
}

/// A node that keeps nothing is passed over. If no node keeps anything, the origin is waited for.
#[test]
fn a_full_node_is_passed_over() {
    requires!(Need::Covey);
    let full: &[&str] = &["-o", "keep_max=0,timeout=3"];
    let mut rig = Rig::new(requires_server!(), &[&["-o", "timeout=3"], full]);
    let blobs = rig.blobs();
    synced(&rig.shared.path(0, "origin"), &[1; 10_000]).unwrap();
    assert!(rig.blobs() > blobs, "no node keeps it, so the origin has it");
    rig.proxy.down();
    assert!(synced(&rig.shared.path(0, "nowhere"), &[2; 10_000]).is_err());
    rig.shared.add();
    until("the third node keeps it", || {
        File::open(rig.shared.path(0, "nowhere")).unwrap().sync_all().is_ok()
    });
    assert_eq!((rig.kept(1), rig.kept(2) > 0), (0, true));
    rig.proxy.up();
}

/// The node that keeps the bytes stops answering. Another one keeps them, or the origin gets them.
#[test]
fn a_node_that_stops_in_the_middle_is_replaced() {
    requires!(Need::Covey);
    let rig = Rig::new(requires_server!(), &[&[], &[], &[]]);
    let contents = contents();
    // A lease of the folder, so that no node is asked for one.
    write_all(&rig.shared, 0, &contents);
    rig.shared.nodes[1].freeze(true);
    let took = synced(&rig.shared.path(0, "a"), &contents[4]).unwrap();
    say(format_args!("with the origin: {took:?}"));
    rig.proxy.down();
    let took = synced(&rig.shared.path(0, "b"), &contents[4]).unwrap();
    say(format_args!("with another node: {took:?}"));
    assert!(took < LIMIT, "{took:?}");
    assert!(rig.kept(2) > 4 << 20);
    rig.shared.nodes[1].freeze(false);
    rig.proxy.up();
}

/// The node with the copies leaves. They are made on another one, without another fsync(2).
#[test]
fn copies_move_when_their_node_leaves() {
    requires!(Need::Covey);
    let mut rig = Rig::new(requires_server!(), &[&[], &[], &[]]);
    let contents = contents();
    rig.proxy.down();
    write_all(&rig.shared, 0, &contents);
    assert!(rig.kept(1) > 6 << 20);
    rig.shared.nodes[1].kill();
    until("the third node has them", || rig.kept(2) > 6 << 20);
    rig.shared.nodes[0].kill();
    fs::remove_dir_all(&rig.shared.nodes[0].folder).unwrap();
    must_read(&rig.shared, 2, &contents, "both are gone");
    rig.proxy.up();
}

/// `fsync=origin` and `fsync=local` make no copies.
#[test]
fn only_fsync_peer_makes_copies() {
    requires!(Need::Covey);
    let each: &[&[&str]] = &[&["-o", "fsync=origin"], &["-o", "fsync=local"], &[]];
    let rig = Rig::new(requires_server!(), each);
    let blobs = rig.blobs();
    synced(&rig.shared.path(0, "origin"), &[1; 10_000]).unwrap();
    assert!(rig.blobs() > blobs);
    rig.proxy.down();
    let took = synced(&rig.shared.path(1, "local"), &[2; 10_000]).unwrap();
    assert_eq!([0, 1, 2].map(|node| rig.kept(node)), [0; 3], "{took:?}");
    rig.proxy.up();
}

/// A node that was killed with bytes that only it had. A later fsync(2) does not return before the origin has
/// these too.
#[test]
fn after_a_restart_fsync_waits_for_what_was_left() {
    requires!(Need::Covey);
    let options = ["-o", "timeout=3"];
    let mut rig = Rig::new(requires_server!(), &[&options, &[]]);
    rig.proxy.down();
    let bytes = Rng::new(5).bytes(100_000);
    fs::write(rig.shared.path(0, "old"), &bytes).unwrap();
    // What another node has seen is stored.
    fs::metadata(rig.shared.path(1, "old")).unwrap();
    rig.shared.nodes[0].kill();
    rig.shared.nodes[0].try_mount(&options).unwrap();
    assert!(File::open(rig.shared.path(0, "old")).unwrap().sync_all().is_err(), "it is on one disk only");
    rig.proxy.up();
    until("the origin has it", || File::open(rig.shared.path(0, "old")).unwrap().sync_all().is_ok());
    rig.shared.nodes[0].kill();
    fs::remove_dir_all(&rig.shared.nodes[0].folder).unwrap();
    assert!(fs::read(rig.shared.path(1, "old")).unwrap() == bytes);
}
