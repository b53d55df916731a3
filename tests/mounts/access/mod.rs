//! A small read costs little. The tests count the bytes that the store sends for reads of a real mount, with
//! the kernel's own requests.
//!
//! A fault in a mapping makes the kernel read a window around it, and further windows when the program comes
//! near the end of one. To the daemon these look like reads of a stream. These tests check that it does not
//! take them for one too soon.

mod heat;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use covey_tests::program::{covey_ok, covey_run, environment};
use covey_tests::{Need, Rng, Volume, requires};
use s3server::{BUCKET, Server};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The size of the file that is read.
const SIZE: u64 = 64 * MIB;

/// A store with a volume in it. One file of the volume is published.
struct World {
    server: Server,
    volume: Volume,
    bytes: Vec<u8>,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        environment(s3server::environment());
        let server = Server::start();
        let folder = covey_tests::scratch();
        let (origin, endpoint) = (format!("s3://{BUCKET}/prefix"), server.endpoint());
        let volume = Volume::below(folder.path(), &["--origin", &origin, "--endpoint", &endpoint]);
        let bytes = Rng::new(8).bytes(SIZE as usize);
        let world = World { server, volume, bytes, folder };
        let mounted = world.volume.mount();
        fs::create_dir(mounted.join("data.idx")).unwrap();
        fs::write(mounted.join("data.idx/file"), &world.bytes).unwrap();
        mounted.umount();
        covey_ok(&["flush", world.source()]);
        world.publish();
        world
    }

    fn source(&self) -> &str {
        self.volume.source.to_str().unwrap()
    }

    fn publish(&self) {
        covey_ok(&["publish", self.source(), "latest"]);
    }

    /// Mounts the published tree, with a cache of its own.
    fn tree(&self, name: &str, more: &[&str]) -> Mount {
        let path = |name: String| self.folder.path().join(name).to_str().unwrap().to_owned();
        let (at, cache) = (path(format!("at-{name}")), path(format!("cache-{name}")));
        fs::create_dir(&at).unwrap();
        let (tree, endpoint) = (format!("s3://{BUCKET}/prefix@latest"), self.server.endpoint());
        let words = ["mount", "-d", &tree, &at, "--endpoint", &endpoint, "--cache", &cache];
        covey_ok(&[&words, more].concat());
        Mount(at.into())
    }

    /// The bytes that the store sent during `work` and because of it.
    fn sent(&self, at: &Path, work: impl FnOnce(&File)) -> u64 {
        // Names are fetched first, so that they are not counted.
        let file = File::open(at.join("data.idx/file")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE);
        let before = self.settled(at);
        work(&file);
        drop(file);
        self.settled(at) - before
    }

    /// The bytes sent so far, once no fetch is in progress.
    fn settled(&self, at: &Path) -> u64 {
        let end = Instant::now() + Duration::from_secs(60);
        let (mut last, mut same) = (self.server.counts().sent, 0);
        while same < 5 {
            assert!(Instant::now() < end, "a fetch is still in progress");
            std::thread::sleep(Duration::from_millis(100));
            let status = covey_ok(&["status", at.to_str().unwrap(), "--json"]).json();
            let idle = status["far"]["requests"]["in_flight"] == 0;
            let now = self.server.counts().sent;
            same = if idle && now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    fn pread(&self, file: &File, at: u64, len: u64) {
        let mut buf = vec![0; len as usize];
        file.read_exact_at(&mut buf, at).unwrap();
        assert!(buf == self.bytes[at as usize..][..len as usize]);
    }

    /// Reads ranges through a mapping.
    fn map(&self, file: &File, ranges: &[(u64, u64)]) {
        let len = SIZE as usize;
        // SAFETY: a new mapping of an open file, checked below.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the mapping has `len` bytes and stays until it is unmapped below. Nothing changes the file
        // meanwhile.
        let mapped = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
        for (at, len) in ranges {
            let range = *at as usize..(at + len) as usize;
            assert!(mapped[range.clone()] == self.bytes[range]);
        }
        // SAFETY: the mapping from above, which is not used any more.
        assert_eq!(unsafe { libc::munmap(at, len) }, 0);
    }

    /// Reads a header and a record in the middle, as programs inspect a file of weights.
    fn header_and_record(&self, file: &File) {
        self.map(file, &[(0, 8), (40 * MIB, 64 * KIB)]);
    }

    /// Random places.
    fn places(&self, count: u64) -> Vec<(u64, u64)> {
        let mut rng = Rng::new(count);
        (0..count).map(|_| (rng.below(SIZE / KIB) * KIB, KIB)).collect()
    }
}

struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = covey_run(&["umount", "--lazy", self.0.to_str().unwrap()]);
    }
}

