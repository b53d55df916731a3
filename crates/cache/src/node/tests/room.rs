//! What stays and what is evicted; disks that are full, read-only or broken; restarts.

use super::*;
use crate::residency::charge;
use crate::residency::index::{Index, Record};

const SIZE: usize = 20_000;

fn budget(blobs: u64) -> CacheOptions {
    CacheOptions { budget: Some(blobs * charge(SIZE as u32)), ..options() }
}

fn files(home: &Home) -> u64 {
    let mut count = 0;
    for first in 0..=u8::MAX {
        count += DiskStore::list_of(&*home.disk, first).unwrap().len() as u64;
    }
    count
}

#[test]
fn the_budget_is_kept_and_what_was_evicted_is_fetched_again() {
    let home = Home::with(budget(20));
    let blobs = far_blobs(&home, 60, SIZE);
    for (id, bytes) in &blobs {
        assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
    }
    home.rest();
    home.until("the files of evicted blobs are removed", |stats| {
        stats.evicted_blobs == 60 - stats.blobs && files(&home) == stats.blobs
    });
    let stats = home.stats();
    assert!(stats.bytes <= stats.budget && stats.blobs >= 15, "{stats:?}");
    assert_eq!((stats.evicted_blobs, files(&home)), (60 - stats.blobs, stats.blobs));
    assert_eq!((stats.kept_blobs, stats.not_kept), (60, 0));
    let retired = home.disk.retired.load(Ordering::SeqCst);
    assert_eq!(
        retired, stats.evicted_blobs,
        "only the budget is short: those that come may have their files"
    );
    home.cache().evict(Evict::All);
    assert_eq!(home.disk.retired.load(Ordering::SeqCst), retired, "that is for the disk's room");
    for (id, bytes) in &blobs {
        assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
    }
}

#[test]
fn what_is_pinned_stays_under_any_pressure() {
    let home = Home::with(budget(20));
    let pinned: Vec<(BlobId, Vec<u8>)> = (0..40)
        .map(|n| {
            let bytes = noise(SIZE, n);
            (home.put(&bytes), bytes)
        })
        .collect();
    let all_there = |after: &str| {
        home.rest();
        for (id, bytes) in &pinned {
            assert_eq!(fs::read(home.file(id)).unwrap(), *bytes, "{after}");
        }
    };
    // Twice the budget is pinned, so nothing else fits.
    for (id, bytes) in &far_blobs(&home, 50, SIZE) {
        assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
    }
    all_there("reads of others");
    assert_eq!((home.stats().blobs, home.stats().kept_blobs), (40, 0));
    assert_eq!(home.cache().evict(Evict::All), Evicted::default());
    assert_eq!(home.cache().evict(Evict::To(0)), Evicted::default());
    all_there("being asked to evict all");
    home.disk.room.store(1, Ordering::SeqCst);
    home.cache().make_room();
    home.until("room was made", |_| !home.cache().core.tending.load(Ordering::SeqCst));
    all_there("a disk below its floor");
    assert_eq!(home.cache().reclaimable(), 0);
    // Only blobs that the origin has by now may be evicted.
    home.disk.room.store(parts::VAST, Ordering::SeqCst);
    for (id, _) in &pinned[..15] {
        assert!(home.noted.upload(&home.far, id));
    }
    let evicted = home.cache().evict(Evict::All);
    assert!(evicted.blobs <= 15 && evicted.bytes == evicted.blobs * SIZE as u64, "{evicted:?}");
    // Some may already have been evicted in the background.
    home.until("those went", |stats| stats.evicted_blobs == 15);
    for (n, (id, bytes)) in pinned.iter().enumerate() {
        assert_eq!(home.file(id).exists(), n >= 15);
        assert_eq!(home.read(id, 0, SIZE).unwrap(), *bytes);
    }
}

#[test]
fn stored_blobs_make_others_go() {
    let home = Home::with(budget(20));
    for (id, _) in &far_blobs(&home, 20, SIZE) {
        home.cache().warm(id).unwrap();
    }
    home.rest();
    for n in 0..15 {
        home.put(&noise(SIZE, n));
    }
    home.until("others went", |stats| stats.bytes <= stats.budget && stats.evicted_blobs >= 14);
    assert_eq!(home.stats().pinned.blobs, 15);
}

