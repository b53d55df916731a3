//! Whether the cache's disk can be used.
//!
//! A failing disk turns caching off. One line reports it, and reads continue from the origin. The disk is
//! retried from time to time, and another line reports that it works again. A full disk, or one that became
//! read-only, is still read from. A disk that gives errors is not, except for blobs that only it has.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blob::BlobError;
use parking_lot::Mutex;

/// Receives lines for the operator.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// The minimum time between two reports that the floor keeps everything out, however often room appears and
/// disappears.
const SAY_AGAIN: Duration = Duration::from_secs(600);

/// See the module.
pub(super) struct Health {
    report: Report,
    again: Duration,
    /// Whether `off` is set.
    is_off: AtomicBool,
    off: Mutex<Option<Off>>,
    /// The disk has less free space than its floor, and nothing is left to evict.
    kept_out: AtomicBool,
    said: Mutex<Option<Instant>>,
}

struct Off {
    why: String,
    readable: bool,
    look: Instant,
}

impl Health {
    pub(super) fn new(report: Report, again: Duration) -> Health {
        let (is_off, off) = (AtomicBool::new(false), Mutex::new(None));
        Health { report, again, is_off, off, kept_out: AtomicBool::new(false), said: Mutex::new(None) }
    }

    /// Whether blobs may be kept. If they may not and a retry is due, calls `probe`.
    pub(super) fn may_write(&self, probe: impl FnOnce() -> io::Result<()>) -> bool {
        if !self.is_off.load(Ordering::Acquire) {
            return true;
        }
        let now = base::time::monotonic();
        match &mut *self.off.lock() {
            Some(off) if now < off.look => return false,
            Some(off) => off.look = now + self.again,
            None => return true,
        }
        if probe().is_err() {
            return false;
        }
        if self.off.lock().take().is_some() {
            self.is_off.store(false, Ordering::Release);
            (self.report)("the cache's disk works again: what is read is kept on it");
        }
        true
    }

    /// Whether nothing is kept at present.
    pub(super) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    /// Whether blobs on the disk may be read.
    pub(super) fn may_read(&self) -> bool {
        !self.is_off.load(Ordering::Acquire) || self.off.lock().as_ref().is_none_or(|off| off.readable)
    }

    /// Records that a write failed.
    pub(super) fn failed(&self, error: &BlobError) {
        let readable = match error {
            BlobError::Full => true,
            BlobError::Io(error) => error.kind() == io::ErrorKind::ReadOnlyFilesystem,
            _ => false,
        };
        let mut off = self.off.lock();
        if off.is_some() {
            return;
        }
        let why = error.to_string();
        let line = format!(
            "the cache's disk fails ({why}): nothing more is kept on it, and reads go on from the origin; it is tried again every {}",
            in_words(self.again)
        );
        *off = Some(Off { why, readable, look: base::time::monotonic() + self.again });
        self.is_off.store(true, Ordering::Release);
        drop(off);
        (self.report)(&line);
    }

    /// Why caching is off, if it is.
    pub(super) fn why_off(&self) -> Option<String> {
        self.off.lock().as_ref().map(|off| off.why.clone())
    }

    /// Records that nothing can be kept: less than the floor is free, and nothing of the cache is left to
    /// evict. `line` makes the message for the operator.
    pub(super) fn kept_out(&self, line: impl FnOnce() -> String) {
        if self.kept_out.swap(true, Ordering::AcqRel) {
            return;
        }
        let now = base::time::monotonic();
        let mut said = self.said.lock();
        if said.is_none_or(|before| now.saturating_duration_since(before) >= SAY_AGAIN) {
            *said = Some(now);
            drop(said);
            (self.report)(&line());
        }
    }

    /// Records that there is room.
    pub(super) fn let_in(&self) {
        if self.kept_out.load(Ordering::Relaxed) {
            self.kept_out.store(false, Ordering::Release);
        }
    }

    /// Whether the floor keeps everything out at present.
    pub(super) fn is_kept_out(&self) -> bool {
        self.kept_out.load(Ordering::Acquire)
    }

    pub(super) fn report(&self, line: &str) {
        (self.report)(line);
    }
}

fn in_words(time: Duration) -> String {
    match time.as_secs() {
        60 => "minute".to_owned(),
        seconds => format!("{seconds} s"),
    }
}
