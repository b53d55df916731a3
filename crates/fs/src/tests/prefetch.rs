//! Prefetch from a remote origin: which blobs are requested in advance.

use std::collections::HashSet;
use std::ops::Range;

use base::BlobId;
use base::size::{BLOB_MAX, KIB, MIB};
use blob::completion::{Completion, Missed, Start};
use blob::{Access, BlobError, BlobSource};

use super::*;
use crate::api::Fetched;

/// A source whose local blobs the test chooses, and which records the prefetches that were requested.
struct Watched {
    inner: Arc<dyn BlobSource>,
    local: Mutex<HashSet<BlobId>>,
    read: Mutex<Vec<BlobId>>,
    needed: Mutex<Vec<BlobId>>,
    parts: Mutex<Vec<(BlobId, u32, u32)>>,
}

impl Watched {
    /// Makes the world read its blobs through this from now on.
    fn over(world: &mut World) -> Arc<Watched> {
        let watched = Arc::new(Watched {
            inner: world.parts.source.clone(),
            local: Mutex::default(),
            read: Mutex::default(),
            needed: Mutex::default(),
            parts: Mutex::default(),
        });
        world.parts.source = watched.clone();
        watched
    }
}

impl BlobSource for Watched {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read.lock().push(*id);
        self.inner.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.local.lock().contains(id)
    }

    fn will_need(&self, id: &BlobId) {
        assert!(base::thread::may_wait(), "its names may be remote");
        self.needed.lock().push(*id);
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        self.parts.lock().push((*id, offset, len));
    }

    /// Every fetch of a blob that is not local is in flight, and has just ended.
    fn start_read(&self, id: &BlobId, range: Range<u32>, _: Access, completion: Completion) -> Start {
        if self.is_local(id) {
            return Start::Read;
        }
        let mut bytes = vec![0; range.len()];
        let read = self.inner.read_at(id, range.start, &mut bytes);
        completion(read.map(|()| &bytes[..]).map_err(Missed::Failed));
        Start::Pending
    }
}

const PAGES: u64 = 16;
const NONE: [u64; 0] = [];
const PAGE: u64 = BLOB_MAX as u64;

/// A volume with a file of so many pages. In each page, 1 MiB is a blob of its own, and the rest is a hole.
struct Far {
    world: World,
    volume: Volume,
    ino: Ino,
    watched: Arc<Watched>,
    blobs: Vec<BlobId>,
}

impl Far {
    fn new() -> Far {
        let mut world = World::new();
        let v = world.open();
        let ino = v.file(Ino::ROOT, "large");
        (0..PAGES).for_each(|n| v.put(ino, n * PAGE, &noise(n, MIB as usize)));
        v.close().unwrap();
        let watched = Watched::over(&mut world);
        let open = || {
            let volume =
                Volume::open(world.parts.clone(), Options { local: false, ..world.options() }).unwrap();
            let ino = volume.find(Ino::ROOT, "large").unwrap().ino;
            (volume, ino)
        };
        let (volume, ino) = open();
        let blobs = (0..PAGES).map(|page| {
            volume.read(ino, page * PAGE, &mut [0; 10]).unwrap();
            watched.read.lock().pop().unwrap()
        });
        let blobs = blobs.collect();
        volume.close().unwrap();
        watched.needed.lock().clear();
        watched.parts.lock().clear();
        // A volume that was opened again knows nothing of how the file was read.
        let (volume, ino) = open();
        Far { world, volume, ino, watched, blobs }
    }

    fn read(&self, offset: u64, len: u64) {
        let mut buf = vec![0; len as usize];
        self.volume.read(self.ino, offset, &mut buf).unwrap();
    }

    /// The pages whose blobs were requested.
    fn wanted(&self) -> Vec<u64> {
        let needed = std::mem::take(&mut *self.watched.needed.lock());
        let page = |blob: &BlobId| self.blobs.iter().position(|known| known == blob).map(|n| n as u64);
        needed.iter().filter_map(page).collect()
    }

