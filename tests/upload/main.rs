//! A volume whose origin is an object store: nothing that was written is lost between the two.
//!
//! The store is an S3 server in this process, behind a proxy that throttles, cuts and goes away; the program is the real one, on a real
//! mount. What was written is always read back from the store alone: the node's copies are let go of, and the volume is mounted anew.

mod far;

use std::time::Duration;

use covey_tests::{Need, Rng, requires, say, seeds};
use far::{Far, Files};
use s3server::{Fault, Rule};

/// What makes most requests succeed, after a while.
fn weather(far: &Far) {
    far.proxy.add(Rule::new(Fault::SlowDown).chance(0.1));
    far.proxy.add(Rule::new(Fault::CutRequest(100_000)).chance(0.05));
    far.proxy.add(Rule::new(Fault::CutAnswer(0)).chance(0.05));
    far.proxy.add(Rule::new(Fault::Wait(Duration::from_millis(20))).chance(0.5));
}

/// Rounds of writing with the daemon killed at a random moment; then everything comes back from the store.
fn kill_rounds(first: u64, rounds: u64) {
    let far = Far::new(first);
    let mut files = Files::default();
    for seed in seeds(first, rounds) {
        let mut rng = Rng::new(seed);
        far.proxy.faults().clear();
        weather(&far);
        let mounted = far.volume.mount_with(&["uploads=4"]);
        let written = files.write_until(&mounted, &mut rng, Duration::from_millis(50 + seed * 37 % 700));
        mounted.kill();
        if rng.one_in(3) {
            // The next run is killed while it goes on with what the last one left.
            far.volume.mount_and_kill(Duration::from_millis(rng.length(300)));
        }
        assert!(written < 100_000, "COVEY_SEED={seed}");
    }
    far.proxy.faults().clear();
    far.must_come_back_from_the_store(&files, first);
    say(format_args!(
        "{rounds} kills from seed {first}, {} files: all of them came back from the store",
        files.len()
    ));
}

#[test]
fn uploads_survive_kill_9() {
    requires!(Need::Covey);
    kill_rounds(1, 10);
}

#[test]
#[ignore = "minutes: make test-upload"]
fn long_uploads_survive_kill_9() {
    requires!(Need::Covey);
    kill_rounds(1_000, 100);
}

