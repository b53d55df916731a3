//! Clears writeback errors that the kernel stored although no byte was lost.
//!
//! With the writeback cache the kernel keeps the times of regular files. Some requests set the change time
//! (RENAME, LINK, UNLINK, SETXATTR, REMOVEXATTR, FALLOCATE, COPY_FILE_RANGE). In the same system call the
//! kernel sends the new time in a SETATTR. A thread that is being killed does not wait for that SETATTR. It
//! withdraws the request before any reader can take it, and the kernel stores the failure (EINTR) as a
//! writeback error of the inode. The next close(2) or fsync(2) of the file then fails with EIO, in whatever
//! program that is.
//!
//! ```text
//!   RENAME ──► served ──► watch_for(inode, thread) ──► answered
//!                              │
//!        SETATTR by the thread │  arrived: nothing else to do
//!                              └─ the thread is being killed, or gone: clear the inode's stored error
//! ```
//!
//! The daemon never sees the withdrawal, so it watches for a SETATTR that does not arrive. It clears the
//! error through a second descriptor of the file ([`ClearError`]). This takes less than a millisecond on a
//! machine with a free CPU. It clears the error again when the thread has ended.
//!
//! **A real error is never cleared.** An inode with a WRITE that failed, or with a WRITE that waits and could
//! fail, is left alone as long as the mount lives.
//!
//! Only the change time is lost with the SETATTR, and only in the database. The kernel shows the new time as
//! long as it keeps the inode, and the request that changed the file has stored a time of its own.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Ino;
use fs::api::Touched;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::caller::{Ends, Fate};

/// How often missing flushes are checked. The next program may close the file this soon.
const LOOK: Duration = Duration::from_micros(100);
/// A flush arrives within some ten microseconds. A younger one than this is not checked.
const YOUNG: Duration = Duration::from_micros(100);
/// While a thread is being killed, its flush is checked in every round up to this age. Later, and for all
/// other threads, it is checked whenever its age has doubled, and when the thread ends.
const FRESH: Duration = Duration::from_millis(20);
/// A thread that still lives this long after the reply has no flush outstanding: another thread flushed for
/// both, or there was nothing to flush.
const FLUSHED_AFTER: Duration = Duration::from_secs(1);
/// A thread that is being killed ends sooner than this. Otherwise it hangs for another reason.
const GIVEN_UP: Duration = Duration::from_secs(30);
/// The thread checks this many rounds without work before it sleeps. So a program that removes a tree wakes
/// it once.
const IDLE_ROUNDS: u32 = 200;
/// The most flushes that are checked in one round, so that a machine without a free CPU does not spend its
/// time here.
const AT_ONCE: usize = 8;
/// The most inodes with failed writes that are remembered one by one. Beyond this no error is cleared any
/// more.
const FAILED_MOST: usize = 1 << 16;

/// Clears the stored writeback error of an inode.
pub trait ClearError: Send + Sync {
    /// Clears it, if there is one. Returns false if that is not possible.
    fn clear(&self, ino: Ino) -> bool;
}

/// The flushes that the kernel has not sent yet.
pub struct PendingFlushes {
    state: Mutex<State>,
    changed: Condvar,
    errors: Box<dyn ClearError>,
    cleared: AtomicU64,
}

#[derive(Default)]
struct State {
    pending: Vec<Pending>,
    next: u64,
    /// The number of WRITEs that failed or have not ended, per inode.
    writes: HashMap<Ino, u32>,
    /// There were too many to remember.
    writes_unknown: bool,
    asleep: bool,
    closed: bool,
}

#[derive(Clone, Copy)]
struct Pending {
    number: u64,
    ino: Ino,
    thread: u32,
    since: Instant,
    look_at: Instant,
}

