//! Creating, opening, joining and checking a volume in etcd. Each mistake has one line that names it and says
//! what to do. No line holds the password.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use engines::etcd::{Etcd, Options, Secrets, Target};
use meta::engine::database::{Database, Join, Level, Session, SetupError};
use meta::store::{CommitError, StoreError};
use meta::{Commit, MetaStore};

use crate::support::{commit_until_fenced, key, put, range};
use crate::volumes::EtcdVolumes;
use servers::Cluster;

fn line(result: Result<Etcd, SetupError>) -> String {
    result.err().expect("it is refused").to_string()
}

fn with(secrets: Secrets) -> Options {
    Options { secrets, patience: Duration::from_secs(5), ..Options::default() }
}

fn node(id: u8) -> Join<'static> {
    let ttl = Duration::from_secs(60);
    Join { node: [id; 16], host: "machine-a", address: "10.0.0.1:7", ttl, take_over: false, program: "1.2" }
}

fn is_fenced<T: std::fmt::Debug>(result: Result<T, CommitError>) -> bool {
    match result {
        Err(CommitError::Store(StoreError::Fenced(why))) => why.contains("mount again"),
        Ok(_) => false,
        Err(other) => panic!("{other:?}"),
    }
}

fn add() -> Commit {
    Commit { adds: vec![(key("n"), 1)], ..Commit::default() }
}

fn number(store: &Etcd) -> i64 {
    store.get(&key("n")).unwrap().map_or(0, |n| i64::from_be_bytes((*n).try_into().unwrap()))
}

#[test]
fn a_volume_is_created_once_and_removed() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.address("twice");
    let options = Options::default();
    Etcd::create(&target, [1; 16], &options).unwrap();
    Etcd::create(&target, [1; 16], &options).unwrap();
    let error = Etcd::create(&target, [2; 16], &options).unwrap_err();
    assert!(
        matches!(&error, SetupError::Exists(why) if why.contains("has a volume twice already")),
        "{error}"
    );
    let store = Etcd::open(&target, options.clone()).unwrap();
    let alone = Etcd::open(&target, options.clone()).unwrap();
    assert_eq!(store.uuid(), [1; 16]);
    for n in 0..120 {
        store.commit(Commit { ..put(format!("a {n}"), vec![7; 100]) }).unwrap();
    }
    store.join(&node(1)).unwrap();
    Etcd::remove(&target, &options).unwrap();
    assert!(matches!(Etcd::open(&target, options.clone()), Err(SetupError::Missing(_))));
    assert!(is_fenced(store.commit(put("a", "2"))));
    let gone = alone.commit(put("a", "2")).unwrap_err();
    assert!(format!("{gone:?}").contains("was removed from the cluster"), "{gone:?}");
    Etcd::create(&target, [3; 16], &options).unwrap();
    let again = Etcd::open(&target, options).unwrap();
    assert_eq!(again.scan(&range("a", "b"), 9).unwrap(), []);
    // The stores of the volume that was removed do not reach the one that has its name now.
    assert!(alone.join(&node(2)).unwrap_err().to_string().contains("was removed"));
}

