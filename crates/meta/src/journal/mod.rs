//! The journal: a commit takes microseconds, and one disk flush serves all callers that wait for one.
//!
//! ```text
//!   commit --> overlay (memory) + log (one write) --> acknowledged: survives a kill
//!   flush  --> small writes: data into the log, else packs synced; one fdatasync of the log:
//!              survives a power cut
//!   drain  --> every second, or when the overlay is half full: sync packs, sync log, then one SQLite
//!              transaction with rows and log position; then drop the generation and free its log segments
//! ```
//!
//! Invariants:
//!
//! 1. **The log is in the order of commits**, and SQLite holds exactly the rows up to its log position. So a
//!    crash leaves a prefix of the commits.
//! 2. **SQLite never mentions bytes that a power cut could lose.** A drain syncs every pack that the
//!    generation mentions, also a pack whose bytes a flush put only into the log.
//! 3. **Fresh data is proven.** A record carries the CRC of the pack bytes that it is the first to mention.
//!    Recovery stops at the first record whose bytes are missing. A flush appends a *mark* to the log after
//!    what it makes durable: records up to the mark need no proof. So a pack may be retired once a flush that
//!    followed its `Sealed` row has returned: everything about it is marked or in SQLite. (A flush that
//!    follows a `Sealed` row always syncs packs, so no bytes of a sealed pack exist in the log alone.) When
//!    all of it is durable, the flush appends a second mark that says so. If something that a second mark
//!    covers is missing, it was damaged, not torn ([`damage`]).
//! 4. **After an error on the way to stable storage nothing is acknowledged any more** (the journal is
//!    poisoned): the system may have dropped the bytes, and it reports that only once. A full disk does not
//!    poison: nothing is applied, and the journal continues.
//! 5. **A full disk can be emptied.** The log has at least two segments, allocated in advance. The space that
//!    SQLite needs to remove rows is kept in reserve. A drain that finds the disk full borrows it and returns
//!    it at once. While the reserve is incomplete, commits that only add data are refused.
//! 6. **Bounded**: overlay, log, clean rows. A caller that commits faster than SQLite absorbs has to wait.
//!
//! Reads are consistent without a lock held over I/O. A reader enters the *gate*, looks at the overlay, and
//! asks SQLite for the rest. SQLite changes only in rows of the draining generation, and the overlay hides
//! those. A generation is written only after all readers that were inside the gate at its rotation have left.
//!
//! Lock order: drain, flush leadership, log, overlay, clean rows. The log's lock serialises commits.
//!
//! - [`format`], [`log`], [`leftover`], [`disk`]: the log's bytes, its segments, the segments found at open,
//!   the disk below (also a simulated one that loses power).
//! - [`absent`], [`overlay`], [`rows`]: what is known without asking SQLite.
//! - [`commit`](self::commit), [`flush`](self::flush), [`drain`](self::drain), [`recover`](self::recover):
//!   one step each.

mod absent;
mod commit;
pub mod damage;
pub mod disk;
mod drain;
mod flush;
pub mod format;
mod gate;
mod leftover;
mod log;
mod overlay;
mod recover;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::PackNo;
use base::size::{KIB, MIB};
use blob::{BlobError, PackStore};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::engine::Sqlite;
use crate::key::{Key, KeyRange};
use crate::store::{Commit, CommitError, FreshData, MetaStore, Rows, Snapshot, StoreError, Value};
use absent::Absent;
use disk::{Folder, LogDisk};
use gate::Gate;
use log::Log;
use overlay::{Merge, Overlay};
use rows::CleanRows;

pub use recover::Recovered;

