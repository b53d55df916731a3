//! The drain: what was committed goes into SQLite, and its log segments are free again.
//!
//! The order is what keeps the promises: rotate, wait for those who looked before, make packs and log durable, one SQLite
//! transaction with the log position, bring clean rows up to date, drop the generation, free the segments.
//!
//! A thread does it when something was committed [`super::Options::commit_every`] ago, or at once when somebody waits for room; it
//! sleeps while there is nothing to do. It also makes spare segments, so that no commit has to.

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

/// How long a commit that would be refused waits for a drain under way, which may free what it needs.
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
            // Room first, for whoever waits.
            let spares = self.make_spares();
            let done = if due { self.drain_all() } else { self.drain_rotated() };
            if due {
                last = monotonic();
            }
            let done = done.and_then(|()| spares.or_else(|_| self.make_spares()));
            // Before those who wait are told, so that they see whether the journal is tight.
            self.renew_reserve();
            self.report(done);
        }
    }

    /// Sleeps until there is something to do: whether somebody waits for it; none to end.
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

    /// Tells those who wait for room how it went.
    fn report(&self, done: Result<(), StoreError>) {
        if done.is_err() {
            // To be tried again.
            self.wake(false);
        }
        self.log.lock().stuck = done.err().as_ref().map(Stuck::new);
        self.room.notify_all();
    }

    /// Everything committed before this call.
    pub(super) fn drain_all(&self) -> Result<(), StoreError> {
        let _one = self.draining.lock();
        self.drain_everything()
    }

    /// Everything committed before this call, as the database then holds it. Between two drains its rows are exactly those up to its
    /// log position; in the middle of one, on a full disk, they need not be.
    pub(super) fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        let _one = self.draining.lock();
        self.drain_everything()?;
        self.sqlite.snapshot()
    }

    /// `draining` is held.
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

    /// The generation that was rotated, if there is one.
    fn drain_rotated(&self) -> Result<(), StoreError> {
        let _one = self.draining.lock();
        self.drain_generation()
    }

    /// `draining` is held.
    fn drain_generation(&self) -> Result<(), StoreError> {
        let Some(generation) = self.overlay.read().draining().cloned() else { return Ok(()) };
        // Whoever looked at the overlay before the generation was rotated may still be reading SQLite beside it.
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
                // First, so that nobody who asks takes what is about to be let go of.
                self.tight.store(true, Ordering::Relaxed);
                self.log.lock().log.trim(1);
                let done = apply_on_full_disk(&self.sqlite, &*self.disk, &generation.rows, from, to);
                self.renew_reserve();
                done
            }
            other => other,
        }
    }

    /// Makes the log's next file in advance. No lock is held while the disk works.
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

    /// Whether there is room again by now, asked by whoever is about to be refused: what a removal freed a moment ago
    /// counts at once. Not beside a drain, which may be living on the reserve that this would take back.
    pub(super) fn is_eased(&self) -> bool {
        if let Some(_one) = self.draining.try_lock_for(EASED_WAIT) {
            self.renew_reserve();
        }
        !self.tight.load(Ordering::Relaxed)
    }

    /// Room in reserve, as much as there is.
    pub(super) fn renew_reserve(&self) {
        let inside = self.sqlite.free_bytes().unwrap_or(0);
        let is_tight = match self.disk.reserve(inside) {
            Ok(is_whole) => !is_whole,
            // Nothing else is a reason to refuse growth: a disk that keeps no room for anybody is used without.
            Err(error) => is_full(&error),
        };
        self.tight.store(is_tight, Ordering::Relaxed);
    }
}

/// Rows, and bytes of rows, that go into SQLite at a time when room is short. A row can cost three pages in SQLite's log and one in the
/// database: so both together are a small part of the smallest reserve, and what is in the log always finds room in the database.
const PART_ROWS: usize = 64;
const PART_BYTES: usize = 128 << 10;

/// Applies rows with what is kept in reserve, which is let go of here and taken back by the caller.
///
/// SQLite's own log is emptied after every few rows, so that little room does. The position changes with the last of them: until then the
/// rows of records behind it are partly there, and since those are durable in the log, a crash in between only has them written again.
pub(super) fn apply_on_full_disk(
    sqlite: &Sqlite,
    disk: &dyn LogDisk,
    rows: &RowMap,
    from: Position,
    to: Position,
) -> Result<(), StoreError> {
    disk.release().map_err(io_error)?;
    sqlite.checkpoint()?;
    // Rows that go first: the pages they leave are room for the others.
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
