//! Reads of remote blobs: how often and by how many threads the origin is asked, and what happens when it
//! returns wrong bytes.

use super::*;

const MIB4: usize = 4 << 20;

#[test]
fn many_readers_of_one_blob_are_one_fetch() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, 1 << 20).remove(0);
    home.far.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for n in 0..32usize {
            let (home, bytes) = (&home, &bytes);
            scope.spawn(move || match n % 2 {
                0 => assert_eq!(home.cache().fetch(&id).unwrap().1.to_vec(), *bytes),
                _ => assert_eq!(home.cache().warm(&id).unwrap(), Warmed::Fetched(1 << 20)),
            });
        }
        home.until("all others wait for the first", |stats| stats.shared_fetches == 31);
        home.far.held.store(false, Ordering::SeqCst);
    });
    assert_eq!(home.far.requests(), (0, 1));
    assert_eq!(home.stats().shared_fetches, 31);
    home.rest();
    assert_eq!((home.stats().blobs, home.stats().kept_bytes), (1, 1 << 20));
    assert_eq!(home.read(&id, 0, bytes.len()).unwrap(), bytes);
    assert_eq!((home.far.requests(), home.stats().disk_reads), ((0, 1), 1));
}

#[test]
fn small_readers_of_one_blob_are_a_few_parts_and_the_whole() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, MIB4).remove(0);
    home.far.delay_ms.store(500, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for n in 0..32usize {
            let (home, bytes) = (&home, &bytes);
            scope.spawn(move || {
                let at = n * 131_072;
                assert_eq!(home.read(&id, at, 4096).unwrap(), bytes[at..at + 4096]);
            });
        }
    });
    // A few parts, and then one more request for each gap between and behind them. How many parts begin
    // before the whole is wanted depends on which readers run first.
    let ((requests, wholes), whole_fetches) = (home.far.requests(), home.stats().whole_fetches);
    assert!((6..=10).contains(&requests), "{requests}");
    assert_eq!((wholes, whole_fetches), (0, 1));
    assert_eq!(home.far.given.load(Ordering::SeqCst), MIB4 as u64);
}

#[test]
fn a_failed_fetch_is_everybodys_and_the_next_read_tries_again() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, 1 << 20).remove(0);
    home.far.held.store(true, Ordering::SeqCst);
    home.far.away.store(true, Ordering::SeqCst);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let said = home.read(&id, 0, 1 << 20).unwrap_err();
                assert!(said.to_string().contains("the origin is away"), "{said}");
            });
        }
        home.until("all others wait for the first", |stats| stats.shared_fetches >= 15);
        home.far.held.store(false, Ordering::SeqCst);
    });
    // After a fetch that has lasted a second, its followers try again.
    let is_late = began.elapsed() >= Duration::from_secs(1);
    assert!(home.far.requests() == (1, 0) || is_late, "{:?}", home.far.requests());
    home.far.away.store(false, Ordering::SeqCst);
    assert_eq!(home.read(&id, 0, 1 << 20).unwrap(), bytes);
    assert!(home.far.requests() == (2, 0) || is_late, "{:?}", home.far.requests());
    home.rest();
    assert_eq!(home.stats().in_flight_bytes, 0);
}

#[test]
fn the_first_reads_take_parts_a_fourth_all_and_a_fifth_the_disk() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, MIB4).remove(0);
    assert_eq!(home.read(&id, 1_000_000, 5000).unwrap(), bytes[1_000_000..1_005_000]);
    assert_eq!(home.far.requests(), (1, 0));
    assert!(!home.cache().is_local(&id), "another part of it would have to be fetched");
    // The whole group was fetched, so this is in memory.
    assert_eq!(home.read(&id, 1_010_000, 5000).unwrap(), bytes[1_010_000..1_015_000]);
    assert_eq!((home.far.requests(), home.stats().memory_reads), ((1, 0), 1));
    for at in [3_000_000, 500_000, 2_500_000] {
        assert_eq!(home.read(&id, at, 5000).unwrap(), bytes[at..at + 5000]);
    }
    assert_eq!((home.far.requests(), home.stats().whole_fetches), ((3 + 4, 0), 1));
    home.rest();
    assert!(home.cache().is_local(&id));
    assert_eq!(home.read(&id, 2_000_000, 5000).unwrap(), bytes[2_000_000..2_005_000]);
    let stats = home.stats();
    assert_eq!((home.far.requests(), stats.disk_reads, stats.in_memory_bytes), ((3 + 4, 0), 1, 0));
    assert!(stats.fetched_bytes == MIB4 as u64 && stats.far_reads == 4, "{stats:?}");
}

