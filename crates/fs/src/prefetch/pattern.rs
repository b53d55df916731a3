//! Recognizes how one file is read, and predicts what will be read next: a value without I/O, of a fixed
//! size.
//!
//! ```text
//!   run       ▓▓▓▓▓▓▓▓▓▓→░░░░░░░░░   each read begins (almost) where the last one ended
//!   backward  ░░░░░░←▓▓▓▓▓▓▓▓▓▓▓▓▓   faults of sixteen pages close together
//!   steps     ▓······▓······▓······░······░   three or more reads at the same distance
//! ```
//!
//! - **A run** is identified by its two ends. A small read (a fault brings sixteen pages) belongs to it if it
//!   is within [`NEAR`] of the moving end, a large one within [`DISORDER`], because the kernel sends the
//!   pieces of a stream several at a time and not always in order. [`RUNS`] runs are remembered for each
//!   file: several threads may load one file from several places.
//! - **Steps** are small reads at a constant distance, forward or backward: a column of a table, every tenth
//!   record. If they are far enough apart, only the ranges are wanted, otherwise whole blobs.
//! - **A mapping is no stream.** A fault makes the kernel read a window around it (`read_ahead_kb`), and the
//!   next window when the program reaches the last quarter. So a program that looks at a header and at a
//!   record in the middle causes a few large consecutive reads. Whole pages are wanted only when a run is as
//!   long as [`EVIDENCE`], and most of it was read. From the beginning of a file, which is mostly read to its
//!   end, [`EVIDENCE_AT_START`] is enough. Until then the cache fetches parts.
//! - What is wanted is **bounded by what was read**: for a run, twice as much as was read in it, less
//!   [`EVIDENCE`] (from the beginning of a file, [`TIMES`] times as much plus [`FIRST`]); for steps, as many
//!   as there have been; and always by [`MOST`] and the file's ends. The page that is being read is wanted
//!   too, if enough of it is left ([`REST`]). So a program that reads a little and stops causes few useless
//!   fetches.
//! - If the program has announced a stream, the first read is enough evidence. If it has announced random
//!   reads, this module is not asked at all.
//! - A read that matches nothing is a jump, and predicts nothing.

use base::size::{BLOB_MAX, KIB};

/// A read of at least this many bytes may be part of a stream.
pub(super) const STREAM_MIN: usize = 128 << 10;
/// A page of extents, in bytes.
pub(super) const PAGE: u64 = BLOB_MAX as u64;
/// Small reads within this distance belong together.
const NEAR: u64 = 256 * KIB;
/// The kernel's pieces of a stream are out of order by at most this many bytes.
const DISORDER: u64 = 2 * PAGE;
/// The number of runs that are remembered.
const RUNS: usize = 4;
/// The factor between what was read in a run and what is wanted ahead of it.
pub(super) const TIMES: u64 = 3;
/// Added to that at a file's beginning.
const FIRST: u64 = PAGE;
/// A run is a stream when this much of it was read: more than the kernel's windows around a few faults.
const EVIDENCE: u64 = 2048 * KIB;
/// A run from a file's beginning is a stream when this much of it was read: three of the kernel's windows.
const EVIDENCE_AT_START: u64 = 384 * KIB;
/// The page that is being read is wanted as a whole if this much of it is left.
const REST: u64 = 512 * KIB;
/// The upper bound. A network needs enough requests in flight to fill it. A cache has space for this many in
/// addition to those that readers wait for.
pub(super) const MOST: u64 = 12 * PAGE;
/// The number of small reads close together that make a run. Two large ones are enough.
const RUN_READS: u32 = 3;
/// The number of consecutive equal distances that make steps: three reads.
const STEP_TIMES: u32 = 2;
/// The highest number of steps ahead.
const STEPS_MOST: u32 = 8;
/// The largest part that a cache prefetches.
const PART_MAX: u32 = 1 << 20;
/// Steps closer together than this many times their length (at least a group of 64 KiB) are a stream with
/// gaps.
const CLOSE: u64 = 3;

// Pages are the unit of prediction: where blobs are remote, each page is one blob.
const _: () = assert!(STREAM_MIN < BLOB_MAX as usize);

/// A read of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) offset: u64,
    /// At least 1.
    pub(super) len: u32,
    /// The size of the file. The read ends within it.
    pub(super) size: u64,
}

