//! The gate: who reads overlay and database beside one another is inside; whoever changes the database waits until those are out who were
//! inside before, and keeps nobody from entering.
//!
//! Two counters take turns. A reader counts itself in the one of the current phase; [`Gate::wait`] begins the next phase and waits for the other to
//! reach nought. So a scan of minutes delays a drain, and no other reader or commit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long to sleep between looks. Most readers are out within microseconds.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Looks before sleeping.
const LOOKS: u32 = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Gate {
    /// Only rises.
    phase: AtomicU64,
    inside: [AtomicU64; 2],
}

/// Somebody is inside as long as this lives.
pub(super) struct Inside<'a>(&'a AtomicU64);

impl Gate {
    /// Goes in, at once.
    pub(super) fn enter(&self) -> Inside<'_> {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let counter = &self.inside[(phase % 2) as usize];
            counter.fetch_add(1, Ordering::SeqCst);
            // Had the phase ended in between, nobody would be waiting for this counter.
            let entered = Inside(counter);
            if self.phase.load(Ordering::SeqCst) == phase {
                return entered;
            }
        }
    }

    /// Waits until everyone is out who was inside when this began. One caller at a time.
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
