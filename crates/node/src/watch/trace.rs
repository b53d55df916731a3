//! Requests one by one, from the rings, joined with the kernel's events about them.
//!
//! A record waits for a moment for the kernel's event about its end. Without the event it is shown without
//! the kernel's times. Histograms count the time of requests by operation and part. So a long trace takes no
//! more memory than a short one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use api::control::{Heard, Wire};
use api::error::{Failure, Result};
use api::watch::{Batch, NEVER, OpSummary, Percentiles, TraceLine, TraceSummary};
use base::phase::Phase;
use base::time::monotonic_ns;
use fuse::abi::opcodes::op;
use fuse::watch::{Cursor, Histogram, Hold, Record, Watch};
use fuse::{Session, Transport};
use serde_json::Value;
use std::sync::Arc;

use super::kernel::{self, Kernel, Seen};
use super::{Callers, LOOK_EVERY, SIGN_OF_LIFE, has_ended, op_name};
use crate::log;

/// The largest number of lines in one batch, which is 20,000 lines a second. Percentiles also count requests
/// that are not shown.
const LINES_MAX: usize = 400;
/// After this many batches in a row with more requests than can be shown, there are too many. After the
/// second number of batches with fewer, there are no longer too many.
const LOOKS_TOO_MANY: u32 = 5;
const LOOKS_FEWER: u32 = 50;
/// How long a record waits for the kernel's events.
const PATIENCE_NS: u64 = 100_000_000;

fn percentiles(hist: &Histogram) -> Option<Percentiles> {
    let at = |share| hist.quantile(share);
    (hist.count() > 0).then(|| Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: hist.max() })
}

/// The names of the parts of a request's time, as in a summary.
const PARTS: [&str; 11] =
    ["total", "queue", "srv", "names", "blob", "cache", "peer", "origin", "wait", "own", "return"];

const TOTAL: usize = 0;

#[derive(Default)]
struct Tally {
    count: u64,
    errors: u64,
    bytes: u64,
    parts: [Histogram; PARTS.len()],
}

/// The parts of one request's time, in the order of [`PARTS`].
type Split = [Option<u64>; PARTS.len()];

fn split(record: &Record, seen: Seen, reply_is_return: bool) -> Split {
    let answered = record.at + record.served;
    let queue = seen.sent.map(|sent| record.at.saturating_sub(sent));
    let back = match seen.ended {
        Some(ended) => Some(ended.saturating_sub(answered)),
        None => reply_is_return.then_some(record.reply),
    };
    let total = queue.unwrap_or(0) + record.served + back.unwrap_or(record.reply);
    let phase = |phase: Phase| Some(record.spent[phase as usize]);
    [
        Some(total),
        queue,
        Some(record.served),
        phase(Phase::Names),
        phase(Phase::Blob),
        phase(Phase::Cache),
        phase(Phase::Peer),
        phase(Phase::Origin),
        Some(record.wait),
        phase(Phase::Own),
        back,
    ]
}

/// Whether requests come faster than they can be shown one by one.
#[derive(Default)]
struct Pace {
    fast: bool,
    /// Batches in a row that contradict `fast`.
    against: u32,
}

impl Pace {
    /// Counts a batch of this many requests. Returns whether the answer has changed.
    fn look(&mut self, came: usize) -> bool {
        let (contrary, enough) =
            if self.fast { (came < LINES_MAX / 2, LOOKS_FEWER) } else { (came > LINES_MAX, LOOKS_TOO_MANY) };
        self.against = if contrary { self.against + 1 } else { 0 };
        if self.against < enough {
            return false;
        }
        *self = Pace { fast: !self.fast, against: 0 };
        true
    }
}

