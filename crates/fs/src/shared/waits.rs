//! Requests that wait for a lock in a shared volume, and the thread that tries them again.
//!
//! The requests of one file are tried in the order in which they came, whenever this node changes the file's
//! row, and else by the thread: after 5 ms, then twice as long each time, up to 250 ms. One that still
//! conflicts does not hold up younger ones. The thread also repeats releases that failed.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Ino, time};
use hashbrown::HashMap;
use meta::store::StoreError;
use parking_lot::{Condvar, Mutex};

use super::SessionId;
use super::locks::{Failed, own_session};
use crate::api::{Lock, LockAnswer, LockOwner, LockStyle, LockWait};
use crate::errno::Errno;
use crate::locks::row::{Owner, Table};
use crate::volume::Core;

/// How soon a request is tried again, at first and at last.
const FIRST: Duration = Duration::from_millis(5);
const LAST: Duration = Duration::from_millis(250);

struct Waiter {
    ino: Ino,
    lock: Lock<Owner>,
    wait: LockWait,
    answer: LockAnswer,
    /// A commit is on its way that would grant it.
    is_committing: bool,
    /// The request was withdrawn while its commit was on its way. That counts only if the commit fails.
    is_cancelled: bool,
    /// A commit that would have granted it has no known outcome.
    is_unsure: bool,
}

/// Answers, to be sent while no lock of this program is held.
#[derive(Default)]
pub(crate) struct Answers(Vec<(LockAnswer, Result<(), Errno>)>);

impl Answers {
    pub(crate) fn send(self) {
        self.0.into_iter().for_each(|(answer, result)| answer(result));
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The requests that wait, in the order in which they came.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiters: Vec<Waiter>,
    /// When the files are tried again, and the pause before that.
    due: HashMap<Ino, (Instant, Duration)>,
    /// Locks that may have been taken for requests that were withdrawn.
    undo: Vec<(Ino, Lock<Owner>)>,
    thread: Option<JoinHandle<()>>,
    stopped: bool,
}

impl State {
    /// Removes requests. What they may have taken is released by the thread.
    fn extract(&mut self, is_it: impl Fn(&Waiter) -> bool, result: Result<(), Errno>) -> Answers {
        let mut answers = Vec::new();
        for waiter in self.waiters.extract_if(.., |waiter| is_it(waiter)) {
            if waiter.is_unsure && result.is_err() {
                self.due.insert(waiter.ino, (time::monotonic(), FIRST));
                self.undo.push((waiter.ino, waiter.lock));
            }
            answers.push((waiter.answer, result));
        }
        Answers(answers)
    }
}

impl Queue {
    pub(super) fn push(&self, ino: Ino, lock: Lock<Owner>, wait: LockWait, answer: LockAnswer) {
        let (is_committing, is_cancelled, is_unsure) = (false, false, false);
        let waiter = Waiter { ino, lock, wait, answer, is_committing, is_cancelled, is_unsure };
        self.state.lock().waiters.push(waiter);
    }

    pub(super) fn waits_for(&self, ino: Ino) -> bool {
        let state = self.state.lock();
        state.due.contains_key(&ino) || state.waiters.iter().any(|waiter| waiter.ino == ino)
    }

    /// Takes the locks that no longer conflict. A commit follows, and then one of [`Queue::keep`] and
    /// [`Queue::remove`]. Also returns who holds what the others wait for.
    pub(super) fn grant(&self, ino: Ino, table: &mut Table, own: SessionId) -> (Vec<LockWait>, Vec<Owner>) {
        let (mut granted, mut blockers) = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        let present = |waiter: &&mut Waiter| waiter.ino == ino && waiter.lock.owner.epoch == own.epoch;
        for waiter in state.waiters.iter_mut().filter(present) {
            if let Some(held) = table.of(waiter.lock.style).conflict(&waiter.lock) {
                blockers.push(held.owner);
                continue;
            }
            if table.set(&waiter.lock).is_ok() {
                waiter.is_committing = true;
                granted.push(waiter.wait);
            }
        }
        (granted, blockers)
    }

    /// Requests were not granted after all. `unsure`: or perhaps they were.
    pub(super) fn keep(&self, ino: Ino, waits: &[LockWait], unsure: bool) {
        if waits.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for waiter in state.waiters.iter_mut().filter(|waiter| waits.contains(&waiter.wait)) {
            waiter.is_committing = false;
            waiter.is_unsure |= unsure;
        }
        let over = state.extract(|waiter| waiter.ino == ino && waiter.is_cancelled, Err(Errno::EINTR));
        drop(state);
        over.send();
    }

    /// Removes requests, which are answered with `result`.
    pub(super) fn remove(&self, ino: Ino, waits: &[LockWait], result: Result<(), Errno>) -> Answers {
        if waits.is_empty() {
            return Answers::default();
        }
        self.state.lock().extract(|waiter| waiter.ino == ino && waits.contains(&waiter.wait), result)
    }

