//! Commits on PostgreSQL under trouble: lost answers, deadlocks, restarts, many nodes at once. Each is
//! applied exactly once or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::{Ino, Timestamp};
use engines::postgres::{Options, Postgres, Target};
use meta::plan::op::Make;
use meta::plan::{Ctx, Op};
use meta::record::mode;
use meta::store::{CommitError, StoreError};
use meta::{Commit, Expect, Key, MetaStore, Names};

use crate::support::{Dice, del, key, put, range, value};
use crate::volumes::PostgresVolumes;
use servers::{Relay, Server};

fn open(target: &Target) -> Postgres {
    Postgres::open(target, Options::default()).unwrap()
}

/// A store whose commits may wait for a lock as long as a test likes.
fn patient(target: &Target) -> Postgres {
    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
    Postgres::open(target, options).unwrap()
}

fn add(name: &str, by: i64) -> Commit {
    Commit { adds: vec![(key(name), by)], ..Commit::default() }
}

fn counter(store: &dyn MetaStore, name: &str) -> i64 {
    store.get(&key(name)).unwrap().map_or(0, |row| i64::from_be_bytes((*row).try_into().unwrap()))
}

fn is_conflict(result: Result<(), CommitError>) -> bool {
    match result {
        Ok(()) => false,
        Err(CommitError::Conflict { .. }) => true,
        Err(CommitError::Store(error)) => panic!("{error}"),
    }
}

/// The server applied it and the answer was lost. The second attempt finds that out.
#[test]
fn a_commit_whose_answer_was_lost_is_applied_once() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let relay = Relay::new(server.port());
    let through = server.address("covey", relay.port(), "covey", &target.volume);
    let store = open(&through);
    store.commit(add("n", 1)).unwrap();
    for n in 2..6 {
        relay.lose.store(1, Ordering::SeqCst);
        store.commit(add("n", 1)).unwrap();
        assert_eq!(relay.lose.load(Ordering::SeqCst), 0, "an answer was lost");
        assert_eq!(counter(&store, "n"), n);
    }
    // A conflict whose answer was lost is a conflict again.
    relay.lose.store(1, Ordering::SeqCst);
    assert!(is_conflict(store.commit(Commit { checks: vec![(key("n"), Expect::Absent)], ..add("n", 1) })));
    store.commit(add("n", 1)).unwrap();
    assert_eq!(counter(&store, "n"), 6);
    // Reads are repeated as well.
    relay.lose.store(1, Ordering::SeqCst);
    assert_eq!(counter(&store, "n"), 6);
}

/// A first attempt that arrives after the second one got its answer changes nothing.
#[test]
fn an_attempt_that_arrives_late_is_not_applied() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let store = open(&target);
    let id = server.sql(&format!("select id from covey_volume where name = '{}'", target.volume));
    let call = |op: u32, attempt: u32, check: u32| {
        // Adds 1 to the row `n`; the row `c` must exist (1) or be absent (0).
        let (keys, new) = if check == 1 { ("{c,n}", "{}") } else { ("{n}", "{c}") };
        let (ends, modes) = if check == 1 { ("{1,2}", "{1,3}") } else { ("{1}", "{3}") };
        server.sql(&format!(
            "select state from covey_commit_2({id}, null, null, null, -5, 0, {op}, {attempt}, '{keys}', '{ends}', \
             '{modes}', '{{c}}', '{{{check}}}', '{{\"\"}}', '{{}}', '{{}}', '{new}', '{new}', '{new}', '{new}', \
             '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{n}}', '{{1}}', '{{}}', '{{}}', '{{n}}')"
        ))
    };
    store.commit(put("n", 0u64.to_be_bytes())).unwrap();
    assert_eq!(call(1, 1, 0), "0", "applied");
    assert_eq!(call(1, 2, 0), "3", "applied before");
    assert_eq!(counter(&store, "n"), 1);
    assert_eq!(call(2, 2, 1), "1", "the second attempt met a conflict");
    store.commit(put("c", "")).unwrap();
    assert_eq!(call(2, 1, 1), "4", "the first attempt arrives, and its check would hold now");
    assert_eq!(call(1, 1, 1), "3", "an older operation");
    assert_eq!(counter(&store, "n"), 1);
    assert_eq!(call(2, 3, 1), "0", "a third attempt may");
    assert_eq!(counter(&store, "n"), 2);
}

