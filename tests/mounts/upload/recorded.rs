//! A list of what was read, and warming by it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_run, wait};
use covey_tests::{Mounted, Need, requires};

use super::remote::{Files, Remote};

fn read(mounted: &Mounted, name: &str, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut buf = vec![0; len];
    File::open(mounted.join(name)).and_then(|file| file.read_exact_at(&mut buf, offset)).map(|()| buf)
}

/// Reads these ranges of a fresh mount while they are recorded, and not before `pause` has passed. Returns
/// the list and what was read. Then this node has no bytes of them.
fn record<const N: usize>(
    remote: &Remote,
    list: &Path,
    wanted: [(&str, u64, usize); N],
    pause: Duration,
) -> (String, [Vec<u8>; N]) {
    let mounted = remote.volume.mount();
    let mut trace = covey();
    trace.arg("trace").arg(mounted.path()).arg("--record").arg(list);
    let mut trace = trace.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    // Until the daemon records, nothing may be read.
    let end = Instant::now() + Duration::from_secs(60);
    while !list.with_extension("reads.new").exists() {
        assert!(Instant::now() < end, "there is no list");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(pause);
    let bytes = wanted.map(|(name, offset, len)| {
        let bytes = read(&mounted, name, offset, len).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        bytes
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&trace), rustix::process::Signal::INT)
        .unwrap();
    assert!(wait(&mut trace, Duration::from_secs(60)).is_some_and(|status| status.success()));
    mounted.umount();
    remote.evict();
    (std::fs::read_to_string(list).unwrap(), bytes)
}

/// What a program reads of a fresh mount is recorded in order. Elsewhere it is fetched by the list, and no
/// more than that, and is then read without the store.
#[test]
fn what_was_read_is_fetched_by_the_list() {
    requires!(Need::Covey);
    let remote = Remote::new(14);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    std::fs::create_dir(mounted.join("d")).unwrap();
    for n in 0..12 {
        files.write(&mounted, &format!("d/f{n}"), 3_000_000, n).unwrap();
    }
    mounted.umount();
    remote.flush(&[]);
    remote.evict();
    let list = remote.folder().join("app.reads");
    let wanted = [("d/f7", 1_000_000, 100_000), ("d/f2", 0, 3_000_000), ("d/f5", 2_900_000, 50_000)];
    // The list is there a moment before the daemon records, and on a busy machine that moment may be long.
    let recorded = [1, 5, 25].into_iter().find_map(|pause| {
        let (text, before) = record(&remote, &list, wanted, Duration::from_secs(pause));
        assert!(text.starts_with("covey-reads 1\n"), "{text}");
        let first = |name: &str| text.lines().position(|line| line.ends_with(&format!(" {name}")));
        assert_eq!(first("d/f0"), None, "{text}");
        let places: Vec<usize> = wanted.iter().filter_map(|(name, ..)| first(name)).collect();
        (places.len() == wanted.len()).then(|| {
            assert!(places.is_sorted(), "{text}");
            (text, before)
        })
    });
    let (text, before) = recorded.expect("the list should have all that was read");
    // A file that is gone is no failure.
    std::fs::write(&list, format!("{text}0 4096 d/gone\n")).unwrap();
    let mounted = remote.volume.mount();
    let at = mounted.path().to_str().unwrap().to_owned();
    let warmed = covey_run(&["warm", &at, "--from-list", list.to_str().unwrap(), "--json"]);
    assert_eq!(warmed.code(), 0, "{warmed:?}");
    let figures = warmed.json();
    assert_eq!((&figures["files"], &figures["gone"]), (&3.into(), &1.into()), "{figures}");
    let fetched = figures["fetched_bytes"].as_u64().unwrap();
    assert!((3_150_000..8_000_000).contains(&fetched), "{figures}: of 36 MB");
    remote.proxy.down();
    for ((name, offset, len), bytes) in wanted.into_iter().zip(before) {
        assert!(read(&mounted, name, offset, len).unwrap() == bytes, "{name}");
    }
    remote.proxy.up();
    let usage = |words: &[&str], why: &str| {
        let done = covey_run(words);
        assert_eq!(done.code(), 2, "{done:?}");
        assert!(done.stderr.contains(why), "{done:?}");
    };
    usage(&["warm", "--from-list", list.to_str().unwrap()], "name the mount: covey warm MOUNT");
    std::fs::write(&list, "covey-reads 2\n").unwrap();
    usage(&["warm", &at, "--from-list", list.to_str().unwrap()], "covey-reads 2");
    mounted.umount();
}
