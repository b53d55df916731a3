//! The only wiring: what a volume's folder holds becomes an open volume.
//!
//! ```text
//!   VOLUME/lock ── held          covey.json ── format, origin
//!   meta/ ──► journal over SQLite ──┐
//!   open/ ──► DiskPacks ────────────┼──► Volume ──► a mount, an import, fsck, ...
//!   origin (blobs/) ────────────────┘
//! ```
//!
//! A volume in memory has the same parts, all of them in memory. Everything is opened in this order and closed in the opposite one; the
//! lock goes last, so that whoever gets it next finds the volume closed.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Ino;
use blob::{BlobSource, Origin, PackStore};
use cache::{DiskPacks, MemoryPacks};
use fs::api::Filesystem;
use fs::gc::all::Collected;
use fs::volume::{Atime, FormatRequest, Options, Parts, Volume};
use fs::{Errno, OpenError};
use meta::store::StoreError;
use meta::{Journal, MetaStore, Names};
use origin::{Access, OriginError, Spec};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::control::Tick;
use crate::error::{Context, Failure, Result, errno_failure, plain};
use crate::info::{self, Info};
use crate::log;
use crate::status::Mode;
use crate::table::{bytes, count};
use crate::volume_dir::{Holder, Lock, VolumeDir};

/// What is to be opened.
#[derive(Debug)]
pub enum Source {
    /// `mem:`: a volume that begins empty and ends with the process.
    Memory,
    /// `corpus:`: deterministic random files, no volume at all.
    Corpus(corpus::Spec),
    /// A folder.
    Folder(VolumeDir),
}

impl Source {
    /// What has no folder, by its word: `mem:`, `corpus:...`; `None` for a folder's name.
    pub fn by_word(text: &Path) -> Result<Option<Source>> {
        Ok(match text.to_str() {
            Some("mem:") => Some(Source::Memory),
            Some(text) if text.starts_with(corpus::spec::PREFIX) => {
                Some(Source::Corpus(crate::corpus::parse(text)?))
            }
            _ => None,
        })
    }

    /// The folder, if it is one.
    pub fn dir(&self) -> Option<&VolumeDir> {
        match self {
            Source::Memory | Source::Corpus(_) => None,
            Source::Folder(dir) => Some(dir),
        }
    }

    /// How it is written on a command line.
    pub fn name(&self) -> PathBuf {
        match self {
            Source::Memory => "mem:".into(),
            Source::Corpus(spec) => spec.to_string().into(),
            Source::Folder(dir) => dir.path().to_owned(),
        }
    }

    /// Where a daemon in the background writes.
    pub fn log(&self) -> Option<PathBuf> {
        self.dir().map(VolumeDir::log)
    }
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// For whom: the command's name.
    pub does: &'static str,
    /// Where it is going to be mounted.
    pub mountpoint: Option<PathBuf>,
    /// Change nothing.
    pub read_only: bool,
    /// And nothing changes.
    pub frozen: bool,
    /// Reads move access times.
    pub relatime: bool,
    /// What was done survives a power cut after at most this.
    pub commit: Duration,
}

impl NodeOptions {
    /// For a command that only looks.
    pub fn reading(does: &'static str) -> NodeOptions {
        NodeOptions { read_only: true, ..NodeOptions::writing(does) }
    }

    /// For a command that changes things.
    pub fn writing(does: &'static str) -> NodeOptions {
        NodeOptions {
            does,
            mountpoint: None,
            read_only: false,
            frozen: false,
            relatime: false,
            commit: Duration::from_secs(1),
        }
    }
}

/// What a clone came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CloneSummary {
    /// Files and folders made.
    pub files: u64,
    /// Bytes they refer to.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

/// A clone, and the name that the kernel has to look at again.
#[derive(Debug)]
pub struct Cloned {
    /// For the user.
    pub summary: CloneSummary,
    /// The folder of the new name.
    pub parent: Ino,
    /// The new name.
    pub name: Vec<u8>,
}

/// What a collection came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GcSummary {
    /// Bytes of packs deleted.
    pub freed_bytes: u64,
    /// Bytes copied for that.
    pub moved_bytes: u64,
    /// Bytes stored now.
    pub stored_bytes: u64,
    /// Of these, bytes that nothing refers to.
    pub garbage_bytes: u64,
    /// Blobs now.
    pub blobs: u64,
}

/// An open volume with everything that belongs to it.
pub struct Node {
    name: String,
    dir: Option<VolumeDir>,
    volume: Arc<Volume>,
    /// None in memory.
    journal: Option<Arc<Journal>>,
    /// The rows of a volume in memory.
    rows: Option<Arc<meta::Memory>>,
    mode: Mode,
    opened: Instant,
    lock: Mutex<Option<Lock>>,
}

