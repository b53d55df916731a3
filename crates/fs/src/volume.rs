//! A volume: the real [`crate::api::Filesystem`], with POSIX semantics over names and blobs.
//!
//! ```text
//!   fuse ──► serve.rs ──► ops/*.rs ──► names (meta)      inodes, directories, extents
//!                              │
//!                              ├─────► packs/            new bytes: open packs, sealing
//!                              ├─────► source            bytes of sealed packs
//!                              └─────► gc/               bytes that nothing refers to
//! ```
//!
//! What is always true:
//!
//! - **Bytes before names.** A write's bytes are in their pack before the commit that mentions them. The slot
//!   in the pack is released only after that commit.
//! - **Nothing is deleted that a crash could bring back.** Bytes are deleted only after the commit that
//!   dropped the last reference to them was flushed.
//! - **An inode without a name lives while the kernel refers to it** ([`crate::refs`]).
//! - **Small files change exclusively.** Each decision whether a file is kept inline is made under the file's
//!   lock, taken exclusively. A write that only adds packed bytes takes the lock shared.
//!
//! Three background threads run: one seals packs, one sweeps (flush, retire, delete, look for equal pages,
//! compact), one reaps inodes. All end in [`Volume::close`], and when the volume is dropped.

mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::phase::{self, Phase};
use base::{Ino, PackNo, Timestamp, time};
use blob::gate::NoGate;
use blob::{BlobError, BlobSource, Gate, Origin, PackStore};
use hashbrown::HashSet;
use meta::plan::{Change, Ctx, Op};
use meta::record::InodeRecord;
use meta::store::StoreError;
use meta::{MetaStore, Names, PackRow};
use parking_lot::{Mutex, RwLock};

use crate::access::hints::{AccessRules, Hints};
use crate::api::Caller;
use crate::counters::{Counters, Reported};
use crate::equal::answers::Answers;
use crate::errno::{Errno, Error};
use crate::gc::Garbage;
use crate::gc::fresh::{Fresh, Scattered, When};
use crate::gc::reap_queue::Reaper;
use crate::gc::shared::Deletions;
use crate::gc::sweep_state::Sweep;
use crate::locks::own::OwnLocks;
use crate::numbers::Numbers;
use crate::packs::Packs;
use crate::packs::table::Table;
use crate::prefetch::streams::Streams;
use crate::publish::state::Publishing;
use crate::refs::{Held, Refs};
use crate::shared::Sharing;
use crate::shared::locks::FleetLocks;
use crate::space::SpaceGate;
use crate::trash::state::Trash;

/// Names of the volume's own rows.
pub(crate) use meta::trash::ROW_FORMAT;
/// The formats that this program reads: of a new volume, and of one that has trash.
pub use meta::trash::{FORMAT, FORMAT_TRASH};
pub(crate) const ROW_ID: &str = "id";
/// The longest time that closing spends on looking for equal pages.
const DEDUP_PATIENCE: Duration = Duration::from_secs(10);
const INOS_AT_ONCE: u64 = 64 << 10;
const PACKS_AT_ONCE: u64 = 1 << 10;
/// The longest time that closing waits for inodes to be reaped. The rest is reaped after the next open.
const REAP_PATIENCE: Duration = Duration::from_secs(10);
/// The number of file locks. Files share them by inode number modulo this.
const LOCKS: usize = 256;

/// The parts a volume is built from.
#[derive(Clone)]
pub struct Parts {
    /// The metadata engine, which holds the names.
    pub store: Arc<dyn MetaStore>,
    /// The open packs of this node.
    pub packs: Arc<dyn PackStore>,
    /// Where sealed blobs are read from.
    pub source: Arc<dyn BlobSource>,
    /// Where blobs are stored permanently.
    pub origin: Arc<dyn Origin>,
}

/// When a read updates the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// Never. The time stays as it was set.
    #[default]
    AsSet,
    /// When it is not later than the last change, or is a day old.
    Relative,
}

/// What fsync(2) promises when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// The data survives a power cut of this machine.
    #[default]
    Here,
    /// In addition, its bytes are in the origin. fsync(2) fails if that takes longer than this.
    Origin(Duration),
    /// In addition, they are on the disk of another node of a shared volume, or in the origin: whichever is
    /// first. fsync(2) fails if both take longer than this.
    Peer(Duration),
}

