//! Uploads: every blob that is stored here reaches the origin, however long that takes.
//!
//! ```text
//!   NodeCache ──note──► a link in VOLUME/upload ──► queue ──► workers ──► origin ──► the link is removed
//!                              │                     ▲           │ failed
//!                              └── listed when the   └───────────┘
//!                                  node is opened
//! ```
//!
//! **Nothing is dropped.** A note, a link to its bytes, records a blob before it counts as stored. The link
//! is removed only when the origin has the blob. So after any end of this program, the next run finds the
//! outstanding uploads in the folder. Uploading a blob twice is harmless, because it is the same blob. A
//! failed attempt is repeated without end. An unresponsive origin, a revoked key and a missing bucket differ
//! only in how often. One line reports the start of each trouble, and one its end.
//!
//! **What is sent was verified.** A worker reads the whole noted file and compares its hash with the blob's
//! name. So a damaged file on this disk never reaches the origin.
//!
//! **It is bounded.** Each worker holds one blob, and there are few workers. Waiting blobs are bytes on the
//! disk, up to a budget. Beyond it the [`blob::Gate`] is closed: writers wait for a while and are then
//! refused. Reads, removals and operations that make room do not pass the gate.

mod gate;
mod notes;
mod queue;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{BlobId, Deadline, Timestamp, time};
use blob::{BlobError, Origin, Sums};
use parking_lot::{Condvar, Mutex};

use crate::{Pending, Pinned, Report};
use gate::Door;
use notes::Notes;
use queue::{Event, Queue};
pub use queue::{Trouble, Waiting};

/// Tells whether anything refers to a blob.
type Needed = Box<dyn Fn(&BlobId) -> bool + Send + Sync>;

/// How often [`Uploads::wait`] reports progress.
const TICK: Duration = Duration::from_millis(200);

/// How uploads are done.
#[derive(Clone, Copy, Debug)]
pub struct UploadOptions {
    /// Blobs uploaded at a time. 0 for a node that uploads nothing.
    pub workers: usize,
    /// Bytes that may wait for the origin. Beyond that, writers wait.
    pub budget: u64,
    /// Bytes of the disk that must stay free while anything waits for the origin.
    pub floor: u64,
    /// How long a writer waits.
    pub patience: Duration,
}

impl Default for UploadOptions {
    fn default() -> UploadOptions {
        UploadOptions { workers: 8, budget: u64::MAX, floor: 0, patience: Duration::from_secs(30) }
    }
}

/// The state of uploads.
#[derive(Clone, Debug, Default)]
pub struct UploadStats {
    /// Blobs that the origin does not have yet.
    pub pinned: Pinned,
    /// Since when the oldest of these waits.
    pub oldest: Option<Timestamp>,
    /// Why its last attempt failed, if it did.
    pub oldest_failure: Option<String>,
    /// Blobs being sent at the moment.
    pub under_way: u64,
    /// Blobs that cannot be read on this disk.
    pub unreadable: u64,
    /// Since the node was opened: blobs sent, and their bytes.
    pub sent_blobs: u64,
    /// See `sent_blobs`.
    pub sent_bytes: u64,
    /// Blobs that the origin turned out to have already.
    pub found_blobs: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// What keeps uploads from succeeding.
    pub trouble: Option<Trouble>,
    /// Writers that wait because too much is not uploaded.
    pub writers_waiting: u64,
    /// Writes refused for that reason.
    pub writes_refused: u64,
}

struct State {
    queue: Queue,
    /// Number of threads.
    workers: usize,
    stop: bool,
}

/// State shared by the workers.
struct Shared {
    notes: Notes,
    remote: Arc<dyn Origin>,
    options: UploadOptions,
    report: Report,
    /// Only the lock of the notes may be taken while this one is held. Never held during network I/O.
    state: Mutex<State>,
    /// Workers wait here.
    work: Condvar,
    /// Callers that wait for uploads to finish wait here.
    moved: Condvar,
    /// Bytes pinned, readable without the lock.
    pinned_bytes: AtomicU64,
    door: Door,
    needed: OnceLock<Needed>,
}

