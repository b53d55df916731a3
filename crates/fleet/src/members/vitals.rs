//! The free space and the load of nodes. These change while a node runs, and are only hints.
//!
//! Records of eleven bytes are sent at the front of gossip that is sent anyway, at most four in a datagram. A
//! node stamps a new record when its figures have changed, at most as often as [`interval`] says, and from
//! time to time without a change. A node that receives a record for the first time passes it on a few times.
//! So the cost does not grow with the fleet. The age of the figures does: seconds in a fleet of fifty, about
//! a minute in one of a thousand.
//!
//! ```text
//! first four bytes of the node's id 4 | its run, the lowest byte 1 | stamp 2 | free 2 | load 2
//! ```
//!
//! Free space is rounded to eleven bits. Two nodes whose ids begin with the same bytes share a record. Among
//! ten thousand fleets of a thousand nodes, one has such a pair, and the damage is a wrong hint.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::{Buf, BufMut};
use net::id::NodeId;

/// A record's length.
const RECORD: usize = 11;
/// The most records in one datagram.
const RECORDS: usize = 4;
/// The largest size of records in a datagram, in bytes.
pub const VITALS_MAX: usize = 1 + RECORDS * RECORD;
/// How many times a received record is passed on.
const RELAYS: u8 = 3;
/// How many times a node sends its own.
const OWN: u8 = 6;
/// How many records wait to be passed on. The oldest are dropped.
const QUEUE: usize = 128;
/// How many nodes are remembered.
const NODES: usize = 4096;
/// After this many intervals a record is sent although nothing has changed.
const UNCHANGED: u32 = 8;

type Short = [u8; 4];

fn short(node: NodeId) -> Short {
    let [a, b, c, d, ..] = node.0;
    [a, b, c, d]
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    run: u8,
    stamp: u16,
    free: u16,
    load: u16,
}

/// How long a node waits between two records of its own in a fleet of `nodes`.
pub fn interval(nodes: usize) -> Duration {
    Duration::from_millis((nodes as u64 * 50).clamp(3_000, 60_000))
}

/// Five bits of exponent and eleven of mantissa.
fn coarse(free: u32) -> u16 {
    let exponent = 21u32.saturating_sub(free.leading_zeros());
    ((exponent as u16) << 11) | (free >> exponent) as u16
}

fn fine(coarse: u16) -> u32 {
    // More than 21 is never written.
    let exponent = u32::from(coarse >> 11).min(21);
    u32::from(coarse & 0x7ff) << exponent
}

/// The known figures of all nodes, and the records to be passed on.
#[derive(Debug, Default)]
pub struct Vitals {
    known: HashMap<Short, Record>,
    queue: VecDeque<(Short, u8)>,
    due: Duration,
    unchanged: u32,
}

impl Vitals {
    /// The free space and load of a node, both in MiB, if they are known for this run of it.
    pub fn of(&self, node: NodeId, run: u64) -> Option<(u32, u16)> {
        let record = self.known.get(&short(node)).filter(|record| record.run == run as u8)?;
        Some((fine(record.free), record.load))
    }

