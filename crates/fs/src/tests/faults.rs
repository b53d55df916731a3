//! Full disks, damaged blobs, an origin that cannot be reached.

use base::size::MIB;
use blob::failing::Op as Fault;

use super::*;

/// A small disk.
struct Small {
    inner: Arc<dyn PackStore>,
    origin: Arc<origin::Memory>,
    total: u64,
    /// Bytes that the disk reserves for root.
    reserve: u64,
    others: std::sync::atomic::AtomicU64,
}

impl Small {
    fn used(&self) -> u64 {
        let open: u64 = self.inner.open_packs().unwrap().iter().map(|(_, len)| len).sum();
        open + self.origin.bytes() + self.others.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl PackStore for Small {
    fn create(&self, pack: base::PackNo) -> Result<(), blob::BlobError> {
        self.inner.create(pack)
    }
    fn write(&self, pack: base::PackNo, offset: u32, bytes: &[u8]) -> Result<(), blob::BlobError> {
        if self.used() + bytes.len() as u64 > self.total {
            return Err(blob::BlobError::Full);
        }
        self.inner.write(pack, offset, bytes)
    }
    fn read(&self, pack: base::PackNo, offset: u32, buf: &mut [u8]) -> Result<(), blob::BlobError> {
        self.inner.read(pack, offset, buf)
    }
    fn sync(&self, packs: &[base::PackNo]) -> Result<(), blob::BlobError> {
        self.inner.sync(packs)
    }
    fn seal(&self, pack: base::PackNo, len: u32) -> Result<base::BlobId, blob::BlobError> {
        self.inner.seal(pack, len)
    }
    fn retire(&self, packs: &[base::PackNo]) -> Result<(), blob::BlobError> {
        self.inner.retire(packs)
    }
    fn discard(&self, pack: base::PackNo) -> Result<(), blob::BlobError> {
        self.inner.discard(pack)
    }
    fn open_packs(&self) -> Result<Vec<(base::PackNo, u64)>, blob::BlobError> {
        self.inner.open_packs()
    }
    fn space(&self) -> Result<blob::Space, blob::BlobError> {
        Ok(blob::Space {
            total: self.total,
            available: self.total.saturating_sub(self.used()),
            reserve: self.reserve,
        })
    }
}

/// Space that is kept free, by the disk for root and by the volume for removals, used to be shown as used. So
/// `df` showed more used space for an empty volume than for its disk.
#[test]
fn regression_statfs_counts_what_is_kept_free_as_free() {
    let mut world = World::new();
    world.parts.packs = Arc::new(Small {
        inner: world.parts.packs.clone(),
        origin: world.origin.clone(),
        total: 64 * MIB,
        reserve: 3 * MIB,
        others: (10 * MIB).into(),
    });
    let v = world.open();
    let room = v.statfs(Ino::ROOT).unwrap();
    assert_eq!((room.total, room.free), (64 * MIB, 57 * MIB));
    assert_eq!(room.available, 38 * MIB, "54 MiB should be available, less 16 for removals");
}

#[test]
fn a_full_disk_refuses_bytes_and_frees_them_again() {
    let mut world = World::new();
    let small = Arc::new(Small {
        inner: world.parts.packs.clone(),
        origin: world.origin.clone(),
        total: 64 * MIB,
        reserve: 0,
        others: Default::default(),
    });
    world.parts.packs = small.clone();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    let g = v.file(Ino::ROOT, "g");
    v.put(g, 0, &noise(1, 1000));
    // MiB written before the first refusal.
    let fill = |from: u64| {
        let refused =
            |n: &u64| Filesystem::write(&v, f, n * MIB, &noise(*n, MIB as usize), None, false).err();
        (from..100)
            .find_map(|n| refused(&n).map(|errno| (n, errno)))
            .expect("the disk must be full some time")
    };
    let (written, errno) = fill(0);
    assert_eq!(errno, Errno::ENOSPC);
    // On a busy machine a pack may exist twice at that moment. Then there is room again.
    eventually("nothing exists twice", || v.core.packs.all_sealed() && !v.core.sweep.has_waiting());
    let (written, errno) = fill(written);
    assert_eq!(errno, Errno::ENOSPC);
    // Everything up to the floor. A pack that is being sealed exists twice for a moment, and that refuses no
    // write.
    assert!((45..=48).contains(&written), "{written} MiB");
    assert_eq!(v.statfs(Ino::ROOT).unwrap().available, 0);
    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    assert_eq!(v.mknod(&ROOT, Ino::ROOT, b"h", &node), Err(Errno::ENOSPC));
    // Existing data can be read, and names can be removed.
    assert!(v.get(g) == noise(1, 1000));
    v.rename(Ino::ROOT, b"g", Ino::ROOT, b"g2", crate::api::RenameMode::Replace).unwrap();
    v.unlink(Ino::ROOT, b"f").unwrap();
    v.forget(f, 1);
    // At once, as on any filesystem.
    v.mknod(&ROOT, Ino::ROOT, b"h", &node).unwrap();
    eventually("all of it", || small.used() < 2 * MIB);
    let h = v.find(Ino::ROOT, "h").unwrap().ino;
    v.put(h, 0, &noise(5, MIB as usize));
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}

/// A pack that cannot be sealed could become free space for ever. Each write that was refused waited for it,
/// for two seconds. So the kernel needed minutes to write back what programs had written to a full disk.
#[test]
fn regression_a_wait_for_room_that_was_in_vain_is_not_repeated() {
    let mut world = World::new();
    world.parts.packs = Arc::new(Small {
        inner: world.parts.packs.clone(),
        origin: world.origin.clone(),
        total: 64 * MIB,
        reserve: 0,
        others: Default::default(),
    });
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    world.faults.fail(Fault::Seal, u64::MAX);
    let write = |n: u64| Filesystem::write(&v, f, n * MIB, &noise(n, MIB as usize), None, false).err();
    assert_eq!((0..100).find_map(write), Some(Errno::ENOSPC));
    let began = base::time::monotonic();
    assert!((100..130).all(|n| write(n) == Some(Errno::ENOSPC)));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(45), "30 writes were refused in {took:?}");
    // What is removed is waited for again.
    world.faults.heal();
    v.unlink(Ino::ROOT, b"f").unwrap();
    v.forget(f, 1);
    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    v.mknod(&ROOT, Ino::ROOT, b"h", &node).unwrap();
    v.close().unwrap();
}

/// The volume believes that space is free, but another program took it, and the disk is full in the middle of
/// a write.
#[test]
fn a_write_that_meets_the_end_of_the_disk_leaves_nothing_behind() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 5000));
    world.faults.full_after(10_000);
    assert_eq!(Filesystem::write(&v, f, 5000, &noise(2, 20_000), None, false), Err(Errno::ENOSPC));
    world.faults.heal();
    v.put(f, 5000, &noise(3, 20_000));
    let mut model = noise(1, 5000);
    model.extend(noise(3, 20_000));
    assert!(v.get(f) == model);
    v.close().unwrap();
    drop(v);
    let v = world.open();
    assert!(v.get(f) == model);
    v.close().unwrap();
}