/// With a memory limit of 128 MiB, the default sizes alone exceeded the limit, and the daemon was killed.
#[test]
fn regression_a_node_with_little_memory_uses_less_of_it() {
    let usual = CacheOptions::default();
    for total in [1 << 30, u64::MAX] {
        let options = CacheOptions::within(total);
        assert_eq!((options.memory, options.in_flight), (usual.memory, usual.in_flight));
        assert_eq!(options.readers_ahead, usual.readers_ahead);
    }
    let little = CacheOptions::within(128 << 20);
    assert!(little.memory as u64 + little.in_flight <= 24 << 20, "{little:?}");
    assert!(
        little.readers_ahead >= 4 && little.readers_ahead as u64 * 4 * MIB <= little.in_flight,
        "{little:?}"
    );
}

/// A cache below its floor kept nothing and did not report why.
#[test]
fn regression_a_cache_that_its_floor_keeps_empty_says_so_once() {
    let home = Home::with(CacheOptions { floor: 10 * charge(SIZE as u32), memory: 0, ..budget(1000) });
    let blobs = far_blobs(&home, 5, SIZE);
    let read_all = || {
        for (id, bytes) in &blobs {
            assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
            home.rest();
        }
    };
    home.disk.room.store(30 * charge(SIZE as u32), Ordering::SeqCst);
    let others = 25 * charge(SIZE as u32);
    home.disk.others.store(others, Ordering::SeqCst);
    (0..3).for_each(|_| read_all());
    assert!(home.stats().kept_out && home.stats().blobs == 0, "{:?}", home.stats());
    let said = home.said();
    assert!(said.len() == 1 && said[0].contains("cache_floor"), "{said:?}");
    home.disk.others.store(0, Ordering::SeqCst);
    read_all();
    assert!(!home.stats().kept_out && home.stats().blobs > 0, "there is room again");
}

#[test]
fn the_floor_is_left_free() {
    let home = Home::with(CacheOptions { floor: 10 * charge(SIZE as u32), ..budget(1000) });
    let blobs = far_blobs(&home, 40, SIZE);
    home.disk.room.store(30 * charge(SIZE as u32), Ordering::SeqCst);
    for (id, bytes) in &blobs {
        assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
        home.rest();
        let space = DiskStore::space(&*home.disk).unwrap();
        assert!(space.available >= home.options.floor, "{space:?}");
    }
    assert!(home.stats().blobs >= 10, "{:?}", home.stats());
    // Others fill the disk again and again. The cache shrinks, and reads continue.
    for _ in 0..5 {
        let free = DiskStore::space(&*home.disk).unwrap().available;
        home.disk.others.fetch_add(free, Ordering::SeqCst);
        for (id, bytes) in &blobs {
            assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
            home.rest();
        }
        let space = DiskStore::space(&*home.disk).unwrap();
        assert!(space.available >= home.options.floor || home.stats().blobs == 0, "{space:?}");
    }
    assert_eq!(home.stats().blobs, 0);
    assert!(home.stats().not_kept > 0);
    assert_eq!(home.disk.retired.load(Ordering::SeqCst), 0, "no file should be kept for another blob");
}

#[test]
fn a_disk_in_trouble_is_one_line_and_reads_go_on_and_it_is_used_again_when_it_works() {
    for trouble in [Trouble::Full, Trouble::ReadOnly, Trouble::Broken] {
        println!("{trouble:?}");
        let home = Home::with(CacheOptions { memory: 0, ..options() });
        let blobs = far_blobs(&home, 40, SIZE);
        let read_all = || {
            for (id, bytes) in &blobs {
                assert_eq!(home.read(id, 0, SIZE).unwrap(), *bytes, "{trouble:?}");
                assert_eq!(home.cache().fetch(id).unwrap().1, *bytes, "{trouble:?}");
            }
            home.rest();
        };
        for (id, _) in &blobs[..10] {
            home.cache().warm(id).unwrap();
        }
        home.rest();
        *home.disk.trouble.lock() = Some(trouble);
        read_all();
        read_all();
        let said = home.said();
        assert!(said.len() == 1 && said[0].contains("reads go on from the origin"), "{said:?}");
        assert!(home.stats().off.is_some());
        // Stores do not succeed: data that cannot be written is not acknowledged.
        let sums = Sums::of(b"new");
        assert!(home.cache().put(&sums.id(), &sums, b"new").is_err());
        *home.disk.trouble.lock() = None;
        std::thread::sleep(home.options.look_again * 2);
        read_all();
        read_all();
        let said = home.said();
        assert!(said.len() == 2 && said[1].contains("works again"), "{said:?}");
        assert_eq!((home.stats().off, files(&home)), (None, 40));
        let requests = home.far.requests();
        read_all();
        assert_eq!(home.far.requests(), requests, "every read should be served from the disk");
    }
}

