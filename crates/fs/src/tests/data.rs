//! File contents: small, large, sparse, truncated, copied, shared.

use base::size::{INLINE_MAX, MIB};
use base::{Ino, Timestamp};

use super::*;
use crate::api::{Allocate, Seek, SetTime, XattrMode};

#[test]
fn a_file_goes_from_inline_to_packed_and_back_again() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, b"hello");
    assert_eq!(v.get(f), b"hello");
    assert_eq!(v.stats().unwrap().open_packs, 0, "a small file needs no pack");
    v.put(f, 10, b"world");
    assert_eq!(v.get(f), b"hello\0\0\0\0\0world");
    let mut model = v.get(f);
    model.resize(400, 0);
    v.cut(f, 400);
    assert_eq!(v.get(f), model);
    // Grows past the bound by a write that overlaps, and by one that leaves a hole.
    v.put(f, 380, &noise(1, 600));
    model.resize(980, 0);
    model[380..980].copy_from_slice(&noise(1, 600));
    assert_eq!(v.get(f), model);
    v.cut(f, 0);
    v.put(f, 0, &noise(2, INLINE_MAX));
    assert_eq!(v.get(f), noise(2, INLINE_MAX));
    v.put(f, 10_000, b"x");
    let mut model = noise(2, INLINE_MAX);
    model.resize(10_000, 0);
    model.push(b'x');
    assert_eq!(v.get(f), model);
    assert_eq!(v.getattr(f).unwrap().size, 10_001);
    // An inline file that is only extended.
    let g = v.file(Ino::ROOT, "g");
    v.put(g, 0, b"abc");
    assert_eq!(v.cut(g, 5000).size, 5000);
    let mut model = b"abc".to_vec();
    model.resize(5000, 0);
    assert_eq!(v.get(g), model);
    v.close().unwrap();
}

#[test]
fn large_files_are_read_as_they_were_written_also_when_sealed_and_reopened() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    let bytes = noise(7, 11 * MIB as usize + 12_345);
    for (n, piece) in bytes.chunks(MIB as usize - 4096).enumerate() {
        v.put(f, n as u64 * (MIB - 4096), piece);
    }
    assert!(v.get(f) == bytes);
    v.close().unwrap();
    drop(v);
    assert_eq!(world.parts.packs.open_packs().unwrap(), [], "a closed volume has no open packs");
    let v = world.open();
    assert!(v.get(f) == bytes);
    let attr = v.getattr(f).unwrap();
    assert_eq!(attr.blocks, bytes.len().div_ceil(512) as u64);
    v.close().unwrap();
}

#[test]
fn sparse_files_of_any_size() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    let far = 5 << 40;
    v.put(f, far, b"end");
    v.put(f, 100 * MIB, b"middle");
    let attr = v.getattr(f).unwrap();
    assert_eq!((attr.size, attr.blocks), (far + 3, 1));
    let mut buf = [1u8; 100];
    assert_eq!(v.read(f, far - 97, &mut buf).unwrap(), 100);
    assert_eq!((&buf[..97], &buf[97..]), (&[0u8; 97][..], &b"end"[..]));
    assert_eq!(v.seek(f, 0, Seek::Data).unwrap(), 100 * MIB);
    assert_eq!(v.seek(f, 0, Seek::Hole).unwrap(), 0);
    assert_eq!(v.seek(f, 100 * MIB, Seek::Hole).unwrap(), 100 * MIB + 6);
    assert_eq!(v.seek(f, 100 * MIB + 6, Seek::Data).unwrap(), far);
    assert_eq!(v.seek(f, far, Seek::Hole).unwrap(), far + 3);
    assert_eq!(v.seek(f, far + 3, Seek::Data), Err(Errno::ENXIO));
    v.cut(f, far);
    assert_eq!(v.seek(f, 100 * MIB + 6, Seek::Data), Err(Errno::ENXIO));
    assert_eq!(v.seek(f, far - 1, Seek::Hole).unwrap(), far - 1);
    v.cut(f, 100 * MIB + 3);
    v.cut(f, 100 * MIB + 10);
    let mut buf = [1u8; 20];
    assert_eq!(v.read(f, 100 * MIB, &mut buf).unwrap(), 10);
    assert_eq!(&buf[..10], b"mid\0\0\0\0\0\0\0");
    let write = |at| Filesystem::write(&v, f, at, b"xy", None, false);
    assert_eq!(write(base::size::FILE_MAX - 1), Err(Errno::EFBIG));
    assert_eq!(write(u64::MAX), Err(Errno::EFBIG));
    write(base::size::FILE_MAX - 2).unwrap();
    v.close().unwrap();
}

