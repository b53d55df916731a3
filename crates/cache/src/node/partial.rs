//! How much of a remote blob a read fetches: a decision without I/O.
//!
//! A read fetches the groups that it asks for and that are not here. It fetches more only on evidence:
//!
//! - **The groups before it were read.** The fetch adds as much read-ahead as was read in sequence up to
//!   here, at most [`AHEAD`]. So a sequential reader needs few requests, and one that stops has fetched at
//!   most twice what it read.
//! - **Half of the blob was asked for.** Then the whole blob is fetched: in total at most four times what was
//!   asked for, and at most three times if the reads were scattered.
//! - **Scattered places of the blob were read** ([`PLACES`]), and most fetched bytes are read ([`Credit`]).
//!   Examples are small files of one pack in any order, or a dataset in which every record is read. If most
//!   fetched bytes are not read, only parts of the blob are fetched.
//!
//! A fetch of the whole blob fetches only what is not here ([`super::rest`]).
//!
//! With [`Access::Random`] there is no read-ahead, and the whole is fetched only when its parts would be more
//! bytes. With [`Access::Stream`] the whole is fetched at once.

use std::collections::{HashMap, VecDeque};

use base::BlobId;
use base::size::{BLOB_MAX, GROUP, MIB};
use blob::Access;

/// Maximum read-ahead of one read.
const AHEAD: u32 = MIB as u32;
/// After this many fetches of parts of one blob, the whole may be worthwhile.
const PLACES: u32 = 3;
/// How many blobs have a record of their fetched parts: 64 GiB of whole blobs.
const BLOBS: usize = 16 << 10;
/// Fetched bytes may exceed read bytes by this factor ...
const TIMES: i64 = 3;
/// ... plus this constant.
const CONSTANT: i64 = 16 * MIB as i64;

/// What was fetched of a blob.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Bytes, in whole groups. Some may be counted twice.
    fetched: u32,
    /// Number of fetches.
    places: u32,
    /// The groups that were asked for, the first in the lowest bit.
    asked: u64,
    /// The blob's size, once a part of it has arrived.
    size: Option<u32>,
}

/// Bytes of all blobs, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Bytes that were read.
    pub(super) read: u64,
    /// Bytes that were fetched.
    pub(super) fetched: u64,
}

/// Bytes that may be fetched without being asked for. Reads add to the credit, and fetches take from it.
#[derive(Debug)]
struct Credit {
    left: i64,
    read: u64,
    fetched: u64,
}

impl Credit {
    /// Takes `bytes` if the credit suffices.
    fn take(&mut self, totals: Totals, bytes: u32) -> bool {
        let Totals { read, fetched } = totals;
        let since = |now: u64, then: u64| now.saturating_sub(then).min(1 << 40).cast_signed();
        let earned = TIMES * since(read, self.read) - since(fetched, self.fetched);
        self.left = (self.left + earned).clamp(-CONSTANT, CONSTANT);
        // `fetched` may already include bytes that were taken but have not arrived yet.
        (self.read, self.fetched) = (read.max(self.read), fetched.max(self.fetched));
        let enough = self.left >= i64::from(bytes);
        if enough {
            self.left -= i64::from(bytes);
            self.fetched = self.fetched.saturating_add(u64::from(bytes));
        }
        enough
    }
}

/// What to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// The bytes from the first offset to the second, in whole groups.
    Part(u32, u32),
    /// The whole blob.
    Whole,
}

/// A range, in whole groups, that is read and is not here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) access: Access,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Partial {
    records: HashMap<BlobId, Record>,
    order: VecDeque<BlobId>,
    credit: Credit,
}

impl Default for Partial {
    fn default() -> Partial {
        let credit = Credit { left: CONSTANT, read: 0, fetched: 0 };
        Partial { records: HashMap::new(), order: VecDeque::new(), credit }
    }
}

