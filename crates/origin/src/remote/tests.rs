//! Faults, users' mistakes, and the cost of each operation, against an S3 server in this process.

mod arriving;
pub(crate) mod little;
mod refusing;
mod renewing;

use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::BlobId;
use base::time::BootTime;
use base::trial::{at_some_scale, in_time};
use blob::{BlobError, BlobSource, Origin, Records, Sums};
use http::Method;
use s3server::{Azure, BUCKET, Canned, Fault, KEY, Minio, Proxy, Rule, SECRET, Server, environment};

use super::layout::head_of;
use super::stats::Kind;
use super::{Environment, Limits, Mistake, Remote, RemoteSpec};
use crate::tests::noise;
use crate::{Access, OriginError};

/// One server for all tests; each test has its own prefix.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

/// A real MinIO for all tests, or what is missing for one.
pub(crate) fn minio() -> Result<&'static Minio, String> {
    static MINIO: OnceLock<Result<Minio, String>> = OnceLock::new();
    let start = || Minio::program().map(|program| Minio::start(&program, "us-east-1"));
    MINIO.get_or_init(start).as_ref().map_err(String::clone)
}

fn spec(endpoint: &str) -> RemoteSpec {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let text = format!("s3://{BUCKET}/t/{}", NEXT.fetch_add(1, Ordering::SeqCst));
    RemoteSpec::parse(&text).unwrap().at(Some(endpoint), None).unwrap()
}

fn keys() -> Environment {
    Environment::of(environment())
}

/// A new, empty origin.
pub(crate) fn fresh(endpoint: &str, limits: Limits) -> Remote {
    Remote::format(&spec(endpoint), &keys(), limits, "of-a-test").unwrap()
}

/// Deadlines short enough for a test.
fn short() -> Limits {
    deadlines(Duration::from_secs(2))
}

fn deadlines(deadline: Duration) -> Limits {
    Limits { read_deadline: deadline, write_deadline: deadline, ..Limits::default() }
}

/// No second GET, which a busy machine would cause: each request counts.
fn unhedged() -> Limits {
    Limits { hedge: false, ..Limits::default() }
}

/// A proxy before the server, and an origin behind it with one blob.
fn behind(seed: u64, limits: Limits) -> (Proxy, Remote, BlobId, Vec<u8>) {
    let proxy = Proxy::start(server().address(), seed);
    let remote = fresh(&proxy.endpoint(), limits);
    let bytes = noise(300_000, seed);
    let id = put(&remote, &bytes);
    (proxy, remote, id, bytes)
}

fn put(remote: &Remote, bytes: &[u8]) -> BlobId {
    let sums = Sums::of(bytes);
    remote.put(&sums.id(), &sums, bytes).unwrap();
    sums.id()
}

fn says_no_secret(text: &str) {
    for secret in [KEY, SECRET, "test+secret", "of-a-token"] {
        assert!(!text.contains(secret), "{text}");
    }
    assert!(!text.contains('\n'), "one line: {text}");
}

#[test]
fn each_fault_that_passes_ends_in_the_right_bytes() {
    let get = |fault| Rule::new(fault).only(Method::GET);
    let put_only = |fault| Rule::new(fault).only(Method::PUT);
    let menu = [
        Rule::new(Fault::SlowDown).times(3),
        Rule::new(Fault::Status(500)).times(2),
        Rule::new(Fault::Status(502)).times(2),
        Rule::new(Fault::Drop).times(3),
        Rule::new(Fault::Lose).times(3),
        get(Fault::CutAnswer(0)).times(2),
        get(Fault::CutAnswer(100_000)).times(2),
        put_only(Fault::CutRequest(5000)).times(2),
        // Listings and records have no hash to be checked against.
        get(Fault::Shorten(1000)).times(1).path("/blobs/"),
        get(Fault::Flip).times(1).path("/blobs/"),
        Rule::new(Fault::Wait(Duration::from_millis(40))),
        get(Fault::WaitPerMib(Duration::from_millis(200))),
        get(Fault::Trickle(4 << 20)),
    ];
    for (seed, rule) in menu.into_iter().enumerate() {
        println!("{rule:?}");
        let (proxy, remote, id, bytes) = behind(seed as u64, Limits::default());
        let name = "published/x";
        let steps: [&dyn Fn(); 6] = [
            &|| assert!(remote.fetch(&id).unwrap().1 == bytes),
            &|| {
                remote.recent.forget(&id);
                let part = remote.fetch_part(&id, 70_000, 5000).unwrap();
                let from = 70_000 - part.offset as usize;
                assert!(part.bytes[from..from + 5000] == bytes[70_000..75_000]);
            },
            &|| assert_eq!(put(&remote, &bytes), id),
            &|| assert_eq!(remote.size(&id).unwrap(), Some(300_000)),
            &|| {
                assert!(remote.create_record(name, b"one").unwrap());
                assert_eq!(remote.record(name).unwrap().unwrap(), b"one");
                assert_eq!(remote.records("published").unwrap(), [name]);
                remote.remove_record(name).unwrap();
            },
            &|| {
                let mut seen = 0;
                remote
                    .list(&mut |_, _| {
                        seen += 1;
                        true
                    })
                    .unwrap();
                assert_eq!(seen, 1);
            },
        ];
        for step in steps {
            proxy.faults().clear();
            proxy.add(rule.clone());
            step();
        }
        proxy.faults().clear();
        remote.remove(&id).unwrap();
        assert!(matches!(remote.fetch(&id), Err(BlobError::Missing(_))));
    }
}

