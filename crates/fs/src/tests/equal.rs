//! Equal bytes are stored once, and no name refers to lost bytes.

use base::BlobId;
use base::size::{KIB, MIB};

use super::*;

/// Turns every pack into a blob.
fn seal(v: &Volume) {
    v.core.packs.close_all();
    eventually("all is sealed", || v.core.packs.all_sealed());
}

fn blobs(world: &World) -> Vec<BlobId> {
    let mut all = Vec::new();
    Origin::list(&*world.origin, &mut |id, _| {
        all.push(id);
        true
    })
    .unwrap();
    all
}

/// Equal small files used to be stored as a reference to a lost blob: written and synced without an error,
/// and unreadable for good.
#[test]
fn regression_lost_bytes_are_no_target_and_heal_when_they_are_written_again() {
    let world = World::new();
    let v = world.open();
    let body = noise(1, 3000);
    for name in ["f", "old", "also"] {
        let f = v.file(Ino::ROOT, name);
        v.put(f, 0, &body);
    }
    // Other bytes in the same pack, so that the blob is not restored under its name.
    let other = v.file(Ino::ROOT, "other");
    v.put(other, 0, &noise(2, 3000));
    seal(&v);
    v.close().unwrap();
    drop(v);
    for id in blobs(&world) {
        Origin::remove(&*world.origin, &id).unwrap();
    }
    let v = world.open();
    let old = v.find(Ino::ROOT, "old").unwrap().ino;
    let mut buf = [0; 3000];
    assert_eq!(v.read(old, 0, &mut buf), Err(Errno::EIO));
    v.unlink(Ino::ROOT, b"f").unwrap();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &body);
    let new = v.file(Ino::ROOT, "new");
    v.put(new, 0, &body);
    v.sync().unwrap();
    assert_eq!(v.stats().unwrap().dedup_hits, 1, "the second one refers to the first");
    seal(&v);
    v.close().unwrap();
    drop(v);
    let v = world.open();
    for name in ["f", "new", "old", "also"] {
        let f = v.find(Ino::ROOT, name).unwrap().ino;
        assert!(v.get(f) == body, "{name}");
    }
    let other = v.find(Ino::ROOT, "other").unwrap().ino;
    assert_eq!(v.read(other, 0, &mut buf), Err(Errno::EIO), "that was not written again");
    assert!(world.lines.lock().iter().any(|line| line.contains("can be read again")));
    v.close().unwrap();
}

/// A remote origin is asked before any name refers to its blobs, and never by a thread that a writer waits
/// for.
#[test]
fn a_far_origin_is_asked_before_its_blobs_are_referred_to() {
    let world = World::new();
    let options = || Options { local: false, ..world.options() };
    let v = Volume::open(world.parts.clone(), options()).unwrap();
    let (kept, gone) = (noise(1, 3000), noise(2, 3000));
    for (name, body) in [("kept", &kept), ("gone", &gone)] {
        let f = v.file(Ino::ROOT, name);
        v.put(f, 0, body);
        seal(&v);
    }
    v.close().unwrap();
    drop(v);
    Origin::remove(&*world.origin, &BlobId(*blake3::hash(&gone).as_bytes())).unwrap();
    let v = Volume::open(world.parts.clone(), options()).unwrap();
    let (a, b) = (v.file(Ino::ROOT, "a"), v.file(Ino::ROOT, "b"));
    let asked = world.faults.calls(blob::failing::Op::Look);
    v.put(a, 0, &kept);
    v.put(b, 0, &gone);
    assert_eq!(world.faults.calls(blob::failing::Op::Look), asked);
    eventually("one refers to what is there", || v.stats().unwrap().dedup_hits == 1);
    let gone_file = v.find(Ino::ROOT, "gone").unwrap().ino;
    let mut buf = [0; 3000];
    eventually("and the other heals", || v.read(gone_file, 0, &mut buf) == Ok(3000));
    assert!(buf[..] == gone[..]);
    v.close().unwrap();
    drop(v);
    let v = Volume::open(world.parts.clone(), options()).unwrap();
    assert!(v.get(a) == kept && v.get(b) == gone);
    v.close().unwrap();
}

