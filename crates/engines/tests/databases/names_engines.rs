//! The same operations over every store leave the same rows, also after closing and reopening it. An audit of
//! them finds nothing.

use std::sync::Arc;
use std::time::Duration;

use engines::{Etcd, Postgres};
use meta::engine::{Memory, Sqlite};
use meta::journal::{Journal, Options};
use meta::plan::Refusal;
use meta::{Key, MetaStore, Names, Value};

use crate::support::SimPacks;
use crate::support::script::{Script, all, check};
use crate::volumes::{EtcdVolumes, PostgresVolumes};
use servers::{Cluster, Server};

/// Runs the script of a seed. Returns the rows it leaves, and how each operation ended.
fn play(store: Arc<dyn MetaStore>, seed: u64) -> (Vec<(Key, Value)>, Vec<Option<Refusal>>) {
    let script = if seed == 2 { Script::keeping } else { Script::new };
    let mut script = script(vec![Names::new(store.clone())], seed);
    script.play();
    check(&*store);
    (all(&*store), script.refused)
}

#[test]
fn all_stores_end_with_the_same_rows() {
    let tiny = Options {
        commit_every: Duration::from_millis(3),
        overlay_rows: 64,
        clean_bytes: 64 << 10,
        ..Options::default()
    };
    for seed in 1..4 {
        let expected = play(Arc::new(Memory::new()), seed);
        let done = expected.1.iter().filter(|refused| refused.is_none()).count();
        assert!(done > 150 && expected.0.len() > 50, "{done} done, {} rows", expected.0.len());

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.db");
        assert_eq!(play(Arc::new(Sqlite::open(&path).unwrap()), seed), expected, "sqlite");
        assert_eq!(all(&Sqlite::open(&path).unwrap()), expected.0, "sqlite, opened again");

        if let Some(server) = Server::shared() {
            let target = server.volume();
            let open = || Postgres::open(&target, Default::default()).unwrap();
            assert_eq!(play(Arc::new(open()), seed), expected, "postgres");
            assert_eq!(all(&open()), expected.0, "postgres, opened again");
        }

        if let Some(cluster) = Cluster::shared() {
            let target = cluster.volume();
            let open = || Etcd::open(&target, Default::default()).unwrap();
            assert_eq!(play(Arc::new(open()), seed), expected, "etcd");
            assert_eq!(all(&open()), expected.0, "etcd, opened again");
        }

        for options in [Options::default(), tiny.clone()] {
            let folder = tempfile::tempdir().unwrap();
            let packs = Arc::new(SimPacks::default());
            let (journal, _) = Journal::open(folder.path(), packs.clone(), options.clone()).unwrap();
            let journal = Arc::new(journal);
            assert_eq!(play(journal.clone(), seed), expected, "journal");
            journal.close().unwrap();
            drop(journal);
            let (again, _) = Journal::open(folder.path(), packs, options).unwrap();
            assert_eq!(all(&again), expected.0, "journal, opened again");
            again.close().unwrap();
        }
    }
}
