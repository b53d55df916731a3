//! Creating, opening, joining and checking a volume in PostgreSQL. Each mistake has one line that names it
//! and says what to do. No line holds the password.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use engines::postgres::{Checked, Join, Level, Options, Postgres, Secrets, Session, SetupError, Target};
use meta::store::{CommitError, StoreError};
use meta::{Commit, MetaStore};

use crate::support::{commit_until_fenced, key, put};
use crate::volumes::PostgresVolumes;
use servers::Server;

fn line(result: Result<Postgres, SetupError>) -> String {
    result.err().expect("it is refused").to_string()
}

fn with(secrets: Secrets) -> Options {
    Options { secrets, patience: Duration::from_secs(30), ..Options::default() }
}

fn node(id: u8) -> Join<'static> {
    let ttl = Duration::from_secs(60);
    Join { node: [id; 16], host: "machine-a", address: "10.0.0.1:7", ttl, take_over: false, program: "1.2" }
}

fn is_fenced<T: std::fmt::Debug>(result: Result<T, CommitError>) -> bool {
    match result {
        Err(CommitError::Store(StoreError::Fenced(why))) => why.contains("mount again"),
        _ => false,
    }
}

#[test]
fn a_volume_is_created_once_and_removed() {
    let Some(server) = Server::shared() else { return };
    let target = server.address("covey", server.port(), "covey", "twice");
    let options = Options::default();
    Postgres::create(&target, [1; 16], &options).unwrap();
    Postgres::create(&target, [1; 16], &options).unwrap();
    let error = Postgres::create(&target, [2; 16], &options).unwrap_err();
    assert!(
        matches!(&error, SetupError::Exists(why) if why.contains("has a volume twice already")),
        "{error}"
    );
    let store = Postgres::open(&target, options.clone()).unwrap();
    assert_eq!(store.uuid(), [1; 16]);
    store.commit(put("a", "1")).unwrap();
    store.join(&node(1)).unwrap();
    Postgres::remove(&target, &options).unwrap();
    let missing = Postgres::open(&target, options.clone());
    assert!(matches!(missing, Err(SetupError::Missing(_))));
    Postgres::create(&target, [3; 16], &options).unwrap();
    assert_eq!(Postgres::open(&target, options).unwrap().get(&key("a")).unwrap(), None);
}

