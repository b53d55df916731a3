//! Counters: requests by kind, failures, bytes, times.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::latency::{BUCKETS, Extra, Latency, quantile};

/// A kind of request, as stores charge for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads bytes.
    Get,
    /// Stores bytes.
    Put,
    /// Reads a size.
    Head,
    /// Removes objects, one or many.
    Delete,
    /// Lists keys.
    List,
    /// Fetches keys to sign with.
    Keys,
}

/// All kinds, with the names they have in metrics.
pub const KINDS: [(Kind, &str); 6] = [
    (Kind::Get, "get"),
    (Kind::Put, "put"),
    (Kind::Head, "head"),
    (Kind::Delete, "delete"),
    (Kind::List, "list"),
    (Kind::Keys, "keys"),
];

/// The store has sent no time yet.
const UNTOLD: i64 = i64::MIN;

#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters, added to from every thread.
pub(crate) struct Stats {
    requests: [Count; KINDS.len()],
    retries: Count,
    errors: Count,
    throttled: Count,
    refusals: Count,
    damaged: Count,
    hedges: Count,
    hedges_won: Count,
    received: Count,
    sent: Count,
    in_flight: AtomicU64,
    /// By how many seconds this machine's clock is ahead of the store's, by the last answer with a time;
    /// [`UNTOLD`] before.
    ahead: AtomicI64,
    /// Small reads, reads of whole blobs, and stores.
    pub(crate) small: Latency,
    pub(crate) large: Latency,
    pub(crate) put: Latency,
    pub(crate) extra: Extra,
}

impl Stats {
    pub(crate) fn new() -> Stats {
        Stats {
            requests: Default::default(),
            retries: Count::default(),
            errors: Count::default(),
            throttled: Count::default(),
            refusals: Count::default(),
            damaged: Count::default(),
            hedges: Count::default(),
            hedges_won: Count::default(),
            received: Count::default(),
            sent: Count::default(),
            in_flight: AtomicU64::new(0),
            ahead: AtomicI64::new(UNTOLD),
            small: Latency::new(),
            large: Latency::new(),
            put: Latency::new(),
            extra: Extra::new(),
        }
    }

    pub(crate) fn request(&self, kind: Kind) {
        self.requests[kind as usize].add(1);
    }

    pub(crate) fn retry(&self) {
        self.retries.add(1);
    }

    pub(crate) fn error(&self, throttled: bool) {
        self.errors.add(1);
        self.throttled.add(u64::from(throttled));
    }

    pub(crate) fn refusal(&self) {
        self.refusals.add(1);
    }

    pub(crate) fn damage(&self) {
        self.damaged.add(1);
    }

    pub(crate) fn hedge(&self) {
        self.hedges.add(1);
    }

    pub(crate) fn hedge_won(&self) {
        self.hedges_won.add(1);
    }

    pub(crate) fn receive(&self, bytes: u64) {
        self.received.add(bytes);
    }

    pub(crate) fn send(&self, bytes: u64) {
        self.sent.add(bytes);
    }

    /// Records the store's time in an answer, in seconds since 1970.
    pub(crate) fn told_time(&self, seconds: i64) {
        self.ahead.store(base::time::now().seconds().saturating_sub(seconds), Ordering::Relaxed);
    }

    pub(crate) fn clock_ahead(&self) -> Option<i64> {
        Some(self.ahead.load(Ordering::Relaxed)).filter(|ahead| *ahead != UNTOLD)
    }

    /// Counts one more request in flight until the returned value is dropped.
    pub(crate) fn fly(&self) -> Flight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Flight(&self.in_flight)
    }

    pub(crate) fn snapshot(&self) -> RemoteStats {
        let times = |latency: &Latency| {
            let (buckets, total) = latency.counts();
            Times { buckets, total }
        };
        RemoteStats {
            requests: std::array::from_fn(|i| self.requests[i].get()),
            retries: self.retries.get(),
            errors: self.errors.get(),
            throttled: self.throttled.get(),
            refusals: self.refusals.get(),
            damaged: self.damaged.get(),
            hedges: self.hedges.get(),
            hedges_won: self.hedges_won.get(),
            received_bytes: self.received.get(),
            sent_bytes: self.sent.get(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            small_reads: times(&self.small),
            large_reads: times(&self.large),
            puts: times(&self.put),
        }
    }
}

pub(crate) struct Flight<'a>(&'a AtomicU64);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters since the origin was opened.
#[derive(Clone, Debug)]
pub struct RemoteStats {
    requests: [u64; KINDS.len()],
    /// Requests that were sent again after a failure.
    pub retries: u64,
    /// Requests that failed, even if a retry succeeded.
    pub errors: u64,
    /// Of those, the ones that the store refused because it was busy.
    pub throttled: u64,
    /// Calls that failed because of a key, a right or a clock, including those that were not made because an
    /// earlier one was refused.
    pub refusals: u64,
    /// Bodies that did not match the blob.
    pub damaged: u64,
    /// Second GETs that were sent because the first took long.
    pub hedges: u64,
    /// Of those, the ones that finished first.
    pub hedges_won: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
    /// Bytes of bodies sent.
    pub sent_bytes: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Reads of parts and records, and other small requests.
    pub small_reads: Times,
    /// Reads of whole blobs.
    pub large_reads: Times,
    /// Stored objects.
    pub puts: Times,
}

impl RemoteStats {
    /// Requests of a kind, including failed ones, retries and second GETs.
    pub fn requests(&self, kind: Kind) -> u64 {
        self.requests[kind as usize]
    }
}

/// A histogram of durations, with eight buckets for each doubling.
#[derive(Clone, Debug)]
pub struct Times {
    /// How many requests each bucket counts.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations.
    pub total: Duration,
}

impl Times {
    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The time within which `part` (0.99) of them finished, to an eighth; none if there were none.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        quantile(&self.buckets, part)
    }
}