#[test]
fn a_damaged_blob_is_an_error_never_bytes() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 3 * MIB as usize));
    v.core.packs.close_all();
    eventually("sealed", || v.core.packs.all_sealed());
    world.faults.damage(true);
    let mut buf = [0; 4096];
    for _ in 0..3 {
        assert_eq!(v.read(f, 0, &mut buf), Err(Errno::EIO));
    }
    assert_eq!(v.stats().unwrap().io_errors, 3);
    assert!(world.lines.lock().iter().all(|line| line.contains("damaged")), "{:?}", world.lines.lock());
    world.faults.heal();
    assert_eq!(v.read(f, 0, &mut buf), Ok(4096));
    v.close().unwrap();
}

#[test]
fn a_blob_that_is_lost_is_an_error() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 100_000));
    v.close().unwrap();
    drop(v);
    let mut all = Vec::new();
    world
        .parts
        .origin
        .list(&mut |id, _| {
            all.push(id);
            true
        })
        .unwrap();
    world.parts.origin.remove(&all[0]).unwrap();
    let v = world.open();
    let mut buf = [0; 4096];
    assert_eq!(v.read(f, 0, &mut buf), Err(Errno::EIO));
    assert!(world.lines.lock()[0].contains("not here"), "{:?}", world.lines.lock());
    v.close().unwrap();
}