/// While the store is away writes go on until the disk's budget is full, then wait, then fail; nothing that was taken is lost.
#[test]
fn an_outage_is_waited_out() {
    requires!(Need::Covey);
    let far = Far::new(7);
    let mounted = far.volume.mount_with(&["cache_size=64M", "timeout=4", "writeback=off"]);
    let mut files = Files::default();
    files.write(&mounted, "before", 5 << 20, 1).unwrap();
    far.flush(&[]);
    far.proxy.down();
    let mut refused = None;
    for n in 0..100 {
        let began = std::time::Instant::now();
        if let Err(error) = files.write(&mounted, &format!("during{n}"), 4 << 20, 10 + n) {
            refused = Some((n, error, began.elapsed()));
            break;
        }
    }
    let (taken, error, waited) = refused.expect("the disk's budget has an end");
    assert!(taken >= 12, "only {taken} files of 4 MiB were taken");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert!((Duration::from_secs(2)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
    // Reads of what is here go on, and so do removals; the next write is told at once.
    files.must_read(&mounted, "during3");
    std::fs::remove_file(mounted.join(format!("during{taken}"))).unwrap();
    let began = std::time::Instant::now();
    assert!(files.write(&mounted, "late", 1 << 20, 99).is_err());
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    std::fs::remove_file(mounted.join("late")).ok();
    let status = far.status();
    assert!(status["far"]["uploads"]["blobs"].as_u64().unwrap() >= 12, "{status}");
    let failed = covey_tests::program::covey_run(&["flush", "--timeout", "1", far.source(), "--json"]);
    assert_eq!(failed.code(), 1, "{failed:?}");
    assert_eq!(failed.json()["error"]["code"], "not-uploaded");
    far.proxy.up();
    far.flush(&[]);
    assert_eq!(far.status()["far"]["uploads"]["blobs"], 0);
    files.write(&mounted, "after", 1 << 20, 100).unwrap();
    let log = far.volume.log();
    assert_eq!(log.matches("writes wait").count(), 1, "{log}");
    mounted.umount();
    far.must_come_back_from_the_store(&files, 7);
}

/// Small files ride in packs: a request for each would cost a store's customer dearly.
#[test]
fn a_thousand_small_files_are_a_few_requests() {
    requires!(Need::Covey);
    let far = Far::new(8);
    let mounted = far.volume.mount();
    let mut files = Files::default();
    let before = far.server.counts().put;
    for n in 0..1000 {
        files.write(&mounted, &format!("f{n}"), 600 + n % 5000, n).unwrap();
    }
    far.flush(&[]);
    let puts = far.server.counts().put - before;
    assert!(puts <= 5, "{puts} PUTs");
    mounted.umount();
    far.must_come_back_from_the_store(&files, 8);
}

/// What fsync(2) has returned for is in the store, when it is to mean that.
#[test]
fn fsync_brings_bytes_to_the_origin_when_it_is_to() {
    requires!(Need::Covey);
    let far = Far::new(9);
    let mounted = far.volume.mount_with(&["fsync=origin", "timeout=3"]);
    let mut files = Files::default();
    files.write(&mounted, "f", 300_000, 1).unwrap();
    std::fs::File::open(mounted.join("f")).unwrap().sync_all().unwrap();
    assert_eq!(far.status()["far"]["uploads"]["blobs"], 0);
    far.proxy.down();
    files.write(&mounted, "g", 300_000, 2).unwrap();
    let failed = std::fs::File::open(mounted.join("g")).unwrap().sync_all().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    files.must_read(&mounted, "g");
    far.proxy.up();
    // It has three seconds, and on a busy machine the pause before the next try may take them.
    let sync = || std::fs::File::open(mounted.join("g")).unwrap().sync_all();
    assert!((0..10).any(|_| sync().is_ok()), "the store is back, and fsync says otherwise");
    mounted.umount();
    far.must_come_back_from_the_store(&files, 9);
}

/// A volume can be mounted while its store is away; what is on the node can be read, and what is written is uploaded later.
#[test]
fn a_mount_does_not_need_the_store() {
    requires!(Need::Covey);
    let far = Far::new(10);
    let mut files = Files::default();
    let mounted = far.volume.mount();
    files.write(&mounted, "f", 3 << 20, 1).unwrap();
    mounted.umount();
    far.proxy.down();
    let mounted = far.volume.mount();
    files.must_read(&mounted, "f");
    files.write(&mounted, "g", 100_000, 2).unwrap();
    mounted.umount();
    assert!(far.volume.log().contains("not uploaded yet"), "{}", far.volume.log());
    far.proxy.up();
    far.must_come_back_from_the_store(&files, 10);
}

/// The bucket was emptied behind a mount: `flush` and `publish` said that all was well, and afterwards nothing could be mounted.
#[test]
fn regression_an_emptied_bucket_is_said_and_mended() {
    requires!(Need::Covey);
    let run = |args: &[&str]| covey_tests::program::covey_run(&[args, &["--json"]].concat());
    let far = Far::new(12);
    let mut files = Files::default();
    let mounted = far.volume.mount();
    files.write(&mounted, "f", 6 << 20, 1).unwrap();
    far.flush(&[]);
    for entry in std::fs::read_dir(far.server.folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
    }
    files.write(&mounted, "g", 100_000, 2).unwrap();
    for args in [&["flush", "--timeout", "20", far.source()][..], &["publish", far.source(), "x"]] {
        let refused = run(args);
        assert_eq!(refused.code(), 1, "{refused:?}");
        assert!(
            ["origin-gone", "not-uploaded"].contains(&refused.json()["error"]["code"].as_str().unwrap()),
            "{refused:?}"
        );
    }
    assert_eq!(far.status()["claim"]["state"], "gone", "{}", far.status());
    files.must_all_read(&mounted);
    mounted.umount();
    // What is on the node can be read, and is brought back.
    let mounted = far.volume.mount_with(&["ro"]);
    files.must_all_read(&mounted);
    mounted.umount();
    let refused = run(&["gc", far.source()]);
    assert_eq!(refused.json()["error"]["code"], "origin-gone", "{refused:?}");
    let marked = run(&["origin", "mark", far.source()]);
    assert_eq!(marked.code(), 0, "{marked:?}");
    assert!(marked.json()["made"] == true && marked.json()["again"].as_u64() >= Some(2), "{marked:?}");
    far.must_come_back_from_the_store(&files, 12);
}

/// A node whose keys have expired at boot, or whose clock is not set yet, could not mount what is on its own disk.
#[test]
fn regression_a_mount_does_not_need_a_store_that_serves_it() {
    requires!(Need::Covey);
    let far = Far::new(13);
    let mut files = Files::default();
    let mounted = far.volume.mount();
    files.write(&mounted, "f", 100_000, 1).unwrap();
    mounted.umount();
    far.flush(&[]);
    far.proxy.add(Rule::new(Fault::Answer(s3server::Canned::ClockSkew)));
    let mounted = far.volume.mount();
    files.must_all_read(&mounted);
    assert_eq!(far.status()["claim"]["state"], "waiting");
    far.proxy.faults().clear();
    let until = std::time::Instant::now() + Duration::from_secs(90);
    while far.status()["claim"]["state"] != "held" {
        assert!(std::time::Instant::now() < until, "{}", far.status());
        std::thread::sleep(Duration::from_millis(100));
    }
    mounted.umount();
    far.must_come_back_from_the_store(&files, 13);
}

/// Warming fetches what files consist of, and says what could not be had.
#[test]
fn warming_fetches_before_anybody_reads() {
    requires!(Need::Covey);
    let far = Far::new(11);
    let mut files = Files::default();
    let mounted = far.volume.mount();
    std::fs::create_dir(mounted.join("d")).unwrap();
    for n in 0..20 {
        files.write(&mounted, &format!("d/f{n}"), 1_500_000, n).unwrap();
    }
    mounted.umount();
    far.flush(&[]);
    far.evict();
    let mounted = far.volume.mount();
    let path = mounted.join("d");
    let warmed = covey_tests::program::covey_run(&["warm".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(warmed.code(), 0, "{warmed:?}");
    assert_eq!(warmed.json()["files"], 20);
    assert!(warmed.json()["fetched_bytes"].as_u64().unwrap() >= 30_000_000, "{warmed:?}");
    // Now it does without the store.
    far.proxy.down();
    files.must_all_read(&mounted);
    let list = far.folder().join("list");
    std::fs::write(&list, format!("{}\n{}\n", path.join("f1").display(), path.join("none").display()))
        .unwrap();
    let missed =
        covey_tests::program::covey_run(&["warm".as_ref(), "--from-list".as_ref(), list.as_os_str()]);
    assert_eq!(missed.code(), 1, "{missed:?}");
    far.proxy.up();
    mounted.umount();
}

/// Keys are never shown, and every mistake has its word.
#[test]
fn a_wrong_key_is_named_and_not_shown() {
    requires!(Need::Covey);
    let far = Far::new(12);
    let folder = covey_tests::scratch();
    let mut format = covey_tests::program::covey();
    format.arg("format").arg(folder.path().join("v")).args(far.place("other")).arg("--json");
    format.env("AWS_SECRET_ACCESS_KEY", "PLANTEDSECRET");
    let refused = covey_tests::run(&mut format, Duration::from_secs(60));
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "origin-keys", "{refused:?}");
    assert!(!format!("{refused:?}").contains("PLANTEDSECRET"));
    assert!(!folder.path().join("v").exists(), "nothing is left of it");
    // Another volume's place is refused, too.
    let mut again = covey_tests::program::covey();
    again.arg("format").arg(folder.path().join("w")).args(far.place("prefix")).arg("--json");
    let taken = covey_tests::run(&mut again, Duration::from_secs(60));
    assert_eq!(
        (taken.code(), taken.json()["error"]["code"].as_str()),
        (1, Some("origin-taken")),
        "{taken:?}"
    );
    let kept = std::fs::read_to_string(std::path::Path::new(far.source()).join("covey.json")).unwrap();
    assert!(!kept.contains(s3server::SECRET) && !kept.contains(s3server::KEY));
}
