//! The cache's own threads: they put on the disk what was fetched, make room, and fetch what will be wanted.
//!
//! A thread starts when there is work and nobody free, and ends when it had none for some seconds. What others wait for goes first; hints
//! occupy at most as many threads as there may be fetches in the background, fewer where the remote's line is narrow, and two threads more are for
//! the rest, so that what has arrived is put away also while every fetch waits for a network that does not answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use blob::{Origin, Part};
use parking_lot::{Condvar, Mutex};

use super::Core;
use super::flights::{Permit, Pilot};

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(5);
/// Hints that wait; one that finds the queue full is dropped.
const HINTS: usize = 64;
/// Threads beside those for hints.
const SPARE: usize = 2;

/// A blob that arrived. Its flight is over, and its room given back, when this is dropped.
pub(super) struct Landed {
    pub(super) id: BlobId,
    pub(super) part: Arc<Part>,
    /// It was fetched because it may be wanted, and is in memory as well.
    pub(super) ahead: bool,
    pub(super) _pilot: Pilot,
    pub(super) _permit: Permit,
}

impl Landed {
    /// It was put away.
    pub(super) fn done(self) {
        let Landed { part, _pilot: pilot, _permit: permit, .. } = self;
        drop(pilot);
        drop(part);
        drop(permit);
    }
}

/// Work.
pub(super) enum Job {
    /// Put it on the disk.
    Keep(Box<Landed>),
    /// Make room.
    Tend,
    /// Write the index anew.
    Tidy,
    /// Fetch what will be wanted.
    Fetch(Hint),
}

/// What will be wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// All of a blob.
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
    /// With so many threads for hints.
    pub(super) fn new(hint_threads: usize) -> Pool {
        Pool { hint_threads, state: Mutex::default(), wake: Condvar::new() }
    }

    /// Takes work that has to be done. Gives it back when there is no thread to do it.
    pub(super) fn push(&self, core: &Arc<Core>, job: Job) -> Result<(), Job> {
        let mut state = self.state.lock();
        if state.closed || !self.staff(&mut state, core) {
            return Err(job);
        }
        state.urgent.push_back(job);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes a hint. False if it was dropped.
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

    /// Sees to it that there is a thread for one more; false if there is none at all.
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

    /// The next piece of work; none when this thread is to end.
    fn next(&self, remote: &dyn Origin) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.urgent.pop_front() {
                return Some(job);
            }
            if state.closed {
                break;
            }
            if state.fetching < self.hint_threads.min(remote.ahead_at_once())
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

    /// Whether a hint waits for its turn.
    pub(super) fn has_hint(&self, hint: &Hint) -> bool {
        self.state.lock().hints.contains(hint)
    }

    fn fetched(&self) {
        let mut state = self.state.lock();
        state.fetching -= 1;
        if !state.hints.is_empty() {
            // More than one may go where there may be more at once than before.
            self.wake.notify_all();
        }
    }

    /// How many hints wait or are being followed.
    pub(super) fn hints(&self) -> usize {
        let state = self.state.lock();
        state.hints.len() + state.fetching
    }

    /// Takes no more work; hints that wait are dropped, the rest is still done.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.hints.clear();
        self.wake.notify_all();
    }
}

fn work(core: &Arc<Core>) {
    while let Some(job) = core.pool.next(&*core.remote) {
        let fetch = matches!(job, Job::Fetch(_));
        core.run(job);
        if fetch {
            core.pool.fetched();
        }
    }
}
