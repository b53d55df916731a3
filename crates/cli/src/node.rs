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
use fs::volume::{Atime, FormatRequest, Options, Parts, Volume};
use fs::{Errno, OpenError};
use meta::{Journal, MetaStore, Names};
use origin::{Access, OriginError, Spec};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::control::Tick;
use crate::error::{Context, Failure, Result, errno_failure};
use crate::info::{self, Info};
use crate::log;
use crate::table::count;
use crate::volume_dir::{Holder, Lock, VolumeDir};

/// What is to be opened.
#[derive(Debug)]
pub enum Source {
    /// `mem:`: a volume that begins empty and ends with the process.
    Memory,
    /// A folder.
    Folder(VolumeDir),
}

impl Source {
    /// The folder, if it is one.
    pub fn dir(&self) -> Option<&VolumeDir> {
        match self {
            Source::Memory => None,
            Source::Folder(dir) => Some(dir),
        }
    }

    /// How it is written on a command line.
    pub fn name(&self) -> PathBuf {
        self.dir().map_or_else(|| "mem:".into(), |dir| dir.path().to_owned())
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

/// What a mount promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All changes come through this mount.
    Exclusive,
    /// The mount changes nothing.
    ReadOnly,
    /// Nothing changes at all.
    Frozen,
}

impl Mode {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::ReadOnly => "read-only",
            Mode::Frozen => "frozen",
        }
    }
}

/// A volume's figures. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its folder, or `mem:<id>`.
    pub volume: String,
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where its blobs live.
    pub origin: String,
    /// What it was opened for.
    pub mode: Mode,
    /// The daemon, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
    /// Inodes in use: files, folders, links.
    pub files: u64,
    /// Bytes of files, holes not counted.
    pub bytes: u64,
    /// Bytes of packs, sealed and open.
    pub stored_bytes: u64,
    /// Of these, bytes that nothing refers to.
    pub garbage_bytes: u64,
    /// Bytes of files that take no room of their own: clones, and equal contents.
    pub saved_bytes: u64,
    /// Of these, found by hash since the volume was opened.
    pub dedup_bytes: u64,
    /// Sealed packs.
    pub blobs: u64,
    /// Packs in the making.
    pub open_packs: u64,
    /// Whether blobs have been counted since the volume was opened; until then the figures above are too low.
    pub counted: bool,
    /// Bytes of the names' database on disk.
    pub names_bytes: u64,
    /// Bytes of the redo log on disk.
    pub log_bytes: u64,
    /// Bytes of rows in memory that are in the log and not yet in the database.
    pub overlay_bytes: u64,
    /// Inodes that the kernel refers to.
    pub held_inodes: u64,
    /// Requests answered with EIO since the volume was opened.
    pub io_errors: u64,
    /// Bytes of memory that the process holds.
    pub memory_bytes: u64,
    /// The most it ever held.
    pub memory_peak_bytes: u64,
}

/// The daemon of a mounted volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Where.
    pub mountpoint: PathBuf,
    /// Its process.
    pub pid: u32,
    /// Since when.
    pub uptime_seconds: u64,
    /// Requests that the kernel sent.
    pub requests: u64,
    /// Of these, waiting at the moment.
    pub waiting: u64,
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
    /// Bytes stored now.
    pub stored_bytes: u64,
    /// Of these, bytes that nothing refers to.
    pub garbage_bytes: u64,
}

/// An open volume with everything that belongs to it.
pub struct Node {
    name: String,
    dir: Option<VolumeDir>,
    volume: Arc<Volume>,
    /// None in memory.
    journal: Option<Arc<Journal>>,
    mode: Mode,
    opened: Instant,
    lock: Mutex<Option<Lock>>,
}

