//! Tests of the volume in memory, without a kernel or a disk.

mod collect;
mod collect_faults;
mod data;
mod disk;
mod equal;
mod faults;
mod hints;
mod locks;
mod model;
mod once;
mod pieces;
mod prefetch;
mod quota;
mod remote;
mod round_trips;
mod shared_gc;
mod stress;
mod trash;
mod tree;
mod whole;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Ino;
use blob::failing::{FailingOrigin, FailingPacks, Faults};
use blob::{Origin, PackStore};
use meta::MetaStore;
use parking_lot::Mutex;

use crate::api::{Attr, Caller, FileKind, Filesystem, NewNode, SetAttr};
use crate::errno::Errno;
use crate::volume::{FormatRequest, Options, Parts, Volume};

/// All parts of a volume, so that it can be opened again.
pub(super) struct World {
    pub parts: Parts,
    pub faults: Arc<Faults>,
    pub lines: Arc<Mutex<Vec<String>>>,
    pub origin: Arc<origin::Memory>,
}

impl World {
    pub fn new() -> World {
        let faults = Faults::new();
        let kept = Arc::new(origin::Memory::new());
        let origin: Arc<dyn Origin> = Arc::new(FailingOrigin::new(kept.clone(), faults.clone()));
        let packs: Arc<dyn PackStore> = Arc::new(cache::MemoryPacks::new(origin.clone()));
        let packs = Arc::new(FailingPacks::new(packs, faults.clone()));
        let store: Arc<dyn MetaStore> = Arc::new(meta::engine::memory::Memory::new());
        let parts = Parts { store, packs, source: Arc::new(OriginSource(origin.clone())), origin };
        Volume::format(&parts, &FormatRequest::default()).unwrap();
        World { parts, faults, lines: Arc::default(), origin: kept }
    }

    pub fn options(&self) -> Options {
        let lines = self.lines.clone();
        Options {
            commit: Duration::from_millis(100),
            report: Arc::new(move |line| lines.lock().push(line.to_owned())),
            ..Options::default()
        }
    }

    pub fn open(&self) -> Volume {
        Volume::open(self.parts.clone(), self.options()).unwrap()
    }
}

/// An origin used as a source.
struct OriginSource(Arc<dyn Origin>);

impl blob::BlobSource for OriginSource {
    fn read_at(&self, id: &base::BlobId, offset: u32, buf: &mut [u8]) -> Result<(), blob::BlobError> {
        self.0.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &base::BlobId) -> bool {
        self.0.is_local(id)
    }
}

pub(super) const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// Short forms of what tests do often.
pub(super) trait Easy: Filesystem {
    fn file(&self, parent: Ino, name: &str) -> Ino {
        let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
        self.mknod(&ROOT, parent, name.as_bytes(), &node).unwrap().attr.ino
    }

    fn dir(&self, parent: Ino, name: &str) -> Ino {
        self.mkdir(&ROOT, parent, name.as_bytes(), 0o755, 0).unwrap().attr.ino
    }

    fn put(&self, ino: Ino, offset: u64, data: &[u8]) {
        Filesystem::write(self, ino, offset, data, None, false).unwrap();
    }

    fn get(&self, ino: Ino) -> Vec<u8> {
        let size = self.getattr(ino).unwrap().size;
        let mut all = vec![0xEE; size as usize + 10];
        let done = Filesystem::read(self, ino, 0, &mut all).unwrap();
        assert_eq!(done as u64, size);
        all.truncate(done);
        all
    }

    fn find(&self, parent: Ino, name: &str) -> Option<Attr> {
        match self.lookup(parent, name.as_bytes()) {
            Ok(entry) => {
                self.forget(entry.attr.ino, 1);
                Some(entry.attr)
            }
            Err(Errno::ENOENT) => None,
            Err(other) => panic!("lookup of {name}: {other}"),
        }
    }

    fn cut(&self, ino: Ino, size: u64) -> Attr {
        self.setattr(&ROOT, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap()
    }

    fn names(&self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.readdir(dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
        names.sort();
        names
    }
}

impl<T: Filesystem + ?Sized> Easy for T {}

/// Waits until `so` is true. Panics after 20 seconds.
pub(super) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(120), "still not true after 120 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes without a pattern, the same for the same seed.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}