#[test]
fn while_the_origin_is_unreachable_packs_stay_open_and_nothing_is_lost() {
    let world = World::new();
    let v = world.open();
    world.faults.fail(Fault::Seal, u64::MAX);
    let f = v.file(Ino::ROOT, "f");
    for n in 0..20 {
        v.put(f, n * MIB, &noise(n, MIB as usize));
    }
    eventually("the failure is reported", || !world.lines.lock().is_empty());
    let bytes = v.get(f);
    assert!((0..20).all(|n| bytes[(n * MIB) as usize..((n + 1) * MIB) as usize] == noise(n, MIB as usize)));
    v.sync().unwrap();
    assert!(v.close().is_err(), "it cannot be closed in good order");
    drop(v);
    // Opened again while the origin cannot be reached, and once more when it is back.
    let v = world.open();
    assert!(v.get(f) == bytes);
    drop(v);
    world.faults.heal();
    let v = world.open();
    eventually("all is sealed", || world.parts.packs.open_packs().unwrap().is_empty());
    assert!(v.get(f) == bytes);
    v.close().unwrap();
    assert_eq!(world.origin.bytes(), 20 * MIB);
}

#[test]
fn an_origin_that_cannot_delete_keeps_the_volume_going() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, MIB as usize));
    v.core.packs.close_all();
    eventually("sealed", || world.origin.bytes() == MIB);
    world.faults.fail(Fault::Remove, u64::MAX);
    v.unlink(Ino::ROOT, b"f").unwrap();
    v.forget(f, 1);
    eventually("the failure is reported", || !world.lines.lock().is_empty());
    let g = v.file(Ino::ROOT, "g");
    v.put(g, 0, &noise(1, MIB as usize));
    v.sync().unwrap();
    world.faults.heal();
    v.core.packs.close_all();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(v.get(g) == noise(1, MIB as usize), "the same content, written again");
    assert_eq!(world.origin.bytes(), MIB);
    v.close().unwrap();
}

/// One pack that cannot be read must not stop the compaction of others, nor fill the log.
#[test]
fn a_pack_that_cannot_be_read_does_not_stop_the_collector() {
    let world = World::new();
    let v = world.open();
    let mut files = Vec::new();
    for n in 0..4u64 {
        let f = v.file(Ino::ROOT, &format!("f{n}"));
        for m in 0..4 {
            v.put(f, m * MIB, &noise(n * 10 + m, MIB as usize));
        }
        files.push(f);
    }
    v.core.packs.close_all();
    eventually("sealed", || v.core.packs.all_sealed());
    let pack = v.core.extents_at(files[1], 0).extents()[0].pack;
    let Some(meta::PackRow::Sealed { blob, .. }) = v.core.names.pack(pack).unwrap() else { panic!("sealed") };
    world.parts.origin.remove(&blob).unwrap();
    for f in &files {
        v.allocate(*f, 0, 3 * MIB, crate::api::Allocate::PunchHole).unwrap();
    }
    eventually("the others are compacted", || {
        world.origin.bytes() + v.stats().unwrap().open_bytes <= 3 * MIB + MIB / 2
    });
    for n in [0, 2, 3] {
        assert!(v.get(files[n])[3 * MIB as usize..] == noise(n as u64 * 10 + 3, MIB as usize));
    }
    assert_eq!(v.read(files[1], 3 * MIB, &mut [0; 10]), Err(Errno::EIO));
    let lines = world.lines.lock().clone();
    assert_eq!(lines.iter().filter(|line| line.contains("not compacted")).count(), 1, "{lines:?}");
    v.close().unwrap();
}