impl Node {
    /// Opens a volume in a folder.
    pub fn open(dir: &VolumeDir, options: &NodeOptions) -> Result<Node> {
        let holder = Holder {
            pid: std::process::id(),
            does: options.does.to_owned(),
            mountpoint: options.mountpoint.clone(),
        };
        let lock = dir.lock(&holder)?;
        let failed = |error: OpenError| open_failure(dir.path(), error);
        let (parts, journal) = folder_parts(dir, options.read_only, options.commit)?;
        let volume = match Volume::open(parts, volume_options(options)) {
            Ok(volume) => volume,
            Err(error) => {
                let _ = journal.close();
                return Err(failed(error));
            }
        };
        Ok(Node {
            name: dir.path().display().to_string(),
            dir: Some(dir.clone()),
            volume: Arc::new(volume),
            journal: Some(journal),
            rows: None,
            mode: mode(options),
            opened: base::time::monotonic(),
            lock: Mutex::new(Some(lock)),
        })
    }

    /// Opens a volume of either kind.
    pub fn open_source(source: &Source, options: &NodeOptions) -> Result<Node> {
        let Source::Memory = source else {
            return Node::open(source.dir().ok_or_else(nowhere)?, options);
        };
        let rows = Arc::new(meta::Memory::new());
        let parts = memory_parts(rows.clone());
        let failed = |error: OpenError| open_failure(Path::new("mem:"), error);
        Volume::format(&parts, &format_request()).map_err(failed)?;
        let volume = Volume::open(parts, volume_options(options)).map_err(failed)?;
        Ok(Node {
            name: format!("mem:{:016x}", base::random::u64()),
            dir: None,
            volume: Arc::new(volume),
            journal: None,
            rows: Some(rows),
            mode: mode(options),
            opened: base::time::monotonic(),
            lock: Mutex::new(None),
        })
    }

    /// Its folder, or `mem:<id>`: the source of its mount.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// What it was opened for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How long it has been open.
    pub fn age(&self) -> Duration {
        base::time::monotonic() - self.opened
    }

    /// The volume, as a transport sees it.
    pub fn filesystem(&self) -> Arc<dyn Filesystem> {
        self.volume.clone()
    }

    /// The volume itself.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Its folder, if it has one.
    pub fn dir(&self) -> Option<&VolumeDir> {
        self.dir.as_ref()
    }

    /// What stands in front of its database, if it has one.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Bytes of memory that the names of a volume in memory take; `None` for one on a disk.
    pub fn rows_bytes(&self) -> Option<u64> {
        // Beside a row's own bytes the tree and the allocator take about 40.
        self.rows.as_ref().map(|rows| rows.bytes() + 40 * rows.rows())
    }

    /// Its names.
    pub fn store(&self) -> Arc<dyn MetaStore> {
        self.volume.parts().store.clone()
    }

    /// Ends it in good order and gives the volume free. The second call does nothing.
    pub fn close(&self) -> Result<()> {
        let lock = self.lock.lock().take();
        let failed = |error: OpenError| open_failure(Path::new(&self.name), error);
        let volume = self.volume.close().map_err(failed);
        // Also when the volume could not be closed: what the journal holds is to be durable all the same.
        let journal = self.journal.as_ref().map_or(Ok(()), |journal| journal.close());
        drop(lock);
        volume.and(journal.map_err(|error| failed(OpenError::Store(error))))
    }

    /// What a file is made of.
    pub fn info(&self, path: &Path) -> Result<Info> {
        // What is still being gathered in memory is written down first, so that it is seen.
        let _ = self.volume.sync();
        info::of(&Names::new(self.store()), path)
    }

    /// Makes everything written so far survive a power cut.
    pub fn flush(&self) -> Result<()> {
        self.volume.sync().map_err(|errno| errno_failure("cannot make the volume durable", errno))
    }

    /// Frees what nothing refers to, and gathers what lies scattered.
    pub fn gc(&self, tick: &mut dyn FnMut(Tick)) -> Result<GcSummary> {
        let mut progress = |so_far: Collected| {
            let (freed, moved) = (so_far.freed_bytes, so_far.moved_bytes);
            tick(Tick {
                done: freed,
                of: 0,
                what: format!("freed {}, moved {}", bytes(freed), bytes(moved)),
            });
        };
        let done = self.volume.collect(&mut progress);
        let done = done.map_err(|errno| errno_failure(format!("cannot collect {}", self.name), errno))?;
        Ok(GcSummary {
            freed_bytes: done.freed_bytes,
            moved_bytes: done.moved_bytes,
            stored_bytes: done.stored_bytes,
            garbage_bytes: done.garbage_bytes,
            blobs: done.packs,
        })
    }