/// The second read of a blob, and every read of more than 128 KiB, fetched all of its 4 MiB.
#[test]
fn regression_a_random_reader_fetches_little_more_than_it_reads() {
    let home = Home::new();
    let blobs = far_blobs(&home, 3, MIB4);
    let read = |blob: usize, at: usize, len: usize| {
        let (id, bytes) = &blobs[blob];
        assert_eq!(home.read(id, at, len).unwrap(), bytes[at..at + len]);
    };
    // A header, and two adjacent read-ahead windows of the kernel in the middle.
    read(0, 0, 128 << 10);
    read(1, 1 << 20, 128 << 10);
    read(1, (1 << 20) + (128 << 10), 128 << 10);
    assert!(home.stats().fetched_bytes <= 512 << 10, "{:?}", home.stats());
    // A read of one MiB fetches a part, too.
    read(2, 1 << 20, 1 << 20);
    let stats = home.stats();
    assert_eq!((stats.whole_fetches, stats.part_fetches), (0, 4), "{stats:?}");
    assert!(stats.fetched_bytes <= 2 << 20, "{stats:?}");
    // Read-ahead is served from memory, and a read that spans several parts is assembled.
    read(1, (1 << 20) - 5, 300 << 10);
    assert_eq!(home.stats().part_fetches, 5);
}

#[test]
fn what_random_readers_and_streams_have_said_decides() {
    let home = Home::new();
    let blobs = far_blobs(&home, 2, MIB4);
    let read = |blob: usize, at: usize, access: Access| {
        let mut buf = vec![0; 4096];
        home.cache().read_as(&blobs[blob].0, at as u32, &mut buf, access).unwrap();
        assert_eq!(buf, blobs[blob].1[at..at + 4096]);
    };
    (0..40).for_each(|n| read(0, n * 98_304, Access::Random));
    let stats = home.stats();
    assert_eq!((stats.whole_fetches, stats.fetched_bytes), (0, 40 << 16), "{stats:?}");
    read(1, 0, Access::Stream);
    assert_eq!(home.stats().whole_fetches, 1);
}

/// Readers of one part share one fetch, also those that begin at its other groups.
#[test]
fn readers_of_one_part_share_its_fetch() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, MIB4).remove(0);
    home.far.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| home.read(&id, 0, 1 << 20).unwrap());
        home.until("it is under way", |stats| stats.part_fetches == 1);
        for n in 0..8usize {
            let (home, bytes) = (&home, &bytes);
            scope.spawn(move || {
                let at = n * 130_000;
                assert_eq!(home.read(&id, at, 4096).unwrap(), bytes[at..at + 4096]);
            });
        }
        home.until("all wait for it", |stats| stats.shared_fetches == 8);
        home.far.held.store(false, Ordering::SeqCst);
    });
    assert_eq!(home.far.requests(), (1, 0));
    assert_eq!(home.stats().shared_fetches, 8);
}

#[test]
fn a_small_blob_is_kept_from_the_part_that_is_all_of_it() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, 40_000).remove(0);
    assert_eq!(home.read(&id, 30_000, 10_000).unwrap(), bytes[30_000..]);
    home.rest();
    assert_eq!(home.read(&id, 0, 40_000).unwrap(), bytes);
    assert_eq!((home.far.requests(), home.stats().disk_reads), ((1, 0), 1));
}

