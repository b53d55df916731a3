//! The queue of inodes to reap: it gathers them into batches, and slows down unlinks while it is too long.

use std::sync::Arc;
use std::time::Duration;

use base::Ino;
use hashbrown::HashSet;
use parking_lot::{Condvar, Mutex};

/// Inodes reaped between two checks for other work.
const BATCH: usize = 512;
/// How long inodes are gathered before they are reaped, unless they fill a batch. So a loop of unlinks does
/// not pay for one wake-up of the reaper per file.
const GATHER: Duration = Duration::from_millis(20);
/// Unlinks wait while more inodes than this are to be reaped, so that dead rows do not pile up.
const MANY: usize = 100_000;

#[derive(Default)]
struct Queue {
    inos: Vec<Ino>,
    /// The reaper is working on a batch.
    busy: bool,
    stop: bool,
}

/// The inodes to reap.
pub(crate) struct Reaper {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Notified when some were reaped.
    less: Condvar,
    /// Of a shared volume: inodes without a name that this node held until just now.
    let_go: Mutex<HashSet<Ino>>,
    /// See [`crate::volume::Volume::asks_the_kernel`].
    kernel: Mutex<Option<Arc<dyn Forgets>>>,
}

/// What remembers inodes for a volume: the kernel that has it mounted.
pub trait Forgets: Send + Sync {
    /// Asks it to forget these inodes, unless programs use them. Does not wait.
    fn forget(&self, inos: Vec<Ino>);
}

impl Reaper {
    pub(crate) fn new() -> Reaper {
        Reaper {
            queue: Mutex::default(),
            work: Condvar::new(),
            less: Condvar::new(),
            let_go: Mutex::default(),
            kernel: Mutex::default(),
        }
    }

    /// What is asked from now on by [`Reaper::ask`].
    pub(super) fn set_kernel(&self, kernel: Arc<dyn Forgets>) {
        *self.kernel.lock() = Some(kernel);
    }

    /// Asks the kernel to forget these inodes, unless programs use them.
    pub(super) fn ask(&self, inos: Vec<Ino>) {
        let kernel = self.kernel.lock().clone();
        if let Some(kernel) = kernel.filter(|_| !inos.is_empty()) {
            kernel.forget(inos);
        }
    }

    /// Queues inodes that have no name, or lost their last reference. Never waits.
    pub(crate) fn push(&self, inos: &[Ino]) {
        let mut queue = self.queue.lock();
        let were = queue.inos.len();
        queue.inos.extend_from_slice(inos);
        let are = queue.inos.len();
        if !queue.busy && (were == 0 || were < BATCH && are >= BATCH) {
            self.work.notify_one();
        }
    }

    /// Forgets what is queued.
    pub(crate) fn clear(&self) {
        self.queue.lock().inos.clear();
    }

    /// Notes that this node no longer holds these inodes without a name, and that all others can see that.
    pub(super) fn let_go(&self, inos: impl IntoIterator<Item = Ino>) {
        self.let_go.lock().extend(inos);
    }

    /// Takes the inodes that this node let go, and that nothing was tried with since.
    pub(crate) fn take_let_go(&self) -> HashSet<Ino> {
        std::mem::take(&mut *self.let_go.lock())
    }

    /// Whether there are such inodes.
    pub(super) fn has_let_go(&self) -> bool {
        !self.let_go.lock().is_empty()
    }

    /// Ends the gathering at once.
    pub(crate) fn hurry(&self) {
        self.work.notify_one();
    }

    /// Waits a little while far too many inodes are queued.
    pub(crate) fn hold_back(&self) {
        let mut queue = self.queue.lock();
        if queue.inos.len() > MANY && !queue.stop {
            self.less.wait_for(&mut queue, Duration::from_millis(100));
        }
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.work.notify_all();
        self.less.notify_all();
    }

    /// Whether a batch is being reaped.
    pub(crate) fn is_busy(&self) -> bool {
        self.queue.lock().busy
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.inos.is_empty() && !queue.busy
    }

    /// The next batch; none when stopped.
    pub(super) fn next(&self) -> Option<Vec<Ino>> {
        let mut queue = self.queue.lock();
        queue.busy = false;
        let mut gathered = false;
        loop {
            if queue.stop {
                return None;
            }
            if !queue.inos.is_empty() && !gathered && queue.inos.len() < BATCH {
                gathered = true;
                self.work.wait_for(&mut queue, GATHER);
                continue;
            }
            if !queue.inos.is_empty() {
                queue.busy = true;
                let from = queue.inos.len().saturating_sub(BATCH);
                let batch = queue.inos.split_off(from);
                if queue.inos.capacity() > 4 * BATCH && queue.inos.len() < queue.inos.capacity() / 4 {
                    queue.inos.shrink_to(2 * BATCH);
                }
                self.less.notify_all();
                return Some(batch);
            }
            self.work.wait(&mut queue);
        }
    }
}