/// The state of one trace of a mount.
struct Look {
    watch: Arc<Watch>,
    _hold: Hold,
    cursor: Cursor,
    every: u64,
    only: Option<u32>,
    kernel: Option<Kernel>,
    /// How fast requests come. None if the kernel must report every request.
    pace: Option<Pace>,
    /// Whether the kernel reported only a share of the requests at some time.
    was_fast: bool,
    /// Over /dev/fuse the kernel has the answer when the daemon's write(2) returns. Over io_uring only the
    /// kernel knows when.
    reply_is_return: bool,
    waiting: VecDeque<Record>,
}

impl Look {
    /// With `all`, the kernel reports every request, however fast requests come.
    fn begin(session: &Session, every: u32, only: Option<u32>, kernel: Option<Kernel>, all: bool) -> Look {
        let watch = session.watch();
        let hold = watch.record(every);
        let cursor = watch.now();
        Look {
            watch,
            _hold: hold,
            cursor,
            every: u64::from(every.max(1)),
            only,
            kernel,
            pace: (!all).then(Pace::default),
            was_fast: false,
            reply_is_return: session.transport() == Transport::Classic,
            waiting: VecDeque::new(),
        }
    }

    /// Passes on the requests since the last call. With `last`, does not wait for further events.
    fn each(&mut self, last: bool, each: &mut dyn FnMut(&Record, &Split)) {
        let Look { watch, cursor, every, only, waiting, .. } = self;
        let mut came = 0;
        watch.read(cursor, &mut |record| {
            came += 1;
            if record.seq.is_multiple_of(*every) && only.is_none_or(|only| only == record.opcode) {
                waiting.push_back(record);
            }
        });
        if let Some(kernel) = &mut self.kernel {
            kernel.listen();
            if let Some(pace) = &mut self.pace
                && pace.look(came)
                && kernel.speak_of_all(!pace.fast).is_ok()
            {
                self.was_fast |= pace.fast;
            }
        }
        let fast = self.pace.as_ref().is_some_and(|pace| pace.fast);
        let now = monotonic_ns();
        let mut still = VecDeque::new();
        while let Some(record) = self.waiting.pop_front() {
            let over = record.at + record.served + record.reply + PATIENCE_NS;
            let ready = last
                || now >= over
                || !is_sent_and_ended(record.opcode)
                || fast && !kernel::is_in_share(record.unique);
            let seen =
                self.kernel.as_mut().map_or(Seen::default(), |kernel| kernel.seen(record.unique, ready));
            if ready || self.kernel.is_none() || (seen.sent.is_some() && seen.ended.is_some()) {
                let mut split = split(&record, seen, self.reply_is_return);
                if fast && seen == Seen::default() && !kernel::is_in_share(record.unique) {
                    // Without the kernel's part the total cannot be compared with other totals.
                    split[TOTAL] = None;
                }
                each(&record, &split);
            } else {
                still.push_back(record);
            }
        }
        self.waiting = still;
    }
}

/// Whether the kernel traces the beginning and the end of such a request.
fn is_sent_and_ended(opcode: u32) -> bool {
    !matches!(opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT)
}

/// Traces until the command stops it.
pub(super) fn serve(
    session: &Session,
    every: u32,
    only: Option<u32>,
    slow_ns: u64,
    wire: &Wire<'_>,
) -> Result<Value> {
    let begun = base::time::monotonic();
    let dev = fuse::mount::find(session.mountpoint()).map(|mount| mount.dev);
    let (kernel, unseen) = match dev.map_or(Err("the mount has gone".to_owned()), Kernel::start) {
        Ok(kernel) => (Some(kernel), None),
        Err(why) => (None, Some(format!("the kernel's queue and the way back are not seen: {why}"))),
    };
    let by_time = !matches!(slow_ns, 0 | NEVER);
    let mut look = Look::begin(session, every, only, kernel, by_time);
    let mut tallies: BTreeMap<u32, Tally> = BTreeMap::new();
    let mut callers = Callers::default();
    wire.note(&Batch { remark: unseen.clone(), ..Batch::default() });
    let mut told = base::time::monotonic();
    loop {
        let heard = wire.heard(LOOK_EVERY);
        let last = heard != Heard::Nothing || has_ended(session);
        let mut batch = Batch::default();
        look.each(last, &mut |record, split| {
            let tally = tallies.entry(record.opcode).or_default();
            tally.add(record, split);
            if split[0].unwrap_or(0) < slow_ns {
            } else if batch.lines.len() < LINES_MAX {
                batch.lines.push(line(record, split, &mut callers));
            } else {
                batch.hidden += 1;
            }
        });
        if !batch.lines.is_empty() || told.elapsed() >= SIGN_OF_LIFE {
            told = base::time::monotonic();
            if !wire.note(&batch) {
                break;
            }
        }
        if last {
            break;
        }
    }
    let in_part = format!(
        "requests came too fast to be shown: the kernel's queue and the way back are those of one in {}; with --slow of all",
        kernel::SHARE
    );
    let unseen = unseen.or_else(|| look.was_fast.then_some(in_part));
    let summary = summary(tallies, begun.elapsed(), look.cursor.lost, unseen);
    serde_json::to_value(summary)
        .map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
}

