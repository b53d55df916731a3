//! Whether the cache's disk can be used.
//!
//! A disk that fails turns caching off: with one line, and reads go on from the origin. It is tried again from time to time, and when it works
//! again that is one line too. A full disk and one that became read-only are still read from; one that gives errors is not, except
//! for what only it has.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blob::BlobError;
use parking_lot::Mutex;

/// Where lines for the operator go.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// That the floor keeps everything out is said again after so long at the earliest, however often room comes and goes.
const SAY_AGAIN: Duration = Duration::from_secs(600);

/// See the module.
pub(super) struct Health {
    report: Report,
    again: Duration,
    /// Whether `off` is something.
    is_off: AtomicBool,
    off: Mutex<Option<Off>>,
    /// The disk has less free than its floor, and nothing is left to go for it.
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

    /// Whether blobs may be kept. If they may not, and it is time to look again, `probe` is asked.
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

    /// Whether what is on the disk may be read.
    pub(super) fn may_read(&self) -> bool {
        !self.is_off.load(Ordering::Acquire) || self.off.lock().as_ref().is_none_or(|off| off.readable)
    }

    /// Something was written, and that failed.
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

    /// Nothing can be kept, because less than the floor is free and nothing of the cache's is left to go. `line` says so to a person.
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

    /// There is room.
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