#[test]
fn tables_are_created_by_many_nodes_at_once() {
    let Some(server) = Server::shared() else { return };
    server.sql_in("postgres", "create database fresh");
    thread::scope(|scope| {
        for n in 0..6u8 {
            scope.spawn(move || {
                let target = server.address("covey", server.port(), "fresh", &format!("v{}", n / 2));
                match Postgres::create(&target, [n; 16], &Options::default()) {
                    Ok(()) | Err(SetupError::Exists(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            });
        }
    });
    assert_eq!(server.sql_in("fresh", "select count(*) from covey_volume"), "3");
}

#[test]
fn each_mistake_has_its_line() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let (port, volume) = (server.port(), target.volume.as_str());
    let wrong = || with(Secrets::password("wrong-s3cret"));
    let closed = base::trial::stop(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).port();
    let at = |text: &str| Target::parse(text).unwrap();
    for (target, says) in [
        (server.address("locked", port, "covey", volume), "refuses the password of user locked"),
        (server.address("barred", port, "covey", volume), "does not admit user barred"),
        (server.address("stranger", port, "covey", volume), "does not admit user stranger"),
        (server.address("covey", port, "nowhere", volume), "there is no database nowhere"),
        (server.address("covey", port, "covey", "absent"), "has no volume absent; create it"),
        (server.address("covey", port, "postgres", volume), "has no volume"),
        (server.address("covey", closed, "covey", volume), "check that PostgreSQL runs there"),
        (at("postgres://u@no-such-host.invalid/d?volume=v"), "the host no-such-host.invalid has no address"),
        (at("postgres://u@%2Fnonexistent/d?volume=v"), "check that PostgreSQL runs there"),
        (at(&format!("postgres://covey@127.0.0.1:{port}/covey?volume=v&sslmode=require")), "has no TLS"),
        (
            at("postgres://u@h/d?volume=v&sslmode=verify-full&sslrootcert=%2Fnonexistent"),
            "sslrootcert=/nonexistent cannot be read",
        ),
    ] {
        let found = line(Postgres::open(&target, wrong()));
        assert!(found.contains(says) && !found.contains('\n'), "{target}: {found}");
        assert!(!found.contains("s3cret"), "{found}");
        let checked = Postgres::check(&target, &wrong());
        let is_there = checked.iter().any(|line| line.level == Level::Bad && line.line.contains(says));
        assert!(is_there, "{target}: {checked:?}");
        assert!(!format!("{checked:?}").contains("s3cret"));
    }
    let none = with(Secrets::file("/dev/null"));
    let found = line(Postgres::open(&server.address("locked", port, "covey", volume), none));
    assert!(found.contains("wants a password for user locked"), "{found}");
    server.sql_in("postgres", "create database poor_db");
    let poor = server.address("poor", port, "poor_db", "v");
    let found = Postgres::create(&poor, [0; 16], &Options::default()).unwrap_err().to_string();
    assert!(found.contains("user poor may not") && found.contains("grant"), "{found}");
}

#[test]
fn a_password_comes_from_a_file() {
    let Some(server) = Server::shared() else { return };
    let volume = server.volume();
    server.sql("grant select, insert, update, delete on all tables in schema public to locked");
    let target = server.address("locked", server.port(), "covey", &volume.volume);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pass");
    fs::write(&path, format!("127.0.0.1:{}:*:locked:right-s3cret\n", server.port())).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let store = Postgres::open(&target, with(Secrets::file(&path))).unwrap();
    store.commit(put("a", "1")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let found = line(Postgres::open(&target, with(Secrets::file(&path))));
    assert!(found.contains("has mode 0644"), "{found}");
    let direct = Postgres::open(&target, with(Secrets::password("right-s3cret"))).unwrap();
    assert!(direct.get(&key("a")).unwrap().is_some());
    assert!(!format!("{:?}", with(Secrets::password("right-s3cret"))).contains("s3cret"));
}

#[test]
fn tables_of_another_version_are_refused() {
    let Some(server) = Server::shared() else { return };
    server.sql_in("postgres", "create database later");
    let target = server.address("covey", server.port(), "later", "v");
    Postgres::create(&target, [1; 16], &Options::default()).unwrap();
    for (version, advice) in
        [(4, "use a newer covey"), (0, "restore it from a backup"), (2, "run: covey upgrade ")]
    {
        server.sql_in("later", &format!("update covey_schema set version = {version}"));
        let found = line(Postgres::open(&target, Options::default()));
        assert!(found.contains(&format!("tables of version {version}")) && found.contains(advice), "{found}");
        let found = Postgres::create(&target, [1; 16], &Options::default()).unwrap_err().to_string();
        assert!(found.contains(advice), "{found}");
        let checked = Postgres::check(&target, &Options::default());
        assert!(
            checked.iter().any(|line| line.level == Level::Bad && line.line.contains(advice)),
            "{checked:?}"
        );
    }
}

#[test]
fn a_standby_is_refused() {
    let Some(server) = Server::start() else { return };
    let store = server.store();
    let target = store.target().clone();
    server.down();
    server.make_standby();
    server.up();
    let found = line(Postgres::open(&target, Options::default()));
    assert!(found.contains("is a read-only standby; name the server that accepts writes"), "{found}");
    let checked = Postgres::check(&target, &Options::default());
    assert!(checked.iter().any(|line| line.what == "server" && line.level == Level::Bad), "{checked:?}");
}

/// It was called a standby, and `covey doctor` found nothing wrong with it.
#[test]
fn regression_a_server_that_refuses_changes_is_no_standby() {
    let Some(server) = Server::start() else { return };
    let target = server.store().target().clone();
    server.sql("alter system set default_transaction_read_only = on; select pg_reload_conf()");
    let is_so = || server.sql("show default_transaction_read_only") == "on";
    while !is_so() {
        thread::sleep(Duration::from_millis(20));
    }
    let found = line(Postgres::open(&target, Options::default()));
    assert!(found.contains("refuses changes; turn default_transaction_read_only off"), "{found}");
    let checked = Postgres::check(&target, &Options::default());
    let is_named = |line: &Checked| line.level == Level::Bad && line.line.contains("refuses changes");
    assert!(checked.iter().any(is_named), "{checked:?}");
}

#[test]
fn a_check_of_a_sound_volume_has_good_lines() {
    let Some(server) = Server::shared() else { return };
    let found = Postgres::check(&server.volume(), &Options::default());
    let mut what: Vec<&str> = found.iter().map(|line| line.what).collect();
    // The servers of the tests do not wait for their disks.
    let warned = |name: &str| found.iter().any(|line| line.line.contains(&format!("{name} = off")));
    assert!(warned("fsync") && warned("full_page_writes") && !warned("synchronous_commit"), "{found:?}");
    what.dedup();
    assert_eq!(
        what,
        ["connection", "server", "volume", "rights", "latency", "clock", "connections", "dead rows"]
    );
    assert!(found.iter().all(|Checked { level, .. }| *level != Level::Bad), "{found:?}");
}

#[test]
fn a_node_keeps_its_number_and_gets_new_epochs() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let open = || Postgres::open(&target, Options::default()).unwrap();
    let (first, other) = (open(), open());
    assert_eq!(first.session(), None);
    assert_eq!(first.join(&node(1)).unwrap(), Session { number: 1, epoch: 1 });
    assert_eq!(other.join(&node(2)).unwrap(), Session { number: 2, epoch: 1 });
    let found = open().join(&node(1)).unwrap_err().to_string();
    assert!(
        found.contains("\"machine-a\"") && found.contains("wait 60 s") && found.contains("twice"),
        "{found}"
    );
    let renewed = first.renew().unwrap();
    assert!(renewed.remaining > Duration::from_secs(30) && renewed.remaining <= Duration::from_secs(60));
    assert!((renewed.server_time.unwrap().seconds() - base::time::now().seconds()).abs() < 30);
    first.commit(put("a", "1")).unwrap();
    first.leave().unwrap();
    assert!(is_fenced(first.commit(put("a", "2"))));
    assert_eq!(open().join(&node(1)).unwrap(), Session { number: 1, epoch: 2 });
    let rows = other.sessions().unwrap();
    assert_eq!((rows.len(), rows[0].number, rows[0].epoch, rows[0].alive), (2, 1, 2, true));
    assert_eq!(
        (rows[1].host.as_str(), rows[1].address.as_str(), rows[1].node),
        ("machine-a", "10.0.0.1:7", [2; 16])
    );
    assert!(rows[1].expires_in_ms > 20_000);
    assert!(open().renew().unwrap_err().to_string().contains("join first"));
}

/// After another process took the place, no commit of the first one takes effect.
#[test]
fn a_session_that_was_taken_over_or_expired_is_fenced() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let open = || Postgres::open(&target, Options::default()).unwrap();
    let (old, new) = (open(), open());
    old.join(&node(1)).unwrap();
    old.commit(put("a", "old")).unwrap();
    let taken = new.join(&Join { take_over: true, ..node(1) }).unwrap();
    assert_eq!(taken, Session { number: 1, epoch: 2 });
    assert!(is_fenced(old.commit(put("a", "late"))));
    assert!(matches!(old.renew(), Err(StoreError::Fenced(_))));
    old.leave().unwrap();
    new.commit(put("a", "new")).unwrap();
    assert_eq!(old.get(&key("a")).unwrap().as_deref(), Some(&b"new"[..]));

    let brief = open();
    let (last, done) = commit_until_fenced(
        |ttl, take_over| brief.join(&Join { ttl, take_over, ..node(3) }).unwrap(),
        || is_fenced(brief.commit(Commit { adds: vec![(key("n"), 1)], ..Commit::default() })),
    );
    assert!(matches!(brief.renew(), Err(StoreError::Fenced(_))));
    let n = new.get(&key("n")).unwrap().unwrap();
    assert_eq!(i64::from_be_bytes((*n).try_into().unwrap()), done);
    assert!(!new.sessions().unwrap()[1].alive);
    // The same node may join at once.
    assert_eq!(open().join(&node(3)).unwrap().epoch, last.epoch + 1);
}

/// Joining nodes wait for commits of the earlier session that are under way, so none of these follows.
/// A process that is started again continues the session of the one that died, as long as nobody ended it.
#[test]
fn the_session_of_a_dead_process_is_continued() {
    let Some(server) = Server::shared() else { return };
    let volume = server.volume();
    let open = || Postgres::open(&volume, Options::default()).unwrap();
    let add = || Commit { adds: vec![(key("n"), 1)], ..Commit::default() };
    let number =
        |store: &Postgres| meta::record::decode_i64(store.get(&key("n")).unwrap().as_deref()).unwrap();
    let (ttl, other) = (Duration::from_secs(60), [9; 16]);
    let dead = open();
    let session = dead.join(&node(1)).unwrap();
    // What the server remembers of these must not be taken for the next process's.
    (0..40).for_each(|_| dead.commit(add()).unwrap());
    let next = open();
    let fenced = |store: &Postgres, session: Session| {
        matches!(store.resume(&node(1).node, session, ttl), Err(StoreError::Fenced(_)))
    };
    assert!(matches!(next.resume(&other, session, ttl), Err(StoreError::Fenced(_))));
    next.resume(&node(1).node, session, ttl).unwrap();
    assert_eq!(next.session(), Some(session));
    (0..5).for_each(|_| next.commit(add()).unwrap());
    next.renew().unwrap();
    // What the dead process sends after that.
    assert!(is_fenced(dead.commit(add())));
    assert_eq!(number(&next), 45);
    let joined = next.join(&Join { take_over: true, ..node(1) }).unwrap();
    assert_eq!(joined, Session { epoch: session.epoch + 1, ..session });
    next.commit(add()).unwrap();
    assert!(is_fenced(dead.commit(add())) && fenced(&open(), session));
    assert_eq!(number(&next), 46);

    // One that has expired, and was not ended.
    let brief = open();
    let session = brief.join(&Join { ttl: Duration::from_millis(1), take_over: true, ..node(1) }).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert!(is_fenced(brief.commit(add())));
    let seen = next.sessions().unwrap().remove(0);
    let again = open();
    again.resume(&node(1).node, session, ttl).unwrap();
    again.commit(add()).unwrap();
    assert!(!next.end(&seen).unwrap(), "it was renewed since");
    again.commit(add()).unwrap();
    let seen = next.sessions().unwrap().remove(0);
    assert!(next.end(&seen).unwrap());
    assert!(is_fenced(again.commit(add())) && fenced(&open(), session));
}

#[test]
fn taking_over_waits_for_commits_under_way() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let open = || Postgres::open(&target, Options::default()).unwrap();
    let old = open();
    old.join(&node(1)).unwrap();
    thread::scope(|scope| {
        let commits = scope.spawn(|| {
            let mut n = 0i64;
            while old.commit(Commit { adds: vec![(key("n"), 1)], ..Commit::default() }).is_ok() {
                n += 1;
            }
            n
        });
        let new = open();
        let begun = Instant::now();
        while new.get(&key("n")).unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is committed");
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(200));
        new.join(&Join { take_over: true, ..node(1) }).unwrap();
        let seen = new.get(&key("n")).unwrap().unwrap();
        let n = commits.join().unwrap();
        assert_eq!(i64::from_be_bytes((*seen).try_into().unwrap()), n, "nothing came after the join");
    });
}