#[test]
fn faults_that_stay_end_in_an_error_by_the_deadline() {
    let menu = [
        Fault::Hang,
        Fault::Drop,
        Fault::SlowDown,
        Fault::Status(502),
        Fault::CutAnswer(10),
        Fault::Trickle(1000),
    ];
    // They only wait, so all of them run in parallel.
    std::thread::scope(|scope| {
        for (seed, fault) in menu.into_iter().enumerate() {
            scope.spawn(move || {
                at_some_scale(|scale| ends_by_the_deadline(100 + seed as u64, &fault, scale)).unwrap();
            });
        }
    });
}

fn ends_by_the_deadline(seed: u64, fault: &Fault, scale: u32) -> Result<(), String> {
    let (proxy, remote, id, bytes) = behind(seed, deadlines(scale * Duration::from_secs(2)));
    proxy.add(Rule::new(fault.clone()));
    let sums = Sums::of(&bytes);
    let ended = |name: &str, work: &dyn Fn() -> Result<(), BlobError>| {
        let begin = Instant::now();
        let error = work().map(|()| format!("{fault:?} {name}")).unwrap_err();
        let took = begin.elapsed();
        assert!(matches!(error, BlobError::Unavailable(_)), "{fault:?} {name}: {error:?}");
        says_no_secret(&error.to_string());
        in_time(took, scale * Duration::from_millis(2700), format!("{fault:?} {name}"))
    };
    ended("fetch", &|| remote.fetch(&id).map(drop))?;
    ended("part", &|| remote.fetch_part(&id, 0, 300_000).map(drop))?;
    // A PUT's answer has no body that could go wrong.
    if !matches!(fault, Fault::Trickle(_) | Fault::CutAnswer(_)) {
        ended("put", &|| remote.put(&id, &sums, &bytes))?;
    }
    Ok(())
}

#[test]
fn wrong_bytes_are_never_given() {
    for (seed, fault) in [Fault::Flip, Fault::Shorten(200_000), Fault::Shorten(10)].into_iter().enumerate() {
        let (proxy, remote, id, bytes) = behind(200 + seed as u64, short());
        proxy.add(Rule::new(fault.clone()).only(Method::GET));
        for _ in 0..2 {
            let mut buf = vec![0; 300_000];
            for wrong in [remote.fetch(&id).map(drop), remote.verify(&id)] {
                assert!(matches!(wrong, Err(BlobError::Damaged { .. })), "{fault:?}: {wrong:?}");
            }
            // A part may be right by luck, if the flipped bit is outside of it.
            match remote.read_at(&id, 0, &mut buf) {
                Ok(()) => assert!(buf == bytes, "{fault:?}"),
                Err(error) => assert!(
                    matches!(error, BlobError::Damaged { .. } | BlobError::Unavailable(_)),
                    "{fault:?}: {error:?}"
                ),
            }
        }
        assert!(remote.stats().damaged >= 8);
        proxy.faults().clear();
        assert!(remote.fetch(&id).unwrap().1 == bytes);
    }
}

#[test]
fn what_a_cache_on_the_way_spoilt_is_asked_for_past_it() {
    let (proxy, remote, id, bytes) = behind(250, short());
    proxy.add(Rule::new(Fault::Stale).only(Method::GET).path("/blobs/"));
    assert!(remote.fetch(&id).unwrap().1 == bytes);
    let mut buf = vec![0; 300_000];
    remote.read_at(&id, 0, &mut buf).unwrap();
    assert!(buf == bytes && remote.stats().damaged >= 2);
}

/// Two wrong answers in a row were taken for the store's copy. If one answer in five is corrupted, that is
/// one blob in thirty.
#[test]
fn regression_a_line_that_spoils_some_answers_is_no_damage() {
    let (proxy, remote, id, bytes) = behind(260, Limits::default());
    for fault in [Fault::Flip, Fault::Shorten(5000)] {
        let spoilt = Rule::new(fault).only(Method::GET).times(3);
        proxy.add(spoilt.clone());
        assert!(remote.fetch(&id).unwrap().1 == bytes, "{spoilt:?}");
        proxy.faults().clear();
        proxy.add(spoilt.clone());
        remote.recent.forget(&id);
        let mut buf = vec![0; 300_000];
        remote.read_at(&id, 0, &mut buf).unwrap();
        assert!(buf == bytes, "{spoilt:?}");
        proxy.faults().clear();
    }
}

/// Keys that may not delete: after three refused DELETEs, reads were refused too, without a request.
#[test]
fn regression_refused_deletes_and_writes_refuse_no_read() {
    let (proxy, remote, id, bytes) = behind(262, short());
    let denied = |method| Rule::new(Fault::Answer(Canned::AccessDenied)).only(method);
    [Method::DELETE, Method::POST, Method::PUT].into_iter().for_each(|method| proxy.add(denied(method)));
    let sums = Sums::of(&bytes);
    for _ in 0..5 {
        assert!(matches!(remote.remove(&id), Err(BlobError::Refused(_))));
        assert!(matches!(remote.put(&id, &sums, &bytes), Err(BlobError::Refused(_))));
        assert!(remote.fetch(&id).unwrap().1 == bytes);
    }
    let refused: Vec<_> = remote.refusals().iter().map(|one| (one.what(), one.cause())).collect();
    assert_eq!(refused, [("writes", "rights"), ("deletes", "rights")]);
    proxy.faults().clear();
    assert_eq!(put(&remote, &bytes), id);
    remote.remove(&id).unwrap();
    assert!(remote.refusals().is_empty());
}

