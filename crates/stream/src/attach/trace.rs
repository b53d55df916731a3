//! Traces requests of a guest: where their time went, on both sides of the connection.
//!
//! ```text
//!   from the kernel ─► sent ── to-server ──► server ( filesystem ) ── to-client ──► to the kernel
//!   └──────────────────────────────────────── total ────────────────────────────────────────────┘
//! ```
//!
//! Every Nth request is sent with a flag. The server answers with a TIMES frame in front of the reply. Total
//! is measured by the guest's monotonic clock, and the server's part by the server's. The ways between them
//! need both wall clocks. If these differ, a way seems to take less than no time, or more than all of it.
//! Then both ways are shown as `?`.
//!
//! Lines go to all that listen: the log of the program, and `covey trace` in the guest ([`super::ear`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::request::{Asked, op};
use crate::times::Times;

/// Samples that are kept of each operation. Later ones take the place of the oldest.
const SAMPLES: usize = 4096;

/// A request that is traced.
#[derive(Clone, Copy, Debug)]
struct Mark {
    seq: u64,
    read: Instant,
    /// When it was sent, in nanoseconds since 1970. 0: not yet, or to a server that measures nothing.
    sent: u64,
    /// What the server said, and when that came.
    server: Option<(Times, u64)>,
}

/// One traced request. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Traced {
    opcode: u32,
    unique: u64,
    total: u64,
    server: u64,
    filesystem: u64,
    /// The ways there and back. `None`: the clocks differ.
    ways: Option<(u64, u64)>,
}

/// What is known of one operation, in nanoseconds.
#[derive(Default)]
struct Samples {
    count: u64,
    total: Vec<u64>,
    server: Vec<u64>,
    filesystem: Vec<u64>,
}

/// What listens to the lines. It must not wait: requests wait with it. Returns false when it does not want
/// more.
pub type Listener = Box<dyn Fn(&str) -> bool + Send>;

struct Heard {
    id: u64,
    every: u32,
    listener: Listener,
    seen: BTreeMap<u32, Samples>,
}

/// See the [module](self).
#[derive(Default)]
pub struct Tracer {
    /// Every so many requests, for the most eager listener. 0: none.
    every: AtomicU32,
    requests: AtomicU64,
    /// By slot.
    marks: Mutex<HashMap<u16, Mark>>,
    listeners: Mutex<Vec<Heard>>,
    ids: AtomicU64,
}

impl Tracer {
    /// Lines of every `every`th request go to this listener from now on. Returns its number.
    pub fn listen(&self, every: u32, listener: Listener) -> u64 {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut listeners = self.listeners.lock();
        listeners.push(Heard { id, every: every.max(1), listener, seen: BTreeMap::new() });
        self.set(&listeners);
        id
    }

    /// Ends a listener. Returns the percentiles of what it has heard, in lines.
    pub fn leave(&self, id: u64) -> String {
        let mut listeners = self.listeners.lock();
        let Some(at) = listeners.iter().position(|heard| heard.id == id) else { return String::new() };
        let heard = listeners.remove(at);
        self.set(&listeners);
        drop(listeners);
        summary(&heard.seen)
    }

    fn set(&self, listeners: &[Heard]) {
        self.every.store(listeners.iter().map(|heard| heard.every).min().unwrap_or(0), Ordering::Relaxed);
    }

    /// A request was read from the kernel. If it is to be traced, returns the time, and [`Tracer::entered`]
    /// follows.
    pub fn wants(&self) -> Option<Instant> {
        let every = self.every.load(Ordering::Relaxed);
        if every == 0 || !self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(u64::from(every)) {
            return None;
        }
        Some(base::time::monotonic())
    }

    /// Notes that a request to be traced is in this slot now, and is sent next.
    pub fn entered(&self, slot: u16, seq: u64, read: Instant) {
        self.marks.lock().insert(slot, Mark { seq, read, sent: 0, server: None });
    }

    /// The request in this slot is sent now. Returns whether it is traced.
    pub fn sends(&self, slot: u16, seq: u64) -> bool {
        self.every.load(Ordering::Relaxed) != 0
            && self.change(slot, seq, |mark| mark.sent = base::time::wall_ns())
    }

    /// What the server measured. The reply follows.
    pub fn served(&self, slot: u16, seq: u64, times: Times) {
        self.change(slot, seq, |mark| mark.server = Some((times, base::time::wall_ns())));
    }

    fn change(&self, slot: u16, seq: u64, change: impl FnOnce(&mut Mark)) -> bool {
        self.marks.lock().get_mut(&slot).filter(|mark| mark.seq == seq).map(change).is_some()
    }

    /// The reply was given to the kernel, or there will be none.
    pub fn ended(&self, slot: u16, seq: u64, asked: &Asked) {
        if self.every.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mark = self.marks.lock().remove(&slot).filter(|mark| mark.seq == seq);
        let Some(mark) = mark else { return };
        let now = base::time::monotonic();
        let Some((times, came)) = mark.server else { return };
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let total = nanos(now.saturating_duration_since(mark.read));
        self.say(&traced(asked, total, mark.sent, &times, came));
    }

    fn say(&self, traced: &Traced) {
        let line = line(traced);
        let mut listeners = self.listeners.lock();
        let before = listeners.len();
        listeners.retain_mut(|heard| {
            let samples = heard.seen.entry(traced.opcode).or_default();
            samples.add(traced);
            (heard.listener)(&line)
        });
        if listeners.len() != before {
            self.set(&listeners);
        }
    }

