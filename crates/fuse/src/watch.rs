//! Measures how long each request takes, and in which phases: not at all, as totals, or one by one.
//!
//! ```text
//!   off       one test of a flag per request
//!   times     two clock readings and two additions per request, into the thread's histogram of the opcode
//!   records   also the phase clock, and a record in the thread's ring, for all requests or one in so many
//! ```
//!
//! An observer takes a [`Hold`]. When the last one is dropped, measuring is off again. Nothing here allocates
//! or locks while a request is served. Each reader thread has its own lane, and all workers share one more.
//!
//! The time of a request begins when the daemon has received it and ends when the reply has been sent. Only
//! the kernel knows the time before (in its queue) and after (the return to the program).

mod hist;
mod ring;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::phase::{self, Spent};
use base::time::monotonic_ns;
use parking_lot::Mutex;

pub use self::hist::{BUCKETS, Histogram, bucket, end_of};
pub use self::ring::Record;
use self::ring::Ring;
use crate::abi::header::Header;
use crate::abi::opcodes::OPCODES;
use crate::counts::{KINDS, kind_of};

/// An observer wants durations.
const TIMES: u32 = 1;
/// An observer wants records.
const RECORDS: u32 = 2;

/// The most records of all lanes together: 16 MiB.
const RECORDS_MAX: usize = 128 << 10;
/// The most records of one lane: a sixth of a second at 100,000 requests a second.
const LANE_MAX: usize = 16 << 10;
const LANE_MIN: usize = 512;

/// What one thread measured, by opcode.
struct Times {
    counts: Box<[[AtomicU64; BUCKETS]]>,
    sums: [AtomicU64; KINDS],
}

impl Times {
    fn new() -> Times {
        let counts = Box::<[[AtomicU64; BUCKETS]]>::new_zeroed_slice(KINDS);
        // SAFETY: plain atomic numbers, for which all zero bytes are a value.
        let counts = unsafe { counts.assume_init() };
        Times { counts, sums: [const { AtomicU64::new(0) }; KINDS] }
    }

    fn add(&self, opcode: u32, ns: u64) {
        let kind = kind_of(opcode);
        self.counts[kind][bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sums[kind].fetch_add(ns, Ordering::Relaxed);
    }
}

/// The records of one thread.
struct RecordLane {
    received: AtomicU64,
    ring: Ring,
}

#[derive(Default)]
struct Holders {
    times: usize,
    /// One in how many requests each observer of records wants.
    every: Vec<u32>,
}

/// The measurements of one mount, shared by its threads and its observers.
pub struct Watch {
    level: AtomicU32,
    every: AtomicU32,
    lanes: usize,
    times: OnceLock<Box<[Times]>>,
    record_lanes: OnceLock<Box<[RecordLane]>>,
    holders: Mutex<Holders>,
}

/// A request that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    at: u64,
    wait: u64,
    /// Where in the file it reads or writes.
    offset: u64,
    /// The request's number in its lane, if it is recorded.
    record: Option<u64>,
}

impl Span {
    /// Returns the span of the same request, which reads or writes at this place of its file.
    pub(crate) fn at_offset(self, offset: u64) -> Span {
        Span { offset, ..self }
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Bytes read or written.
    pub bytes: u32,
    /// 0, or the error number.
    pub error: u32,
}

/// The times of a request up to the moment at which its reply is sent.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    span: Span,
    at: u64,
    spent: Spent,
}

impl Watch {
    /// A watch for this many lanes.
    pub fn new(lanes: usize) -> Arc<Watch> {
        Arc::new(Watch {
            level: AtomicU32::new(0),
            every: AtomicU32::new(1),
            lanes: lanes.max(1),
            times: OnceLock::new(),
            record_lanes: OnceLock::new(),
            holders: Mutex::default(),
        })
    }

    /// The lane that all workers share.
    pub(crate) fn workers(&self) -> usize {
        self.lanes - 1
    }

    /// Durations are measured as long as the hold lives.
    pub fn measure(self: &Arc<Self>) -> Hold {
        let mut holders = self.holders.lock();
        holders.times += 1;
        self.set(&holders);
        Hold { watch: Arc::clone(self), every: None }
    }

    /// One in `every` requests is recorded as long as the hold lives. If another observer wants other
    /// requests, those are recorded too.
    pub fn record(self: &Arc<Self>, every: u32) -> Hold {
        let every = every.max(1);
        let mut holders = self.holders.lock();
        holders.every.push(every);
        self.set(&holders);
        Hold { watch: Arc::clone(self), every: Some(every) }
    }

    fn set(&self, holders: &Holders) {
        let mut level = 0;
        if holders.times > 0 {
            self.times.get_or_init(|| (0..self.lanes).map(|_| Times::new()).collect());
            level |= TIMES;
        }
        if !holders.every.is_empty() {
            let len = (RECORDS_MAX / self.lanes).clamp(LANE_MIN, LANE_MAX);
            let new_lane = || RecordLane { received: AtomicU64::new(0), ring: Ring::new(len) };
            self.record_lanes.get_or_init(|| (0..self.lanes).map(|_| new_lane()).collect());
            level |= RECORDS;
            // The requests that each observer wants are among the multiples of this.
            let common = holders.every.iter().copied().fold(0, divisor);
            self.every.store(common, Ordering::Relaxed);
        }
        self.level.store(level, Ordering::Release);
    }