impl Tally {
    fn add(&mut self, record: &Record, split: &Split) {
        self.count += 1;
        self.errors += u64::from(record.error != 0);
        self.bytes += u64::from(record.bytes);
        for (hist, ns) in self.parts.iter_mut().zip(split) {
            if let Some(ns) = ns {
                hist.add(*ns);
            }
        }
    }
}

fn line(record: &Record, split: &Split, callers: &mut Callers) -> TraceLine {
    let [total, queue, srv, names, blob, cache, peer, origin, wait, own, back] = *split;
    let known = |ns: Option<u64>| ns.unwrap_or(0);
    TraceLine {
        op: op_name(record.opcode),
        inode: record.ino,
        pid: record.pid,
        caller: callers.name(record.pid),
        bytes: record.bytes,
        error: record.error,
        total_ns: total.unwrap_or(known(srv)),
        queue_ns: queue,
        srv_ns: known(srv),
        names_ns: known(names),
        blob_ns: known(blob),
        cache_ns: known(cache),
        peer_ns: known(peer),
        origin_ns: known(origin),
        wait_ns: known(wait),
        own_ns: known(own),
        return_ns: back,
    }
}

fn summary(tallies: BTreeMap<u32, Tally>, took: Duration, lost: u64, kernel: Option<String>) -> TraceSummary {
    let mut tallies: Vec<_> = tallies.into_iter().collect();
    tallies.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.parts[0].sum()));
    let operations: Vec<_> = tallies
        .iter()
        .map(|(opcode, tally)| OpSummary {
            op: op_name(*opcode),
            count: tally.count,
            errors: tally.errors,
            bytes: tally.bytes,
            parts: PARTS
                .iter()
                .zip(&tally.parts)
                .filter_map(|(name, hist)| Some(((*name).to_owned(), percentiles(hist)?)))
                .collect(),
        })
        .collect();
    let requests = operations.iter().map(|operation| operation.count).sum();
    TraceSummary { seconds: took.as_secs_f64(), requests, lost, kernel, operations }
}

/// Writes a line to the log for every n-th request, as long as the mount lives: `COVEY_FUSE_TRACE_RATE`. The
/// time in the kernel's queue is not included, because the daemon cannot see it.
pub fn write_every(session: &Arc<Session>, every: u32) -> Result<()> {
    let session = Arc::clone(session);
    let spawned = base::thread::spawn("covey-trace", move || {
        let mut look = Look::begin(&session, every, None, None, true);
        let mut lost = 0;
        loop {
            let ended = session.wait_for(LOOK_EVERY).is_some();
            look.each(ended, &mut |record, split| log::line(&log_line(record, split)));
            if look.cursor.lost > lost {
                log::line(&format!(
                    "[TRACE] {} requests came too fast to be traced",
                    look.cursor.lost - lost
                ));
                lost = look.cursor.lost;
            }
            if ended {
                return;
            }
        }
    });
    spawned.map(drop).map_err(|error| Failure::io("cannot start a thread", &error))
}