impl Read {
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    fn is_large(&self) -> bool {
        self.len as usize >= STREAM_MIN
    }

    /// The largest distance from a run's end at which it belongs to the run.
    fn reach(&self) -> u64 {
        if self.is_large() { DISORDER } else { NEAR }
    }
}

/// The prediction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The wanted whole pages, the next one first.
    pub(super) pages: Vec<u32>,
    /// Only these ranges: offset and length.
    pub(super) places: Vec<(u64, u32)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Unknown,
    Forward,
    Backward,
}

/// Reads close together, which move from one end of the run to the other.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    from: u64,
    to: u64,
    /// Bytes read of it.
    read: u64,
    /// The number of reads that moved its end.
    reads: u32,
    way: Way,
    /// Whether any of its reads was a large one.
    large: bool,
    /// When it was last used, in the pattern's count of reads; 0: never.
    used: u64,
    /// The last pages that were wanted: the first and the last of them.
    told: Option<(u32, u32)>,
}

impl Run {
    fn begin(read: &Read, used: u64) -> Run {
        let begins = read.offset == 0 && read.is_large();
        Run {
            from: read.offset,
            to: read.end(),
            read: u64::from(read.len),
            reads: 1,
            way: if begins { Way::Forward } else { Way::Unknown },
            large: read.is_large(),
            used,
            told: None,
        }
    }

    fn takes(&self, read: &Read, reach: u64) -> bool {
        let forward = read.offset.abs_diff(self.to) <= reach;
        let backward = read.end().abs_diff(self.from) <= reach;
        self.used > 0
            && match self.way {
                Way::Unknown => forward || backward,
                Way::Forward => forward,
                Way::Backward => backward,
            }
    }

    fn add(&mut self, read: &Read, used: u64) {
        let (before, after) = (read.offset < self.from, read.end() > self.to);
        if self.way == Way::Unknown {
            self.way = match (before, after) {
                (false, true) => Way::Forward,
                (true, false) => Way::Backward,
                _ => Way::Unknown,
            };
        }
        let moves = if self.way == Way::Backward { before } else { after };
        self.reads = self.reads.saturating_add(u32::from(moves));
        self.large |= read.is_large();
        (self.from, self.to) = (self.from.min(read.offset), self.to.max(read.end()));
        self.read = (self.read + u64::from(read.len)).min(self.to - self.from);
        self.used = used;
    }

    /// The pages that are wanted now, if they differ from the last ones.
    fn wanted(&mut self, size: u64, stream: bool) -> Vec<u32> {
        let begins = self.from == 0 && self.large && self.way == Way::Forward;
        let often = self.reads >= if self.large { 2 } else { RUN_READS };
        // The kernel's windows around faults a few mebibytes apart are close together, but are no stream.
        let dense = self.read * 2 >= self.to - self.from;
        let enough = often && dense && self.read >= if begins { EVIDENCE_AT_START } else { EVIDENCE };
        let way = if stream && self.way == Way::Unknown { Way::Forward } else { self.way };
        if way == Way::Unknown || !(enough || stream) {
            return Vec::new();
        }
        let ahead = match (stream, begins) {
            (true, _) => MOST,
            (false, true) => (self.read * TIMES + FIRST).min(MOST),
            (false, false) => (self.read * 2 - EVIDENCE).min(MOST),
        };
        let pages: Vec<u32> = if way == Way::Forward {
            let first = page_of(self.to - 1 + REST.min(size.saturating_sub(self.to)));
            let last = page_of((self.to + ahead).min(size).saturating_sub(1));
            (first..=last).collect()
        } else {
            let first = page_of(self.from.saturating_sub(REST));
            let last = page_of(self.from.saturating_sub(ahead));
            (last..=first).rev().collect()
        };
        let now = pages.first().copied().zip(pages.last().copied());
        if now.is_none() || self.told == now {
            return Vec::new();
        }
        self.told = now;
        pages
    }
}

/// Reads at a constant distance.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    last: u64,
    distance: i64,
    /// How often in succession.
    times: u32,
    /// How many of the next steps were wanted already.
    told: u32,
}

