//! The node's cache of a remote origin: an [`Origin`] over a folder on this node's disk and another origin.
//!
//! ```text
//!                 adopt, put                                  read
//!                     │                                         │
//!                     ▼                                         ▼
//!   VOLUME/blobs: a link to the sealed pack ◄── kept ──  disk, memory, the table of in-flight fetches
//!                     │                                         ▲
//!                     └─► pending: uploaded by others ──► the remote origin
//! ```
//!
//! - **Stores.** A stored blob is linked into the folder and recorded as pending ([`pending::Pending`]). It
//!   is written once, and pinned here until the origin has it.
//! - **Reads.** A read takes a blob from the disk if it is there. Otherwise it joins the fetch of it or
//!   begins one ([`read`], [`start`], [`fetch::table`]). Whole blobs that arrive, whatever began their fetch,
//!   are kept on the disk within a budget ([`admission`], [`keep`]). [`crate::residency`] decides which blobs
//!   stay.
//! - **Removals.** A removed blob disappears here at once, and from the origin in the background
//!   ([`removals`]).
//! - **A copy is expendable.** A damaged copy is dropped and fetched again. A failing disk is no longer used
//!   ([`health`]). An unreadable blob is an error only if the origin does not have it yet.
//!
//! Lock order: making room, a blob's lock, removals, the index, pending. The record of parts is locked before
//! the table of fetches. No lock is held during a request to the origin.

mod admission;
pub mod disk_store;
mod health;
mod keep;
mod ledger;
mod lend;
mod memory;
mod options;
mod partial;
pub mod pending;
mod pool;
mod read;
mod records;
mod refused;
mod removals;
mod rest;
mod start;
mod stats;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::BlobId;
use base::phase::{self, Phase};
use base::time::BootTime;
use blob::completion::{Completion, Start};
use blob::{Access, BlobError, BlobFolder, BlobSource, Buffer, Origin, Part, Sums};
use fetch::{Direct, Table, Tier};
use parking_lot::{Condvar, Mutex, MutexGuard};

use admission::Admission;
use disk_store::DiskStore;
use health::Health;
use ledger::Ledger;
use memory::Memory;
use partial::Partial;
use pending::Pending;
use pool::{Job, Pool};
use read::Here;
use refused::Refused;
use removals::Removals;
use stats::Counters;

pub use health::Report;
pub use lend::Watch;
pub use options::{CacheOptions, default_budget, default_floor};
pub use stats::CacheStats;

const TURNS: usize = 64;
/// At most this many unreadable pinned blobs are reported, one line each.
const LINES: usize = 100;

/// Says whether blobs may be deleted in the origin. It may have another owner by now.
pub type MayDelete = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a cache consists of.
pub struct NodeParts {
    /// The folder of blobs. Created if it is absent.
    pub folder: PathBuf,
    /// The index file, which records the folder's contents. Created if it is absent.
    pub index: PathBuf,
    /// The permanent store of blobs.
    pub remote: Arc<dyn Origin>,
    /// In a fleet: where blobs are fetched instead of the store.
    pub tier: Option<Arc<dyn Tier>>,
    /// The in-flight fetches of this node. A fleet has the same table.
    pub table: Arc<Table>,
    /// The blobs that are not in the origin yet.
    pub pending: Arc<dyn Pending>,
    /// Called before each deletion in the origin, if given. Its error, a sentence, postpones the deletion.
    pub may_delete: Option<MayDelete>,
    /// In a fleet: is notified of what is on the disk.
    pub watch: Option<Arc<dyn Watch>>,
    /// How the cache behaves.
    pub options: CacheOptions,
    /// Receives lines for the operator.
    pub report: Report,
}

/// How much to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evict {
    /// All that is not pinned, also from memory.
    All,
    /// Until the blobs here take at most this many bytes.
    To(u64),
}

/// What was evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Blobs.
    pub blobs: u64,
    /// Bytes of the evicted blobs.
    pub bytes: u64,
}

/// The result of warming a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// The blob was here already.
    Here,
    /// The blob was fetched. Its size in bytes.
    Fetched(u64),
}

/// A flag that is set once and wakes those that wait for it.
#[derive(Default)]
struct Flag {
    is: Mutex<bool>,
    set: Condvar,
}

impl Flag {
    fn is(&self) -> bool {
        *self.is.lock()
    }

    fn set(&self) {
        *self.is.lock() = true;
        self.set.notify_all();
    }

    /// Waits until the flag is set, for at most `time`. Returns whether it is set.
    fn wait(&self, time: Duration) -> bool {
        let mut is = self.is.lock();
        let until = base::time::monotonic() + time;
        while !*is && !self.set.wait_until(&mut is, until).timed_out() {}
        *is
    }
}

