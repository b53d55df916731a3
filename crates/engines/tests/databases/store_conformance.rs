//! The promises of every store, tested over all of them: memory, SQLite, the journal as a mount uses it, a
//! journal with bounds so small that it drains all the time, PostgreSQL, and etcd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meta::engine::{Memory, Sqlite};
use meta::journal::{Journal, Options};
use meta::store::CommitError;
use meta::{Commit, Expect, Key, MetaStore, Value};
use proptest::prelude::*;

use crate::support::{SimPacks, del, key, put, range, value};
use crate::volumes::{EtcdVolumes, PostgresVolumes};
use servers::{Cluster, Server};

fn tiny() -> Options {
    Options {
        commit_every: Duration::from_millis(3),
        overlay_rows: 16,
        overlay_bytes: 16 << 10,
        clean_bytes: 256 << 10,
        segment_bytes: 16 << 10,
        log_bytes: 64 << 10,
        reserve_bytes: (4096, 4096),
        ..Options::default()
    }
}

fn each_store(test: impl Fn(&str, &dyn MetaStore)) {
    test("memory", &Memory::new());
    let folder = tempfile::tempdir().unwrap();
    test("sqlite", &Sqlite::open(&folder.path().join("names.db")).unwrap());
    for (name, options) in [("journal", Options::default()), ("tiny journal", tiny())] {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(folder.path(), Arc::new(SimPacks::default()), options).unwrap();
        test(name, &journal);
        journal.close().unwrap();
    }
    if let Some(server) = Server::shared() {
        test("postgres", &server.store());
    }
    if let Some(cluster) = Cluster::shared() {
        test("etcd", &cluster.store());
    }
}

fn all(store: &dyn MetaStore) -> Vec<(Key, Value)> {
    store.scan(&range([], [0xFF; 300]), usize::MAX).unwrap()
}

type Failed = Vec<(Key, Option<Value>)>;

fn conflict(result: Result<(), CommitError>) -> (Failed, bool) {
    match result {
        Err(CommitError::Conflict { rows, not_empty }) => (rows, not_empty),
        other => panic!("no conflict: {other:?}"),
    }
}

#[test]
fn rows_can_be_written_and_removed() {
    each_store(|name, store| {
        assert_eq!(store.get(&key("a")).unwrap(), None, "{name}");
        store.commit(put("a", "1")).unwrap();
        store.commit(put("b", "2")).unwrap();
        store.commit(put("a", "3")).unwrap();
        assert_eq!(store.get(&key("a")).unwrap(), Some(value("3")), "{name}");
        store.commit(del("b")).unwrap();
        store.commit(del("never there")).unwrap();
        assert_eq!(store.get(&key("b")).unwrap(), None, "{name}");
        assert_eq!(all(store), [(key("a"), value("3"))], "{name}");
        store.flush().unwrap();
    });
}

