//! How much memory the daemon needs, and how much disk space a volume that is overwritten continuously.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use covey_tests::program::covey_run;
use covey_tests::{Mounted, Need, Rng, Volume, proc, requires, say};

const MIB: u64 = 1 << 20;
/// The daemon's highest allowed peak, whatever it does.
const PEAK: u64 = 200 * MIB;

/// How much a fast writer may put on the disk before compaction catches up: a second or two of writing.
const QUICK: u64 = 256 * MIB;

fn peak(mounted: &Mounted) -> u64 {
    mounted.pid().map_or(0, |pid| proc::peak_rss_kib(pid) << 10)
}

/// Writes this many MiB of new bytes to a file and reads them back.
fn write_and_read(mounted: &Mounted, mib: u64) -> [Duration; 2] {
    let path = mounted.join("large");
    let mut buf = vec![0; MIB as usize];
    let since = Instant::now();
    let mut file = File::create(&path).unwrap();
    for number in 0..mib {
        Rng::new(number).fill(&mut buf);
        file.write_all(&buf).unwrap();
    }
    file.sync_all().unwrap();
    let written = since.elapsed();
    // Otherwise the kernel would answer without the daemon.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    drop(file);
    let since = Instant::now();
    let (mut file, mut wanted) = (File::open(&path).unwrap(), vec![0; MIB as usize]);
    for number in 0..mib {
        file.read_exact(&mut buf).unwrap();
        Rng::new(number).fill(&mut wanted);
        assert!(buf == wanted, "MiB {number} differs");
    }
    assert_eq!(file.read(&mut buf).unwrap(), 0, "the file should end where the last write ended");
    [written, since.elapsed()]
}

fn large_file(mib: u64) {
    let volume = Volume::new();
    let mounted = volume.mount();
    let [written, read] = write_and_read(&mounted, mib);
    let (peak, disk) = (peak(&mounted), volume.disk_bytes());
    let rate = |time: Duration| mib as f64 / time.as_secs_f64();
    say(format_args!(
        "{mib} MiB written at {:.0} MiB/s, read at {:.0} MiB/s; peak {} MiB, disk {} MiB",
        rate(written),
        rate(read),
        peak / MIB,
        disk / MIB
    ));
    mounted.umount();
    assert!(peak < PEAK, "the daemon held {} MiB", peak / MIB);
    volume.must_be_clean();
}

#[test]
fn the_daemon_stays_small_through_a_large_file() {
    requires!(Need::Mount, Need::Free(2 << 30));
    large_file(400);
}

#[test]
#[ignore = "minutes, 20 GiB of disk: make test-memory"]
fn long_the_daemon_stays_small_through_twenty_gib() {
    let gib = super::setting("COVEY_GIB", 20);
    requires!(Need::Mount, Need::Free((gib + 5) << 30));
    large_file(gib << 10);
}

/// A volume in memory needs at most 1.1 times what is stored, in addition to what every daemon needs.
#[test]
fn a_volume_in_memory_holds_little_more_than_what_is_stored() {
    requires!(Need::Covey);
    let volume = Volume::in_memory();
    let mounted = volume.mount();
    let mib = 600;
    write_and_read(&mounted, mib);
    let (peak, allowed) = (peak(&mounted), PEAK + mib * MIB * 11 / 10);
    say(format_args!("{mib} MiB in memory: peak {} MiB, allowed {}", peak / MIB, allowed / MIB));
    mounted.umount();
    assert!(peak < allowed, "the daemon held {} MiB", peak / MIB);
}

/// Overwrites random pages of a file until `times` its size was written. The disk must not hold more than
/// twice the live data.
fn overwrites(mib: u64, times: u64) {
    let volume = Volume::new();
    let mounted = volume.mount();
    write_and_read(&mounted, mib);
    let file = File::options().read(true).write(true).open(mounted.join("large")).unwrap();
    let mut rng = Rng::new(mib);
    let mut last = vec![u64::MAX; (mib * MIB / 4096) as usize];
    let mut most = 0;
    let total = last.len() as u64 * times;
    for number in 0..total {
        let page = rng.below(last.len() as u64);
        file.write_all_at(&Rng::new(number).bytes(4096), page * 4096).unwrap();
        last[page as usize] = number;
        if number % 4096 == 4095 {
            file.sync_data().unwrap();
            most = most.max(volume.disk_bytes());
        }
    }
    file.sync_all().unwrap();
    // Live data is the file. In addition a volume keeps its log, its database, and reserved space for a full
    // disk.
    let allowed = 2 * mib * MIB + 96 * MIB;
    let since = Instant::now();
    while volume.disk_bytes() > allowed && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(200));
    }
    let (disk, peak, waited) = (volume.disk_bytes(), peak(&mounted), since.elapsed());
    say(format_args!(
        "{mib} MiB overwritten {times} times: disk {} MiB after {waited:?}, at most {} meanwhile; peak memory {} MiB",
        disk / MIB,
        most / MIB,
        peak / MIB
    ));
    check_pages(&file, &last);
    drop(file);
    mounted.umount();
    volume.must_be_clean();
    assert!(disk <= allowed, "the disk holds {} MiB, {} are allowed", disk / MIB, allowed / MIB);
    assert!(most <= allowed + QUICK, "the disk held {} MiB at one time", most / MIB);
    assert!(peak < PEAK, "the daemon held {} MiB", peak / MIB);
}