#[test]
fn tls_is_used_as_the_address_says() {
    let Some(server) = Server::start() else { return };
    let store = server.store();
    let volume = store.target().volume.clone();
    let named = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let ca = server.use_tls(&named.cert.pem(), &named.signing_key.serialize_pem());
    let open = |host: &str, rest: &str| {
        let text = format!("postgres://covey@{host}:{}/covey?volume={volume}&{rest}", server.port());
        Postgres::open(&Target::parse(&text).unwrap(), Options::default())
    };
    let with_tls = || {
        server.sql("select count(*) from pg_stat_ssl s join pg_stat_activity a using(pid) where s.ssl and a.application_name = 'covey'")
    };
    for (rest, tls) in [
        ("sslmode=disable".to_owned(), "0"),
        ("sslmode=prefer".to_owned(), "1"),
        ("sslmode=require".to_owned(), "1"),
        (format!("sslmode=verify-full&sslrootcert={}", ca.display()), "1"),
    ] {
        let store = open("localhost", &rest).unwrap();
        store.commit(put("a", "1")).unwrap();
        // The process of a connection that was closed may live a little longer.
        let begun = Instant::now();
        while with_tls() != tls && begun.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(with_tls(), tls, "{rest}");
    }
    let wrong_name = open("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={}", ca.display()));
    assert!(line(wrong_name).contains("shows a certificate that is not accepted"));
    let found = line(open("localhost", "sslmode=verify-full"));
    assert!(found.contains("certificate"), "{found}");
}

