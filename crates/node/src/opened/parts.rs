//! The parts of a volume: its folder's contents, put together, and how a new volume is filled.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::control::Tick;
use api::error::{Context, Failure, Result};
use blob::{BlobSource, Origin, PackStore};
use cache::{DiskPacks, MemoryPacks};
use fs::OpenError;
use fs::volume::{FormatRequest, Options, Parts, Volume};
use meta::journal::Recovered;
use meta::journal::damage::Damage;
use meta::{Journal, MetaStore};
use origin::{Access, Folder, Spec};

use crate::claim::Writer;
use crate::limits;
use crate::log;
use crate::options::NodeOptions;
use crate::origins::{of_volume, origin_failure, spec};
use crate::refused::{not_shared, open_failure};
use crate::remote_side::RemoteSide;
use crate::remote_side::options::RemoteOptions;
use crate::shared::Shared;
use crate::volume_dir::{Holder, Lock, VolumeDir};

/// Uploads of which none was completed for so long are given up.
const STALLED: Duration = Duration::from_secs(60);

/// The user who creates a volume owns it.
pub fn format_request() -> FormatRequest {
    let gid = rustix::process::getegid().as_raw();
    FormatRequest { owner: (api::caller::euid(), gid), ..FormatRequest::default() }
}

fn parts(store: Arc<dyn MetaStore>, packs: Arc<dyn PackStore>, origin: Arc<dyn Origin>) -> Parts {
    let source: Arc<dyn BlobSource> = origin.clone();
    Parts { store, packs, source, origin }
}

/// The parts of a volume whose names are in this store and that has no bytes yet.
pub fn memory_parts_over(rows: Arc<dyn MetaStore>) -> Parts {
    let origin: Arc<dyn Origin> = Arc::new(origin::Memory::new());
    parts(rows, Arc::new(MemoryPacks::new(origin.clone())), origin)
}

/// The parts of a volume in memory.
pub fn memory_parts(rows: Arc<meta::Memory>) -> Parts {
    memory_parts_over(rows)
}

/// The parts of a volume in a folder.
pub struct Opened {
    /// The parts for the volume.
    pub parts: Parts,
    /// The journal in front of its metadata.
    pub journal: Arc<Journal>,
    /// The remote side, if the origin is remote.
    pub remote_side: Option<RemoteSide>,
    /// What recovery found in the log.
    pub recovered: Recovered,
    /// The claim on the origin, if the volume is opened for writing.
    pub writer: Option<Writer>,
}

/// An origin, with the cache in front of it if it is remote.
enum Side {
    Local(Arc<dyn Origin>, Option<Writer>),
    Remote(RemoteSide),
}

/// Opens the parts.
pub fn folder_parts(dir: &VolumeDir, options: &NodeOptions) -> Result<Opened> {
    let read_only = options.read_only || options.frozen;
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let side = match spec(dir)? {
        Spec::Remote(spec) => Side::Remote(RemoteSide::open(dir, &spec, options, None)?),
        Spec::Folder(folder) if !read_only => {
            let folder = Folder::open(&folder, access).map_err(|error| of_volume(dir, error))?;
            let writer = Writer::local(dir, folder, options.take_over)?;
            writer.open()?;
            Side::Local(writer.origin(), Some(writer))
        }
        spec => Side::Local(spec.open(access).map_err(origin_failure)?, None),
    };
    if !read_only {
        // Before the first write that an older program does not understand.
        dir.upgrade()?;
    }
    let opened = with_journal(dir, side, options.commit, options.salvage.clone())?;
    if let Some(writer) = &opened.writer {
        writer.try_to_hold_published(&*opened.parts.store);
    }
    Ok(opened)
}