/// Prints one line for the operator of the node.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Answers whether this volume may still delete blobs of the origin; if not, why.
pub type MayDelete = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// How a volume is opened.
#[derive(Clone)]
pub struct Options {
    /// Nothing is changed, not even what a crash left behind.
    pub read_only: bool,
    /// The tree cannot change while it is open; implies `read_only`.
    pub frozen: bool,
    /// See [`Atime`].
    pub atime: Atime,
    /// The longest time between two flushes: everything older survives a power cut.
    pub commit: Duration,
    /// All blobs are on this machine: no read waits for a network.
    pub local: bool,
    /// A pack below 1 MiB is sealed when nothing was added to it for this long. Where each blob costs a
    /// request, a longer wait gives fewer blobs.
    pub seal_small: Duration,
    /// What fsync(2) waits for.
    pub fsync: Fsync,
    /// Asked before new bytes are taken.
    pub gate: Arc<dyn Gate>,
    /// Names are on this machine too: no lookup waits for a network.
    pub names_local: bool,
    /// Rules for how files will be read, if any were given.
    pub access: AccessRules,
    /// Other nodes write to the volume too.
    pub shared: Option<Sharing>,
    /// What the kernel refers to already ([`crate::handover`]).
    pub held: Held,
    /// Inodes without a name are deleted. If not, they wait for the next open of the volume.
    pub reaps: bool,
    /// Kernels that held inodes without a name may come back for so long after the opening, and hold them
    /// again. What is held at the close stays for the next opening. Not of a shared volume.
    pub orphans_stay: Duration,
    /// Locks reach the filesystem, although no other node writes to the volume.
    pub own_locks: bool,
    /// Several kernels see the volume, as guests of this node. They find out by its times that a file has
    /// changed.
    pub many_kernels: bool,
    /// Called before a blob is deleted, if present. An error (a sentence) keeps the blob.
    pub may_delete: Option<MayDelete>,
    /// Where messages go: standard error by default.
    pub report: Report,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            frozen: false,
            atime: Atime::AsSet,
            commit: Duration::from_secs(1),
            local: true,
            seal_small: crate::packs::IDLE_SMALL,
            fsync: Fsync::Here,
            gate: Arc::new(NoGate),
            names_local: true,
            access: AccessRules::default(),
            shared: None,
            held: Held::default(),
            reaps: true,
            orphans_stay: Duration::ZERO,
            own_locks: false,
            many_kernels: false,
            may_delete: None,
            report: Arc::new(|line| base::out::complaint(format_args!("covey: {line}"))),
        }
    }
}

/// The parameters of a new volume.
#[derive(Clone, Debug, Default)]
pub struct FormatRequest {
    /// The volume's identity; random by default.
    pub id: Option<[u8; 16]>,
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
    /// Further rows to keep, by name: each name at most 64 bytes, each value at most 4 KiB.
    pub rows: Vec<(String, Vec<u8>)>,
}

/// Why a volume could not be opened or made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no volume in this store.
    #[error("there is no volume here; `covey format` makes one")]
    NotFormatted,
    /// There is one already.
    #[error("there is a volume here already; choose another place, or remove it first")]
    Exists,
    /// A program with another format made it, most likely a newer one.
    #[error(
        "the volume has format {found}, and this program reads formats up to {FORMAT_TRASH}: use the program that made it, or a newer one"
    )]
    Format {
        /// The format of the volume.
        found: u32,
    },
    /// The stored data is damaged.
    #[error("the volume is damaged: {0}; `covey fsck` says more")]
    Damaged(String),
    /// The names cannot be read or written.
    #[error(transparent)]
    Store(StoreError),
    /// The packs or blobs cannot be read or written.
    #[error(transparent)]
    Blob(BlobError),
    /// No thread could be started.
    #[error("the system has no room for another thread: {0}")]
    Thread(std::io::Error),
}

impl From<Error> for OpenError {
    fn from(error: Error) -> OpenError {
        match error {
            Error::Store(StoreError::Damaged(what)) => OpenError::Damaged(what),
            Error::Store(error) => OpenError::Store(error),
            Error::Blob(error) => OpenError::Blob(error),
            Error::Refused(refusal) => OpenError::Damaged(refusal.to_string()),
            Error::Errno(errno) => OpenError::Damaged(errno.to_string()),
        }
    }
}