#[test]
fn an_index_that_cannot_be_written_is_one_line_and_reads_go_on() {
    let mut home = Home::new();
    home.cache = None;
    // A folder in its place cannot be opened for writing.
    fs::remove_file(home.index()).unwrap();
    fs::create_dir(home.index()).unwrap();
    home.open();
    for (id, bytes) in &far_blobs(&home, 5, SIZE) {
        assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
    }
    assert_eq!(home.said().len(), 1, "{:?}", home.said());
    fs::remove_dir(home.index()).unwrap();
    std::thread::sleep(home.options.look_again * 2);
    for (id, bytes) in &far_blobs(&home, 10, SIZE) {
        assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
    }
    home.rest();
    assert_eq!(home.said().len(), 2, "{:?}", home.said());
    assert!(fs::metadata(home.index()).unwrap().len() > 16);
}

#[test]
fn a_restart_keeps_what_is_here_also_without_the_origin() {
    let mut home = Home::new();
    let blobs = far_blobs(&home, 30, SIZE);
    blobs.iter().for_each(|(id, _)| {
        home.cache().warm(id).unwrap();
    });
    home.rest();
    home.far.away.store(true, Ordering::SeqCst);
    home.options.walk_pause = Duration::from_secs(60);
    home.reopen();
    assert_eq!((home.stats().blobs, home.stats().comparing), (30, true));
    for (id, bytes) in &blobs {
        assert!(home.cache().is_local(id));
        assert_eq!(home.read(id, 0, SIZE).unwrap(), *bytes);
    }
    // Also without its index: until the comparison ends, reads check the folder.
    fs::write(home.index(), b"").unwrap();
    home.reopen();
    assert_eq!(home.stats().blobs, 0);
    for (id, bytes) in &blobs {
        assert!(home.cache().is_local(id));
        assert_eq!(home.read(id, 0, SIZE).unwrap(), *bytes);
    }
}

#[test]
fn the_index_and_the_folder_come_to_agree() {
    let mut home = Home::new();
    let blobs = far_blobs(&home, 30, SIZE);
    blobs[..20].iter().for_each(|(id, _)| {
        home.cache().warm(id).unwrap();
    });
    home.rest();
    home.cache = None;
    // Ten known files are removed, and ten unknown ones are added.
    blobs[..10].iter().for_each(|(id, _)| fs::remove_file(home.file(id)).unwrap());
    for (id, bytes) in &blobs[20..] {
        home.disk.keep(id, &Sums::of(bytes), bytes).unwrap();
    }
    home.open();
    home.until("all was compared", |stats| !stats.comparing);
    assert_eq!(home.stats().blobs, 20);
    home.far.away.store(true, Ordering::SeqCst);
    for (id, bytes) in &blobs[10..] {
        assert_eq!(home.read(id, 0, SIZE).unwrap(), *bytes);
    }
    assert!(home.read(&blobs[0].0, 0, SIZE).is_err());
    // Blobs found in the folder count against the budget.
    home.options.budget = Some(5 * charge(SIZE as u32));
    home.reopen();
    home.until("there are five", |stats| !stats.comparing && stats.blobs <= 5);
    home.until("files went", |stats| stats.evicted_blobs >= 15);
    assert!(files(&home) <= 5);
}

