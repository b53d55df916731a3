//! Requests that must wait: a few threads, a deadline, and the kernel's interrupts.
//!
//! A request that would wait for more than this machine's disk leaves the reader thread as a [`Ticket`] (whom to
//! answer, on which sink) and a copy of its bytes. Whoever claims the ticket first answers it, once: the worker with the
//! result, the clock with EIO when the deadline has passed, or an interrupt with EINTR. A result that comes too late is
//! undone as far as the kernel is concerned: a reference it would have taken is given back, and after a change the
//! kernel is told to forget what it holds of the names involved.
//!
//! **Only who is being killed is interrupted.** The kernel sends INTERRUPT for any signal, but on a disk a handled signal ends no fsync(2) or
//! read(2), and programs rely on that: PostgreSQL panics at an fsync that says EINTR. So an interrupt is granted when the caller has
//! SIGKILL pending (which is what any fatal signal becomes). The kernel tells of the first signal alone, so the clock looks again
//! at callers that had one.
//!
//! ```text
//!   queued ──► running ──► answered        queued ──(deadline, kill)──► answered
//!                 └──(deadline; kill, if nothing changes)──► answered
//! ```
//!
//! Workers are started on demand, up to a bound, and end when idle. One whose request somebody else answered may be stuck for longer, with
//! something that nobody can have: another takes its place, up to [`LOST`] times the bound. When all of them are stuck, what is queued behind
//! them still gets its EIO in time, and everything served inline goes on.
//!
//! A read whose bytes are on their way needs no worker: whoever brings them answers it ([`Ticket::serve`]), who may be first although a worker
//! is running.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

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
/// Answered by whoever brought what was asked for.
const SERVED: u8 = 3;

/// So many times the workers that there may be can be stuck besides.
const LOST: usize = 3;

/// How long an idle worker stays.
const IDLE: Duration = Duration::from_secs(10);

/// How often callers that had a signal are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The right to answer one request, once.
pub struct Ticket {
    unique: u64,
    /// The thread that waits for the answer; 0: one that cannot be seen from here.
    caller: u32,
    /// It had a signal.
    interrupted: AtomicBool,
    waiting: Option<Waiting>,
    since: Instant,
    state: AtomicU8,
    sink: Arc<dyn Sink>,
    late: Arc<LateReads>,
    /// A read that has waited before, and has a moment only.
    again: bool,
    /// The pool whose thread works on it, and what that pool knows of the thread.
    pool: OnceLock<Weak<Pool>>,
    stage: AtomicU8,
}

// Of a ticket in a pool, changed under that pool's lock only.
const NOBODYS: u8 = 0;
const AT_WORK: u8 = 1;
/// A thread is at work for nobody.
const STRAYED: u8 = 2;

impl Ticket {
    /// Takes the right to answer away from all others. False when someone else had it.
    pub fn claim(&self) -> bool {
        self.end(ANSWERED)
    }

    /// The same for who brings what was asked for, or why it cannot be had.
    pub fn serve(&self) -> bool {
        self.end(SERVED)
    }

    /// Whether somebody did.
    pub fn is_served(&self) -> bool {
        self.state.load(Ordering::Acquire) == SERVED
    }

    fn end(&self, how: u8) -> bool {
        let open = |state| (state < ANSWERED).then_some(how);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_ok()
    }

    /// It was answered, and not by the thread that works on it, if there is one: another may take its place.
    pub fn stray(self: &Arc<Self>) {
        if let Some(pool) = self.pool.get().and_then(Weak::upgrade) {
            pool.strayed(self);
        }
    }

    /// Sends the answer of one who has claimed it. False when the kernel no longer wants it.
    pub fn answer(&self, error: i32, body: &[u8]) -> bool {
        // Before the kernel hears of it: it asks again at once.
        if let (Some(Waiting::Read { ino, offset, len }), true) = (self.waiting, error == -Errno::EIO.0) {
            self.late.failed((ino, offset, len), self.since, self.again);
        }
        self.sink.reply(self.unique, error, body).is_ok()
    }