    /// Makes `to` a copy of `from` by names only; both are below the root.
    pub fn clone_tree(&self, from: &Path, to: &Path, tick: &mut dyn FnMut(Tick)) -> Result<Cloned> {
        let started = base::time::monotonic();
        let shown = |path: &Path| format!("/{}", path.display());
        let failed = |what: String| move |errno: Errno| errno_failure(what, errno);
        let name = to.file_name().ok_or_else(|| {
            Failure::usage("the volume's root is there already").next("name a path below it")
        })?;
        let found = self.volume.resolve(from.as_os_str().as_bytes(), false);
        let source = found.map_err(failed(format!("cannot clone {}", shown(from))))?;
        let folder = to.parent().unwrap_or(Path::new(""));
        let parent = self.volume.resolve(folder.as_os_str().as_bytes(), true);
        let parent = parent.map_err(failed(format!("cannot clone into {}", shown(folder))))?.ino;
        let mut progress = |done: fs::clone::Cloned| {
            let files = done.files + done.dirs;
            tick(Tick { done: files, of: 0, what: format!("{} files and folders", count(files)) });
            ControlFlow::Continue(())
        };
        let done = self.volume.clone_tree(source.ino, parent, name.as_bytes(), &mut progress);
        let done = match done {
            Err(Errno::EEXIST) => {
                return Err(crate::import::exists(Path::new(&shown(to))).map_next("name another path"));
            }
            other => other.map_err(failed(format!("cannot clone {} to {}", shown(from), shown(to))))?,
        };
        let summary = CloneSummary {
            files: done.files + done.dirs,
            bytes: done.bytes,
            seconds: (base::time::monotonic() - started).as_secs_f64(),
        };
        Ok(Cloned { summary, parent, name: name.as_bytes().to_vec() })
    }
}

/// What a crash had left, in one line; nothing after an orderly end.
fn recovery_line(found: &meta::journal::Recovered) -> Option<String> {
    if found.replayed == 0 && found.cut == 0 && found.restored == 0 {
        return None;
    }
    let mut line = format!(
        "the volume was not closed in good order: {} operations brought in from the log",
        found.replayed
    );
    if found.cut > 0 {
        let reason = found.reason.as_deref().unwrap_or("they cannot be shown to be whole");
        line += &format!(", the last {} given up, never synced ({reason})", found.cut);
    }
    Some(line)
}

fn mode(options: &NodeOptions) -> Mode {
    match options {
        NodeOptions { frozen: true, .. } => Mode::Frozen,
        NodeOptions { read_only: true, .. } => Mode::ReadOnly,
        _ => Mode::Exclusive,
    }
}

fn nowhere() -> Failure {
    Failure::usage("no volume was named")
}

fn volume_options(options: &NodeOptions) -> Options {
    Options {
        read_only: options.read_only || options.frozen,
        frozen: options.frozen,
        atime: if options.relatime { Atime::Relative } else { Atime::AsSet },
        commit: options.commit,
        near: true,
        report: log::sink(),
    }
}

fn format_request() -> FormatRequest {
    // SAFETY: getegid(2) takes nothing and cannot fail.
    let gid = unsafe { libc::getegid() };
    FormatRequest { owner: (crate::sys::euid(), gid), ..FormatRequest::default() }
}

fn parts(store: Arc<dyn MetaStore>, packs: Arc<dyn PackStore>, origin: Arc<dyn Origin>) -> Parts {
    let source: Arc<dyn BlobSource> = origin.clone();
    Parts { store, packs, source, origin }
}

fn memory_parts(rows: Arc<meta::Memory>) -> Parts {
    let origin: Arc<dyn Origin> = Arc::new(origin::Memory::new());
    parts(rows, Arc::new(MemoryPacks::new(origin.clone())), origin)
}

fn folder_parts(dir: &VolumeDir, read_only: bool, commit: Duration) -> Result<(Parts, Arc<Journal>)> {
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let origin = spec(dir)?.open(access).map_err(origin_failure)?;
    with_journal(dir, origin, commit)
}

fn with_journal(dir: &VolumeDir, origin: Arc<dyn Origin>, commit: Duration) -> Result<(Parts, Arc<Journal>)> {
    let open = dir.open_packs();
    let packs: Arc<dyn PackStore> = Arc::new(DiskPacks::open(&open, origin.clone()).at("open", &open)?);
    let options = meta::journal::Options { commit_every: commit, ..meta::journal::Options::default() };
    let opened = Journal::open(&dir.meta(), packs.clone(), options);
    let (journal, recovered) = opened.map_err(|error| open_failure(dir.path(), OpenError::Store(error)))?;
    if let Some(line) = recovery_line(&recovered) {
        log::line(&line);
    }
    let journal = Arc::new(journal);
    Ok((parts(journal.clone(), packs, origin), journal))
}