#[test]
fn the_index_is_written_anew_when_it_is_long() {
    let mut home = Home::new();
    let blobs = far_blobs(&home, 20, SIZE);
    blobs.iter().for_each(|(id, _)| {
        home.cache().warm(id).unwrap();
    });
    home.rest();
    home.cache = None;
    let gone: Vec<Record> = (0..30_000u64).map(|_| Record::Gone(blobs[0].0)).collect();
    let unwanted = Sums::of(b"to be deleted").id();
    let mut index = Index::open(&home.index(), &mut |_| {}).unwrap();
    index.append(&[Record::Unwanted(unwanted)]).unwrap();
    index.append(&gone).unwrap();
    drop(index);
    home.far.away.store(true, Ordering::SeqCst);
    home.open();
    home.until("it is short", |_| fs::metadata(home.index()).unwrap().len() < 16 + 44 * 100);
    assert_eq!((home.stats().blobs, home.stats().removing), (20, 1));
    let later = home.put(&noise(SIZE, 1));
    home.reopen();
    assert_eq!((home.stats().blobs, home.stats().removing), (21, 1));
    assert_eq!(home.read(&later, 0, SIZE).unwrap(), noise(SIZE, 1));
}

#[test]
fn what_changes_while_the_index_is_written_anew_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.idx");
    let id = |n: u64| Sums::of(&n.to_le_bytes()).id();
    let (ledger, opened) = Ledger::open(&path, Some(u64::MAX), || None);
    opened.unwrap();
    (0..3000).for_each(|n| ledger.insert(&id(n), 1000, false));
    std::thread::scope(|scope| {
        let rewriting = scope.spawn(|| (0..20).for_each(|_| ledger.write_anew().unwrap()));
        let mut n = 3000;
        while !rewriting.is_finished() {
            ledger.insert(&id(n), 1000, false);
            ledger.remove(&id(n - 3000));
            n += 1;
        }
    });
    let (blobs, bytes, _) = ledger.totals();
    ledger.close();
    let (again, opened) = Ledger::open(&path, Some(u64::MAX), || None);
    opened.unwrap();
    assert_eq!((again.totals().0, again.totals().1), (blobs, bytes));
}

#[test]
fn what_is_damaged_at_a_power_cut_is_found() {
    let mut home = Home::new();
    let blobs = far_blobs(&home, 10, SIZE);
    blobs.iter().for_each(|(id, _)| {
        home.cache().warm(id).unwrap();
    });
    home.rest();
    home.cache = None;
    // Names were written, bytes were not.
    for (n, (id, bytes)) in blobs.iter().enumerate() {
        match n % 3 {
            0 => fs::write(home.file(id), b"").unwrap(),
            1 => fs::write(home.file(id), vec![0; bytes.len()]).unwrap(),
            _ => {}
        }
    }
    home.reopen();
    for (id, bytes) in &blobs {
        assert_eq!(home.read(id, 0, SIZE).unwrap(), *bytes);
    }
    assert_eq!(home.stats().damaged, 7);
}