/// Of several servers in an address, the one that accepts writes is used, wherever it stands.
#[test]
fn the_server_that_accepts_writes_is_used() {
    let (Some(primary), Some(standby)) = (Server::start(), Server::start()) else { return };
    let volume = primary.volume();
    standby.down();
    standby.make_standby();
    standby.up();
    let nobody = base::trial::stop(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).port();
    let at = |ports: &[u16]| {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let (hosts, name) = (hosts.join(","), &volume.volume);
        Target::parse(&format!("postgres://covey@{hosts}/covey?volume={name}&sslmode=disable")).unwrap()
    };
    let (first, second) = (primary.port(), standby.port());
    for ports in [&[first, second][..], &[second, first], &[nobody, second, first]] {
        let store = Postgres::open(&at(ports), Options::default()).unwrap();
        store.commit(put("a", "1")).unwrap();
        let checked = Postgres::check(&at(ports), &Options::default());
        let line = |text: &str| checked.iter().find(|checked| checked.line.contains(text));
        assert!(line("can take over").is_some() && line("accepts writes").is_some(), "{checked:?}");
        assert!(checked.iter().all(|checked| checked.level != Level::Bad), "{checked:?}");
    }
    let found = line(Postgres::open(&at(&[nobody, second]), Options::default()));
    assert!(found.contains("no server accepts writes") && found.contains("read-only standby"), "{found}");
    // A store moves to the server that accepts writes now, and uses no connection to the other one any more.
    let store = Postgres::open(&at(&[first, second]), Options::default()).unwrap();
    primary.down();
    let begun = std::time::Instant::now();
    let patience = Options::default().patience;
    assert!(store.get(&key("a")).is_err() && begun.elapsed() < patience * 2);
    standby.promote();
    let missing = line(Postgres::open(&at(&[first, second]), Options::default()));
    assert!(missing.contains("has no volume"), "the other server has other data: {missing}");
}

