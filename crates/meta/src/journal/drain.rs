//! The drain: committed rows move into SQLite, and their log segments become free.
//!
//! The order keeps the promises: rotate, wait for readers that entered before, make packs and log durable,
//! one SQLite transaction with the log position, update clean rows, drop the generation, free the segments.
//!
//! A thread drains [`super::Options::commit_every`] after a commit, or at once when a commit waits for room.
//! It sleeps while there is nothing to do. It also allocates spare segments, so that no commit has to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use base::time::monotonic;

use super::disk::LogDisk;
use super::overlay::{Generation, RowMap};
use super::{Shared, Stuck, flush::Depth, io_error, is_full};
use crate::engine::Sqlite;
use crate::engine::sqlite::Position;
use crate::key::Key;
use crate::store::{MetaStore, Snapshot, StoreError, Value};

/// How long a commit that would be refused waits for a running drain, which may free what it needs.
const EASED_WAIT: Duration = Duration::from_millis(500);

/// Starts the thread.
pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, StoreError> {
    let work = shared.clone();
    let started = base::thread::spawn("covey-committer", move || work.commit_loop());
    started.map_err(|error| StoreError::Unavailable(format!("no thread can be started: {error}")))
}

impl Shared {
    fn commit_loop(self: &Arc<Self>) {
        let mut last = monotonic();
        loop {
            self.renew_filter();
            let Some(urgent) = self.wait_for_work() else { return };
            if self.alive().is_err() {
                // Only `stop` is left to wait for.
                self.dirty.store(false, Ordering::Relaxed);
                continue;
            }
            let due = !urgent || last.elapsed() >= self.options.commit_every;
            // Room comes first, because commits wait for it.
            let spares = self.make_spares();
            let done = if due { self.drain_all() } else { self.drain_rotated() };
            if due {
                last = monotonic();
            }
            let done = done.and_then(|()| spares.or_else(|_| self.make_spares()));
            // Before the waiters are woken, so that they see whether the journal is tight.
            self.renew_reserve();
            self.report(done);
        }
    }

    /// Sleeps until there is work. Returns whether a commit waits for it; none to end the thread.
    fn wait_for_work(&self) -> Option<bool> {
        let mut wake = self.wake.lock();
        while !wake.stop && !wake.dirty && !wake.urgent {
            self.woken.wait(&mut wake);
        }
        let due = monotonic() + self.options.commit_every;
        while !wake.stop && !wake.urgent {
            if self.woken.wait_until(&mut wake, due).timed_out() {
                break;
            }
        }
        let urgent = std::mem::take(&mut wake.urgent);
        if !urgent {
            wake.dirty = false;
            self.dirty.store(false, Ordering::Relaxed);
        }
        (!wake.stop).then_some(urgent)
    }

    /// Wakes the commits that wait for room, with the result.
    fn report(&self, done: Result<(), StoreError>) {
        if done.is_err() {
            // So that the thread tries again.
            self.wake(false);
        }
        self.log.lock().stuck = done.err().as_ref().map(Stuck::new);
        self.room.notify_all();
    }

    /// Drains everything committed before this call.
    pub(super) fn drain_all(&self) -> Result<(), StoreError> {
        let _one = self.draining.lock();
        self.drain_everything()
    }