/// The uploads of a node. See the [module](self).
pub struct Uploads {
    shared: Arc<Shared>,
}

impl Uploads {
    /// Opens the folder of notes and resumes the uploads in it. Creates the folder if it is absent.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(
        dir: &Path,
        remote: Arc<dyn Origin>,
        options: UploadOptions,
        report: Report,
    ) -> io::Result<Uploads> {
        let notes = Notes::open(dir)?;
        let mut queue = Queue::new(options.workers);
        for left in notes.list(options.workers > 0)? {
            queue.note(left.id, left.size, left.since, true);
        }
        let shared = Arc::new(Shared {
            notes,
            remote,
            options,
            report,
            pinned_bytes: AtomicU64::new(queue.pinned().bytes),
            state: Mutex::new(State { queue, workers: 0, stop: false }),
            work: Condvar::new(),
            moved: Condvar::new(),
            door: Door::new(),
            needed: OnceLock::new(),
        });
        shared.staff(&mut shared.state.lock());
        Ok(Uploads { shared })
    }

    /// Sets the function that tells whether anything refers to a blob. A power cut can leave a note whose
    /// bytes never reached the disk. Then nothing refers to the blob either, and the note is removed. While
    /// the function is not set, such a note stays.
    pub fn ask_whether_needed(&self, needed: impl Fn(&BlobId) -> bool + Send + Sync + 'static) {
        if self.shared.needed.set(Box::new(needed)).is_ok() && self.stats().unreadable > 0 {
            self.hurry();
        }
    }

    /// The state of uploads.
    pub fn stats(&self) -> UploadStats {
        let state = self.shared.state.lock();
        let (queue, door) = (&state.queue, &self.shared.door);
        let counts = queue.counts();
        UploadStats {
            pinned: queue.pinned(),
            oldest: queue.oldest(),
            oldest_failure: queue.oldest_failure(),
            under_way: queue.under_way() as u64,
            unreadable: queue.unreadable(),
            sent_blobs: counts.sent_blobs,
            sent_bytes: counts.sent_bytes,
            found_blobs: counts.found_blobs,
            failures: counts.failures,
            trouble: queue.trouble().cloned(),
            writers_waiting: door.waiting(),
            writes_refused: door.refused(),
        }
    }

    /// Blobs that the origin does not have yet, oldest first, at most `limit` of them.
    pub fn waiting(&self, limit: usize) -> Vec<Waiting> {
        self.shared.state.lock().queue.first(limit)
    }

    /// Retries everything now, without the remaining wait times.
    pub fn hurry(&self) {
        let mut state = self.shared.state.lock();
        state.queue.hurry();
        self.shared.staff(&mut state);
    }

    /// Waits until all blobs noted so far are in the origin. Calls `tick` a few times a second with what is
    /// left.
    ///
    /// # Errors
    /// `Unavailable`, with the reason, if that takes longer than `patience`.
    pub fn wait(&self, patience: Duration, tick: &mut dyn FnMut(Pinned)) -> Result<(), BlobError> {
        let began = time::monotonic();
        let deadline = Deadline::current().within(patience);
        let mut state = self.shared.state.lock();
        let mark = state.queue.mark();
        while !state.queue.is_settled(mark) {
            let left = state.queue.left(mark);
            let waited = time::monotonic().saturating_duration_since(began);
            if state.stop || deadline.is_over() {
                return Err(BlobError::Unavailable(behind(left, waited, state.queue.trouble())));
            }
            parking_lot::MutexGuard::unlocked(&mut state, || tick(left));
            if !state.queue.is_settled(mark) {
                self.shared.moved.wait_for(&mut state, TICK.min(deadline.left()));
            }
        }
        Ok(())
    }

    /// Begins no further upload, and waits at most `patience` for those in flight. The next open finds what
    /// is left. Returns how much that is.
    pub fn close(&self, patience: Duration) -> Pinned {
        let deadline = Deadline::current().within(patience);
        let mut state = self.shared.state.lock();
        state.stop = true;
        self.shared.work.notify_all();
        self.shared.moved.notify_all();
        while state.workers > 0 && !deadline.is_over() {
            self.shared.moved.wait_for(&mut state, deadline.left());
        }
        state.queue.pinned()
    }
}