    /// Whether this node may stamp a new record, in a fleet of `nodes`.
    pub fn is_due(&mut self, now: Duration, nodes: usize) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now + interval(nodes);
        }
        due
    }

    /// Sets this node's own figures. They are sent if they have changed, or were not sent for long.
    pub fn own(&mut self, node: NodeId, run: u64, free: u32, load: u16) {
        let key = short(node);
        let new = Record { run: run as u8, stamp: 0, free: coarse(free), load };
        let last = self.known.get(&key).copied();
        let same = last.is_some_and(|last| Record { stamp: 0, ..last } == new);
        self.unchanged = if same { self.unchanged + 1 } else { 0 };
        if same && !self.unchanged.is_multiple_of(UNCHANGED) {
            return;
        }
        let stamp = last.map_or(0, |last| last.stamp.wrapping_add(1));
        self.known.insert(key, Record { stamp, ..new });
        self.queue.retain(|(queued, _)| *queued != key);
        self.queue.push_front((key, OWN));
    }

    /// Keeps only the records of these nodes. Called when the fleet has changed.
    pub fn keep(&mut self, nodes: impl Iterator<Item = NodeId>) {
        let nodes: std::collections::HashSet<Short> = nodes.map(short).collect();
        self.known.retain(|key, _| nodes.contains(key));
    }

    /// Writes the records to be passed on: a count, and that many records.
    pub fn put(&mut self, to: &mut impl BufMut) {
        let count = self.queue.len().min(RECORDS);
        let taken: Vec<(Short, u8)> = self.queue.drain(..count).collect();
        let records: Vec<(Short, Record, u8)> =
            taken.into_iter().filter_map(|(key, left)| Some((key, *self.known.get(&key)?, left))).collect();
        to.put_u8(records.len() as u8);
        for (key, record, left) in records {
            to.put_slice(&key);
            to.put_u8(record.run);
            for field in [record.stamp, record.free, record.load] {
                to.put_u16(field);
            }
            if left > 1 {
                self.queue.push_back((key, left - 1));
            }
        }
    }

    /// Reads records that another node passes on. Newer ones than the known are kept, and passed on. True if
    /// there were any. None if the data is truncated. `me` ignores records about itself.
    pub fn take(&mut self, from: &mut &[u8], me: NodeId) -> Option<bool> {
        let count = usize::from(from.try_get_u8().ok()?);
        if count > RECORDS || from.remaining() < count * RECORD {
            return None;
        }
        let mut news = false;
        for _ in 0..count {
            let mut key = Short::default();
            from.copy_to_slice(&mut key);
            let (run, stamp) = (from.get_u8(), from.get_u16());
            let (free, load) = (from.get_u16(), from.get_u16());
            news |= key != short(me) && self.hear(key, Record { run, stamp, free, load });
        }
        Some(news)
    }

    fn hear(&mut self, key: Short, heard: Record) -> bool {
        let newer = match self.known.get(&key) {
            // Half of the numbers are after a stamp, the other half before it. The same holds for runs.
            Some(known) if known.run == heard.run => heard.stamp.wrapping_sub(known.stamp) as i16 > 0,
            Some(known) => heard.run.wrapping_sub(known.run) as i8 > 0,
            None => self.known.len() < NODES,
        };
        if newer {
            self.known.insert(key, heard);
            self.queue.retain(|(queued, _)| *queued != key);
            self.queue.push_back((key, RELAYS));
            if self.queue.len() > QUEUE {
                self.queue.pop_front();
            }
        }
        newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId([1; 16]);
    const B: NodeId = NodeId([2; 16]);

    #[test]
    fn free_space_is_rounded_down_by_a_thousandth_at_most() {
        for free in [0, 1, 2047, 2048, 4095, 1 << 20, u32::MAX, 123_456_789] {
            let read = fine(coarse(free));
            assert!(read <= free && free - read <= free / 1024, "{free} {read}");
        }
        (0..=u16::MAX).for_each(|any| {
            fine(any);
        });
    }

    #[test]
    fn news_travel_and_old_news_do_not() {
        let (mut a, mut b) = (Vitals::default(), Vitals::default());
        a.own(A, 1, 500, 3);
        let mut first = Vec::new();
        a.put(&mut first);
        assert_eq!(b.take(&mut &first[..], B), Some(true));
        assert_eq!(b.of(A, 1), Some((500, 3)));
        assert_eq!(b.of(A, 2), None, "of another run");
        assert_eq!(b.take(&mut &first[..], B), Some(false), "heard before");
        a.own(A, 1, 400, 9);
        let mut second = Vec::new();
        a.put(&mut second);
        assert_eq!(b.take(&mut &second[..], B), Some(true));
        assert_eq!(b.take(&mut &first[..], B), Some(false));
        assert_eq!(b.of(A, 1), Some((400, 9)));
        assert_eq!(a.take(&mut &first[..], A), Some(false), "records of the node itself are ignored");

        let mut restarted = Vitals::default();
        restarted.own(A, 2, 1, 1);
        let mut third = Vec::new();
        restarted.put(&mut third);
        assert_eq!(b.take(&mut &third[..], B), Some(true), "a new run counts its stamps anew");
        assert_eq!(b.of(A, 2), Some((1, 1)));
        b.keep([B].into_iter());
        assert_eq!(b.of(A, 2), None);
    }

    #[test]
    fn a_record_is_passed_on_a_few_times_only() {
        let mut vitals = Vitals::default();
        vitals.own(A, 1, 1, 1);
        let sent = (0..100)
            .filter(|_| {
                let mut bytes = Vec::new();
                vitals.put(&mut bytes);
                bytes[0] > 0
            })
            .count();
        assert_eq!(sent, usize::from(OWN));
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let mut vitals = Vitals::default();
        for bytes in [&[][..], &[1], &[4; 44], &[5; 200]] {
            assert_eq!(vitals.take(&mut &bytes[..], A), None, "{bytes:?}");
        }
    }
}
