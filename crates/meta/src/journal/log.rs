//! The log: records in order, in segments that are allocated in advance and reused.
//!
//! ```text
//!   full, full, ...     active            free, free
//!   (until applied)     (appended to)     (zeros, or stale records of an earlier use)
//! ```
//!
//! A record gets the next sequence number and goes into the active segment with one write. When it does not
//! fit, the next segment begins. A record larger than a segment gets a segment of its own length, which is
//! removed afterwards instead of reused. A segment stays full until everything in it is durable in the
//! database. Nothing here locks: the journal does.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::disk::{LogDisk, LogFile};
use super::format::{self, Kind, Place, SEGMENT_HEADER, SegmentHeader};

/// A file of the log.
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) file: Arc<dyn LogFile>,
}

struct Active {
    slot: Slot,
    segment: u64,
    /// The offset of the next record.
    at: u64,
    /// Whether the file is in `Log::unsynced`.
    dirty: bool,
}

/// Sizes of the log, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// A segment, with its header.
    pub(super) segment: u64,
    /// All segments together, except for records larger than this.
    pub(super) max: u64,
}

/// See the module.
pub(super) struct Log {
    disk: Arc<dyn LogDisk>,
    log_id: [u8; 16],
    /// The key of its records.
    key: u32,
    sizes: Sizes,
    active: Option<Active>,
    /// Each with the number of its last record.
    full: VecDeque<(Slot, u64)>,
    free: Vec<Slot>,
    unsynced: Vec<Arc<dyn LogFile>>,
    next_segment: u64,
    next_slot: u64,
    seq: u64,
}

impl Log {
    /// A log that continues after record `seq`, in new segments numbered from `next_segment`. `slots` are
    /// files that may be used.
    pub(super) fn new(
        disk: Arc<dyn LogDisk>,
        log_id: [u8; 16],
        sizes: Sizes,
        from: Place,
        slots: Vec<Slot>,
    ) -> Log {
        let numbers = slots.iter().filter_map(|slot| slot_number(&slot.name));
        let next_slot = numbers.max().map_or(0, |number| number + 1);
        let (unsynced, full) = (Vec::new(), VecDeque::new());
        let Place { segment: next_segment, seq, key } = from;
        let mut log = Log {
            disk,
            log_id,
            key,
            sizes,
            active: None,
            full,
            free: Vec::new(),
            unsynced,
            next_segment,
            next_slot,
            seq,
        };
        slots.into_iter().for_each(|slot| log.give_back(slot));
        log
    }

    /// The number of the last record.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Bytes of records and headers in segments that are not free.
    pub(super) fn used_bytes(&self) -> u64 {
        let full: u64 = self.full.iter().map(|(slot, _)| slot.file.len()).sum();
        full + self.active.as_ref().map_or(0, |active| active.at)
    }

    /// Bytes of all files.
    pub(super) fn file_bytes(&self) -> u64 {
        let free: u64 = self.free.iter().map(|slot| slot.file.len()).sum();
        let full: u64 = self.full.iter().map(|(slot, _)| slot.file.len()).sum();
        free + full + self.active.as_ref().map_or(0, |active| active.slot.file.len())
    }

    /// Whether a record of `len` bytes can be appended without creating a file, except for a large record,
    /// which needs its own. If not, it becomes possible when a spare was added or records were applied.
    pub(super) fn has_room(&self, len: u64) -> bool {
        let alone = SEGMENT_HEADER + len;
        if alone > self.sizes.segment {
            // A log with one segment takes a record of any length: waiting would not make more room.
            return self.in_use() <= 1 || self.file_bytes() + alone <= self.sizes.max;
        }
        let fits = self.active.as_ref().is_some_and(|active| active.at + len <= active.slot.file.len());
        fits || !self.free.is_empty()
    }

    /// How many segments were begun, by this process or earlier ones. When it changes, a spare may be
    /// missing.
    pub(super) fn begun(&self) -> u64 {
        self.next_segment
    }

    /// Appends the record whose payload follows [`format::begin`] in `buf`, even beyond the log's bound.
    ///
    /// # Errors
    /// The disk's. The log is then as before.
    pub(super) fn append(&mut self, kind: Kind, buf: &mut [u8]) -> io::Result<u64> {
        let len = buf.len() as u64;
        let mut active = match self.active.take() {
            Some(active) if active.at + len <= active.slot.file.len() => active,
            before => self.advance(before, len)?,
        };
        let done = self.append_to(&mut active, kind, buf);
        self.active = Some(active);
        done
    }

