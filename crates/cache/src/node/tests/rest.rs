//! The rest of a blob of which parts are here: nothing is fetched twice, and damaged parts are not served.

use base::size::GROUP;

use super::*;

const GROUPS: usize = (BLOB_MAX / GROUP) as usize;
const LEN: usize = GROUP as usize;

impl Home {
    /// Reads a range with random access, so that nothing else is fetched.
    fn read_part(&self, (id, bytes): &(BlobId, Vec<u8>), at: usize, len: usize) {
        let end = (at + len).min(bytes.len());
        let mut buf = vec![0xee; end - at];
        self.cache().read_as(id, at as u32, &mut buf, Access::Random).unwrap();
        assert!(buf == bytes[at..end], "{at}");
    }

    /// Fetches the whole blob and compares it, also on the disk.
    fn read_whole(&self, (id, bytes): &(BlobId, Vec<u8>)) {
        self.cache().warm(id).unwrap();
        assert!(self.read(id, 0, bytes.len()).unwrap() == *bytes);
        self.rest();
        assert!(fs::read(self.file(id)).unwrap() == *bytes);
        assert_eq!(self.stats().in_memory_bytes, 0);
    }

    fn given(&self) -> usize {
        self.far.given.load(Ordering::SeqCst) as usize
    }

    /// Flips a bit of a part in memory.
    fn spoil(&self, id: &BlobId, at: usize) {
        let mut memory = self.cache().core.memory.lock();
        let part = memory.pieces(id, at as u32, 1).pop().unwrap();
        let mut bytes = part.bytes.to_vec();
        bytes[at - part.offset as usize] ^= 1;
        let wrong = Part { sums: part.sums.clone(), offset: part.offset, bytes: bytes.into() };
        drop(memory.keep(id, Arc::new(wrong)));
    }
}

#[test]
fn regression_the_whole_fetches_only_what_is_missing() {
    let home = Home::new();
    let blob = far_blobs(&home, 1, BLOB_MAX as usize).remove(0);
    // Scattered windows of the kernel. None begins at a group boundary.
    for at in [3, 20, 21, 40, 55] {
        home.read_part(&blob, at * LEN + 4096, 2 * LEN);
    }
    let (parts, fetched) = (home.far.requests().0, home.given());
    assert_eq!((parts, fetched), (5, 13 * LEN));
    home.read_whole(&blob);
    assert_eq!((home.far.requests(), home.given()), ((5 + 5, 0), BLOB_MAX as usize));
    let stats = home.stats();
    assert_eq!((stats.whole_fetches, stats.fetched_bytes), (1, u64::from(BLOB_MAX)), "{stats:?}");
}

/// Half of a blob was fetched in parts, and then all of it again.
#[test]
fn regression_random_reads_of_a_file_fetch_no_more_than_the_file() {
    let home = Home::new();
    let blobs = far_blobs(&home, 8, BLOB_MAX as usize);
    let mut random = 1u64;
    for _ in 0..400 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (id, bytes) = &blobs[(random >> 33) as usize % blobs.len()];
        let at = (random >> 40) as usize % 992 * 4096;
        assert!(home.read(id, at, 2 * LEN).unwrap() == bytes[at..at + 2 * LEN]);
        if random.is_multiple_of(16) {
            home.rest();
        }
    }
    let file = blobs.len() * BLOB_MAX as usize;
    assert!(home.given() <= file, "{} of {file}", home.given());
}

#[test]
fn a_part_that_is_just_coming_is_waited_for() {
    let home = Home::new();
    let blob = far_blobs(&home, 1, BLOB_MAX as usize).remove(0);
    home.far.delay_ms.store(100, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|n| {
                scope.spawn({
                    let (home, blob) = (&home, &blob);
                    move || home.read_part(blob, n * 9 * LEN, LEN)
                })
            })
            .collect();
        home.until("they are under way", |stats| stats.part_fetches == 3);
        home.read_whole(&blob);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!((home.far.requests(), home.given()), ((3 + 3, 0), BLOB_MAX as usize));
}

