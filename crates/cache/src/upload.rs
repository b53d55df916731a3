//! Uploads: what is stored here reaches the origin, however long that takes.
//!
//! ```text
//!   NodeCache ──note──► a link in VOLUME/upload ──► queue ──► workers ──► origin ──► the link goes
//!                              │                     ▲           │ failed
//!                              └── listed when the   └───────────┘
//!                                  node is opened
//! ```
//!
//! **Nothing is dropped.** A blob is noted by a link to its bytes before it counts as stored, and the link goes only when the origin has the
//! blob. So whatever ends this program, the next one finds in the folder what is left to be done; a blob that is uploaded twice is the same
//! blob. An attempt that fails is made again, for ever: the origin that does not answer, the key that was withdrawn and the bucket that is
//! gone differ in how often, and each is said in one line when it begins and one when it is over.
//!
//! **What is sent has been checked.** A worker reads the noted file whole and compares its hash with the blob's name: rot on this disk stays here.
//!
//! **It is bounded.** A worker holds one blob, and there are a few workers. What waits is bytes on the disk, up to a budget; from there on
//! the [`blob::Gate`] is closed, and who writes waits for a while and is then refused. Reads, removals and what makes room do not pass the gate.

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
use std::time::{Duration, Instant};

use base::{BlobId, Timestamp, time};
use blob::{BlobError, Origin, Sums};
use parking_lot::{Condvar, Mutex};

use crate::{Pending, Pinned, Report};
use gate::Door;
use notes::Notes;
use queue::{Event, Queue};
pub use queue::{Trouble, Waiting};

/// Whether anything refers to a blob.
type Needed = Box<dyn Fn(&BlobId) -> bool + Send + Sync>;

/// How often those who wait for uploads are told how far it is.
const TICK: Duration = Duration::from_millis(200);

/// How uploads are done.
#[derive(Clone, Copy, Debug)]
pub struct UploadOptions {
    /// Blobs uploaded at a time; 0: none, for a node that is only looked at.
    pub workers: usize,
    /// Bytes that may wait for the origin; then writers wait.
    pub budget: u64,
    /// Bytes of the disk that are to stay free while anything waits for the origin.
    pub floor: u64,
    /// How long a writer waits.
    pub patience: Duration,
}

impl Default for UploadOptions {
    fn default() -> UploadOptions {
        UploadOptions { workers: 8, budget: u64::MAX, floor: 0, patience: Duration::from_secs(30) }
    }
}

/// How uploads stand.
#[derive(Clone, Debug, Default)]
pub struct UploadStats {
    /// What the origin does not have yet.
    pub pinned: Pinned,
    /// Since when the oldest of that waits.
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
    /// Blobs that the origin turned out to have.
    pub found_blobs: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// What keeps uploads from succeeding.
    pub trouble: Option<Trouble>,
    /// Writers that wait because too much is not uploaded.
    pub writers_waiting: u64,
    /// Writes refused for that.
    pub writes_refused: u64,
}

struct State {
    queue: Queue,
    /// Threads.
    workers: usize,
    stop: bool,
}

/// What the workers share.
struct Shared {
    notes: Notes,
    remote: Arc<dyn Origin>,
    options: UploadOptions,
    report: Report,
    /// Taken before no other lock of ours but the notes' own, and never held while the network works.
    state: Mutex<State>,
    /// Workers wait here.
    work: Condvar,
    /// Here waits who waits for uploads to be done.
    moved: Condvar,
    /// Bytes pinned, to be looked at without the lock.
    pinned_bytes: AtomicU64,
    door: Door,
    needed: OnceLock<Needed>,
}

/// The uploads of a node. See the [module](self).
pub struct Uploads {
    shared: Arc<Shared>,
}

impl Uploads {
    /// Opens the folder of notes (it is made if it is absent), and goes on with what is in it.
    ///
    /// # Errors
    /// What the system says.
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

    /// Tells how to find out whether anything refers to a blob. A power cut can leave a note whose bytes never reached the disk; then nothing
    /// refers to the blob either, and the note goes. While this is not known, such a note stays.
    pub fn ask_whether_needed(&self, needed: impl Fn(&BlobId) -> bool + Send + Sync + 'static) {
        if self.shared.needed.set(Box::new(needed)).is_ok() && self.stats().unreadable > 0 {
            self.hurry();
        }
    }

    /// How things stand.
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

    /// What the origin does not have yet, oldest first; no more than so many.
    pub fn waiting(&self, limit: usize) -> Vec<Waiting> {
        self.shared.state.lock().queue.first(limit)
    }

    /// Tries everything again now, whatever it waits for.
    pub fn hurry(&self) {
        let mut state = self.shared.state.lock();
        state.queue.hurry();
        self.shared.staff(&mut state);
    }

    /// Waits until everything noted so far is in the origin. `tick` is told a few times a second what is left.
    ///
    /// # Errors
    /// `Unavailable` when that takes longer than `patience`, with the reason.
    pub fn wait(&self, patience: Duration, tick: &mut dyn FnMut(Pinned)) -> Result<(), BlobError> {
        let began = time::monotonic();
        let mut state = self.shared.state.lock();
        let mark = state.queue.mark();
        while !state.queue.is_settled(mark) {
            let left = state.queue.left(mark);
            let waited = time::monotonic().saturating_duration_since(began);
            if state.stop || waited >= patience {
                return Err(BlobError::Unavailable(behind(left, waited, state.queue.trouble())));
            }
            parking_lot::MutexGuard::unlocked(&mut state, || tick(left));
            if !state.queue.is_settled(mark) {
                self.shared.moved.wait_for(&mut state, TICK.min(patience - waited));
            }
        }
        Ok(())
    }

    /// Begins no further upload, and waits a moment for those under way. What is left is found at the next open. Answers how much that is.
    pub fn close(&self, patience: Duration) -> Pinned {
        let until = time::monotonic() + patience;
        let mut state = self.shared.state.lock();
        state.stop = true;
        self.shared.work.notify_all();
        self.shared.moved.notify_all();
        while state.workers > 0 && time::monotonic() < until {
            self.shared.moved.wait_for(&mut state, until.saturating_duration_since(time::monotonic()));
        }
        state.queue.pinned()
    }
}

/// What is left, and why.
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
            // What was noted may have rotted since; `file` was compared with its sums just now.
            if !shared.notes.holds(id, file)? {
                shared.notes.link(id, file)?;
                state.queue.is_readable(id);
                shared.staff(&mut state);
            }
            return Ok(());
        }
        // Under the lock: the end of an attempt for the same blob takes its note away.
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
    /// Brings what is looked at without the lock up to date.
    fn count(&self, state: &State) {
        self.pinned_bytes.store(state.queue.pinned().bytes, Ordering::Release);
    }

    /// Says what a person should hear of.
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

    fn now(&self) -> (Instant, Timestamp) {
        (time::monotonic(), time::now())
    }
}
