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
        let entry = self.flight.by_unique(unique).or_else(|| {
            let mut early = self.early.lock();
            if early.len() == EARLY_MOST {
                early.pop_front();
            }
            early.push_back(unique);
            drop(early);
            self.flight.by_unique(unique)
        });
        let Some(entry) = entry else { return };
        self.flight.change(entry.slot, entry.seq, |entry| entry.signalled = true);
        self.pass_signal(&entry, false);
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
            self.flight.change(entry.slot, entry.seq, |entry| entry.killed = Some(now));
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
        let mark = |entry: &mut Entry| {
            first = !entry.given_up && !entry.own;
            entry.given_up = !ends_locks;
            entry.own = ends_locks;
        };
        if !self.flight.change(entry.slot, entry.seq, mark) || !first {
            return;
        }
        let _ = self.reply(entry.device, &request::error_reply(entry.asked.unique, error));
        if !ends_locks {
            self.flight.withdraw(entry.slot, entry.seq);
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