/// How a file's bytes arrive.
type Arrival = fn(&Volume, Ino, &[u8]);

fn pieces(len: usize, of: usize) -> Vec<(usize, usize)> {
    (0..len).step_by(of).map(|at| (at, (at + of).min(len))).collect()
}

fn in_order(v: &Volume, f: Ino, bytes: &[u8], of: usize) {
    pieces(bytes.len(), of).into_iter().for_each(|(from, to)| v.put(f, from as u64, &bytes[from..to]));
}

fn arrivals() -> Vec<(&'static str, Arrival)> {
    vec![
        ("mebibytes", |v, f, bytes| in_order(v, f, bytes, MIB as usize)),
        ("128 KiB", |v, f, bytes| in_order(v, f, bytes, 128 << 10)),
        ("odd sizes", |v, f, bytes| in_order(v, f, bytes, 300_001)),
        ("mebibytes, the last first", |v, f, bytes| {
            let all = pieces(bytes.len(), MIB as usize);
            all.into_iter().rev().for_each(|(from, to)| v.put(f, from as u64, &bytes[from..to]));
        }),
        ("128 KiB, in no order", |v, f, bytes| {
            let mut all = pieces(bytes.len(), 128 << 10);
            all.sort_by_key(|(from, _)| (from >> 17) * 37 % 64);
            all.into_iter().for_each(|(from, to)| v.put(f, from as u64, &bytes[from..to]));
        }),
        ("among others", |v, f, bytes| {
            for (n, (from, to)) in pieces(bytes.len(), 100 << 10).into_iter().enumerate() {
                v.put(f, from as u64, &bytes[from..to]);
                let other = v.file(Ino::ROOT, &format!("other {f:?} {n}"));
                v.put(other, 0, &noise(f.0 * 1000 + n as u64, 600));
            }
        }),
        ("a first part, and much later the rest", |v, f, bytes| {
            let half = bytes.len() / 2;
            v.put(f, 0, &bytes[..half]);
            seal(v);
            v.put(f, half as u64, &bytes[half..]);
        }),
    ]
}

/// Files that were copied with `sendfile` and the like used to be stored again: the same bytes arrived in
/// other pieces, or in another order.
#[test]
fn regression_equal_pages_are_stored_once_however_their_bytes_arrive() {
    for size in [700 * KIB, 9 * MIB + 300 * KIB] {
        let world = World::new();
        let body = noise(size, size as usize);
        let mut v = world.open();
        let mut files = Vec::new();
        for (n, (what, arrive)) in arrivals().into_iter().enumerate() {
            let f = v.file(Ino::ROOT, &format!("file {n}"));
            arrive(&v, f, &body);
            assert!(v.get(f) == body, "{what}");
            files.push((what, f));
            match n % 3 {
                // Found in the background, before or after sealing.
                0 => seal(&v),
                1 => v.core.dedup(crate::gc::fresh::When::Now, Duration::from_secs(60)).unwrap(),
                _ => {
                    v.close().unwrap();
                    drop(v);
                    v = world.open();
                }
            }
        }
        v.collect(&mut |_| ()).unwrap();
        seal(&v);
        v.collect(&mut |_| ()).unwrap();
        let stats = v.stats().unwrap();
        let small = 64 * KIB * files.len() as u64;
        assert!(
            stats.stored_bytes < size + small,
            "{} KiB of {} KiB: {stats:?}",
            stats.stored_bytes >> 10,
            size >> 10
        );
        for (what, f) in &files {
            assert!(v.get(*f) == body, "{what}");
        }
        v.close().unwrap();
        assert_eq!(*world.lines.lock(), [""; 0]);
    }
}