/// A proxy's HTML page, with and without content type, led to EIO within a second, after three tries. A 500
/// was waited out.
#[test]
fn regression_a_page_for_people_is_waited_out_as_an_outage_is() {
    for (seed, page) in [Canned::Page, Canned::BarePage].into_iter().enumerate() {
        let (proxy, remote, id, bytes) = behind(263 + seed as u64, Limits::default());
        let reads: [&(dyn Fn() + Sync); 3] = [
            &|| assert!(remote.fetch(&id).unwrap().1 == bytes),
            &|| {
                remote.recent.forget(&id);
                assert!(remote.fetch_part(&id, 0, 4096).is_ok());
            },
            &|| assert_eq!(remote.record("x").unwrap(), None),
        ];
        for read in reads {
            let happened = proxy.faults().happened();
            proxy.add(Rule::new(Fault::Answer(page.clone())));
            std::thread::scope(|scope| {
                let read = scope.spawn(read);
                // More often than it was tolerated before.
                while proxy.faults().happened() < happened + 5 {
                    assert!(!read.is_finished(), "{page:?}: it was not waited for");
                    std::thread::sleep(Duration::from_millis(5));
                }
                proxy.faults().clear();
                read.join().unwrap();
            });
        }
        at_some_scale(|scale| {
            let limits = deadlines(scale * Duration::from_secs(2));
            let hasty = Remote::open(remote.spec(), &keys(), limits, Access::ReadOnly).unwrap();
            proxy.add(Rule::new(Fault::Answer(page.clone())));
            let error = hasty.fetch(&id).unwrap_err();
            proxy.faults().clear();
            match &error {
                BlobError::Unavailable(why) if why.contains("check the endpoint") => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .unwrap();
    }
}

/// What followed from an answer had its own time limit: for a missing blob, and for a marker that does not
/// arrive.
#[test]
fn regression_what_follows_from_an_answer_shares_its_deadline() {
    at_some_scale(follows_within_the_deadline).unwrap();
}

fn follows_within_the_deadline(scale: u32) -> Result<(), String> {
    let (proxy, remote, ..) = behind(266, deadlines(scale * Duration::from_secs(2)));
    *remote.marker_seen.lock() = None;
    let nobodys = Sums::of(b"nobody stored this").id();
    proxy.add(Rule::new(Fault::Wait(scale * Duration::from_millis(1500))).path("/blobs/"));
    proxy.add(Rule::new(Fault::Hang).path("covey-origin"));
    let begin = Instant::now();
    assert!(matches!(remote.fetch(&nobodys), Err(BlobError::Unavailable(_))));
    in_time(begin.elapsed(), scale * Duration::from_millis(2700), "a read of a missing blob")?;
    // All of it ends by the deadline of the calling work.
    proxy.add(Rule::new(Fault::Hang));
    let begin = Instant::now();
    base::Deadline::after(scale * Duration::from_millis(300)).scope(|| {
        assert!(remote.fetch(&nobodys).is_err() && remote.record("x").is_err());
        assert!(remote.list(&mut |_, _| true).is_err());
    });
    in_time(begin.elapsed(), scale * Duration::from_millis(1500), "work with a deadline of 300 ms")
}

/// An origin that was unreachable when it was opened is checked before it is changed: the place may be
/// another volume's.
#[test]
fn regression_an_unseen_origin_is_seen_before_it_is_changed() {
    let (proxy, remote, id, bytes) = behind(267, short());
    let unseen = |volume: &str, limits| {
        Remote::open_unseen(remote.spec(), &keys(), limits, Access::ReadWrite, volume).unwrap()
    };
    proxy.down();
    let (ours, others) = (unseen(remote.volume(), short()), unseen("another", Limits::default()));
    assert!(matches!(ours.remove(&id), Err(BlobError::Unavailable(_))));
    assert!(ours.see().is_err());
    proxy.up();
    assert!(matches!(others.remove(&id), Err(BlobError::Refused(why)) if why.contains("another volume")));
    assert_eq!(
        others.remove_many(&[id], base::time::BootTime::NEVER).unwrap_err().to_string(),
        others.remove(&id).unwrap_err().to_string()
    );
    let sums = Sums::of(b"of another volume");
    assert!(others.put(&sums.id(), &sums, b"of another volume").is_err());
    assert!(others.put_record("x", b"y").is_err() && others.create_record("x", b"y").is_err());
    assert!(others.remove_record("x").is_err());
    assert!(others.fetch(&id).unwrap().1 == bytes, "a blob is what its name says, wherever it is");
    ours.see().unwrap();
    ours.remove(&id).unwrap();
    assert_eq!(remote.size(&id).unwrap(), None);
    assert_eq!(remote.size(&sums.id()).unwrap(), None);
}

/// Nonsense is tolerated twice; the throttling before it was counted as nonsense too.
#[test]
fn regression_nonsense_after_throttling_is_tried_again() {
    let (proxy, remote, ..) = behind(261, Limits::default());
    proxy.add(Rule::new(Fault::SlowDown).times(4));
    proxy.add(Rule::new(Fault::Answer(Canned::Page)).times(1));
    assert!(remote.records("published").unwrap().is_empty());
}

#[test]
fn everything_at_once_gives_right_bytes_or_an_error() {
    let (proxy, remote, ..) = behind(300, short());
    for fault in [
        Fault::SlowDown,
        Fault::Drop,
        Fault::Flip,
        Fault::CutAnswer(50_000),
        Fault::CutRequest(900),
        Fault::Status(503),
    ] {
        proxy.add(Rule::new(fault).chance(0.08));
    }
    let blobs: Vec<Vec<u8>> = (0..12).map(|i| noise(20_000 * (i as usize + 1), 400 + i)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for bytes in &blobs {
                    let sums = Sums::of(bytes);
                    let begin = Instant::now();
                    let stored = remote.put(&sums.id(), &sums, bytes).is_ok();
                    match remote.fetch(&sums.id()) {
                        Ok((_, read)) => assert!(read == *bytes),
                        Err(BlobError::Missing(_)) => assert!(!stored),
                        Err(BlobError::Damaged { .. } | BlobError::Unavailable(_)) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                    let took = begin.elapsed();
                    assert!(took < Duration::from_secs(120), "a PUT and a GET took {took:?}");
                }
            });
        }
    });
}

