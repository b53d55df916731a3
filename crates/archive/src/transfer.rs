//! Copies everything from a source to a sink. An import and an export are each one transfer.
//!
//! The source reads on a thread of its own and the sink writes on the caller's. Contents travel in pieces
//! through a short queue. A front end gets an [`Event`] after each step, and can ask the transfer to stop.
//! What has arrived by then is completed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::answers::Skipped;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use serde::Serialize;

use crate::import::{LeftOut, Sink, Step, Taken};

/// The progress of a source.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of items that a quick count found, 0 while it is not known.
    pub expected: AtomicU64,
    /// How far it is, in the unit of `expected`.
    pub at: AtomicU64,
    /// Files that were there already, from an earlier import.
    pub already: AtomicU64,
}

/// The source's end: the queue, and the list of items that were left out.
pub struct Feed {
    queue: SyncSender<Step>,
    skipped: Arc<Mutex<LeftOut>>,
    hung_up: Arc<AtomicBool>,
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

    /// Whether the sink has ended. For sources that work for long before they send.
    pub fn is_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Relaxed)
    }

    /// Notes an item that is left out.
    pub fn skip(&self, path: &Path, why: impl Into<String>) {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).add(path, why);
    }
}

/// A source of items.
pub trait Source: Send {
    /// Sends everything to the feed. An error ends the transfer.
    fn run(&mut self, feed: &Feed) -> Result<()>;
}

/// The result of a transfer.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Items created: files, folders, links, nodes.
    pub files: u64,
    /// Bytes of contents written, holes not counted.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// Files that were there already, from an earlier import.
    pub already: u64,
    /// What was left out.
    pub skipped: Vec<Skipped>,
}

/// A request to stop. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the transfer to stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the transfer was asked to stop.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a transfer does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The transfer copies.
    Copying {
        /// How far the source is, in the unit of `expected`.
        at: u64,
        /// How far the source will go. None while that is not known.
        expected: Option<u64>,
        /// What the sink has taken.
        taken: Taken,
    },
    /// Everything was copied. The sink makes it durable.
    Syncing,
}

/// How a front end follows a transfer.
pub struct Watch<'a> {
    /// How it is stopped. None if it cannot be stopped.
    pub stop: Option<&'a Stop>,
    /// Receives the events, on the thread that called [`run`]. The transfer waits for it.
    pub event: &'a mut dyn FnMut(Event),
}

/// Transfers everything from the source to the sink.
///
/// # Errors
/// The source or the sink failed, or the transfer was stopped.
pub fn run(mut source: Box<dyn Source>, sink: &mut dyn Sink, mut watch: Watch<'_>) -> Result<Summary> {
    let began = base::time::monotonic();
    let counters = Arc::new(Counters::default());
    let skipped = Arc::new(Mutex::new(LeftOut::default()));
    let (queue, steps) = sync_channel(64);
    let hung_up = Arc::new(AtomicBool::new(false));
    let (skips, ended) = (skipped.clone(), hung_up.clone());
    let feed = Feed { queue, skipped: skips, hung_up: ended, counters: counters.clone() };
    let reader = base::thread::spawn("covey-read", move || source.run(&feed))
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    let mut taken = Taken::default();
    let written = drain(&steps, sink, &counters, &mut taken, &mut watch);
    hung_up.store(!matches!(written, Ok(Ended::Whole)), Ordering::Relaxed);
    drop(steps);
    let read = match &written {
        // A source that has not ended may be waiting for its input.
        Ok(Ended::Stopped) | Err(_) => Ok(()),
        Ok(Ended::Whole) => {
            reader.join().unwrap_or_else(|_| Err(Failure::new("io", "the thread that reads failed")))
        }
    };
    (watch.event)(Event::Syncing);
    match (written, read) {
        (Ok(Ended::Whole), Ok(())) => sink.finish()?,
        (Ok(Ended::Stopped), _) => return Err(sink.stop().err().unwrap_or_else(|| stopped(taken))),
        // A failed sink makes the source stop. So the sink's failure is the cause and is reported first. What
        // is there is completed as far as that is possible.
        (Err(failure), _) | (Ok(_), Err(failure)) => {
            let _ = sink.stop();
            return Err(failure);
        }
    }
    let seconds = (base::time::monotonic() - began).as_secs_f64();
    let mut skipped = skipped.lock().unwrap_or_else(PoisonError::into_inner).take();
    skipped.extend(sink.left_out());
    let already = counters.already.load(Ordering::Relaxed);
    Ok(Summary { files: taken.files, bytes: taken.bytes, seconds, already, skipped })
}

