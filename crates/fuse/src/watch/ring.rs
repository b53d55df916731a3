//! The last requests of one thread, for observers.
//!
//! This is a ring of slots. Its writer is one reader thread (in the last lane, all workers), and it never
//! waits: a slow observer loses the oldest records. Each slot has a stamp. The stamp is odd while the slot is
//! written, and twice the record's number + 2 when the slot is complete. An observer reads the stamp, the
//! words, and the stamp again. If the stamp has changed, this observer has lost the record.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use base::phase::{PHASES, Phase, Spent};

/// One served request. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The request's number among the requests that its thread received. `every` selects by this number.
    pub seq: u64,
    /// The kernel's number for it.
    pub unique: u64,
    /// The inode of the request.
    pub ino: u64,
    /// When the daemon received it, on the monotonic clock.
    pub at: u64,
    /// The request's opcode.
    pub opcode: u32,
    /// The thread that sent it; 0 if the kernel sent it on its own.
    pub pid: u32,
    /// Bytes read or written.
    pub bytes: u32,
    /// 0, or the error number of the reply.
    pub error: u32,
    /// Where in the file it reads or writes. 0 for other requests.
    pub offset: u64,
    /// From receiving it to having the result.
    pub served: u64,
    /// Sending the reply.
    pub reply: u64,
    /// The part of `served` spent waiting for a worker.
    pub wait: u64,
    /// The parts of `served`, by phase.
    pub spent: Spent,
}

const WORDS: usize = 15;

impl Record {
    fn words(&self) -> [u64; WORDS] {
        let both = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let [_, names, blob, cache, peer, origin] = self.spent;
        [
            self.seq,
            self.unique,
            self.ino,
            self.at,
            both(self.opcode, self.pid),
            both(self.bytes, self.error),
            self.served,
            self.reply,
            self.wait,
            names,
            blob,
            cache,
            peer,
            origin,
            self.offset,
        ]
    }

    fn of(words: [u64; WORDS]) -> Record {
        let [
            seq,
            unique,
            ino,
            at,
            kind,
            outcome,
            served,
            reply,
            wait,
            names,
            blob,
            cache,
            peer,
            origin,
            offset,
        ] = words;
        let mut spent = [0, names, blob, cache, peer, origin];
        // The time that belongs to no other phase is the daemon's own.
        spent[Phase::Own as usize] = served.saturating_sub(wait + spent[1..PHASES].iter().sum::<u64>());
        Record {
            seq,
            unique,
            ino,
            at,
            opcode: (kind >> 32) as u32,
            pid: kind as u32,
            bytes: (outcome >> 32) as u32,
            error: outcome as u32,
            offset,
            served,
            reply,
            wait,
            spent,
        }
    }
}

/// A stamp and a record: two cache lines.
#[repr(align(128))]
struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The ring of one lane.
pub(super) struct Ring {
    slots: Box<[Slot]>,
    head: AtomicU64,
}

impl Ring {
    /// A ring for `len` records, a power of two. A slot takes memory only once it is written to.
    pub(super) fn new(len: usize) -> Ring {
        let slots = Box::<[Slot]>::new_zeroed_slice(len.next_power_of_two());
        // SAFETY: a slot is plain atomic numbers, for which all zero bytes are a value.
        Ring { slots: unsafe { slots.assume_init() }, head: AtomicU64::new(0) }
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    pub(super) fn push(&self, record: &Record) {
        let number = self.head.fetch_add(1, Ordering::Relaxed);
        let slot = self.slot(number);
        let stamp = slot.stamp.load(Ordering::Relaxed);
        // Odd: another writer was overtaken by a whole round while it wrote, and still owns the slot.
        let taken = stamp.is_multiple_of(2)
            && slot
                .stamp
                .compare_exchange(stamp, number * 2 + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !taken {
            return;
        }
        fence(Ordering::Release);
        for (place, word) in slot.words.iter().zip(record.words()) {
            place.store(word, Ordering::Relaxed);
        }
        slot.stamp.store(number * 2 + 2, Ordering::Release);
    }

    /// The number that the next record gets.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Passes the records from number `next` on to `each`. Returns where to continue, and how many were lost.
    pub(super) fn read(&self, mut next: u64, each: &mut dyn FnMut(Record)) -> (u64, u64) {
        let (head, len) = (self.head(), self.slots.len() as u64);
        let mut lost = 0;
        if head.saturating_sub(next) > len {
            lost += head - len - next;
            next = head - len;
        }
        while next < head {
            let slot = self.slot(next);
            let stamp = slot.stamp.load(Ordering::Acquire);
            let mut words = [0; WORDS];
            for (word, place) in words.iter_mut().zip(&slot.words) {
                *word = place.load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            let whole = slot.stamp.load(Ordering::Relaxed) == stamp && stamp == next * 2 + 2;
            if whole {
                each(Record::of(words));
            } else if stamp < next * 2 + 2 && head - next < len / 2 {
                // It is being written and will be complete soon.
                break;
            } else {
                lost += 1;
            }
            next += 1;
        }
        (next, lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(seq: u64) -> Record {
        Record { seq, unique: seq, served: seq, at: seq, spent: [seq, 0, 0, 0, 0, 0], ..Record::default() }
    }

    #[test]
    fn a_record_comes_back_whole() {
        let ring = Ring::new(4);
        let record = Record {
            seq: 1,
            unique: u64::MAX,
            ino: 3,
            at: 4,
            opcode: 5,
            pid: u32::MAX,
            bytes: 7,
            error: 8,
            offset: u64::MAX,
            served: 100,
            reply: 10,
            wait: 11,
            spent: [79, 1, 2, 3, 0, 4],
        };
        ring.push(&record);
        let mut seen = Vec::new();
        assert_eq!(ring.read(0, &mut |record| seen.push(record)), (1, 0));
        assert_eq!(seen, [record]);
    }

    #[test]
    fn a_slow_observer_loses_the_oldest_records() {
        let ring = Ring::new(8);
        (0..20).for_each(|seq| ring.push(&numbered(seq)));
        let mut seen = Vec::new();
        assert_eq!(ring.read(2, &mut |record| seen.push(record.seq)), (20, 10));
        assert_eq!(seen, (12..20).collect::<Vec<_>>());
    }

    #[test]
    fn records_are_never_torn() {
        let ring = Ring::new(64);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..100_000).for_each(|seq| ring.push(&numbered(seq))));
            }
            let observer = scope.spawn(|| {
                let (mut next, mut seen) = (0, 0_u64);
                // Also if it begins when the others are done.
                let begun = base::time::monotonic();
                let is_early = |seen| seen == 0 && begun.elapsed() < std::time::Duration::from_secs(60);
                while !stop.load(Ordering::Relaxed) || is_early(seen) {
                    (next, _) = ring.read(next, &mut |record| {
                        assert_eq!(record, numbered(record.seq));
                        seen += 1;
                    });
                }
                seen
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            stop.store(true, Ordering::Relaxed);
            assert!(observer.join().unwrap() > 0);
        });
    }
}
