//! Commits on etcd under trouble: lost answers, late requests, members and leaders that are killed or hang,
//! large changes. Each is applied exactly once or not at all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engines::etcd::{Etcd, Options, Target};
use meta::engine::database::{Database, Join};
use meta::store::{CommitError, StoreError};
use meta::{Commit, Expect, Key, MetaStore};

use crate::support::{Dice, del, key, put, range, value};
use crate::volumes::EtcdVolumes;
use servers::{Cluster, Holding, Relay};

fn open(target: &Target) -> Etcd {
    Etcd::open(target, Options::default()).unwrap()
}

/// The volume at one address only.
fn through(port: u16, target: &Target) -> Target {
    Target { servers: vec![("127.0.0.1".to_owned(), port)], ..target.clone() }
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

/// Writes so many rows, and checks as many to be absent.
fn many(prefix: &str, rows: u32, text: &str) -> Commit {
    let keys: Vec<Key> = (0..rows).map(|n| key(format!("{prefix} {n:06}"))).collect();
    Commit {
        checks: keys.iter().map(|row| (row.clone(), Expect::Absent)).collect(),
        puts: keys.iter().map(|row| (row.clone(), value(text))).collect(),
        ..Commit::default()
    }
}

/// The server applied it and the answer was lost. The second attempt finds that out.
#[test]
fn a_commit_whose_answer_was_lost_is_applied_once() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let relay = Relay::new(cluster.port(0));
    let store = open(&through(relay.port(), &target));
    store.commit(add("n", 1)).unwrap();
    for n in 2..8 {
        relay.lose.store(1, Ordering::SeqCst);
        store.commit(add("n", 1)).unwrap();
        assert_eq!(relay.lose.load(Ordering::SeqCst), 0, "an answer was lost");
        assert_eq!(counter(&store, "n"), n);
    }
    // A conflict whose answer was lost is a conflict again.
    relay.lose.store(1, Ordering::SeqCst);
    assert!(is_conflict(store.commit(Commit { checks: vec![(key("n"), Expect::Absent)], ..add("n", 1) })));
    store.commit(add("n", 1)).unwrap();
    assert_eq!(counter(&store, "n"), 8);
    // Reads are repeated as well.
    relay.lose.store(1, Ordering::SeqCst);
    assert_eq!(counter(&store, "n"), 8);
    // A change that needs the lock consists of several requests. Any of them may be lost.
    for round in 0..8 {
        let large = many(&format!("large {round}"), 300, "x");
        relay.lose.store(1 + round / 4, Ordering::SeqCst);
        thread::scope(|scope| {
            let lose = &relay.lose;
            let later = scope.spawn(move || {
                thread::sleep(Duration::from_millis(2 * round));
                lose.store(1, Ordering::SeqCst);
            });
            store.commit(Commit { adds: vec![(key("large"), 1)], ..large }).unwrap();
            later.join().unwrap();
        });
        relay.lose.store(0, Ordering::SeqCst);
        assert_eq!(counter(&store, "large"), round as i64 + 1);
    }
}

/// A first attempt that arrives after the second one got its answer changes nothing.
#[test]
fn an_attempt_that_arrives_late_is_not_applied() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let relay = Holding::new(cluster.port(0));
    let (store, other) = (open(&through(relay.port(), &target)), open(&target));
    store.commit(add("n", 1)).unwrap();
    relay.hold(0, 1);
    store.commit(add("n", 1)).unwrap();
    assert_eq!(counter(&other, "n"), 2);
    // The second attempt meets a conflict. When the first one arrives, its check would hold.
    relay.hold(0, 1);
    let conflict = Commit { checks: vec![(key("c"), Expect::Exists)], ..add("n", 1) };
    assert!(is_conflict(store.commit(conflict)));
    other.commit(put("c", "")).unwrap();
    assert_eq!(relay.release(), 2, "both first attempts were held");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(counter(&other, "n"), 2);
    store.commit(add("n", 1)).unwrap();
    assert_eq!(counter(&other, "n"), 3);
}

/// Answers are lost at any moment, also those by which a commit that met a conflict is given up. The session
/// lasts, so no commit is refused.
#[test]
fn regression_a_lost_answer_does_not_end_a_session() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let relay = Relay::new(cluster.port(0));
    let options = Options { lanes: 1, patience: Duration::from_secs(30), ..Options::default() };
    let store = Etcd::open(&through(relay.port(), &target), options).unwrap();
    let ttl = Duration::from_secs(120);
    store
        .join(&Join { node: [1; 16], host: "h", address: "a", ttl, take_over: false, program: "1.2" })
        .unwrap();
    store.commit(add("n", 1)).unwrap();
    // Some answers of each commit, so that it ends within its patience.
    let (stop, left) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(42);
            while !stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_micros(2_000 + dice.below(8_000)));
                let take = |left: u64| left.checked_sub(1);
                if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                    relay.lose.store(1, Ordering::SeqCst);
                }
            }
        });
        let failed = (0..300).find_map(|_| {
            let absent = vec![(key("n"), Expect::Absent)];
            left.store(4, Ordering::SeqCst);
            match store.commit(Commit { checks: absent, ..add("n", 1) }) {
                Err(CommitError::Conflict { .. }) => None,
                other => Some(format!("{other:?}")),
            }
        });
        stop.store(true, Ordering::SeqCst);
        assert_eq!(failed, None);
    });
    relay.lose.store(0, Ordering::SeqCst);
    store.commit(add("n", 1)).unwrap();
    assert_eq!(counter(&store, "n"), 2);
}

