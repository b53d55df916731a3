//! A volume whose origin is an object store: nothing that was written is lost between the two.
//!
//! The store is an S3 server in this process, behind a proxy that throttles, cuts connections and goes down.
//! The program is the real one, on a real mount. Written data is always read back from the store alone: the
//! node's copies are evicted, and the volume is mounted again.

mod recorded;
mod remote;

use std::time::{Duration, Instant};

use covey_tests::{Need, Rng, requires, say, seeds};
use remote::{Files, Remote};
use s3server::{Canned, Fault, Rule};

/// Faults under which most requests succeed after a while.
fn weather(remote: &Remote) {
    remote.proxy.add(Rule::new(Fault::SlowDown).chance(0.1));
    remote.proxy.add(Rule::new(Fault::CutRequest(100_000)).chance(0.05));
    remote.proxy.add(Rule::new(Fault::CutAnswer(0)).chance(0.05));
    remote.proxy.add(Rule::new(Fault::Wait(Duration::from_millis(20))).chance(0.5));
}

/// Rounds of writing in which the daemon is killed at a random moment. Then everything is read back from the
/// store.
fn kill_rounds(first: u64, rounds: u64) {
    let remote = Remote::new(first);
    let mut files = Files::default();
    for seed in seeds(first, rounds) {
        let mut rng = Rng::new(seed);
        remote.proxy.faults().clear();
        weather(&remote);
        let mounted = remote.volume.mount_with(&["uploads=4"]);
        let written = files.write_until(&mounted, &mut rng, Duration::from_millis(50 + seed * 37 % 700));
        mounted.kill();
        if rng.one_in(3) {
            // The next run is killed while it works on what the last one left.
            remote.volume.mount_and_kill(Duration::from_millis(rng.length(300)));
        }
        assert!(written < 100_000, "COVEY_SEED={seed}");
    }
    remote.proxy.faults().clear();
    remote.must_come_back_from_the_store(&files, first);
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

/// While the store is unreachable, writes succeed until the disk's budget is full, then wait, then fail. No
/// accepted write is lost.
#[test]
fn an_outage_is_waited_out() {
    requires!(Need::Covey);
    let remote = Remote::new(7);
    let mounted = remote.volume.mount_with(&["cache_size=64M", "timeout=4", "writeback=off"]);
    let mut files = Files::default();
    files.write(&mounted, "before", 5 << 20, 1).unwrap();
    remote.flush(&[]);
    remote.proxy.down();
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
    assert!((Duration::from_secs(2)..Duration::from_secs(120)).contains(&waited), "{waited:?}");
    // Reads of local data still work, and so do removals. The next write fails at once.
    files.must_read(&mounted, "during3");
    std::fs::remove_file(mounted.join(format!("during{taken}"))).unwrap();
    // A busy machine may delay some of them, but not all.
    let quick = (0..5).any(|n| {
        let began = std::time::Instant::now();
        assert!(files.write(&mounted, &format!("late{n}"), 1 << 20, 99).is_err());
        std::fs::remove_file(mounted.join(format!("late{n}"))).ok();
        began.elapsed() < Duration::from_secs(3)
    });
    assert!(quick, "each of five writes waited again for most of the four seconds");
    let status = remote.status();
    assert!(status["far"]["uploads"]["blobs"].as_u64().unwrap() >= 12, "{status}");
    let failed = covey_tests::program::covey_run(&["flush", "--timeout", "1", remote.source(), "--json"]);
    assert_eq!(failed.code(), 1, "{failed:?}");
    assert_eq!(failed.json()["error"]["code"], "not-uploaded");
    remote.proxy.up();
    remote.flush(&[]);
    assert_eq!(remote.status()["far"]["uploads"]["blobs"], 0);
    files.write(&mounted, "after", 1 << 20, 100).unwrap();
    let log = remote.volume.log();
    assert_eq!(log.matches("writes wait").count(), 1, "{log}");
    mounted.umount();
    remote.must_come_back_from_the_store(&files, 7);
}

/// Small files share packs: a request for each would be expensive at a store.
#[test]
fn a_thousand_small_files_are_a_few_requests() {
    requires!(Need::Covey);
    let remote = Remote::new(8);
    let mounted = remote.volume.mount();
    let mut files = Files::default();
    let before = remote.server.counts().put;
    for n in 0..1000 {
        files.write(&mounted, &format!("f{n}"), 600 + n % 5000, n).unwrap();
    }
    remote.flush(&[]);
    let puts = remote.server.counts().put - before;
    assert!(puts <= 5, "{puts} PUTs");
    mounted.umount();
    remote.must_come_back_from_the_store(&files, 8);
}

/// With `fsync=origin`, everything that fsync(2) has returned for is in the store.
#[test]
fn fsync_brings_bytes_to_the_origin_when_it_is_to() {
    requires!(Need::Covey);
    let remote = Remote::new(9);
    let mounted = remote.volume.mount_with(&["fsync=origin", "timeout=3"]);
    let mut files = Files::default();
    files.write(&mounted, "f", 300_000, 1).unwrap();
    std::fs::File::open(mounted.join("f")).unwrap().sync_all().unwrap();
    assert_eq!(remote.status()["far"]["uploads"]["blobs"], 0);
    remote.proxy.down();
    files.write(&mounted, "g", 300_000, 2).unwrap();
    let failed = std::fs::File::open(mounted.join("g")).unwrap().sync_all().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    files.must_read(&mounted, "g");
    remote.proxy.up();
    // fsync has three seconds, and on a busy machine the back-off before the next attempt may take them.
    let sync = || std::fs::File::open(mounted.join("g")).unwrap().sync_all();
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = sync() {
        assert!(Instant::now() < end, "the store is back, but fsync still fails: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    mounted.umount();
    remote.must_come_back_from_the_store(&files, 9);
}

/// A volume can be mounted while its store is unreachable. Local data can be read, and writes are uploaded
/// later.
#[test]
fn a_mount_does_not_need_the_store() {
    requires!(Need::Covey);
    let remote = Remote::new(10);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    files.write(&mounted, "f", 3 << 20, 1).unwrap();
    mounted.umount();
    remote.proxy.down();
    let mounted = remote.volume.mount();
    files.must_read(&mounted, "f");
    files.write(&mounted, "g", 100_000, 2).unwrap();
    mounted.umount();
    assert!(remote.volume.log().contains("not uploaded yet"), "{}", remote.volume.log());
    remote.proxy.up();
    remote.must_come_back_from_the_store(&files, 10);
}

/// When the bucket was emptied during a mount, `flush` and `publish` used to report success, and afterwards
/// nothing could be mounted.
#[test]
fn regression_an_emptied_bucket_is_said_and_mended() {
    requires!(Need::Covey);
    let run = |args: &[&str]| covey_tests::program::covey_run(&[args, &["--json"]].concat());
    let remote = Remote::new(12);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    files.write(&mounted, "f", 6 << 20, 1).unwrap();
    remote.flush(&[]);
    for entry in std::fs::read_dir(remote.server.folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
    }
    files.write(&mounted, "g", 100_000, 2).unwrap();
    for args in [&["flush", "--timeout", "20", remote.source()][..], &["publish", remote.source(), "x"]] {
        let refused = run(args);
        assert_eq!(refused.code(), 1, "{refused:?}");
        assert!(
            ["origin-gone", "not-uploaded"].contains(&refused.json()["error"]["code"].as_str().unwrap()),
            "{refused:?}"
        );
    }
    assert_eq!(remote.status()["claim"]["state"], "gone", "{}", remote.status());
    files.must_all_read(&mounted);
    mounted.umount();
    // Local data can be read, and is uploaded again.
    let mounted = remote.volume.mount_with(&["ro"]);
    files.must_all_read(&mounted);
    mounted.umount();
    let refused = run(&["gc", remote.source()]);
    assert_eq!(refused.json()["error"]["code"], "origin-gone", "{refused:?}");
    let marked = run(&["origin", "mark", remote.source()]);
    assert_eq!(marked.code(), 0, "{marked:?}");
    assert!(marked.json()["made"] == true && marked.json()["again"].as_u64() >= Some(2), "{marked:?}");
    remote.must_come_back_from_the_store(&files, 12);
}

/// A node whose keys had expired at boot, or whose clock was not set yet, could not mount what is on its own
/// disk.
#[test]
fn regression_a_mount_does_not_need_a_store_that_serves_it() {
    requires!(Need::Covey);
    let remote = Remote::new(13);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    files.write(&mounted, "f", 100_000, 1).unwrap();
    mounted.umount();
    remote.flush(&[]);
    remote.proxy.add(Rule::new(Fault::Answer(s3server::Canned::ClockSkew)));
    let mounted = remote.volume.mount();
    files.must_all_read(&mounted);
    assert_eq!(remote.status()["claim"]["state"], "waiting");
    remote.proxy.faults().clear();
    let until = std::time::Instant::now() + Duration::from_secs(90);
    while remote.status()["claim"]["state"] != "held" {
        assert!(std::time::Instant::now() < until, "{}", remote.status());
        std::thread::sleep(Duration::from_millis(100));
    }
    mounted.umount();
    remote.must_come_back_from_the_store(&files, 13);
}

/// A command with a time limit used to spend the limit on each earlier step as well: opening took a minute,
/// and a flush before an unmount had no limit.
#[test]
fn regression_a_bound_is_a_bound_while_the_store_refuses() {
    requires!(Need::Covey);
    let remote = Remote::new(23);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    remote.proxy.add(Rule::new(Fault::SlowDown));
    files.write(&mounted, "f", 5 << 20, 1).unwrap();
    let bounded = |words: &[&str]| {
        let began = Instant::now();
        let done = covey_tests::program::covey_run(&[words, &["--json"]].concat());
        let took = began.elapsed();
        assert!(took < Duration::from_secs(50), "{words:?} took {took:?}");
        assert_eq!(done.code(), 1, "{done:?}");
        assert_eq!(done.json()["error"]["code"], "not-uploaded", "{done:?}");
    };
    bounded(&["umount", "--flush", "--wait", "2", mounted.join("").to_str().unwrap()]);
    files.must_read(&mounted, "f");
    mounted.umount();
    bounded(&["flush", "--timeout", "2", remote.source()]);
    remote.proxy.faults().clear();
    remote.must_come_back_from_the_store(&files, 23);
}

/// A store that accepts connections and never answers used to delay a mount by a minute. Now the volume is
/// mounted at once, and the store is used when it answers again.
#[test]
fn regression_a_mount_waits_for_no_store_and_finds_it_later() {
    requires!(Need::Covey);
    let remote = Remote::new(24);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    files.write(&mounted, "f", 3 << 20, 1).unwrap();
    mounted.umount();
    remote.flush(&[]);
    remote.proxy.add(Rule::new(Fault::Hang));
    let began = Instant::now();
    let mounted = remote.volume.mount();
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    files.must_read(&mounted, "f");
    files.write(&mounted, "g", 5 << 20, 2).unwrap();
    let away = &remote.status()["far"]["away"];
    assert!(away["why"].as_str().is_some_and(|why| !why.is_empty()), "{away}");
    assert!(remote.volume.log().contains("the origin cannot be used now"), "{}", remote.volume.log());
    remote.proxy.faults().clear();
    // Without a new mount, what was written is uploaded, and the origin counts as reachable.
    remote.flush(&["--timeout", "100"]);
    let seen = || remote.status()["far"]["away"].is_null();
    assert!((0..400).any(|_| seen() || {
        std::thread::sleep(Duration::from_millis(100));
        false
    }));
    assert!(remote.volume.log().contains("the origin answers again"), "{}", remote.volume.log());
    remote.evict();
    files.must_all_read(&mounted);
    mounted.umount();
    remote.must_come_back_from_the_store(&files, 24);
}

/// Keys that expired, lack a right or are invalid because of a wrong clock used to keep a volume from
/// mounting although all its data was on the node.
#[test]
fn regression_refused_keys_keep_no_volume_from_mounting() {
    requires!(Need::Covey);
    let remote = Remote::new(25);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    files.write(&mounted, "f", 1 << 20, 1).unwrap();
    mounted.umount();
    remote.flush(&[]);
    for answer in [
        Canned::ExpiredToken,
        Canned::UnknownKey,
        Canned::BadSignature,
        Canned::AccessDenied,
        Canned::ClockSkew,
        Canned::Page,
    ] {
        remote.proxy.add(Rule::new(Fault::Answer(answer.clone())));
        let mounted = remote.volume.mount();
        files.must_read(&mounted, "f");
        let away = &remote.status()["far"]["away"]["why"];
        assert!(away.as_str().is_some_and(|why| !why.is_empty()), "{answer:?}: {away}");
        mounted.umount();
        // A new volume cannot be created in that state.
        let folder = covey_tests::scratch();
        let mut format = covey_tests::program::covey();
        format.arg("format").arg(folder.path().join("v")).args(remote.place("new")).arg("--json");
        assert_eq!(covey_tests::run(&mut format, Duration::from_secs(60)).code(), 1, "{answer:?}");
        remote.proxy.faults().clear();
    }
    // If the place holds something else, that is not a temporary refusal: nothing is opened for writing then.
    remote.proxy.add(Rule::new(Fault::Answer(Canned::NoSuchBucket)));
    let refused = covey_tests::program::covey_run(&["gc", remote.source(), "--json"]);
    assert_eq!(refused.code(), 1, "{refused:?}");
    remote.proxy.faults().clear();
    let mounted = remote.volume.mount();
    assert!(remote.status()["far"]["away"].is_null());
    mounted.umount();
}

/// With keys that may not delete, files could not be read while deletes were refused, and no message said
/// what was refused.
#[test]
fn regression_refused_deletes_are_shown_and_refuse_no_read() {
    requires!(Need::Covey);
    let remote = Remote::new(26);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    files.write(&mounted, "f", 1 << 20, 1).unwrap();
    files.write(&mounted, "gone", 5 << 20, 2).unwrap();
    remote.flush(&[]);
    for method in ["DELETE", "POST"] {
        remote.proxy.add(Rule::new(Fault::Answer(Canned::AccessDenied)).only(method.parse().unwrap()));
    }
    files.remove(&mounted, "gone");
    covey_tests::program::covey_ok(&["gc", remote.source()]);
    let refused = || {
        let status = remote.status();
        let all = status["far"]["requests"]["refusing"].as_array().cloned().unwrap_or_default();
        all.iter().map(|one| (one["what"].clone(), one["cause"].clone())).collect::<Vec<_>>()
    };
    let soon = (0..300).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        !refused().is_empty()
    });
    assert!(soon);
    assert_eq!(refused(), [("deletes".into(), "rights".into())]);
    for _ in 0..3 {
        remote.evict();
        covey_tests::program::covey_ok(&["warm", mounted.join("f").to_str().unwrap()]);
        files.must_read(&mounted, "f");
    }
    assert!(remote.volume.log().contains("the origin refuses deletes"), "{}", remote.volume.log());
    let text = covey_tests::program::covey_ok(&["status", remote.source()]).stdout;
    assert!(text.contains("deletes refused"), "{text}");
    remote.proxy.faults().clear();
    mounted.umount();
}

/// Warming fetches the blobs of files, and reports what could not be fetched.
#[test]
fn warming_fetches_before_anybody_reads() {
    requires!(Need::Covey);
    let remote = Remote::new(11);
    let mut files = Files::default();
    let mounted = remote.volume.mount();
    std::fs::create_dir(mounted.join("d")).unwrap();
    for n in 0..20 {
        files.write(&mounted, &format!("d/f{n}"), 1_500_000, n).unwrap();
    }
    mounted.umount();
    remote.flush(&[]);
    remote.evict();
    let mounted = remote.volume.mount();
    let path = mounted.join("d");
    let warmed = covey_tests::program::covey_run(&["warm".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(warmed.code(), 0, "{warmed:?}");
    assert_eq!(warmed.json()["files"], 20);
    assert!(warmed.json()["fetched_bytes"].as_u64().unwrap() >= 30_000_000, "{warmed:?}");
    // Now the store is not needed.
    remote.proxy.down();
    files.must_all_read(&mounted);
    let list = remote.folder().join("list");
    std::fs::write(&list, format!("{}\n{}\n", path.join("f1").display(), path.join("none").display()))
        .unwrap();
    let missed =
        covey_tests::program::covey_run(&["warm".as_ref(), "--from-list".as_ref(), list.as_os_str()]);
    assert_eq!(missed.code(), 1, "{missed:?}");
    remote.proxy.up();
    mounted.umount();
}

/// Keys are never shown, and every error has its code.
#[test]
fn a_wrong_key_is_named_and_not_shown() {
    requires!(Need::Covey);
    let remote = Remote::new(12);
    let folder = covey_tests::scratch();
    let mut format = covey_tests::program::covey();
    format.arg("format").arg(folder.path().join("v")).args(remote.place("other")).arg("--json");
    format.env("AWS_SECRET_ACCESS_KEY", "PLANTEDSECRET");
    let refused = covey_tests::run(&mut format, Duration::from_secs(60));
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "origin-keys", "{refused:?}");
    assert!(!format!("{refused:?}").contains("PLANTEDSECRET"));
    assert!(!folder.path().join("v").exists(), "no remains of it are left");
    // A prefix that holds another volume is refused, too.
    let mut again = covey_tests::program::covey();
    again.arg("format").arg(folder.path().join("w")).args(remote.place("prefix")).arg("--json");
    let taken = covey_tests::run(&mut again, Duration::from_secs(60));
    assert_eq!(
        (taken.code(), taken.json()["error"]["code"].as_str()),
        (1, Some("origin-taken")),
        "{taken:?}"
    );
    let kept = std::fs::read_to_string(std::path::Path::new(remote.source()).join("covey.json")).unwrap();
    assert!(!kept.contains(s3server::SECRET) && !kept.contains(s3server::KEY));
}