    /// Gives every listener the percentiles of what it has heard. Nothing is traced any more.
    pub fn end(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        self.every.store(0, Ordering::Relaxed);
        for heard in listeners {
            summary(&heard.seen).lines().all(|line| (heard.listener)(line));
        }
    }
}

fn traced(asked: &Asked, total: u64, sent: u64, times: &Times, came: u64) -> Traced {
    let there = times.arrived.checked_sub(sent);
    let back = came.checked_sub(times.left);
    let fits = |there: u64, back: u64| there.saturating_add(back).saturating_add(times.server) <= total;
    let ways = there.zip(back).filter(|(there, back)| fits(*there, *back));
    Traced {
        opcode: asked.opcode,
        unique: asked.unique,
        total,
        server: times.server,
        filesystem: times.filesystem.min(times.server),
        ways,
    }
}

impl Samples {
    fn add(&mut self, traced: &Traced) {
        let at = (self.count % SAMPLES as u64) as usize;
        self.count += 1;
        let places = [&mut self.total, &mut self.server, &mut self.filesystem];
        for (place, value) in places.into_iter().zip([traced.total, traced.server, traced.filesystem]) {
            match place.get_mut(at) {
                Some(old) => *old = value,
                None => place.push(value),
            }
        }
    }
}

fn us(nanos: u64) -> String {
    format!("{}.{}", nanos / 1000, nanos % 1000 / 100)
}

fn line(traced: &Traced) -> String {
    let way = |pick: fn((u64, u64)) -> u64| traced.ways.map_or_else(|| "?".to_owned(), |ways| us(pick(ways)));
    format!(
        "trace {} {}: total {} us, to-server {}, server {}, filesystem {}, to-client {}",
        op::name(traced.opcode),
        traced.unique,
        us(traced.total),
        way(|ways| ways.0),
        us(traced.server),
        us(traced.filesystem),
        way(|ways| ways.1),
    )
}

/// The percentiles of each operation.
fn summary(seen: &BTreeMap<u32, Samples>) -> String {
    let mut out = String::new();
    for (opcode, samples) in seen {
        let mut line =
            format!("trace summary {}: {} traced, 50 and 99 % in us:", op::name(*opcode), samples.count);
        let parts =
            [("total", &samples.total), ("server", &samples.server), ("filesystem", &samples.filesystem)];
        for (name, all) in parts {
            let mut all = all.clone();
            all.sort_unstable();
            let at = |percent: usize| all.get((all.len() * percent / 100).min(all.len() - 1)).copied();
            let (half, most) = (at(50).unwrap_or(0), at(99).unwrap_or(0));
            let _ = write!(line, " {name} {} {}", us(half), us(most));
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const ASKED: Asked = Asked { opcode: op::READ, unique: 7, node: 1, pid: 1 };

    #[test]
    fn ways_are_known_only_if_the_clocks_agree() {
        let times = |arrived, left| Times { arrived, left, server: 300, filesystem: 200 };
        let good = traced(&ASKED, 1000, 5000, &times(5100, 5400), 5600);
        assert_eq!((good.ways, good.server, good.filesystem), (Some((100, 200)), 300, 200));
        // The server's clock is behind, ahead by a little, and ahead by an hour.
        for shift in [-200_i64, 500, 3_600_000_000_000] {
            let times = times(5100_u64.wrapping_add_signed(shift), 5400_u64.wrapping_add_signed(shift));
            let bad = traced(&ASKED, 1000, 5000, &times, 5600);
            assert_eq!(bad.ways, None, "{shift}");
            let text = line(&bad);
            assert_eq!(
                text,
                "trace read 7: total 1.0 us, to-server ?, server 0.3, filesystem 0.2, to-client ?"
            );
        }
    }

    #[test]
    fn listeners_get_lines_and_at_the_end_percentiles() {
        let (tracer, heard) = (Tracer::default(), Arc::new(Mutex::new(Vec::new())));
        assert!(tracer.wants().is_none());
        let place = Arc::clone(&heard);
        tracer.listen(
            2,
            Box::new(move |line| {
                place.lock().push(line.to_owned());
                true
            }),
        );
        // One that hangs up at once.
        tracer.listen(1, Box::new(|_| false));
        for seq in 0..9 {
            if let Some(read) = tracer.wants() {
                tracer.entered(0, seq, read);
                assert!(tracer.sends(0, seq) && !tracer.sends(1, seq) && !tracer.sends(0, seq + 1));
                tracer.served(0, seq, Times::default());
                tracer.ended(0, seq, &ASKED);
                assert!(!tracer.sends(0, seq));
            }
        }
        tracer.end();
        let heard = heard.lock();
        // The first of nine, and every second one of the eight others.
        assert_eq!(heard.iter().filter(|line| line.starts_with("trace read 7: total ")).count(), 5);
        assert!(heard.last().unwrap().starts_with("trace summary read: 5 traced"), "{heard:?}");
        assert!(tracer.wants().is_none());
    }

    #[test]
    fn what_has_no_times_leaves_nothing_behind() {
        let tracer = Tracer::default();
        tracer.listen(1, Box::new(|_| true));
        let read = tracer.wants().unwrap();
        tracer.entered(1, 1, read);
        tracer.ended(1, 1, &ASKED);
        assert!(tracer.marks.lock().is_empty());
    }
}