/// All state, shared with the cache's threads.
struct Core {
    disk_store: Arc<dyn DiskStore>,
    remote: Arc<dyn Origin>,
    tier: Arc<dyn Tier>,
    pending: Arc<dyn Pending>,
    may_delete: Option<MayDelete>,
    watch: Option<Arc<dyn Watch>>,
    options: CacheOptions,
    ledger: Ledger,
    memory: Mutex<Memory>,
    /// Locked before the in-flight fetches and the hints.
    partial: Mutex<Partial>,
    table: Arc<Table>,
    pool: Pool,
    removals: Removals,
    health: Health,
    refused: Refused,
    counters: Counters,
    turns: [Mutex<()>; TURNS],
    /// Whether the index was compared with the disk.
    compared: AtomicBool,
    /// Room for blobs that are being written now.
    reserved: AtomicU64,
    /// Held while making room for another blob.
    making_room: Mutex<()>,
    /// Whether a job that makes room is queued already.
    tending: AtomicBool,
    /// Pinned blobs already reported as unreadable.
    told: Mutex<HashSet<BlobId>>,
    closed: Flag,
}

impl Core {
    fn turn(&self, id: &BlobId) -> MutexGuard<'_, ()> {
        self.turns[usize::from(id.0[2]) % TURNS].lock()
    }

    fn is_compared(&self) -> bool {
        self.compared.load(Ordering::Acquire)
    }

    /// Reports, once, that a pinned blob cannot be read.
    fn tell(&self, id: &BlobId, line: impl FnOnce() -> String) {
        let mut told = self.told.lock();
        if told.len() < LINES && told.insert(*id) {
            drop(told);
            self.health.report(&line());
        }
    }

    fn store(
        self: &Arc<Core>,
        id: &BlobId,
        sums: &Sums,
        put: impl FnOnce(&dyn DiskStore) -> Result<(), BlobError>,
    ) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        {
            let _turn = self.turn(id);
            let unwanted = self.removals.call_off(id, self.options.doubt);
            self.ledger.want(id);
            let noted =
                put(&*self.disk_store).and_then(|()| self.pending.note(id, sums, &self.disk_store.file(id)));
            if let Err(error) = noted {
                if unwanted {
                    self.ledger.unwant(id);
                    self.removals.add(self, id);
                }
                return Err(error);
            }
            self.ledger.insert(id, sums.size(), true);
            // Others may take it from here, also before the origin has it.
            self.inserted(id);
        }
        self.counters.stored_blobs.add(1);
        self.counters.stored_bytes.add(u64::from(sums.size()));
        self.tend_later();
        Ok(())
    }

    /// Makes room in the background if there is too little.
    fn tend_later(self: &Arc<Core>) {
        if self.is_crowded() && !self.tending.swap(true, Ordering::AcqRel) {
            self.run_later(Job::Tend);
        }
    }

    fn remove(self: &Arc<Core>, id: &BlobId) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        self.removals.has_room()?;
        let _turn = self.turn(id);
        self.pending.forget(id)?;
        self.ledger.unwant(id);
        self.removals.add(self, id);
        self.disk_store.remove(id)?;
        self.ledger.remove(id);
        self.evicted(id);
        let gone = self.memory.lock().forget(id);
        drop(gone);
        Ok(())
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        let pending = self.pending.list();
        let mut known = HashSet::with_capacity(pending.len());
        for (id, size) in pending {
            if !self.removals.has(&id) && known.insert(id) && !each(id, size) {
                return Ok(());
            }
        }
        // A page of the origin's list may predate a deletion that has finished since.
        let going = self.removals.all();
        let is_gone = |id: &BlobId| going.contains(id) || self.removals.has(id);
        self.remote.list(&mut |id, size| known.contains(&id) || is_gone(&id) || each(id, size))
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        if self.removals.has(id) {
            return Ok(None);
        }
        if self.pending.is_pending(id)
            && let Some(size) = self.disk_store.size(id)?
        {
            return Ok(Some(size));
        }
        self.remote.size(id)
    }

    fn verify(self: &Arc<Core>, id: &BlobId) -> Result<(), BlobError> {
        if self.removals.has(id) {
            return Err(BlobError::Missing(*id));
        }
        let here = self.here(id, || self.disk_store.verify(id))?;
        if matches!(here, Here::Done(())) && self.pending.is_pending(id) {
            return Ok(());
        }
        self.remote.verify(id)
    }
}

/// The node's cache of a remote origin. See the [module](self).
pub struct NodeCache {
    core: Arc<Core>,
    /// The table holds it weakly.
    _admission: Arc<Admission>,
}

impl NodeCache {
    /// Opens the cache as it was left. It can be used at once. The index is compared with the disk in the
    /// background.
    ///
    /// # Errors
    /// The folder can neither be opened nor created. A disk that cannot be written to is no error: nothing is
    /// kept on it then.
    pub fn open(parts: NodeParts) -> io::Result<NodeCache> {
        let folder = BlobFolder::create(&parts.folder)?;
        // Its lock lets one process have this folder. Leftovers of a crash must not prevent opening.
        let _ = folder.sweep_all();
        Ok(NodeCache::over(Arc::new(folder), parts))
    }

