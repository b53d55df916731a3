//! Imports into a volume. The source is a folder or an archive. The sink is the daemon of a mount, the mount
//! itself, or a volume that is not mounted. [`crate::export`] adds other sources and sinks for the same
//! queue.
//!
//! ```text
//!   folder ──┐                        ┌── remote  (a mounted volume: its daemon does it, for root)
//!            ├── items, with contents ┼── place   (a mounted path: system calls below an open folder)
//!   archive ─┘                        └── direct  (a volume that is not mounted: the filesystem itself)
//! ```
//!
//! [`archive::import`] has the items and the last of these sinks, which is also what a daemon uses.
//!
//! The source reads on one thread and the sink writes on another. Contents travel in pieces through a short
//! queue. The first Ctrl-C stops the source, and what has arrived is completed. The second one ends the
//! program.

pub mod folder;
pub mod place;
pub mod remote;
pub mod stop;
pub mod tar;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::answers::Skipped;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use archive::import::{LeftOut, Sink, Step, Taken};
use serde::Serialize;

use crate::term::{Progress, Term};
use stop::Stop;

/// The progress of a source.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of items that a quick count found, 0 while it is not known.
    pub expected: AtomicU64,
    /// How far it is, in the unit of `expected`.
    pub at: AtomicU64,
}

/// The source's end: the queue, and the list of items that were left out.
pub struct Feed {
    queue: SyncSender<Step>,
    skipped: Arc<Mutex<LeftOut>>,
    /// See [`Counters`].
    pub counters: Arc<Counters>,
}

/// The sink has ended because it failed. The user sees the sink's failure.
#[derive(Debug)]
pub struct Hangup;

impl Feed {
    /// Sends one step.
    pub fn send(&self, step: Step) -> std::result::Result<(), Hangup> {
        self.queue.send(step).map_err(|_| Hangup)
    }

    /// Notes an item that is left out.
    pub fn skip(&self, path: &Path, why: impl Into<String>) {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).add(path, why);
    }
}

/// A source of items.
pub trait Source: Send {
    /// Sends everything to the feed. An error ends the import.
    fn run(&mut self, feed: &Feed) -> Result<()>;
}

/// The result of an import.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Items created: files, folders, links, nodes.
    pub files: u64,
    /// Bytes of contents written, holes not counted.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// What was left out.
    pub skipped: Vec<Skipped>,
}

/// What a person sees of it and can do to it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The name beside the progress.
    pub label: &'a str,
    /// The terminal.
    pub term: Term,
    /// How it is stopped. None: the first signal ends the program.
    pub stop: Option<&'a Stop>,
}

/// Transfers everything from the source to the sink.
pub fn run(mut source: Box<dyn Source>, sink: &mut dyn Sink, seen: Seen<'_>) -> Result<Summary> {
    let counters = Arc::new(Counters::default());
    let skipped = Arc::new(Mutex::new(LeftOut::default()));
    let (queue, steps) = sync_channel(64);
    let feed = Feed { queue, skipped: skipped.clone(), counters: counters.clone() };
    let reader = base::thread::spawn("covey-read", move || source.run(&feed))
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    let mut progress = seen.term.progress(seen.label);
    let mut taken = Taken::default();
    let written = drain(&steps, sink, &counters, &mut progress, (&mut taken, seen.stop));
    drop(steps);
    let read = match &written {
        // A source that has not ended may be waiting for its input.
        Ok(Ended::Stopped) | Err(_) => Ok(()),
        Ok(Ended::Whole) => {
            reader.join().unwrap_or_else(|_| Err(Failure::new("io", "the thread that reads failed")))
        }
    };
    progress.set(u64::MAX, |_| "making it durable ...".to_owned());
    let outcome = match (written, read) {
        (Ok(Ended::Whole), Ok(())) => sink.finish(),
        (Ok(Ended::Stopped), _) => {
            progress.done();
            return Err(sink.stop().err().unwrap_or_else(|| stopped(taken)));
        }
        // A failed sink makes the source stop. So the sink's failure is the cause and is reported first. What
        // is there is completed as far as that is possible.
        (Err(failure), _) | (Ok(_), Err(failure)) => {
            let _ = sink.stop();
            Err(failure)
        }
    };
    let seconds = progress.elapsed().as_secs_f64();
    progress.done();
    outcome?;
    let mut skipped = skipped.lock().unwrap_or_else(PoisonError::into_inner).take();
    skipped.extend(sink.left_out());
    Ok(Summary { files: taken.files, bytes: taken.bytes, seconds, skipped })
}

fn stopped(taken: Taken) -> Failure {
    let there = format!("{} files with {} are there, each one whole", count(taken.files), bytes(taken.bytes));
    let failure = Failure::new("interrupted", "stopped before the end of the source").why(there);
    Failure { status: 130, ..failure.next("to get everything, start it again with --overwrite") }
}

/// How the queue ended.
enum Ended {
    Whole,
    Stopped,
}

/// How often a sink that waits for steps looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

fn drain(
    steps: &Receiver<Step>,
    sink: &mut dyn Sink,
    counters: &Counters,
    progress: &mut Progress,
    (taken, stop): (&mut Taken, Option<&Stop>),
) -> Result<Ended> {
    loop {
        if stop.is_some_and(Stop::is_asked) {
            return Ok(Ended::Stopped);
        }
        match steps.recv_timeout(LOOK) {
            Ok(step) => taken.pass(step, sink)?,
            Err(RecvTimeoutError::Timeout) => sink.idle()?,
            Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Whole),
        }
        let expected = counters.expected.load(Ordering::Relaxed);
        if expected > 0 {
            progress.total(expected);
        }
        progress.set_files(counters.at.load(Ordering::Relaxed), taken.files, taken.bytes);
    }
}