/// The error text: what is left, and why.
fn behind(left: Pinned, waited: Duration, trouble: Option<&Trouble>) -> String {
    let mib = left.bytes.div_ceil(1 << 20);
    let why = match trouble {
        Some(Trouble { refused: true, why, .. }) => format!("it refuses them: {why}"),
        Some(Trouble { why, .. }) => format!("it does not answer: {why}"),
        None => "they are still being sent".to_owned(),
    };
    format!("{} blobs ({mib} MiB) are not in the origin after {} s: {why}", left.blobs, waited.as_secs())
}

impl Drop for Uploads {
    /// As after a kill: no worker begins another upload.
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.work.notify_all();
        self.shared.moved.notify_all();
    }
}

impl Pending for Uploads {
    fn note(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.queue.wants(id) {
            // The noted file may be damaged since. `file` was just compared with its sums.
            if !shared.notes.holds(id, file)? {
                shared.notes.link(id, file)?;
                state.queue.is_readable(id);
                shared.staff(&mut state);
            }
            return Ok(());
        }
        // Under the lock, because the end of an attempt for the same blob removes its note.
        shared.notes.link(id, file)?;
        state.queue.note(*id, u64::from(sums.size()), time::now(), false);
        shared.count(&state);
        shared.staff(&mut state);
        Ok(())
    }

    fn is_pending(&self, id: &BlobId) -> bool {
        self.shared.state.lock().queue.has(id)
    }

    fn forget(&self, id: &BlobId) -> Result<(), BlobError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.queue.wants(id) {
            shared.notes.unlink(id)?;
        }
        state.queue.forget(id);
        shared.count(&state);
        shared.moved.notify_all();
        Ok(())
    }

    fn doubt(&self, id: &BlobId) {
        self.shared.state.lock().queue.doubt(id);
    }

    fn file(&self, id: &BlobId) -> Option<PathBuf> {
        let state = self.shared.state.lock();
        state.queue.wants(id).then(|| self.shared.notes.path(id))
    }

    fn list(&self) -> Vec<(BlobId, u64)> {
        self.shared.state.lock().queue.list()
    }

    fn pinned(&self) -> Pinned {
        self.shared.state.lock().queue.pinned()
    }

    fn sync(&self) -> Result<(), BlobError> {
        Ok(self.shared.notes.sync()?)
    }

    fn settle(&self, patience: Duration) -> Result<(), BlobError> {
        self.wait(patience, &mut |_| ())
    }
}

impl Shared {
    /// Updates the number that is read without the lock.
    fn count(&self, state: &State) {
        self.pinned_bytes.store(state.queue.pinned().bytes, Ordering::Release);
    }

    /// Reports an event to the operator.
    fn say(&self, event: &Event) {
        let left = || {
            let pinned = self.state.lock().queue.pinned();
            format!("{} blobs ({} MiB)", pinned.blobs, pinned.bytes.div_ceil(1 << 20))
        };
        (self.report)(&match event {
            Event::Trouble(Trouble { refused: true, why, .. }) => format!(
                "the origin refuses uploads: {why}; {} wait here and are tried again, nothing is dropped",
                left()
            ),
            Event::Trouble(Trouble { why, .. }) => format!(
                "the origin does not answer: {why}; {} wait here and are tried again, nothing is dropped",
                left()
            ),
            Event::Over(trouble) => {
                let ago = time::now().0.saturating_sub(trouble.since.0) / 1_000_000_000;
                format!("the origin takes uploads again, after {ago} s; {} to go", left())
            }
            Event::Unreadable(id, why) => format!(
                "blob {id} cannot be uploaded: {why}; it is kept and tried again, and covey fsck says which files it holds"
            ),
        });
    }
}
