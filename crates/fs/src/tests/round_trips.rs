//! Round trips to the database of a shared volume, for each operation. docs/SEMANTICS.md has the table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Ino, PackNo};
use blob::BlobError;
use meta::engine::Memory;
use meta::key::{KeyRange, tags};
use meta::lease::{Contention, Holder, Leases, Nodes};
use meta::shared::Term;
use meta::store::{CommitError, Linked, Looked, Rows, StoreError};
use meta::{Commit, Key, MetaStore, Value};

use super::{Easy, ROOT, World};
use crate::api::{Caller, Filesystem, Locks, RenameMode, SetAttr, XattrMode};
use crate::shared::{FromOwner, Others, SessionId, Sharing};
use crate::volume::{Options, Parts, Volume};

/// Rows in memory, as far away as a database. What is written behind an operation is not counted.
struct Far(Memory, Arc<AtomicU64>);

impl Far {
    fn one(&self) -> &Memory {
        self.1.fetch_add(1, Ordering::SeqCst);
        &self.0
    }
}

impl MetaStore for Far {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.one().get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.one().get_many(keys)
    }

    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        self.one().get_linked(from, also, tags)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.one().scan(range, limit)
    }

    fn look(&self, keys: &[Key], ranges: &[KeyRange], limit: usize) -> Result<Looked, StoreError> {
        self.one().look(keys, ranges, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        let is_behind = commit.puts.iter().any(|(key, _)| key.tag() == tags::BATCH);
        if is_behind { self.0.commit(commit) } else { self.one().commit(commit) }
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// No other node.
struct Nobody;

impl Others for Nobody {
    fn read(&self, _: PackNo, _: u32, _: &mut [u8]) -> Result<FromOwner, BlobError> {
        Ok(FromOwner::Gone)
    }

    fn alive(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(vec![SessionId { node: 1, epoch: 1 }])
    }

    fn epoch(&self) -> Option<u64> {
        Some(1)
    }
}

impl Nodes for Nobody {
    fn me(&self) -> Option<Holder> {
        Some(Holder { node: 1, epoch: 1 })
    }

    fn alive(&self) -> Result<Vec<Holder>, StoreError> {
        Ok(self.me().into_iter().collect())
    }

    fn recall(&self, _: u32, _: Ino, _: u64) -> Result<(), String> {
        Err("there is no other node".to_owned())
    }

    fn report(&self, line: &str) {
        panic!("{line}");
    }
}

/// How a node uses what it works in.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Under leases.
    Leased,
    /// All is contended.
    Contended,
}

struct Shared {
    volume: Volume,
    parts: Parts,
    trips: Arc<AtomicU64>,
    store: Arc<Far>,
    kind: Kind,
}

impl Shared {
    /// A node of the volume with these rows.
    fn open(parts: &Parts, store: Arc<Far>, kind: Kind) -> Shared {
        let mut parts = Parts { store: store.clone(), ..parts.clone() };
        // The threads in the background do nothing in the time of the test.
        let lease = Duration::from_secs(3600);
        let term = Arc::new(Term::default());
        term.extend(base::time::boot(), lease);
        let rules = Contention { quiet: lease, ..Contention::default() };
        let leases = Leases::with_rules(store.clone(), term, Arc::new(Nobody), None, rules).unwrap();
        parts.store = leases.clone();
        let shared = Some(Sharing {
            node: 1,
            others: Arc::new(Nobody),
            lease,
            delay: Duration::from_secs(300),
            locks: Locks::Local,
            leases: Some(leases),
            keeping: None,
            kept: None,
        });
        let options = Options { names_local: false, shared, commit: lease, ..World::new().options() };
        let volume = Volume::open(parts.clone(), options).unwrap();
        Shared { volume, parts, trips: store.1.clone(), store, kind }
    }

    fn new(kind: Kind) -> Shared {
        let mut world = World::new();
        let store = Arc::new(Far(Memory::new(), Arc::default()));
        world.parts.store = store.clone();
        Volume::format(&world.parts, &Default::default()).unwrap();
        let shared = Shared::open(&world.parts, store, kind);
        shared.contend(Ino::ROOT);
        let volume = &shared.volume;
        // The first file takes numbers for inodes and packs, and begins a pack.
        let first = volume.file(Ino::ROOT, "first");
        volume.put(first, 0, &[1; 1000]);
        std::thread::sleep(Duration::from_millis(600));
        shared
    }

    /// Makes a directory contended that no node has a lease of.
    fn contend(&self, dir: Ino) {
        if self.kind == Kind::Contended {
            let row = [&[1, 3][..], &dir.0.to_be_bytes()].concat();
            let commit = Commit { puts: vec![(Key::lease(dir), row.into())], ..Commit::default() };
            self.store.0.commit(commit).unwrap();
        }
    }

    fn of<T>(&self, work: impl FnOnce(&Volume) -> T) -> (u64, T) {
        let before = self.trips.load(Ordering::SeqCst);
        let done = work(&self.volume);
        (self.trips.load(Ordering::SeqCst) - before, done)
    }
}

/// The table in docs/SEMANTICS.md.
fn told() -> Vec<(String, [u64; 2])> {
    let page = include_str!("../../../../docs/SEMANTICS.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| operation on a shared volume |")).skip(2);
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let mut next = || cells.next();
        let name = next()?.to_owned();
        Some((name, [next()?.parse().ok()?, next()?.parse().ok()?]))
    };
    rows.take_while(|line| line.starts_with('|')).filter_map(row).collect()
}