#[test]
fn volumes_and_nodes_get_numbers_of_their_own_at_once() {
    let Some(cluster) = Cluster::shared() else { return };
    thread::scope(|scope| {
        for n in 0..6u8 {
            scope.spawn(move || {
                let target = cluster.address(&format!("at-once-{}", n / 2));
                match Etcd::create(&target, [n; 16], &Options::default()) {
                    Ok(()) | Err(SetupError::Exists(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            });
        }
    });
    let stores: Vec<Etcd> = (0..3)
        .map(|n| Etcd::open(&cluster.address(&format!("at-once-{n}")), Options::default()).unwrap())
        .collect();
    for (n, store) in stores.iter().enumerate() {
        store.commit(put("a", [n as u8])).unwrap();
    }
    for (n, store) in stores.iter().enumerate() {
        assert_eq!(store.get(&key("a")).unwrap().as_deref(), Some(&[n as u8][..]));
    }
    let target = cluster.volume();
    let mut numbers: Vec<i64> = thread::scope(|scope| {
        let join = |id: u8| {
            let store = Etcd::open(&target, Options::default()).unwrap();
            store.join(&node(id)).unwrap().number
        };
        let all: Vec<_> = (0..8).map(|id| scope.spawn(move || join(id))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    numbers.sort();
    assert_eq!(numbers, (1..9).collect::<Vec<i64>>());
}

#[test]
fn each_mistake_has_its_line() {
    let Some(cluster) = Cluster::shared() else { return };
    let hosts = cluster.hosts();
    let closed = base::trial::stop(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).port();
    let brief = Options { patience: Duration::from_secs(3), ..Options::default() };
    for (text, says) in [
        (format!("etcd://{hosts}/?volume=absent"), "has no volume absent under covey/; create it"),
        (format!("etcd://{hosts}/other?volume=absent"), "under other/"),
        (format!("etcd://127.0.0.1:{closed}/?volume=v"), "check that etcd runs there"),
        (
            format!("etcd://127.0.0.1:{closed},127.0.0.1:{closed}/?volume=v"),
            "no member of the cluster can be",
        ),
        ("etcd://no-such-host.invalid/?volume=v".to_owned(), "the host no-such-host.invalid has no address"),
        (format!("etcd://me@{hosts}/?volume=v"), "has no authentication turned on"),
        (format!("etcd://{hosts}/?volume=v&sslmode=verify-full&sslrootcert=%2Fnone"), "cannot be read"),
    ] {
        let target = Target::parse(&text).unwrap();
        let options = Options { secrets: Secrets::password("s3cret"), ..brief.clone() };
        let found = line(Etcd::open(&target, options.clone()));
        assert!(
            found.contains(says) && !found.contains('\n') && !found.contains("s3cret"),
            "{text}: {found}"
        );
        let checked = Etcd::check(&target, &options);
        let is_there = checked.iter().any(|line| line.level == Level::Bad && line.line.contains(says));
        assert!(is_there, "{text}: {checked:?}");
    }
}

#[test]
fn a_check_of_a_sound_volume_has_good_lines() {
    let Some(cluster) = Cluster::start() else { return };
    let target = cluster.volume();
    let found = Etcd::check(&target, &Options::default());
    let what: Vec<&str> = found.iter().map(|line| line.what).collect();
    let members = ["server", "space"].repeat(3);
    assert_eq!(what, [&members[..], &["volume", "changes", "latency", "old revisions"]].concat());
    assert!(found.iter().all(|line| line.level != Level::Bad), "{found:?}");
    cluster.kill(1);
    let found = Etcd::check(&target, &Options::default());
    assert!(found.iter().any(|line| line.level == Level::Warning && line.line.contains("does not serve")));
    assert!(found.iter().all(|line| line.level != Level::Bad), "{found:?}");
}

#[test]
fn a_node_keeps_its_number_and_gets_new_epochs() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let open = || Etcd::open(&target, Options::default()).unwrap();
    let (first, other) = (open(), open());
    assert_eq!(first.session(), None);
    assert_eq!(first.join(&node(1)).unwrap(), Session { number: 1, epoch: 1 });
    assert_eq!(other.join(&node(2)).unwrap(), Session { number: 2, epoch: 1 });
    let found = open().join(&node(1)).unwrap_err().to_string();
    assert!(found.contains("\"machine-a\"") && found.contains("wait ") && found.contains("twice"), "{found}");
    let renewed = first.renew().unwrap();
    assert!(renewed.remaining > Duration::from_secs(30) && renewed.remaining <= Duration::from_secs(60));
    first.commit(put("a", "1")).unwrap();
    first.leave().unwrap();
    first.leave().unwrap();
    assert!(is_fenced(first.commit(put("a", "2"))));
    assert_eq!(open().join(&node(1)).unwrap(), Session { number: 1, epoch: 2 });
    let rows = other.sessions().unwrap();
    assert_eq!((rows.len(), rows[0].number, rows[0].epoch, rows[0].alive), (2, 1, 2, true));
    assert_eq!(
        (rows[1].host.as_str(), rows[1].address.as_str(), rows[1].node),
        ("machine-a", "10.0.0.1:7", [2; 16])
    );
    assert!(rows[1].expires_in_ms > 20_000, "{rows:?}");
    assert!(open().renew().unwrap_err().to_string().contains("join first"));
}

/// After another process took the place, no commit of the first one takes effect.
#[test]
fn a_session_that_was_taken_over_or_expired_is_fenced() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let open = || Etcd::open(&target, Options::default()).unwrap();
    let (old, new) = (open(), open());
    old.join(&node(1)).unwrap();
    old.commit(put("a", "old")).unwrap();
    let taken = new.join(&Join { take_over: true, ..node(1) }).unwrap();
    assert_eq!(taken, Session { number: 1, epoch: 2 });
    assert!(is_fenced(old.commit(put("a", "late"))));
    // Also one that needs the lock.
    let rows = (0..200).map(|n| (key(format!("l {n}")), meta::Expect::Absent)).collect();
    assert!(is_fenced(old.commit(Commit { checks: rows, ..put("a", "large") })));
    assert!(matches!(old.renew(), Err(StoreError::Fenced(_))));
    old.leave().unwrap();
    new.commit(put("a", "new")).unwrap();
    new.renew().unwrap();
    assert_eq!(old.get(&key("a")).unwrap().as_deref(), Some(&b"new"[..]));

    let brief = open();
    let (last, done) = commit_until_fenced(
        |ttl, take_over| brief.join(&Join { ttl, take_over, ..node(3) }).unwrap(),
        || is_fenced(brief.commit(add())),
    );
    assert!(matches!(brief.renew(), Err(StoreError::Fenced(_))));
    assert_eq!(number(&new), done);
    let row = new.sessions().unwrap().remove(1);
    assert!(!row.alive && row.expires_in_ms < 0, "{row:?}");
    // The same node may join at once.
    assert_eq!(open().join(&node(3)).unwrap().epoch, last.epoch + 1);
    // A store that joins again commits again.
    brief.join(&Join { take_over: true, ..node(3) }).unwrap();
    brief.commit(add()).unwrap();
}

/// A session that is renewed lasts, also over a new leader. A killed member does not end it.
/// A process that is started again continues the session of the one that died, as long as it lasts.
#[test]
fn the_session_of_a_dead_process_is_continued() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let open = || Etcd::open(&target, Options::default()).unwrap();
    let (ttl, other) = (Duration::from_secs(60), [9; 16]);
    let dead = open();
    let session = dead.join(&node(1)).unwrap();
    (0..40).for_each(|_| dead.commit(add()).unwrap());
    let next = open();
    let fenced =
        |session: Session| matches!(open().resume(&node(1).node, session, ttl), Err(StoreError::Fenced(_)));
    assert!(matches!(next.resume(&other, session, ttl), Err(StoreError::Fenced(_))));
    next.resume(&node(1).node, session, ttl).unwrap();
    assert_eq!(next.session(), Some(session));
    (0..5).for_each(|_| next.commit(add()).unwrap());
    next.renew().unwrap();
    // A commit that was under way.
    dead.commit(add()).unwrap();
    assert_eq!(number(&next), 46);
    let joined = next.join(&Join { take_over: true, ..node(1) }).unwrap();
    assert_eq!(joined, Session { epoch: session.epoch + 1, ..session });
    next.commit(add()).unwrap();
    assert!(is_fenced(dead.commit(add())) && fenced(session));
    assert_eq!(number(&next), 47);
    next.leave().unwrap();
    assert!(fenced(joined));
}

#[test]
fn a_renewed_session_survives_the_leader() {
    let Some(cluster) = Cluster::start() else { return };
    let store = cluster.store();
    let ttl = Duration::from_secs(8);
    store.join(&Join { ttl, ..node(1) }).unwrap();
    for round in 0..3 {
        let leader = cluster.leader();
        cluster.kill(leader);
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            store.renew().unwrap();
            store.commit(add()).unwrap();
            thread::sleep(Duration::from_millis(100));
        }
        cluster.up(leader);
        assert!(store.sessions().unwrap()[0].alive, "round {round}");
    }
}

/// Nothing of the earlier session follows once the new one has joined.
#[test]
fn no_commit_of_an_earlier_session_follows_a_take_over() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let open = || Etcd::open(&target, Options::default()).unwrap();
    for _ in 0..3 {
        let old = open();
        old.join(&Join { take_over: true, ..node(1) }).unwrap();
        let before = number(&old);
        thread::scope(|scope| {
            let commits = scope.spawn(|| {
                let mut n = 0i64;
                while !is_fenced(old.commit(add())) {
                    n += 1;
                }
                n
            });
            thread::sleep(Duration::from_millis(200));
            let new = open();
            new.join(&Join { take_over: true, ..node(1) }).unwrap();
            let seen = number(&new);
            let n = commits.join().unwrap();
            assert_eq!(seen, before + n, "nothing came after the join");
        });
    }
}

#[test]
fn a_password_and_the_rights_of_a_user_are_needed_if_the_cluster_asks() {
    let Some(cluster) = Cluster::with(1, &["--auth-token", "simple", "--auth-token-ttl", "2"]) else {
        return;
    };
    let call = |path: &str, body: &str| {
        let answer = cluster.call(0, path, body).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    };
    let named = |user: &str, prefix: &str| {
        Target::parse(&format!("etcd://{user}@{}/{prefix}?volume=v", cluster.hosts())).unwrap()
    };
    for (user, role) in [("root", "root"), ("covey", "covey")] {
        call("auth/user/add", &format!(r#"{{"name":"{user}","password":"right-s3cret"}}"#));
        call("auth/role/add", &format!(r#"{{"name":"{role}"}}"#));
        call("auth/user/grant", &format!(r#"{{"user":"{user}","role":"{role}"}}"#));
    }
    // covey/ to covey0, in base64.
    call(
        "auth/role/grant",
        r#"{"name":"covey","perm":{"permType":"READWRITE","key":"Y292ZXkv","range_end":"Y292ZXkw"}}"#,
    );
    call("auth/enable", "{}");
    let right = || with(Secrets::password("right-s3cret"));
    let target = named("covey", "");
    Etcd::create(&target, [1; 16], &right()).unwrap();
    let store = Etcd::open(&target, right()).unwrap();
    store.join(&node(1)).unwrap();
    // Longer than a login lasts.
    for n in 0..8 {
        store.renew().unwrap();
        store.commit(add()).unwrap();
        assert_eq!(number(&store), n + 1);
        assert_eq!(store.sessions().unwrap().len(), 1);
        thread::sleep(Duration::from_millis(500));
    }
    let checked = Etcd::check(&target, &right());
    assert!(checked.iter().all(|line| line.level != Level::Bad), "{checked:?}");
    for (found, says) in [
        (
            line(Etcd::open(&target, with(Secrets::password("wrong-s3cret")))),
            "refuses the name or the password",
        ),
        (line(Etcd::open(&named("nobody", ""), right())), "refuses the name or the password"),
        (
            line(Etcd::open(&named("covey", "other"), right())),
            "grant-permission ROLE readwrite --prefix other/",
        ),
        (line(Etcd::open(&cluster.address("v"), right())), "asks for a user"),
        (line(Etcd::open(&target, with(Secrets::file("/no/such/file")))), "cannot be read"),
    ] {
        assert!(found.contains(says) && !found.contains("s3cret") && !found.contains('\n'), "{found}");
    }
}

#[test]
fn tls_is_used_as_the_address_says() {
    let named = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, private) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&cert, named.cert.pem()).unwrap();
    fs::write(&private, named.signing_key.serialize_pem()).unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let more = ["--cert-file", &text(&cert), "--key-file", &text(&private)];
    let Some(cluster) = Cluster::with_tls(&more) else { return };
    let at = |host: &str, rest: &str| {
        Target::parse(&format!("etcd://{host}:{}/?volume=v{rest}", cluster.port(0))).unwrap()
    };
    let root = format!("&sslmode=verify-full&sslrootcert={}", cert.display());
    let good = at("localhost", &root);
    let options = Options { patience: Duration::from_secs(5), ..Options::default() };
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = Etcd::create(&good, [1; 16], &options) {
        assert!(Instant::now() < end, "{error}");
        thread::sleep(Duration::from_millis(100));
    }
    let store = Etcd::open(&good, options.clone()).unwrap();
    store.join(&node(1)).unwrap();
    store.commit(add()).unwrap();
    for (target, says) in [
        (at("127.0.0.1", &root), "shows a certificate that is not accepted"),
        (at("localhost", "&sslmode=verify-full"), "shows a certificate that is not accepted"),
        (at("localhost", ""), "check that etcd runs there"),
    ] {
        let found = line(Etcd::open(&target, options.clone()));
        assert!(found.contains(says) && !found.contains('\n'), "{target}: {found}");
    }
    let Some(plain) = Cluster::shared() else { return };
    let text = format!("etcd://localhost:{}/?volume=v{root}", plain.port(0));
    let found = line(Etcd::open(&Target::parse(&text).unwrap(), options));
    assert!(found.contains("does not speak TLS"), "{found}");
}

/// A full database refuses changes and still answers. After it was made smaller it takes changes again.
#[test]
fn a_full_database_says_what_to_do() {
    let more = ["--quota-backend-bytes", "4194304"];
    let Some(cluster) = Cluster::with(1, &more) else { return };
    let target = cluster.volume();
    let store = Etcd::open(&target, Options::default()).unwrap();
    let full = (0..200).find_map(|n| store.commit(put("row", vec![n as u8; 100_000])).err()).unwrap();
    assert!(matches!(full, CommitError::Store(StoreError::NoSpace(_))), "{full:?}");
    assert!(store.get(&key("row")).unwrap().is_some());
    let checked = Etcd::check(&target, &Options::default());
    let is_told = checked.iter().any(|line| {
        line.level == Level::Bad && line.line.contains("etcdctl defrag") && line.line.contains("disarm")
    });
    assert!(is_told, "{checked:?}");
    let error = Etcd::create(&cluster.address("new"), [1; 16], &Options::default()).unwrap_err().to_string();
    assert!(error.contains("reached its quota") && error.contains("--quota-backend-bytes"), "{error}");
    cluster.make_space();
    store.commit(put("row", "1")).unwrap();
}

/// A snapshot whose revision was compacted is an error that says so, and never a part of the rows.
#[test]
fn a_snapshot_that_was_compacted_is_an_error() {
    let Some(cluster) = Cluster::with(1, &[]) else { return };
    let store = cluster.store();
    store.commit(put("a", "1")).unwrap();
    let snapshot = store.snapshot().unwrap();
    store.commit(put("a", "2")).unwrap();
    assert_eq!(snapshot.get(&key("a")).unwrap().as_deref(), Some(&b"1"[..]));
    let status = cluster.call(0, "kv/range", r#"{"key":"AA=="}"#).unwrap();
    let revision = status.split("\"revision\":\"").nth(1).unwrap().split('"').next().unwrap();
    cluster.call(0, "kv/compaction", &format!(r#"{{"revision":"{revision}"}}"#)).unwrap();
    let error = snapshot.get(&key("a")).unwrap_err().to_string();
    assert!(error.contains("compacted") && error.contains("--auto-compaction-retention"), "{error}");
    let each = snapshot.each(&range("", "z"), &mut |_, _| panic!("a row")).unwrap_err();
    assert!(matches!(each, StoreError::Unavailable(_)));
}