/// The node's open packs.
fn open_packs(
    dir: &VolumeDir,
    origin: &Arc<dyn Origin>,
    remote_side: Option<&RemoteSide>,
) -> Result<Arc<dyn PackStore>> {
    let open = dir.open_packs();
    let packs = DiskPacks::open(&open, origin.clone()).at("open", &open)?;
    Ok(match remote_side {
        Some(remote_side) => remote_side.packs(packs),
        None => Arc::new(packs),
    })
}

/// The parts of a shared volume. The names are `shared`'s.
pub fn shared_parts(
    dir: &VolumeDir,
    shared: &Shared,
    options: &NodeOptions,
) -> Result<(Parts, Option<RemoteSide>)> {
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let (origin, remote_side) = match spec(dir)? {
        Spec::Remote(spec) => {
            let join = |origin, table| shared.join_fleet(origin, table, options.deadline);
            let remote_side = RemoteSide::open(dir, &spec, options, Some(&join))?;
            (remote_side.origin(), Some(remote_side))
        }
        spec => (spec.open(access).map_err(origin_failure)?, None),
    };
    let packs = open_packs(dir, &origin, remote_side.as_ref())?;
    Ok((parts(shared.store(packs.clone())?, packs, origin), remote_side))
}

fn with_journal(
    dir: &VolumeDir,
    side: Side,
    commit_every: Duration,
    salvage: Option<PathBuf>,
) -> Result<Opened> {
    let (origin, writer, remote_side) = match side {
        Side::Local(origin, writer) => (origin, writer, None),
        Side::Remote(remote_side) => (remote_side.origin(), remote_side.writer().cloned(), Some(remote_side)),
    };
    let packs = open_packs(dir, &origin, remote_side.as_ref())?;
    let options = meta::journal::Options { commit_every, salvage, ..meta::journal::Options::default() };
    let opened = Journal::open(&dir.meta(), packs.clone(), options);
    let (journal, recovered) = opened.map_err(|error| open_failure(dir.path(), OpenError::Store(error)))?;
    if let Some(line) = recovery_line(&recovered) {
        log::warn(&line);
    }
    let journal = Arc::new(journal);
    Ok(Opened { parts: parts(journal.clone(), packs, origin), journal, remote_side, recovered, writer })
}

/// Creates the log of a volume whose metadata already exists.
pub fn make_journal(dir: &VolumeDir, origin: Arc<dyn Origin>) -> Result<()> {
    let Opened { journal, .. } = with_journal(dir, Side::Local(origin, None), Duration::from_secs(1), None)?;
    journal.close().map_err(|error| open_failure(dir.path(), OpenError::Store(error)))
}

/// Opens the metadata of a volume over an origin that is only read. The caller holds the volume's lock.
pub fn open_names(dir: &VolumeDir, origin: Arc<dyn Origin>) -> Result<Arc<Journal>> {
    not_shared(dir, "origin")?;
    Ok(with_journal(dir, Side::Local(origin, None), Duration::from_secs(1), None)?.journal)
}

/// Fills a new volume's folder: origin and metadata.
pub fn fill(dir: &VolumeDir) -> Result<()> {
    let id = &dir.format().id;
    let spec = spec(dir)?;
    let side = match &spec {
        Spec::Remote(spec) => Side::Remote(RemoteSide::format(dir, spec)?),
        spec => Side::Local(spec.format(id).map_err(origin_failure)?, None),
    };
    // The marker of a failed volume would prevent the next attempt.
    fill_names(dir, side).inspect_err(|_| spec.folder().into_iter().for_each(Folder::unmake))
}

fn fill_names(dir: &VolumeDir, side: Side) -> Result<()> {
    let Opened { parts, journal, remote_side, .. } = with_journal(dir, side, Duration::from_secs(1), None)?;
    let id = id_bytes(&dir.format().id);
    let request = FormatRequest { id, ..format_request() };
    let failed = |error: OpenError| open_failure(dir.path(), error);
    Volume::format(&parts, &request).map_err(failed)?;
    let closed = journal.close().map_err(|error| failed(OpenError::Store(error)));
    remote_side.iter().for_each(RemoteSide::close);
    closed
}