/// A statement in another connection that is kept open.
struct Other(tokio::runtime::Runtime, tokio_postgres::Client);

impl Other {
    fn new(server: &Server) -> Other {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let text = format!("host=127.0.0.1 port={} user=covey dbname=covey", server.port());
        let (client, running) =
            runtime.block_on(tokio_postgres::connect(&text, tokio_postgres::NoTls)).unwrap();
        runtime.spawn(running);
        Other(runtime, client)
    }

    fn run(&self, text: &str) {
        self.try_run(text).unwrap();
    }

    fn try_run(&self, text: &str) -> Result<(), tokio_postgres::Error> {
        self.0.block_on(self.1.batch_execute(text))
    }

    /// Waits until a process of the server waits for a lock that this connection has. `eyes` looks. Returns
    /// that process.
    fn waited_for(&self, eyes: &Other) -> Option<i32> {
        let row = self.0.block_on(self.1.query_one("select pg_backend_pid()", &[])).unwrap();
        let me: i32 = row.get(0);
        let query = format!("select pid from pg_stat_activity where {me} = any(pg_blocking_pids(pid))");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            if let Some(row) = eyes.0.block_on(eyes.1.query_opt(&query, &[])).unwrap() {
                return Some(row.get(0));
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

#[test]
fn a_commit_that_the_server_picks_against_a_deadlock_is_tried_again() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let store = patient(&target);
    store.commit(put("a", "1")).unwrap();
    store.commit(put("b", "1")).unwrap();
    let deadlocks = || -> u64 {
        server.sql("select pg_stat_force_next_flush(); select deadlocks from pg_stat_database where datname = 'covey'").trim().parse().unwrap()
    };
    let lock = |row: &str| {
        format!(
            "select 1 from covey_kv where k = '{row}' and volume = (select id from covey_volume where name = '{}') for update",
            target.volume
        )
    };
    let (other, eyes) = (Other::new(server), Other::new(server));
    // The server looks for a deadlock when a commit has waited for a second. On a busy machine there may be
    // none by then, and the other one is picked.
    let is_picked = || {
        other.run(&format!("begin; {}", lock("b")));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // It has `a` and waits for `b`.
                let puts = vec![(key("b"), value("2")), (key("a"), value("2"))];
                store.commit(Commit { puts, ..add("n", 1) }).unwrap();
            });
            other.waited_for(&eyes).expect("it waits");
            let is_picked = other.try_run(&lock("a")).is_ok();
            other.run(if is_picked { "commit" } else { "rollback" });
            waiting.join().unwrap();
            is_picked
        })
    };
    let before = (1..20).find_map(|done| {
        let before = deadlocks();
        let is_picked = is_picked();
        assert_eq!(counter(&store, "n"), done);
        is_picked.then_some(before)
    });
    let before = before.expect("it is picked");
    assert_eq!(store.get(&key("a")).unwrap(), Some(value("2")));
    let begun = Instant::now();
    while deadlocks() == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "the server noticed no deadlock");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Commits that name the same rows in different orders, with every kind of check and change. Each success