/// A volume in a database of its own, and a user that may use it and is no superuser.
fn apart(server: &Server, name: &str, more: &str) -> Target {
    server.sql_in("postgres", &format!("create database {name}; create role {name} login {more}"));
    let made = server.address("covey", server.port(), name, "v");
    Postgres::create(&made, [1; 16], &Options::default()).unwrap();
    server.sql_in(
        name,
        &format!("grant select, insert, update, delete on all tables in schema public to {name}"),
    );
    server.address(name, server.port(), name, "v")
}

/// The disk of the server was called that of this machine, and nothing said what to do.
#[test]
fn regression_a_full_disk_of_the_server_is_named_and_rows_can_be_read() {
    let Some(server) = Server::shared() else { return };
    let store = Postgres::open(&apart(server, "filled", ""), Options::default()).unwrap();
    store.commit(put("a", "1")).unwrap();
    server.script_in(
        "filled",
        "create function full_disk() returns trigger language plpgsql as \
         $$ begin raise exception 'could not extend file' using errcode = '53100'; end $$",
    );
    server.sql_in(
        "filled",
        "create trigger full_disk before insert on covey_kv for each row execute function full_disk()",
    );
    match store.commit(put("b", "2")).unwrap_err() {
        CommitError::Store(StoreError::NoSpace(why)) => {
            assert!(why.contains("the disk of the server 127.0.0.1") && why.contains("free some"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.get(&key("a")).unwrap().as_deref(), Some(&b"1"[..]));
    store.commit(Commit { dels: vec![key("a")], ..Commit::default() }).ok();
    server.sql_in("filled", "drop trigger full_disk on covey_kv");
    store.commit(put("b", "2")).unwrap();
}

/// Requests that got no connection failed, while those that the node had were idle.
#[test]
fn regression_a_server_without_free_connections_is_used_over_those_that_there_are() {
    let Some(server) = Server::shared() else { return };
    let target = apart(server, "crowded", "connection limit 2");
    let store = Postgres::open(&target, Options::default()).unwrap();
    thread::scope(|scope| {
        for n in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for turn in 0..20 {
                    store.commit(put(format!("{n} {turn}"), "1")).unwrap();
                    assert!(store.get(&key(format!("{n} {turn}"))).unwrap().is_some());
                }
            });
        }
    });
    let third = Postgres::open(&target, Options { patience: Duration::from_secs(1), ..Options::default() });
    let says = line(third);
    assert!(says.contains("-o lanes=N") && says.contains("max_connections"), "{says}");
}