/// How a journal behaves. The defaults are what a mount uses.
#[derive(Clone, Debug)]
pub struct Options {
    /// A commit is made durable, and drained, after at most this long.
    pub commit_every: Duration,
    /// A flush puts fresh data of at most this many bytes into the log instead of syncing packs.
    pub inline_bytes: u64,
    /// Limit of rows that are not in SQLite yet.
    pub overlay_rows: usize,
    /// Limit of the bytes of such rows with their overhead. The smallest reserve must hold half: one drain.
    pub overlay_bytes: usize,
    /// Limit of the bytes of clean rows: rows that were read from SQLite and are kept.
    pub clean_bytes: usize,
    /// Length of a log segment, in bytes.
    pub segment_bytes: u64,
    /// Limit of the bytes of all segments together.
    pub log_bytes: u64,
    /// Space kept in reserve for removals on a full disk: one 32nd of the disk, within these bytes.
    pub reserve_bytes: (u64, u64),
    /// Whether a background thread of the journal flushes and drains. Without it commits drain when they
    /// must.
    pub background: bool,
    /// Salvage: a damaged log is replayed up to the damage, after a copy of it was stored in this new folder.
    /// Without this option opening a damaged log is refused.
    pub salvage: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            commit_every: Duration::from_secs(1),
            inline_bytes: 64 * KIB,
            overlay_rows: 64 << 10,
            overlay_bytes: 16 << 20,
            clean_bytes: 8 << 20,
            segment_bytes: 8 * MIB,
            log_bytes: 64 * MIB,
            reserve_bytes: (8 * MIB, 64 * MIB),
            background: true,
            salvage: None,
        }
    }
}

/// What a journal holds now, and counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows not in SQLite yet.
    pub overlay_rows: u64,
    /// Bytes of the rows not in SQLite yet, with the overhead of keeping them.
    pub overlay_bytes: u64,
    /// Bytes of the log that are in use.
    pub log_bytes: u64,
    /// Bytes of the log's files.
    pub log_file_bytes: u64,
    /// Commits since the journal was opened.
    pub commits: u64,
    /// Commits refused because a check did not hold.
    pub conflicts: u64,
    /// Records that are now in SQLite.
    pub drained: u64,
    /// Times the log was made durable.
    pub flushes: u64,
    /// Times a commit had to wait for a drain.
    pub waits: u64,
    /// See [`Journal::is_tight`].
    pub tight: bool,
}

#[derive(Default)]
struct Counters {
    conflicts: AtomicU64,
    commits: AtomicU64,
    drained: AtomicU64,
    flushes: AtomicU64,
    waits: AtomicU64,
}

/// Fresh data that is not durable in its packs yet.
#[derive(Default)]
struct Fresh {
    /// Every range that is neither synced nor logged; empty if there are too many for the log.
    ranges: Vec<FreshData>,
    bytes: u64,
    /// The packs of these ranges.
    packs: BTreeSet<PackNo>,
    /// Packs with bytes that are durable in the log only.
    logged: BTreeSet<PackNo>,
    /// A pack was sealed: see invariant 3 of the module.
    sealed: bool,
}

/// State that the log's lock guards. Commits hold it one at a time.
struct LogState {
    log: Log,
    fresh: Fresh,
    /// The record under construction.
    buf: Vec<u8>,
    /// The last record that is a commit.
    committed: u64,
    /// The last record whose rows are in SQLite.
    applied: u64,
    /// Why the last drain failed. The next one may succeed.
    stuck: Option<Stuck>,
    /// Written data is durable, and the log had no room for the mark that says so.
    unmarked: bool,
}

/// A drain's error, in a form that every waiting commit can be given.
#[derive(Clone)]
enum Stuck {
    Full,
    Damaged(String),
    Unavailable(String),
}

#[derive(Default)]
struct Flushing {
    /// The last record that is durable, with its data.
    durable: u64,
    /// A flush has a leader now.
    led: bool,
}

#[derive(Default)]
struct Wake {
    /// There is something to make durable.
    dirty: bool,
    /// A commit waits for room.
    urgent: bool,
    stop: bool,
}