/// Reading eight bytes and 64 KiB through a mapping used to fetch 24 MiB.
#[test]
fn regression_a_little_of_a_published_file_has_little_fetched() {
    requires!(Need::Root, Need::Mount);
    let world = World::new();
    let tree = world.tree("pread", &[]);
    let sent = world.sent(&tree.0, |file| {
        world.pread(file, 0, 8);
        world.pread(file, 40 * MIB, 64 * KIB);
    });
    assert!(sent <= 256 * KIB + late(&tree.0), "pread: {sent}");
    let tree = world.tree("map", &[]);
    let sent = world.sent(&tree.0, |file| world.header_and_record(file));
    assert!(sent <= MIB + late(&tree.0), "a mapping: {sent}");
    // Ten records elsewhere: for each, the kernel reads one or two windows.
    let tree = world.tree("records", &[]);
    let records: Vec<(u64, u64)> = (0..10).map(|n| (n * 6 * MIB + 3 * KIB, 16 * KIB)).collect();
    let sent = world.sent(&tree.0, |file| world.map(file, &records));
    assert!(sent <= 10 * 384 * KIB + late(&tree.0), "records: {sent}");
}

#[test]
fn regression_a_little_of_a_volume_in_a_store_has_little_fetched() {
    requires!(Need::Root, Need::Mount);
    let world = World::new();
    covey_ok(&["cache", "evict", "--all", world.source()]);
    let mounted = world.volume.mount();
    let sent = world.sent(mounted.path(), |file| world.header_and_record(file));
    assert!(sent <= MIB + late(mounted.path()), "{sent}");
    mounted.umount();
}