    fn wanted_after(&self, offset: u64, len: u64) -> Vec<u64> {
        self.read(offset, len);
        self.wanted()
    }

    fn close(self) {
        self.volume.close().unwrap();
        drop(self.world);
    }
}

/// Prefetch starts before anything has arrived: a reader that is as fast as the network begins a page while
/// the page before it is still in flight.
#[test]
fn regression_a_stream_is_prefetched_before_anything_has_arrived() {
    let far = Far::new();
    assert_eq!(far.wanted_after(0, 128 * KIB), NONE, "a header is no stream");
    assert_eq!(far.wanted_after(128 * KIB, 896 * KIB), [0, 1], "1 MiB from the beginning is one");
    assert_eq!(far.wanted_after(MIB, MIB), [0, 1, 2]);
    let wanted: Vec<u64> = (2..PAGES * 4).flat_map(|n| far.wanted_after(n * MIB, MIB)).collect();
    assert_eq!(wanted.iter().max(), Some(&(PAGES - 1)));
    assert!((4..PAGES).all(|page| wanted.contains(&page)));
    far.close();
}

/// One read next to a page that happened to be local used to fetch 48 MiB.
#[test]
fn regression_one_read_after_a_local_page_is_no_stream() {
    let far = Far::new();
    far.watched.local.lock().insert(far.blobs[4]);
    assert_eq!(far.wanted_after(5 * PAGE, 128 * KIB), NONE);
    assert_eq!(
        far.wanted_after(5 * PAGE + 128 * KIB, 128 * KIB),
        NONE,
        "two adjacent reads, far from a whole page"
    );
    let wanted: Vec<u64> = (1..4).flat_map(|n| far.wanted_after(5 * PAGE + n * MIB, MIB)).collect();
    assert!(wanted.contains(&6) && wanted.iter().all(|page| *page < 9), "{wanted:?}");
    far.close();
}

#[test]
fn local_blobs_are_not_fetched_and_the_disk_is_told_of_the_next() {
    let far = Far::new();
    far.watched.local.lock().extend(&far.blobs[..7]);
    let wanted: Vec<u64> = (0..8).flat_map(|n| far.wanted_after(n * MIB, MIB)).collect();
    assert!(wanted.contains(&2) && wanted.contains(&8) && !wanted.contains(&6), "{wanted:?}");
    far.close();
}

/// Each step is in a blob of its own. Ranges are requested, and no whole blob.
#[test]
fn steps_over_blobs_want_ranges_only() {
    let far = Far::new();
    for n in 0..8 {
        far.read(n * 2 * PAGE + 5_000, 4_096);
    }
    assert_eq!(far.wanted(), NONE);
    let parts = std::mem::take(&mut *far.watched.parts.lock());
    let (pages, ranges): (Vec<u64>, Vec<(u32, u32)>) = parts
        .iter()
        .map(|(blob, offset, len)| {
            (far.blobs.iter().position(|known| known == blob).unwrap() as u64, (*offset, *len))
        })
        .unzip();
    assert_eq!(pages, [6, 8, 10, 12, 14], "each once, after three were seen, and none past the end");
    assert!(ranges.iter().all(|range| *range == (5_000, 4_096)), "{ranges:?}");
    far.close();
}

#[test]
fn faults_that_go_backward_are_followed_backward() {
    let far = Far::new();
    let end = 9 * PAGE + MIB;
    let wanted: Vec<u64> = (1..=40).flat_map(|n| far.wanted_after(end - n * 64 * KIB, 64 * KIB)).collect();
    assert!(wanted.contains(&8) && wanted.iter().all(|page| *page == 8 || *page == 7), "{wanted:?}");
    far.close();
}