#[test]
fn an_outage_is_waited_for_up_to_the_deadline() {
    let (proxy, remote, id, bytes) = behind(5, Limits::default());
    at_some_scale(|scale| {
        let limits = deadlines(scale * Duration::from_secs(2));
        let hasty = Remote::open(remote.spec(), &keys(), limits, Access::ReadOnly).unwrap();
        proxy.down();
        let error = hasty.fetch(&id).unwrap_err().to_string();
        proxy.up();
        let says_why = error.contains("nothing listens at") && error.contains("tried");
        says_why.then_some(()).ok_or(error)
    })
    .unwrap();
    proxy.down();
    let retries = remote.stats().retries;
    std::thread::scope(|scope| {
        let read = scope.spawn(|| remote.fetch(&id).unwrap().1);
        while remote.stats().retries == retries {
            assert!(!read.is_finished(), "it was not waited for");
            std::thread::sleep(Duration::from_millis(5));
        }
        proxy.up();
        assert!(read.join().unwrap() == bytes);
    });
}

fn mistake(opened: Result<Remote, OriginError>) -> (Mistake, String) {
    let error = opened.expect_err("a mistake was made");
    let text = error.to_string();
    says_no_secret(&text);
    match error {
        OriginError::Remote { mistake, .. } => (mistake, text),
        other => panic!("{other:?}"),
    }
}

fn open(spec: &RemoteSpec, environment: &Environment) -> Result<Remote, OriginError> {
    Remote::open(spec, environment, Limits::default(), Access::ReadWrite)
}

#[test]
fn each_mistake_of_a_user_is_named_in_one_line() {
    let (proxy, remote, ..) = behind(6, short());
    let there = remote.spec().clone();
    for (answer, expected, says) in [
        (Canned::ExpiredToken, Mistake::Expired, "expired"),
        (Canned::UnknownKey, Mistake::AccessKey, "AWS_ACCESS_KEY_ID"),
        (Canned::BadSignature, Mistake::Secret, "secret key"),
        (Canned::AccessDenied, Mistake::Denied, "access denied"),
        (Canned::NoSuchBucket, Mistake::Bucket, "no bucket bucket"),
        (Canned::WrongRegion("eu-west-3".to_owned()), Mistake::Region, "--region eu-west-3"),
        (Canned::ClockSkew, Mistake::Clock, "clock"),
        (Canned::Page, Mistake::NotAStore, "check the endpoint"),
    ] {
        proxy.add(Rule::new(Fault::Answer(answer.clone())));
        let (found, line) = mistake(open(&there, &keys()));
        assert_eq!(found, expected, "{line}");
        assert!(line.contains(says) && line.starts_with("s3://bucket/t/"), "{line}");
        // An open origin reports the same. (Reads would repeat the first mistake for a while.)
        let error = remote.list(&mut |_, _| true).unwrap_err().to_string();
        says_no_secret(&error);
        assert!(error.contains(says), "{error}");
        proxy.faults().clear();
    }
    open(&there, &keys()).unwrap();
}