struct Shared {
    options: Options,
    sqlite: Sqlite,
    packs: Arc<dyn PackStore>,
    disk: Arc<dyn LogDisk>,
    /// Segments below this number are finished: see [`crate::engine::sqlite::Position`].
    floor: u64,
    gate: Gate,
    log: Mutex<LogState>,
    room: Condvar,
    overlay: RwLock<Overlay>,
    absent: Absent,
    clean: CleanRows,
    flushing: Mutex<Flushing>,
    flushed: Condvar,
    draining: Mutex<()>,
    wake: Mutex<Wake>,
    woken: Condvar,
    /// The thread that builds a filter for `absent`.
    scanner: Mutex<Option<JoinHandle<()>>>,
    /// `wake.dirty`, readable without its lock.
    dirty: AtomicBool,
    /// The reserve is incomplete: see [`Journal::is_tight`].
    tight: AtomicBool,
    dead: AtomicBool,
    why_dead: Mutex<String>,
    counters: Counters,
}

/// See the module. Dropping it has the effect of killing the process. [`Journal::close`] shuts it down in
/// order.
pub struct Journal {
    shared: Arc<Shared>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Opens the journal of the folder `dir`, which holds `names.db`, `log/` and `reserve`. Creates it if
    /// there is none. First moves what a crash left in the log into the database, and pack bytes that only
    /// the log holds into `packs`.
    ///
    /// # Errors
    /// See [`StoreError`]; the message says what to do next.
    pub fn open(
        dir: &Path,
        packs: Arc<dyn PackStore>,
        options: Options,
    ) -> Result<(Journal, Recovered), StoreError> {
        let reserve = dir.join("reserve");
        let disk =
            Folder::open(&dir.join("log"), &reserve, options.reserve_bytes, options.overlay_bytes as u64);
        let disk = disk.map_err(|error| {
            StoreError::Unavailable(format!(
                "{} cannot be opened: {error}; check that you may write to it",
                dir.display()
            ))
        })?;
        Journal::open_on(dir, Arc::new(disk), packs, options)
    }

    /// Opens a journal as [`Journal::open`] does, with the log on another disk than the folder's.
    ///
    /// # Errors
    /// See [`Journal::open`].
    pub fn open_on(
        dir: &Path,
        disk: Arc<dyn LogDisk>,
        packs: Arc<dyn PackStore>,
        options: Options,
    ) -> Result<(Journal, Recovered), StoreError> {
        let database = dir.join("names.db");
        let is_there = database.metadata().is_ok_and(|meta| meta.len() > 0);
        if !is_there && !disk.list().map_err(io_error)?.is_empty() {
            return Err(StoreError::Damaged(format!(
                "{} is not there or empty, but its log is there. Bring the file back from a backup; without it the volume's names are lost",
                database.display()
            )));
        }
        let sqlite = match Sqlite::open(&database) {
            // The disk is so full that SQLite cannot even open. The reserve exists for this case.
            Err(StoreError::Full) if disk.release().unwrap_or(false) => Sqlite::open(&database)?,
            other => other?,
        };
        let (mut log, floor, recovered) = recover::recover(&sqlite, &disk, &*packs, &options)?;
        log.trim(2);
        let durable = log.seq();
        let (fresh, buf, stuck) = (Fresh::default(), Vec::new(), None);
        let state =
            LogState { log, fresh, buf, committed: durable, applied: durable, stuck, unmarked: false };
        let shared = Arc::new(Shared {
            absent: Absent::of(&sqlite)?,
            clean: CleanRows::new(options.clean_bytes),
            options,
            sqlite,
            packs,
            disk,
            floor,
            gate: Gate::default(),
            log: Mutex::new(state),
            room: Condvar::new(),
            overlay: RwLock::default(),
            flushing: Mutex::new(Flushing { durable, led: false }),
            flushed: Condvar::new(),
            draining: Mutex::new(()),
            wake: Mutex::default(),
            woken: Condvar::new(),
            scanner: Mutex::default(),
            dirty: AtomicBool::new(false),
            tight: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            why_dead: Mutex::default(),
            counters: Counters::default(),
        });
        shared.make_spares()?;
        shared.renew_reserve();
        let committer = if shared.options.background { Some(drain::start(&shared)?) } else { None };
        Ok((Journal { shared, committer: Mutex::new(committer) }, recovered))
    }