/// Each commit writes a row and a row that says which was last. So both together show whether they are of one
/// moment.
#[test]
fn a_snapshot_is_one_moment_while_commits_go_on() {
    fn numbered(n: usize) -> Commit {
        let mut commit = put(format!("row {n:06}"), format!("{n}"));
        commit.puts.push((key("last"), value(format!("{n}"))));
        commit
    }
    fn seen(snapshot: &dyn meta::Snapshot) -> (usize, Option<usize>) {
        let mut rows = 0;
        let each = &mut |_: &[u8], _: &[u8]| {
            rows += 1;
            true
        };
        snapshot.each(&range(*b"row ", *b"row~"), each).unwrap();
        let last = snapshot.get(&key("last")).unwrap();
        (rows, last.map(|last| std::str::from_utf8(&last).unwrap().parse().unwrap()))
    }
    each_store(|name, store| {
        assert_eq!(seen(&*store.snapshot().unwrap()), (0, None), "{name}");
        let (stop, done) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    store.commit(numbered(n)).unwrap();
                    done.store(n + 1, Ordering::SeqCst);
                }
            });
            let mut kept = Vec::new();
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(5));
                let before = done.load(Ordering::SeqCst);
                let snapshot = store.snapshot().unwrap();
                let (rows, last) = seen(&*snapshot);
                assert!(rows >= before, "{name}: earlier commits are in it");
                assert_eq!(last.map_or(0, |last| last + 1), rows, "{name}: of one moment");
                kept.push((snapshot, rows));
            }
            for (snapshot, rows) in kept {
                assert_eq!(seen(&*snapshot).0, rows, "{name}: it does not change");
            }
            stop.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn checks_hold_or_give_the_fresh_values() {
    each_store(|name, store| {
        store.commit(put("a", "1")).unwrap();
        let checked = |checks: Vec<(Key, Expect)>| Commit { checks, ..put("out", "x") };
        let good =
            vec![(key("a"), Expect::Is(value("1"))), (key("a"), Expect::Exists), (key("b"), Expect::Absent)];
        store.commit(checked(good)).unwrap();
        store.commit(del("out")).unwrap();
        let bad = vec![
            (key("a"), Expect::Is(value("2"))),
            (key("a"), Expect::Exists),
            (key("b"), Expect::Exists),
            (key("a"), Expect::Absent),
            (key("b"), Expect::Is(value(""))),
        ];
        let (rows, not_empty) = conflict(store.commit(checked(bad)));
        let a = || (key("a"), Some(value("1")));
        let b = || (key("b"), None);
        assert_eq!(rows, [a(), b(), a(), b()], "{name}");
        assert!(!not_empty, "{name}");
        assert_eq!(store.get(&key("out")).unwrap(), None, "{name}: a commit that conflicts changes nothing");
    });
}

#[test]
fn ranges_must_be_empty() {
    each_store(|name, store| {
        store.commit(put("dir/a", "1")).unwrap();
        let rmdir = || Commit { empty: vec![range("dir/", "dir0")], ..del("dir") };
        store.commit(put("dir", "")).unwrap();
        let (rows, not_empty) = conflict(store.commit(rmdir()));
        assert!(rows.is_empty() && not_empty, "{name}");
        store.commit(del("dir/a")).unwrap();
        store.commit(rmdir()).unwrap();
        assert_eq!(all(store), [], "{name}");
        let upside_down = Commit { empty: vec![range("z", "a")], ..put("a", "") };
        store.commit(upside_down).unwrap();
    });
}

#[test]
fn counters_add_and_vanish_at_zero() {
    each_store(|name, store| {
        let add = |by: i64| Commit { adds: vec![(key("n"), by)], ..Commit::default() };
        store.commit(add(5)).unwrap();
        store.commit(add(-7)).unwrap();
        assert_eq!(store.get(&key("n")).unwrap(), Some(value((-2i64).to_be_bytes())), "{name}");
        store.commit(add(2)).unwrap();
        assert_eq!(store.get(&key("n")).unwrap(), None, "{name}");
        store.commit(add(0)).unwrap();
        assert_eq!(all(store), [], "{name}");
        store.commit(put("n", "not a counter")).unwrap();
        let error = store.commit(add(1)).unwrap_err();
        assert!(
            matches!(error, CommitError::Store(meta::store::StoreError::Damaged(_))),
            "{name}: {error:?}"
        );
        store.commit(put("n", i64::MAX.to_be_bytes())).unwrap();
        store.commit(add(1)).unwrap_err();
        assert_eq!(store.get(&key("n")).unwrap(), Some(value(i64::MAX.to_be_bytes())), "{name}");
    });
}

#[test]
fn maxima_only_rise() {
    each_store(|name, store| {
        let raise = |to: u64| Commit { maxs: vec![(key("t"), to)], ..Commit::default() };
        store.commit(raise(0)).unwrap();
        assert_eq!(store.get(&key("t")).unwrap(), None, "{name}: absent counts as 0");
        for (to, is) in [(7, 7), (3, 7), (u64::MAX, u64::MAX), (8, u64::MAX)] {
            store.commit(raise(to)).unwrap();
            assert_eq!(store.get(&key("t")).unwrap(), Some(value(u64::to_be_bytes(is))), "{name}");
        }
    });
}