    /// A snapshot of the database with everything committed before this call. Taken between two drains,
    /// because only then the database holds exactly the rows up to its log position. In the middle of a drain
    /// on a full disk it may not.
    pub(super) fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        let _one = self.draining.lock();
        self.drain_everything()?;
        self.sqlite.snapshot()
    }

    /// The caller holds `draining`.
    fn drain_everything(&self) -> Result<(), StoreError> {
        self.drain_generation()?;
        {
            let state = self.log.lock();
            if state.log.seq() > state.applied {
                self.overlay.write().rotate(state.log.seq());
            }
        }
        self.drain_generation()
    }

    /// Drains the generation that was rotated, if there is one.
    fn drain_rotated(&self) -> Result<(), StoreError> {
        let _one = self.draining.lock();
        self.drain_generation()
    }

    /// The caller holds `draining`.
    fn drain_generation(&self) -> Result<(), StoreError> {
        let Some(generation) = self.overlay.read().draining().cloned() else { return Ok(()) };
        // A reader that looked at the overlay before the rotation may still be reading SQLite.
        self.gate.wait();
        self.flush_to(generation.upto, Depth::Packs)?;
        let from = self.log.lock().applied;
        self.absent.announce(&generation.rows);
        self.apply(&generation, from)?;
        self.clean.refresh(&generation.rows);
        self.overlay.write().drained();
        let mut state = self.log.lock();
        self.counters.drained.fetch_add(generation.upto - state.applied, Ordering::Relaxed);
        state.applied = generation.upto;
        state.log.recycle(generation.upto);
        drop(state);
        self.room.notify_all();
        Ok(())
    }

    fn apply(&self, generation: &Generation, from: u64) -> Result<(), StoreError> {
        let position = |seq: u64| Position { segment: self.floor, seq };
        let (from, to) = (position(from), position(generation.upto));
        match self.sqlite.apply(&generation.rows, to) {
            Err(StoreError::Full) => {
                // First, so that no other writer takes the space that is about to be released.
                self.tight.store(true, Ordering::Relaxed);
                self.log.lock().log.trim(1);
                let done = apply_on_full_disk(&self.sqlite, &*self.disk, &generation.rows, from, to);
                self.renew_reserve();
                done
            }
            other => other,
        }
    }

    /// Allocates the log's next files in advance. Holds no lock while the disk works.
    pub(super) fn make_spares(&self) -> Result<(), StoreError> {
        loop {
            let (name, len) = {
                let mut state = self.log.lock();
                if !state.log.wants_spare(self.tight.load(Ordering::Relaxed)) {
                    return Ok(());
                }
                state.log.spare()
            };
            let made = self.disk.create(&name, len).map_err(io_error)?;
            self.log.lock().log.add_spare(name, made);
        }
    }

    /// Whether there is room again, for a commit that is about to be refused: what a removal just freed
    /// counts at once. Not during a drain, which may be using the reserve that this would take back.
    pub(super) fn is_eased(&self) -> bool {
        if let Some(_one) = self.draining.try_lock_for(EASED_WAIT) {
            self.renew_reserve();
        }
        !self.tight.load(Ordering::Relaxed)
    }

    /// Reserves as much of the reserve's share as is free.
    pub(super) fn renew_reserve(&self) {
        let inside = self.sqlite.free_bytes().unwrap_or(0);
        let is_tight = match self.disk.reserve(inside) {
            Ok(is_whole) => !is_whole,
            // No other error is a reason to refuse growth: a disk that cannot reserve space is used without a
            // reserve.
            Err(error) => is_full(&error),
        };
        self.tight.store(is_tight, Ordering::Relaxed);
    }
}

/// Rows, and bytes of rows, that go into SQLite at a time when space is short. A row can cost three pages in
/// SQLite's log and one in the database. So these limits keep both a small part of the smallest reserve, and
/// what is in the log always fits into the database.
const PART_ROWS: usize = 64;
const PART_BYTES: usize = 128 << 10;

/// Applies rows within the reserve, which is released here and taken back by the caller.
///
/// SQLite's own log is checkpointed after every few rows, so that little space suffices. The position changes
/// only when all rows are written. After a crash before that, SQLite may hold rows that the position does not
/// cover yet. This is harmless: their records are durable in the log, and recovery writes the rows again.
pub(super) fn apply_on_full_disk(
    sqlite: &Sqlite,
    disk: &dyn LogDisk,
    rows: &RowMap,
    from: Position,
    to: Position,
) -> Result<(), StoreError> {
    disk.release().map_err(io_error)?;
    sqlite.checkpoint()?;
    // Removals first: the pages they free are room for the others.
    let mut order: Vec<_> = rows.iter().filter(|(_, value)| value.is_none()).collect();
    order.extend(rows.iter().filter(|(_, value)| value.is_some()));
    let mut rest = &order[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, value): &&(&Key, &Option<Value>)| {
            bytes += value.as_ref().map_or(0, |value| value.len());
            bytes <= PART_BYTES
        };
        let len = rest.iter().take(PART_ROWS).take_while(fits).count().max(1);
        let (part, after) = rest.split_at(len);
        sqlite.apply(part.iter().copied(), from)?;
        sqlite.checkpoint()?;
        rest = after;
    }
    sqlite.apply(&RowMap::new(), to)?;
    sqlite.checkpoint()
}