#[test]
fn regression_a_little_of_a_file_in_a_fleet_has_little_fetched() {
    requires!(Need::Root, Need::Mount);
    let world = World::new();
    let secret = world.folder.path().join("secret");
    covey_ok(&["fleet", "secret", secret.to_str().unwrap()]);
    let fleet = ["--secret-file", secret.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let tree = world.tree("fleet", &fleet);
    let sent = world.sent(&tree.0, |file| world.header_and_record(file));
    assert!(sent <= MIB + late(&tree.0), "{sent}");
}

/// With the kernel's windows and whole blobs, 200 KiB of random reads used to fetch all 64 MiB.
#[test]
fn regression_what_is_read_at_random_has_its_own_groups_fetched_and_no_more() {
    requires!(Need::Root, Need::Mount);
    let world = World::new();
    let places = world.places(200);
    // Each place is a page, in a group of 64 KiB. The first read of a blob also fetches its sums.
    let most = 200 * 64 * KIB + 16 * 8 * KIB;
    let tree = world.tree("option", &["-o", "access=random"]);
    let sent = world.sent(&tree.0, |file| world.map(file, &places));
    assert!(sent <= most + late(&tree.0), "by the mount's option: {sent}");
    let tree = world.tree("names", &["-o", "random=*.idx,read_ahead=4"]);
    let sent = world.sent(&tree.0, |file| world.map(file, &places));
    assert!(sent <= most + late(&tree.0), "by its folder's name: {sent}");
    // An attribute is published with its folder.
    let mounted = world.volume.mount();
    let set = rustix::fs::setxattr(
        mounted.join("data.idx"),
        "user.covey.access",
        b"random",
        rustix::fs::XattrFlags::empty(),
    );
    set.unwrap();
    mounted.umount();
    world.publish();
    let tree = world.tree("attribute", &["-o", "read_ahead=4"]);
    let sent = world.sent(&tree.0, |file| world.map(file, &places));
    assert!(sent <= most + late(&tree.0), "by its folder's attribute: {sent}");
    let refused = rustix::fs::setxattr(
        tree.0.join("data.idx"),
        "user.covey.access",
        b"stream",
        rustix::fs::XattrFlags::empty(),
    );
    assert_eq!(refused, Err(rustix::io::Errno::ROFS), "a published tree cannot take one");
}

/// Parts of a blob used to be fetched, and then the whole blob again: 88 MiB for a file of 64 MiB.
#[test]
fn regression_random_faults_fetch_no_more_than_the_file() {
    requires!(Need::Root, Need::Mount);
    let world = World::new();
    let places = world.places(500);
    let tree = world.tree("faults", &[]);
    let gets = world.server.counts().get;
    let sent = world.sent(&tree.0, |file| world.map(file, &places));
    let gets = world.server.counts().get - gets;
    println!("{sent} bytes by {gets} requests");
    // Plus the sums of each of its 16 blobs, and the headers of each answer.
    let hedges = hedges(&tree.0);
    let most = SIZE + 16 * 8 * KIB + gets * KIB + hedges * 4 * MIB;
    assert!(sent <= most, "{sent} bytes were sent by {gets} GETs, {hedges} of them twice");
    // Reading the rest fetches only what is missing, whatever the order was.
    let sent = world.sent(&tree.0, |file| (0..SIZE / MIB).for_each(|n| world.pread(file, n * MIB, MIB)));
    println!("{sent} bytes for all the rest");
}

/// How many GETs a mount has sent a second time, because the first took long, as on a slow machine.
fn hedges(at: &Path) -> u64 {
    let status = covey_ok(&["status", at.to_str().unwrap(), "--json"]).json();
    status["far"]["requests"]["hedges"].as_u64().unwrap()
}

/// The bytes that these may be, where little is fetched.
fn late(at: &Path) -> u64 {
    hedges(at) * 512 * KIB
}

/// A file read from beginning to end is fetched once. Except for the beginning, it is fetched in whole blobs.
#[test]
fn a_stream_is_fetched_once_and_in_few_requests() {
    requires!(Need::Root, Need::Mount);
    let world = World::new();
    let tree = world.tree("stream", &[]);
    let gets = world.server.counts().get;
    let sent = world.sent(&tree.0, |file| (0..SIZE / MIB).for_each(|n| world.pread(file, n * MIB, MIB)));
    let gets = world.server.counts().get - gets;
    let hedges = hedges(&tree.0);
    assert!(sent <= SIZE + (2 + 4 * hedges) * MIB, "{sent} bytes were sent for {SIZE}, {hedges} GETs twice");
    assert!(gets <= 16 + 24 + hedges, "{gets} GETs were sent for 16 blobs, {hedges} of them twice");
}

/// `covey hint` sets what `setfattr` would set, says what applies and why, and names what cannot be set.
#[test]
fn hints_are_set_shown_and_removed() {
    requires!(Need::Covey);
    environment(s3server::environment());
    let server = Server::start();
    let folder = covey_tests::scratch();
    let (origin, endpoint) = (format!("s3://{BUCKET}/hints"), server.endpoint());
    let volume = Volume::below(folder.path(), &["--origin", &origin, "--endpoint", &endpoint]);
    let mounted = volume.mount_with(&["stream=*.bin"]);
    fs::create_dir_all(mounted.join("a/b")).unwrap();
    for name in ["a/f", "a/b/g", "a/w.bin"] {
        fs::write(mounted.join(name), name).unwrap();
    }
    let at = |name: &str| mounted.join(name).to_str().unwrap().to_owned();
    let hint = |words: &[&str]| covey_ok(&[&["hint"], words, &["--json"]].concat()).json();
    let shown = |name: &str| {
        let shown = hint(&[&at(name)])[0].clone();
        assert_eq!(shown["remote"], true);
        (shown["access"].as_str().unwrap().to_owned(), shown["why"].as_str().unwrap().to_owned())
    };
    let is = |access: &str, why: &str| (access.to_owned(), why.to_owned());
    let own = |name: &str| {
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(at(name), "user.covey.access", &mut value[..]).ok();
        len.map(|len| String::from_utf8_lossy(&value[..len]).into_owned())
    };
    assert_eq!(shown("a/f"), is("normal", "no hint is set"));
    assert_eq!(shown("a/w.bin"), is("stream", "by -o stream=*.bin, for /a/w.bin"));
    hint(&["random", &at("a")]);
    assert_eq!(own("a").as_deref(), Some("random"));
    assert_eq!(shown("a/b/g"), is("random", "by the attribute of /a"));
    assert_eq!(shown("a"), is("random", "by its own attribute"));
    hint(&["sequential", &at("a/b"), &at("a/f")]);
    assert_eq!((own("a/b").as_deref(), own("a/f").as_deref()), (Some("stream"), Some("stream")));
    assert_eq!(shown("a/b/g"), is("stream", "by the attribute of /a/b"));
    // Below a folder with a hint, no hint is one, too.
    hint(&["normal", &at("a/f")]);
    assert_eq!((own("a/f").as_deref(), shown("a/f").0), (Some("normal"), "normal".to_owned()));
    hint(&["normal", &at("a/b"), &at("a"), &at("a/b"), &at("a/f")]);
    assert_eq!((own("a"), own("a/b"), own("a/f")), (None, None, None));
    let says = |words: &[&str], code: &str, what: &str| {
        let failed = covey_run(&[&["hint"], words, &["--json"]].concat());
        assert_eq!(failed.json()["error"]["code"], code, "{failed:?}");
        assert!(failed.stderr.contains(what), "{failed:?}");
    };
    says(&["random"], "usage", "names no file");
    says(&["random", "/proc"], "not-a-volume", "");
    hint(&["random", &at("a")]);
    covey_ok(&["publish", mounted.path().to_str().unwrap(), "hints"]);
    mounted.umount();
    says(&["random", volume.source.to_str().unwrap()], "not-mounted", "covey mount");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let named = format!("{origin}@hints");
    let cache = folder.path().join("cache");
    let words = ["mount", "-d", &named, tree.to_str().unwrap(), "--endpoint", &endpoint];
    covey_ok(&[&words, &["--cache", cache.to_str().unwrap()][..]].concat());
    let tree = Mount(tree);
    let inside = tree.0.join("a/f");
    let inside = inside.to_str().unwrap();
    assert_eq!(hint(&[inside])[0]["why"], "by the attribute of /a", "the published tree carries it");
    says(&["random", inside], "read-only", "then publish again");
}

/// What has the hint `keep` is read from this node's disk, although much more was read since than fits there.
#[test]
fn what_is_to_be_kept_stays_on_the_disk() {
    requires!(Need::Covey);
    let world = World::new();
    let mounted = world.volume.mount();
    let kept = Rng::new(9).bytes(8 * MIB as usize);
    for name in ["kept", "plain"] {
        fs::create_dir(mounted.join(name)).unwrap();
        fs::write(mounted.join(name).join("file"), Rng::new(name.len() as u64).bytes(8 * MIB as usize))
            .unwrap();
    }
    fs::write(mounted.join("kept/file"), &kept).unwrap();
    covey_ok(&["hint", "keep", mounted.join("kept").to_str().unwrap()]);
    let shown = covey_ok(&["hint", mounted.join("kept/file").to_str().unwrap(), "--json"]).json();
    assert_eq!(
        (&shown[0]["keep"], &shown[0]["keep_why"]),
        (&true.into(), &"by the attribute of /kept".into())
    );
    mounted.umount();
    covey_ok(&["flush", world.source()]);
    world.publish();
    let tree = world.tree("keep", &["-o", "cache_size=64M"]);
    let read = |name: &str| {
        let file = File::open(tree.0.join(name)).unwrap();
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes).unwrap();
        // The next read comes to the daemon, too.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        bytes
    };
    for name in ["plain/file", "kept/file"] {
        read(name);
    }
    for _ in 0..2 {
        assert!(read("data.idx/file") == world.bytes);
    }
    world.settled(&tree.0);
    let before = world.server.counts().sent;
    assert!(read("kept/file") == kept);
    assert_eq!(world.settled(&tree.0) - before, 0, "bytes of the store for what is kept");
    read("plain/file");
    assert!(world.settled(&tree.0) - before >= 4 * MIB, "what is not kept was evicted");
}