    /// Makes everything durable, moves it into SQLite, and shuts down. Later commits are refused; reads still
    /// work.
    ///
    /// # Errors
    /// See [`StoreError`]. The next open then recovers the commits that were durable.
    pub fn close(&self) -> Result<(), StoreError> {
        self.stop();
        let done = self.shared.flush().and_then(|()| self.shared.drain_all());
        self.shared.die("the volume is being unmounted");
        done?;
        self.shared.log.lock().log.trim(1);
        self.shared.sqlite.checkpoint()
    }

    /// Moves everything committed so far into SQLite, durably.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn drain(&self) -> Result<(), StoreError> {
        self.shared.alive()?;
        self.shared.drain_all()
    }

    /// The present state and the counters.
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let (log_bytes, log_file_bytes) = {
            let state = shared.log.lock();
            (state.log.used_bytes(), state.log.file_bytes())
        };
        let overlay::Size { rows, bytes } = shared.overlay.read().size();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            overlay_rows: rows as u64,
            overlay_bytes: bytes as u64,
            log_bytes,
            log_file_bytes,
            commits: count(&shared.counters.commits),
            conflicts: count(&shared.counters.conflicts),
            drained: count(&shared.counters.drained),
            flushes: count(&shared.counters.flushes),
            waits: count(&shared.counters.waits),
            tight: self.is_tight(),
        }
    }

    /// Whether the disk is so full that the reserve is incomplete. What is left of it serves removals:
    /// commits that bring new rows or fresh data, and remove nothing, are refused with [`StoreError::Full`].
    /// Other writers of data to the same disk should ask this first and refuse too, because a drain that
    /// borrows the reserve needs the free space. Becomes false by itself about a second after there is room
    /// again.
    pub fn is_tight(&self) -> bool {
        self.shared.tight.load(Ordering::Relaxed)
    }

    /// Checks the database's file for damage, after moving what was committed into it: see
    /// [`Sqlite::integrity`].
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn integrity(&self) -> Result<Vec<String>, StoreError> {
        self.drain()?;
        self.shared.sqlite.integrity()
    }

    fn stop(&self) {
        self.shared.wake.lock().stop = true;
        self.shared.woken.notify_all();
        if let Some(committer) = self.committer.lock().take() {
            // It does not panic, so a join cannot fail.
            let _ = committer.join();
        }
        if let Some(scanner) = self.shared.scanner.lock().take() {
            let _ = scanner.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// An error if nothing may be acknowledged any more.
    fn alive(&self) -> Result<(), StoreError> {
        if self.dead.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable(self.why_dead.lock().clone()));
        }
        Ok(())
    }

    /// From now on nothing is acknowledged. The first reason is kept.
    fn die(&self, why: &str) -> StoreError {
        let mut reason = self.why_dead.lock();
        if !self.dead.load(Ordering::Acquire) {
            *reason = why.to_owned();
            self.dead.store(true, Ordering::Release);
        }
        let error = StoreError::Unavailable(reason.clone());
        drop(reason);
        // Waiters check again. Taking their lock ensures that none is between its check and its wait.
        drop(self.log.lock());
        self.room.notify_all();
        error
    }

    fn poison(&self, what: &str, error: &dyn std::fmt::Display) -> StoreError {
        self.die(&format!(
            "{what} could not be made durable ({error}). What was written before may be lost, so nothing more is accepted: unmount the volume, check the disk (`dmesg`), then mount again"
        ))
    }

    /// One row, as of a moment. The caller is inside the gate.
    fn row(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        if let Some(row) = self.overlay.read().get(key) {
            return Ok(row.clone());
        }
        self.below(key)
    }

    /// A row that the overlay does not hide. The caller is inside the gate.
    fn below(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        if let Some(row) = self.known(key) {
            return Ok(row);
        }
        let row = self.sqlite.read_rows(&[key])?.pop().flatten();
        self.clean.insert(key, &row);
        Ok(row)
    }

    /// Rows as of one moment, and the overlay's version at that moment. The caller is inside the gate.
    fn rows(&self, keys: &[&Key]) -> Result<(Vec<Option<Value>>, u64), StoreError> {
        let overlay = self.overlay.read();
        let version = overlay.version();
        let mut found: Vec<_> = keys.iter().map(|key| overlay.get(key).cloned()).collect();
        drop(overlay);
        let mut asked: Vec<&Key> = Vec::new();
        for (row, key) in found.iter_mut().zip(keys).filter(|(row, _)| row.is_none()) {
            *row = self.known(key);
            if row.is_none() {
                asked.push(key);
            }
        }
        if !asked.is_empty() {
            let mut rows = self.sqlite.read_rows(&asked)?.into_iter();
            for (row, key) in found.iter_mut().zip(keys).filter(|(row, _)| row.is_none()) {
                let read = rows.next().flatten();
                self.clean.insert(key, &read);
                *row = Some(read);
            }
        }
        Ok((found.into_iter().map(Option::flatten).collect(), version))
    }

    /// What is known of a row that the overlay does not hide, without asking SQLite. The caller is inside the
    /// gate.
    fn known(&self, key: &Key) -> Option<Option<Value>> {
        if self.absent.is_absent(key) { Some(None) } else { self.clean.get(key) }
    }

    /// Rows of a range as of one moment. The caller is inside the gate.
    fn range(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        if limit == 0 {
            return Ok(Rows::new());
        }
        let captured = self.overlay.read().capture(range, limit);
        let mut merge = Merge::new(captured, limit);
        if !self.absent.is_empty(range) {
            self.sqlite.each(range, |key, value| merge.below(key, value))?;
        }
        Ok(merge.finish())
    }

    /// Wakes the thread that flushes and drains; urgently if a commit waits for room.
    fn wake(&self, urgent: bool) {
        if !urgent && self.dirty.load(Ordering::Relaxed) {
            return;
        }
        let mut wake = self.wake.lock();
        wake.dirty = true;
        wake.urgent |= urgent;
        self.dirty.store(true, Ordering::Relaxed);
        self.woken.notify_one();
    }
}

