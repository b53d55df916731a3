//! One open pack, and which of its ranges are allocated.
//!
//! A shared pack is allocated from front to back. In a page's own pack, every range has the offset that it
//! has in the page, in whatever order the writes arrive. So the same page written twice becomes the same
//! blob. A range that is allocated already (the file was overwritten meanwhile) cannot be allocated again;
//! such a write goes elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use base::PackNo;
use base::size::BLOB_MAX;
use parking_lot::Mutex;

use super::{Shared, Writer};

/// An open pack.
#[derive(Debug)]
pub(crate) struct OpenPack {
    pub(crate) no: PackNo,
    /// For a page's own pack: the offset in the page at which the pack begins.
    base: Option<u32>,
    /// For a page's own pack: the allocated ranges as (offset, end), sorted. Ranges that touch are joined.
    ranges: Mutex<Vec<(u32, u32)>>,
    /// The end of the last allocated range.
    pub(super) given: AtomicU32,
    /// The end of the last written byte. The pack is sealed up to here.
    written: AtomicU32,
    /// Slots that are not released.
    pub(super) slots: AtomicU32,
    /// When a range was last allocated, in ms since the packs were opened.
    pub(super) last_ms: AtomicU64,
    /// No more ranges are allocated.
    pub(super) closed: AtomicBool,
}

impl OpenPack {
    /// A pack whose first `len` bytes are written already.
    pub(super) fn new(no: PackNo, base: Option<u32>, len: u32) -> OpenPack {
        OpenPack {
            no,
            base,
            ranges: Mutex::default(),
            given: AtomicU32::new(len),
            written: AtomicU32::new(len),
            slots: AtomicU32::new(0),
            last_ms: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// The pack's length: the end of its last written byte.
    pub(crate) fn len(&self) -> u32 {
        self.written.load(Ordering::Acquire)
    }

    /// Bytes below [`OpenPack::len`] that were never allocated.
    pub(crate) fn holes(&self) -> u32 {
        if self.base.is_none() {
            return 0;
        }
        let given: u32 = self.ranges.lock().iter().map(|(from, to)| to - from).sum();
        self.len().saturating_sub(given)
    }

    /// The offset at which a write of `len` bytes would go; none if it does not fit.
    pub(super) fn fits(&self, writer: Writer, len: u32) -> Option<u32> {
        match (self.base, writer) {
            (Some(base), Writer::Page { at, .. }) => {
                let (from, to) = (at.checked_sub(base)?, at - base + len);
                let ranges = self.ranges.lock();
                let after = ranges.partition_point(|range| range.1 <= from);
                ranges.get(after).is_none_or(|range| range.0 >= to).then_some(from)
            }
            _ => {
                let from = self.given.load(Ordering::Acquire);
                (from + len <= BLOB_MAX).then_some(from)
            }
        }
    }

    /// Allocates the range that [`OpenPack::fits`] found. The caller has held the lock of all packs since
    /// then.
    pub(super) fn give(&self, from: u32, len: u32) {
        self.given.fetch_max(from + len, Ordering::AcqRel);
        if self.base.is_some() {
            insert(&mut self.ranges.lock(), (from, from + len));
        }
    }

    /// Whether nothing more can be allocated.
    pub(super) fn is_full(&self) -> bool {
        match self.base {
            Some(base) => *self.ranges.lock() == [(0, BLOB_MAX - base)],
            None => self.given.load(Ordering::Acquire) == BLOB_MAX,
        }
    }

    fn take_back(&self, from: u32, to: u32) {
        if self.base.is_some() {
            remove(&mut self.ranges.lock(), (from, to));
        }
        let _ = self.given.compare_exchange(to, from, Ordering::AcqRel, Ordering::Acquire);
    }
}

fn insert(ranges: &mut Vec<(u32, u32)>, new: (u32, u32)) {
    let at = ranges.partition_point(|range| range.1 < new.0);
    let mut joined = new;
    let mut until = at;
    while let Some(range) = ranges.get(until).filter(|range| range.0 <= joined.1) {
        joined = (joined.0.min(range.0), joined.1.max(range.1));
        until += 1;
    }
    ranges.splice(at..until, [joined]);
}

fn remove(ranges: &mut Vec<(u32, u32)>, old: (u32, u32)) {
    let Some(at) = ranges.iter().position(|range| range.0 <= old.0 && old.1 <= range.1) else { return };
    let (from, to) = ranges[at];
    let left = [(from, old.0), (old.1, to)];
    ranges.splice(at..=at, left.into_iter().filter(|(from, to)| from < to));
}

/// A range of an open pack that only the slot's holder writes.
pub(crate) struct Slot {
    pub(super) pack: Arc<OpenPack>,
    pub(crate) offset: u32,
    pub(super) len: u32,
    pub(super) packs: Arc<Shared>,
}

impl Slot {
    pub(crate) fn pack(&self) -> PackNo {
        self.pack.no
    }

    /// Records that the range holds its bytes now.
    pub(crate) fn filled(&self) {
        self.pack.written.fetch_max(self.offset + self.len, Ordering::AcqRel);
    }

    /// Returns the range after a failed write. It is allocated again if it is the last one.
    pub(crate) fn give_back(self) {
        // Under the lock: otherwise a range allocated between the test and the change would be allocated
        // twice.
        let _state = self.packs.state.lock();
        self.pack.take_back(self.offset, self.offset + self.len);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.pack.slots.fetch_sub(1, Ordering::AcqRel) == 1 && self.pack.closed.load(Ordering::Acquire) {
            self.packs.wake_sealer();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Own;
    use super::*;

    #[test]
    fn ranges_are_joined_and_taken_back() {
        let mut ranges = Vec::new();
        for range in [(10, 20), (0, 5), (30, 40), (20, 30), (5, 10)] {
            insert(&mut ranges, range);
        }
        assert_eq!(ranges, [(0, 40)]);
        remove(&mut ranges, (10, 20));
        assert_eq!(ranges, [(0, 10), (20, 40)]);
        remove(&mut ranges, (20, 40));
        remove(&mut ranges, (50, 60));
        assert_eq!(ranges, [(0, 10)]);
    }

    #[test]
    fn a_pages_own_pack_gives_each_range_once_and_where_it_lies_in_the_page() {
        let pack = OpenPack::new(PackNo(1), Some(100), 0);
        let page = |at| Writer::Page { ino: base::Ino(1), page: 0, at, base: 100, own: Own::Yes };
        assert_eq!(pack.fits(page(50), 10), None, "before the pack's beginning");
        assert_eq!(pack.fits(page(150), 10), Some(50));
        pack.give(50, 10);
        assert_eq!(pack.fits(page(155), 2), None);
        assert_eq!(pack.fits(page(140), 11), None);
        assert_eq!(pack.fits(page(140), 10), Some(40));
        assert_eq!(pack.fits(page(160), 10), Some(60));
        assert!(!pack.is_full());
        pack.give(0, 50);
        pack.give(60, BLOB_MAX - 100 - 60);
        assert!(pack.is_full());
    }
}