/// counts once.
#[test]
fn crossed_commits_all_end_and_count_once() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let (first, second) = (open(&target), open(&target));
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..8u64 {
            let (store, done) = (if thread % 2 == 0 { &first } else { &second }, &done);
            scope.spawn(move || {
                let mut dice = Dice(0x1234_5678 + thread * 7919);
                for _ in 0..150 {
                    let mut commit = add("sum", 1);
                    let mut rows: Vec<u64> = (0..5).collect();
                    for _ in 0..1 + dice.below(4) {
                        let row = rows.swap_remove(dice.below(rows.len() as u64) as usize);
                        let name = key(format!("row {row}"));
                        match dice.below(3) {
                            0 => commit.checks.push((name.clone(), Expect::Absent)),
                            1 => commit.checks.push((name.clone(), Expect::Exists)),
                            _ => {}
                        }
                        match dice.below(5) {
                            0 | 1 => commit.puts.push((name, value(dice.roll().to_be_bytes()))),
                            2 => commit.dels.push(name),
                            3 => commit.maxs.push((name, dice.roll())),
                            _ => {}
                        }
                    }
                    if !is_conflict(store.commit(commit)) {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let done = done.load(Ordering::SeqCst);
    assert!((100..1200).contains(&done), "{done} of 1200 were applied");
    assert_eq!(counter(&first, "sum") as u64, done);
}

/// One row moves between four places. It never is in two, and never gone.
#[test]
fn a_row_that_is_moved_is_in_one_place() {
    let Some(server) = Server::shared() else { return };
    let store = server.store();
    store.commit(put("place 0", "x")).unwrap();
    let moved = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..6u64 {
            let (store, moved) = (&store, &moved);
            scope.spawn(move || {
                let mut dice = Dice(99 + thread);
                for _ in 0..150 {
                    let from = dice.below(4);
                    let to = (from + 1 + dice.below(3)) % 4;
                    let (from, to) = (key(format!("place {from}")), key(format!("place {to}")));
                    let commit = Commit {
                        checks: vec![(to.clone(), Expect::Absent), (from.clone(), Expect::Is(value("x")))],
                        puts: vec![(to, value("x"))],
                        dels: vec![from],
                        ..Commit::default()
                    };
                    moved.fetch_add(u64::from(!is_conflict(store.commit(commit))), Ordering::SeqCst);
                    assert_eq!(store.scan(&range("place", "placf"), 9).unwrap().len(), 1);
                }
            });
        }
    });
    assert!(moved.load(Ordering::SeqCst) > 0, "{moved:?}");
}

/// A directory is removed only while it is empty, and nothing is created in a removed one.
#[test]
fn removing_a_directory_and_creating_in_it_exclude_each_other() {
    let Some(server) = Server::shared() else { return };
    let (store, stop) = (server.store(), AtomicBool::new(false));
    let (made, removed) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, stop, made) = (&store, &stop, &made);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let name = key(format!("dir/{thread} {n}"));
                    let exists = if n % 2 == 0 { Expect::Exists } else { Expect::Is(value("d")) };
                    let create = Commit {
                        checks: vec![(name.clone(), Expect::Absent), (key("dir"), exists)],
                        puts: vec![(name.clone(), value(""))],
                        ..Commit::default()
                    };
                    if !is_conflict(store.commit(create)) {
                        made.fetch_add(1, Ordering::SeqCst);
                        store.commit(Commit { dels: vec![name], ..Commit::default() }).unwrap();
                    }
                }
            });
        }
        for _ in 0..150 {
            let mkdir = Commit { checks: vec![(key("dir"), Expect::Absent)], ..put("dir", "d") };
            is_conflict(store.commit(mkdir));
            thread::sleep(Duration::from_millis(2));
            let rmdir = Commit {
                checks: vec![(key("dir"), Expect::Is(value("d")))],
                empty: vec![range("dir/", "dir0")],
                ..del("dir")
            };
            if !is_conflict(store.commit(rmdir)) {
                removed.fetch_add(1, Ordering::SeqCst);
                assert_eq!(store.scan(&range("dir", "dir0"), 9).unwrap(), []);
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(made.load(Ordering::SeqCst) > 50 && removed.load(Ordering::SeqCst) > 0, "{made:?} {removed:?}");
}

/// A commit that checks a row keeps it locked until it ends: a commit that removes the row waits, and one
/// that checks it does not.
#[test]
fn a_checked_row_is_kept_until_the_commit_ends() {
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let (store, eyes) = (patient(&target), Other::new(server));
    for (n, expect) in [Expect::Exists, Expect::Is(value("d"))].into_iter().enumerate() {
        store.commit(put("dir", "d")).unwrap();
        store.commit(put("zz", "")).unwrap();
        let other = Other::new(server);
        other.run(&format!(
            "begin; select 1 from covey_kv where k = 'zz' and volume = (select id from covey_volume where name = '{}') for update",
            target.volume
        ));
        let create = |name: String| Commit {
            checks: vec![(key(&name), Expect::Absent), (key("dir"), expect.clone())],
            ..put(name, "")
        };
        thread::scope(|scope| {
            // It has `dir` and waits for `zz`.
            let mut waits = create(format!("dir/a {n}"));
            waits.puts.push((key("zz"), value("new")));
            let waits = scope.spawn(|| is_conflict(store.commit(waits)));
            other.waited_for(&eyes).expect("it waits");
            assert!(!is_conflict(store.commit(create(format!("dir/b {n}")))), "it shares the row");
            store.commit(del(format!("dir/b {n}"))).unwrap();
            let remove = Commit { empty: vec![range("dir/", "dir0")], ..del("dir") };
            let removes = scope.spawn(|| is_conflict(store.commit(remove)));
            thread::sleep(Duration::from_millis(300));
            assert!(!removes.is_finished() && !waits.is_finished(), "{expect:?}");
            other.run("commit");
            assert!(!waits.join().unwrap(), "it created");
            assert!(removes.join().unwrap(), "the directory is not empty");
        });
        store.commit(del(format!("dir/a {n}"))).unwrap();
    }
}

/// Two nodes with eight threads each fill one directory.
#[test]
fn sixteen_threads_create_in_one_directory() {
    const EACH: u64 = 25;
    let Some(server) = Server::shared() else { return };
    let target = server.volume();
    let nodes = [Names::new(Arc::new(open(&target))), Names::new(Arc::new(open(&target)))];
    let ctx = Ctx { now: Timestamp(1000), uid: 3, gid: 4 };
    nodes[0].run(&Op::Format { rows: &[("format", vec![1])] }, &ctx).unwrap();
    thread::scope(|scope| {
        for thread in 0..16u64 {
            let (names, ctx) = (&nodes[thread as usize % 2], &ctx);
            scope.spawn(move || {
                for n in 0..EACH {
                    let kind = if n % 5 == 0 { mode::S_IFDIR } else { mode::S_IFREG };
                    let ino = Ino(100 + thread * EACH + n);
                    let make = Make { ino, mode: kind | 0o755, umask: 0o022, rdev: 0, target: b"" };
                    let name = format!("{thread} {n}");
                    names.run(&Op::Create { parent: Ino::ROOT, name: name.as_bytes(), make }, ctx).unwrap();
                }
            });
        }
    });
    let store = nodes[1].store();
    assert_eq!(store.scan(&Key::dentries(Ino::ROOT, 0), usize::MAX).unwrap().len() as u64, 16 * EACH);
    let number = |key: Key| i64::from_be_bytes((*store.get(&key).unwrap().unwrap()).try_into().unwrap());
    assert_eq!(number(Key::volume("inodes")) as u64, 16 * EACH + 1);
    assert_eq!(number(Key::subdirs(Ino::ROOT)) as u64, 16 * EACH / 5);
}

#[test]
fn a_server_may_crash_and_restart_in_the_middle_of_commits() {
    let Some(server) = Server::start() else { return };
    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
    let store = Postgres::open(&server.volume(), options).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    store.commit(add("n", 1)).unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let works = || {
            let (before, begun) = (done.load(Ordering::SeqCst), Instant::now());
            thread::sleep(Duration::from_millis(200));
            while done.load(Ordering::SeqCst) < before + 6 && begun.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(10));
            }
        };
        for _ in 0..3 {
            works();
            server.down();
            thread::sleep(Duration::from_millis(100));
            server.up();
        }
        works();
        stop.store(true, Ordering::SeqCst);
    });
    assert!(done.load(Ordering::SeqCst) > 20);
    assert_eq!(counter(&store, "n") as u64, done.load(Ordering::SeqCst));
}

