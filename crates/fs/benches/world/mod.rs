//! A volume on a disk as in a mount, but without a kernel: the object that the benches measure.
//!
//! The journal is a mount's, with its background thread. Packs are in a folder of the system's temporary
//! folder (`TMPDIR`), sealed ones in an origin beside it. Only FUSE is missing.

#![allow(dead_code, missing_docs, reason = "each program that shares this uses a part of it")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Ino;
use blob::{BlobError, BlobSource, Origin, PackStore};
use fs::api::{Caller, FileKind, Filesystem, NewNode};
use fs::volume::{FormatRequest, Options, Parts, Volume};
use meta::Journal;

pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };
pub const PAGE: usize = 4096;
/// The number of files in `many`.
pub const MANY: u64 = 1000;

/// An origin used as the source of its own blobs.
struct OriginSource(Arc<dyn Origin>);

impl BlobSource for OriginSource {
    fn read_at(&self, id: &base::BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.0.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &base::BlobId) -> bool {
        self.0.is_local(id)
    }
}

/// An open volume with some contents, described at the fields.
pub struct World {
    pub volume: Volume,
    journal: Arc<Journal>,
    /// A folder with [`MANY`] files named `0`, `1`, and so on, of a page each, all in a pack that is still
    /// open.
    pub many: Ino,
    pub files: Vec<Ino>,
    /// A file of 1 MiB whose pack is sealed: a blob.
    pub sealed: Ino,
    /// A folder for files created during a measurement.
    pub scratch: Ino,
    next: AtomicU64,
    // Last, so that it is removed after everything that uses it.
    _folder: tempfile::TempDir,
}

fn parts(folder: &Path) -> (Parts, Arc<Journal>) {
    let blobs = folder.join("blobs");
    let origin: Arc<dyn Origin> = Arc::new(origin::Folder::open(&blobs, origin::Access::ReadWrite).unwrap());
    let packs: Arc<dyn PackStore> =
        Arc::new(cache::DiskPacks::open(&folder.join("open"), origin.clone()).unwrap());
    let options = meta::journal::Options::default();
    let (journal, _) = Journal::open(&folder.join("meta"), packs.clone(), options).unwrap();
    let journal = Arc::new(journal);
    (Parts { store: journal.clone(), packs, source: Arc::new(OriginSource(origin.clone())), origin }, journal)
}

impl World {
    pub fn new() -> World {
        let folder = tempfile::Builder::new().prefix("covey-bench-").tempdir().unwrap();
        origin::Folder::format(&folder.path().join("blobs"), "of-a-test").unwrap();
        std::fs::create_dir(folder.path().join("meta")).unwrap();
        let (parts, journal) = parts(folder.path());
        Volume::format(&parts, &FormatRequest::default()).unwrap();
        let volume = Volume::open(parts, Options::default()).unwrap();
        let dir = |name: &[u8]| volume.mkdir(&ROOT, Ino::ROOT, name, 0o755, 0).unwrap().attr.ino;
        let (many, scratch) = (dir(b"many"), dir(b"scratch"));
        let next = AtomicU64::new(0);
        let mut world = World {
            volume,
            journal,
            many,
            files: Vec::new(),
            sealed: Ino::ROOT,
            scratch,
            next,
            _folder: folder,
        };
        world.sealed = world.file(Ino::ROOT, b"sealed");
        world.volume.write(world.sealed, 0, &noise(7, 1 << 20), None, true).unwrap();
        world.seal();
        world.files = (0..MANY)
            .map(|n| {
                let ino = world.file(world.many, n.to_string().as_bytes());
                world.volume.write(ino, 0, &noise(n, PAGE), None, true).unwrap();
                ino
            })
            .collect();
        world
    }

    /// Waits until the volume's sealer has turned every open pack into a blob.
    fn seal(&self) {
        let began = Instant::now();
        while self.volume.stats().unwrap().open_bytes > 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "packs are sealed when they are idle");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn file(&self, parent: Ino, name: &[u8]) -> Ino {
        let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0o22, rdev: 0 };
        self.volume.mknod(&ROOT, parent, name, &node).unwrap().attr.ino
    }

    /// A number that was not returned before.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Creates a file in `scratch`. Returns it and its name.
    pub fn fresh(&self) -> (Ino, Vec<u8>) {
        let name = format!("fresh-{:08}", self.number()).into_bytes();
        (self.file(self.scratch, &name), name)
    }

    /// Lets the journal catch up, as in an idle second of a mount.
    pub fn settle(&self) {
        self.volume.sync().unwrap();
    }

    pub fn close(&self) {
        self.volume.close().unwrap();
        self.journal.close().unwrap();
    }
}

/// Bytes without a pattern, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}