/// Files of one blob each, created one after another, with files between them that are too small for a blob.
#[test]
fn files_that_are_read_one_after_another_go_on_with_the_next() {
    let mut world = World::new();
    let v = world.open();
    let mut inos = Vec::new();
    for n in 0..20_u64 {
        let ino = v.file(Ino::ROOT, &format!("shard-{n}"));
        // In one write: a pack that is left alone for a second becomes a blob.
        v.put(ino, 0, &noise(n, 4 * MIB as usize));
        inos.push(ino);
        let small = v.file(Ino::ROOT, &format!("small-{n}"));
        v.put(small, 0, b"next to nothing");
    }
    v.close().unwrap();
    let watched = Watched::over(&mut world);
    let volume = Volume::open(world.parts.clone(), Options { local: false, ..world.options() }).unwrap();
    let mut buf = vec![0; MIB as usize];
    let mut blobs = Vec::new();
    for ino in &inos[..10] {
        for part in 0..4 {
            volume.read(*ino, part * MIB, &mut buf).unwrap();
        }
        blobs.push(*watched.read.lock().last().unwrap());
        if ino == &inos[0] {
            assert_eq!(*watched.needed.lock(), blobs, "one file is no sequence: only that file is wanted");
        }
    }
    let needed = watched.needed.lock().clone();
    assert!(blobs[2..].iter().all(|blob| needed.contains(blob)), "each before it was read");
    assert_eq!(
        needed.len(),
        18 + 10,
        "each once: all later files up to the last, and each file while it is read"
    );
    volume.close().unwrap();
}

/// Attaches a read to an in-flight fetch. Returns none if that was not possible, and otherwise the
/// completion's result.
fn rides(far: &Far, ino: Ino, offset: u64, len: u32) -> Option<Option<Vec<u8>>> {
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    let then = move |came: Fetched<'_>| {
        *tell.lock() = Some(came.ok().map(<[u8]>::to_vec));
        true
    };
    match far.volume.start_read(&far.volume.plan_read(ino, offset, len), Box::new(then)) {
        Start::Pending => told.lock().clone(),
        _ => None,
    }
}

#[test]
fn a_read_in_flight_is_completed_and_prefetches() {
    let far = Far::new();
    let first = noise(0, MIB as usize);
    assert_eq!(rides(&far, far.ino, 0, 131_072), Some(Some(first[..131_072].to_vec())));
    assert_eq!(rides(&far, far.ino, 131_072, 131_072), Some(Some(first[131_072..262_144].to_vec())));
    assert_eq!(rides(&far, far.ino, 262_144, 131_072), Some(Some(first[262_144..393_216].to_vec())));
    assert!(!far.wanted().is_empty(), "a read answered by a completion counts like any other");
    assert!(far.volume.stats().unwrap().read_bytes >= 262_144);
    // A hole, a range beyond the end, a range across the end of stored data, local data: these are read.
    for (offset, len) in [(2 * MIB, 4096), (PAGES * PAGE, 10), (MIB - 10, 20), (PAGE - 10, 20)] {
        assert_eq!(rides(&far, far.ino, offset, len as u32), None, "{offset}");
    }
    far.watched.local.lock().insert(far.blobs[0]);
    assert_eq!(rides(&far, far.ino, 0, 131_072), None);
    let last = (PAGES - 1) * PAGE + MIB - 100;
    assert_eq!(
        rides(&far, far.ino, last, 4096).flatten().map(|bytes| bytes.len()),
        Some(100),
        "up to the end"
    );
    far.volume.close().unwrap();
    drop(far.world);
}

/// Names of the next blobs may have to be fetched. The thread that receives requests leaves that to another
/// thread.
#[test]
fn a_thread_that_must_not_wait_leaves_prefetch_to_another() {
    let far = Far::new();
    let options = Options { frozen: true, local: false, names_local: false, ..far.world.options() };
    let volume = Arc::new(Volume::open(far.world.parts.clone(), options).unwrap());
    let (reader, ino) = (Arc::clone(&volume), far.ino);
    let read = move || {
        base::thread::must_not_wait();
        let mut buf = vec![0; 131_072];
        (0..8).for_each(|n| assert_eq!(reader.read(ino, n * 131_072, &mut buf), Ok(131_072)));
    };
    base::thread::spawn("test", read).unwrap().join().unwrap();
    eventually("the next pages are wanted", || far.wanted().contains(&1));
    volume.close().unwrap();
}