/// The server's process was stopped, as on a machine that hangs. Its kernel still acknowledges.
#[test]
fn a_server_that_hangs_is_an_error_after_the_patience() {
    let Some(server) = Server::shared() else { return };
    base::trial::at_some_scale(|scale| hangs(server, scale * Duration::from_secs(1))).unwrap();
}

/// An error if the patience ended before the server was stopped, or after it went on, as on a busy machine.
fn hangs(server: &Server, patience: Duration) -> Result<(), String> {
    let late = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let target = server.volume();
    let options = Options { lanes: 1, patience, ..Options::default() };
    let store = Postgres::open(&target, options).map_err(|error| late(&error))?;
    store.commit(add("n", 1)).map_err(|error| late(&error))?;
    // The process is the one that waits for a row of this volume.
    let (other, eyes) = (Other::new(server), Other::new(server));
    other.run(&format!(
        "begin; select 1 from covey_kv where k = 'n' and volume = (select id from covey_volume where name = '{}') for update",
        target.volume
    ));
    let (pid, added) = thread::scope(|scope| {
        let waits = scope.spawn(|| store.commit(add("n", 1)));
        let pid = other.waited_for(&eyes);
        other.run("commit");
        (pid, waits.join().unwrap())
    });
    let pid = pid.ok_or("it did not wait")?.to_string();
    added.map_err(|error| late(&error))?;
    let signal = |signal: &str| {
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    let begun = Instant::now();
    let error = store.get(&key("n")).unwrap_err();
    let took = begun.elapsed();
    signal("-CONT");
    if !matches!(&error, StoreError::Unavailable(why) if why.contains("did not answer within")) {
        return Err(late(&error));
    }
    assert!(took < Duration::from_secs(60), "{took:?}");
    store.get(&key("n")).map_err(|error| late(&error))?;
    assert_eq!(counter(&open(&target), "n"), 2);
    Ok(())
}

#[test]
fn thousands_of_rows_are_one_commit() {
    let Some(server) = Server::shared() else { return };
    let store = server.store();
    let rows: Vec<Key> = (0..20_000).map(|n: u32| key(format!("row {n:06}"))).collect();
    let begun = Instant::now();
    let checks = rows.iter().map(|row| (row.clone(), Expect::Absent)).collect();
    let puts = rows.iter().map(|row| (row.clone(), value([7; 80]))).collect();
    store.commit(Commit { checks, puts, ..Commit::default() }).unwrap();
    // Every second row is only checked, so that each lock is a run of its own.
    let odd = |n: &usize| n % 2 == 1;
    let numbered = || rows.iter().take(4_000).enumerate();
    let commit = Commit {
        checks: numbered().map(|(_, row)| (row.clone(), Expect::Is(value([7; 80])))).collect(),
        puts: numbered().filter(|(n, _)| odd(n)).map(|(_, row)| (row.clone(), value("new"))).collect(),
        ..Commit::default()
    };
    store.commit(commit).unwrap();
    store.commit(Commit { dels: rows[..10_000].to_vec(), ..Commit::default() }).unwrap();
    let scanned = store.scan(&range("row", "rox"), usize::MAX).unwrap();
    assert_eq!(scanned.len(), 10_000);
    store
        .commit(Commit {
            puts: rows.iter().map(|row| (row.clone(), value("b"))).collect(),
            ..Commit::default()
        })
        .unwrap();
    // Longer than one answer of a scan.
    let scanned = store.scan(&range("row", "rox"), usize::MAX).unwrap();
    assert!(scanned.iter().zip(&rows).all(|((key, value), row)| key == row && **value == *b"b"));
    assert_eq!(scanned.len(), 20_000);
    assert_eq!(store.scan(&range("row", "rox"), 15_000).unwrap().len(), 15_000);
    assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", begun.elapsed());
}