impl Partial {
    /// What to fetch for a read.
    pub(super) fn plan(&mut self, id: &BlobId, need: &Need, totals: Totals) -> Fetch {
        let record = self.records.get(id).copied().unwrap_or_default();
        let size = record.size.unwrap_or(BLOB_MAX);
        let to = match (need.access, record.size) {
            (Access::Stream, _) => return Fetch::Whole,
            (Access::Normal, Some(size)) => {
                let ahead = need.to.saturating_add(record.run_before(need.from).min(AHEAD));
                ahead.min(size.next_multiple_of(GROUP)).max(need.to)
            }
            _ => need.to,
        };
        let asked = (record.asked | groups(need.from, need.to)).count_ones() * GROUP;
        let mut whole = record.fetched.saturating_add(to - need.from) > size.next_multiple_of(GROUP);
        if need.access == Access::Normal {
            whole |= record.places > 0 && asked >= size / 2;
            whole |= record.places >= PLACES
                && record.run_before(need.from) == 0
                && self.credit.take(totals, size.saturating_sub(record.fetched));
        }
        if whole { Fetch::Whole } else { Fetch::Part(need.from, to) }
    }

    /// Records a fetch of bytes of the blob for a read.
    pub(super) fn fetches(&mut self, id: &BlobId, from: u32, to: u32) {
        if !self.records.contains_key(id) {
            if self.order.len() == BLOBS
                && let Some(oldest) = self.order.pop_front()
            {
                self.records.remove(&oldest);
            }
            self.order.push_back(*id);
        }
        let record = self.records.entry(*id).or_default();
        record.fetched = record.fetched.saturating_add(to.saturating_sub(from));
        record.places += 1;
    }

    /// Records the blob's size, once a part of it has arrived.
    pub(super) fn came(&mut self, id: &BlobId, size: u32) {
        if let Some(record) = self.records.get_mut(id) {
            record.size = Some(size);
        }
    }

    /// Forgets the blob's size, because parts of it disagree.
    pub(super) fn doubt_size(&mut self, id: &BlobId) {
        if let Some(record) = self.records.get_mut(id) {
            record.size = None;
        }
    }

    /// The blob's size, if it is known.
    pub(super) fn size(&self, id: &BlobId) -> Option<u32> {
        self.records.get(id)?.size
    }

    /// Records that bytes of the blob were read, from any source.
    pub(super) fn reads(&mut self, id: &BlobId, from: u32, to: u32) {
        if let Some(record) = self.records.get_mut(id) {
            record.asked |= groups(from, to);
        }
    }
}

impl Record {
    /// How many bytes directly before this group were asked for.
    fn run_before(&self, from: u32) -> u32 {
        // Shifts the bits below that group to the top.
        let before = self.asked.checked_shl(64 - from / GROUP).unwrap_or(0);
        before.leading_ones() * GROUP
    }
}

/// The groups that overlap a range, as bits.
pub(super) fn groups(from: u32, to: u32) -> u64 {
    let up_to = |group: u32| 1u64.checked_shl(group).map_or(u64::MAX, |bit| bit - 1);
    up_to(to.div_ceil(GROUP)) & !up_to(from / GROUP)
}

