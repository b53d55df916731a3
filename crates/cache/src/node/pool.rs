//! The cache's own threads. They write fetched blobs to the disk, make room, and prefetch.
//!
//! A thread starts when there is work and no thread is idle. It ends after some seconds without work. Urgent
//! jobs run before hints. Hints occupy at most as many threads as there may be background fetches, fewer if
//! the remote allows fewer at once. Two more threads are reserved for urgent jobs. So arrived blobs reach the
//! disk even while every prefetch waits for an unresponsive network.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use fetch::{Completed, Tier};
use parking_lot::{Condvar, Mutex};

use super::Core;

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(5);
/// Maximum number of queued hints. A hint that finds the queue full is dropped.
const HINTS: usize = 64;
/// Threads beside those for hints.
const SPARE: usize = 2;

/// A job.
pub(super) enum Job {
    /// Put a blob on the disk.
    Keep(Box<Completed>),
    /// Make room.
    Tend,
    /// Rewrite the index.
    Tidy,
    /// Prefetch.
    Fetch(Hint),
}

/// What to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// A whole blob.
    Whole(BlobId),
    /// A range: offset and length.
    Part(BlobId, u32, u32),
}

/// See the module.
pub(super) struct Pool {
    hint_threads: usize,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Job>,
    hints: VecDeque<Hint>,
    threads: usize,
    idle: usize,
    /// Threads that fetch.
    fetching: usize,
    closed: bool,
}

impl Pool {
    /// Creates a pool with this many threads for hints.
    pub(super) fn new(hint_threads: usize) -> Pool {
        Pool { hint_threads, state: Mutex::default(), wake: Condvar::new() }
    }

    /// Queues an urgent job. Returns the job if there is no thread for it.
    pub(super) fn push(&self, core: &Arc<Core>, job: Job) -> Result<(), Job> {
        let mut state = self.state.lock();
        if state.closed || !self.staff(&mut state, core) {
            return Err(job);
        }
        state.urgent.push_back(job);
        self.wake.notify_one();
        Ok(())
    }

    /// Queues a hint. False if it was dropped.
    pub(super) fn hint(&self, core: &Arc<Core>, hint: Hint) -> bool {
        let mut state = self.state.lock();
        if state.hints.contains(&hint) {
            return true;
        }
        if state.closed
            || state.hints.len() >= HINTS
            || self.hint_threads == 0
            || !self.staff(&mut state, core)
        {
            return false;
        }
        state.hints.push_back(hint);
        self.wake.notify_one();
        true
    }

    /// Starts a thread for one more job, if needed. False if there is no thread at all.
    fn staff(&self, state: &mut State, core: &Arc<Core>) -> bool {
        let waiting = state.urgent.len() + state.hints.len();
        if state.idle <= waiting && state.threads < self.hint_threads + SPARE {
            let core = Arc::clone(core);
            if base::thread::spawn("covey-cache", move || work(&core)).is_ok() {
                state.threads += 1;
            }
        }
        state.threads > 0
    }

    /// The next job, or `None` if this thread must end.
    fn next(&self, tier: &dyn Tier) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.urgent.pop_front() {
                return Some(job);
            }
            if state.closed {
                break;
            }
            if state.fetching < self.hint_threads.min(tier.prefetches())
                && let Some(hint) = state.hints.pop_front()
            {
                state.fetching += 1;
                return Some(Job::Fetch(hint));
            }
            state.idle += 1;
            let over = self.wake.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if over && state.urgent.is_empty() && state.hints.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        None
    }

    /// Whether a hint is queued.
    pub(super) fn has_hint(&self, hint: &Hint) -> bool {
        self.state.lock().hints.contains(hint)
    }

    fn fetched(&self) {
        let mut state = self.state.lock();
        state.fetching -= 1;
        if !state.hints.is_empty() {
            // Wakes all, because the remote may allow more fetches at once than before.
            self.wake.notify_all();
        }
    }

    /// How many hints are queued or in flight.
    pub(super) fn hints(&self) -> usize {
        let state = self.state.lock();
        state.hints.len() + state.fetching
    }

    /// Takes no more work. Drops queued hints. Urgent jobs still run.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.hints.clear();
        self.wake.notify_all();
    }
}

fn work(core: &Arc<Core>) {
    while let Some(job) = core.pool.next(&*core.tier) {
        let fetch = matches!(job, Job::Fetch(_));
        core.run(job);
        if fetch {
            core.pool.fetched();
        }
    }
}