impl Steps {
    /// Records a read. Returns whether it is a step.
    fn add(&mut self, read: &Read) -> bool {
        let distance = read.offset.wrapping_sub(self.last).cast_signed();
        self.last = read.offset;
        if distance != self.distance || distance == 0 {
            (self.distance, self.times, self.told) = (distance, 1, 0);
            return false;
        }
        self.times = self.times.saturating_add(1);
        self.told = self.told.saturating_sub(1);
        self.times >= STEP_TIMES && distance.unsigned_abs() > u64::from(read.len) + NEAR
    }

    fn wanted(&mut self, read: &Read) -> Wanted {
        let mut wanted = Wanted::default();
        let most = (self.times + 1).min(STEPS_MOST);
        let nth = |n: u32| {
            let offset = read.offset.checked_add_signed(self.distance.checked_mul(i64::from(n))?)?;
            let len = (read.size.checked_sub(offset)?).min(u64::from(read.len)) as u32;
            (len > 0).then_some((offset, len))
        };
        let new: Vec<(u64, u32)> = (self.told + 1..=most).map_while(nth).collect();
        self.told = self.told.max(most);
        let close = CLOSE * u64::from(read.len).max(64 * KIB);
        if self.distance.unsigned_abs() > close && read.len <= PART_MAX {
            wanted.places = new;
            return wanted;
        }
        for (offset, len) in new {
            for page in page_of(offset)..=page_of(offset + u64::from(len) - 1) {
                if page != page_of(read.offset) && !wanted.pages.contains(&page) {
                    wanted.pages.push(page);
                }
            }
        }
        wanted
    }
}

/// The pattern of one file. See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Pattern {
    runs: [Run; RUNS],
    steps: Steps,
    reads: u64,
}

impl Pattern {
    /// Records a read, and returns what to prefetch for the next ones. Each prediction is returned once.
    /// `stream`: the program has announced a stream.
    pub(super) fn read(&mut self, read: &Read, stream: bool) -> Wanted {
        self.reads += 1;
        let is_step = self.steps.add(read);
        // A read that continues a run belongs to the run. Readers that take turns, each with a run of its
        // own, are at equal distances too.
        let reach = if is_step { NEAR } else { read.reach() };
        let takes = self.runs.iter_mut().filter(|run| run.takes(read, reach)).max_by_key(|run| run.used);
        if let Some(run) = takes {
            run.add(read, self.reads);
            return Wanted { pages: run.wanted(read.size, stream), places: Vec::new() };
        }
        let mut new = Run::begin(read, self.reads);
        let pages = new.wanted(read.size, stream);
        if let Some(oldest) = self.runs.iter_mut().min_by_key(|run| run.used) {
            *oldest = new;
        }
        if is_step { self.steps.wanted(read) } else { Wanted { pages, places: Vec::new() } }
    }
}