#[test]
fn what_the_origin_gives_wrong_is_neither_served_nor_kept() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, 300_000).remove(0);
    home.far.lies.store(true, Ordering::SeqCst);
    for (at, len) in [(0, 10), (0, 300_000), (5, 10)] {
        assert!(matches!(home.read(&id, at, len), Err(BlobError::Damaged { .. })), "{at} {len}");
    }
    assert!(matches!(home.cache().fetch(&id), Err(BlobError::Damaged { .. })));
    home.rest();
    let stats = home.stats();
    assert_eq!((stats.blobs, stats.in_memory_bytes, stats.failed_fetches), (0, 0, 4));
    home.far.lies.store(false, Ordering::SeqCst);
    assert_eq!(home.read(&id, 0, 300_000).unwrap(), bytes);
}

#[test]
fn a_copy_that_rotted_is_dropped_counted_and_fetched_again() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, 300_000).remove(0);
    home.cache().warm(&id).unwrap();
    home.rest();
    let mut rotten = bytes.clone();
    rotten[200_000] ^= 0x40;
    fs::write(home.file(&id), &rotten).unwrap();
    assert_eq!(home.read(&id, 0, 300_000).unwrap(), bytes);
    home.rest();
    assert_eq!((home.stats().damaged, home.far.requests()), (1, (1, 1)));
    assert_eq!(fs::read(home.file(&id)).unwrap(), bytes);
    assert_eq!(home.read(&id, 0, 300_000).unwrap(), bytes);
    assert_eq!((home.stats().damaged, home.said()), (1, vec![]));
}

#[test]
fn what_only_this_disk_has_is_an_error_when_it_rots_and_said_once() {
    let home = Home::new();
    let bytes = noise(300_000, 1);
    let id = home.put(&bytes);
    // Damages the file itself. The note of the upload is a link to the same file.
    let mut rotten = bytes.clone();
    rotten[200_000] ^= 0x40;
    fs::write(home.file(&id), &rotten).unwrap();
    for _ in 0..3 {
        assert!(matches!(home.read(&id, 150_000, 100_000), Err(BlobError::Damaged { .. })));
    }
    let said = home.said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("there is no other copy") && said[0].contains(&id.to_string()), "{said:?}");
    assert!(home.file(&id).exists() && home.noted.is_pending(&id));
    assert_eq!(home.far.requests(), (0, 0));
}

#[test]
fn a_pinned_blob_whose_name_was_lost_is_found_by_its_note() {
    let mut home = Home::new();
    let bytes = noise(300_000, 1);
    let id = home.put(&bytes);
    fs::remove_file(home.file(&id)).unwrap();
    home.reopen();
    assert_eq!(home.read(&id, 0, 300_000).unwrap(), bytes);
    assert!(home.file(&id).exists());
    assert_eq!(home.far.requests(), (0, 0));
}

#[test]
fn hints_are_fetched_side_by_side_and_nobody_waits() {
    let home = Home::with(CacheOptions { readers_ahead: 8, ..options() });
    let blobs = far_blobs(&home, 24, 100_000);
    home.far.held.store(true, Ordering::SeqCst);
    for (id, _) in blobs.iter().chain(&blobs) {
        home.cache().will_need(id);
    }
    let most_at_once = || home.far.most_at_once.load(Ordering::SeqCst);
    home.until("eight blobs are fetched at the same time", |_| most_at_once() == 8);
    assert_eq!(home.far.answered.load(Ordering::SeqCst), 0, "will_need() must not wait for the origin");
    home.far.held.store(false, Ordering::SeqCst);
    home.until("all blobs are here", |stats| stats.blobs == 24);
    assert_eq!(home.far.requests(), (0, 24));
    assert_eq!(most_at_once(), 8, "no more than eight blobs may be fetched at the same time");
    for (id, bytes) in &blobs {
        assert!(home.cache().is_local(id));
        assert_eq!(home.read(id, 0, bytes.len()).unwrap(), *bytes);
    }
    assert_eq!((home.far.requests(), home.stats().far_reads), ((0, 24), 0));
}

