use base::size::{KIB, MIB};
use proptest::prelude::*;

use super::*;

/// Files of some pages each, every page a blob, with numbers from 100 on. It records what was wanted of them.
struct Store {
    files: Files,
    pages: u64,
    /// Numbers of files are this far apart.
    step: u64,
    /// The highest number that exists.
    end: u64,
    wanted: Vec<(u64, u32)>,
}

impl Store {
    fn new(pages: u64) -> Store {
        Store { files: Files::default(), pages, step: 1, end: u64::MAX, wanted: Vec::new() }
    }

    /// The first number from this one on that exists.
    fn from(&self, ino: u64) -> u64 {
        100 + ino.saturating_sub(100).next_multiple_of(self.step)
    }

    /// One read. What it wants is looked up.
    fn read_at(&mut self, ino: u64, offset: u64, len: u64) -> Vec<(u64, u32)> {
        let read = Read { offset, len: len as u32, size: self.pages * PAGE };
        let Some(following) = self.files.read(Ino(ino), &read) else { return Vec::new() };
        let (ino, page) = following.from;
        let places = (0..following.blobs as u64).map(|n| u64::from(page) + n);
        let places: Vec<_> = places
            .map(|n| (self.from(ino.0) + self.step * (n / self.pages), (n % self.pages) as u32))
            .collect();
        let there = |(ino, _): &(u64, u32)| *ino <= self.end && *ino < following.before;
        let places: Vec<_> = places.into_iter().filter(there).collect();
        let last = places.last().map(|(last, page)| (Ino(*last), *page, None));
        let begin = places.iter().map(|(ino, _)| Ino(*ino)).collect();
        self.files.told(&following, Found { begin, last });
        self.wanted.extend(&places);
        places
    }

    /// Reads a whole file, in pieces of 1 MiB. Returns the numbers of the files that were wanted meanwhile.
    fn read(&mut self, ino: u64) -> Vec<u64> {
        let pieces = self.pages * PAGE / MIB;
        (0..pieces).flat_map(|n| self.read_at(ino, n * MIB, MIB)).map(|(ino, _)| ino).collect()
    }
}

#[test]
fn a_row_of_files_is_looked_ahead_of_further_and_further() {
    let mut store = Store::new(1);
    assert_eq!(store.read(100), [0; 0], "one file is no row");
    assert_eq!(store.read(101), [102], "two may be a row");
    assert_eq!(store.read(102), [103, 104, 105, 106, 107, 108, 109, 110, 111], "three times what was read");
    (103..140).for_each(|ino| drop(store.read(ino)));
    assert_eq!(store.wanted.last(), Some(&(151, 0)), "never more than twelve ahead");
    let mut once = store.wanted.clone();
    once.dedup();
    assert_eq!(once, store.wanted, "each is said once");
}

#[test]
fn a_large_file_comes_first_itself() {
    let mut store = Store::new(16);
    let mut at = |ino: u64, mib: u64| store.read_at(ino, mib * MIB, MIB);
    (0..64).for_each(|mib| assert_eq!(at(100, mib), []));
    let trial: Vec<_> = (0..64).flat_map(|mib| at(101, mib)).collect();
    assert_eq!(trial, [(102, 0)]);
    // Of sixteen pages, more than twelve are still to be read until the seventeenth piece.
    (0..16).for_each(|mib| assert_eq!(at(102, mib), []));
    assert_eq!(at(102, 19), [(103, 0)]);
    assert_eq!(at(102, 27), [(103, 1), (103, 2)]);
    let rest: Vec<_> = (28..64).flat_map(|mib| at(102, mib)).collect();
    assert_eq!(rest.last(), Some(&(103, 11)), "and of the next as much as fits");
    assert_eq!(at(103, 0), [], "which it has by itself from now on");
}

/// A node that continued with the first file after the last one used to have nothing in flight while it read
/// two files.
#[test]
fn regression_a_row_that_is_read_again_is_known_at_its_first_file() {
    let mut store = Store { end: 159, ..Store::new(1) };
    (130..150).for_each(|ino| drop(store.read(ino)));
    assert!(
        store.wanted.ends_with(&[(159, 0), (100, 0), (101, 0)]),
        "which it does before it is read to its end"
    );
    let wanted = store.wanted.len();
    (150..160).for_each(|ino| drop(store.read(ino)));
    assert_eq!(store.wanted.len(), wanted, "once");
    assert_eq!(store.read_at(100, 0, MIB), [(101, 0), (102, 0)], "from the end on with the beginning");
    assert_eq!(store.read_at(100, MIB, 3 * MIB), [(103, 0), (104, 0), (105, 0), (106, 0)]);
    // And where other files follow, from where the row is left to where it began.
    let mut store = Store::new(1);
    (100..140).for_each(|ino| drop(store.read(ino)));
    assert_eq!(store.read(500), [0; 0], "another file is another file");
    assert_eq!(store.read_at(100, 0, MIB), [(101, 0), (102, 0)]);
}

