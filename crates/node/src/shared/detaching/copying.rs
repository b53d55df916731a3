//! Copies blobs from one origin to another one, while the session of the command lasts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::control::Tick;
use api::error::{Failure, Result};
use api::text::{bytes as readable, count};
use base::{BlobId, PackNo};
use blob::{BlobError, Origin};
use parking_lot::Mutex;

use super::{Hold, Home, Lost, unread, unwritten};

/// So many blobs are copied at a time.
const THREADS: usize = 8;
/// How often the session is looked at, and progress is shown.
const LOOK: Duration = Duration::from_millis(100);
/// How long an origin may take to make durable what it was given.
const SETTLE: Duration = Duration::from_secs(60);

/// A blob that rows need.
pub(super) struct Needed {
    pub blob: BlobId,
    pub size: u32,
    /// The packs that it is.
    pub packs: Vec<PackNo>,
}

/// Why a copy stopped.
enum Failed {
    /// The origin that is read from.
    From(BlobError),
    /// The other one.
    To(BlobError),
    /// The session was lost.
    Stopped,
}

/// Blobs on their way.
pub(super) struct Copying {
    from: Arc<dyn Origin>,
    to: Arc<dyn Origin>,
    needed: Vec<Needed>,
    /// What the new origin had before.
    there: HashMap<BlobId, u64>,
    done_blobs: AtomicU64,
    done_bytes: AtomicU64,
    copied_blobs: AtomicU64,
    copied_bytes: AtomicU64,
    lost: Mutex<HashMap<BlobId, Option<String>>>,
    stop: AtomicBool,
}

/// What came of it.
pub(super) struct Copied {
    /// The blobs that must be there now, with their sizes.
    pub there: HashMap<BlobId, u32>,
    /// Bytes of the blobs that must be there now.
    pub bytes: u64,
    pub copied_blobs: u64,
    pub copied_bytes: u64,
    /// Packs whose blobs are not in the first origin, or are damaged there.
    pub lost: Vec<Lost>,
}

impl Copying {
    pub fn new(
        from: Arc<dyn Origin>,
        to: Arc<dyn Origin>,
        needed: Vec<Needed>,
        there: HashMap<BlobId, u64>,
    ) -> Arc<Copying> {
        Arc::new(Copying {
            from,
            to,
            needed,
            there,
            done_blobs: AtomicU64::new(0),
            done_bytes: AtomicU64::new(0),
            copied_blobs: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            lost: Mutex::default(),
            stop: AtomicBool::new(false),
        })
    }

    /// Copies all blobs. `homes`: from where, and to where, for messages.
    pub fn run(
        self: Arc<Copying>,
        hold: &Hold,
        homes: (&Home, &Home),
        tick: &mut dyn FnMut(Tick),
    ) -> Result<Copied> {
        let (blobs, of) =
            (self.needed.len() as u64, self.needed.iter().map(|one| u64::from(one.size)).sum::<u64>());
        let copying = self.clone();
        let work = base::thread::spawn("covey-detach", move || copying.all());
        let work = work.map_err(|error| Failure::io("cannot start a thread", &error))?;
        let mut kept = Ok(());
        while !work.is_finished() {
            let (done, bytes) =
                (self.done_blobs.load(Ordering::Relaxed), self.done_bytes.load(Ordering::Relaxed));
            let what = format!("{} of {} blobs, {}", count(done), count(blobs), readable(bytes));
            tick(Tick { done: bytes, of, what });
            kept = kept.and_then(|()| hold.keep());
            self.stop.store(kept.is_err(), Ordering::Relaxed);
            std::thread::sleep(LOOK);
        }
        let done = work.join().unwrap_or(Err(Failed::Stopped));
        kept?;
        done.map_err(|error| match error {
            Failed::From(error) => unread(homes.0, &error),
            Failed::To(error) => unwritten(homes.1, &error),
            Failed::Stopped => {
                Failure::new("stopped", "the copy was given up").next("run the same command again")
            }
        })?;
        Ok(self.copied())
    }

    fn copied(&self) -> Copied {
        let lost = std::mem::take(&mut *self.lost.lock());
        let there = self.needed.iter().filter(|one| !lost.contains_key(&one.blob));
        let there: HashMap<BlobId, u32> = there.map(|one| (one.blob, one.size)).collect();
        let packs = |one: &Needed| {
            let why = lost.get(&one.blob)?.clone();
            Some(one.packs.iter().map(move |pack| (*pack, Some((one.blob, why.clone())))).collect::<Vec<_>>())
        };
        Copied {
            bytes: there.values().map(|size| u64::from(*size)).sum(),
            there,
            copied_blobs: self.copied_blobs.load(Ordering::Relaxed),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
            lost: self.needed.iter().filter_map(packs).flatten().collect(),
        }
    }

    fn all(&self) -> std::result::Result<(), Failed> {
        base::thread::for_each("covey-detach", THREADS, &self.needed, |one| {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failed::Stopped);
            }
            if !self.has(one)? {
                self.copy(one)?;
            }
            self.done_blobs.fetch_add(1, Ordering::Relaxed);
            self.done_bytes.fetch_add(u64::from(one.size), Ordering::Relaxed);
            Ok(())
        })?;
        self.to.settle(SETTLE).map_err(Failed::To)
    }

    /// Whether an earlier run has copied it, and it is right.
    fn has(&self, one: &Needed) -> std::result::Result<bool, Failed> {
        if !self.there.contains_key(&one.blob) {
            return Ok(false);
        }
        match self.to.verify(&one.blob) {
            Ok(()) => Ok(true),
            Err(BlobError::Missing(_)) => Ok(false),
            Err(BlobError::Damaged { .. }) => self.to.remove(&one.blob).map(|()| false).map_err(Failed::To),
            Err(error) => Err(Failed::To(error)),
        }
    }

    fn copy(&self, one: &Needed) -> std::result::Result<(), Failed> {
        // It is compared with its name.
        let (sums, bytes) = match self.from.fetch(&one.blob) {
            Ok(got) => got,
            Err(BlobError::Missing(_)) => {
                self.lost.lock().insert(one.blob, None);
                return Ok(());
            }
            Err(BlobError::Damaged { what, .. }) => {
                self.lost.lock().insert(one.blob, Some(what));
                return Ok(());
            }
            Err(error) => return Err(Failed::From(error)),
        };
        self.to.put(&one.blob, &sums, &bytes).map_err(Failed::To)?;
        self.copied_blobs.fetch_add(1, Ordering::Relaxed);
        self.copied_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