#[test]
fn what_a_stream_brings_is_written_past_the_kernels_pages_and_what_a_reader_waits_for_is_not() {
    let home = Home::new();
    let blobs = far_blobs(&home, 2, MIB4);
    home.cache().will_need(&blobs[0].0);
    home.until("it came", |stats| stats.blobs == 1);
    assert_eq!(home.disk.aside.load(Ordering::SeqCst), 1);
    assert_eq!(home.read(&blobs[1].0, 0, MIB4).unwrap(), blobs[1].1);
    home.until("it came, too", |stats| stats.blobs == 2);
    assert_eq!(home.disk.aside.load(Ordering::SeqCst), 1);
}

#[test]
fn who_needs_what_was_hinted_at_joins_the_fetch() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, MIB4).remove(0);
    home.far.delay_ms.store(100, Ordering::SeqCst);
    home.cache().will_need(&id);
    home.until("the hint is followed", |stats| stats.whole_fetches == 1);
    assert_eq!(home.read(&id, 100_000, 4096).unwrap(), bytes[100_000..104_096]);
    assert_eq!(home.far.requests(), (0, 1));
}

#[test]
fn memory_in_flight_is_bounded_and_those_who_need_go_before_hints() {
    let options = CacheOptions { in_flight: 4 * MIB4 as u64, readers_ahead: 16, ..options() };
    let home = Home::with(options);
    let blobs = far_blobs(&home, 24, 1000);
    home.far.delay_ms.store(30, Ordering::SeqCst);
    for (id, _) in &blobs[..16] {
        home.cache().will_need(id);
    }
    home.until("hints are followed", |stats| stats.whole_fetches >= 3);
    assert!(
        home.far.most_at_once.load(Ordering::SeqCst) <= 3,
        "hints should leave a quarter of the slots to readers"
    );
    std::thread::scope(|scope| {
        for (id, bytes) in &blobs {
            let home = &home;
            scope.spawn(move || {
                let (sums, got) = home.cache().fetch(id).unwrap();
                assert_eq!((sums.id(), got.to_vec()), (*id, bytes.clone()));
            });
        }
    });
    assert!(home.far.most_at_once.load(Ordering::SeqCst) <= 4);
    assert_eq!(home.far.requests(), (0, 24));
    home.rest();
}

#[test]
fn no_more_is_fetched_ahead_than_the_line_is_good_for_and_more_when_it_is_good_for_more() {
    base::trial::at_some_scale(fetches_ahead_what_the_line_is_good_for).unwrap();
}

fn fetches_ahead_what_the_line_is_good_for(scale: u32) -> Result<(), String> {
    let home = Home::with(CacheOptions { readers_ahead: 8, ..options() });
    let blobs = far_blobs(&home, 24, 1000);
    home.far.delay_ms.store(u64::from(30 * scale), Ordering::SeqCst);
    home.far.ahead.store(2, Ordering::SeqCst);
    // A thread that does not get the processor for as long as a fetch takes fetches beside no other.
    let at_once = |wanted: std::ops::RangeInclusive<u64>| {
        let most = home.far.most_at_once.load(Ordering::SeqCst);
        assert!(most <= *wanted.end(), "{most} at once, not {wanted:?}");
        if wanted.contains(&most) { Ok(()) } else { Err(format!("{most} at once, not {wanted:?}")) }
    };
    let (first, second) = blobs.split_at(8);
    first.iter().for_each(|(id, _)| home.cache().will_need(id));
    home.until("they came", |stats| stats.blobs == 8);
    at_once(2..=2)?;
    second.iter().for_each(|(id, _)| home.cache().will_need(id));
    home.far.ahead.store(6, Ordering::SeqCst);
    home.until("the others too", |stats| stats.blobs == 24);
    at_once(3..=6)
}

