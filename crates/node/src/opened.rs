//! The wiring: the contents of a volume's folder become an open volume.
//!
//! ```text
//!   VOLUME/lock ── held          covey.json ── format, origin
//!   meta/ ──► journal over SQLite ──┐
//!   open/ ──► DiskPacks ────────────┼──► Volume ──► a mount, an import, fsck, ...
//!   origin (blobs/) ────────────────┘          remote_side.rs: a cache and uploads in front
//! ```
//!
//! A volume in memory has the same parts, all in memory. Everything is opened in this order and closed in the
//! reverse order. The lock is released last, so the next process that takes it finds the volume closed.

mod clone;
mod parts;
mod published;
mod quota;
mod shared;
mod source;
mod trash;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::answers::{Evicted, GcSummary, Settled, WarmSummary};
use api::control::Tick;
use api::error::{Failure, Result};
use api::info::Info;
use api::reads::ReadRange;
use api::status::fleet::{FleetStatus, PeerRow};
use api::status::{Mode, TreeInfo};
use api::text::bytes;
use fs::OpenError;
use fs::api::{Filesystem, Locks};
use fs::gc::all::Collected;
use fs::handover::Handed;
use fs::volume::{Atime, Options, Volume};
use fuse::Notifier;
use meta::{Journal, MetaStore, Names};
use parking_lot::Mutex;
use tree::Root;

use crate::claim::Writer;
use crate::claim::watch::{self, Watch};
use crate::errno::errno_failure;
use crate::fleet::options::FleetOptions;
use crate::fleet::{Joined, shown};
use crate::follow::{Follow, Watching};
use crate::frozen;
use crate::info;
use crate::limits;
use crate::log;
use crate::options::{NodeOptions, SHARED_LOCKS};
use crate::refused::{no_cache, no_fleet, open_failure};
use crate::remote_side::options::FsyncTo;
use crate::remote_side::tree::TreeCache;
use crate::remote_side::warm::To;
use crate::remote_side::{RemoteSide, ranges, warm};
use crate::shared::Shared;
use crate::volume_dir::{Holder, Lock, VolumeDir};

pub use clone::Cloned;
pub use parts::{Bare, fill, format_request, make_journal, memory_parts_over, open_bare, open_names};
use parts::{Opened, folder_parts, memory_parts};
pub use source::Source;

/// Sealing the open packs takes no longer than this, unless the disk fails.
const SEALING: Duration = Duration::from_secs(60);

/// An open volume with everything that belongs to it.
pub struct Node {
    name: String,
    dir: Option<VolumeDir>,
    volume: Arc<Volume>,
    /// None for a volume in memory.
    journal: Option<Arc<Journal>>,
    /// The rows of a volume in memory.
    rows: Option<Arc<meta::Memory>>,
    /// The remote side, if the origin is remote.
    remote_side: Option<Arc<RemoteSide>>,
    /// The cache of a mounted tree in a remote origin.
    tree_cache: Option<TreeCache>,
    /// The root of a published tree, and its origin.
    tree: Option<(Root, String)>,
    /// The follower of a published name, and how often it reads the record.
    follow: Option<(Arc<Follow>, Duration)>,
    mode: Mode,
    opened: Instant,
    lock: Mutex<Option<Lock>>,
    /// The claim on the origin, and the thread that checks it.
    writer: Option<Writer>,
    watch: Mutex<Option<Watch>>,
    /// The node's part of a shared volume.
    shared: Option<Shared>,
}