    /// Removes the requests of an owner that is gone.
    pub(super) fn abandon(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Answers {
        let is_it = |waiter: &Waiter| {
            (waiter.ino, waiter.lock.owner.number, waiter.lock.style) == (ino, owner.0, style)
        };
        self.state.lock().extract(is_it, Err(Errno::EINTR))
    }

    /// Removes the requests that were made in an earlier session, of one file or of all.
    pub(super) fn fail_old(&self, ino: Option<Ino>, own: SessionId) -> Answers {
        let is_it =
            |waiter: &Waiter| waiter.lock.owner.epoch != own.epoch && ino.is_none_or(|ino| waiter.ino == ino);
        self.state.lock().extract(is_it, Err(Errno::EIO))
    }

    fn fail(&self, ino: Ino) {
        let failed = self.state.lock().extract(|waiter| waiter.ino == ino, Err(Errno::EIO));
        failed.send();
    }

    /// Withdraws a request.
    pub(crate) fn cancel(&self, wait: LockWait) {
        let mut state = self.state.lock();
        let Some(waiter) = state.waiters.iter_mut().find(|waiter| waiter.wait == wait) else { return };
        if waiter.is_committing {
            waiter.is_cancelled = true;
            return;
        }
        let over = state.extract(|waiter| waiter.wait == wait, Err(Errno::EINTR));
        drop(state);
        over.send();
    }

    /// Ends the thread, and answers all requests.
    pub(crate) fn stop(&self) -> Option<JoinHandle<()>> {
        let mut state = self.state.lock();
        state.stopped = true;
        let thread = state.thread.take();
        let over = state.extract(|_| true, Err(Errno::EIO));
        drop(state);
        self.changed.notify_all();
        over.send();
        thread
    }

    /// Waits until a file is to be tried. None: the volume is closing.
    fn next(&self) -> Option<Ino> {
        let mut state = self.state.lock();
        while !state.stopped {
            let first = state.due.iter().min_by_key(|(_, (when, _))| *when);
            match first.map(|(ino, (when, _))| (*ino, *when)) {
                None => self.changed.wait(&mut state),
                Some((ino, when)) if when <= time::monotonic() => return Some(ino),
                Some((_, when)) => drop(self.changed.wait_until(&mut state, when)),
            }
        }
        None
    }

    /// A file was tried. `again`: there is something left to do. `moved`: something was done. Returns whether
    /// it will be tried again.
    fn tried(&self, ino: Ino, again: bool, moved: bool) -> bool {
        let mut state = self.state.lock();
        let again = again
            || state.waiters.iter().any(|waiter| waiter.ino == ino)
            || state.undo.iter().any(|(of, _)| *of == ino);
        let pause = state.due.remove(&ino).map_or(FIRST, |(_, pause)| pause);
        if again {
            let pause = if moved { FIRST } else { (pause * 2).min(LAST) };
            state.due.insert(ino, (time::monotonic() + pause, pause));
        }
        again
    }

    fn take_undo(&self, ino: Ino) -> Vec<Lock<Owner>> {
        self.state.lock().undo.extract_if(.., |(of, _)| *of == ino).map(|(_, lock)| lock).collect()
    }
}

impl Core {
    /// Has the thread try a file soon. Starts the thread if this is the first time.
    pub(super) fn poll_soon(self: &Arc<Core>, ino: Ino) {
        let queue = &self.fleet_locks.queue;
        let mut state = queue.state.lock();
        if !state.stopped {
            state.due.insert(ino, (time::monotonic() + FIRST, FIRST));
            if state.thread.is_none() {
                let core = self.clone();
                state.thread = base::thread::spawn("covey-locks", move || core.poll_locks()).ok();
            }
        }
        let over = match state.thread {
            Some(_) => Answers::default(),
            // Without the thread nobody would try again.
            None => state.extract(|waiter| waiter.ino == ino, Err(Errno::ENOLCK)),
        };
        drop(state);
        queue.changed.notify_all();
        over.send();
    }

    fn poll_locks(&self) {
        let Some(sharing) = &self.options.shared else { return };
        let queue = &self.fleet_locks.queue;
        while let Some(ino) = queue.next() {
            if let Ok(own) = own_session(sharing) {
                queue.fail_old(Some(ino), own).send();
            }
            let (done, is_left) = self.retry_locks(sharing, ino, &queue.take_undo(ino));
            let mut moved = false;
            match done {
                Ok(granted) => {
                    moved = !granted.is_empty();
                    granted.send();
                }
                // Nothing is known to have changed, and the session may last.
                Err(Failed::Store(
                    StoreError::Unavailable(_) | StoreError::Full | StoreError::NoSpace(_),
                )) => {}
                Err(Failed::Store(_) | Failed::TooMany) => queue.fail(ino),
            }
            if !queue.tried(ino, is_left, moved) {
                // What was kept for this file is no longer needed.
                self.with_locks(ino, |_| ());
            }
        }
    }
}