#[test]
fn equal_small_files_are_stored_once() {
    let world = World::new();
    let v = world.open();
    let body = noise(3, 70_000);
    for n in 0..10 {
        let f = v.file(Ino::ROOT, &format!("f{n}"));
        v.put(f, 0, &body);
    }
    let stats = v.stats().unwrap();
    assert_eq!((stats.dedup_hits, stats.dedup_bytes), (9, 9 * 70_000));
    assert_eq!(stats.written_bytes, 70_000);
    assert_eq!(stats.logical_bytes, 700_000);
    // When one of them changes, the others stay as they were.
    let f3 = v.find(Ino::ROOT, "f3").unwrap().ino;
    v.put(f3, 5, b"mine");
    let f4 = v.find(Ino::ROOT, "f4").unwrap().ino;
    assert_eq!(v.get(f4), body);
    assert_eq!(&v.get(f3)[5..9], b"mine");
    v.close().unwrap();
}

#[test]
fn fallocate_makes_holes_zeros_and_room() {
    let world = World::new();
    let v = world.open();
    for size in [300usize, 9 * MIB as usize] {
        let f = v.file(Ino::ROOT, &format!("f{size}"));
        let mut model = noise(1, size);
        for (n, piece) in model.chunks(MIB as usize).enumerate() {
            v.put(f, n as u64 * MIB, piece);
        }
        let (at, len) = (size / 5, size / 2);
        v.allocate(f, at as u64, len as u64, Allocate::PunchHole).unwrap();
        model[at..at + len].fill(0);
        assert!(v.get(f) == model, "punch in {size}");
        v.allocate(f, 0, size as u64 + 5000, Allocate::Reserve { keep_size: true }).unwrap();
        assert_eq!(v.getattr(f).unwrap().size, size as u64);
        v.allocate(f, size as u64, 5000, Allocate::Reserve { keep_size: false }).unwrap();
        model.resize(size + 5000, 0);
        assert!(v.get(f) == model, "reserve in {size}");
        v.allocate(f, 10, 100, Allocate::Zero { keep_size: false }).unwrap();
        model[10..110].fill(0);
        assert!(v.get(f) == model, "zero in {size}");
        v.allocate(f, size as u64, 10_000, Allocate::Zero { keep_size: false }).unwrap();
        model.resize(size + 10_000, 0);
        assert!(v.get(f) == model, "zero beyond the end of {size}");
    }
    v.close().unwrap();
}

