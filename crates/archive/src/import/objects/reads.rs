//! Reads in parallel, whose results come in the order in which they were asked for.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use api::error::{Failure, Result};
use parking_lot::Mutex;

use super::{Bucket, Object, Unread};

/// Reads at a time.
const THREADS: usize = 16;
/// Parts that are being read or wait for their turn: more than threads, so that one slow read does not stop
/// the others.
const PARTS: usize = 4 * THREADS;
/// The most bytes of these parts together. One part is always allowed.
pub(super) const WINDOW: u64 = 64 << 20;

/// A range of an object.
pub(super) struct Part {
    pub object: Arc<Object>,
    pub range: Range<u64>,
}

impl Part {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

type Read = std::result::Result<Vec<u8>, Unread>;

struct Job {
    object: Arc<Object>,
    range: Range<u64>,
    done: SyncSender<Read>,
}

/// The threads that read, and the parts that they were asked for.
pub(super) struct Reads {
    jobs: Sender<Job>,
    asked: VecDeque<(Part, Receiver<Read>)>,
    bytes: u64,
}

impl Reads {
    /// Starts the threads. They end when this is dropped, each after its last read.
    pub fn start(bucket: &Arc<dyn Bucket>) -> Result<Reads> {
        let (jobs, waiting) = channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..THREADS {
            let (bucket, waiting) = (bucket.clone(), waiting.clone());
            let work = move || {
                loop {
                    // The lock is held while this thread waits. The others wait for the lock then.
                    let job = waiting.lock().recv();
                    let Ok(Job { object, range, done }) = job else { return };
                    // If nobody waits for it any more, the import has ended.
                    let _ = done.send(bucket.read(&object, range));
                }
            };
            base::thread::spawn("covey-get", work)
                .map_err(|error| Failure::io("cannot start a thread", &error))?;
        }
        Ok(Reads { jobs, asked: VecDeque::new(), bytes: 0 })
    }

    /// Whether one more part may be asked for.
    pub fn has_room(&self) -> bool {
        self.asked.is_empty() || (self.asked.len() < PARTS && self.bytes < WINDOW)
    }

    /// Asks for a part.
    pub fn ask(&mut self, part: Part) {
        let (done, read) = sync_channel(1);
        let job = Job { object: part.object.clone(), range: part.range.clone(), done };
        self.bytes += part.len();
        // Without threads the receiver reports it.
        let _ = self.jobs.send(job);
        self.asked.push_back((part, read));
    }

    /// Waits for the part that was asked for first. None if none is left.
    pub fn next(&mut self) -> Option<(Part, Read)> {
        let (part, read) = self.asked.pop_front()?;
        self.bytes -= part.len();
        let ended = || Unread::Store(Failure::new("io", "a thread that reads objects failed"));
        Some((part, read.recv().unwrap_or_else(|_| Err(ended()))))
    }
}
