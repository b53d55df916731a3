//! The gate: a reader that reads the overlay and then the database is inside. Before the database changes,
//! the drain waits until all readers that were inside have left. It keeps no new reader from entering.
//!
//! Two counters take turns. A reader counts itself in the counter of the current phase. [`Gate::wait`] begins
//! the next phase and waits for the other counter to reach zero. So a scan of minutes delays a drain, but no
//! other reader or commit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long to sleep between checks. Most readers leave within microseconds.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Checks before sleeping.
const LOOKS: u32 = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Gate {
    /// Never decreases.
    phase: AtomicU64,
    inside: [AtomicU64; 2],
}

/// The caller is inside as long as this lives.
pub(super) struct Inside<'a>(&'a AtomicU64);

impl Gate {
    /// Enters without waiting.
    pub(super) fn enter(&self) -> Inside<'_> {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let counter = &self.inside[(phase % 2) as usize];
            counter.fetch_add(1, Ordering::SeqCst);
            // If the phase had ended in between, a waiter might not wait for this counter.
            let entered = Inside(counter);
            if self.phase.load(Ordering::SeqCst) == phase {
                return entered;
            }
        }
    }

    /// Waits until all readers that were inside at the call have left. One caller at a time.
    pub(super) fn wait(&self) {
        let phase = self.phase.fetch_add(1, Ordering::SeqCst);
        let counter = &self.inside[(phase % 2) as usize];
        let mut looks = 0;
        while counter.load(Ordering::SeqCst) > 0 {
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