impl Node {
    /// Opens a volume in a folder.
    pub fn open(dir: &VolumeDir, options: &NodeOptions) -> Result<Node> {
        if dir.is_shared() {
            return Node::open_shared(dir, &FleetOptions::default(), options);
        }
        if options.remote_side.fsync == Some(FsyncTo::Peer) {
            return Err(Failure::usage(
                "fsync=peer is for shared volumes: no other node has this one's bytes",
            )
            .next("use fsync=origin, or leave it out"));
        }
        if !options.read_only {
            limits::check(limits::For::Change)?;
        }
        let lock = dir.lock(&holder(options))?;
        let failed = |error: OpenError| open_failure(dir.path(), error);
        let Opened { parts, journal, remote_side, writer, .. } = folder_parts(dir, options)?;
        let store = parts.store.clone();
        let mut for_volume = volume_options(options);
        if let Some(remote_side) = &remote_side {
            for_volume = remote_side.volume_options(&options.remote_side, for_volume);
        }
        for_volume.may_delete = writer.as_ref().map(Writer::may_delete);
        for_volume.own_locks = has_own_locks(options);
        let volume = match Volume::open(parts, for_volume) {
            Ok(volume) => Arc::new(volume),
            Err(error) => {
                let _ = journal.close();
                remote_side.iter().for_each(RemoteSide::close);
                writer.iter().for_each(Writer::close);
                return Err(failed(error));
            }
        };
        remote_side.iter().for_each(|remote_side| remote_side.opened(&store));
        let remote_side = remote_side.map(Arc::new);
        let uploads = remote_side.clone();
        let back = move || uploads.iter().for_each(|remote_side| remote_side.hurry());
        let watch = writer.clone().map(|writer| watch::start(writer, &volume, Box::new(back))).transpose()?;
        if let Some(handed) = &options.handed {
            // They are in memory, so this cannot fail.
            let _ = volume.adopt_locks(handed);
        }
        Ok(Node {
            name: dir.path().display().to_string(),
            dir: Some(dir.clone()),
            volume,
            journal: Some(journal),
            rows: None,
            remote_side,
            tree_cache: None,
            tree: None,
            follow: None,
            mode: mode(options),
            opened: base::time::monotonic(),
            lock: Mutex::new(Some(lock)),
            writer,
            watch: Mutex::new(watch),
            shared: None,
        })
    }

    /// Opens any kind of volume.
    pub fn open_source(source: &Source, options: &NodeOptions) -> Result<Node> {
        match source {
            Source::Memory => {}
            Source::Published(tree) => return Node::open_published(tree, options),
            Source::Shared(dir, fleet) => return Node::open_shared(dir, fleet, options),
            _ => return Node::open(source.dir().ok_or_else(nowhere)?, options),
        }
        let rows = Arc::new(meta::Memory::new());
        let parts = memory_parts(rows.clone());
        let failed = |error: OpenError| open_failure(Path::new("mem:"), error);
        Volume::format(&parts, &format_request()).map_err(failed)?;
        let own_locks = has_own_locks(options);
        let volume = Volume::open(parts, Options { own_locks, ..volume_options(options) }).map_err(failed)?;
        Ok(Node {
            name: format!("mem:{:016x}", base::random::u64()),
            dir: None,
            volume: Arc::new(volume),
            journal: None,
            rows: Some(rows),
            remote_side: None,
            tree_cache: None,
            tree: None,
            follow: None,
            mode: mode(options),
            opened: base::time::monotonic(),
            lock: Mutex::new(None),
            writer: None,
            watch: Mutex::default(),
            shared: None,
        })
    }

    /// The published tree and its origin, if this is one.
    pub fn tree(&self) -> Option<(TreeInfo, String)> {
        let (_, origin) = self.tree.as_ref()?;
        Some((frozen::tree_info(&self.root()?), origin.clone()))
    }

    /// The root of the tree that is shown, if this is a published tree.
    pub fn root(&self) -> Option<Root> {
        let (first, _) = self.tree.as_ref()?;
        Some(self.follow.as_ref().map_or_else(|| first.clone(), |(follow, _)| follow.root()))
    }

    /// The nodes of its fleet.
    pub fn peers(&self) -> Result<Vec<PeerRow>> {
        Ok(shown::peers(&self.joined().ok_or_else(|| no_fleet(&self.name))?.fleet))
    }

    /// The fleet that this node takes part in, if any.
    pub fn joined(&self) -> Option<&Joined> {
        let of_tree = self.tree_cache.as_ref().and_then(TreeCache::fleet);
        of_tree.or_else(|| self.remote_side.as_ref()?.fleet())
    }

    /// Returns the node's figures in its fleet, if it takes part in one.
    pub fn fleet_status(&self) -> Option<FleetStatus> {
        let of_tree = self.tree_cache.as_ref().map(TreeCache::cache);
        let cache = of_tree.or_else(|| Some(self.remote_side.as_ref()?.cache()))?;
        self.joined().map(|joined| joined.status(cache))
    }

    /// Follows the published name, if that was asked for, until the returned value is dropped.
    pub fn start_following(&self, kernel: Notifier) -> Result<Option<Watching>> {
        self.follow.as_ref().map(|(follow, every)| follow.start(*every, kernel)).transpose()
    }

