//! The state of a volume's publications: whose turn it is, whether deletions are paused, and when holds were
//! last looked at.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// The state of publications. See [the module above](super).
pub(crate) struct Publishing {
    /// Held by the one publication in progress.
    pub(super) turn: Mutex<()>,
    /// Changed while `Core::blobs` is held exclusively.
    pub(super) paused: AtomicUsize,
    /// Some holds may have ended.
    pub(crate) ended: AtomicBool,
    /// When the holds were last scanned.
    pub(crate) looked: Mutex<Option<Instant>>,
}

impl Default for Publishing {
    fn default() -> Publishing {
        Publishing {
            turn: Mutex::new(()),
            paused: AtomicUsize::new(0),
            // The previous run may have left some.
            ended: AtomicBool::new(true),
            looked: Mutex::default(),
        }
    }
}

impl Publishing {
    /// Whether packs and blobs have to stay as they are.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire) > 0
    }
}
