//! Space is freed, and stored bytes stay close to live bytes.

use base::size::MIB;

use super::*;

fn write_file(v: &Volume, name: &str, seed: u64, mib: u64) -> Ino {
    let f = v.file(Ino::ROOT, name);
    for n in 0..mib {
        v.put(f, n * MIB, &noise(seed * 1000 + n, MIB as usize));
    }
    f
}

#[test]
fn removing_a_file_frees_its_space() {
    let world = World::new();
    let v = world.open();
    let f = write_file(&v, "f", 1, 10);
    let g = write_file(&v, "g", 2, 2);
    v.core.packs.close_all();
    eventually("it is sealed", || v.core.packs.all_sealed() && world.origin.bytes() == 12 * MIB);
    v.unlink(Ino::ROOT, b"f").unwrap();
    v.forget(f, 1);
    // Well below a second on an idle machine. Nothing else happens on the volume that could start it.
    eventually("its blobs are gone", || world.origin.bytes() == 2 * MIB);
    assert_eq!(v.get(g).len(), 2 * MIB as usize);
    // The counters change right after the last blob is deleted.
    eventually("it is counted", || {
        let stats = v.stats().unwrap();
        (stats.freed_bytes, stats.stored_bytes, stats.garbage_bytes) == (10 * MIB, 2 * MIB, 0)
    });
    // Bytes that never became a blob.
    let h = write_file(&v, "h", 3, 1);
    v.unlink(Ino::ROOT, b"h").unwrap();
    v.forget(h, 1);
    eventually("it is reaped", || v.getattr(h) == Err(Errno::ENOENT));
    v.core.packs.close_all();
    eventually("its pack is gone", || {
        world.parts.packs.open_packs().unwrap().is_empty() && v.stats().unwrap().open_packs == 0
    });
    assert_eq!(world.origin.bytes(), 2 * MIB);
    assert_eq!(world.parts.store.scan(&meta::Key::kind(meta::key::tags::PACK), 100).unwrap().len(), 1);
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}

/// What died between the count of a pack's live bytes and the end of its sealing was never judged: its blob
/// stayed until the volume was opened again.
#[test]
fn regression_what_dies_while_its_pack_is_being_sealed_frees_its_space() {
    let world = World::new();
    let v = world.open();
    let f = write_file(&v, "f", 1, 1);
    let sealer = v.core.sweep.hold_up_sealer();
    v.core.packs.close_all();
    eventually("its live bytes are counted", || v.core.garbage.totals().stored_bytes == MIB);
    assert!(!v.core.packs.all_closed_sealed(), "the sealer waits");
    v.unlink(Ino::ROOT, b"f").unwrap();
    v.forget(f, 1);
    eventually("it is reaped", || v.getattr(f) == Err(Errno::ENOENT));
    // A round of the sweeper.
    v.core.judge_touched().unwrap();
    drop(sealer);
    eventually("its blob is gone", || world.origin.bytes() == 0);
    v.close().unwrap();
}