/// An open volume. See the [module](self).
pub struct Volume {
    pub(crate) core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the operations and the background threads share.
pub(crate) struct Core {
    pub(crate) names: Names,
    pub(crate) parts: Parts,
    pub(crate) options: Options,
    pub(crate) packs: Packs,
    pub(crate) table: Table,
    pub(crate) refs: Refs,
    pub(crate) inos: Numbers,
    pub(crate) pack_nos: Numbers,
    locks: Box<[RwLock<()>]>,
    pub(crate) space: SpaceGate,
    pub(crate) garbage: Garbage,
    pub(crate) reaper: Reaper,
    pub(crate) sweep: Sweep,
    /// See [`crate::gc::shared`].
    pub(crate) deletions: Deletions,
    /// See [`crate::equal`].
    pub(crate) answers: Answers,
    /// Pages that were written to, and that deduplication has not looked at since.
    pub(crate) fresh: Fresh,
    pub(crate) scattered: Scattered,
    pub(crate) counters: Counters,
    pub(crate) reported: Reported,
    pub(crate) streams: Streams,
    pub(crate) hints: Hints,
    /// Something was committed since the last flush.
    pub(crate) dirty: AtomicBool,
    pub(crate) stopping: AtomicBool,
    /// See [`Volume::turn_read_only`].
    revoked: AtomicBool,
    /// Shared while a pack becomes a blob and its row is written; exclusive while an unreferenced blob is
    /// found and deleted. So a new pack with the same content never loses its blob to a deletion that runs at
    /// the same time.
    pub(crate) blobs: RwLock<()>,
    pub(crate) fleet_locks: FleetLocks,
    pub(crate) own_locks: Option<OwnLocks>,
    /// See [`crate::trash`].
    pub(crate) trash: Trash,
    /// One quota is changed at a time.
    pub(crate) quota_changes: Mutex<()>,
    /// See [`crate::publish`].
    pub(crate) publishing: Publishing,
    /// Packs that the previous run sealed and did not retire. Their bytes are certainly still in their open
    /// packs.
    pub(crate) resealing: Mutex<HashSet<PackNo>>,
    /// Packs with lower numbers existed when the volume was opened.
    pub(crate) first_pack: AtomicU64,
    /// The previous run left packs that are not in the origin, and no other node was sent them.
    pub(crate) is_behind: AtomicBool,
    /// In a shared volume: the latest time that was given ahead of the clock, in nanoseconds.
    pub(crate) latest: AtomicI64,
}

impl Volume {
    /// Makes a new, empty volume in these parts.
    ///
    /// # Errors
    /// [`OpenError::Exists`], or an error of the store.
    pub fn format(parts: &Parts, request: &FormatRequest) -> Result<(), OpenError> {
        let id = request.id.unwrap_or_else(base::random::id16);
        let mut rows = vec![(ROW_FORMAT, FORMAT.to_be_bytes().to_vec()), (ROW_ID, id.to_vec())];
        rows.extend(request.rows.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let ctx = Ctx { now: time::now(), uid: request.owner.0, gid: request.owner.1 };
        let names = Names::new(parts.store.clone());
        match names.run(&Op::Format { rows: &rows }, &ctx).map_err(Error::from) {
            Ok(_) => parts.store.flush().map_err(OpenError::Store),
            Err(Error::Refused(meta::plan::Refusal::Exists)) => Err(OpenError::Exists),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that this store holds a volume of a format that this program reads. Returns its identity.
    ///
    /// # Errors
    /// [`OpenError::NotFormatted`], [`OpenError::Format`], or an error of the store.
    pub fn probe(store: &dyn MetaStore) -> Result<[u8; 16], OpenError> {
        let row = |name| store.get(&meta::Key::volume(name)).map_err(OpenError::Store);
        let format = row(ROW_FORMAT)?.ok_or(OpenError::NotFormatted)?;
        let number = <[u8; 4]>::try_from(&format[..]).map(u32::from_be_bytes);
        match number {
            Ok(FORMAT | FORMAT_TRASH) => {}
            Ok(found) => return Err(OpenError::Format { found }),
            Err(_) => return Err(OpenError::Damaged("the row of its format is no number".into())),
        }
        let id = row(ROW_ID)?.ok_or_else(|| OpenError::Damaged("it has no identity".into()))?;
        <[u8; 16]>::try_from(&id[..]).map_err(|_| OpenError::Damaged("its identity is not 16 bytes".into()))
    }

    /// Opens a volume and repairs what a crash left: at once where names depend on it, otherwise in the
    /// background.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(parts: Parts, mut options: Options) -> Result<Volume, OpenError> {
        Volume::probe(&*parts.store)?;
        options.read_only |= options.frozen;
        let core = Arc::new(Core {
            names: match &options.shared {
                Some(_) => Names::leased(parts.store.clone()),
                None => Names::new(parts.store.clone()),
            },
            parts,
            packs: Packs::new(options.seal_small),
            table: Table::new(),
            refs: Refs::of_held(&options.held.0),
            inos: Numbers::new(INOS_AT_ONCE),
            pack_nos: Numbers::new(PACKS_AT_ONCE),
            locks: (0..LOCKS).map(|_| RwLock::new(())).collect(),
            space: SpaceGate::new(),
            garbage: Garbage::new(),
            reaper: Reaper::new(),
            sweep: Sweep::new(options.commit),
            deletions: Deletions::default(),
            answers: Answers::default(),
            fresh: Fresh::default(),
            scattered: Scattered::default(),
            counters: Counters::default(),
            reported: Reported::default(),
            streams: Streams::new(),
            hints: Hints::new(options.access.clone()),
            dirty: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            blobs: RwLock::new(()),
            fleet_locks: FleetLocks::default(),
            own_locks: options.own_locks.then(OwnLocks::default),
            trash: Trash::default(),
            quota_changes: Mutex::default(),
            publishing: Publishing::default(),
            resealing: Mutex::default(),
            first_pack: AtomicU64::new(0),
            is_behind: AtomicBool::new(false),
            latest: AtomicI64::new(0),
            options,
        });
        let volume = Volume { core: core.clone(), threads: Mutex::default() };
        core.note_resealing()?;
        volume.start_work()?;
        Ok(volume)
    }

    /// Closes the volume cleanly: every pack is sealed, everything survives a power cut, the threads end. A
    /// pack that cannot be sealed now (the origin cannot be reached) stays open on this disk and is sealed
    /// after the next open.
    ///
    /// # Errors
    /// An error of the last writes or of the flush.
    pub fn close(&self) -> Result<(), OpenError> {
        if self.core.options.read_only || self.core.stopping.load(Ordering::Acquire) {
            self.stop();
            return Ok(());
        }
        self.core.let_all_go();
        let began = time::monotonic();
        while !self.core.is_shared()
            && !self.core.reaper.is_idle()
            && time::monotonic().saturating_duration_since(began) < REAP_PATIENCE
        {
            self.core.sweep.pause(Duration::from_millis(5));
        }
        // Pages that deduplication does not reach stay as they are: stored, perhaps twice.
        let _ = self.core.dedup(When::Closing, DEDUP_PATIENCE);
        self.core.packs.close_all();
        self.stop();
        self.core.finish().map_err(OpenError::from)
    }

    fn stop(&self) {
        self.core.stopping.store(true, Ordering::Release);
        self.core.packs.stop();
        self.core.sweep.stop();
        self.core.fresh.close();
        self.core.streams.queue.close();
        self.core.reaper.stop();
        self.core.options.shared.iter().filter_map(|sharing| sharing.keeping.as_ref()).for_each(|k| k.stop());
        let locks = self.core.fleet_locks.queue.stop();
        for thread in self.threads.lock().drain(..).chain(locks) {
            if thread.join().is_err() {
                (self.core.options.report)("one of the volume's own threads ended by a panic");
            }
        }
    }

    /// From now on every change is refused with EROFS, because another writer owns the origin. What was
    /// acknowledged stays on this machine and is still made durable. Nothing is moved or collected any more.
    pub fn turn_read_only(&self) {
        self.core.revoked.store(true, Ordering::Release);
    }

    /// How many references the kernel and other callers hold to this inode. A caller that obtains one later
    /// sees everything that was done before this call.
    pub fn references(&self, ino: Ino) -> u64 {
        self.core.refs.of(ino)
    }

    /// The volume's identity.
    ///
    /// # Errors
    /// An error of the store.
    pub fn id(&self) -> Result<[u8; 16], OpenError> {
        Volume::probe(&*self.core.parts.store)
    }

    /// The access hints that the mount's options give.
    pub fn access_rules(&self) -> &AccessRules {
        self.core.hints.rules()
    }

    /// The parts with which the volume was opened.
    pub fn parts(&self) -> &Parts {
        &self.core.parts
    }
}

impl Drop for Volume {
    /// Like a kill, but the threads end in order: nothing is sealed or flushed.
    fn drop(&mut self) {
        self.stop();
    }
}

impl Core {
    /// Whether changes are refused: the volume was opened read-only, or has lost its origin to another
    /// writer.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only || self.revoked.load(Ordering::Acquire)
    }

    /// Runs an operation now, without a caller.
    pub(crate) fn run(&self, op: &Op<'_>) -> Result<Change, Error> {
        self.run_as(&Caller::default(), time::now(), op)
    }

    /// Runs an operation and records what it no longer refers to. Of the crowded pages it finds, the returned
    /// change keeps those that should be looked at now.
    pub(crate) fn run_as(&self, caller: &Caller, now: Timestamp, op: &Op<'_>) -> Result<Change, Error> {
        let now = if self.has_many_kernels() { self.after_what_was_seen(op, now)? } else { now };
        let ctx = Ctx { now, uid: caller.uid, gid: caller.gid };
        let change = self.names.run(op, &ctx)?;
        Ok(self.note_change(change))
    }

    /// Runs an operation as [`Core::run`] does, but what loses its last name does not go to the trash.
    pub(crate) fn run_for_good(&self, op: &Op<'_>) -> Result<Change, Error> {
        let now = time::now();
        let now = if self.has_many_kernels() { self.after_what_was_seen(op, now)? } else { now };
        let change = self.names.run_for_good(op, &Ctx { now, uid: 0, gid: 0 })?;
        Ok(self.note_change(change))
    }

    fn note_change(&self, mut change: Change) -> Change {
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
        self.sweep.note_change(&change);
        if !change.orphaned.is_empty() {
            self.reaper.push(&change.orphaned);
        }
        if !change.released.is_empty() {
            self.garbage.touch(&change.released);
        }
        if !change.crowded.is_empty() {
            change.crowded = self.garbage.crowd(&change.crowded);
        }
        change
    }

    /// An inode's record, for reading, or for a decision that depends on its kind.
    pub(crate) fn inode(&self, ino: Ino) -> Result<InodeRecord, Error> {
        self.names.inode(ino)?.ok_or(Error::Errno(Errno::ENOENT))
    }

    /// An inode as stat(2) shows it.
    pub(crate) fn attr(&self, ino: Ino) -> Result<InodeRecord, Error> {
        self.names.attr(ino)?.ok_or(Error::Errno(Errno::ENOENT))
    }

    /// An inode that must be a regular file.
    pub(crate) fn file(&self, ino: Ino) -> Result<InodeRecord, Error> {
        let record = self.inode(ino)?;
        match () {
            () if record.is_file() => Ok(record),
            () if record.is_dir() => Err(Errno::EISDIR.into()),
            () => Err(Errno::EINVAL.into()),
        }
    }

    pub(crate) fn lock_of(&self, ino: Ino) -> &RwLock<()> {
        &self.locks[ino.0 as usize % LOCKS]
    }

    /// Takes both files' locks exclusively, in one fixed order, so that two callers cannot deadlock.
    pub(crate) fn with_both<T>(&self, a: Ino, b: Ino, work: impl FnOnce() -> T) -> T {
        let (first, second) = (a.0 as usize % LOCKS, b.0 as usize % LOCKS);
        let _first = self.locks[first.min(second)].write();
        let _second = (first != second).then(|| self.locks[first.max(second)].write());
        work()
    }

    /// Refuses when the disk is nearly full and nothing pending would free space.
    pub(crate) fn admit(&self, bytes: u64) -> Result<(), Error> {
        match self.space.admit(bytes, || self.parts.packs.space()) {
            Err(BlobError::Full) => self.admit_after_freeing(bytes),
            done => Ok(done?),
        }
    }

    pub(crate) fn report(&self, line: &str) {
        (self.options.report)(line);
    }

    /// Makes everything done so far survive a power cut.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        // Cleared before the flush, so that a commit during the flush counts as not flushed.
        self.dirty.store(false, Ordering::Release);
        let _phase = phase::enter(Phase::Names);
        self.parts.store.flush().map_err(|error| {
            self.dirty.store(true, Ordering::Release);
            error.into()
        })
    }

    /// The row of a pack in the pack table.
    pub(crate) fn pack_row(&self, pack: PackNo) -> Result<Option<PackRow>, Error> {
        Ok(self.names.pack(pack)?)
    }
}