fn id_bytes(text: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

/// The parts of a volume for a check. Opening changes nothing except for replaying its log.
pub struct Bare {
    /// The volume's parts.
    pub parts: Parts,
    /// The journal in front of its metadata.
    pub journal: Arc<Journal>,
    /// What was lost of its log, if the log was salvaged.
    pub damage: Option<Damage>,
    /// The claim on the origin, if the check may change it.
    pub writer: Option<Writer>,
    remote_side: Option<RemoteSide>,
    _lock: Lock,
}

impl Bare {
    /// Makes blobs of all open packs, and waits until the origin has all blobs. `reaps`: inodes without a
    /// name are deleted, because no program has them open.
    ///
    /// # Errors
    /// A pack cannot become a blob, or the origin takes nothing any more for [`STALLED`].
    pub fn settle(&self, dir: &VolumeDir, reaps: bool, tick: &mut dyn FnMut(Tick)) -> Result<()> {
        let failed = |error: OpenError| open_failure(dir.path(), error);
        let mut options = Options {
            may_delete: self.writer.as_ref().map(Writer::may_delete),
            report: log::sink(),
            reaps,
            ..Options::default()
        };
        if let Some(remote_side) = &self.remote_side {
            options = remote_side.volume_options(&RemoteOptions::default(), options);
            remote_side.opened(&self.parts.store);
        }
        tick(Tick { done: 0, of: 0, what: "open packs become blobs".to_owned() });
        let volume = Volume::open(self.parts.clone(), options).map_err(failed)?;
        // Packs that an earlier process sealed and left open are sealed again by the background.
        let sealed = volume.seal_now(STALLED).map_err(OpenError::from);
        let closed = volume.close();
        drop(volume);
        sealed.and(closed).map_err(failed)?;
        self.upload_all(dir, tick)?;
        self.parts.origin.sync().map_err(|error| failed(OpenError::Blob(error)))?;
        let open = self.parts.packs.open_packs().map_err(|error| failed(OpenError::Blob(error)))?;
        match open.len() {
            0 => Ok(()),
            packs => Err(Failure::new("damaged", format!("{packs} open packs did not become blobs"))
                .why("some of their bytes are damaged, or files were left there by hand")
                .next(format!("covey fsck {} says which files they hold", dir.path().display()))),
        }
    }

    /// Waits as long as uploads make progress.
    fn upload_all(&self, dir: &VolumeDir, tick: &mut dyn FnMut(Tick)) -> Result<()> {
        let Some(remote_side) = &self.remote_side else { return Ok(()) };
        let mut left = dir.not_uploaded();
        loop {
            let Err(failure) = remote_side.settle(Some(STALLED), tick) else { return Ok(()) };
            let now = dir.not_uploaded();
            if now == left {
                return Err(failure);
            }
            left = now;
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.remote_side.iter().for_each(RemoteSide::close);
        self.writer.iter().for_each(Writer::close);
    }
}

/// Opens the parts of a volume, but not the volume itself. For `salvage` see [`NodeOptions::salvage`].
pub fn open_bare(
    dir: &VolumeDir,
    does: &'static str,
    read_only: bool,
    salvage: Option<PathBuf>,
) -> Result<Bare> {
    not_shared(dir, does)?;
    if !read_only {
        limits::check(limits::For::Change)?;
    }
    let lock = dir.lock(&Holder { pid: std::process::id(), does: does.to_owned(), mountpoint: None })?;
    let options = NodeOptions { read_only, salvage, ..NodeOptions::writing(does) };
    let Opened { parts, journal, remote_side, recovered, writer } = folder_parts(dir, &options)?;
    Ok(Bare { parts, journal, damage: recovered.damage, writer, remote_side, _lock: lock })
}

/// One line about the remains of a crash. None after an orderly end.
fn recovery_line(found: &Recovered) -> Option<String> {
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