#[test]
fn random_overwrites_store_at_most_twice_what_is_live() {
    let world = World::new();
    let v = world.open();
    let live = 32 * MIB;
    let f = write_file(&v, "f", 1, 32);
    let mut model = v.get(f);
    let mut worst = 0;
    for round in 0..16_000u64 {
        let at = (round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % (live / 4096) * 4096;
        let bytes = noise(round, 4096);
        v.put(f, at, &bytes);
        model[at as usize..at as usize + 4096].copy_from_slice(&bytes);
        if round % 500 == 0 {
            let open: u64 = v.stats().unwrap().open_bytes;
            worst = worst.max(world.origin.bytes() + open);
        }
    }
    assert!(v.get(f) == model);
    eventually("it comes to rest", || world.origin.bytes() <= live * 2);
    let stats = v.stats().unwrap();
    // While writes continue, bytes that wait for the next flush to be deleted are added to that.
    assert!(worst <= live * 2 + live / 2, "{} MiB stored, {stats:?}", worst / MIB);
    v.close().unwrap();
    drop(v);
    let v = world.open();
    assert!(v.get(f) == model);
    v.close().unwrap();
}

#[test]
fn a_blob_that_two_packs_are_goes_with_the_last() {
    let bytes = noise(5, 4 * MIB as usize);
    // A pack that is left alone for a second is sealed. On a busy machine it may not be full by then.
    let full_packs = || {
        let world = World::new();
        let (v, began) = (world.open(), Instant::now());
        let files = ["a", "b"].map(|name| {
            let f = v.file(Ino::ROOT, name);
            for n in 0..4 {
                v.put(f, n * MIB, &bytes[(n * MIB) as usize..((n + 1) * MIB) as usize]);
            }
            f
        });
        (began.elapsed() < Duration::from_secs(1)).then_some((world, v, files))
    };
    let (world, v, files) = (0..20).find_map(|_| full_packs()).expect("two files in time");
    v.core.packs.close_all();
    eventually("sealed", || v.core.packs.all_sealed());
    let stats = v.stats().unwrap();
    assert_eq!((stats.sealed_packs, stats.stored_bytes, stats.dedup_bytes), (2, 4 * MIB, 4 * MIB));
    v.unlink(Ino::ROOT, b"a").unwrap();
    v.forget(files[0], 1);
    eventually("one is gone", || v.stats().unwrap().sealed_packs == 1);
    std::thread::sleep(Duration::from_millis(700));
    assert!(v.get(files[1]) == bytes);
    assert_eq!(v.stats().unwrap().stored_bytes, 4 * MIB);
    v.unlink(Ino::ROOT, b"b").unwrap();
    v.forget(files[1], 1);
    eventually("the blob is gone", || world.origin.bytes() == 0);
    v.close().unwrap();
}

#[test]
fn small_packs_are_merged() {
    let world = World::new();
    let v = world.open();
    let mut files = Vec::new();
    for n in 0..20 {
        let f = v.file(Ino::ROOT, &format!("f{n}"));
        v.put(f, 0, &noise(n, 10_000));
        v.core.packs.close_all();
        eventually("sealed", || v.core.packs.all_sealed());
        files.push(f);
    }
    v.core.packs.close_all();
    eventually("few are left", || {
        v.core.packs.close_all();
        v.stats().unwrap().sealed_packs <= 8
    });
    for (n, f) in files.iter().enumerate() {
        assert!(v.get(*f) == noise(n as u64, 10_000));
    }
    v.close().unwrap();
}

#[test]
fn a_crowded_page_becomes_one_extent_when_it_is_left_alone() {
    let world = World::new();
    let v = world.open();
    let f = write_file(&v, "f", 1, 4);
    let mut model = v.get(f);
    let began = Instant::now();
    for n in 0..200u64 {
        let at = (n * 37 % 1024) * 4096;
        v.put(f, at, &noise(n, 4096));
        model[at as usize..at as usize + 4096].copy_from_slice(&noise(n, 4096));
    }
    // On a busy machine it may have been left alone for a moment.
    let crowd = v.core.extents_at(f, 0).extents().len();
    assert!(crowd > 64 || began.elapsed() > Duration::from_secs(2), "{crowd} extents");
    eventually("it is one", || v.core.extents_at(f, 0).extents().len() == 1);
    assert!(v.get(f) == model);
    // Tiny writes without a pause do not let a page grow without bound.
    for n in 0..3000u64 {
        let at = (n * 1031 % (1 << 20)) * 4;
        v.put(f, at, &[n as u8; 3]);
        model[at as usize..at as usize + 3].copy_from_slice(&[n as u8; 3]);
    }
    assert!(v.core.extents_at(f, 0).extents().len() <= crate::gc::crowd::FAR_TOO_MANY + 2);
    assert!(v.get(f) == model);
    v.close().unwrap();
}

#[test]
fn what_a_crash_left_open_is_sealed_or_thrown_away() {
    // A pack that is left alone for a second is sealed. On a busy machine that may be before the crash.
    let crashed = || {
        let world = World::new();
        let v = world.open();
        let f = v.file(Ino::ROOT, "f");
        v.put(f, 0, &noise(1, 100_000));
        let began = Instant::now();
        let g = write_file(&v, "g", 1, 1);
        v.unlink(Ino::ROOT, b"g").unwrap();
        v.forget(g, 1);
        eventually("g is reaped", || v.getattr(g) == Err(Errno::ENOENT));
        drop(v);
        let open = world.parts.packs.open_packs().unwrap().len();
        (open == 2 || began.elapsed() < Duration::from_secs(1)).then_some((world, f, open))
    };
    let (world, f, open) = (0..20).find_map(|_| crashed()).expect("a crash in time");
    assert_eq!(open, 2);
    // And a pack that was created just before the kill, without a row yet.
    world.parts.packs.create(base::PackNo(1 << 40)).unwrap();
    let v = world.open();
    assert!(v.get(f) == noise(1, 100_000));
    eventually("all are dealt with", || world.parts.packs.open_packs().unwrap().is_empty());
    assert_eq!(world.origin.bytes(), 100_000);
    eventually("and counted", || v.stats().unwrap().stored_bytes == 100_000);
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}

/// A content row outlives its pack. A file with the same content must then be stored anew.
#[test]
fn content_that_was_collected_is_stored_again() {
    let world = World::new();
    let v = world.open();
    let body = noise(1, 50_000);
    for round in 0..3 {
        let f = v.file(Ino::ROOT, "f");
        v.put(f, 0, &body);
        assert!(v.get(f) == body, "round {round}");
        v.core.packs.close_all();
        eventually("sealed", || v.core.packs.all_sealed());
        v.unlink(Ino::ROOT, b"f").unwrap();
        v.forget(f, 1);
        eventually("gone", || world.origin.bytes() == 0);
    }
    v.close().unwrap();
}