    /// The source of its mount: its folder, or `mem:<id>`.
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

    /// The filesystem for a transport.
    pub fn filesystem(&self) -> Arc<dyn Filesystem> {
        match &self.follow {
            Some((follow, _)) => follow.filesystem(),
            None => self.volume.clone(),
        }
    }

    /// The volume that is shown now. With a followed name it can differ from the one that was mounted.
    pub fn shown(&self) -> Arc<Volume> {
        self.follow.as_ref().map_or_else(|| self.volume.clone(), |(follow, _)| follow.volume())
    }

    /// The volume that was opened.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Returns the volume's folder, if it has one.
    pub fn dir(&self) -> Option<&VolumeDir> {
        self.dir.as_ref()
    }

    /// The journal in front of its database, if it has one.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Memory used by the metadata of a volume in memory, in bytes. `None` for a volume on a disk.
    pub fn rows_bytes(&self) -> Option<u64> {
        // The tree and the allocator take about 40 bytes for each row, beside its own bytes.
        self.rows.as_ref().map(|rows| rows.bytes() + 40 * rows.rows())
    }

    /// The store of its metadata.
    pub fn store(&self) -> Arc<dyn MetaStore> {
        self.shown().parts().store.clone()
    }

    /// Takes out what the kernel goes on to use, for the node that is opened here next. [`Node::close`]
    /// follows.
    pub fn hand_over(&self) -> Handed {
        self.volume.hand_over()
    }

    /// Closes the volume in good order and releases the lock. A second call does nothing.
    pub fn close(&self) -> Result<()> {
        let lock = self.lock.lock().take();
        drop(self.watch.lock().take());
        if self.writer().is_some_and(Writer::is_lost) {
            self.volume.turn_read_only();
        }
        let failed = |error: OpenError| open_failure(Path::new(&self.name), error);
        let volume = self.volume.close().map_err(failed);
        // The journal is made durable even if the volume could not be closed.
        let journal = self.journal.as_ref().map_or(Ok(()), |journal| journal.close());
        if lock.is_some() {
            self.remote_side.iter().for_each(|remote_side| remote_side.close());
            self.writer.iter().for_each(Writer::close);
            self.shared.iter().for_each(Shared::close);
        }
        drop(lock);
        // A published tree has no lock. A second call does not close its cache or leave its fleet again.
        self.tree_cache.iter().for_each(TreeCache::close);
        volume.and(journal.map_err(|error| failed(OpenError::Store(error))))
    }

    /// What a file consists of. With `list`, lists every extent.
    pub fn info(&self, path: &Path, list: bool) -> Result<Info> {
        // Data that is still buffered in memory is written first, so that it is visible.
        if self.mode.writes() {
            let _ = self.volume.sync();
        }
        let origin = self.volume.parts().origin.clone();
        let nodes = self.shared.as_ref().map(|shared| {
            let alive = shared.others().alive().unwrap_or_default();
            (shared.number(), alive.iter().map(|session| session.node).collect())
        });
        let places = info::Places { origin: &*origin, folder: self.dir().map(VolumeDir::path), nodes };
        info::of(&Names::new(self.store()), &places, path, list)
    }

    /// Makes everything written so far survive a power cut.
    pub fn flush(&self) -> Result<()> {
        self.volume.sync().map_err(|errno| errno_failure("cannot make the volume durable", errno))
    }

    /// Returns the node's part of a shared volume, if the volume is one.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// The remote side, if the origin is remote.
    pub fn remote_side(&self) -> Option<&RemoteSide> {
        self.remote_side.as_deref()
    }

    /// Returns the claim on the origin, if the volume was opened for writing.
    pub fn writer(&self) -> Option<&Writer> {
        self.writer.as_ref()
    }

    /// Whether its blobs come over a network.
    pub fn is_remote(&self) -> bool {
        self.remote_side.is_some() || self.tree_cache.is_some()
    }

    /// The endpoint of its object store, if one was named.
    pub fn endpoint(&self) -> Option<String> {
        let remote_side = self.remote_side.as_ref().map(|remote_side| remote_side.status());
        remote_side.or_else(|| self.tree_cache.as_ref().map(TreeCache::status))?.endpoint
    }