#[test]
fn a_look_is_rows_and_ranges() {
    each_store(|name, store| {
        for k in ["a1", "a2", "a3", "b1", "c1"] {
            store.commit(put(k, k)).unwrap();
        }
        let ranges = [range("b", "c"), range("a", "b"), range("x", "y"), range("a2", "c2")];
        let keys = [key("c1"), key("none"), key("a1")];
        let looked = store.look(&keys, &ranges, 2).unwrap();
        assert_eq!(looked.rows, store.get_many(&keys).unwrap(), "{name}");
        let scans: Vec<_> = ranges.iter().map(|range| store.scan(range, 2).unwrap()).collect();
        assert_eq!(looked.ranges, scans, "{name}");
        assert_eq!(store.look(&[], &[], 9).unwrap(), Default::default(), "{name}");
    });
}

#[test]
fn scans_are_ordered_and_limited() {
    each_store(|name, store| {
        for n in (0..100u8).rev() {
            store.commit(put([n], [n])).unwrap();
        }
        for n in (0..100u8).step_by(3) {
            store.commit(del([n])).unwrap();
        }
        let left: Vec<u8> = (0..100).filter(|n| n % 3 != 0).collect();
        let keys = |from: u8, to: u8, limit| -> Vec<u8> {
            store
                .scan(&range([from], [to]), limit)
                .unwrap()
                .iter()
                .map(|(key, _)| key.as_bytes()[0])
                .collect()
        };
        assert_eq!(keys(0, 255, usize::MAX), left, "{name}");
        for limit in [0, 1, 2, 7, 66, 67] {
            assert_eq!(keys(0, 255, limit), left[..limit.min(left.len())], "{name} {limit}");
        }
        assert_eq!(keys(10, 20, 100), [10, 11, 13, 14, 16, 17, 19], "{name}");
        assert_eq!(keys(20, 20, 100), Vec::<u8>::new(), "{name}");
        assert_eq!(keys(30, 20, 100), Vec::<u8>::new(), "{name}");
        let keys = [key([1]), key([0]), key([2]), key([1])];
        let rows = [Some(value([1])), None, Some(value([2])), Some(value([1]))];
        assert_eq!(store.get_many(&keys).unwrap(), rows, "{name}");
        assert_eq!(store.get_many(&[]).unwrap(), [], "{name}");
    });
}

#[test]
fn keys_and_values_are_any_bytes() {
    each_store(|name, store| {
        let keys: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"\0\xff", b"a", &[0xFF; 280], b"\xff\xff"];
        for (n, bytes) in keys.iter().enumerate() {
            store.commit(put(bytes, vec![n as u8; n * n])).unwrap();
        }
        for (n, bytes) in keys.iter().enumerate() {
            assert_eq!(store.get(&key(bytes)).unwrap(), Some(value(vec![n as u8; n * n])), "{name}");
        }
        let mut sorted = keys.to_vec();
        sorted.sort();
        let there: Vec<Key> = all(store).into_iter().map(|(key, _)| key).collect();
        assert_eq!(there, sorted.iter().map(key).collect::<Vec<_>>(), "{name}");
        store.commit(put(vec![0; 65_536], "")).unwrap_err();
        assert_eq!(all(store).len(), 7, "{name}");
    });
}

#[test]
fn values_may_be_large() {
    each_store(|name, store| {
        let largest = if name == "etcd" { 1 << 20 } else { 3 << 20 };
        for len in [0, 1, 4096, 100_000, largest] {
            let big: Vec<u8> = (0..len).map(|n: usize| (n * 31) as u8).collect();
            store.commit(put("big", &big)).unwrap();
            assert_eq!(store.get(&key("big")).unwrap(), Some(value(&big)), "{name} {len}");
        }
        store.commit(del("big")).unwrap();
        store.flush().unwrap();
        assert_eq!(all(store), [], "{name}");
    });
}