/// A page that arrived in pieces of 1 MiB is a blob as it is: nothing is read again or copied.
#[test]
fn a_page_that_came_whole_is_stored_once_without_being_copied() {
    let world = World::new();
    let v = world.open();
    let body = noise(1, 8 << 20);
    for (name, order) in [("a", [0, 1, 2, 3, 4, 5, 6, 7]), ("b", [6, 1, 7, 5, 0, 4, 2, 3])] {
        let f = v.file(Ino::ROOT, name);
        for n in order {
            v.put(f, n * MIB, &body[(n * MIB) as usize..((n + 1) * MIB) as usize]);
        }
    }
    seal(&v);
    let stats = v.stats().unwrap();
    assert_eq!((stats.stored_bytes, stats.dedup_bytes, stats.moved_bytes), (8 * MIB, 8 * MIB, 0));
    v.close().unwrap();
}

/// The kernel writes back in pieces of 1 MiB, starting anywhere. The part of a piece that begins a page used
/// to be stored apart from the rest of the page, which was then copied.
#[test]
fn regression_mebibytes_across_the_end_of_a_page_are_written_once() {
    let world = World::new();
    let v = world.open();
    let body = noise(1, 24 << 20);
    // Many other files have packs of their own at the same time.
    const OTHERS: u64 = 40;
    for other in 0..OTHERS {
        let f = v.file(Ino::ROOT, &format!("other {other}"));
        v.put(f, 0, &noise(100 + other, 1 << 20));
    }
    let f = v.file(Ino::ROOT, "f");
    // The last piece comes first, so the others are no appends.
    let (head, last) = (300 * KIB as usize, 23 * MIB as usize);
    v.put(f, last as u64, &body[last..]);
    v.put(f, 0, &body[..head]);
    in_order_from(&v, f, &body[..last], head);
    seal(&v);
    let stats = v.stats().unwrap();
    assert_eq!(
        (stats.moved_bytes, stats.sealed_packs),
        (0, OTHERS + 7),
        "six pages, and the bytes before the first full piece"
    );
    assert!(v.get(f) == body);
    v.close().unwrap();
}

fn in_order_from(v: &Volume, f: Ino, bytes: &[u8], from: usize) {
    for at in (from..bytes.len()).step_by(MIB as usize) {
        v.put(f, at as u64, &bytes[at..bytes.len().min(at + MIB as usize)]);
    }
}

/// Pages that arrived in several pieces used to be copied into one before anything was equal to them: every
/// byte was written twice.
#[test]
fn regression_a_page_in_pieces_is_copied_only_for_an_equal_one() {
    let world = World::new();
    let v = world.open();
    let body = noise(1, 3 << 20);
    let among_others = arrivals()[5].1;
    let first = v.file(Ino::ROOT, "first");
    among_others(&v, first, &body);
    v.core.dedup(crate::gc::fresh::When::Now, Duration::from_secs(60)).unwrap();
    assert_eq!(v.stats().unwrap().moved_bytes, 0);
    let second = v.file(Ino::ROOT, "second");
    among_others(&v, second, &body);
    v.core.dedup(crate::gc::fresh::When::Now, Duration::from_secs(60)).unwrap();
    let stats = v.stats().unwrap();
    assert_eq!(stats.moved_bytes, 3 * MIB, "the second one is copied");
    assert!(stats.dedup_bytes >= 3 * MIB, "the first one refers to the copy: {stats:?}");
    assert!(v.get(first) == body && v.get(second) == body);
    v.close().unwrap();
}

/// A database that changes a little here and there is not copied again and again.
#[test]
fn a_page_of_which_little_was_written_is_left_alone() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    in_order(&v, f, &noise(1, 4 << 20), MIB as usize);
    seal(&v);
    eventually("it was looked at", || v.core.fresh.is_empty());
    for n in 0..20 {
        v.put(f, n * 100_000, &noise(n, 4096));
        v.core.dedup(crate::gc::fresh::When::Now, Duration::from_secs(60)).unwrap();
    }
    assert_eq!(v.stats().unwrap().moved_bytes, 0);
    v.close().unwrap();
}