#[test]
fn a_row_of_heads_that_ends_says_nothing_of_another() {
    let mut store = Store { end: 109, ..Store::new(4) };
    assert!((100..110).all(|ino| store.read_at(ino, 0, 128 * KIB).is_empty()));
    assert!(store.read_at(50, 0, 128 * KIB).is_empty());
    assert!(store.read_at(100, 0, 128 * KIB).is_empty());
}

#[test]
fn heads_and_ends_of_files_want_nothing() {
    let mut store = Store::new(4);
    assert!((100..400).all(|ino| store.read_at(ino, 0, 128 * KIB).is_empty()));
    let mut store = Store::new(4);
    assert!((100..400).all(|ino| store.read_at(ino, 4 * PAGE - 64 * KIB, 64 * KIB).is_empty()));
}

#[test]
fn files_here_and_there_are_no_row() {
    let mut store = Store::new(1);
    let mut numbers = (0..200u64).map(|n| 1000 + n * n * 7919 % 100_003 * 40);
    assert!(numbers.all(|ino| store.read(ino).is_empty()));
}

#[test]
fn numbers_may_be_missing_and_readers_out_of_order() {
    let mut store = Store { step: 3, ..Store::new(1) };
    let order = [100, 103, 106, 112, 109, 118, 115, 121];
    let wanted: Vec<u64> = order.iter().flat_map(|ino| store.read(*ino)).collect();
    assert!(wanted.contains(&124) && wanted.contains(&154), "{wanted:?}");
}

/// Shards that were read in random order used to bring three others with each of them.
#[test]
fn regression_files_in_random_order_bring_few_others() {
    let mut store = Store::new(4);
    let mut random = 7_u64;
    let mut read = 0;
    for _ in 0..500 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        store.read(100 + (random >> 33) % 64);
        read += 4;
    }
    assert!(store.wanted.len() * 10 < read, "{} blobs of {read}", store.wanted.len());
    // A reader in order is still recognized.
    let wanted: Vec<u64> = (100..120).flat_map(|ino| store.read(ino)).collect();
    assert!(wanted.contains(&122), "{wanted:?}");
}

#[test]
fn a_row_that_proved_wrong_gets_another_trial() {
    let mut store = Store::new(1);
    [100, 101, 110, 105, 114, 112].iter().for_each(|ino| drop(store.read(*ino)));
    assert_eq!(store.wanted, [(102, 0)], "it was skipped");
    let wanted: Vec<u64> = (115..125).flat_map(|ino| store.read(ino)).collect();
    assert!(wanted.contains(&130), "{wanted:?}");
}

#[test]
fn several_rows_are_followed_at_once() {
    let mut store = Store::new(1);
    for n in 0..10 {
        [1000, 2000, 3000].iter().for_each(|row| drop(store.read(row + n)));
    }
    assert!([1010, 2010, 3010].iter().all(|next| store.wanted.contains(&(*next, 0))));
}

#[test]
fn what_is_here_is_not_looked_at_without_end() {
    let mut files = Files::default();
    let mut last = 0;
    for ino in 100..130 {
        let read = Read { offset: 0, len: MIB as u32, size: MIB };
        if let Some(following) = files.read(Ino(ino), &read) {
            // All of it is local.
            last = following.from.0.0 + 64;
            files.told(&following, Found { begin: Vec::new(), last: Some((Ino(last), 0, None)) });
        }
    }
    assert!((130..130 + LOOK_MOST + 65).contains(&last), "{last}");
}

proptest! {
    /// Whatever is read, what is wanted and not yet read is no more than what was read allows.
    #[test]
    fn what_is_wanted_is_bounded(
        reads in prop::collection::vec((100u64..160, 0u64..4, 1u64..1024), 1..300),
        pages in 1u64..4,
    ) {
        let mut store = Store::new(pages);
        let mut read = 0;
        for (ino, piece, len) in reads {
            let offset = (piece * MIB).min(pages * PAGE - len * KIB);
            read += len * KIB;
            let wanted = store.read_at(ino, offset, len * KIB);
            prop_assert!(wanted.len() as u64 * PAGE <= (read * TIMES).min(MOST));
            prop_assert!(wanted.iter().all(|(next, _)| *next > ino), "what follows, and nothing else");
        }
    }
}