#[test]
fn real_mistakes_are_named_too() {
    let there = fresh(&server().endpoint(), short()).spec().clone();
    let with = |id: &str, secret: &str| {
        Environment::of([("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret)])
    };
    assert_eq!(mistake(open(&there, &with("NOBODYSKEY", "of-a-token"))).0, Mistake::AccessKey);
    assert_eq!(mistake(open(&there, &with(KEY, "of-a-token"))).0, Mistake::Secret);
    let mut no_bucket = there.clone();
    no_bucket.bucket = "not-there".to_owned();
    assert_eq!(mistake(open(&no_bucket, &keys())).0, Mistake::Bucket);
    assert_eq!(mistake(Remote::format(&no_bucket, &keys(), short(), "v")).0, Mistake::Bucket);
    let at = |endpoint: &str| there.clone().at(Some(endpoint), None).unwrap();
    let (found, line) = mistake(open(&at("http://127.0.0.1:1"), &keys()));
    assert!(found == Mistake::Endpoint && line.contains("nothing listens at 127.0.0.1:1"), "{line}");
    let (found, line) = mistake(open(&at("http://nowhere.invalid:9000"), &keys()));
    assert!(found == Mistake::Endpoint && line.contains("nowhere.invalid"), "{line}");
    let (found, line) = mistake(open(&at(&format!("https://{}", server().address())), &keys()));
    assert!(found == Mistake::Tls && line.contains("http://"), "{line}");
    let nothing = Environment::of([("AWS_EC2_METADATA_DISABLED", "true"), ("HOME", "/nonexistent")]);
    let (found, line) = mistake(open(&there, &nothing));
    assert!(found == Mistake::NoKeys && line.contains("looked at"), "{line}");
}

#[test]
fn minio_names_the_same_mistakes() {
    let minio = match minio() {
        Ok(minio) => minio,
        Err(lacks) => return println!("skipped: lacks {lacks}"),
    };
    let there = fresh(&minio.endpoint(), short()).spec().clone();
    let with = |id: &str, secret: &str| {
        Environment::of([("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret)])
    };
    assert_eq!(mistake(open(&there, &with("NOBODYSKEY", "of-a-token"))).0, Mistake::AccessKey);
    assert_eq!(mistake(open(&there, &with(KEY, "of-a-token"))).0, Mistake::Secret);
    let mut no_bucket = there.clone();
    no_bucket.bucket = "not-there".to_owned();
    assert_eq!(mistake(open(&no_bucket, &keys())).0, Mistake::Bucket);
    assert_eq!(mistake(Remote::format(&no_bucket, &keys(), short(), "v")).0, Mistake::Bucket);
    let remote = open(&there, &keys()).unwrap();
    let many: Vec<BlobId> = (0..20).map(|i| put(&remote, &noise(5000, 900 + i))).collect();
    remote.remove_many(&many, BootTime::NEVER).unwrap();
    remote.list(&mut |id, _| panic!("{id} is still there")).unwrap();
    let mut elsewhere = there.clone();
    elsewhere.region = Some("eu-west-3".to_owned());
    let (found, line) = mistake(open(&elsewhere, &keys()));
    assert!(found == Mistake::Region && line.contains("--region us-east-1"), "{line}");
    let proxy = Proxy::start(minio.endpoint().strip_prefix("http://").unwrap().parse().unwrap(), 1);
    let (found, line) = mistake(open(
        &there
            .at(Some(&proxy.endpoint()), None)
            .map(|spec| RemoteSpec { prefix: "none".to_owned(), ..spec })
            .unwrap(),
        &keys(),
    ));
    assert!(found == Mistake::NotAnOrigin, "{line}");
}

#[test]
fn a_place_belongs_to_one_volume() {
    let there = spec(&server().endpoint());
    let (found, line) = mistake(open(&there, &keys()));
    assert!(found == Mistake::NotAnOrigin && line.contains("covey format"), "{line}");
    let remote = Remote::format(&there, &keys(), short(), "first").unwrap();
    assert_eq!((remote.volume(), remote.describe()), ("first", there.to_string()));
    assert_eq!(open(&there, &keys()).unwrap().volume(), "first");
    let (found, line) = mistake(Remote::format(&there, &keys(), short(), "second"));
    assert!(found == Mistake::Taken && line.contains("another volume's"), "{line}");
    let mut above = there.clone();
    above.prefix = "t".to_owned();
    let (found, line) = mistake(Remote::format(&above, &keys(), short(), "third"));
    assert!(found == Mistake::Taken && line.contains("other objects"), "{line}");
    let marker = server().folder().join(&there.prefix).join("covey-origin");
    fs::write(&marker, "covey origin 3\n").unwrap();
    assert!(mistake(open(&there, &keys())).1.contains("newer covey"));
    fs::write(&marker, "something else").unwrap();
    assert!(mistake(open(&there, &keys())).1.contains("not covey's"));
}

#[test]
fn what_is_open_for_reading_takes_nothing() {
    let made = fresh(&server().endpoint(), short());
    let id = put(&made, b"kept");
    let remote = Remote::open(made.spec(), &keys(), short(), Access::ReadOnly).unwrap();
    let sums = Sums::of(b"new");
    assert!(matches!(remote.put(&sums.id(), &sums, b"new"), Err(BlobError::Io(_))));
    assert!(matches!(remote.remove(&id), Err(BlobError::Io(_))));
    assert!(matches!(remote.put_record("x", b""), Err(BlobError::Io(_))));
    assert_eq!(remote.fetch(&id).unwrap().1.to_vec(), b"kept");
}

#[test]
fn an_origin_that_was_emptied_is_away_and_not_without_blobs() {
    let remote = fresh(&server().endpoint(), short());
    let id = put(&remote, b"kept");
    *remote.marker_seen.lock() = None;
    fs::remove_dir_all(server().folder().join(&remote.spec().prefix)).unwrap();
    for wrong in [remote.fetch(&id).map(drop), remote.size(&id).map(drop), remote.read_at(&id, 0, &mut [0])] {
        assert!(matches!(&wrong, Err(BlobError::Unavailable(what)) if what.contains("gone")), "{wrong:?}");
    }
}

#[test]
fn each_operation_costs_the_requests_that_it_must() {
    let server = Server::start();
    let remote = fresh(&server.endpoint(), unhedged());
    let bytes = noise(1 << 20, 9);
    let cost = |work: &dyn Fn()| {
        let before = server.counts();
        work();
        let after = server.counts();
        let fields = |c: &s3server::Counts| [c.get, c.put, c.head, c.delete, c.list];
        let (before, after) = (fields(&before), fields(&after));
        std::array::from_fn::<u64, 5, _>(|i| after[i] - before[i])
    };
    let id = Sums::of(&bytes).id();
    assert_eq!(cost(&|| assert_eq!(put(&remote, &bytes), id)), [0, 1, 0, 0, 0]);
    assert_eq!(cost(&|| drop(remote.fetch(&id).unwrap())), [1, 0, 0, 0, 0]);
    assert_eq!(
        cost(&|| drop(remote.fetch_part(&id, 300_000, 9).unwrap())),
        [2, 0, 0, 0, 0],
        "groups and sums"
    );
    assert_eq!(
        cost(&|| drop(remote.fetch_part(&id, 500_000, 9).unwrap())),
        [1, 0, 0, 0, 0],
        "the sums are known"
    );
    assert_eq!(cost(&|| assert!(remote.size(&id).unwrap().is_some())), [0, 0, 1, 0, 0]);
    let many: Vec<BlobId> = (0..30).map(|i| put(&remote, &noise(100, 50 + i))).collect();
    assert_eq!(cost(&|| remote.remove_many(&many, BootTime::NEVER).unwrap()), [0, 0, 0, 1, 0]);
    assert_eq!(cost(&|| remote.remove(&id).unwrap()), [0, 0, 0, 1, 0]);
    assert_eq!(cost(&|| remote.list(&mut |_, _| true).unwrap()), [0, 0, 0, 0, 1]);
    let stats = remote.stats();
    assert_eq!(
        (stats.requests(Kind::Put), stats.requests(Kind::Head), stats.requests(Kind::List)),
        (32, 1, 2)
    );
    assert_eq!((stats.retries, stats.errors, stats.in_flight), (0, 0, 0));
    assert!(stats.received_bytes > 1 << 20 && stats.sent_bytes > 1 << 20);
    assert!(stats.puts.quantile(0.99).unwrap() >= stats.puts.quantile(0.5).unwrap());
}

#[test]
fn long_listings_come_in_pages_and_go_on_after_a_fault() {
    let (proxy, remote, ..) = behind(8, Limits::default());
    // Written to the server's folder: 2,500 PUTs would take long.
    let folder = server().folder().join(&remote.spec().prefix).join("blobs");
    let mut all: Vec<BlobId> = Vec::new();
    for i in 0..2500u32 {
        let bytes = i.to_le_bytes();
        let sums = Sums::of(&bytes);
        let name = sums.id().to_string();
        fs::create_dir_all(folder.join(&name[..2])).unwrap();
        fs::write(folder.join(&name[..2]).join(&name), [&head_of(&sums), &bytes[..]].concat()).unwrap();
        all.push(sums.id());
    }
    proxy.add(Rule::new(Fault::Drop).chance(0.3).only(Method::GET));
    let mut seen = Vec::new();
    remote
        .list(&mut |id, size| {
            seen.push(id);
            size > 0
        })
        .unwrap();
    assert_eq!(seen.len(), 2501);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2501, "each blob should be listed once");
    assert!(all.iter().all(|id| seen.binary_search(id).is_ok()));
}

#[test]
fn a_record_is_ours_also_when_the_answer_was_lost() {
    let (proxy, remote, ..) = behind(9, Limits::default());
    proxy.add(Rule::new(Fault::Lose).only(Method::PUT).times(2));
    assert!(remote.create_record("root", b"mine").unwrap());
    assert!(!remote.create_record("root", b"mine").unwrap());
    // Another writer's record: lost answers do not make it ours.
    proxy.add(Rule::new(Fault::Lose).only(Method::PUT).times(1));
    assert!(!remote.create_record("root", b"yours").unwrap());
    assert_eq!(remote.record("root").unwrap().unwrap(), b"mine");
}

#[test]
fn a_store_without_conditions_is_looked_at_first() {
    let (proxy, remote, ..) = behind(10, Limits::default());
    let refuse = || Rule::new(Fault::Answer(Canned::NotImplemented)).only(Method::PUT).times(1);
    proxy.add(refuse());
    assert!(remote.create_record("root", b"one").unwrap());
    proxy.add(refuse());
    assert!(!remote.create_record("root", b"two").unwrap());
    assert_eq!(remote.record("root").unwrap().unwrap(), b"one");
    proxy.add(Rule::new(Fault::Answer(Canned::NotImplemented)).only(Method::POST));
    let ids: Vec<BlobId> = (0..20).map(|i| put(&remote, &noise(50, i))).collect();
    remote.remove_many(&ids, BootTime::NEVER).unwrap();
    assert_eq!(remote.size(&ids[3]).unwrap(), None);
}

/// A deletion was retried for a minute, while a restore waited three seconds for the earlier writer to end.
#[test]
fn regression_no_removal_is_tried_after_its_time() {
    let (proxy, remote, ..) = behind(21, Limits::default());
    let ids: Vec<BlobId> = (0..20).map(|i| put(&remote, &noise(50, i))).collect();
    proxy.add(Rule::new(Fault::SlowDown).only(Method::POST));
    proxy.add(Rule::new(Fault::SlowDown).only(Method::DELETE));
    let began = base::time::monotonic();
    for ids in [&ids[..], &ids[..1]] {
        let refused = remote.remove_many(ids, base::time::boot().plus(Duration::from_millis(700)));
        assert!(matches!(refused, Err(BlobError::Unavailable(_))), "{refused:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
    proxy.faults().clear();
    let before = remote.stats().requests(Kind::Delete);
    assert!(remote.remove_many(&ids, base::time::boot()).is_err());
    assert_eq!(remote.stats().requests(Kind::Delete), before, "nothing was sent");
    assert!(ids.iter().all(|id| remote.size(id).unwrap().is_some()));
    remote.remove_many(&ids, BootTime::NEVER).unwrap();
    assert_eq!(remote.size(&ids[0]).unwrap(), None);
}

/// The marker's object had expired: nothing could be mounted, and it could not be put back.
#[test]
fn regression_a_marker_that_expired_is_made_anew() {
    let there = spec(&server().endpoint());
    let remote = Remote::format(&there, &keys(), short(), "first").unwrap();
    let id = put(&remote, b"kept");
    let marker = server().folder().join(&there.prefix).join("covey-origin");
    std::fs::remove_file(marker).unwrap();
    assert!(remote.look().unwrap().unwrap().contains("covey origin mark"));
    assert_eq!(mistake(open(&there, &keys())).0, Mistake::NotAnOrigin);
    let unseen = |volume| Remote::open_unseen(&there, &keys(), short(), Access::ReadWrite, volume).unwrap();
    assert!(unseen("first").mark().unwrap());
    assert!(!unseen("first").mark().unwrap());
    assert_eq!(unseen("second").mark().map(drop).map_err(|error| mistake(Err(error)).0), Err(Mistake::Taken));
    assert_eq!((remote.look().unwrap(), remote.size(&id).unwrap()), (None, Some(4)));
    assert!(unseen("second").look().unwrap().unwrap().contains("another volume"));
}

#[test]
fn renewed_keys_are_taken_from_their_file() {
    let proxy = Proxy::start(server().address(), 11);
    let there =
        fresh(&server().endpoint(), short()).spec().clone().at(Some(&proxy.endpoint()), None).unwrap();
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".aws")).unwrap();
    let write = |token: &str| {
        let text = format!(
            "[default]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\naws_session_token={token}\n"
        );
        let file = home.path().join(".aws/credentials");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    write("of-a-token-1");
    let remote = open(&there, &Environment::of([("HOME", home.path().to_str().unwrap())])).unwrap();
    proxy.add(Rule::new(Fault::Answer(Canned::ExpiredToken)).times(1));
    let error = remote.record("x").unwrap_err().to_string();
    says_no_secret(&error);
    assert!(error.contains("the profile default in"), "{error}");
    // Reads are held back by now, and continue at once with other keys; also if a request finds that out.
    write("of-a-token-2");
    assert_eq!(remote.record("x").unwrap(), None);
    write("of-a-token-3");
    proxy.add(Rule::new(Fault::Answer(Canned::ExpiredToken)).times(1));
    assert_eq!(remote.record("x").unwrap(), None);
    says_no_secret(&format!("{remote:?} {:?} {:?}", remote.engine.keys, keys()));
}

/// A withdrawn key: one request finds out, and later reads send none until the next trial.
#[test]
fn a_refused_key_is_not_asked_for_again_at_once() {
    let (proxy, remote, id, bytes) = behind(61, short());
    proxy.add(Rule::new(Fault::Answer(Canned::UnknownKey)));
    let (before, begin) = (remote.stats().requests(Kind::Get), Instant::now());
    for _ in 0..50 {
        let error = remote.fetch(&id).unwrap_err();
        assert!(matches!(&error, BlobError::Refused(why) if why.contains("AWS_ACCESS_KEY_ID")), "{error}");
        says_no_secret(&error.to_string());
    }
    let asked = remote.stats().requests(Kind::Get) - before;
    // There is a trial after a second, and then after two.
    let most = 3 + 2 * begin.elapsed().as_secs();
    assert!(asked <= most.min(20), "{asked} requests for 50 reads");
    assert!(remote.stats().refusals >= 50, "each of them is counted: {}", remote.stats().refusals);
    let refused = remote.refusals();
    assert_eq!((refused.len(), refused[0].what(), refused[0].cause()), (1, "everything", "credentials"));
    assert!(refused[0].why.contains("does not know the access key"), "{refused:?}");
    // The store accepts the key again: the next trial finds that out.
    proxy.faults().clear();
    let begin = Instant::now();
    while remote.fetch(&id).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(120), "the store is still not asked again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(remote.fetch(&id).unwrap().1 == bytes && remote.refusals().is_empty());
}

#[test]
fn the_stores_clock_is_compared_with_ours() {
    let (proxy, remote, ..) = behind(62, short());
    let ahead = || Remote::clock_ahead(remote.spec(), &keys()).unwrap().unwrap();
    // The time that an answer takes counts too, so there are several attempts.
    let is_about = |right: i64| (0..10).any(|_| (right - 2..=right + 2).contains(&ahead()));
    assert!(is_about(0), "{}", ahead());
    proxy.add(Rule::new(Fault::Clock(3600)));
    assert!(is_about(-3600), "we are an hour behind: {}", ahead());
    // A wrong clock leads to refusals, and such an answer has the time as well.
    proxy.add(Rule::new(Fault::Answer(Canned::ClockSkew)));
    assert!(is_about(-3600), "{}", ahead());
    proxy.down();
    assert!(Remote::clock_ahead(remote.spec(), &keys()).is_err());
}

#[test]
fn the_first_part_of_a_blob_is_one_request() {
    let (_proxy, remote, id, bytes) = behind(15, unhedged());
    for (offset, gets) in [(0, 1), (70_000, 2), (250_000, 2)] {
        remote.recent.forget(&id);
        let before = remote.stats().requests(Kind::Get);
        let part = remote.fetch_part(&id, offset, 1000).unwrap();
        let from = (offset - part.offset) as usize;
        assert!(part.bytes[from..from + 1000] == bytes[offset as usize..offset as usize + 1000]);
        assert_eq!(remote.stats().requests(Kind::Get) - before, gets, "{offset}");
        remote.fetch_part(&id, offset, 1000).unwrap();
        assert_eq!(remote.stats().requests(Kind::Get) - before, gets + 1, "its sums are known");
    }
}

#[test]
fn an_origin_of_the_earlier_layout_is_named_as_such() {
    let remote = fresh(&server().endpoint(), short());
    let marker = server().folder().join(&remote.spec().prefix).join("covey-origin");
    fs::write(marker, "covey origin 1\nvolume v\n").unwrap();
    let (found, line) = mistake(open(remote.spec(), &keys()));
    assert!(found == Mistake::NotAnOrigin && line.contains("an earlier covey"), "{line}");
}

#[test]
fn a_second_get_overtakes_a_slow_first() {
    let (proxy, remote, id, _) = behind(12, Limits::default());
    for _ in 0..80 {
        remote.fetch_part(&id, 0, 100).unwrap();
    }
    // The first GET would be answered much later than the second on any machine.
    proxy.add(Rule::new(Fault::Wait(Duration::from_secs(30))).only(Method::GET).times(1));
    remote.fetch_part(&id, 0, 100).unwrap();
    let stats = remote.stats();
    assert!(stats.hedges >= 1 && stats.hedges_won >= 1, "{stats:?}");
    let without =
        Remote::open(remote.spec(), &keys(), Limits { hedge: false, ..Limits::default() }, Access::ReadOnly)
            .unwrap();
    (0..80).for_each(|_| drop(without.fetch_part(&id, 0, 100).unwrap()));
    assert_eq!(without.stats().hedges, 0);
}

#[test]
fn budgets_are_kept() {
    let made = fresh(&server().endpoint(), short());
    let id = put(&made, &noise(1 << 20, 13));
    let limits = Limits { max_requests: Some(40), ..Limits::default() };
    let remote = Remote::open(made.spec(), &keys(), limits, Access::ReadOnly).unwrap();
    let begin = Instant::now();
    (0..50).for_each(|_| assert!(remote.size(&id).unwrap().is_some()));
    assert!(begin.elapsed() > Duration::from_millis(900), "{:?}", begin.elapsed());
    at_some_scale(|scale| {
        let limits = Limits { max_bandwidth: Some((1 << 20) / u64::from(scale)), ..Limits::default() };
        let remote = Remote::open(made.spec(), &keys(), limits, Access::ReadOnly).unwrap();
        let begin = Instant::now();
        let small = std::thread::scope(|scope| {
            let large = scope.spawn(|| remote.fetch(&id).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            let small = Instant::now();
            remote.fetch_part(&id, 0, 100).unwrap();
            let took = small.elapsed();
            large.join().unwrap();
            took
        });
        assert!(begin.elapsed() > scale * Duration::from_millis(250), "{:?}", begin.elapsed());
        in_time(small, scale * Duration::from_millis(900), "a small read beside a large one")
    })
    .unwrap();
}

/// Google's XML requests are S3's except for signatures and conditions, so the same server answers them.
#[test]
fn googles_requests_reach_the_same_objects() {
    let server = Server::start_open();
    let spec =
        RemoteSpec::parse("gs://bucket/of/google").unwrap().at(Some(&server.endpoint()), None).unwrap();
    let keys = Environment::of([("GOOGLE_BEARER_TOKEN", "of-a-token")]);
    let remote = Remote::format(&spec, &keys, short(), "g").unwrap();
    let bytes = noise(500_000, 14);
    let id = put(&remote, &bytes);
    assert!(remote.fetch(&id).unwrap().1 == bytes);
    let mut buf = vec![0; 1000];
    remote.read_at(&id, 200_000, &mut buf).unwrap();
    assert!(buf == bytes[200_000..201_000]);
    let mut listed = Vec::new();
    remote
        .list(&mut |id, size| {
            listed.push((id, size));
            true
        })
        .unwrap();
    assert_eq!(listed, [(id, 500_000)]);
    remote.remove_many(&[id], BootTime::NEVER).unwrap();
    assert_eq!(remote.size(&id).unwrap(), None);
    assert_eq!(remote.describe(), "gs://bucket/of/google");
}

/// Azure removes one key by a request for many, and reports inside the answer that it did not exist.
#[test]
fn azure_keeps_blobs_and_records_too() {
    let server = Azure::start();
    let spec =
        RemoteSpec::parse("az://container/of/azure").unwrap().at(Some(&server.endpoint()), None).unwrap();
    let keys = Environment::of([
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "b2YtYS10b2tlbg=="),
    ]);
    let remote = Remote::format(&spec, &keys, short(), "z").unwrap();
    for size in [0, 1, 2000, 65_536, 65_537, 1_000_000] {
        let bytes = noise(size, 70 + size as u64);
        let id = put(&remote, &bytes);
        assert!(remote.fetch(&id).unwrap().1 == bytes);
        for _ in 0..2 {
            let mut buf = vec![0; size / 2];
            remote.read_at(&id, (size / 3) as u32, &mut buf).unwrap();
            assert!(buf == bytes[size / 3..size / 3 + size / 2], "{size}");
        }
        assert!(remote.fetch_part(&id, size as u32, 1).is_err());
        assert_eq!(remote.size(&id).unwrap(), Some(size as u64));
        remote.remove(&id).unwrap();
        remote.remove(&id).unwrap();
        assert!(matches!(remote.fetch(&id), Err(BlobError::Missing(_))));
    }
    assert!(remote.create_record("root", b"one").unwrap());
    assert!(!remote.create_record("root", b"two").unwrap());
    assert_eq!(remote.record("root").unwrap().unwrap(), b"one");
    assert_eq!(remote.records("").unwrap(), ["root"]);
    let ids: Vec<BlobId> = (0..20).map(|i| put(&remote, &noise(70, 80 + i))).collect();
    remote.remove_many(&ids, BootTime::NEVER).unwrap();
    remote.list(&mut |id, _| panic!("{id} is still there")).unwrap();
    assert_eq!(Remote::open(&spec, &keys, short(), Access::ReadOnly).unwrap().volume(), "z");
}

#[test]
fn other_clouds_say_what_they_lack() {
    let azure = RemoteSpec::parse("az://container/p").unwrap();
    let (found, line) = mistake(open(&azure, &Environment::of([("HOME", "/nonexistent")])));
    assert!(found == Mistake::NoKeys && line.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{line}");
    let with = Environment::of([
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "b2YtYS10b2tlbg=="),
        ("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1"),
    ]);
    let (found, line) = mistake(open(&azure, &with));
    assert!(found == Mistake::Endpoint && line.contains("127.0.0.1:1") && !line.contains("b2Yt"), "{line}");
}

#[test]
fn an_origin_is_used_from_any_thread() {
    let remote = fresh(&server().endpoint(), short());
    let id = put(&remote, b"x");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { assert_eq!(remote.fetch(&id).unwrap().1.to_vec(), b"x") });
    runtime.block_on(async move { drop(remote) });
}
