//! What a volume counts since it was opened: for its statistics, and to print few lines about failures.

use std::sync::atomic::{AtomicU64, Ordering};

/// After the first 20 lines about failures, only one in so many is printed.
const EVERY: u64 = 1000;

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads from one kind of source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Ranges read.
    pub count: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// The reads from one kind of source, as they are counted.
#[derive(Default)]
pub(crate) struct Source {
    count: Counter,
    bytes: Counter,
}

impl Source {
    pub(crate) fn add(&self, bytes: usize) {
        self.count.add(1);
        self.bytes.add(bytes as u64);
    }

    pub(crate) fn get(&self) -> Reads {
        Reads { count: self.count.get(), bytes: self.bytes.get() }
    }
}

/// Counted since the volume was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) from_names: Source,
    pub(crate) from_open: Source,
    pub(crate) from_blobs: Source,
    pub(crate) written_bytes: Counter,
    pub(crate) dedup_hits: Counter,
    pub(crate) dedup_bytes: Counter,
    pub(crate) sealed: Counter,
    pub(crate) freed_bytes: Counter,
    pub(crate) moved_bytes: Counter,
    pub(crate) io_errors: Counter,
}

/// How many failures were reported.
#[derive(Default)]
pub(crate) struct Reported(AtomicU64);

impl Reported {
    /// Counts a failure. Returns whether its line is printed: the first 20, then one in [`EVERY`].
    pub(crate) fn count(&self) -> bool {
        let reported = self.0.fetch_add(1, Ordering::Relaxed);
        reported < 20 || reported.is_multiple_of(EVERY)
    }
}
