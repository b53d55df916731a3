//! Pending requests: requests that must wait. A few worker threads serve them, under a deadline and under the
//! kernel's interrupts.
//!
//! A request that would wait for more than this machine's disk leaves the reader thread. It becomes a
//! [`PendingRequest`], which holds the sink and the number to reply with, and a copy of its bytes. The first
//! party to claim it replies, once: the worker with the result, the clock thread with EIO when the deadline
//! has passed, or an interrupt with EINTR. A result that comes too late is undone on the kernel's side: the
//! reference that the reply would have taken is given back, and after a change the kernel is told to drop the
//! names involved from its caches.
//!
//! **Only a caller that is being killed is interrupted.** The kernel sends INTERRUPT for any signal. On a
//! disk, however, a handled signal ends no fsync(2) or read(2), and programs rely on that: PostgreSQL panics
//! if fsync returns EINTR. So an interrupt is granted only if the caller has SIGKILL pending, which is what
//! any fatal signal becomes. The kernel reports the first signal alone. So the clock thread checks a caller
//! that had a signal again and again.
//!
//! ```text
//!   queued ──► running ──► answered        queued ──(deadline, kill)──► answered
//!                 └──(deadline; kill, if nothing changes)──► answered
//! ```
//!
//! Workers are started on demand, up to a bound, and end when idle. A worker whose request was answered by
//! another party may stay stuck for much longer, on data that cannot be had. Another worker then takes its
//! place, up to [`REPLACEMENTS`] times the bound. If all of them are stuck, the requests queued behind them
//! still get EIO at their deadline, and requests that are served inline continue.
//!
//! A read whose data is in flight needs no worker: the completion of the fetch replies
//! ([`PendingRequest::serve`]). The completion can be first even if a worker is already running.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use base::Deadline;
use fs::Errno;
use fs::api::Waiting;
use parking_lot::{Condvar, Mutex};

use crate::buffer::PageBuf;
use crate::caller::Fate;
use crate::channel::Sink;
use crate::late::{LateReads, Wait};

const QUEUED: u8 = 0;
const RUNNING: u8 = 1;
const ANSWERED: u8 = 2;
/// Answered by the completion of a fetch.
const SERVED: u8 = 3;

/// How many stuck workers are replaced, as a multiple of the bound.
const REPLACEMENTS: usize = 3;

/// How long an idle worker stays.
const IDLE: Duration = Duration::from_secs(10);

/// Work has this many twelfths of the deadline. Its error says why, and the clock thread's does not. What
/// would change something is not done after this time: see [`Deadline::current`].
const WORK_TWELFTHS: u32 = 11;

/// The most INTERRUPTs that are remembered for requests that have not arrived. Most are of requests that were
/// served at once.
const EARLY_MOST: usize = 64;

/// How often callers that had a signal are checked.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A pending request: the right to reply to it, once.
pub struct PendingRequest {
    unique: u64,
    /// The thread that waits for the reply. 0: a thread that this process cannot see.
    caller: u32,
    /// The kernel sent INTERRUPT for it.
    interrupted: AtomicBool,
    waiting: Option<Waiting>,
    since: Instant,
    /// The end of the work. The clock thread's error comes a little later, so the work can say why.
    until: Deadline,
    state: AtomicU8,
    sink: Arc<dyn Sink>,
    late: Arc<LateReads>,
    /// A read that has waited before, and may wait only briefly now.
    again: bool,
    /// The pool whose thread works on it.
    pool: OnceLock<Weak<Pool>>,
    stage: AtomicU8,
}

// The stages of a request in a pool. They change only under that pool's lock.
const NO_WORKER: u8 = 0;
const WORKING: u8 = 1;
/// A thread still works on it, although it was answered.
const ORPHANED: u8 = 2;

impl PendingRequest {
    /// The deadline of the work for this request: see [`Deadline::scope`].
    pub fn deadline(&self) -> Deadline {
        self.until
    }

    /// Takes the right to reply. Returns false if another party has it.
    pub fn claim(&self) -> bool {
        self.end(ANSWERED)
    }

    /// Takes the right to reply as [`PendingRequest::claim`] does, for the completion of a fetch, whether it
    /// succeeded or failed.
    pub fn serve(&self) -> bool {
        self.end(SERVED)
    }

    /// Whether the completion of a fetch has answered it.
    pub fn is_served(&self) -> bool {
        self.state.load(Ordering::Acquire) == SERVED
    }