/// Fills a new volume's folder: origin, names.
pub fn fill(dir: &VolumeDir) -> Result<()> {
    let origin = spec(dir)?.format().map_err(origin_failure)?;
    let (parts, journal) = with_journal(dir, origin, Duration::from_secs(1))?;
    let id = id_bytes(&dir.format().id);
    let request = FormatRequest { id, ..format_request() };
    let failed = |error: OpenError| open_failure(dir.path(), error);
    Volume::format(&parts, &request).map_err(failed)?;
    journal.close().map_err(|error| failed(OpenError::Store(error)))
}

fn id_bytes(text: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

/// The parts of a volume that is to be checked, with nothing done to it but what its log asks for.
pub struct Bare {
    /// Its parts.
    pub parts: Parts,
    /// In front of its names.
    pub journal: Arc<Journal>,
    _lock: Lock,
}

/// Opens the parts of a volume and not the volume itself.
pub fn open_bare(dir: &VolumeDir, does: &'static str, read_only: bool) -> Result<Bare> {
    let lock = dir.lock(&Holder { pid: std::process::id(), does: does.to_owned(), mountpoint: None })?;
    let (parts, journal) = folder_parts(dir, read_only, Duration::from_secs(1))?;
    Ok(Bare { parts, journal, _lock: lock })
}

/// Whether the volume's origin is there.
pub fn check_origin(dir: &VolumeDir) -> Result<()> {
    spec(dir)?.open(Access::ReadOnly).map(drop).map_err(origin_failure)
}

fn spec(dir: &VolumeDir) -> Result<Spec> {
    origin::parse(&dir.origin()).map_err(origin_failure)
}

/// An origin as it is written into `covey.json`.
pub fn absolute_origin(text: &str) -> Result<String> {
    match origin::parse(text).map_err(|error| Failure { status: 2, ..origin_failure(error) })? {
        Spec::Folder(folder) => Ok(format!("file:{}", crate::mounts::absolute(&folder)?.display())),
        Spec::Memory => Err(Failure::usage("a volume in a folder cannot keep its blobs in memory")
            .why("its names would outlive their bytes")
            .next("for a volume that lives in memory: covey mount mem: MOUNTPOINT")
            .next("or keep blobs in a folder: --origin file:DIR")),
    }
}

fn origin_failure(error: OriginError) -> Failure {
    let code = match &error {
        OriginError::Absent(_) | OriginError::NotAnOrigin(_) => "origin-gone",
        OriginError::Newer { .. } => "newer-format",
        OriginError::Unknown(_) | OriginError::NoFolder(_) => "usage",
        OriginError::ReadOnly { dir, source } => {
            let what = format!("the origin's folder {} cannot be written to", dir.display());
            return Failure::new("origin-read-only", what)
                .why(plain(source))
                .next("make it writable, or mount the volume with -o ro");
        }
        OriginError::Io { dir, source } => {
            return Failure::io(format!("cannot use the origin's folder {}", dir.display()), source);
        }
        _ => "origin",
    };
    let text = error.to_string();
    // The room below says both in one sentence: what is wrong, a colon, what to do.
    let (what, next) = text.rsplit_once(": ").unwrap_or((&text, "check the origin's folder"));
    Failure::new(code, what).next(next)
}

/// Why a volume could not be opened, in our words.
pub fn open_failure(path: &Path, error: OpenError) -> Failure {
    let shown = path.display();
    let why = error.to_string();
    let fsck = format!("covey fsck {shown} says more; covey fsck --repair {shown} mends what can be mended");
    match error {
        OpenError::Format { .. } => {
            Failure::new("newer-format", format!("the volume {shown} has another format"))
                .why(why)
                .next("use the covey that made it; nothing was changed")
        }
        OpenError::NotFormatted => Failure::new("damaged", format!("the volume {shown} holds no names"))
            .why("its database is there, and empty")
            .next("restore its folder from a backup"),
        OpenError::Damaged(_) => {
            Failure::new("damaged", format!("the volume {shown} is damaged")).why(why).next(fsck)
        }
        OpenError::Store(StoreError::Full) | OpenError::Blob(blob::BlobError::Full) => {
            Failure::new("disk-full", format!("the disk of the volume {shown} is full"))
                .why(why)
                .next("free some room on that disk, then try again; the volume is sound")
        }
        OpenError::Store(StoreError::Damaged(_)) => {
            Failure::new("damaged", format!("the names of the volume {shown} are damaged"))
                .why(why)
                .next(fsck)
        }
        _ => Failure::new("io", format!("the volume {shown} cannot be used"))
            .why(why)
            .next("covey doctor looks for the cause"),
    }
}
