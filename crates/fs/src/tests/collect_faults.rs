//! Garbage collection, and what follows a restart, while the origin or the disk fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::size::MIB;
use base::{BlobId, Deadline, PackNo};
use blob::failing::Op as Call;
use blob::{BlobError, BlobSource};
use meta::key::{KeyRange, tags};
use meta::store::{CommitError, Rows, Snapshot, StoreError, Value};
use meta::{Commit, Key, PackRow};

use super::*;
use crate::packs::table::Place;

/// A source behind a network. While it is away, a read waits as long as it may.
struct Far {
    inner: Arc<dyn BlobSource>,
    away: AtomicBool,
    refused: AtomicU64,
}

impl BlobSource for Far {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        if !self.away.load(Ordering::SeqCst) {
            return self.inner.read_at(id, offset, buf);
        }
        std::thread::sleep(Deadline::current().left().min(Duration::from_secs(60)));
        self.refused.fetch_add(1, Ordering::SeqCst);
        Err(BlobError::Unavailable("it does not answer".to_owned()))
    }

    fn is_local(&self, _: &BlobId) -> bool {
        false
    }
}

fn sealed(v: &Volume, name: &str, seed: u64, len: usize) -> Ino {
    let file = v.file(Ino::ROOT, name);
    v.put(file, 0, &noise(seed, len));
    v.seal_now(Duration::from_secs(60)).unwrap();
    file
}

fn remove(v: &Volume, name: &str, file: Ino) {
    v.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    v.forget(file, 1);
}

/// Small packs that could not be read because the origin did not answer were called damaged, and never merged
/// again. Each was waited for, and nothing was deleted meanwhile.
#[test]
fn regression_an_origin_that_is_away_is_no_damage_and_holds_no_deletion_up() {
    let mut world = World::new();
    let far =
        Arc::new(Far { inner: world.parts.source.clone(), away: true.into(), refused: AtomicU64::new(0) });
    world.parts.source = far.clone();
    let v = world.open();
    let doomed = sealed(&v, "doomed", 100, MIB as usize);
    let files: Vec<Ino> = (0..20).map(|n| sealed(&v, &format!("f{n}"), n, 10_000)).collect();
    let began = Instant::now();
    eventually("a pack could not be read", || far.refused.load(Ordering::SeqCst) > 0);
    remove(&v, "doomed", doomed);
    eventually("its blob is gone", || world.origin.bytes() == 200_000);
    // Each of the twenty packs would be waited for for ten seconds.
    assert!(began.elapsed() < Duration::from_secs(100), "{:?}", began.elapsed());
    far.away.store(false, Ordering::SeqCst);
    v.core.sweep.copy_now();
    eventually("few are left", || {
        v.core.packs.close_all();
        v.stats().unwrap().sealed_packs <= 8
    });
    for (n, file) in files.iter().enumerate() {
        assert!(v.get(*file) == noise(n as u64, 10_000));
    }
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}

/// Two packs that a run has sealed and not retired.
fn killed_before_retiring(world: &World) -> [(PackNo, BlobId); 2] {
    let v = world.open();
    world.faults.fail(Call::Retire, u64::MAX);
    (0..2).for_each(|n| _ = sealed(&v, &format!("f{n}"), n, 100_000));
    drop(v);
    world.faults.heal();
    world.lines.lock().clear();
    let packs = world.parts.packs.open_packs().unwrap();
    let row = |no: PackNo| PackRow::decode(&world.parts.store.get(&Key::pack(no)).unwrap().unwrap()).unwrap();
    let packs = packs.iter().map(|(no, _)| match row(*no) {
        PackRow::Sealed { blob, .. } => (*no, blob),
        other => panic!("{other:?}"),
    });
    packs.collect::<Vec<_>>().try_into().unwrap()
}

/// The file of a pack becomes shorter.
fn shorten(world: &World, no: PackNo, bytes: &[u8]) {
    world.parts.packs.discard(no).unwrap();
    world.parts.packs.create(no).unwrap();
    world.parts.packs.write(no, 0, bytes).unwrap();
}