    /// The cache of a mounted tree in a remote origin.
    pub fn tree_cache(&self) -> Option<&TreeCache> {
        self.tree_cache.as_ref()
    }

    /// Waits until everything written so far is in the origin, at most for the given time.
    pub fn settle(&self, patience: Option<Duration>, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
        let began = base::time::monotonic();
        let until_then = || {
            let waited = base::time::monotonic().saturating_duration_since(began);
            patience.map(|patience| patience.saturating_sub(waited))
        };
        let settled = self.settle_all(&until_then, tick);
        let Some(writer) = self.writer() else { return settled };
        // An emptied origin, or one claimed by another writer, does not have this data. That is then also the
        // reason why it did not accept it.
        match settled {
            Ok(settled) => writer.verify_within(until_then()).map(|()| settled),
            Err(failure) => Err(writer.lost().unwrap_or(failure)),
        }
    }

    fn settle_all(&self, left: &dyn Fn() -> Option<Duration>, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
        self.writer().map_or(Ok(()), Writer::not_lost)?;
        if self.mode.writes() {
            self.flush()?;
            tick(Tick { done: 0, of: 0, what: "open packs are sealed".to_owned() });
            let sealing = left().unwrap_or(SEALING).min(SEALING);
            self.volume.seal_now(sealing).map_err(|error| {
                Failure::new("not-uploaded", "not everything is in the origin")
                    .why(error.to_string())
                    .next("look at the log of the mount, then try again")
            })?;
        }
        match &self.remote_side {
            Some(remote_side) => remote_side.settle(left(), tick),
            None => {
                let synced = self.volume.parts().origin.sync();
                synced.map_err(|error| {
                    Failure::new("io", "cannot make blobs durable").why(error.to_string())
                })?;
                Ok(Settled::default())
            }
        }
    }

    /// Evicts cached blobs: all, or until at most this many bytes are cached.
    pub fn evict(&self, to: Option<u64>) -> Result<Evicted> {
        match (&self.remote_side, &self.tree_cache) {
            (Some(remote_side), _) => remote_side.evict(to),
            (None, Some(cache)) => Ok(cache.evict(to)),
            (None, None) => Err(no_cache(&self.name)),
        }
    }

    /// Fetches the data of files and trees, into this node's cache or into the depots of its zone.
    pub fn warm(&self, paths: &[PathBuf], depot: bool, tick: &mut dyn FnMut(Tick)) -> Result<WarmSummary> {
        let to = self.warms(depot)?;
        warm::warm(to, self.shown(), Names::new(self.store()), paths, tick)
    }

    fn warms(&self, depot: bool) -> Result<To> {
        let of_tree = self.tree_cache.as_ref().map(TreeCache::cache);
        let cache = of_tree.or_else(|| Some(self.remote_side.as_ref()?.cache()));
        To::of(&self.name, cache, self.joined(), depot)
    }

    /// Fetches ranges of files into this node's cache, in this order.
    pub fn warm_reads(&self, reads: &[ReadRange], tick: &mut dyn FnMut(Tick)) -> Result<WarmSummary> {
        let To::Here(cache) = self.warms(false)? else { return Err(no_cache(&self.name)) };
        ranges::warm(&cache, &Names::new(self.store()), reads, tick)
    }

    /// Removes the data that nothing refers to, and compacts scattered data.
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
            waiting_bytes: done.waiting_bytes,
        })
    }
}

/// Whether this program decides about locks, and not the kernel. A volume that becomes a shared one below its
/// mount has what most shared volumes have.
fn has_own_locks(options: &NodeOptions) -> bool {
    let unset = if options.promotable { SHARED_LOCKS } else { Locks::Local };
    options.locks.unwrap_or(unset) == Locks::Fleet
}

fn mode(options: &NodeOptions) -> Mode {
    match options {
        NodeOptions { frozen: true, .. } => Mode::Frozen,
        NodeOptions { read_only: true, .. } => Mode::ReadOnly,
        _ => Mode::Exclusive,
    }
}

fn holder(options: &NodeOptions) -> Holder {
    Holder { pid: std::process::id(), does: options.does.to_owned(), mountpoint: options.mountpoint.clone() }
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
        held: options.handed.as_ref().map(|handed| handed.held()).unwrap_or_default(),
        many_kernels: options.many_kernels,
        orphans_stay: options.orphans_stay,
        report: log::sink(),
        ..Options::default()
    }
}