#[test]
fn what_others_want_too_is_fetched_at_once() {
    let home = Home::new();
    let blob = far_blobs(&home, 1, BLOB_MAX as usize).remove(0);
    home.far.shared.store(true, Ordering::SeqCst);
    home.read_part(&blob, 0, LEN);
    home.read_whole(&blob);
    assert_eq!(home.far.requests(), (1, 1));
}

#[test]
fn a_damaged_part_is_found_out_and_fetched_anew() {
    let home = Home::new();
    let blob = far_blobs(&home, 1, BLOB_MAX as usize).remove(0);
    (0..4).for_each(|n| home.read_part(&blob, n * 10 * LEN, 2 * LEN));
    home.spoil(&blob.0, 11 * LEN + 77);
    home.read_whole(&blob);
    // The damaged group is fetched again, and nothing else.
    assert_eq!(home.given(), BLOB_MAX as usize + LEN);
    assert_eq!((home.far.requests().1, home.stats().damaged), (0, 1));
}

#[test]
fn a_rest_that_comes_wrong_or_not_at_all_is_an_error_and_nothing_is_kept() {
    let home = Home::new();
    let blob = far_blobs(&home, 1, BLOB_MAX as usize).remove(0);
    home.read_part(&blob, 5 * LEN, LEN);
    home.far.lies.store(true, Ordering::SeqCst);
    assert!(matches!(home.cache().warm(&blob.0), Err(BlobError::Damaged { .. })));
    home.far.lies.store(false, Ordering::SeqCst);
    home.far.away.store(true, Ordering::SeqCst);
    assert!(matches!(home.cache().warm(&blob.0), Err(BlobError::Unavailable(_))));
    home.far.away.store(false, Ordering::SeqCst);
    home.rest();
    assert_eq!((home.stats().blobs, home.stats().failed_fetches), (0, 2));
    home.read_part(&blob, 5 * LEN, LEN);
    home.read_whole(&blob);
}

/// The hashes of a blob prove its groups, and not how long the last one is. A source that gave another length
/// with its part made later reads fail, as long as the part was in memory.
#[test]
fn regression_a_part_with_a_wrong_size_misleads_no_read() {
    for by in [-100, 100] {
        for reads_parts in [true, false] {
            let home = Home::new();
            let blob = far_blobs(&home, 1, BLOB_MAX as usize - 1000).remove(0);
            home.far.off.store(by, Ordering::SeqCst);
            home.read_part(&blob, 0, LEN);
            assert_eq!(home.far.off.load(Ordering::SeqCst), 0);
            if reads_parts {
                home.read_part(&blob, (GROUPS - 2) * LEN, 2 * LEN);
                home.read_part(&blob, 0, BLOB_MAX as usize);
            }
            home.read_whole(&blob);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Parts in any order, of blobs of any size, some of them damaged in memory, and then the whole.
    #[test]
    fn no_byte_is_fetched_twice_and_none_is_wrong(
        size in prop_oneof![Just(BLOB_MAX as usize), LEN + 1..BLOB_MAX as usize],
        reads in prop::collection::vec((0..BLOB_MAX as usize, 1..5 * LEN), 0..30),
        spoiled in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let home = Home::new();
        let blob = far_blobs(&home, 1, size).remove(0);
        let mut here = [false; GROUPS];
        for (at, len) in &reads {
            let at = at % size;
            home.read_part(&blob, at, *len);
            here[at / LEN..(at + len).min(size).div_ceil(LEN)].fill(true);
        }
        let count = here.iter().filter(|is| **is).count();
        prop_assert!(home.given() <= count * LEN, "{} for {count} groups", home.given());
        home.rest();
        // The whole blob may be here by now.
        let known: Vec<usize> = (0..GROUPS).filter(|n| here[*n] && !home.cache().is_local(&blob.0)).collect();
        let spoiled = spoiled.iter().filter(|_| !known.is_empty());
        let mut wrong: Vec<usize> = spoiled.map(|at| *at.get(&known)).collect();
        wrong.sort_unstable();
        wrong.dedup();
        wrong.iter().for_each(|n| home.spoil(&blob.0, n * LEN));
        home.read_whole(&blob);
        let most = size + wrong.len() * LEN;
        prop_assert!(home.given() <= most, "{} of {size}, {} wrong", home.given(), wrong.len());
        prop_assert_eq!(home.far.requests().1, u64::from(count == 0));
    }
}