fn page_of(offset: u64) -> u32 {
    u32::try_from(offset / PAGE).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use base::size::MIB;
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 100 * PAGE;
    const NONE: [u32; 0] = [];

    fn pages(pattern: &mut Pattern, offset: u64, len: u64) -> Vec<u32> {
        pattern.read(&Read { offset, len: len as u32, size: SIZE }, false).pages
    }

    /// All pages wanted after reads of this length at these places.
    fn all(pattern: &mut Pattern, offsets: impl IntoIterator<Item = u64>, len: u64) -> BTreeSet<u32> {
        offsets.into_iter().flat_map(|offset| pages(pattern, offset, len)).collect()
    }

    #[test]
    fn a_stream_is_looked_ahead_of_further_and_further() {
        let mut pattern = Pattern::default();
        let windows = [0, 1].map(|n| pages(&mut pattern, n * 128 * KIB, 128 * KIB));
        assert_eq!(windows, [NONE, NONE], "two reads from the beginning should start no prefetch");
        assert_eq!(pages(&mut pattern, 256 * KIB, 128 * KIB), [0, 1], "three windows from the beginning are");
        assert_eq!(pages(&mut pattern, 384 * KIB, 128 * KIB), NONE, "what was said is not said again");
        let wanted = all(&mut pattern, (4..32).map(|n| n * 128 * KIB), 128 * KIB);
        assert_eq!(wanted, (0..=4).collect(), "a page, and three times the four mebibytes that were read");
        let wanted = all(&mut pattern, (4..20).map(|n| n * MIB), MIB);
        assert_eq!(*wanted.last().unwrap(), 16, "never more than twelve pages");
        let wanted = all(&mut pattern, (20..400).map(|n| n * MIB), MIB);
        assert_eq!(*wanted.last().unwrap(), 99, "and never past the file's end");
    }

    #[test]
    fn a_stream_may_begin_anywhere_and_a_few_windows_are_none() {
        let mut pattern = Pattern::default();
        for n in 0..15 {
            assert_eq!(pages(&mut pattern, 50 * PAGE + n * 128 * KIB, 128 * KIB), NONE, "{n}");
        }
        assert_eq!(pages(&mut pattern, 50 * PAGE + 15 * 128 * KIB, 128 * KIB), [50], "two mebibytes are");
        assert_eq!(
            pages(&mut pattern, 80 * PAGE, MIB),
            NONE,
            "a read far from the last one should start no prefetch"
        );
        assert_eq!(pages(&mut pattern, 50 * PAGE + 2 * MIB, MIB), [50, 51], "the run is still known");
    }

    /// Eight bytes through a mapping, and 64 KiB in its middle, used to fetch six blobs.
    #[test]
    fn regression_the_windows_around_a_few_faults_are_no_stream() {
        let mut pattern = Pattern::default();
        let window = 128 * KIB;
        for fault in [0, 25 * PAGE, 30 * PAGE + MIB, 77 * PAGE + 12_345 * 4096 % PAGE] {
            let begin = fault.saturating_sub(window / 2);
            (0..2).for_each(|n| assert_eq!(pages(&mut pattern, begin + n * window, window), NONE, "{fault}"));
        }
        // Nor are windows a page and a half apart a stream, although they could be the kernel's pieces of
        // one.
        let mut pattern = Pattern::default();
        let wanted = all(&mut pattern, (0..16).map(|n| n * 6 * MIB + n * n * 4096), window);
        assert!(wanted.is_empty(), "{wanted:?}");
    }

    #[test]
    fn a_stream_that_was_announced_is_one_from_the_first_read_on() {
        let mut pattern = Pattern::default();
        let mut read = |offset| pattern.read(&Read { offset, len: 4096, size: SIZE }, true).pages;
        assert_eq!(read(0), (0..=12).collect::<Vec<_>>());
        assert_eq!(read(4096), NONE);
        assert_eq!(read(50 * PAGE), (50..=62).collect::<Vec<_>>());
    }

    #[test]
    fn the_kernels_pieces_may_come_in_any_order() {
        let mut pattern = Pattern::default();
        let order = [0, 2, 1, 4, 3, 7, 5, 6, 8, 9, 11, 10];
        let wanted = all(&mut pattern, order.map(|n| n * MIB), MIB);
        assert_eq!(wanted, (0..=12).collect());
    }

    #[test]
    fn several_readers_of_one_file_are_several_runs() {
        let mut pattern = Pattern::default();
        let places = (0..64u64).flat_map(|n| [10, 40, 70].map(|page| page * PAGE + n * 128 * KIB));
        let wanted = all(&mut pattern, places, 128 * KIB);
        for page in [11, 12, 13, 41, 42, 43, 71, 72, 73] {
            assert!(wanted.contains(&page), "{page}: {wanted:?}");
        }
    }

    #[test]
    fn faults_near_each_other_are_followed_both_ways() {
        for forward in [true, false] {
            let mut pattern = Pattern::default();
            let at = |n: u64| if forward { 50 * PAGE + n * 64 * KIB } else { 51 * PAGE - (n + 1) * 64 * KIB };
            assert!(
                all(&mut pattern, (0..31).map(at), 64 * KIB).is_empty(),
                "two mebibytes are not read yet"
            );
            let wanted = all(&mut pattern, (31..64).map(at), 64 * KIB);
            let next = if forward { BTreeSet::from([50, 51, 52]) } else { BTreeSet::from([48, 49, 50]) };
            assert!(!wanted.is_empty() && wanted.is_subset(&next), "{forward}: {wanted:?}");
        }
    }

    #[test]
    fn reads_here_and_there_want_nothing() {
        let mut pattern = Pattern::default();
        let offsets = (0..500u64).map(|n| (n * n * 7_919_123) % (SIZE - MIB));
        assert!(all(&mut pattern, offsets, 4096).is_empty());
        // Nor within a few mebibytes.
        let mut pattern = Pattern::default();
        let offsets = (0..500u64).map(|n| 30 * PAGE + (n * n * 7_919_123) % (8 * MIB));
        assert!(all(&mut pattern, offsets, 4096).len() <= 4);
    }

    #[test]
    fn three_reads_at_one_distance_are_steps() {
        for distance in [3 * PAGE as i64, -3 * PAGE as i64] {
            let mut pattern = Pattern::default();
            let begin = if distance > 0 { PAGE } else { 90 * PAGE };
            let place = |n: u64| begin.wrapping_add_signed(distance * n as i64) + 100;
            let mut step = |n: u64| pattern.read(&Read { offset: place(n), len: 4096, size: SIZE }, false);
            assert_eq!([step(0), step(1)], [Wanted::default(), Wanted::default()]);
            let places = |wanted: Wanted| wanted.places.iter().map(|(at, _)| *at).collect::<Vec<_>>();
            assert_eq!(places(step(2)), [3, 4, 5].map(place), "as many as there have been");
            assert_eq!(places(step(3)), [6, 7].map(place), "each is said once");
            let rest: Vec<u64> = (4..30).flat_map(|n| places(step(n))).collect();
            let until = 8 + rest.len() as u64;
            assert_eq!(rest, (8..until).map(place).collect::<Vec<_>>());
            assert!(rest.iter().all(|at| *at < SIZE), "not past the end");
        }
    }

    /// For one record in each mebibyte, whole blobs used to be fetched, sixty times what was read.
    #[test]
    fn regression_steps_within_a_blob_want_ranges_only() {
        let mut pattern = Pattern::default();
        let mut step =
            |n: u64, len| pattern.read(&Read { offset: 20 * PAGE + n * MIB, len, size: SIZE }, false);
        let wanted: Vec<Wanted> = (0..9).map(|n| step(n, 4096)).collect();
        assert!(wanted.iter().all(|wanted| wanted.pages.is_empty()) && !wanted[2].places.is_empty());
        // Where most of what is in between is read, the blobs are wanted.
        let mut pattern = Pattern::default();
        let wanted = all(&mut pattern, (0..9).map(|n| 20 * PAGE + n * MIB), 512 * KIB);
        assert!(wanted.contains(&21), "{wanted:?}");
    }

    proptest! {
        /// What is wanted is inside the file and no more than what was read allows, and steps are found after
        /// any earlier reads.
        #[test]
        fn what_is_wanted_is_bounded(
            reads in prop::collection::vec((0u64..64, 0u64..64, 1u32..300_000), 1..200),
            size in 1u64..(64 * PAGE),
        ) {
            let mut pattern = Pattern::default();
            let mut read = 0;
            for (page, sixteenth, len) in reads {
                let offset = (page * PAGE + sixteenth * (PAGE / 64)).min(size - 1);
                let len = len.min((size - offset) as u32).max(1);
                read += u64::from(len);
                let wanted = pattern.read(&Read { offset, len, size }, false);
                prop_assert!(wanted.pages.len() as u64 * PAGE <= MOST.min(TIMES * read + FIRST) + 2 * PAGE);
                prop_assert!(wanted.places.len() <= STEPS_MOST as usize);
                for page in &wanted.pages {
                    prop_assert!(u64::from(*page) * PAGE < size);
                }
                for (offset, len) in wanted.places {
                    prop_assert!(len > 0 && offset + u64::from(len) <= size);
                }
            }
        }

        #[test]
        fn steps_are_found_after_anything(
            before in prop::collection::vec((0u64..SIZE - MIB, 1u32..300_000), 0..50),
            begin in 40 * PAGE..60 * PAGE,
            distance in 2 * PAGE..5 * PAGE,
            back in any::<bool>(),
            len in 1u32..PART_MAX,
        ) {
            let mut pattern = Pattern::default();
            for (offset, len) in before {
                pattern.read(&Read { offset, len: len.min((SIZE - offset) as u32), size: SIZE }, false);
            }
            let place = |n: u64| if back { begin - n * distance } else { begin + n * distance };
            // One of them may be where a run ended, and counts as its next read.
            let read = |n| Read { offset: place(n), len, size: SIZE };
            let wanted: Vec<u64> =
                (0..6).flat_map(|n| pattern.read(&read(n), false).places).map(|(offset, _)| offset).collect();
            prop_assert!(!wanted.is_empty());
            prop_assert!(wanted.iter().all(|at| at.abs_diff(begin) % distance == 0 && *at != begin), "{:?}", wanted);
        }
    }
}
