//! With the volume and its origin on one filesystem, every byte is written to the disk once: the file that
//! was written becomes the blob.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use covey_tests::{Need, Rng, Volume, proc, requires, say};

const MIB: u64 = 1 << 20;
const WRITTEN: u64 = 256 * MIB;
/// Names, log and sums may cost this many percent in addition, and so may packs that a slow machine left so
/// small that they are merged. A second write of everything would be a hundred.
const BESIDE: u64 = 10;

#[test]
fn every_byte_is_written_once() {
    requires!(Need::Root, Need::Covey, Need::Disk);
    let volume = Volume::new();
    let mounted = volume.mount();
    let Some(pid) = mounted.pid() else { panic!("the daemon's pid is not known") };
    let Some(before) = proc::bytes_written(pid) else { panic!("/proc/{pid}/io cannot be read") };
    let mut buf = vec![0; MIB as usize];
    for name in ["a", "b", "c", "d"] {
        let mut file = File::create(mounted.join(name)).unwrap();
        for number in 0..WRITTEN / 4 / MIB {
            Rng::new(u64::from(name.as_bytes()[0]) << 32 | number).fill(&mut buf);
            file.write_all(&buf).unwrap();
        }
        file.sync_all().unwrap();
    }
    // Waits until everything is sealed: code that moves bytes would move them by then.
    let since = Instant::now();
    let blobs = || volume.blob_bytes();
    while blobs() < WRITTEN {
        assert!(since.elapsed() < Duration::from_secs(300), "{} MiB are sealed", blobs() / MIB);
        std::thread::sleep(Duration::from_millis(100));
    }
    let cost = proc::bytes_written(pid).unwrap() - before;
    say(format_args!(
        "{} MiB stored cost {:.1} MiB of writes by the daemon ({:.3} for each byte)",
        WRITTEN / MIB,
        cost as f64 / MIB as f64,
        cost as f64 / WRITTEN as f64
    ));
    mounted.umount();
    assert!(cost >= WRITTEN, "so few writes cannot have stored them");
    assert!(cost <= WRITTEN + WRITTEN * BESIDE / 100);
    volume.must_be_clean();
}
