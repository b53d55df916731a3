//! Writes acknowledged changes to the engine, a little later and in batches.
//!
//! A batch is one commit. It checks the leases under which its changes were made, and it counts the batches
//! of the session in a row of its own. So a batch whose answer was lost is recognised when it is sent again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::forgot::{AGAIN, Confirmed, Sent, counted_in, note_lost};
use super::journal::Journal;
use super::promise::KeptByKernel;
use super::queue::{Batch, Queue};
use super::space::{self, removes};
use super::state::State;
use super::{Core, TURN};
use crate::key::Key;
use crate::store::{Commit, CommitError, StoreError};

/// How long a batch waits for further changes.
const GATHER: Duration = Duration::from_millis(20);
/// How many rows may wait.
const ROWS_MAX: usize = 20_000;
/// How long a change may wait before later ones wait for it. So an outage of the database delays programs,
/// and endangers no more than what they did in this time.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Whether so much is waiting that changes must wait.
pub(super) fn is_late(queue: &Queue) -> bool {
    queue.rows() > ROWS_MAX || queue.oldest.is_some_and(|oldest| oldest.elapsed() > AGE_MAX)
}

/// A batch, of the session in which it has this number.
#[derive(Clone, Copy)]
pub(super) struct Upto {
    pub batch: u64,
    pub sessions: u64,
}

impl State {
    /// The last batch that has changes.
    pub fn last(&self) -> Upto {
        Upto { batch: self.queue.last(), sessions: self.sessions }
    }
}