impl Node {
    /// Opens a volume in a folder.
    pub fn open(dir: &VolumeDir, options: &NodeOptions) -> Result<Node> {
        let holder = Holder { pid: std::process::id(), does: options.does.to_owned(), mountpoint: options.mountpoint.clone() };
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
        let parts = memory_parts();
        let failed = |error: OpenError| open_failure(Path::new("mem:"), error);
        Volume::format(&parts, &format_request()).map_err(failed)?;
        let volume = Volume::open(parts, volume_options(options)).map_err(failed)?;
        Ok(Node {
            name: format!("mem:{:016x}", base::random::u64()),
            dir: None,
            volume: Arc::new(volume),
            journal: None,
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

    /// The figures now.
    pub fn status(&self) -> Result<Status> {
        let stats = self.volume.stats().map_err(|error| {
            Failure::new("damaged", "the volume's figures cannot be read").why(error.to_string()).next(self.say_fsck())
        })?;
        let memory = Memory::now();
        let journal = self.journal.as_ref().map(|journal| journal.stats()).unwrap_or_default();
        let stored = stats.stored_bytes + stats.open_bytes;
        Ok(Status {
            volume: self.name(),
            id: self.dir.as_ref().map(|dir| dir.format().id.clone()),
            origin: self.dir.as_ref().map_or_else(|| "mem:".to_owned(), VolumeDir::origin),
            mode: self.mode,
            served: None,
            files: stats.inodes,
            bytes: stats.logical_bytes,
            stored_bytes: stored,
            garbage_bytes: stats.garbage_bytes,
            saved_bytes: stats.logical_bytes.saturating_sub(stored.saturating_sub(stats.garbage_bytes)),
            dedup_bytes: stats.dedup_bytes,
            blobs: stats.sealed_packs,
            open_packs: stats.open_packs,
            counted: stats.counted,
            names_bytes: self.dir.as_ref().map_or(0, names_bytes),
            log_bytes: journal.log_file_bytes,
            overlay_bytes: journal.overlay_bytes,
            held_inodes: stats.held_inodes,
            io_errors: stats.io_errors,
            memory_bytes: memory.now,
            memory_peak_bytes: memory.peak,
        })
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

    /// Frees what nothing refers to.
    pub fn gc(&self, _tick: &mut dyn FnMut(Tick)) -> Result<GcSummary> {
        Err(nowhere())
    }

    /// Makes `to` a copy of `from` by names only; both are below the root.
    pub fn clone_tree(&self, from: &Path, to: &Path, tick: &mut dyn FnMut(Tick)) -> Result<Cloned> {
        let started = base::time::monotonic();
        let shown = |path: &Path| format!("/{}", path.display());
        let failed = |what: String| move |errno: Errno| errno_failure(what, errno);
        let name = to.file_name().ok_or_else(|| Failure::usage("the volume's root is there already").next("name a path below it"))?;
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
            Err(Errno::EEXIST) => return Err(crate::import::exists(Path::new(&shown(to))).map_next("name another path")),
            other => other.map_err(failed(format!("cannot clone {} to {}", shown(from), shown(to))))?,
        };
        let summary = CloneSummary {
            files: done.files + done.dirs,
            bytes: done.bytes,
            seconds: (base::time::monotonic() - started).as_secs_f64(),
        };
        Ok(Cloned { summary, parent, name: name.as_bytes().to_vec() })
    }

    fn say_fsck(&self) -> String {
        format!("unmount it and check it: covey fsck {}", self.name)
    }
}

/// What a crash had left, in one line; nothing after an orderly end.
fn recovery_line(found: &meta::journal::Recovered) -> Option<String> {
    if found.replayed == 0 && found.cut == 0 && found.restored == 0 {
        return None;
    }
    let mut line = format!("the volume was not closed in good order: {} operations brought in from the log", found.replayed);
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

fn memory_parts() -> Parts {
    let origin: Arc<dyn Origin> = Arc::new(origin::Memory::new());
    parts(Arc::new(meta::Memory::new()), Arc::new(MemoryPacks::new(origin.clone())), origin)
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
    let text = error.to_string();
    // The room below says both in one sentence: what is wrong, a colon, what to do.
    let (what, next) = text.rsplit_once(": ").unwrap_or((&text, "check the origin's folder"));
    let code = match error {
        OriginError::Absent(_) | OriginError::NotAnOrigin(_) => "origin-gone",
        OriginError::ReadOnly { .. } => "origin-read-only",
        OriginError::Newer { .. } => "newer-format",
        OriginError::Unknown(_) | OriginError::NoFolder(_) => "usage",
        _ => "origin",
    };
    Failure::new(code, what).next(next)
}

/// Why a volume could not be opened, in our words.
pub fn open_failure(path: &Path, error: OpenError) -> Failure {
    let shown = path.display();
    let why = error.to_string();
    let fsck = format!("covey fsck {shown} says more; covey fsck --repair {shown} mends what can be mended");
    match error {
        OpenError::Format { .. } => Failure::new("newer-format", format!("the volume {shown} has another format"))
            .why(why)
            .next("use the covey that made it; nothing was changed"),
        OpenError::NotFormatted => Failure::new("damaged", format!("the volume {shown} holds no names"))
            .why("its database is there, and empty")
            .next("restore its folder from a backup"),
        OpenError::Damaged(_) => Failure::new("damaged", format!("the volume {shown} is damaged")).why(why).next(fsck),
        OpenError::Store(meta::store::StoreError::Full) | OpenError::Blob(blob::BlobError::Full) => {
            Failure::new("disk-full", format!("the disk of the volume {shown} is full"))
                .why(why)
                .next("free some room on that disk, then try again; the volume is sound")
        }
        OpenError::Store(meta::store::StoreError::Damaged(_)) => {
            Failure::new("damaged", format!("the names of the volume {shown} are damaged")).why(why).next(fsck)
        }
        _ => Failure::new("io", format!("the volume {shown} cannot be used")).why(why).next("covey doctor looks for the cause"),
    }
}

/// This process's memory, in bytes.
struct Memory {
    now: u64,
    peak: u64,
}

impl Memory {
    fn now() -> Memory {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
        };
        Memory { now: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

/// Bytes of the names' database on disk, SQLite's own log included.
fn names_bytes(dir: &VolumeDir) -> u64 {
    let files = std::fs::read_dir(dir.meta()).into_iter().flatten().flatten();
    let ours = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("names.db"));
    ours.map(|entry| entry.metadata().map_or(0, |meta| meta.len())).sum()
}