#[test]
fn rights_that_are_missing_are_named() {
    let Some(server) = Server::shared() else { return };
    let target = apart(server, "narrow", "");
    let rights = || {
        let found = Postgres::check(&target, &Options::default());
        found.into_iter().find(|checked| checked.what == "rights").unwrap()
    };
    assert_eq!(rights().level, Level::Good);
    server.sql_in("narrow", "revoke delete on covey_kv from narrow");
    let missing = rights();
    assert_eq!(missing.level, Level::Bad);
    assert!(missing.line.contains("may not delete covey_kv;"), "{missing:?}");
}

/// What a time limit of the server ended was taken for a server that stops.
#[test]
fn regression_a_statement_that_the_server_ends_is_tried_again_and_named() {
    let Some(server) = Server::shared() else { return };
    let target = apart(server, "hasty", "");
    server.sql_in("hasty", "alter role hasty set statement_timeout = '1s'");
    let options = Options { patience: Duration::from_secs(4), ..Options::default() };
    let store = Postgres::open(&target, options).unwrap();
    store.commit(put("a", "1")).unwrap();
    server.script_in(
        "hasty",
        "create function slow() returns trigger language plpgsql as \
         $$ begin perform pg_sleep(60); return new; end $$",
    );
    server.sql_in(
        "hasty",
        "create trigger slow before insert on covey_kv for each row execute function slow()",
    );
    match store.commit(put("b", "2")).unwrap_err() {
        CommitError::Store(StoreError::Unavailable(why)) => {
            assert!(why.contains("statement_timeout"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    server.sql_in("hasty", "drop trigger slow on covey_kv");
    store.commit(put("b", "2")).unwrap();
}
