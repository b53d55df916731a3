//! What operations cost on a volume in PostgreSQL: requests, and time. The volume must be new.
//!
//! ```text
//!   cargo run --release -p covey-engines --example postgres_cost -- postgres://USER@HOST/DATABASE?volume=NEW
//! ```

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Ino, Timestamp};
use engines::postgres::{Options, Postgres, Target};
use meta::key::KeyRange;
use meta::plan::op::Make;
use meta::plan::{Ctx, Op};
use meta::record::mode;
use meta::store::{CommitError, Rows, StoreError};
use meta::{Commit, Expect, Key, MetaStore, Names, Snapshot, Value};

/// Counts requests: each is one round trip.
struct Counted(Postgres, AtomicU64);

impl Counted {
    fn one(&self) -> &Postgres {
        self.1.fetch_add(1, Ordering::Relaxed);
        &self.0
    }
}

impl MetaStore for Counted {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.one().get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.one().get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.one().scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.one().commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.one().snapshot()
    }
}

const TIMES: u64 = 500;

fn measure(store: &Counted, name: &str, mut work: impl FnMut(u64)) {
    let before = store.1.load(Ordering::Relaxed);
    let mut times: Vec<Duration> = (0..TIMES)
        .map(|n| {
            let begun = Instant::now();
            work(n);
            begun.elapsed()
        })
        .collect();
    times.sort();
    let requests = (store.1.load(Ordering::Relaxed) - before) as f64 / TIMES as f64;
    let us = |at: usize| times[at * TIMES as usize / 100].as_micros();
    println!("{name:44} {requests:5.2} requests, median {:5} us, p95 {:5} us", us(50), us(95));
}

fn make(names: &Names, ino: u64, parent: Ino, name: &str, kind: u32) {
    let make = Make { ino: Ino(ino), mode: kind | 0o755, umask: 0o022, rdev: 0, target: b"" };
    let ctx = Ctx { now: base::time::now(), uid: 0, gid: 0 };
    names.run(&Op::Create { parent, name: name.as_bytes(), make }, &ctx).expect("it is created");
}

fn main() {
    let address = std::env::args().nth(1).expect("an address: postgres://USER@HOST/DATABASE?volume=NEW");
    let target = Target::parse(&address).expect("a usable address");
    let options = Options { lanes: 16, ..Options::default() };
    Postgres::create(&target, base::random::id16(), &options).expect("a volume");
    let store = Arc::new(Counted(Postgres::open(&target, options).expect("open"), AtomicU64::new(0)));
    let names = Names::new(store.clone());
    let ctx = Ctx { now: Timestamp(1000), uid: 0, gid: 0 };
    names.run(&Op::Format { rows: &[] }, &ctx).expect("formatted");
    let row = |n: u64| Key::volume(&format!("x {n}"));
    let value = || Value::from(&[7u8; 80][..]);

    measure(&store, "commit of a new row", |n| {
        let checks = vec![(row(n), Expect::Absent)];
        store.commit(Commit { checks, puts: vec![(row(n), value())], ..Commit::default() }).expect("done");
    });
    measure(&store, "commit of a checked, present row", |n| {
        let checks = vec![(row(n), Expect::Is(value()))];
        store.commit(Commit { checks, puts: vec![(row(n), value())], ..Commit::default() }).expect("done");
    });
    measure(&store, "commit that meets a conflict", |n| {
        let checks = vec![(row(n), Expect::Absent)];
        store
            .commit(Commit { checks, puts: vec![(row(n), value())], ..Commit::default() })
            .expect_err("refused");
    });
    measure(&store, "get", |n| drop(store.get(&row(n)).expect("read")));
    let ten: Vec<Key> = (0..10).map(row).collect();
    measure(&store, "get_many of 10", |_| drop(store.get_many(&ten).expect("read")));
    measure(&store, "create a file, nothing cached", |n| {
        make(&names, 1000 + n, Ino::ROOT, &format!("file {n}"), mode::S_IFREG);
    });
    measure(&store, "scan of 100 entries", |_| {
        drop(store.scan(&Key::dentries(Ino::ROOT, 0), 100).expect("read"));
    });
    for threads in [4u64, 16] {
        for (what, apart) in [("one directory", false), ("a directory each", true)] {
            let first = base::random::u64() >> 20 << 12;
            let dir = |thread: u64| if apart { Ino(first + thread) } else { Ino::ROOT };
            for thread in (0..threads).filter(|_| apart) {
                make(&names, first + thread, Ino::ROOT, &format!("dir {first} {thread}"), mode::S_IFDIR);
            }
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let names = &names;
                    scope.spawn(move || {
                        for n in 0..100 {
                            let ino = first + 1000 + thread * 100 + n;
                            make(names, ino, dir(thread), &format!("{ino}"), mode::S_IFREG);
                        }
                    });
                }
            });
            let rate = (threads * 100) as f64 / begun.elapsed().as_secs_f64();
            println!("{threads:2} threads create in {what:20} {rate:8.0} files/s");
        }
    }
}