impl MetaStore for Journal {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        let _inside = self.shared.gate.enter();
        self.shared.row(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        true
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        let _inside = self.shared.gate.enter();
        let keys: Vec<&Key> = keys.iter().collect();
        Ok(self.shared.rows(&keys)?.0)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        let _inside = self.shared.gate.enter();
        self.shared.range(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.shared.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.shared.flush()
    }

    /// The database after it has taken everything committed before this call: durable, and a prefix of the
    /// commits.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.shared.alive()?;
        self.shared.snapshot()
    }
}

impl Stuck {
    fn new(error: &StoreError) -> Stuck {
        match error {
            StoreError::Full => Stuck::Full,
            StoreError::Damaged(what) | StoreError::DamagedLog(what) => Stuck::Damaged(what.clone()),
            StoreError::Unavailable(what) | StoreError::Fenced(what) => Stuck::Unavailable(what.clone()),
            StoreError::Waits | StoreError::NoSpace(_) => Stuck::Unavailable(error.to_string()),
        }
    }

    fn error(&self) -> StoreError {
        match self {
            Stuck::Full => StoreError::Full,
            Stuck::Damaged(what) => StoreError::Damaged(what.clone()),
            Stuck::Unavailable(what) => StoreError::Unavailable(what.clone()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What an error of the log's disk means.
fn io_error(error: io::Error) -> StoreError {
    if is_full(&error) {
        return StoreError::Full;
    }
    StoreError::Unavailable(format!("the log: {error}; check the disk (`dmesg`), then mount again"))
}

fn pack_error(error: BlobError) -> StoreError {
    match error {
        BlobError::Full => StoreError::Full,
        other => StoreError::Unavailable(format!("open packs: {other}")),
    }
}

type LogGuard<'a> = MutexGuard<'a, LogState>;
