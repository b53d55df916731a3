//! The phase clock: how the time of a request is spent in the daemon.
//!
//! Code that works for a request marks its part with a [`Scope`]: names, blobs, the node's disk, the origin.
//! Scopes nest, and time belongs to the innermost one. For example, a commit of names that reads from an open
//! pack gives that time to the cache.
//!
//! ```text
//!   start ──own──┬─enter(Names)──names──┬─enter(Cache)──cache──┬─drop──names──┬─drop──own── stop
//! ```
//!
//! Each thread has its own clock. It is off unless the transport has turned it on for the request that the
//! thread serves. While it is off, a mark costs one test of a thread-local flag. What other threads do for a
//! request belongs to the phase that waits for them.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::time::monotonic_ns;

/// How time is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Everything that is not marked: decoding, deciding, locks, sending the reply.
    Own = 0,
    /// Rows, the planner, the log.
    Names = 1,
    /// Computing on data: hashes, checksums.
    Blob = 2,
    /// The node's disk: open packs.
    Cache = 3,
    /// Other nodes.
    Peer = 4,
    /// The permanent storage of blobs.
    Origin = 5,
}

/// How many phases there are.
pub const PHASES: usize = 6;

/// Nanoseconds for each phase, by its number.
pub type Spent = [u64; PHASES];

struct Clock {
    on: Cell<bool>,
    phase: Cell<u8>,
    since: Cell<u64>,
    spent: Cell<Spent>,
}

thread_local! {
    static CLOCK: Clock = const {
        Clock { on: Cell::new(false), phase: Cell::new(0), since: Cell::new(0), spent: Cell::new([0; PHASES]) }
    };
}

impl Clock {
    /// Adds the time since the last change to the phase that ends, and begins another.
    fn turn(&self, now: u64, to: u8) {
        let mut spent = self.spent.get();
        spent[usize::from(self.phase.get()) % PHASES] += now.saturating_sub(self.since.get());
        self.spent.set(spent);
        self.since.set(now);
        self.phase.set(to);
    }
}

/// Turns this thread's clock on, from zero. `now` is a value of [`monotonic_ns`].
pub fn start(now: u64) {
    CLOCK.with(|clock| {
        clock.on.set(true);
        clock.phase.set(Phase::Own as u8);
        clock.since.set(now);
        clock.spent.set([0; PHASES]);
    });
}

/// Turns it off, and returns the time of each phase. All are zero if it was off.
pub fn stop(now: u64) -> Spent {
    CLOCK.with(|clock| {
        if !clock.on.replace(false) {
            return [0; PHASES];
        }
        clock.turn(now, Phase::Own as u8);
        clock.spent.get()
    })
}

/// Marks the time until the scope is dropped.
#[inline]
#[must_use = "the phase ends when this is dropped"]
pub fn enter(phase: Phase) -> Scope {
    let before = CLOCK.with(|clock| clock.on.get().then(|| switch(clock, phase as u8)));
    Scope { before, _of_this_thread: PhantomData }
}

#[cold]
fn switch(clock: &Clock, to: u8) -> u8 {
    let before = clock.phase.get();
    // Entering the same phase changes nothing, so the clock need not be read.
    if before != to {
        clock.turn(monotonic_ns(), to);
    }
    before
}

/// A marked stretch of time.
#[derive(Debug)]
pub struct Scope {
    before: Option<u8>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            leave(before);
        }
    }
}

#[cold]
fn leave(before: u8) {
    CLOCK.with(|clock| {
        if clock.on.get() {
            switch(clock, before);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(ms: u64) {
        std::thread::sleep(std::time::Duration::from_millis(ms));
    }

    #[test]
    fn time_belongs_to_the_innermost_phase() {
        let begun = monotonic_ns();
        start(begun);
        {
            let _names = enter(Phase::Names);
            pause(2);
            {
                let _cache = enter(Phase::Cache);
                let _again = enter(Phase::Cache);
                pause(4);
            }
            pause(2);
        }
        pause(1);
        let ended = monotonic_ns();
        let spent = stop(ended);
        let [own, names, blob, cache, peer, origin] = spent;
        assert!(names >= 4_000_000 && cache >= 4_000_000 && own >= 1_000_000, "{spent:?}");
        assert_eq!((blob, peer, origin), (0, 0, 0));
        assert_eq!(spent.iter().sum::<u64>(), ended - begun, "every nanosecond belongs to a phase");
    }

    #[test]
    fn off_nothing_is_measured_and_scopes_may_outlive_the_clock() {
        let early = enter(Phase::Origin);
        assert_eq!(early.before, None);
        start(monotonic_ns());
        drop(early);
        let late = enter(Phase::Blob);
        let spent = stop(monotonic_ns());
        assert_eq!(spent[Phase::Origin as usize], 0);
        drop(late);
        assert_eq!(stop(monotonic_ns()), [0; PHASES]);
        start(0);
        assert_eq!(stop(7), [7, 0, 0, 0, 0, 0], "nothing is left of the previous measurement");
    }

    #[test]
    fn a_panic_ends_its_phases() {
        start(monotonic_ns());
        let work = || {
            let _names = enter(Phase::Names);
            panic!("as a handler might");
        };
        assert!(std::panic::catch_unwind(work).is_err());
        CLOCK.with(|clock| assert_eq!(clock.phase.get(), Phase::Own as u8));
        stop(monotonic_ns());
    }
}
