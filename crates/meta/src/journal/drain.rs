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

use base::time::monotonic;

use super::overlay::Generation;
use super::{Shared, Stuck, flush::Depth, io_error, is_full};
use crate::engine::sqlite::Position;
use crate::store::StoreError;

/// Starts the thread.
pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, StoreError> {
    let work = shared.clone();
    let started = base::thread::spawn("covey-committer", move || work.commit_loop());
    started.map_err(|error| StoreError::Unavailable(format!("no thread can be started: {error}")))
}

impl Shared {
    fn commit_loop(&self) {
        let mut last = monotonic();
        loop {
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
            self.report(done);
            self.renew_reserve();
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
        drop(self.gate.write());
        self.flush_to(generation.upto, Depth::Packs)?;
        self.apply(&generation)?;
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

    fn apply(&self, generation: &Generation) -> Result<(), StoreError> {
        let position = Position { segment: self.floor, seq: generation.upto };
        match self.sqlite.apply(&generation.rows, position) {
            Err(StoreError::Full) if self.give_up_reserve() => self.sqlite.apply(&generation.rows, position),
            other => other,
        }
    }

    /// Whether there was a reserve.
    fn give_up_reserve(&self) -> bool {
        self.counters.reserve_used.store(true, Ordering::Relaxed);
        self.disk.release().unwrap_or(false)
    }

    /// Makes the log's next file in advance. No lock is held while the disk works.
    pub(super) fn make_spares(&self) -> Result<(), StoreError> {
        loop {
            let (name, len) = {
                let mut state = self.log.lock();
                if !state.log.wants_spare() {
                    return Ok(());
                }
                state.log.spare()
            };
            let made = match self.disk.create(&name, len) {
                Err(error) if is_full(&error) && self.give_up_reserve() => self.disk.create(&name, len),
                other => other,
            };
            self.log.lock().log.add_spare(name, made.map_err(io_error)?);
        }
    }

    /// Room in reserve again, once there is enough of it.
    pub(super) fn renew_reserve(&self) {
        // While it cannot be had, commits go on without; the next drain asks again.
        let kept = self.disk.reserve().is_ok();
        self.counters.reserve_used.store(!kept, Ordering::Relaxed);
    }
}