#[test]
fn an_origin_that_does_not_answer_keeps_nobody_from_what_is_here() {
    let home = Home::new();
    let here = home.put(&noise(10_000, 1));
    let blobs = far_blobs(&home, 40, 1000);
    let far = Arc::clone(&home.far);
    let answered = far.answered.load(Ordering::SeqCst);
    far.held.store(true, Ordering::SeqCst);
    blobs.iter().for_each(|(id, _)| home.cache().will_need(id));
    home.until("hints are followed", |stats| stats.whole_fetches >= 10);
    assert_eq!(home.read(&here, 0, 10_000).unwrap(), noise(10_000, 1));
    let more = home.put(&noise(10_000, 2));
    home.cache().sync().unwrap();
    assert_eq!(home.read(&more, 0, 10_000).unwrap(), noise(10_000, 2));
    // Closing does not wait for the hints either.
    drop(home);
    assert_eq!(far.answered.load(Ordering::SeqCst), answered, "local work must not wait for the origin");
    far.held.store(false, Ordering::SeqCst);
}

#[test]
fn a_stream_without_a_disk_fetches_each_blob_once() {
    let home = Home::new();
    let blobs = far_blobs(&home, 14, MIB4);
    *home.disk.trouble.lock() = Some(Trouble::ReadOnly);
    let first = far_blobs(&home, 1, 100).remove(0).0;
    home.cache().warm(&first).unwrap();
    home.until("caching is off", |stats| stats.off.is_some());
    for (n, (id, bytes)) in blobs.iter().enumerate() {
        blobs.iter().skip(n + 1).take(8).for_each(|(next, _)| home.cache().will_need(next));
        for at in (0..MIB4).step_by(1 << 20) {
            assert!(home.read(id, at, 1 << 20).unwrap() == bytes[at..at + (1 << 20)]);
        }
    }
    home.rest();
    // A blob whose hint was dropped because memory was full first gets a part, and then the rest.
    let stats = home.stats();
    assert!(stats.part_fetches < 14 && stats.whole_fetches == 1 + 14, "{stats:?}");
    assert_eq!(stats.fetched_bytes, 100 + 14 * MIB4 as u64);
    assert!(stats.in_memory_bytes <= home.options.memory as u64 && stats.hints_dropped > 0, "{stats:?}");
}

/// A read waited for memory until another fetch ended, although its deadline had passed long before.
#[test]
fn regression_a_read_waits_for_memory_until_its_deadline_only() {
    let home = Home::with(CacheOptions { in_flight: MIB4 as u64, ..options() });
    let blobs = far_blobs(&home, 2, MIB4);
    home.far.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let holds = scope.spawn(|| home.cache().fetch(&blobs[0].0).unwrap());
        home.until("the first has the memory", |stats| stats.whole_fetches == 1);
        let soon = base::Deadline::after(Duration::from_millis(200));
        let late = soon.scope(|| home.cache().fetch(&blobs[1].0));
        assert!(matches!(late, Err(BlobError::Unavailable(_))), "{:?}", late.map(|got| got.0));
        let part = soon.scope(|| home.cache().fetch_part(&blobs[1].0, 0, 100));
        assert!(matches!(part, Err(BlobError::Unavailable(_))));
        home.far.held.store(false, Ordering::SeqCst);
        assert!(holds.join().unwrap().1 == blobs[0].1);
    });
    home.rest();
    assert!(home.cache().fetch(&blobs[1].0).unwrap().1 == blobs[1].1);
}

/// `cargo test --release -p covey-cache -- --ignored --nocapture what_a_hit_costs`
#[test]
#[ignore = "a measurement"]
fn what_a_hit_costs() {
    let home = Home::new();
    let blobs = far_blobs(&home, 64, MIB4);
    blobs.iter().for_each(|(id, _)| {
        home.cache().warm(id).unwrap();
    });
    home.rest();
    let mut buf = vec![0; 4096];
    let mut measure = |what: &str, source: &dyn BlobSource| {
        let began = Instant::now();
        for n in 0..200_000usize {
            source.read_at(&blobs[n % 64].0, (n * 4096 % MIB4) as u32, &mut buf).unwrap();
        }
        println!("{what}: {:?} for 4 KiB", began.elapsed() / 200_000);
    };
    let folder = BlobFolder::open(&home.dir.path().join("blobs")).unwrap();
    for _ in 0..2 {
        measure("the folder alone", &folder);
        measure("the cache over it", home.cache());
    }
}
