//! The only wiring: what a volume's folder holds becomes an open volume.
//!
//! ```text
//!   VOLUME/lock ── held          covey.json ── format, origin
//!   meta/ ──► journal over SQLite ──┐
//!   open/ ──► DiskPacks ────────────┼──► Volume ──► a mount, an import, fsck, ...
//!   origin (blobs/) ────────────────┘          one that is far away: with a cache and uploads before it (far.rs)
//! ```
//!
//! A volume in memory has the same parts, all of them in memory. Everything is opened in this order and closed in the opposite one; the
//! lock goes last, so that whoever gets it next finds the volume closed.

mod clone;
mod parts;
mod published;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs::OpenError;
use fs::access::AccessRules;
use fs::api::Filesystem;
use fs::gc::all::Collected;
use fs::volume::{Atime, Options, Volume};
use fuse::Notifier;
use meta::store::StoreError;
use meta::{Journal, MetaStore, Names};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tree::Root;

use crate::claim::Writer;
use crate::claim::watch::{self, Watch};
use crate::cmd::cache::no_cache;
use crate::cmd::peers::no_fleet;
use crate::control::Tick;
use crate::error::{Failure, Result, errno_failure};
use crate::far::options::FarOptions;
use crate::far::tree::TreeCache;
use crate::far::warm::{self, WarmSummary};
use crate::far::{Evicted, Far, Settled};
use crate::fleet::shown::{FleetStatus, PeerRow};
use crate::follow::{Follow, Watching};
use crate::frozen::TreeInfo;
use crate::info::{self, Info};
use crate::limits;
use crate::log;
use crate::options::DEADLINE;
use crate::status::Mode;
use crate::table::bytes;
use crate::volume_dir::{Holder, Lock, VolumeDir};

pub use clone::{CloneSummary, Cloned};
pub use parts::{Bare, fill, make_journal, open_bare, open_names};
use parts::{Opened, folder_parts, format_request, memory_parts};
pub use source::Source;

/// Sealing what is open takes no longer, unless the disk fails.
const SEALING: Duration = Duration::from_secs(60);

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
    /// Whoever reads has an error after this.
    pub deadline: Duration,
    /// How files in a remote origin are read.
    pub access: AccessRules,
    /// How a far origin is used.
    pub far: FarOptions,
    /// A log that is damaged is brought in up to the damage, once a copy of it is in this new folder.
    pub salvage: Option<PathBuf>,
    /// Claim the origin for this folder, although another folder may have it.
    pub take_over: bool,
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
            deadline: DEADLINE,
            access: AccessRules::default(),
            far: FarOptions::default(),
            salvage: None,
            take_over: false,
        }
    }
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
    /// With an origin behind a network.
    far: Option<Arc<Far>>,
    /// What a mount of a published tree in a far origin keeps here.
    tree_cache: Option<TreeCache>,
    /// Of a published tree, what it is and where its origin.
    tree: Option<(Root, String)>,
    /// A published tree whose name is followed, and how often.
    follow: Option<(Arc<Follow>, Duration)>,
    mode: Mode,
    opened: Instant,
    lock: Mutex<Option<Lock>>,
    /// The claim on the origin, and the thread that checks it.
    writer: Option<Writer>,
    watch: Mutex<Option<Watch>>,
}

impl Node {
    /// Opens a volume in a folder.
    pub fn open(dir: &VolumeDir, options: &NodeOptions) -> Result<Node> {
        if !options.read_only {
            limits::check(limits::For::Change)?;
        }
        let holder = Holder {
            pid: std::process::id(),
            does: options.does.to_owned(),
            mountpoint: options.mountpoint.clone(),
        };
        let lock = dir.lock(&holder)?;
        let failed = |error: OpenError| open_failure(dir.path(), error);
        let Opened { parts, journal, far, writer, .. } = folder_parts(dir, options)?;
        let mut for_volume = volume_options(options);
        if let Some(far) = &far {
            for_volume = far.volume_options(&options.far, for_volume);
        }
        for_volume.may_delete = writer.as_ref().map(Writer::may_delete);
        let volume = match Volume::open(parts, for_volume) {
            Ok(volume) => Arc::new(volume),
            Err(error) => {
                let _ = journal.close();
                far.iter().for_each(Far::close);
                writer.iter().for_each(Writer::close);
                return Err(failed(error));
            }
        };
        far.iter().for_each(|far| far.opened(&journal));
        let far = far.map(Arc::new);
        let uploads = far.clone();
        let back = move || uploads.iter().for_each(|far| far.hurry());
        let watch = writer.clone().map(|writer| watch::start(writer, &volume, Box::new(back))).transpose()?;
        Ok(Node {
            name: dir.path().display().to_string(),
            dir: Some(dir.clone()),
            volume,
            journal: Some(journal),
            rows: None,
            far,
            tree_cache: None,
            tree: None,
            follow: None,
            mode: mode(options),
            opened: base::time::monotonic(),
            lock: Mutex::new(Some(lock)),
            writer,
            watch: Mutex::new(watch),
        })
    }