/// The packs behind it were never handed to the origin again. No fsync to the origin ended, and no line said
/// why.
#[test]
fn regression_a_pack_that_cannot_be_sealed_again_holds_no_other_up() {
    let world = World::new();
    let [(first, blob), (second, _)] = killed_before_retiring(&world);
    shorten(&world, first, &noise(0, 50_000));
    world.origin.remove(&blob).unwrap();
    let v = world.open();
    eventually("the other one is sealed", || !v.core.resealing.lock().contains(&second));
    eventually("the first is given up", || v.core.resealing.lock().is_empty());
    let name = format!("{first:?}");
    let lines = world.lines.lock().clone();
    assert!(lines.len() == 1 && lines[0].contains(&name) && lines[0].contains("covey fsck"), "{lines:?}");
    // What is left of it is not said to be in the origin, and can be read.
    assert_eq!(v.core.place_of(first).unwrap(), Some(Place::Open));
    let mut buf = vec![0; 10_000];
    let file = v.lookup(Ino::ROOT, b"f0").unwrap().attr.ino;
    assert_eq!(v.read(file, 0, &mut buf), Ok(10_000));
    assert!(buf == noise(0, 100_000)[..10_000]);
    v.seal_now(Duration::from_secs(60)).unwrap();
    remove(&v, "f0", file);
    eventually("nothing is left of it", || {
        world.parts.packs.open_packs().unwrap().is_empty()
            && world.parts.store.get(&Key::pack(first)).unwrap().is_none()
    });
    v.seal_now(Duration::from_secs(60)).unwrap();
    v.close().unwrap();
}

#[test]
fn regression_a_disk_that_fails_for_a_while_does_not_end_sealing_again() {
    let world = World::new();
    killed_before_retiring(&world);
    world.faults.fail(Call::Seal, u64::MAX);
    let v = world.open();
    eventually("each was tried", || world.lines.lock().len() == 2);
    assert_eq!(v.core.resealing.lock().len(), 2);
    let lines = world.lines.lock().clone();
    assert!(lines.iter().all(|line| line.contains("repeated")), "{lines:?}");
    world.faults.heal();
    v.seal_now(Duration::from_secs(60)).unwrap();
    assert_eq!(world.lines.lock().len(), 2);
    v.close().unwrap();
}

/// A store whose packs cannot be listed for a while.
struct Blind {
    inner: Arc<dyn MetaStore>,
    blind: AtomicBool,
}

impl MetaStore for Blind {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.inner.get(key)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.inner.is_at_hand(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.inner.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        if self.blind.load(Ordering::SeqCst) && range.start.tag() == tags::PACK {
            return Err(StoreError::Damaged("for a while".to_owned()));
        }
        self.inner.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.inner.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.inner.flush()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.inner.snapshot()
    }
}

/// A pack that was deleted before the packs were counted was subtracted from a count without it.
#[test]
fn regression_what_is_deleted_before_the_first_count_is_not_subtracted_from_it() {
    let mut world = World::new();
    let v = world.open();
    let files = [0, 1].map(|n| sealed(&v, &format!("f{n}"), n, MIB as usize));
    v.close().unwrap();
    drop(v);
    let blind = Arc::new(Blind { inner: world.parts.store.clone(), blind: true.into() });
    world.parts.store = blind.clone();
    let v = world.open();
    eventually("they are not counted", || world.lines.lock().len() == 1);
    assert!(v.lookup(Ino::ROOT, b"f0").is_ok());
    remove(&v, "f0", files[0]);
    eventually("its inode is reaped", || v.getattr(files[0]) == Err(Errno::ENOENT));
    v.core.sweep_round(false).unwrap();
    eventually("its blob is gone", || world.origin.bytes() == MIB);
    blind.blind.store(false, Ordering::SeqCst);
    v.core.count_packs().unwrap();
    let totals = v.core.garbage.totals();
    assert_eq!((totals.stored_bytes, totals.packs, totals.garbage_bytes), (MIB, 1, 0));
    v.close().unwrap();
}