    fn end(&self, how: u8) -> bool {
        let open = |state| (state < ANSWERED).then_some(how);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_ok()
    }

    /// The request was answered, but not by the thread that works on it. If there is such a thread, another
    /// may take its place.
    pub fn orphan_worker(self: &Arc<Self>) {
        if let Some(pool) = self.pool.get().and_then(Weak::upgrade) {
            pool.orphan_worker(self);
        }
    }

    /// Sends the reply. Call it only after claiming the request. Returns false if the kernel no longer wants
    /// the reply.
    pub fn answer(&self, error: i32, body: &[u8]) -> bool {
        // This must come before the reply, because the kernel asks again at once.
        if let (Some(Waiting::Read { ino, offset, len }), true) = (self.waiting, error == -Errno::EIO.0) {
            self.late.failed(ino, offset, len, self.since, self.again);
        }
        self.sink.reply(self.unique, error, body).is_ok()
    }

    fn start(&self) -> bool {
        self.state.compare_exchange(QUEUED, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the right to reply for a caller that is being killed. This always succeeds while the request is
    /// queued. While it runs, this succeeds only if the request changes nothing.
    fn interrupt(&self) -> bool {
        let harmless = !matches!(self.waiting, Some(Waiting::Change | Waiting::Write | Waiting::Lock));
        let from =
            |state| self.state.compare_exchange(state, ANSWERED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        from(QUEUED) || (harmless && from(RUNNING))
    }
}

/// The table of all pending requests, and the clock thread that watches it.
pub struct PendingTable {
    open: Mutex<Open>,
    changed: Condvar,
    deadline: Duration,
    late: Arc<LateReads>,
}

#[derive(Default)]
struct Open {
    requests: HashMap<u64, Arc<PendingRequest>>,
    /// The INTERRUPTs of requests that are not in the table. A request may arrive later, because another
    /// thread or another queue brings it.
    early: VecDeque<u64>,
    closed: bool,
}

impl PendingTable {
    /// Starts the clock thread. It calls `late` for each request that it answers EIO.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start(
        deadline: Duration,
        late: impl Fn(Duration) + Send + 'static,
    ) -> io::Result<Arc<PendingTable>> {
        let reads = Arc::new(LateReads::new(deadline));
        let pending_table =
            PendingTable { open: Mutex::default(), changed: Condvar::new(), deadline, late: reads };
        let pending_table = Arc::new(pending_table);
        let clock = Arc::clone(&pending_table);
        base::thread::spawn("fuse-clock", move || clock.run(&late))?;
        Ok(pending_table)
    }

    /// Enters a request in the table.
    pub fn enter(
        &self,
        unique: u64,
        caller: u32,
        waiting: Option<Waiting>,
        sink: &Arc<dyn Sink>,
    ) -> Arc<PendingRequest> {
        self.enter_with(unique, caller, waiting, Wait::Long, sink)
    }

    /// Enters a request in the table as [`PendingTable::enter`] does. The request may have a shorter
    /// deadline.
    pub fn enter_with(
        &self,
        unique: u64,
        caller: u32,
        waiting: Option<Waiting>,
        wait: Wait,
        sink: &Arc<dyn Sink>,
    ) -> Arc<PendingRequest> {
        let now = base::time::monotonic();
        // The request is entered as if it had come earlier, so its deadline comes sooner.
        let earlier = |short| now.checked_sub(self.deadline.saturating_sub(short)).unwrap_or(now);
        let (since, again) = match wait {
            Wait::Short(short) => (earlier(short), true),
            _ => (now, false),
        };
        // Work for a short wait goes on after the reply: the next read then finds what it fetched. Flushes
        // and waits for locks have limits of their own.
        let bounded = match waiting {
            Some(Waiting::Read { .. } | Waiting::Look) => !again,
            // Its caller sees an error, and goes on. It must not overwrite what comes after it.
            Some(Waiting::Write | Waiting::Change) => true,
            _ => false,
        };
        let until =
            if bounded { Deadline::after(self.deadline * WORK_TWELFTHS / 12) } else { Deadline::NEVER };
        let mut pending = self.new_request(unique, waiting, sink);
        (pending.caller, pending.since, pending.until, pending.again) = (caller, since, until, again);
        let pending = Arc::new(pending);
        let mut open = self.open.lock();
        if let Some(at) = open.early.iter().position(|early| *early == unique) {
            open.early.remove(at);
            // The clock thread checks its caller.
            pending.interrupted.store(true, Ordering::Release);
        }
        open.requests.insert(unique, Arc::clone(&pending));
        if open.requests.len() == 1 {
            self.changed.notify_all();
        }
        pending
    }

    /// A request outside of the table: neither a deadline nor an interrupt ends it. Its work answers it.
    pub fn outside(
        &self,
        unique: u64,
        waiting: Option<Waiting>,
        sink: &Arc<dyn Sink>,
    ) -> Arc<PendingRequest> {
        Arc::new(self.new_request(unique, waiting, sink))
    }

    fn new_request(&self, unique: u64, waiting: Option<Waiting>, sink: &Arc<dyn Sink>) -> PendingRequest {
        PendingRequest {
            unique,
            caller: 0,
            interrupted: AtomicBool::new(false),
            waiting,
            since: base::time::monotonic(),
            until: Deadline::NEVER,
            state: AtomicU8::new(QUEUED),
            sink: Arc::clone(sink),
            late: Arc::clone(&self.late),
            again: false,
            pool: OnceLock::new(),
            stage: AtomicU8::new(NO_WORKER),
        }
    }

    /// Removes a request that is over, by any answer.
    pub fn remove(&self, pending: &PendingRequest) {
        let mut open = self.open.lock();
        // The kernel may have reused the number for a new request since the reply. Only this request is
        // removed.
        if open.requests.get(&pending.unique).is_some_and(|held| std::ptr::eq(Arc::as_ptr(held), pending)) {
            open.requests.remove(&pending.unique);
        }
    }

    /// The kernel reports a signal to the caller of this request.
    pub fn interrupt(&self, unique: u64) {
        let found = {
            let mut open = self.open.lock();
            let found = open.requests.get(&unique).cloned();
            match &found {
                Some(pending) => {
                    pending.interrupted.store(true, Ordering::Release);
                    // The clock thread has to check more often from now on.
                    self.changed.notify_all();
                }
                None => {
                    if open.early.len() == EARLY_MOST {
                        open.early.pop_front();
                    }
                    open.early.push_back(unique);
                }
            }
            found
        };
        if let Some(pending) = found {
            self.end_if_killed(&pending);
        }
    }

    fn end_if_killed(&self, pending: &Arc<PendingRequest>) {
        if is_being_killed(pending.caller) && pending.interrupt() {
            self.remove(pending);
            pending.answer(-Errno::EINTR.0, &[]);
            pending.orphan_worker();
        }
    }

    /// How long a request that would wait may do so. A read that has just failed by waiting does not wait
    /// again.
    pub fn may_wait(&self, waiting: Option<Waiting>) -> Wait {
        match waiting {
            Some(Waiting::Read { ino, offset, .. }) => self.late.wait(ino, offset),
            _ => Wait::Long,
        }
    }

    /// The number of pending requests.
    pub fn waiting(&self) -> usize {
        self.open.lock().requests.len()
    }

    /// Ends the clock thread.
    pub fn close(&self) {
        self.open.lock().closed = true;
        self.changed.notify_all();
    }

    /// Checks all requests eight times per deadline while there are any, and sleeps while there are none. So
    /// entering and removing a request cost no wake-up.
    fn run(&self, late: &impl Fn(Duration)) {
        let step = (self.deadline / 8).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let mut open = self.open.lock();
        while !open.closed {
            if open.requests.is_empty() {
                self.changed.wait(&mut open);
                continue;
            }
            let had_signal = |pending: &&Arc<PendingRequest>| pending.interrupted.load(Ordering::Acquire);
            let step = if open.requests.values().any(|pending| had_signal(&pending)) {
                step.min(LOOK_AGAIN)
            } else {
                step
            };
            self.changed.wait_for(&mut open, step);
            let signalled: Vec<_> = open.requests.values().filter(had_signal).cloned().collect();
            if !signalled.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut open, || {
                    signalled.iter().for_each(|pending| self.end_if_killed(pending));
                });
            }
            let now = base::time::monotonic();
            let over = |pending: &Arc<PendingRequest>| now.duration_since(pending.since) >= self.deadline;
            let expired: Vec<_> =
                open.requests.extract_if(|_, pending| over(pending)).map(|(_, pending)| pending).collect();
            if expired.is_empty() {
                continue;
            }
            parking_lot::MutexGuard::unlocked(&mut open, || {
                for pending in expired.iter().filter(|pending| pending.claim()) {
                    pending.answer(-Errno::EIO.0, &[]);
                    pending.orphan_worker();
                    late(now.duration_since(pending.since));
                }
            });
        }
    }
}

