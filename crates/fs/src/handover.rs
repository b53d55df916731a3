//! What a volume leaves to its successor, when it is closed and opened again below a kernel that goes on: a
//! volume of one node that becomes a shared one, or that stays what it was.
//!
//! ```text
//!   Volume::hand_over ──► Handed ── references ──► Options::held    before the threads start: none of these
//!         │                    │                                     inodes is deleted
//!         ▼                    └─── locks ───────► Volume::adopt_*   before other machines may take them
//!   Volume::close
//! ```
//!
//! An inode without a name stays as a row of the names. Nothing else of an open file is in memory: everything
//! about it follows from its inode's number.

use std::sync::Arc;

use base::{Ino, time};
use parking_lot::Mutex;

use crate::api::{Filesystem, Lock, Result};
use crate::errno::Errno;
use crate::locks::own::Waiting;
pub use crate::refs::Held;
use crate::volume::Volume;

/// How long a volume waits until its inodes without a name are deleted. The rest is left to its successor.
const REAP_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// What was handed over.
#[derive(Default)]
pub struct Handed {
    held: Held,
    locks: Vec<(Ino, Lock)>,
    waiting: Mutex<Vec<Waiting>>,
}

impl Handed {
    /// The references, for [`crate::volume::Options::held`].
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// How many inodes the kernel refers to, how many locks are held, and how many requests wait for one.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.held.0.len(), self.locks.len(), self.waiting.lock().len())
    }
}

impl Volume {
    /// Takes out what a successor needs. The kernel sends nothing from now on, and [`Volume::close`] follows.
    pub fn hand_over(&self) -> Handed {
        let core = &self.core;
        let began = time::monotonic();
        // From here on it would take inodes for deleted that the kernel refers to.
        core.reaper.stop();
        core.reaper.clear();
        while core.reaper.is_busy() && time::monotonic().saturating_duration_since(began) < REAP_PATIENCE {
            core.sweep.pause(std::time::Duration::from_millis(5));
        }
        let held = Held(Arc::new(core.refs.take()));
        let (locks, waiting) = core.own_locks.as_ref().map(|locks| locks.take()).unwrap_or_default();
        Handed { held, locks, waiting: Mutex::new(waiting) }
    }

    /// Takes the locks that were handed over.
    ///
    /// # Errors
    /// The first error. It can be called again.
    pub fn adopt_locks(&self, handed: &Handed) -> Result<()> {
        for (ino, lock) in &handed.locks {
            match self.set_lock(*ino, lock) {
                Ok(()) => {}
                Err(Errno::EAGAIN) => {
                    (self.core.options.report)(&format!(
                        "a lock on {ino:?} could not be handed over: another node has it"
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The requests that wait for a lock go on waiting here.
    pub fn adopt_waiting(&self, handed: &Handed) {
        let waiting = std::mem::take(&mut *handed.waiting.lock());
        for Waiting { ino, lock, wait, answer } in waiting {
            self.wait_lock(ino, &lock, wait, answer);
        }
    }
}