/// The patience ended before it was known what became of a commit. It is not applied after the next one.
#[test]
fn a_commit_that_was_given_up_does_not_come_back() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let relay = Holding::new(cluster.port(0));
    let options = Options { lanes: 1, patience: Duration::from_secs(1), ..Options::default() };
    let (store, other) = (Etcd::open(&through(relay.port(), &target), options).unwrap(), open(&target));
    store.commit(put("a", "1")).unwrap();
    relay.hold(0, u64::MAX);
    let lost = store.commit(put("a", "lost")).unwrap_err();
    assert!(matches!(lost, CommitError::Store(StoreError::Unavailable(_))), "{lost:?}");
    relay.hold(0, 0);
    store.commit(put("a", "2")).unwrap();
    assert!(relay.release() > 0);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(other.get(&key("a")).unwrap(), Some(value("2")));
}

/// Commits that name the same rows in different orders, with every kind of check and change, and large ones
/// among them. Each success counts once.
#[test]
fn crossed_commits_all_end_and_count_once() {
    let Some(cluster) = Cluster::shared() else { return };
    let target = cluster.volume();
    let (first, second) = (open(&target), open(&target));
    let (done, large) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..6u64 {
            let (store, done, large) = (if thread % 2 == 0 { &first } else { &second }, &done, &large);
            scope.spawn(move || {
                let mut dice = Dice(0x1234_5678 + thread * 7919);
                for turn in 0..60 {
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
                    let is_large = turn % 20 == 7;
                    if is_large {
                        let more = many(&format!("large {thread} {turn}"), 200, "x");
                        commit.checks.extend(more.checks);
                        commit.puts.extend(more.puts);
                    }
                    if !is_conflict(store.commit(commit)) {
                        done.fetch_add(1, Ordering::SeqCst);
                        large.fetch_add(u64::from(is_large), Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let (done, large) = (done.load(Ordering::SeqCst), large.load(Ordering::SeqCst));
    assert!((50..360).contains(&done) && large > 0, "{done} of 360 were applied, {large} large ones");
    assert_eq!(counter(&first, "sum") as u64, done);
    assert_eq!(first.scan(&range("large", "largf"), usize::MAX).unwrap().len() as u64, large * 200);
}

/// A directory is removed only while it is empty, and nothing is created in a removed one.
#[test]
fn removing_a_directory_and_creating_in_it_exclude_each_other() {
    let Some(cluster) = Cluster::shared() else { return };
    let (store, stop) = (cluster.store(), AtomicBool::new(false));
    let (made, removed) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, stop, made) = (&store, &stop, &made);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let name = key(format!("dir/{thread} {n}"));
                    let create = Commit {
                        checks: vec![(name.clone(), Expect::Absent), (key("dir"), Expect::Exists)],
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
        for _ in 0..80 {
            let mkdir = Commit { checks: vec![(key("dir"), Expect::Absent)], ..put("dir", "d") };
            is_conflict(store.commit(mkdir));
            thread::sleep(Duration::from_millis(3));
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
    assert!(made.load(Ordering::SeqCst) > 20 && removed.load(Ordering::SeqCst) > 0, "{made:?} {removed:?}");
}

/// Members are killed one after the other, the leader too, while all of them are used.
#[test]
fn the_leader_may_be_killed_in_the_middle_of_commits() {
    let Some(cluster) = Cluster::start() else { return };
    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
    let store = Etcd::open(&cluster.volume(), options).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (store, stop, done) = (&store, &stop, &done);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let row = format!("row {thread} {n:06}");
                    let commit = Commit { checks: vec![(key(&row), Expect::Absent)], ..put(&row, "1") };
                    store.commit(Commit { adds: vec![(key("n"), 1)], ..commit }).unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..3 {
            let before = done.load(Ordering::SeqCst);
            let leader = cluster.leader();
            thread::sleep(Duration::from_millis(200));
            cluster.kill(leader);
            cluster.leader();
            let end = Instant::now() + Duration::from_secs(60);
            while done.load(Ordering::SeqCst) < before + 20 {
                assert!(Instant::now() < end, "nothing is committed with two members");
                thread::sleep(Duration::from_millis(20));
            }
            cluster.up(leader);
        }
        stop.store(true, Ordering::SeqCst);
    });
    let done = done.load(Ordering::SeqCst);
    assert_eq!(counter(&store, "n") as u64, done);
    assert_eq!(store.scan(&range("row", "rox"), usize::MAX).unwrap().len() as u64, done);
}

/// A member that hangs is left for another one. Without most members, the patience ends with a line.
#[test]
fn a_member_that_hangs_is_left_and_no_majority_is_an_error() {
    let Some(cluster) = Cluster::start() else { return };
    let options = Options { lanes: 1, patience: Duration::from_secs(20), ..Options::default() };
    let target = cluster.volume();
    let store = Etcd::open(&target, options).unwrap();
    store.commit(add("n", 1)).unwrap();
    let leader = cluster.leader();
    cluster.freeze(leader, true);
    store.commit(add("n", 1)).unwrap();
    assert_eq!(counter(&store, "n"), 2);
    cluster.freeze(leader, false);
    cluster.leader();
    let options = Options { lanes: 1, patience: Duration::from_secs(3), ..Options::default() };
    let brief = Etcd::open(&target, options).unwrap();
    brief.commit(add("n", 1)).unwrap();
    (0..2).for_each(|at| cluster.kill(at));
    let begun = Instant::now();
    let error = brief.get(&key("n")).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    (0..2).for_each(|at| cluster.up(at));
    cluster.leader();
    assert_eq!(counter(&store, "n"), 3);
}

#[test]
fn thousands_of_rows_are_one_commit_and_too_many_bytes_are_a_line() {
    let Some(cluster) = Cluster::shared() else { return };
    let store = cluster.store();
    // Few checks: one transaction. Many: under the lock.
    let rows: Vec<Key> = (0..4_000).map(|n: u32| key(format!("row {n:06}"))).collect();
    let puts = rows.iter().map(|row| (row.clone(), value([7; 80]))).collect();
    store.commit(Commit { puts, ..Commit::default() }).unwrap();
    let commit = Commit {
        checks: rows.iter().map(|row| (row.clone(), Expect::Is(value([7; 80])))).collect(),
        dels: rows[..2_000].to_vec(),
        adds: vec![(key("n"), 3)],
        maxs: vec![(key("m"), 9)],
        ..Commit::default()
    };
    store.commit(commit.clone()).unwrap();
    assert!(is_conflict(store.commit(commit)), "half of its rows are gone");
    assert_eq!((counter(&store, "n"), counter(&store, "m")), (3, 9));
    assert_eq!(store.scan(&range("row", "rox"), usize::MAX).unwrap().len(), 2_000);
    store.commit(Commit { dels: rows, ..Commit::default() }).unwrap();
    assert_eq!(store.scan(&range("row", "rox"), usize::MAX).unwrap(), []);
    store.commit(many("again", 12_000, "b")).unwrap();
    // Longer than one answer of a scan.
    assert_eq!(store.scan(&range("again", "agaio"), usize::MAX).unwrap().len(), 12_000);
    assert_eq!(store.scan(&range("again", "agaio"), 11_000).unwrap().len(), 11_000);
    for bytes in [2 << 20, 8 << 20] {
        let error = store.commit(put("big", vec![1; bytes])).unwrap_err();
        let is_told = |why: &str| why.contains("raise its --max-request-bytes");
        assert!(
            matches!(&error, CommitError::Store(StoreError::Unavailable(why)) if is_told(why)),
            "{error:?}"
        );
    }
    store.commit(put("big", "small")).unwrap();
}

/// A large change is cut off at each of its requests, and its store never comes back. The lock that it may
/// have taken goes away by itself, and the change is whole or not there, also when its requests arrive late.
#[test]
fn a_lock_that_was_left_behind_does_not_stay() {
    let Some(cluster) = Cluster::shared() else { return };
    let cut = |pass: u64| {
        let target = cluster.volume();
        let relay = Holding::new(cluster.port(pass as usize % 3));
        let options = Options { lanes: 1, patience: Duration::from_secs(1), ..Options::default() };
        let store = Etcd::open(&through(relay.port(), &target), options).unwrap();
        store.commit(add("n", 1)).unwrap();
        relay.hold(pass, u64::MAX);
        let is_done = store.commit(many("large", 150, "x")).is_ok();
        let options = Options { patience: Duration::from_secs(40), ..Options::default() };
        let other = Etcd::open(&target, options).unwrap();
        let begun = Instant::now();
        other.commit(add("n", 1)).unwrap();
        let waited = begun.elapsed();
        relay.release();
        thread::sleep(Duration::from_millis(500));
        let rows = other.scan(&range("large", "largf"), usize::MAX).unwrap().len();
        assert!(if is_done { rows == 150 } else { [0, 150].contains(&rows) }, "{rows} after {pass}");
        assert_eq!(counter(&other, "n"), 2);
        other.commit(many("more", 150, "x")).unwrap();
        waited
    };
    let waited: Vec<Duration> = thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|pass| scope.spawn(move || cut(pass))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let left = waited.iter().filter(|waited| **waited > Duration::from_secs(2)).count();
    assert!(left > 0, "no lock was left behind: {waited:?}");
}