    /// A request has arrived. `None` if nothing is measured.
    #[inline]
    pub(crate) fn begin(&self, lane: usize) -> Option<Span> {
        match self.level.load(Ordering::Acquire) {
            0 => None,
            level => Some(self.look(level, lane)),
        }
    }

    #[cold]
    fn look(&self, level: u32, lane: usize) -> Span {
        let at = monotonic_ns();
        let chosen = |lane: &RecordLane| {
            let number = lane.received.fetch_add(1, Ordering::Relaxed);
            let every = u64::from(self.every.load(Ordering::Relaxed).max(1));
            (every == 1 || number.is_multiple_of(every)).then_some(number)
        };
        let lanes = self.record_lanes.get().filter(|_| level & RECORDS != 0);
        let record = lanes.and_then(|lanes| chosen(&lanes[lane % lanes.len()]));
        if record.is_some() {
            phase::start(at);
        }
        Span { at, wait: 0, offset: 0, record }
    }

    /// The request leaves this thread, and [`Watch::resume`] continues it on another.
    pub(crate) fn suspend(&self, span: Option<Span>) {
        if span.is_some_and(|span| span.record.is_some()) {
            phase::stop(0);
        }
    }

    /// The request continues on this thread.
    pub(crate) fn resume(&self, span: Option<Span>) -> Option<Span> {
        let mut span = span?;
        if span.record.is_some() {
            let now = monotonic_ns();
            span.wait = now.saturating_sub(span.at);
            phase::start(now);
        }
        Some(span)
    }

    /// The result is ready, and the reply is about to be sent.
    pub(crate) fn answering(&self, span: Option<Span>) -> Option<Answered> {
        let span = span?;
        let (at, spent) = match span.record {
            Some(_) => {
                let now = monotonic_ns();
                (now, phase::stop(now))
            }
            None => (0, Spent::default()),
        };
        Some(Answered { span, at, spent })
    }

    /// Another thread replies, as the completion of a fetch. Its phases belong to its own work, so the whole
    /// time counts as waiting.
    pub(crate) fn completed(&self, span: Option<Span>) -> Option<Answered> {
        let mut span = span?;
        let at = if span.record.is_some() { monotonic_ns() } else { 0 };
        span.wait = at.saturating_sub(span.at);
        Some(Answered { span, at, spent: Spent::default() })
    }

    /// The reply has been sent.
    pub(crate) fn end(&self, lane: usize, answered: Option<Answered>, header: &Header, outcome: Outcome) {
        let Some(Answered { span, at, spent }) = answered else { return };
        let now = monotonic_ns();
        if let Some(lanes) = self.times.get() {
            lanes[lane % lanes.len()].add(header.opcode, now.saturating_sub(span.at));
        }
        let (Some(seq), Some(lanes)) = (span.record, self.record_lanes.get()) else { return };
        lanes[lane % lanes.len()].ring.push(&Record {
            seq,
            unique: header.unique,
            ino: header.ino.0,
            at: span.at,
            opcode: header.opcode,
            pid: header.caller.pid,
            bytes: outcome.bytes,
            error: outcome.error,
            offset: span.offset,
            served: at.saturating_sub(span.at),
            reply: now.saturating_sub(at),
            wait: span.wait,
            spent,
        });
    }

    /// Durations so far, by operation. Operations without a request are left out. They grow only while an
    /// observer wants durations.
    pub fn times(&self) -> Vec<(&'static str, Histogram)> {
        let Some(lanes) = self.times.get() else { return Vec::new() };
        let mut all = Vec::new();
        for line in OPCODES.iter().filter(|line| kind_of(line.number) != KINDS - 1) {
            let kind = kind_of(line.number);
            let mut hist = Histogram::default();
            for times in lanes {
                hist.add_sum(times.sums[kind].load(Ordering::Relaxed));
                for (bucket, count) in times.counts[kind].iter().enumerate() {
                    hist.add_bucket(bucket, count.load(Ordering::Relaxed));
                }
            }
            if hist.count() > 0 {
                all.push((line.name, hist));
            }
        }
        all
    }

    /// The position at which an observer sees only records that are made from now on.
    pub fn now(&self) -> Cursor {
        let heads = self.record_lanes.get().map(|lanes| lanes.iter().map(|lane| lane.ring.head()).collect());
        Cursor { next: heads.unwrap_or_else(|| vec![0; self.lanes]), lost: 0 }
    }

    /// Passes all records since the cursor to `each`, and moves the cursor.
    pub fn read(&self, cursor: &mut Cursor, each: &mut dyn FnMut(Record)) {
        let lanes = self.record_lanes.get().map_or(&[][..], |lanes| lanes);
        for (lane, next) in lanes.iter().zip(&mut cursor.next) {
            let (after, lost) = lane.ring.read(*next, each);
            *next = after;
            cursor.lost += lost;
        }
    }
}

/// The greatest common divisor. Of 0 and a number it is the number.
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// An observer's position.
#[derive(Clone, Debug)]
pub struct Cursor {
    next: Vec<u64>,
    /// Records that were overwritten before the observer read them.
    pub lost: u64,
}

/// Keeps the measurement on until it is dropped.
pub struct Hold {
    watch: Arc<Watch>,
    every: Option<u32>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holders = self.watch.holders.lock();
        match self.every {
            None => holders.times -= 1,
            Some(every) => {
                if let Some(place) = holders.every.iter().position(|other| *other == every) {
                    holders.every.swap_remove(place);
                }
            }
        }
        self.watch.set(&holders);
    }
}

#[cfg(test)]
mod tests;