    fn start(&self) -> bool {
        self.state.compare_exchange(QUEUED, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the right to answer for a caller that is being killed: always while queued, and while running if nothing is changed by it.
    fn interrupt(&self) -> bool {
        let harmless = !matches!(self.waiting, Some(Waiting::Change | Waiting::Write));
        let from =
            |state| self.state.compare_exchange(state, ANSWERED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        from(QUEUED) || (harmless && from(RUNNING))
    }
}

/// All requests that wait, and the clock that watches them.
pub struct Desk {
    open: Mutex<Open>,
    changed: Condvar,
    deadline: Duration,
    late: Arc<LateReads>,
}

#[derive(Default)]
struct Open {
    tickets: HashMap<u64, Arc<Ticket>>,
    closed: bool,
}

impl Desk {
    /// Starts the clock. `late` is called for each request that was answered EIO for it.
    ///
    /// # Errors
    /// The system has no room for another thread.
    pub fn start(deadline: Duration, late: impl Fn(Duration) + Send + 'static) -> io::Result<Arc<Desk>> {
        let reads = Arc::new(LateReads::new(deadline));
        let desk = Desk { open: Mutex::default(), changed: Condvar::new(), deadline, late: reads };
        let desk = Arc::new(desk);
        let clock = Arc::clone(&desk);
        base::thread::spawn("fuse-clock", move || clock.run(&late))?;
        Ok(desk)
    }

    /// A ticket for this request.
    pub fn issue(
        &self,
        unique: u64,
        caller: u32,
        waiting: Option<Waiting>,
        sink: &Arc<dyn Sink>,
    ) -> Arc<Ticket> {
        self.issue_for(unique, caller, (waiting, Wait::Long), sink)
    }

    /// The same for a request that may not wait as long as others.
    pub fn issue_for(
        &self,
        unique: u64,
        caller: u32,
        (waiting, wait): (Option<Waiting>, Wait),
        sink: &Arc<dyn Sink>,
    ) -> Arc<Ticket> {
        let now = base::time::monotonic();
        // As if it had come earlier: then the clock ends it sooner.
        let earlier = |short| now.checked_sub(self.deadline.saturating_sub(short)).unwrap_or(now);
        let (since, again) = match wait {
            Wait::Short(short) => (earlier(short), true),
            _ => (now, false),
        };
        let (state, interrupted) = (AtomicU8::new(QUEUED), AtomicBool::new(false));
        let sink = Arc::clone(sink);
        let (pool, stage, late) = (OnceLock::new(), AtomicU8::new(NOBODYS), Arc::clone(&self.late));
        let ticket =
            Ticket { unique, caller, interrupted, waiting, since, state, sink, late, again, pool, stage };
        let ticket = Arc::new(ticket);
        let mut open = self.open.lock();
        open.tickets.insert(unique, Arc::clone(&ticket));
        if open.tickets.len() == 1 {
            self.changed.notify_all();
        }
        ticket
    }

    /// The request is over, whoever answered it.
    pub fn close_ticket(&self, ticket: &Ticket) {
        let mut open = self.open.lock();
        // The kernel may have given the same number to a new request since the answer: remove only our own.
        if open.tickets.get(&ticket.unique).is_some_and(|held| std::ptr::eq(Arc::as_ptr(held), ticket)) {
            open.tickets.remove(&ticket.unique);
        }
    }

    /// The caller of this request had a signal.
    pub fn interrupt(&self, unique: u64) {
        let found = {
            let open = self.open.lock();
            let found = open.tickets.get(&unique).cloned();
            if let Some(ticket) = &found {
                ticket.interrupted.store(true, Ordering::Release);
                // The clock has to look more often from now on.
                self.changed.notify_all();
            }
            found
        };
        if let Some(ticket) = found {
            self.end_if_killed(&ticket);
        }
    }

    fn end_if_killed(&self, ticket: &Arc<Ticket>) {
        if is_being_killed(ticket.caller) && ticket.interrupt() {
            self.close_ticket(ticket);
            ticket.answer(-Errno::EINTR.0, &[]);
            ticket.stray();
        }
    }

    /// How long a request that would wait may do so: a read that has just failed by waiting does not wait again.
    pub fn may_wait(&self, waiting: Option<Waiting>) -> Wait {
        match waiting {
            Some(Waiting::Read { ino, offset, .. }) => self.late.wait(ino, offset),
            _ => Wait::Long,
        }
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.open.lock().tickets.len()
    }

    /// Ends the clock.
    pub fn close(&self) {
        self.open.lock().closed = true;
        self.changed.notify_all();
    }

    /// Looks at all tickets eight times per deadline while there are any, and sleeps while there are none: issuing
    /// and closing a ticket then cost no wake-up.
    fn run(&self, late: &impl Fn(Duration)) {
        let step = (self.deadline / 8).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let mut open = self.open.lock();
        while !open.closed {
            if open.tickets.is_empty() {
                self.changed.wait(&mut open);
                continue;
            }
            let had_signal = |ticket: &&Arc<Ticket>| ticket.interrupted.load(Ordering::Acquire);
            let step = if open.tickets.values().any(|ticket| had_signal(&ticket)) {
                step.min(LOOK_AGAIN)
            } else {
                step
            };
            self.changed.wait_for(&mut open, step);
            let signalled: Vec<_> = open.tickets.values().filter(had_signal).cloned().collect();
            if !signalled.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut open, || {
                    signalled.iter().for_each(|ticket| self.end_if_killed(ticket));
                });
            }
            let now = base::time::monotonic();
            let over = |ticket: &Arc<Ticket>| now.duration_since(ticket.since) >= self.deadline;
            let expired: Vec<_> =
                open.tickets.extract_if(|_, ticket| over(ticket)).map(|(_, ticket)| ticket).collect();
            if expired.is_empty() {
                continue;
            }
            parking_lot::MutexGuard::unlocked(&mut open, || {
                for ticket in expired.iter().filter(|ticket| ticket.claim()) {
                    ticket.answer(-Errno::EIO.0, &[]);
                    ticket.stray();
                    late(now.duration_since(ticket.since));
                }
            });
        }
    }
}

/// Whether a thread has SIGKILL pending, or is gone. Of one that cannot be seen nobody knows: it is let go.
fn is_being_killed(thread: u32) -> bool {
    Fate::of(thread) != Fate::Lives
}

/// What a worker is to do with its own reply buffer.
pub type Work = Box<dyn FnOnce(&Ticket, &mut [u8]) + Send>;

/// Worker threads, started on demand up to a bound.
pub struct Pool {
    name: &'static str,
    most: usize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<(Arc<Ticket>, Work)>,
    threads: usize,
    /// Of these, those that work for nobody.
    strayed: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// No thread yet, and never more than `most`.
    pub fn new(name: &'static str, most: usize) -> Arc<Pool> {
        Arc::new(Pool { name, most: most.max(1), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Queues work. When not even one thread can be had, the ticket is answered EIO.
    pub fn push(self: &Arc<Self>, ticket: Arc<Ticket>, work: Work) {
        let mut state = self.state.lock();
        // Once: two who both saw that it has to be served are one too many. And not when the session is over.
        if ticket.pool.set(Arc::downgrade(self)).is_err() || state.closed {
            return;
        }
        state.queue.push_back((ticket, work));
        if !self.staff(&mut state) {
            let unserved = state.queue.pop_back();
            drop(state);
            if let Some((ticket, _)) = unserved
                && ticket.claim()
            {
                ticket.answer(-Errno::EIO.0, &[]);
            }
            return;
        }
        self.changed.notify_one();
    }

    /// As many threads as there is work, counting those that sleep. False if there is none and none can be had.
    fn staff(self: &Arc<Self>, state: &mut PoolState) -> bool {
        let wanted = state.queue.len() > state.idle && state.threads < self.most(state.strayed);
        if wanted {
            let pool = Arc::clone(self);
            match base::thread::spawn(self.name, move || pool.run()) {
                Ok(_) => state.threads += 1,
                Err(_) => return state.threads > 0,
            }
        }
        true
    }

    /// Threads that there may be while so many of them work for nobody.
    fn most(&self, strayed: usize) -> usize {
        self.most + strayed.min(LOST * self.most)
    }

    /// The ticket was answered; what its thread does is for nobody.
    fn strayed(self: &Arc<Self>, ticket: &Ticket) {
        let mut state = self.state.lock();
        if ticket.stage.load(Ordering::Relaxed) == AT_WORK {
            ticket.stage.store(STRAYED, Ordering::Relaxed);
            state.strayed += 1;
            self.staff(&mut state);
        }
    }

    /// No more work; threads end when they have finished what they do.
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
            let is_one_too_many = state.threads > self.most(state.strayed);
            if !is_one_too_many && let Some((ticket, work)) = state.queue.pop_front() {
                // Of a read that was served it is to be seen to that what it fetched is kept.
                if !ticket.start() && !ticket.is_served() {
                    continue;
                }
                ticket.stage.store(AT_WORK, Ordering::Relaxed);
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    // Whoever hands work in answers for its panics; here they must only not end the thread.
                    let _ = catch_unwind(AssertUnwindSafe(|| work(&ticket, buffer.bytes())));
                });
                if ticket.stage.swap(NOBODYS, Ordering::Relaxed) == STRAYED {
                    state.strayed -= 1;
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