impl PendingFlushes {
    /// Starts the thread that checks.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start(errors: Box<dyn ClearError>) -> io::Result<Arc<PendingFlushes>> {
        let flushes = Arc::new(PendingFlushes {
            state: Mutex::default(),
            changed: Condvar::new(),
            errors,
            cleared: AtomicU64::new(0),
        });
        let watcher = Arc::clone(&flushes);
        base::thread::spawn("fuse-flushes", move || watcher.run())?;
        Ok(flushes)
    }

    /// The kernel will flush the times of these files, on this thread, as soon as it has the reply. Call this
    /// before the reply.
    pub fn watch_for(&self, thread: u32, touched: Touched) {
        let since = base::time::monotonic();
        let mut state = self.state.lock();
        for ino in touched.0.into_iter().flatten() {
            let number = state.next;
            state.next += 1;
            state.pending.push(Pending { number, ino, thread, since, look_at: since + YOUNG });
        }
        if state.asleep {
            self.changed.notify_all();
        }
    }

    /// The flush arrived.
    pub fn arrived(&self, thread: u32, ino: Ino) {
        self.state.lock().pending.retain(|pending| (pending.ino, pending.thread) != (ino, thread));
    }

    /// A WRITE waits. It may yet fail.
    pub fn write_begins(&self, ino: Ino) {
        let mut state = self.state.lock();
        if state.writes.len() >= FAILED_MOST && !state.writes.contains_key(&ino) {
            state.writes_unknown = true;
            return;
        }
        *state.writes.entry(ino).or_default() += 1;
    }

    /// The WRITE succeeded. A failed WRITE is never marked as done, so its error stays stored.
    pub fn write_done(&self, ino: Ino) {
        let mut state = self.state.lock();
        if let Some(count) = state.writes.get_mut(&ino) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.writes.remove(&ino);
            }
        }
    }

    /// A WRITE failed.
    pub fn write_failed(&self, ino: Ino) {
        self.write_begins(ino);
    }

    /// How many flushes were found missing, so that their errors were cleared.
    pub fn cleared(&self) -> u64 {
        self.cleared.load(Ordering::Acquire)
    }

    /// How many flushes have not arrived and are still watched for.
    pub fn pending(&self) -> usize {
        self.state.lock().pending.len()
    }

    /// Ends the thread.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        go_first();
        let mut state = self.state.lock();
        let mut ends = Ends::default();
        let mut idle = 0;
        while !state.closed {
            idle = if state.pending.is_empty() { idle + 1 } else { 0 };
            if idle > IDLE_ROUNDS {
                state.asleep = true;
                self.changed.wait(&mut state);
                state.asleep = false;
                idle = 0;
                continue;
            }
            ends.keep_only(|thread| state.pending.iter().any(|pending| pending.thread == thread));
            let ended = match ends.is_empty() {
                true => {
                    self.changed.wait_for(&mut state, LOOK);
                    Vec::new()
                }
                false => MutexGuard::unlocked(&mut state, || ends.wait(LOOK)),
            };
            let now = base::time::monotonic();
            let is_due = |pending: &&Pending| pending.look_at <= now || ended.contains(&pending.thread);
            let due: Vec<_> = state.pending.iter().filter(is_due).take(AT_ONCE).copied().collect();
            for pending in due {
                let next = MutexGuard::unlocked(&mut state, || self.look(&pending, now));
                let Some(at) = state.pending.iter().position(|other| other.number == pending.number) else {
                    continue;
                };
                match next {
                    Some(look_at) => {
                        state.pending[at].look_at = look_at;
                        ends.watch(pending.thread);
                    }
                    None => drop(state.pending.swap_remove(at)),
                }
            }
        }
    }

    /// Checks one flush. Returns when to check it again, if at all.
    fn look(&self, pending: &Pending, now: Instant) -> Option<Instant> {
        let fate = Fate::of(pending.thread);
        if fate != Fate::Lives {
            self.clear(pending.ino);
        }
        let age = now.saturating_duration_since(pending.since);
        let patience = match fate {
            Fate::Gone => return None,
            Fate::Lives | Fate::Unknown => FLUSHED_AFTER,
            Fate::BeingKilled => GIVEN_UP,
        };
        let often = fate == Fate::BeingKilled && age < FRESH;
        let pause = if often { LOOK } else { age.max(LOOK) };
        (age < patience).then_some(now + pause)
    }

    fn clear(&self, ino: Ino) {
        let is_real = {
            let state = self.state.lock();
            state.writes_unknown || state.writes.contains_key(&ino)
        };
        if !is_real && self.errors.clear(ino) {
            self.cleared.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Gives this thread priority over others that want a CPU. A program that reads the file next may become
/// runnable at the same time, and this thread has to be done by then. It does little: a few system calls for
/// each missing flush. Without the privilege nothing changes.
fn go_first() {
    // SAFETY: the structure holds only numbers, for which all zeros is a value. Some libraries have more than
    // one field.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: `parameters` lives through the call. 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) };
}

#[cfg(test)]
mod tests;