fn stopped(taken: Taken) -> Failure {
    let taken = taken.whole();
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
    taken: &mut Taken,
    watch: &mut Watch<'_>,
) -> Result<Ended> {
    loop {
        if watch.stop.is_some_and(Stop::is_asked) {
            return Ok(Ended::Stopped);
        }
        match steps.recv_timeout(LOOK) {
            Ok(step) => taken.pass(step, sink)?,
            Err(RecvTimeoutError::Timeout) => sink.idle()?,
            Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Whole),
        }
        let expected = counters.expected.load(Ordering::Relaxed);
        (watch.event)(Event::Copying {
            at: counters.at.load(Ordering::Relaxed),
            expected: (expected > 0).then_some(expected),
            taken: *taken,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Item, Kind};

    /// Sends a number of folders, and asks to stop before one of them.
    struct Folders(u64, Option<(u64, Stop)>);

    impl Source for Folders {
        fn run(&mut self, feed: &Feed) -> Result<()> {
            feed.counters.expected.store(self.0, Ordering::Relaxed);
            for at in 0..self.0 {
                if let Some((_, stop)) = self.1.as_ref().filter(|(when, _)| *when == at) {
                    stop.ask();
                }
                feed.counters.at.store(at, Ordering::Relaxed);
                let time = base::Timestamp::from_parts(0, 0);
                let path = format!("{at}").into();
                let kind = Kind::Dir;
                let xattrs = Vec::new();
                let item = Item { path, kind, perm: 0, uid: 0, gid: 0, atime: time, mtime: time, xattrs };
                if feed.send(Step::Item(item)).is_err() {
                    return Ok(());
                }
            }
            feed.skip(Path::new("x"), "why");
            Ok(())
        }
    }

    #[derive(Default)]
    struct Counted {
        items: u64,
        ended: Option<&'static str>,
    }

    impl Sink for Counted {
        fn item(&mut self, _: Item) -> Result<()> {
            self.items += 1;
            Ok(())
        }

        fn piece(&mut self, _: u64, _: Vec<u8>) -> Result<()> {
            Ok(())
        }

        fn end(&mut self) -> Result<()> {
            Ok(())
        }

        fn abandon(&mut self) -> Result<()> {
            Ok(())
        }

        fn finish(&mut self) -> Result<()> {
            self.ended = Some("finish");
            Ok(())
        }

        fn stop(&mut self) -> Result<()> {
            self.ended = Some("stop");
            Ok(())
        }
    }

    #[test]
    fn a_front_end_sees_the_progress_and_the_end() {
        let (mut sink, mut events) = (Counted::default(), Vec::new());
        let watch = Watch { stop: None, event: &mut |event| events.push(event) };
        let summary = run(Box::new(Folders(200, None)), &mut sink, watch).unwrap();
        assert_eq!((summary.files, summary.skipped.len()), (200, 1));
        assert_eq!((sink.items, sink.ended), (200, Some("finish")));
        let last =
            Event::Copying { at: 199, expected: Some(200), taken: Taken { files: 200, ..Taken::default() } };
        assert!(events.len() > 200 && events.ends_with(&[last, Event::Syncing]), "{events:?}");
    }

    #[test]
    fn a_transfer_that_is_stopped_completes_what_is_there() {
        let (mut sink, stop) = (Counted::default(), Stop::default());
        let watch = Watch { stop: Some(&stop), event: &mut |_| () };
        let source = Folders(100_000, Some((500, stop.clone())));
        let failure = run(Box::new(source), &mut sink, watch).unwrap_err();
        assert_eq!((&*failure.code, failure.status, sink.ended), ("interrupted", 130, Some("stop")));
        assert!((400..=501).contains(&sink.items), "{}", sink.items);
    }

    /// What was said to be there after Ctrl-C counted the file that had begun and was given up.
    #[test]
    fn regression_a_file_that_has_not_ended_is_not_there() {
        let (mut taken, mut sink) = (Taken::default(), Counted::default());
        let time = base::Timestamp::from_parts(0, 0);
        let kind = Kind::File { size: 9 };
        let xattrs = Vec::new();
        let item = Item { path: "f".into(), kind, perm: 0, uid: 0, gid: 0, atime: time, mtime: time, xattrs };
        let mut pass = |step: Step| {
            taken.pass(step, &mut sink).unwrap();
            taken
        };
        pass(Step::Item(item.clone()));
        pass(Step::Piece(0, vec![1; 5]));
        assert_eq!(pass(Step::End).whole(), Taken { files: 1, bytes: 5, begun: None });
        pass(Step::Item(item.clone()));
        let begun = pass(Step::Piece(0, vec![1; 7]));
        assert_eq!((begun.files, begun.bytes), (2, 12));
        assert_eq!(begun.whole(), Taken { files: 1, bytes: 5, begun: None });
        assert_eq!(pass(Step::Abandon), Taken { files: 1, bytes: 5, begun: None });
    }
}
