//! Tests of the cache: as an origin, its reads, its room, its disk in trouble, and its removals.

mod beside;
mod conformance;
mod parts;
mod random;
mod reads;
mod rest;

mod room;
mod stores;
mod waiters;

use std::collections::HashSet;
use std::fs;
use std::time::Instant;

use base::size::{BLOB_MAX, GROUP, MIB};
use blob::Records;
use fetch::Verify;
use proptest::prelude::*;

use super::*;
use parts::{Disk, Far, Noted, Trouble};

/// Bytes that differ for every seed, without a random generator.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut out: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    out.truncate(len);
    out
}

fn options() -> CacheOptions {
    CacheOptions {
        floor: 0,
        look_again: Duration::from_millis(100),
        doubt: Duration::ZERO,
        walk_pause: Duration::ZERO,
        ..CacheOptions::default()
    }
}

/// What the fleet knows of a cache.
#[derive(Default)]
struct Watched(Mutex<HashSet<BlobId>>);

impl Watch for Watched {
    fn inserted(&self, id: &BlobId) {
        self.0.lock().insert(*id);
    }

    fn evicted(&self, id: &BlobId) {
        self.0.lock().remove(id);
    }

    fn cost(&self, _: &BlobId) -> crate::residency::Cost {
        crate::residency::Cost::Origin
    }
}

/// A cache with its surroundings.
struct Home {
    cache: Option<NodeCache>,
    far: Arc<Far>,
    noted: Arc<Noted>,
    disk: Arc<Disk>,
    lines: Arc<Mutex<Vec<String>>>,
    watched: Arc<Watched>,
    /// Whether the origin belongs to another volume by now.
    lost: Arc<AtomicBool>,
    options: CacheOptions,
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        Home::with(options())
    }

    fn with(options: CacheOptions) -> Home {
        let dir = tempfile::tempdir().unwrap();
        let mut home = Home {
            cache: None,
            far: Arc::default(),
            noted: Arc::new(Noted::open(&dir.path().join("upload"))),
            disk: Arc::new(Disk::open(&dir.path().join("blobs"))),
            lines: Arc::default(),
            watched: Arc::default(),
            lost: Arc::default(),
            options,
            dir,
        };
        home.reopen();
        home.until("the index is compared", |stats| !stats.comparing);
        home
    }

    /// Drops the cache as a kill would: nothing is written at the end.
    fn reopen(&mut self) {
        self.cache = None;
        self.noted = Arc::new(Noted::open(&self.dir.path().join("upload")));
        self.disk = Arc::new(Disk::open(&self.dir.path().join("blobs")));
        self.open();
    }

    fn open(&mut self) {
        let lines = Arc::clone(&self.lines);
        let lost = Arc::clone(&self.lost);
        let ask =
            move || if lost.load(Ordering::SeqCst) { Err("it is another's".to_owned()) } else { Ok(()) };
        let parts = NodeParts {
            folder: self.dir.path().join("blobs"),
            index: self.index(),
            remote: Arc::clone(&self.far) as Arc<dyn Origin>,
            tier: Some(Arc::clone(&self.far) as Arc<dyn Tier>),
            table: Table::new(Verify::Blake3, self.options.in_flight),
            pending: Arc::clone(&self.noted) as Arc<dyn Pending>,
            may_delete: Some(Arc::new(ask)),
            watch: Some(Arc::clone(&self.watched) as Arc<dyn Watch>),
            options: self.options.clone(),
            report: Arc::new(move |line: &str| lines.lock().push(line.to_owned())),
        };
        self.cache = Some(NodeCache::over(Arc::clone(&self.disk) as Arc<dyn DiskStore>, parts));
    }

    fn index(&self) -> PathBuf {
        self.dir.path().join("cache.idx")
    }

    fn cache(&self) -> &NodeCache {
        self.cache.as_ref().unwrap()
    }

    fn read(&self, id: &BlobId, at: usize, len: usize) -> Result<Vec<u8>, BlobError> {
        let mut buf = vec![0xee; len];
        self.cache().read_at(id, at as u32, &mut buf).map(|()| buf)
    }

    fn put(&self, bytes: &[u8]) -> BlobId {
        let sums = Sums::of(bytes);
        self.cache().put(&sums.id(), &sums, bytes).unwrap();
        sums.id()
    }

    fn stats(&self) -> CacheStats {
        self.cache().stats()
    }

    /// Waits for work that the cache does in the background.
    #[track_caller]
    fn until(&self, what: &str, is: impl Fn(&CacheStats) -> bool) {
        let began = Instant::now();
        while !is(&self.stats()) {
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "not true after two minutes: {what}: {:?}",
                self.stats()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until no fetched blob is on its way to the disk.
    #[track_caller]
    fn rest(&self) {
        self.until("everything has landed", |stats| stats.in_flight == 0 && stats.in_flight_bytes == 0);
    }

    fn file(&self, id: &BlobId) -> PathBuf {
        DiskStore::file(&*self.disk, id)
    }

    fn said(&self) -> Vec<String> {
        self.lines.lock().clone()
    }
}

/// Makes `count` blobs that only the origin has.
fn far_blobs(home: &Home, count: u64, size: usize) -> Vec<(BlobId, Vec<u8>)> {
    (0..count)
        .map(|n| {
            let bytes = noise(size, 1000 + n);
            (home.far.take(&bytes), bytes)
        })
        .collect()
}