#[test]
fn copying_a_range_moves_no_bytes() {
    let world = World::new();
    let v = world.open();
    let (a, b) = (v.file(Ino::ROOT, "a"), v.file(Ino::ROOT, "b"));
    let bytes = noise(9, 6 * MIB as usize + 77);
    for (n, piece) in bytes.chunks(MIB as usize).enumerate() {
        v.put(a, n as u64 * MIB, piece);
    }
    let written = v.stats().unwrap().written_bytes;
    assert_eq!(v.copy_range(a, 1000, b, 5_000_000, u64::MAX / 2).unwrap(), bytes.len() as u64 - 1000);
    assert_eq!(v.stats().unwrap().written_bytes, written);
    let mut model = vec![0; 5_000_000];
    model.extend_from_slice(&bytes[1000..]);
    assert!(v.get(b) == model);
    // Inline on both sides.
    let s = v.file(Ino::ROOT, "s");
    v.put(s, 0, b"small");
    assert_eq!(v.copy_range(s, 1, b, 3, 3).unwrap(), 3);
    model[3..6].copy_from_slice(b"mal");
    assert!(v.get(b) == model);
    assert_eq!(v.copy_range(a, 0, s, 2, 1000).unwrap(), 1000);
    let mut small = b"sm".to_vec();
    small.extend_from_slice(&bytes[..1000]);
    assert_eq!(v.get(s), small);
    assert_eq!(v.copy_range(a, 0, a, 10, 100), Err(Errno::EINVAL));
    assert_eq!(v.copy_range(a, 100_000_000, b, 0, 10), Ok(0));
    v.close().unwrap();
}

#[test]
fn times_move_as_posix_says_and_cached_writes_leave_them() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    let old = Timestamp(1_000_000_000);
    let set = SetAttr {
        atime: Some(crate::api::SetTime::To(old)),
        mtime: Some(crate::api::SetTime::To(old)),
        ..SetAttr::default()
    };
    v.setattr(&ROOT, f, &set).unwrap();
    let before = v.getattr(f).unwrap();
    Filesystem::write(&v, f, 0, &noise(1, 100), None, true).unwrap();
    Filesystem::write(&v, f, 100, &noise(1, 5000), None, true).unwrap();
    let after = v.getattr(f).unwrap();
    assert_eq!((after.mtime, after.ctime, after.size), (old, before.ctime, 5100));
    v.get(f);
    assert_eq!(v.getattr(f).unwrap().atime, old, "a read moves no time");
    std::thread::sleep(base::time::TICK_MAX);
    v.put(f, 0, b"x");
    let after = v.getattr(f).unwrap();
    assert!(after.mtime > old && after.ctime > before.ctime);
    v.close().unwrap();
}

/// Set-id bits and capabilities are cleared before another user changes bytes with fallocate(2) or
/// copy_file_range(2).
#[test]
fn regression_privileges_go_before_fallocate_and_copies() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 9000));
    let mode = |perm| SetAttr { perm: Some(perm), ..SetAttr::default() };
    let other = Caller { uid: 1000, gid: 1000, pid: u32::MAX };
    for (caller, perm, left) in [
        (Caller::default(), 0o6777, 0o6777),
        (other, 0o6777, 0o777),
        (Caller { gid: v.getattr(f).unwrap().gid, ..other }, 0o6767, 0o2767),
        (other, 0o755, 0o755),
    ] {
        v.setattr(&Caller::default(), f, &mode(perm)).unwrap();
        assert_eq!(v.drop_privileges(&caller, f), Ok(perm != left), "{caller:?} of {perm:o}");
        assert_eq!(v.getattr(f).unwrap().perm, left, "{caller:?} of {perm:o}");
    }
    // Every operation removes a capability, even one that changes nothing else.
    let name = b"security.capability";
    for how in
        [Allocate::Reserve { keep_size: true }, Allocate::PunchHole, Allocate::Zero { keep_size: false }]
    {
        v.setxattr(f, name, b"\x01\0\0\x02", XattrMode::Set, false).unwrap();
        v.allocate(f, 0, 100, how).unwrap();
        assert_eq!(v.getxattr(f, name), Err(Errno::ENODATA), "{how:?}");
    }
    v.close().unwrap();
}