    /// Opens a volume of either kind.
    pub fn open_source(source: &Source, options: &NodeOptions) -> Result<Node> {
        match source {
            Source::Memory => {}
            Source::Published(tree) => return Node::open_published(tree, options),
            _ => return Node::open(source.dir().ok_or_else(nowhere)?, options),
        }
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
            far: None,
            tree_cache: None,
            tree: None,
            follow: None,
            mode: mode(options),
            opened: base::time::monotonic(),
            lock: Mutex::new(None),
            writer: None,
            watch: Mutex::default(),
        })
    }

    /// What it is and where its origin, if it is a published tree.
    pub fn tree(&self) -> Option<(TreeInfo, String)> {
        let (_, origin) = self.tree.as_ref()?;
        Some((TreeInfo::of(&self.root()?), origin.clone()))
    }

    /// The root of what is shown, if it is a published tree.
    pub fn root(&self) -> Option<Root> {
        let (first, _) = self.tree.as_ref()?;
        Some(self.follow.as_ref().map_or_else(|| first.clone(), |(follow, _)| follow.root()))
    }

    /// Who is in its fleet.
    pub fn peers(&self) -> Result<Vec<PeerRow>> {
        let fleet = self.tree_cache.as_ref().and_then(TreeCache::fleet);
        let joined = fleet.ok_or_else(|| no_fleet(&self.name))?;
        Ok(joined.fleet.seen().iter().map(PeerRow::from).collect())
    }

    /// What it did as a node of a fleet, if it is one.
    pub fn fleet_status(&self) -> Option<FleetStatus> {
        self.tree_cache.as_ref()?.fleet_status()
    }

    /// Moves to what is published next, if it is to, until what is returned is dropped.
    pub fn start_following(&self, kernel: Notifier) -> Result<Option<Watching>> {
        self.follow.as_ref().map(|(follow, every)| follow.start(*every, kernel)).transpose()
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
        match &self.follow {
            Some((follow, _)) => follow.filesystem(),
            None => self.volume.clone(),
        }
    }

    /// What is shown now: where a name is followed not what was mounted.
    pub fn shown(&self) -> Arc<Volume> {
        self.follow.as_ref().map_or_else(|| self.volume.clone(), |(follow, _)| follow.volume())
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
        self.shown().parts().store.clone()
    }

    /// Ends it in good order and gives the volume free. The second call does nothing.
    pub fn close(&self) -> Result<()> {
        let lock = self.lock.lock().take();
        drop(self.watch.lock().take());
        if self.writer().is_some_and(Writer::is_lost) {
            self.volume.turn_read_only();
        }
        let failed = |error: OpenError| open_failure(Path::new(&self.name), error);
        let volume = self.volume.close().map_err(failed);
        // Also when the volume could not be closed: what the journal holds is to be durable all the same.
        let journal = self.journal.as_ref().map_or(Ok(()), |journal| journal.close());
        if lock.is_some() {
            self.far.iter().for_each(|far| far.close());
            self.writer.iter().for_each(Writer::close);
        }
        drop(lock);
        // A published tree has no lock; its cache is closed and its fleet left once, however often this is called.
        self.tree_cache.iter().for_each(TreeCache::close);
        volume.and(journal.map_err(|error| failed(OpenError::Store(error))))
    }

    /// What a file is made of; `list`: with every extent.
    pub fn info(&self, path: &Path, list: bool) -> Result<Info> {
        // What is still being gathered in memory is written down first, so that it is seen.
        if self.mode == Mode::Exclusive {
            let _ = self.volume.sync();
        }
        let origin = self.volume.parts().origin.clone();
        let places = info::Places { origin: &*origin, folder: self.dir().map(VolumeDir::path) };
        info::of(&Names::new(self.store()), &places, path, list)
    }

    /// Makes everything written so far survive a power cut.
    pub fn flush(&self) -> Result<()> {
        self.volume.sync().map_err(|errno| errno_failure("cannot make the volume durable", errno))
    }

    /// What only a far origin has.
    pub fn far(&self) -> Option<&Far> {
        self.far.as_deref()
    }

    /// Its claim on the origin, if it was opened for writing.
    pub fn writer(&self) -> Option<&Writer> {
        self.writer.as_ref()
    }

    /// Whether its blobs come over a network.
    pub fn is_remote(&self) -> bool {
        self.far.is_some() || self.tree_cache.is_some()
    }

    /// The endpoint of its object store that is used, if one was named.
    pub fn endpoint(&self) -> Option<String> {
        let far = self.far.as_ref().map(|far| far.status());
        far.or_else(|| self.tree_cache.as_ref().map(TreeCache::status))?.endpoint
    }

    /// What a mount of a published tree in a far origin keeps here.
    pub fn tree_cache(&self) -> Option<&TreeCache> {
        self.tree_cache.as_ref()
    }

    /// Waits until everything written so far is in the origin; at most so long, if that is said.
    pub fn settle(&self, patience: Option<Duration>, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
        let began = base::time::monotonic();
        let until_then = || {
            let waited = base::time::monotonic().saturating_duration_since(began);
            patience.map(|patience| patience.saturating_sub(waited))
        };
        let settled = self.settle_all(&until_then, tick);
        let Some(writer) = self.writer() else { return settled };
        // An origin that was emptied, or is another writer's, has nothing of this; that is then also why it did not take it.
        match settled {
            Ok(settled) => writer.verify_within(until_then()).map(|()| settled),
            Err(failure) => Err(writer.lost().unwrap_or(failure)),
        }
    }

    fn settle_all(&self, left: &dyn Fn() -> Option<Duration>, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
        self.writer().map_or(Ok(()), Writer::not_lost)?;
        if self.mode == Mode::Exclusive {
            self.flush()?;
            tick(Tick { done: 0, of: 0, what: "open packs are sealed".to_owned() });
            let sealing = left().unwrap_or(SEALING).min(SEALING);
            self.volume.seal_now(sealing).map_err(|error| {
                Failure::new("not-uploaded", "not everything is in the origin")
                    .why(error.to_string())
                    .next("look at the log of the mount, then try again")
            })?;
        }
        match &self.far {
            Some(far) => far.settle(left(), tick),
            None => {
                let synced = self.volume.parts().origin.sync();
                synced.map_err(|error| {
                    Failure::new("io", "cannot make blobs durable").why(error.to_string())
                })?;
                Ok(Settled::default())
            }
        }
    }

    /// Lets go of cached blobs: of all, or until no more bytes than this are kept.
    pub fn evict(&self, to: Option<u64>) -> Result<Evicted> {
        match (&self.far, &self.tree_cache) {
            (Some(far), _) => far.evict(to),
            (None, Some(cache)) => Ok(cache.evict(to)),
            (None, None) => Err(no_cache(&self.name)),
        }
    }

    /// Fetches what files and trees consist of, into this node's cache or into the depots of its zone.
    pub fn warm(&self, paths: &[PathBuf], depot: bool, tick: &mut dyn FnMut(Tick)) -> Result<WarmSummary> {
        let to = warm::To::of(&self.name, (self.far(), self.tree_cache.as_ref()), depot)?;
        warm::warm(to, Names::new(self.store()), paths, tick)
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
        self.let_go_of_lost()?;
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
        access: options.access.clone(),
        report: log::sink(),
        ..Options::default()
    }
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
        OpenError::Store(StoreError::DamagedLog(_)) => {
            Failure::new("damaged-log", format!("the log of the volume {shown} is damaged; nothing was changed"))
                .why(why)
                .next(format!("copy the folder {shown} first, if there is room for that"))
                .next(format!(
                    "covey fsck --salvage {shown} brings in what is in front of the damage, keeps a copy of the log, and lists what is lost"
                ))
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