#[test]
fn a_real_disk_of_one_mebibyte_is_kept_within_and_survives_being_filled() {
    let Some(small) = crate::tests::SmallDisk::mount() else {
        return println!("a small filesystem cannot be mounted here (not root): skipped");
    };
    let home = Home::new();
    let blobs = far_blobs(&home, 100, SIZE);
    let dir = small.0.path();
    let open = || {
        let lines = Arc::clone(&home.lines);
        let parts = NodeParts {
            folder: dir.join("blobs"),
            index: dir.join("cache.idx"),
            remote: Arc::clone(&home.far) as Arc<dyn Origin>,
            tier: None,
            table: Table::new(Verify::Blake3, 64 << 20),
            pending: Arc::new(crate::StoresNothing),
            may_delete: None,
            watch: None,
            options: CacheOptions { memory: 0, ..options() },
            report: Arc::new(move |line: &str| lines.lock().push(line.to_owned())),
        };
        NodeCache::open(parts).unwrap()
    };
    let read = |cache: &NodeCache, blobs: &[(BlobId, Vec<u8>)]| {
        for (id, bytes) in blobs {
            assert_eq!(cache.fetch(id).unwrap().1, *bytes);
        }
        while cache.stats().in_flight > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let read_all = |cache: &NodeCache| read(cache, &blobs);
    let cache = open();
    read_all(&cache);
    let stats = cache.stats();
    assert!(stats.blobs >= 15 && stats.evicted_blobs > 0 && stats.floor == 64 << 10, "{stats:?}");
    assert!(crate::node::disk_store::space_at(dir).unwrap().available > 0);
    // Several threads write at the same time, and none finds the disk full.
    assert_eq!((stats.off, stats.not_kept), (None, 0));
    // Others take all free space, several times.
    for n in 0..30 {
        let _ = fs::write(dir.join(format!("others{n}")), vec![1; 1 << 20]);
        read(&cache, &blobs[n..n + 20]);
    }
    // A disk that was found full is not used for a while. After that, the cache shrinks.
    let began = Instant::now();
    while cache.stats().blobs > 1 && began.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(20));
        let _ = fs::write(dir.join("others0"), vec![1; 1 << 20]);
        read(&cache, &blobs[..20]);
    }
    assert!(cache.stats().blobs <= 1, "{:?}", cache.stats());
    (0..30).for_each(|n| fs::remove_file(dir.join(format!("others{n}"))).unwrap());
    std::thread::sleep(options().look_again * 2);
    read_all(&cache);
    let blobs_now = cache.stats().blobs;
    assert!(blobs_now >= 15 && cache.stats().off.is_none(), "{:?} {:?}", cache.stats(), home.said());
    drop(cache);
    let cache = open();
    while cache.stats().comparing {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The index has grown since, so the floor may have cost a blob or two.
    assert!((blobs_now - 2..=blobs_now).contains(&cache.stats().blobs), "{blobs_now} {:?}", cache.stats());
    read_all(&cache);
}

/// The budget was four fifths of the free space at each start. The bytes of a full cache did not count as
/// free, so the next start evicted most of them.
#[test]
fn regression_a_full_cache_is_kept_over_a_restart() {
    let mut home = Home::with(options());
    home.cache = None;
    home.options.budget = None;
    home.disk.room.store(50 * charge(SIZE as u32) + 1000, Ordering::SeqCst);
    home.open();
    home.until("the folder is compared", |stats| !stats.comparing);
    let budget = home.stats().budget;
    assert!(budget >= 40 * charge(SIZE as u32), "{budget}");
    for (id, bytes) in &far_blobs(&home, 60, SIZE) {
        assert_eq!(home.cache().fetch(id).unwrap().1, *bytes);
        home.rest();
    }
    let full = home.stats().blobs;
    assert!((35..=40).contains(&full), "{full}");
    for has_index in [true, false] {
        home.cache = None;
        if !has_index {
            fs::remove_file(home.index()).unwrap();
        }
        home.open();
        home.until("the folder is compared", |stats| !stats.comparing && stats.blobs >= full);
        home.cache().core.tend();
        let stats = home.stats();
        assert_eq!((stats.blobs, stats.evicted_blobs), (full, 0), "{stats:?}");
        assert!(stats.budget <= budget && stats.budget + 1000 > budget, "{} of {budget}", stats.budget);
    }
}

/// The files that a killed cache wanted to overwrite stayed for an hour and until the next start after that.
/// They were up to 64 MiB that the cache did not count.
#[test]
fn regression_spare_files_of_a_killed_cache_are_removed_at_the_next_start() {
    let home = Home::new();
    let temporary = home.dir.path().join("other/blobs/tmp");
    fs::create_dir_all(&temporary).unwrap();
    for name in ["0123456789abcdef", "0123456789abcdef.sums"] {
        fs::write(temporary.join(name), noise(1000, 1)).unwrap();
    }
    let parts = NodeParts {
        folder: home.dir.path().join("other/blobs"),
        index: home.dir.path().join("other/cache.idx"),
        remote: Arc::clone(&home.far) as Arc<dyn Origin>,
        tier: None,
        table: Table::new(Verify::Blake3, 64 << 20),
        pending: Arc::new(crate::StoresNothing),
        may_delete: None,
        watch: None,
        options: options(),
        report: Arc::new(|line: &str| panic!("{line}")),
    };
    let _cache = NodeCache::open(parts).unwrap();
    assert_eq!(fs::read_dir(temporary).unwrap().count(), 0);
}