fn check_pages(file: &File, last: &[u64]) {
    let mut buf = vec![0; 4096];
    for (page, number) in last.iter().enumerate().filter(|(_, number)| **number != u64::MAX) {
        file.read_exact_at(&mut buf, page as u64 * 4096).unwrap();
        assert!(buf == Rng::new(*number).bytes(4096), "page {page} differs");
    }
}

#[test]
fn random_overwrites_leave_at_most_twice_what_lives() {
    requires!(Need::Mount, Need::Free(2 << 30));
    overwrites(48, 8);
}

#[test]
#[ignore = "minutes: make test-memory"]
fn long_random_overwrites_leave_at_most_twice_what_lives() {
    requires!(Need::Mount, Need::Free(8 << 30));
    overwrites(1_024, 8);
}

/// Memory that io_uring's rings may hold for requests' bytes, beyond the share of two CPUs: bounded, counted,
/// and kept once touched.
fn rings() -> u64 {
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    (16 * MIB * cpus).min(64 * MIB).saturating_sub(32 * MIB)
}

fn figures(mounted: &Mounted) -> serde_json::Value {
    covey_run(&["status".as_ref(), mounted.path().as_os_str(), "--json".as_ref()]).json()
}

/// Small files in folders of a thousand, and a large one. All bytes differ.
fn fill(mounted: &Mounted, files: u64, mib: u64) {
    for number in 0..files {
        let folder = mounted.join(format!("d{}", number / 1000));
        if number % 1000 == 0 {
            std::fs::create_dir(&folder).unwrap();
        }
        std::fs::write(folder.join(number.to_string()), Rng::new(number).bytes(4096)).unwrap();
    }
    write_and_read(mounted, mib);
}

/// Memory use is what is stored plus the names. When everything is removed, it returns to the initial value,
/// every time.
fn comes_back(files: u64, mib: u64, rounds: u32) {
    let volume = Volume::in_memory();
    let mounted = volume.mount();
    let held = || proc::rss_kib(mounted.pid().unwrap()) << 10;
    let number = |status: &serde_json::Value, name: &str| status[name].as_u64().unwrap();
    let (start, status) = (held(), figures(&mounted));
    let rings = if status["served"]["transport"] == "uring" { rings() } else { 0 };
    for round in 0..rounds {
        fill(&mounted, files, mib);
        let (full, status) = (held(), figures(&mounted));
        let (stored, names) = (number(&status, "stored_bytes"), number(&status, "names_bytes"));
        // A pack that is being sealed counts neither as open nor as sealed.
        assert!(stored + 4 * MIB >= files * 4096 + mib * MIB, "{status}");
        assert!(names > files * 100, "the names are counted: {status}");
        assert_eq!(
            (number(&status, "log_bytes"), number(&status, "overlay_bytes")),
            (0, 0),
            "no log: {status}"
        );
        let allowed = start + stored + stored / 10 + 2 * names + 50 * MIB + rings;
        assert!(full < allowed, "{} MiB for {} MiB stored", full / MIB, stored / MIB);
        for entry in std::fs::read_dir(mounted.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
        // Inodes are reaped, packs swept and the heap trimmed in the background.
        let since = Instant::now();
        let gone = |status: &serde_json::Value| {
            number(status, "files") == 1 && number(status, "stored_bytes") <= 8 * MIB
        };
        while !(gone(&figures(&mounted)) && held() <= start + 50 * MIB + rings)
            && since.elapsed() < Duration::from_secs(120)
        {
            std::thread::sleep(Duration::from_millis(200));
        }
        let (after, status) = (held(), figures(&mounted));
        say(format_args!(
            "round {round}: {} MiB at the start, {} with {} MiB stored, {} after all was removed, within {:?}",
            start / MIB,
            full / MIB,
            stored / MIB,
            after / MIB,
            since.elapsed()
        ));
        assert!(gone(&status) && after <= start + 50 * MIB + rings, "{status}");
    }
    mounted.umount();
}

#[test]
fn a_volume_in_memory_gives_back_what_is_removed() {
    requires!(Need::Covey);
    comes_back(4_000, 120, 2);
}

#[test]
#[ignore = "minutes, gigabytes of memory: make test-memory"]
fn long_a_volume_in_memory_gives_back_what_is_removed() {
    requires!(Need::Covey);
    comes_back(super::setting("COVEY_FILES", 200_000), 2_048, 3);
}