/// With relatime, reading a listing or a link updates the access time, as reading a file does. They used to
/// be left out.
#[test]
fn regression_relatime_moves_the_times_of_directories_and_links() {
    let world = World::new();
    let v = Volume::open(
        world.parts.clone(),
        Options { atime: crate::volume::Atime::Relative, ..world.options() },
    )
    .unwrap();
    v.file(Ino::ROOT, "f");
    let link = v.symlink(&Caller::default(), Ino::ROOT, b"l", b"f").unwrap().attr.ino;
    let look = |ino| v.getattr(ino).unwrap();
    let list = || v.readdir(Ino::ROOT, 0, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    for (ino, read) in
        [(Ino::ROOT, &list as &dyn Fn()), (link, &|| assert_eq!(v.readlink(link).unwrap(), b"f"))]
    {
        let past = SetAttr { atime: Some(SetTime::To(Timestamp(5))), ..SetAttr::default() };
        v.setattr(&Caller::default(), ino, &past).unwrap();
        let before = look(ino);
        // Names created within one tick of the clock put a directory's times a few nanoseconds ahead of it.
        std::thread::sleep(2 * base::time::TICK_MAX);
        read();
        let first = look(ino);
        assert!(first.atime > before.atime && first.atime >= first.ctime);
        assert_eq!((first.mtime, first.ctime), (before.mtime, before.ctime), "only that one moves");
        read();
        assert_eq!(look(ino).atime, first.atime);
    }
    v.close().unwrap();
}

/// Times of all years are kept, by the metadata engine, its log and its database: not only those of 1677 to
/// 2262.
#[test]
fn regression_times_of_far_years_are_kept() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    for seconds in [-62_135_596_800, -1, 9_999_999_999, 13_569_465_600, i64::MAX] {
        let at = Timestamp::from_parts(seconds, 123_456_789);
        let set = SetAttr {
            atime: Some(SetTime::To(at)),
            mtime: Some(SetTime::To(Timestamp(7))),
            ..SetAttr::default()
        };
        v.setattr(&Caller::default(), f, &set).unwrap();
        let found = v.getattr(f).unwrap();
        assert_eq!((found.atime, found.mtime), (at, Timestamp(7)));
    }
    v.close().unwrap();
    let v = world.open();
    assert_eq!(v.getattr(f).unwrap().atime, Timestamp::from_parts(i64::MAX, 123_456_789));
    v.close().unwrap();
}

#[test]
fn relatime_moves_the_access_time_when_it_is_behind() {
    let world = World::new();
    let v = Volume::open(
        world.parts.clone(),
        Options { atime: crate::volume::Atime::Relative, ..world.options() },
    )
    .unwrap();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, b"x");
    // The clock moves in ticks. In the tick of the write, each read would move the time.
    std::thread::sleep(std::time::Duration::from_millis(20));
    v.get(f);
    let first = v.getattr(f).unwrap();
    assert!(first.atime >= first.mtime);
    v.get(f);
    assert_eq!(v.getattr(f).unwrap().atime, first.atime);
    v.close().unwrap();
}

#[test]
fn reads_are_right_while_packs_are_sealed() {
    let world = World::new();
    let v = Arc::new(world.open());
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let v = v.clone();
            std::thread::spawn(move || {
                let f = v.file(Ino::ROOT, &format!("f{t}"));
                let mut model = vec![0u8; 3 * MIB as usize];
                for round in 0..300u64 {
                    let len = 1000 + (round * 7919 % 60_000) as usize;
                    let at = (round * 104_729 + t * 31) as usize % (model.len() - len);
                    let bytes = noise(round * 10 + t, len);
                    v.put(f, at as u64, &bytes);
                    model[at..at + len].copy_from_slice(&bytes);
                    if round % 20 == 0 {
                        v.core.packs.close_all();
                    }
                    let mut back = vec![0; len + 500];
                    let from = at.saturating_sub(250);
                    let n = v.read(f, from as u64, &mut back).unwrap();
                    assert!(back[..n] == model[from..from + n], "thread {t} round {round}");
                }
                let size = v.getattr(f).unwrap().size as usize;
                assert!(v.get(f) == model[..size]);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}