/// Two rows are always changed together. A reader of both must see them equal, by whatever call.
#[test]
fn reads_are_of_one_moment() {
    each_store(|name, store| {
        let rows = ["k/a", "k/m", "k/z"];
        let set = |n: u64| Commit {
            puts: rows.iter().map(|row| (key(row), value(n.to_be_bytes()))).collect(),
            ..Commit::default()
        };
        store.commit(set(0)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..if ["postgres", "etcd"].contains(&name) { 300 } else { 1500u64 } {
                    store.commit(set(n)).unwrap();
                    // Other rows as well, so that small overlays rotate.
                    store.commit(put(format!("other {}", n % 50), n.to_be_bytes())).unwrap();
                }
                stop.store(true, Ordering::Release);
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !stop.load(Ordering::Acquire) {
                        let many = store.get_many(&rows.map(key)).unwrap();
                        assert!(many.windows(2).all(|two| two[0] == two[1]), "{name}: {many:?}");
                        let scanned = store.scan(&range("k/", "k0"), 10).unwrap();
                        assert_eq!(scanned.len(), 3, "{name}");
                        assert!(scanned.windows(2).all(|two| two[0].1 == two[1].1), "{name}: {scanned:?}");
                        let now = u64::from_be_bytes((*scanned[0].1).try_into().unwrap());
                        assert!(now >= last, "{name}: {now} after {last}");
                        last = now;
                        let one = store.get(&key("k/m")).unwrap().unwrap();
                        assert!(u64::from_be_bytes((*one).try_into().unwrap()) >= last, "{name}");
                    }
                });
            }
        });
    });
}