/// Whether a thread has SIGKILL pending, has ended, or cannot be seen. Nothing is known of a thread that
/// cannot be seen, so its request is released too.
fn is_being_killed(thread: u32) -> bool {
    Fate::of(thread) != Fate::Lives
}

/// What a worker runs. It gets the worker's own reply buffer.
pub type Work = Box<dyn FnOnce(&PendingRequest, &mut [u8]) + Send>;

/// Worker threads, started on demand up to a bound.
pub struct Pool {
    name: &'static str,
    most: usize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<(Arc<PendingRequest>, Work)>,
    threads: usize,
    /// The number of these whose request was answered by another party.
    orphaned: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// An empty pool. It never has more than `most` threads, apart from replacements for stuck ones.
    pub fn new(name: &'static str, most: usize) -> Arc<Pool> {
        Arc::new(Pool { name, most: most.max(1), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Queues work. If not even one thread can be started, the request is answered EIO.
    pub fn push(self: &Arc<Self>, pending: Arc<PendingRequest>, work: Work) {
        let mut state = self.state.lock();
        // A request is queued once: two parties may both find that a worker must serve it. Nothing is queued
        // after the end of the session.
        if pending.pool.set(Arc::downgrade(self)).is_err() || state.closed {
            return;
        }
        state.queue.push_back((pending, work));
        if !self.staff(&mut state) {
            let unserved = state.queue.pop_back();
            drop(state);
            if let Some((pending, _)) = unserved
                && pending.claim()
            {
                pending.answer(-Errno::EIO.0, &[]);
            }
            return;
        }
        self.changed.notify_one();
    }

    /// Starts a thread if there is more work than idle threads. Returns false if there is no thread and none
    /// can be started.
    fn staff(self: &Arc<Self>, state: &mut PoolState) -> bool {
        let wanted = state.queue.len() > state.idle && state.threads < self.most(state.orphaned);
        if wanted {
            let pool = Arc::clone(self);
            match base::thread::spawn(self.name, move || pool.run()) {
                Ok(_) => state.threads += 1,
                Err(_) => return state.threads > 0,
            }
        }
        true
    }

    /// The bound on threads while so many of them work on requests that were already answered.
    fn most(&self, orphaned: usize) -> usize {
        self.most + orphaned.min(REPLACEMENTS * self.most)
    }

    /// The request was answered by another party. The thread that works on it no longer counts against the
    /// bound.
    fn orphan_worker(self: &Arc<Self>, pending: &PendingRequest) {
        let mut state = self.state.lock();
        if pending.stage.load(Ordering::Relaxed) == WORKING {
            pending.stage.store(ORPHANED, Ordering::Relaxed);
            state.orphaned += 1;
            self.staff(&mut state);
        }
    }

    /// Takes no more work. Threads end when they have finished their current work.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.queue.clear();
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut buffer = PageBuf::for_reply();
        let mut state = self.state.lock();
        loop {
            let is_one_too_many = state.threads > self.most(state.orphaned);
            if !is_one_too_many && let Some((pending, work)) = state.queue.pop_front() {
                // The data of a read that was already answered is still fetched to the end, so that it is
                // cached.
                if !pending.start() && !pending.is_served() {
                    continue;
                }
                pending.stage.store(WORKING, Ordering::Relaxed);
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    // The submitter handles panics of the filesystem. After any other one the request may
                    // have no reply. If it has one, or another party is about to send it, the sink takes only
                    // one.
                    if catch_unwind(AssertUnwindSafe(|| work(&pending, buffer.bytes()))).is_err() {
                        pending.claim();
                        pending.answer(-Errno::EIO.0, &[]);
                    }
                });
                if pending.stage.swap(NO_WORKER, Ordering::Relaxed) == ORPHANED {
                    state.orphaned -= 1;
                }
                continue;
            }
            if state.closed || is_one_too_many {
                break;
            }
            state.idle += 1;
            let timed_out = self.changed.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

#[cfg(test)]
mod tests;
