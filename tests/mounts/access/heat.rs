//! What is read most, by `covey heat`, and what follows for the cache.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::{covey_ok, covey_run};
use covey_tests::{Need, Rng, requires};
use rustix::fs::Advice;

use super::{MIB, Mount, World};

/// Reads within ten seconds count as one use of a blob. So this is two uses.
const IN_USE: Duration = Duration::from_secs(24);

fn read(at: &Path, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(at.join(name)).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The next read of the file comes to the daemon.
fn forget_pages(at: &Path, name: &str) {
    rustix::fs::fadvise(File::open(at.join(name)).unwrap(), 0, None, Advice::DontNeed).unwrap();
}

fn heat(path: &Path, more: &[&str]) -> serde_json::Value {
    covey_ok(&[&["heat", path.to_str().unwrap(), "--json"], more].concat()).json()
}

#[test]
fn the_daemons_requests_show_what_is_read_most() {
    requires!(Need::Covey);
    let world = World::new();
    let mounted = world.tree("counted", &["--heat=daemon"]);
    let at = mounted.0.as_path();
    let file = File::open(at.join("data.idx/file")).unwrap();
    for place in [5, 5, 5, 9] {
        world.pread(&file, place * MIB, 4096);
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
    // The counters look at the requests every few milliseconds.
    let end = Instant::now() + Duration::from_secs(60);
    let seen = loop {
        let seen = heat(at, &["--top", "2"]);
        if seen["chunks"].as_array().unwrap().len() == 2 {
            break seen;
        }
        assert!(Instant::now() < end, "{seen}");
    };
    assert_eq!(seen["view"], "daemon");
    assert!(seen["unseen"][0].as_str().unwrap().contains("page cache"), "{seen}");
    let (first, second) = (&seen["chunks"][0], &seen["chunks"][1]);
    assert_eq!((&first["path"], &first["mib"]), (&"data.idx/file".into(), &5.into()), "{seen}");
    assert_eq!((&first["hot"], &second["mib"]), (&true.into(), &9.into()), "{seen}");
    for path in ["data.idx", "data.idx/file"] {
        assert_eq!(heat(&at.join(path), &[])["chunks"][0]["mib"], 5, "{path}");
    }
    assert_eq!(covey_run(&["heat", at.join("missing").to_str().unwrap()]).code(), 1);
    let plain = world.tree("plain", &[]);
    let refused = covey_run(&["heat", plain.0.to_str().unwrap()]);
    assert!(refused.code() == 2 && refused.stderr.contains("--heat"), "{}", refused.stderr);
}

/// A file that programs read from the page cache all the time stays on this node's disk, although much more
/// was read since than fits there. Without the kernel's view the same reads look like one.
#[test]
fn what_the_page_cache_answers_stays_on_the_disk() {
    requires!(Need::Covey, Need::Ebpf);
    let world = World::new();
    let hot = Rng::new(9).bytes(8 * MIB as usize);
    let mounted = world.volume.mount();
    fs::write(mounted.join("hot"), &hot).unwrap();
    mounted.umount();
    covey_ok(&["flush", world.source()]);
    world.publish();
    let seen = world.tree("seen", &["-o", "cache_size=64M", "--heat"]);
    let unseen = world.tree("unseen", &["-o", "cache_size=64M"]);
    // Each blob is read 20 times or more, however slow the machine is.
    let (end, mut times) = (Instant::now() + IN_USE, 0);
    while Instant::now() < end || times < 25 {
        for Mount(at) in [&seen, &unseen] {
            assert!(read(at, "hot") == hot);
        }
        times += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
    let figures = heat(&seen.0, &[]);
    assert_eq!(figures["view"], "kernel");
    assert!(
        figures["protected"].as_u64().unwrap() > 0 && figures["events"].as_u64().unwrap() >= 8,
        "{figures}"
    );
    assert!(figures["chunks"][0]["reads"].as_u64().unwrap() >= 20, "{figures}");
    let again = |Mount(at): &Mount| {
        assert!(read(at, "data.idx/file") == world.bytes);
        forget_pages(at, "hot");
        let before = world.settled(at);
        assert!(read(at, "hot") == hot);
        world.settled(at) - before
    };
    assert_eq!(again(&seen), 0, "bytes of the store for what is in use");
    // Which bytes go first depends on the order of the fetches. So more is read here.
    for _ in 0..4 {
        assert!(read(&unseen.0, "data.idx/file") == world.bytes);
        forget_pages(&unseen.0, "data.idx/file");
    }
    assert!(again(&unseen) >= 4 * MIB, "what looks unused was evicted");
}

/// The page cache has the beginning of a file, and this node's disk has nothing of it. A program reads it in
/// order: what follows is fetched before the program gets there, although no read of it has arrived.
#[test]
fn what_follows_the_page_cache_is_fetched_ahead() {
    requires!(Need::Covey, Need::Ebpf);
    let world = World::new();
    let mounted = world.tree("ahead", &["--heat"]);
    let at = mounted.0.as_path();
    let file = File::open(at.join("data.idx/file")).unwrap();
    let beginning = || (0..6 * 8).for_each(|n| world.pread(&file, n * MIB / 8, MIB / 8));
    beginning();
    world.settled(at);
    rustix::fs::fadvise(&file, 6 * MIB, None, Advice::DontNeed).unwrap();
    covey_ok(&["cache", "evict", "--all", at.to_str().unwrap()]);
    let (before, asked) = (world.settled(at), heat(at, &[])["ahead"].as_u64().unwrap());
    beginning();
    let end = Instant::now() + Duration::from_secs(60);
    while heat(at, &[])["ahead"].as_u64().unwrap() == asked {
        assert!(Instant::now() < end, "{}", heat(at, &[]));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(world.settled(at) - before >= MIB, "bytes of the store before the read that wants them");
}