#[test]
fn each_operation_takes_as_many_round_trips_as_the_table_says() {
    let told = told();
    // On a busy machine a thread in the background may be late, and do something while an operation runs.
    let found = (0..5).map(|_| measured_all()).enumerate().find(|(n, found)| *n == 4 || *found == told);
    assert_eq!(found.unwrap().1, told, "docs/SEMANTICS.md differs (first: measured)");
}

fn measured_all() -> Vec<(String, [u64; 2])> {
    let [with, contended] = [Kind::Leased, Kind::Contended].map(|kind| measured(&Shared::new(kind)));
    with.into_iter().zip(contended).map(|((name, one), (_, two))| (name, [one, two])).collect()
}

/// How many round trips each operation takes.
fn measured(shared: &Shared) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut note = |name: &str, (trips, ()): (u64, ())| found.push((name.to_owned(), trips));
    let name = |name: &'static str| name.as_bytes();
    note("lookup of a name, there or not", shared.of(|v| _ = v.lookup(Ino::ROOT, name("none"))));
    shared.volume.lookup(Ino::ROOT, name("file")).unwrap_err();
    let (trips, file) = shared.of(|v| v.file(Ino::ROOT, "file"));
    note("create a file, after the lookup", (trips, ()));
    note("stat", shared.of(|v| _ = v.getattr(file).unwrap()));
    note("write to a new file", shared.of(|v| v.put(file, 0, &[7; 2000])));
    note("write over it", shared.of(|v| v.put(file, 100, &[8; 2000])));
    note("append", shared.of(|v| _ = v.append(file, &[9; 1000], None).unwrap()));
    let mut buf = [0; 4000];
    note("read of one's own bytes", shared.of(|v| _ = Filesystem::read(v, file, 0, &mut buf).unwrap()));
    let small = shared.volume.file(Ino::ROOT, "small");
    note("write up to 512 bytes", shared.of(|v| v.put(small, 0, b"small")));
    note("read up to 512 bytes", shared.of(|v| _ = Filesystem::read(v, small, 0, &mut buf).unwrap()));
    let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    note("chmod, chown, utimes", shared.of(|v| _ = v.setattr(&ROOT, file, &mode).unwrap()));
    shared.volume.lookup(Ino::ROOT, name("dir")).unwrap_err();
    let (trips, dir) = shared.of(|v| v.dir(Ino::ROOT, "dir"));
    note("mkdir, after the lookup", (trips, ()));
    shared.contend(dir);
    let rename = |v: &Volume| {
        v.rename(Ino::ROOT, name("file"), dir, name("moved"), RenameMode::Replace).map(drop).unwrap();
    };
    shared.volume.lookup(dir, name("moved")).unwrap_err();
    note("rename of a file, after the lookups", shared.of(rename));
    shared.volume.lookup(dir, name("link")).unwrap_err();
    note("link, after the lookup", shared.of(|v| _ = v.link(file, dir, name("link")).unwrap()));
    let caller = Caller::default();
    let symlink = |v: &Volume| _ = v.symlink(&caller, dir, name("symlink"), b"target").unwrap();
    shared.volume.lookup(dir, name("symlink")).unwrap_err();
    note("symlink, after the lookup", shared.of(symlink));
    let set = |v: &Volume| v.setxattr(file, name("user.a"), b"1", XattrMode::Set, false).unwrap();
    note("setxattr", shared.of(set));
    note("getxattr", shared.of(|v| _ = v.getxattr(file, name("user.a")).unwrap()));
    note("list 256 names", shared.of(|v| _ = v.names(dir)));
    note("unlink, after the lookup", shared.of(|v| v.unlink(dir, name("link")).map(drop).unwrap()));
    note("statfs", shared.of(|v| _ = v.statfs(Ino::ROOT).unwrap()));
    found
}

/// Each file took a round trip of its own, and each directory three.
#[test]
fn regression_a_tree_is_read_for_the_first_time_in_a_few_round_trips() {
    const DIRS: u64 = 8;
    const FILES: u64 = 25;
    let writer = Shared::new(Kind::Leased);
    for dir in 0..DIRS {
        let at = writer.volume.dir(Ino::ROOT, &format!("dir{dir}"));
        for file in 0..FILES {
            // Every other one is kept with the names.
            let bytes = vec![dir as u8; if file % 2 == 0 { 100 } else { 3000 }];
            let file = writer.volume.file(at, &format!("file{file}"));
            writer.volume.put(file, 0, &bytes);
        }
    }
    let Shared { volume, parts, store, .. } = writer;
    volume.close().unwrap();
    drop(volume);
    let reader = Shared::open(&parts, store, Kind::Leased);
    let read = |volume: &Volume| {
        let mut found = 0;
        for dir in volume.names(Ino::ROOT).iter().filter(|name| name.starts_with("dir")) {
            let at = volume.lookup(Ino::ROOT, dir.as_bytes()).unwrap().attr.ino;
            for name in volume.names(at).iter().filter(|name| name.starts_with("file")) {
                let file = volume.lookup(at, name.as_bytes()).unwrap().attr.ino;
                let mut buf = [0; 4000];
                let len = Filesystem::read(volume, file, 0, &mut buf).unwrap();
                assert!(buf[..len].iter().all(|byte| format!("dir{byte}") == *dir), "{dir}/{name}");
                found += 1;
            }
        }
        assert_eq!(found, DIRS * FILES);
    };
    let (trips, ()) = reader.of(read);
    println!("{trips} round trips for {DIRS} directories of {FILES} files");
    assert!(trips < 6 * (DIRS + 1), "{trips} round trips for {DIRS} directories of {FILES} files");
    // A thread in the background may still read ahead of the first time.
    let again: Vec<u64> = (0..5).map(|_| reader.of(read).0).collect();
    assert!(again.contains(&0), "{again:?} round trips for what is remembered");
}
