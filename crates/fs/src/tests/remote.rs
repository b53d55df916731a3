//! A volume whose uploads to the origin lag behind: writers wait at the gate, fsync may include the origin,
//! small packs wait for more bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Deadline;
use blob::failing::Op;
use blob::{BlobError, Gate};

use super::*;
use crate::api::Waiting;
use crate::volume::Fsync;

/// A gate that the test opens and closes. While it is closed, it refuses writes.
#[derive(Default)]
struct Door {
    closed: AtomicBool,
    passed: AtomicU64,
    /// Writers get through a closed gate, but only when their time is over.
    is_slow: AtomicBool,
}

impl Gate for Door {
    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::SeqCst)
    }

    fn pass(&self) -> Result<(), BlobError> {
        self.passed.fetch_add(1, Ordering::SeqCst);
        while self.is_slow.load(Ordering::SeqCst) {
            if Deadline::current().is_over() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.is_open() { Ok(()) } else { Err(BlobError::Full) }
    }
}

#[test]
fn a_closed_gate_refuses_new_bytes_and_nothing_else() {
    let world = World::new();
    let door = Arc::new(Door::default());
    let v = Volume::open(world.parts.clone(), Options { gate: door.clone(), ..world.options() }).unwrap();
    let (f, small) = (v.file(Ino::ROOT, "f"), v.file(Ino::ROOT, "small"));
    let bytes = noise(1, 3 << 20);
    v.put(f, 0, &bytes);
    v.put(small, 0, b"inline");
    assert!(!v.would_wait(Waiting::Write));
    door.closed.store(true, Ordering::SeqCst);
    assert!(v.would_wait(Waiting::Write), "not on the thread that receives reads");
    assert_eq!(v.write(f, 0, &noise(2, 5000), None, false), Err(Errno::ENOSPC));
    assert_eq!(v.write(small, 0, b"x", None, false), Err(Errno::ENOSPC));
    // Reads, names, truncation, removal and everything that frees space still work.
    assert!(v.get(f) == bytes && v.get(small) == b"inline");
    v.dir(Ino::ROOT, "d");
    v.cut(f, 1 << 20);
    v.unlink(Ino::ROOT, b"small").unwrap();
    v.sync().unwrap();
    v.seal_now(Duration::from_secs(60)).unwrap();
    assert_eq!(v.get(f), bytes[..1 << 20]);
    door.closed.store(false, Ordering::SeqCst);
    v.put(f, 0, &noise(2, 5000));
    assert!(door.passed.load(Ordering::SeqCst) >= 5);
    v.close().unwrap();
}

/// The caller of a write that has waited for too long was answered an error, and may have written again.
#[test]
fn regression_a_write_that_was_given_up_is_not_done_later() {
    let world = World::new();
    let door = Arc::new(Door::default());
    let v = Volume::open(world.parts.clone(), Options { gate: door.clone(), ..world.options() }).unwrap();
    let (f, small) = (v.file(Ino::ROOT, "f"), v.file(Ino::ROOT, "small"));
    let newer = noise(1, 1 << 20);
    v.put(f, 0, &newer);
    v.put(small, 0, b"newer");
    door.is_slow.store(true, Ordering::SeqCst);
    let late = |work: &dyn Fn() -> Result<(), Errno>| Deadline::after(Duration::from_millis(20)).scope(work);
    assert_eq!(late(&|| v.write(f, 0, &noise(2, 1 << 20), None, false).map(drop)), Err(Errno::EIO));
    assert_eq!(late(&|| v.write(small, 0, b"older", None, false).map(drop)), Err(Errno::EIO));
    assert_eq!(late(&|| v.append(small, b"older", None).map(drop)), Err(Errno::EIO));
    door.is_slow.store(false, Ordering::SeqCst);
    assert!(v.get(f) == newer && v.get(small) == b"newer");
    assert_eq!(Deadline::after(Duration::ZERO).scope(|| v.unlink(Ino::ROOT, b"small")), Err(Errno::EIO));
    v.unlink(Ino::ROOT, b"small").unwrap();
    v.close().unwrap();
}

/// With `fsync=origin`, an fsync that returned has stored the bytes in the origin, and one that could not
/// returns an error.
#[test]
fn fsync_can_mean_the_origin() {
    let world = World::new();
    let patience = Duration::from_secs(10);
    let options = Options {
        fsync: Fsync::Origin(patience),
        seal_small: Duration::from_secs(3600),
        commit: Duration::from_secs(3600),
        ..world.options()
    };
    let v = Volume::open(world.parts.clone(), options).unwrap();
    let f = v.file(Ino::ROOT, "f");
    let stored = || {
        let mut blobs = 0;
        blob::Origin::list(&*world.origin, &mut |_, size| {
            blobs += size;
            true
        })
        .unwrap();
        blobs
    };
    v.put(f, 0, &noise(1, 100_000));
    assert_eq!(stored(), 0);
    v.fsync(f, false).unwrap();
    assert_eq!(stored(), 100_000, "fsync should seal the pack and store it");
    v.fsync(f, false).unwrap();
    assert_eq!(stored(), 100_000, "fsync without an open pack should store nothing");
    v.put(f, 100_000, &noise(2, 2 << 20));
    world.faults.fail(Op::Sync, u64::MAX);
    assert_eq!(v.fsync(f, false), Err(Errno::EIO));
    world.faults.heal();
    v.fsync(f, false).unwrap();
    assert_eq!(stored(), 100_000 + (2 << 20));
    v.close().unwrap();
}

#[test]
fn an_fsync_that_cannot_reach_the_origin_ends_in_time() {
    let world = World::new();
    let patience = Duration::from_millis(300);
    let options = Options { fsync: Fsync::Origin(patience), ..world.options() };
    let v = Volume::open(world.parts.clone(), options).unwrap();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 100_000));
    world.faults.fail(Op::Seal, u64::MAX);
    let began = Instant::now();
    assert_eq!(v.fsync(f, false), Err(Errno::EIO));
    assert!(began.elapsed() >= patience && began.elapsed() < patience * 200, "{:?}", began.elapsed());
    assert_eq!(v.get(f), noise(1, 100_000));
    world.faults.heal();
    eventually("the origin has it", || v.fsync(f, false).is_ok());
    v.close().unwrap();
}

#[test]
fn small_packs_wait_for_the_configured_time() {
    let world = World::new();
    let options = Options { seal_small: Duration::from_secs(3600), ..world.options() };
    let v = Volume::open(world.parts.clone(), options).unwrap();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 5000));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(v.stats().unwrap().open_packs, 1);
    v.seal_now(Duration::from_secs(60)).unwrap();
    assert_eq!(v.stats().unwrap().open_packs, 0);
    drop(v);
    let options = Options { seal_small: Duration::from_millis(1), ..world.options() };
    let v = Volume::open(world.parts.clone(), options).unwrap();
    v.put(v.file(Ino::ROOT, "g"), 0, &noise(2, 5000));
    eventually("it is sealed", || v.stats().unwrap().open_packs == 0);
    v.close().unwrap();
}