const _: () = assert!(BLOB_MAX / GROUP == u64::BITS);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: BlobId = BlobId([1; 32]);

    impl Partial {
        /// Plans the fetch of a range and carries it out.
        fn read(&mut self, id: &BlobId, groups: std::ops::Range<u32>, access: Access) -> Fetch {
            let need = Need { from: groups.start * GROUP, to: groups.end * GROUP, access };
            // No fetched bytes count as read, so the credit is only the constant.
            let fetch = self.plan(id, &need, Totals::default());
            if let Fetch::Part(from, to) = fetch {
                self.fetches(id, from, to);
                self.came(id, BLOB_MAX);
            }
            self.reads(id, need.from, need.to);
            fetch
        }
    }

    fn part(groups: std::ops::Range<u32>) -> Fetch {
        Fetch::Part(groups.start * GROUP, groups.end * GROUP)
    }

    #[test]
    fn a_reader_that_goes_through_a_blob_needs_few_requests() {
        let mut partial = Partial::default();
        assert_eq!(partial.read(&ID, 0..2, Access::Normal), part(0..2));
        assert_eq!(partial.read(&ID, 2..4, Access::Normal), part(2..6), "twice as much");
        let skips = partial.plan(
            &ID,
            &Need { from: 6 * GROUP, to: 8 * GROUP, access: Access::Normal },
            Totals::default(),
        );
        assert_eq!(skips, part(6..8), "what was fetched in advance was not read");
        partial.reads(&ID, 4 * GROUP, 6 * GROUP);
        assert_eq!(partial.read(&ID, 6..8, Access::Normal), part(6..14));
        partial.reads(&ID, 8 * GROUP, 14 * GROUP);
        assert_eq!(partial.read(&ID, 14..16, Access::Normal), part(14..30));
        partial.reads(&ID, 16 * GROUP, 30 * GROUP);
        assert_eq!(partial.read(&ID, 30..32, Access::Normal), Fetch::Whole, "half of it is asked for");
    }

    #[test]
    fn places_here_and_there_are_parts_until_there_are_many_and_what_is_fetched_is_read() {
        let mut partial = Partial::default();
        for n in 0..3 {
            assert_eq!(partial.read(&ID, n * 9..n * 9 + 1, Access::Normal), part(n * 9..n * 9 + 1));
        }
        assert_eq!(partial.read(&ID, 40..41, Access::Normal), Fetch::Whole);
        // The same for other blobs, while the credit lasts: four blobs in total.
        let wholes = (2..100u8).filter(|n| {
            let id = BlobId([*n; 32]);
            (0..4).map(|n| partial.read(&id, n * 9..n * 9 + 1, Access::Normal)).last() == Some(Fetch::Whole)
        });
        assert_eq!(wholes.count(), 4 - 1);
    }

    #[test]
    fn what_is_said_of_the_access_decides() {
        let mut partial = Partial::default();
        assert_eq!(partial.read(&ID, 3..4, Access::Stream), Fetch::Whole);
        for n in 0..64 {
            assert_eq!(partial.read(&ID, n..n + 1, Access::Random), part(n..n + 1));
        }
        assert_eq!(partial.read(&ID, 5..6, Access::Random), Fetch::Whole, "its parts would be more bytes");
        // Each part is fetched only once, also where the blob ends within a group.
        let id = BlobId([2; 32]);
        for n in 0..3 {
            assert_eq!(partial.read(&id, n..n + 1, Access::Random), part(n..n + 1));
            partial.came(&id, 2 * GROUP + 5);
        }
    }

    #[test]
    fn what_is_read_is_credit_and_what_is_fetched_is_not() {
        let mut credit = Credit { left: CONSTANT, read: 0, fetched: 0 };
        let mut take = |read, fetched, bytes| credit.take(Totals { read, fetched }, bytes);
        for n in 0..4 {
            assert!(take(0, n * u64::from(BLOB_MAX), BLOB_MAX), "{n}");
        }
        let fetched = 4 * u64::from(BLOB_MAX);
        assert!(!take(0, fetched, 1));
        assert!(take(2 * MIB, fetched, 6 * MIB as u32) && !take(2 * MIB, fetched, 1));
        // The credit never exceeds the constant, however much was read.
        assert!(!take(1 << 40, fetched, CONSTANT as u32 + 1) && take(1 << 40, fetched, CONSTANT as u32));
    }

    proptest! {
        /// Without credit, reads in any order fetch at most four times the groups that were asked for.
        #[test]
        fn what_is_fetched_is_bounded(
            reads in prop::collection::vec((0u32..64, 1u32..17), 1..200), random in any::<bool>(),
        ) {
            let mut partial = Partial::default();
            partial.credit.left = -CONSTANT;
            let access = if random { Access::Random } else { Access::Normal };
            let (mut here, mut asked, mut fetched) = (0u64, 0u64, 0);
            for (from, len) in reads {
                let to = (from + len).min(64);
                let mut at = from;
                while let Some(group) = (at..to).find(|n| here & 1 << n == 0) {
                    let end = (group..to).find(|n| here & 1 << n != 0).unwrap_or(to);
                    match partial.read(&ID, group..end, access) {
                        Fetch::Part(from, to) => {
                            prop_assert!(from == group * GROUP && to >= end * GROUP && to <= BLOB_MAX);
                            here |= groups(from, to);
                            fetched += (to - from) / GROUP;
                        }
                        Fetch::Whole => {
                            here = u64::MAX;
                            fetched += 64;
                        }
                    }
                    at = end;
                }
                partial.reads(&ID, from * GROUP, to * GROUP);
                asked |= groups(from * GROUP, to * GROUP);
            }
            prop_assert!(fetched <= 4 * asked.count_ones(), "{fetched} for {}", asked.count_ones());
        }
    }
}
