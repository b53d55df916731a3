//! The store of a node of a shared volume: its fence, and bytes before names.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use meta::engine::Memory;
use meta::engine::database::{Database, Join};
use meta::key::KeyRange;
use meta::shared::{Named, SharedStore, Term};
use meta::store::{CommitError, FreshData, Rows, StoreError};
use meta::{Commit, Key, MetaStore, Value};

use crate::support::{SimPacks, key, put, value};
use crate::volumes::{EtcdVolumes, PostgresVolumes};
use servers::{Cluster, Server};

/// Answers, and ends the session while it does so.
struct Ending(Memory, Arc<Term>);

impl MetaStore for Ending {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.1.end();
        self.0.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        true
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.0.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.0.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.0.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn lasting() -> Arc<Term> {
    let term = Arc::new(Term::default());
    term.extend(base::time::boot(), Duration::from_secs(3600));
    term
}

#[test]
fn what_arrives_after_the_session_is_no_answer() {
    let term = lasting();
    let store = SharedStore::new(
        Arc::new(Ending(Memory::new(), term.clone())),
        Arc::new(SimPacks::default()),
        term.clone(),
    );
    store.commit(put("a", "1")).unwrap();
    assert!(!store.is_at_hand(&key("a")), "another node may have changed it");
    assert_eq!(store.get_many(&[key("a")]).unwrap(), [Some(value("1"))]);
    assert!(matches!(store.get(&key("a")), Err(StoreError::Fenced(_))), "it ended meanwhile");
    assert!(matches!(store.commit(put("a", "2")), Err(CommitError::Store(StoreError::Fenced(_)))));
    assert!(matches!(store.get_many(&[key("a")]), Err(StoreError::Fenced(_))));
}

#[test]
fn bytes_are_durable_before_their_names_are_committed() {
    let (engine, packs, term) = (Arc::new(Memory::new()), Arc::new(SimPacks::default()), lasting());
    let store = SharedStore::new(engine.clone(), packs.clone(), term);
    store.commit(put("a", "1")).unwrap();
    assert_eq!(packs.syncs.load(Ordering::SeqCst), 0, "it mentions no new bytes");
    let fresh = packs.fresh(1, b"new bytes");
    let commit = Commit { fresh: vec![fresh], ..put("b", "2") };
    packs.fail_syncs.store(true, Ordering::SeqCst);
    assert!(matches!(store.commit(commit.clone()), Err(CommitError::Store(StoreError::Unavailable(_)))));
    assert_eq!(engine.get(&key("b")).unwrap(), None, "nothing was changed");
    packs.fail_syncs.store(false, Ordering::SeqCst);
    store.commit(commit).unwrap();
    assert!(packs.holds_durably(&fresh) && engine.get(&key("b")).unwrap().is_some());
}

#[test]
fn totals_are_exact_though_they_are_spread() {
    let (engine, packs) = (Arc::new(Memory::new()), Arc::new(SimPacks::default()));
    let store: Arc<dyn MetaStore> = Arc::new(SharedStore::new(engine.clone(), packs, lasting()));
    let names = meta::Names::leased(store.clone());
    engine.commit(Commit { adds: vec![(Key::volume("inodes"), 1)], ..Commit::default() }).unwrap();
    for n in 0..200 {
        let adds =
            vec![(Key::volume("inodes"), 1), (Key::volume("bytes"), n - 50), (Key::volume("other"), 5)];
        store.commit(Commit { adds, ..Commit::default() }).unwrap();
    }
    let totals = names.totals().unwrap();
    assert_eq!((totals.inodes, totals.bytes), (201, (0..200).map(|n| n - 50).sum::<i64>() as u64));
    let rows = engine.scan(&Key::kind(meta::key::tags::VOLUME), usize::MAX).unwrap();
    assert!(rows.len() > 10, "{} rows", rows.len());
}

fn joins(names: &dyn Database) {
    let join = Join {
        node: [7; 16],
        host: "host",
        address: "",
        ttl: Duration::from_secs(60),
        take_over: false,
        program: "test",
    };
    names.join(&join).unwrap();
}

/// Ends the session and joins again, once the bytes of a commit are durable.
struct Rejoining(Arc<dyn Database>);

impl Named for Rejoining {
    fn named(&self, _: &[FreshData]) {
        self.0.leave().unwrap();
        joins(&*self.0);
    }
}

fn is_fenced(done: Result<(), CommitError>) -> bool {
    matches!(done, Err(CommitError::Store(StoreError::Fenced(_))))
}

fn each_database(test: impl Fn(Arc<dyn Database>)) {
    if let Some(server) = Server::shared() {
        test(Arc::new(server.store()));
    }
    if let Some(cluster) = Cluster::shared() {
        test(Arc::new(cluster.store()));
    }
}

/// A commit waited until its bytes were durable. Meanwhile the session ended and the node joined again. Then
/// the commit was applied in the new session, though its changes had been reported as lost.
#[test]
fn regression_a_commit_that_waits_is_not_applied_in_the_next_session() {
    each_database(|names| {
        joins(&*names);
        let (packs, rejoining) = (Arc::new(SimPacks::default()), Arc::new(Rejoining(names.clone())));
        let fresh = vec![packs.fresh(1, b"bytes")];
        let store = SharedStore::new(names.clone(), packs, lasting()).telling(Some(rejoining));
        assert!(is_fenced(store.commit(Commit { fresh, ..put("a", "1") })));
        assert_eq!(names.get(&key("a")).unwrap(), None, "nothing was changed");
        store.commit(put("b", "2")).unwrap();
        assert_eq!(names.get(&key("b")).unwrap(), Some(value("2")), "the new session goes on");
    });
}

#[test]
fn a_commit_of_another_session_is_refused() {
    each_database(|names| {
        joins(&*names);
        let session = names.session();
        names.commit(Commit { session, ..put("a", "1") }).unwrap();
        Rejoining(names.clone()).named(&[]);
        assert!(is_fenced(names.commit(Commit { session, ..put("a", "2") })));
        assert_eq!(names.get(&key("a")).unwrap(), Some(value("1")));
        names.commit(Commit { session: names.session(), ..put("a", "3") }).unwrap();
        names.commit(put("a", "4")).unwrap();
        assert_eq!(names.get(&key("a")).unwrap(), Some(value("4")));
    });
}