    fn over(disk_store: Arc<dyn DiskStore>, parts: NodeParts) -> NodeCache {
        let NodeParts { index, remote, tier, table, pending, may_delete, watch, options, report, .. } = parts;
        let tier = tier.unwrap_or_else(|| Arc::new(Direct(Arc::clone(&remote))));
        let space = || disk_store.space().ok().map(|space| space.available);
        let (ledger, opened) = Ledger::open(&index, options.budget, space);
        let health = Health::new(report, options.look_again);
        if let Err(error) = opened {
            health.failed(&error.into());
        }
        let core = Arc::new(Core {
            disk_store,
            remote,
            tier,
            pending,
            may_delete,
            watch,
            ledger,
            memory: Mutex::new(Memory::new(options.memory)),
            partial: Mutex::default(),
            table,
            pool: Pool::new(options.readers_ahead),
            removals: Removals::default(),
            health,
            refused: Refused::default(),
            counters: Counters::default(),
            turns: std::array::from_fn(|_| Mutex::new(())),
            compared: AtomicBool::new(false),
            reserved: AtomicU64::new(0),
            making_room: Mutex::new(()),
            tending: AtomicBool::new(false),
            told: Mutex::default(),
            closed: Flag::default(),
            options,
        });
        let admission = Admission::of(&core);
        // Deletions that were outstanding when this was last closed, except of blobs that were stored again.
        for id in core.ledger.unwanted() {
            match core.pending.is_pending(&id) {
                true => core.ledger.want(&id),
                false => core.removals.add(&core, &id),
            }
        }
        let walker = Arc::clone(&core);
        // Without this thread, every read checks the folder before it asks the origin.
        let _ = base::thread::spawn("covey-compare", move || walker.walk());
        NodeCache { core, _admission: admission }
    }

    /// Statistics.
    pub fn stats(&self) -> CacheStats {
        self.core.stats()
    }

    /// The bytes of blobs here that could be evicted at once, because the origin has them.
    pub fn reclaimable(&self) -> u64 {
        let (_, bytes, _) = self.core.ledger.totals();
        let pinned = self.core.pending.pinned();
        // Per blob, 8192 bytes: the most that `charge` adds.
        bytes.saturating_sub(pinned.bytes + pinned.blobs * 8192)
    }

    /// Makes room in the background if there is too little. Call it when others fill the disk.
    pub fn make_room(&self) {
        self.core.tend_later();
    }

    /// Evicts blobs that are not pinned.
    pub fn evict(&self, what: Evict) -> Evicted {
        self.core.evict(what)
    }

    /// Fetches a blob to this node, if it is not here.
    ///
    /// # Errors
    /// See [`BlobError`].
    pub fn warm(&self, id: &BlobId) -> Result<Warmed, BlobError> {
        self.core.warm(id)
    }

    /// Stops the cache's threads. Blobs that have arrived are still put on the disk. Hints are dropped, and
    /// outstanding deletions in the origin are left for the next start. A second call does nothing.
    pub fn close(&self) {
        self.core.closed.set();
        self.core.pool.close();
        self.core.removals.close();
        self.core.ledger.close();
    }
}

impl Drop for NodeCache {
    fn drop(&mut self) {
        self.close();
    }
}

impl BlobSource for NodeCache {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.core.read(id, offset, buf, Access::Normal)
    }

    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], access: Access) -> Result<(), BlobError> {
        self.core.read(id, offset, buf, access)
    }

    /// Whether all of it is on this node.
    fn is_local(&self, id: &BlobId) -> bool {
        self.core.is_local(id)
    }

    fn will_need(&self, id: &BlobId) {
        self.core.will_need(id);
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        self.core.will_need_part(id, offset, len);
    }

    fn evict_last(&self, id: &BlobId) {
        self.core.ledger.keep(id);
    }

    fn evict_as_usual(&self) {
        self.core.ledger.keep_none();
    }

    fn in_use(&self, id: &BlobId) -> bool {
        self.core.ledger.touch(id)
    }

    fn start_read(&self, id: &BlobId, range: Range<u32>, access: Access, completion: Completion) -> Start {
        self.core.start_read(id, range, access, completion)
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        self.lend(id)
    }
}

impl Origin for NodeCache {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        self.core.store(id, sums, |disk_store| disk_store.adopt(id, sums, file))
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.core.store(id, sums, |disk_store| disk_store.put(id, sums, bytes))
    }

    fn sync(&self) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        self.core.ledger.sync()?;
        self.core.disk_store.sync()?;
        self.core.pending.sync()
    }

    fn settle(&self, patience: Duration) -> Result<(), BlobError> {
        self.core.ledger.sync()?;
        self.core.pending.settle(patience)?;
        self.core.remote.settle(patience)
    }

    fn is_settled(&self, id: &BlobId) -> bool {
        !self.core.pending.is_pending(id) && self.core.remote.is_settled(id)
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.core.remove(id)
    }

    /// Unlike [`NodeCache::remove`], this waits for the origin.
    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        self.core.remove_now(ids, until)
    }

    fn look(&self) -> Result<Option<String>, BlobError> {
        self.core.remote.look()
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        self.core.size(id)
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.core.list(each)
    }

    /// Verifies the copy here and the one in the origin. A damaged copy here is dropped and is no error.
    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.core.verify(id)
    }

    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        self.core.fetch(id)
    }

    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        self.core.fetch_part(id, offset, len)
    }

    fn describe(&self) -> String {
        self.core.remote.describe()
    }
}
