//! Signals to callers, and requests that are answered because nothing else will answer them in time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::device;
use super::flight::Entry;
use super::{Asked, Shared};
use crate::frame::{Head, Kind};
use crate::request;

/// How often the clock thread looks.
const TICK: Duration = Duration::from_millis(100);
/// How long the server may take to release a caller that is being killed.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// The most signals that are remembered for requests that have not been entered.
const EARLY_MOST: usize = 64;

impl Shared {
    /// The kernel reports a signal to the caller of a request. Another thread may be about to enter it.
    pub(super) fn interrupt(&self, unique: u64) {
        if self.signal(unique) {
            return;
        }
        {
            let mut early = self.early.lock();
            if early.len() == EARLY_MOST {
                early.pop_front();
            }
            early.push_back(unique);
        }
        self.signal(unique);
    }

    /// Notes a signal to the caller of a request in a slot or in the line. Returns false if it is in neither.
    fn signal(&self, unique: u64) -> bool {
        if let Some(entry) = self.flight.by_unique(unique) {
            self.flight.change(entry.slot, entry.seq, |now| now.signalled |= now.asked.unique == unique);
            self.pass_signal(&entry, false);
            return true;
        }
        let waits = self.flight.signal_in_line(unique);
        if waits {
            self.release_killed();
        }
        waits
    }

    /// Answers requests in the line whose callers are being killed. No server has seen them.
    fn release_killed(&self) {
        for (unique, pid) in self.flight.signalled_in_line() {
            if device::is_being_killed(pid)
                && let Some(new) = self.flight.leave_line(unique)
            {
                self.refuse(&new, libc::EINTR);
            }
        }
    }

    /// A request was entered: a signal to its caller may have come before.
    pub(super) fn entered(&self, asked: &Asked) {
        let mut early = self.early.lock();
        if let Some(at) = early.iter().position(|unique| *unique == asked.unique) {
            early.remove(at);
            drop(early);
            self.interrupt(asked.unique);
        }
    }

    /// Tells the server of a signal. If there is no server, a caller that is being killed is released at
    /// once, and so is one that waits for a lock. `again`: the server was told before, or may have been.
    fn pass_signal(&self, entry: &Entry, again: bool) {
        let killed = device::is_being_killed(entry.asked.pid);
        // A signal ends the wait for a lock, so it must not be lost with a connection.
        let waits_for_lock = request::waits_for_lock(&entry.asked, &entry.request);
        if again && !killed && !waits_for_lock {
            return;
        }
        let head = Head::of_slot(Kind::Interrupt, entry.slot, entry.seq);
        let now = base::time::monotonic();
        let late = entry.killed.is_some_and(|since| now.duration_since(since) >= KILL_PATIENCE);
        let said = !late && self.send_somewhere(&Head { flags: u8::from(killed), ..head }, &[]);
        if (killed || waits_for_lock) && !said {
            return self.give_up(entry, libc::EINTR);
        }
        if killed && entry.killed.is_none() {
            self.flight.change(entry.slot, entry.seq, |mine| {
                if mine.asked.unique == entry.asked.unique {
                    mine.killed = Some(now);
                }
            });
        }
    }

    /// Answers a request with an error, because it cannot be known when it will be answered. What the kernel
    /// has given back stays in its slot: the server must get it.
    pub(super) fn give_up(&self, entry: &Entry, error: i32) {
        if entry.own || !entry.asked.wants_reply() {
            return;
        }
        let ends_locks = self.has_locks && request::lock_ended(&entry.asked, &entry.request).is_some();
        let mut first = false;
        // Another thread may have given it up and withdrawn it. Then another request has its place.
        let mark = |now: &mut Entry| {
            if now.asked.unique == entry.asked.unique {
                first = !now.given_up && !now.own;
                now.given_up = !ends_locks;
                now.own = ends_locks;
            }
        };
        if !self.flight.change(entry.slot, entry.seq, mark) || !first {
            return;
        }
        let _ = self.reply(entry.device, &request::error_reply(entry.asked.unique, error));
        if !ends_locks {
            self.flight.withdraw(entry.slot, entry.seq, entry.asked.unique);
        }
    }

    /// The kernel dropped references, and the server has counted them down.
    pub(super) fn release(&self, asked: &Asked, message: &[u8]) {
        self.held.lock().release(&request::forgotten(asked, message));
    }

    /// Pings, gives up, pays, and looks after callers that had a signal.
    pub(super) fn run_clock(&self) {
        while !self.ended.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            self.links.iter().for_each(|link| link.tick());
            let over = self
                .state
                .lock()
                .down_since
                .is_some_and(|since| base::time::monotonic().duration_since(since) >= self.options.wait);
            if over && !self.failing.swap(true, Ordering::AcqRel) {
                self.flight.set_failing(true);
                (self.log)(&format!(
                    "no server at {} for {} s: requests fail with EIO until one answers",
                    self.options.address,
                    self.options.wait.as_secs()
                ));
            }
            let failing = self.failing.load(Ordering::Acquire);
            if !failing {
                self.pay();
            }
            self.advance();
            self.release_killed();
            for entry in self.flight.all().iter().filter(|entry| !entry.given_up && !entry.own) {
                if failing {
                    self.give_up(entry, libc::EIO);
                } else if entry.signalled {
                    self.pass_signal(entry, true);
                }
            }
        }
    }
}