fn log_line(record: &Record, split: &Split) -> String {
    let [total, _, srv, names, blob, cache, peer, origin, ..] = split.map(|ns| ns.unwrap_or(0) as f64 / 1e3);
    format!(
        "[TRACE {}] total={total:.1}us srv={srv:.1}us | names={names:.1} blob={blob:.1} cache={cache:.1} peer={peer:.1} origin={origin:.1}",
        op_name(record.opcode)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let spent = [10_000, 20_000, 0, 30_000, 0, 0];
        Record {
            at: 1_000_000,
            opcode: op::READ,
            served: 60_000,
            reply: 5_000,
            bytes: 9,
            spent,
            ..Record::default()
        }
    }

    #[test]
    fn the_parts_add_up_with_the_kernels_word() {
        let seen = Seen { sent: Some(988_000), ended: Some(1_063_000) };
        let parts = split(&record(), seen, true);
        assert_eq!(parts[0], Some(12_000 + 60_000 + 3_000), "from its queue to its having the answer");
        assert_eq!((parts[1], parts[10]), (Some(12_000), Some(3_000)));
        assert_eq!(parts[3..=9].iter().flatten().sum::<u64>(), parts[2].unwrap());
    }

    #[test]
    fn without_the_kernels_word_nothing_is_made_up() {
        let classic = split(&record(), Seen::default(), true);
        assert_eq!((classic[0], classic[1], classic[10]), (Some(65_000), None, Some(5_000)));
        let uring = split(&record(), Seen::default(), false);
        assert_eq!((uring[0], uring[1], uring[10]), (Some(65_000), None, None));
        let mut tally = Tally::default();
        tally.add(&record(), &uring);
        let found = summary([(op::READ, tally)].into(), Duration::from_secs(1), 0, None);
        let parts = &found.operations[0].parts;
        assert!(parts.contains_key("names") && !parts.contains_key("queue") && !parts.contains_key("return"));
        assert_eq!((found.requests, found.operations[0].bytes, parts["total"].max), (1, 9, 65_000));
    }

    /// The daemon's time of requests without the kernel's events was taken for their total. Their median was
    /// 2 us, where the median of requests with the events was 12 us.
    #[test]
    fn regression_requests_that_the_kernel_leaves_out_have_no_total() {
        let mut left_out = split(&record(), Seen::default(), false);
        left_out[TOTAL] = None;
        let whole = split(&record(), Seen { sent: Some(988_000), ended: Some(1_063_000) }, false);
        let mut tally = Tally::default();
        [left_out, left_out, whole].iter().for_each(|split| tally.add(&record(), split));
        let found = summary([(op::READ, tally)].into(), Duration::from_secs(1), 0, None);
        assert_eq!((found.requests, found.operations[0].parts["total"].p50), (3, 75_000));
        assert_eq!(line(&record(), &left_out, &mut Callers::default()).total_ns, 60_000);
    }

    #[test]
    fn a_burst_is_not_yet_too_fast_and_a_pause_not_yet_slow() {
        let mut pace = Pace::default();
        let mut looks = |came: &[usize]| came.iter().map(|came| pace.look(*came)).collect::<Vec<_>>();
        assert_eq!(looks(&[900, 900, 900, 900, 10, 900]), [false; 6]);
        assert_eq!(looks(&[900; 4]), [false, false, false, true]);
        assert_eq!(looks(&[0; 49]), [false; 49]);
        assert_eq!(looks(&[300, 0]), [false; 2]);
        assert_eq!(looks(&[0; 49]).last(), Some(&true));
    }

    #[test]
    fn a_line_of_the_log_can_be_searched_for() {
        assert_eq!(
            log_line(&record(), &split(&record(), Seen::default(), true)),
            "[TRACE read] total=65.0us srv=60.0us | names=20.0 blob=0.0 cache=30.0 peer=0.0 origin=0.0"
        );
    }
}