    fn append_to(&mut self, active: &mut Active, kind: Kind, buf: &mut [u8]) -> io::Result<u64> {
        let seq = self.seq + 1;
        format::finish(buf, kind, Place { segment: active.segment, seq, key: self.key });
        if let Err(error) = active.slot.file.write_at(active.at, buf) {
            // All of it may have reached the disk, and the caller is told that it failed. So a later open
            // must not find it.
            let _ = active.slot.file.write_at(active.at, &[0; format::RECORD_HEADER]);
            return Err(error);
        }
        if !active.dirty {
            active.dirty = true;
            self.unsynced.push(active.slot.file.clone());
        }
        active.at += buf.len() as u64;
        self.seq = seq;
        Ok(seq)
    }

    /// The files with bytes that are not durable yet, oldest first. The caller syncs them in this order.
    pub(super) fn take_unsynced(&mut self) -> Vec<Arc<dyn LogFile>> {
        if let Some(active) = &mut self.active {
            active.dirty = false;
        }
        std::mem::take(&mut self.unsynced)
    }

    /// Frees the segments that hold no record after `applied`.
    pub(super) fn recycle(&mut self, applied: u64) {
        while self.full.front().is_some_and(|(_, last)| *last <= applied) {
            if let Some((slot, _)) = self.full.pop_front() {
                self.give_back(slot);
            }
        }
    }

    /// Whether another file should be allocated in advance. There must always be two, also when the disk is
    /// tight: one to write to while the other is freed.
    pub(super) fn wants_spare(&self, tight: bool) -> bool {
        let room = !tight && self.file_bytes() + self.sizes.segment <= self.sizes.max;
        self.in_use() + self.free.len() < 2 || (self.free.is_empty() && room)
    }

    /// The name and length for such a file. A name is used once.
    pub(super) fn spare(&mut self) -> (String, u64) {
        (self.slot_name(), self.sizes.segment)
    }

    /// Adds the file that [`Log::spare`] described.
    pub(super) fn add_spare(&mut self, name: String, file: Arc<dyn LogFile>) {
        self.free.push(Slot { name, file });
    }

    /// Removes free segments except `kept`.
    pub(super) fn trim(&mut self, kept: usize) {
        for slot in self.free.drain(kept.min(self.free.len())..) {
            // The next start finds a file that cannot be removed, and uses it.
            let _ = self.disk.remove(&slot.name);
        }
    }

    fn in_use(&self) -> usize {
        self.full.len() + usize::from(self.active.is_some())
    }

    fn slot_name(&mut self) -> String {
        let number = self.next_slot;
        self.next_slot += 1;
        format!("{number:06}.log")
    }

    fn give_back(&mut self, slot: Slot) {
        if slot.file.len() == self.sizes.segment {
            self.free.push(slot);
        } else {
            let _ = self.disk.remove(&slot.name);
        }
    }

    /// Begins a segment with room for a record of `len` bytes. The segment that was active is full.
    fn advance(&mut self, before: Option<Active>, len: u64) -> io::Result<Active> {
        let begun = self.begin(len);
        match (before, begun) {
            (Some(before), Ok(active)) => {
                self.full.push_back((before.slot, self.seq));
                Ok(active)
            }
            (before, begun) => {
                self.active = before;
                begun
            }
        }
    }

    fn begin(&mut self, len: u64) -> io::Result<Active> {
        let slot = self.slot_for(SEGMENT_HEADER + len)?;
        let segment = self.next_segment;
        let (log_id, first_seq, slot_len) = (self.log_id, self.seq + 1, slot.file.len());
        let header =
            SegmentHeader { version: format::VERSION, log_id, segment, first_seq, len: slot_len }.encode();
        if let Err(error) = slot.file.write_at(0, &header) {
            self.give_back(slot);
            return Err(error);
        }
        // Segment numbers are never reused, even if the first record of a segment is refused.
        self.next_segment += 1;
        self.unsynced.push(slot.file.clone());
        Ok(Active { slot, segment, at: SEGMENT_HEADER, dirty: true })
    }

    fn slot_for(&mut self, len: u64) -> io::Result<Slot> {
        if len <= self.sizes.segment
            && let Some(slot) = self.free.pop()
        {
            return Ok(slot);
        }
        let (name, len) = (self.slot_name(), len.max(self.sizes.segment));
        let file = self.disk.create(&name, len)?;
        Ok(Slot { name, file })
    }
}

pub(super) fn slot_number(name: &str) -> Option<u64> {
    name.strip_suffix(".log")?.parse().ok()
}