impl Core {
    /// Waits until there is space for a change.
    ///
    /// # Errors
    /// The session has ended, or the engine has no space and the change needs some.
    pub(super) fn admit(&self, commit: &Commit) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.journal.as_ref().is_some_and(Journal::is_broken) && !base::thread::may_wait() {
            return Err(StoreError::Waits);
        }
        loop {
            if let Some(error) = state.lacks_space() {
                return if removes(commit) { Ok(()) } else { Err(error) };
            }
            if !is_late(&state.queue) || state.stopping {
                return Ok(());
            }
            self.term.check()?;
            if !base::thread::may_wait() {
                return Err(StoreError::Waits);
            }
            state.queue.hurry = true;
            self.work.notify_one();
            self.changed.wait_for(&mut state, TURN);
        }
    }

    /// Waits until all changes so far are in the engine.
    pub(super) fn drain_all(&self) -> Result<(), StoreError> {
        let last = self.state.lock().last();
        self.drain(last, base::time::monotonic() + super::PATIENCE)
    }

    /// Waits until the batches up to this one are in the engine.
    ///
    /// # Errors
    /// `Fenced` if its session has ended: then it may be lost. Or the engine has no space, or they could not
    /// be stored in time.
    pub(super) fn drain(&self, upto: Upto, until: Instant) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        loop {
            // First: what is lost counts as done.
            if upto.sessions < state.lossless_since {
                return Err(StoreError::Fenced(
                    "the session ended before the changes were stored".to_owned(),
                ));
            }
            if state.queue.done >= upto.batch {
                return Ok(());
            }
            if let Some(error) = state.lacks_space() {
                return Err(error);
            }
            if state.stopping || base::time::monotonic() > until {
                return Err(StoreError::Unavailable("the changes could not be stored in time".to_owned()));
            }
            // The next batch is not in a hurry because the one before it is on its way.
            if !state.queue.is_taken(upto.batch) {
                state.queue.hurry = true;
                self.work.notify_one();
            }
            self.changed.wait_for(&mut state, TURN);
        }
    }

    /// The thread that writes.
    pub(super) fn write_behind(&self) {
        let mut confirmed = Confirmed::default();
        loop {
            let (number, batch, sessions) = {
                let mut state = self.state.lock();
                while state.queue.is_empty() && !state.stopping && !state.is_suspect {
                    self.work.wait(&mut state);
                }
                if state.queue.is_empty() && state.is_suspect && !state.stopping {
                    drop(state);
                    self.clear_suspicion(&mut confirmed);
                    continue;
                }
                let full =
                    |queue: &Queue| queue.hurry || queue.is_full() || queue.filling.rows() > ROWS_MAX / 2;
                let until = base::time::monotonic() + GATHER;
                while !full(&state.queue) && !state.stopping {
                    if self.work.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
                if state.stopping {
                    return;
                }
                let sessions = state.sessions;
                let (number, batch) = state.queue.take();
                (number, batch, sessions)
            };
            let sent = self.send(&batch, sessions, &mut confirmed);
            let mut state = self.state.lock();
            state.queue.flying = None;
            state.stored = confirmed.last;
            match sent {
                Some(Sent::Done) => {
                    // A session may have ended meanwhile, and with it all batches up to a later one.
                    state.queue.done = state.queue.done.max(number);
                    state.queue.oldest = state.queue.since();
                    if state.no_space.take().is_some() {
                        self.nodes.report("the database has space again, and changes are stored");
                    }
                    let State { queue, journal, sessions: now, .. } = &mut *state;
                    if let (Some(journal), true, Some((_, last))) =
                        (journal, *now == sessions, confirmed.last)
                    {
                        journal.done(last, queue.is_empty());
                    }
                }
                Some(Sent::Lost) if state.sessions == sessions => {
                    drop(state);
                    self.lose(Some(&*batch));
                    continue;
                }
                // What ended the session has noted it.
                Some(Sent::Lost) => {}
                None => return,
            }
            self.changed.notify_all();
        }
    }

    /// Sends a batch until it is known what became of it. `None`: this node is being closed.
    fn send(&self, batch: &Arc<Batch>, sessions: u64, confirmed: &mut Confirmed) -> Option<Sent> {
        let mut told = false;
        loop {
            let me = {
                let state = self.state.lock();
                if state.sessions != sessions {
                    return Some(Sent::Lost);
                }
                if state.stopping {
                    return None;
                }
                // Under the lock: the end of a session is noted before the node joins again. So this is still
                // the session in which the batch was made.
                confirmed.of_session(state.joins);
                self.nodes.me()
            };
            let Some(me) = me else { return Some(Sent::Lost) };
            let last = confirmed.last_of(me);
            let (key, commit) = (Key::batch(me.node, me.epoch), batch.numbered(me, last));
            match self.inner.commit(commit) {
                Ok(()) => {
                    confirmed.add(me, batch);
                    return Some(Sent::Done);
                }
                Err(CommitError::Conflict { rows, .. }) => match counted_in(&rows, &key) {
                    // An earlier attempt was applied, and its answer was lost.
                    Some(has) if has == last + 1 => {
                        confirmed.add(me, batch);
                        return Some(Sent::Done);
                    }
                    Some(has) if has < last => match self.give_again(me, has, sessions, confirmed) {
                        Some(Sent::Done) => self.suspect(),
                        failed => return failed,
                    },
                    _ => return Some(Sent::Lost),
                },
                Err(CommitError::Store(error)) => {
                    if !std::mem::replace(&mut told, true) {
                        self.nodes.report(&format!("changes wait to be stored: {error}"));
                    }
                    let mut state = self.state.lock();
                    if state.sessions != sessions || state.stopping {
                        continue;
                    }
                    match error {
                        StoreError::NoSpace(why) => {
                            state.no_space = Some(why);
                            // What waits for the batch is answered now.
                            self.changed.notify_all();
                            drop(state);
                            std::thread::sleep(space::AGAIN);
                        }
                        _ => {
                            state.no_space = None;
                            self.changed.wait_for(&mut state, AGAIN);
                        }
                    }
                }
            }
        }
    }

    /// See [`super::Leases::session_ended`].
    pub(super) fn session_ended(&self) {
        self.state.lock().joins += 1;
        self.lose(None);
    }

    /// Forgets everything, and notes whose changes are lost.
    pub(super) fn lose(&self, batch: Option<&Batch>) {
        let mut state = self.state.lock();
        // It is not known yet what becomes of it. So fsync must not say that it is stored.
        let flying = state.queue.flying.take();
        let waiting = state.queue.take_all();
        state.no_space = None;
        state.journal.iter_mut().for_each(Journal::restart);
        let before = state.lost.len();
        for batch in batch.into_iter().chain(&waiting) {
            note_lost(&mut state.lost, batch);
        }
        let lost = state.lost.len() - before;
        flying.iter().for_each(|batch| note_lost(&mut state.lost, batch));
        let kept = KeptByKernel::of(state.units.values());
        state.forget_all();
        state.lossless_since = state.sessions;
        state.letting_go += 1;
        self.changed.notify_all();
        drop(state);
        if lost > 0 {
            self.nodes.report(&format!(
                "the last changes of {lost} files and folders are lost: the session ended before they were stored"
            ));
        }
        self.kernel_lets_go_of_the_forgotten(&kept);
    }
}