/// Four threads increment one number by conditional commits; each success counts once.
#[test]
fn concurrent_commits_do_not_lose_one_another() {
    each_store(|name, store| {
        store.commit(put("n", 0u64.to_be_bytes())).unwrap();
        // SQLite alone syncs every commit, and commits on PostgreSQL or etcd are round trips.
        let each: u64 = if ["sqlite", "postgres", "etcd"].contains(&name) { 200 } else { 4000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut seen = store.get(&key("n")).unwrap().unwrap();
                    for _ in 0..each {
                        loop {
                            let n = u64::from_be_bytes((*seen).try_into().unwrap());
                            let next: Value = value((n + 1).to_be_bytes());
                            let commit = Commit {
                                checks: vec![(key("n"), Expect::Is(seen.clone()))],
                                puts: vec![(key("n"), next.clone())],
                                adds: vec![(key("sum"), 1)],
                                ..Commit::default()
                            };
                            match store.commit(commit) {
                                Ok(()) => {
                                    seen = next;
                                    break;
                                }
                                Err(CommitError::Conflict { rows, .. }) => {
                                    seen = rows[0].1.clone().unwrap();
                                }
                                Err(other) => panic!("{other:?}"),
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(store.get(&key("n")).unwrap(), Some(value((4 * each).to_be_bytes())), "{name}");
        assert_eq!(store.get(&key("sum")).unwrap(), Some(value((4 * each).to_be_bytes())), "{name}");
    });
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Commit),
    Scan(u8, u8, usize),
    Flush,
    Drain,
    Close,
    Kill,
}

fn row_key() -> impl Strategy<Value = u8> {
    0..24u8
}

fn commit() -> impl Strategy<Value = Commit> {
    let expect = prop_oneof![
        Just(Expect::Absent),
        Just(Expect::Exists),
        (0..4u8).prop_map(|n| Expect::Is(value([n; 8]))),
    ];
    let check = (row_key(), expect).prop_map(|(k, expect)| (key([k]), expect));
    let checks = prop::collection::vec(check, 0..2);
    let empty = prop::collection::vec((row_key(), row_key()).prop_map(|(a, b)| range([a], [b])), 0..2);
    let change = (row_key(), 0..8u8, 0..4u8);
    (checks, empty, prop::collection::vec(change, 0..6)).prop_map(|(checks, empty, changes)| {
        let mut commit = Commit { checks, empty, ..Commit::default() };
        let changes: BTreeMap<u8, (u8, u8)> =
            changes.into_iter().map(|(k, what, n)| (k, (what, n))).collect();
        for (k, (what, n)) in changes {
            match what {
                0..=2 => commit.puts.push((key([k]), value([n; 8]))),
                3 | 4 => commit.dels.push(key([k])),
                5 | 6 => commit.adds.push((key([k]), i64::from(n) - 2)),
                _ => commit.maxs.push((key([k]), u64::from(n) << 56)),
            }
        }
        commit
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => commit().prop_map(Step::Commit),
        4 => (row_key(), row_key(), 0..30usize).prop_map(|(a, b, limit)| Step::Scan(a, b, limit)),
        2 => Just(Step::Flush),
        2 => Just(Step::Drain),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
    ]
}

fn outcome(result: Result<(), CommitError>) -> Result<(), (Failed, bool)> {
    match result {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict { rows, not_empty }) => Err((rows, not_empty)),
        Err(CommitError::Store(error)) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same commits give the same results and the same rows on every store, and on a journal that is
    /// closed or killed in between.
    #[test]
    fn all_stores_agree(steps in prop::collection::vec(step(), 1..60), small in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::new();
        let sqlite = Sqlite::open(&folder.path().join("alone.db")).unwrap();
        let packs = Arc::new(SimPacks::default());
        let options = if small { tiny() } else { Options { background: false, ..tiny() } };
        let open = || Journal::open(folder.path(), packs.clone(), options.clone()).unwrap();
        let (mut journal, _) = open();
        for step in steps {
            match step {
                Step::Commit(commit) => {
                    let expected = outcome(memory.commit(commit.clone()));
                    prop_assert_eq!(&outcome(sqlite.commit(commit.clone())), &expected);
                    prop_assert_eq!(&outcome(journal.commit(commit)), &expected);
                }
                Step::Scan(from, to, limit) => {
                    let range = range([from], [to]);
                    let expected = memory.scan(&range, limit).unwrap();
                    prop_assert_eq!(&sqlite.scan(&range, limit).unwrap(), &expected);
                    prop_assert_eq!(&journal.scan(&range, limit).unwrap(), &expected);
                }
                Step::Flush => journal.flush().unwrap(),
                Step::Drain => journal.drain().unwrap(),
                Step::Close => {
                    journal.close().unwrap();
                    drop(journal);
                    let (again, recovered) = open();
                    journal = again;
                    prop_assert_eq!(recovered.replayed, 0);
                }
                Step::Kill => {
                    drop(journal);
                    let (again, recovered) = open();
                    journal = again;
                    prop_assert_eq!(recovered.cut, 0);
                    prop_assert_eq!(recovered.reason, None);
                }
            }
            prop_assert_eq!(&all(&journal), &all(&memory));
            let keys: Vec<Key> = (0..24).map(|k: u8| key([k])).collect();
            prop_assert_eq!(journal.get_many(&keys).unwrap(), memory.get_many(&keys).unwrap());
        }
        prop_assert_eq!(&all(&sqlite), &all(&memory));
        journal.drain().unwrap();
        prop_assert_eq!(&all(&journal), &all(&memory));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same, with fewer cases, for PostgreSQL: each step is a round trip.
    #[test]
    fn postgres_agrees_with_memory(commits in prop::collection::vec(commit(), 1..60)) {
        let Some(server) = Server::shared() else { return Ok(()) };
        let (memory, postgres) = (Memory::new(), server.store());
        for commit in commits {
            let expected = outcome(memory.commit(commit.clone()));
            prop_assert_eq!(&outcome(postgres.commit(commit.clone())), &expected, "{:?}", commit);
        }
        prop_assert_eq!(&all(&postgres), &all(&memory));
        let keys: Vec<Key> = (0..24).map(|k: u8| key([k])).collect();
        prop_assert_eq!(postgres.get_many(&keys).unwrap(), memory.get_many(&keys).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same for etcd.
    #[test]
    fn etcd_agrees_with_memory(commits in prop::collection::vec(commit(), 1..60)) {
        let Some(cluster) = Cluster::shared() else { return Ok(()) };
        let (memory, etcd) = (Memory::new(), cluster.store());
        for commit in commits {
            let expected = outcome(memory.commit(commit.clone()));
            prop_assert_eq!(&outcome(etcd.commit(commit.clone())), &expected, "{:?}", commit);
        }
        prop_assert_eq!(&all(&etcd), &all(&memory));
        let keys: Vec<Key> = (0..24).map(|k: u8| key([k])).collect();
        prop_assert_eq!(etcd.get_many(&keys).unwrap(), memory.get_many(&keys).unwrap());
    }
}
