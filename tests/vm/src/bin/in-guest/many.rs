//! Many workers, and several streams.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const KIB_4: usize = 4096;
/// What each stream moves.
const STREAM_BYTES: usize = 8 << 20;

/// Runs workers side by side, and returns the time from their common start to the last one's end.
fn together(workers: usize, work: impl Fn(usize) + Sync) -> Duration {
    let barrier = Barrier::new(workers + 1);
    let start = std::thread::scope(|scope| {
        for worker in 0..workers {
            let (barrier, work) = (&barrier, &work);
            let mine = move || {
                barrier.wait();
                work(worker);
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, mine).unwrap();
        }
        barrier.wait();
        Instant::now()
    });
    start.elapsed()
}

/// The kernel forgets the pages of a file, and keeps its name.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: the descriptor is open. The call takes numbers only.
    let done = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert!(done == 0, "fadvise: {done}");
}

/// Workers write files of 4 KiB, and read files that others wrote. Prints nanoseconds per file.
pub fn parallel(dir: &Path, workers: usize, files: usize) {
    let path = |number: usize| dir.join(format!("p{number}"));
    let each = |worker: usize| (worker..files).step_by(workers);
    let report =
        |name: &str, time: Duration| println!("{name}\t{:.0}", time.as_nanos() as f64 / files as f64);
    let wrote = together(workers, |worker| {
        each(worker).for_each(|number| fs::write(path(number), [number as u8; KIB_4]).unwrap());
    });
    report("write", wrote);
    (0..files).for_each(|number| forget(&path(number)));
    let read = together(workers, |worker| {
        each((worker + 1) % workers).for_each(|number| {
            assert!(fs::read(path(number)).unwrap() == [number as u8; KIB_4], "{number} has other bytes");
        });
    });
    report("read", read);
    (0..files).for_each(|number| fs::remove_file(path(number)).unwrap());
}

/// Streams of a file each: written with fsync at the end, then read with cold caches. Prints MiB per second.
pub fn streams(dir: &Path, count: usize, size: usize) {
    let path = |stream: usize| dir.join(format!("s{stream}"));
    let report = |name: &str, time: Duration| {
        println!("{name}\t{:.0}", (count * STREAM_BYTES) as f64 / 1048576.0 / time.as_secs_f64());
    };
    let wrote = together(count, |stream| {
        let (file, piece) = (File::create(path(stream)).unwrap(), vec![stream as u8 + 1; size]);
        (0..STREAM_BYTES).step_by(size).for_each(|at| file.write_all_at(&piece, at as u64).unwrap());
        file.sync_data().unwrap();
    });
    report("to the host", wrote);
    (0..count).for_each(|stream| forget(&path(stream)));
    let read = together(count, |stream| {
        let (file, mut piece) = (File::open(path(stream)).unwrap(), vec![0; size]);
        for at in (0..STREAM_BYTES).step_by(size) {
            file.read_exact_at(&mut piece, at as u64).unwrap();
            assert!(piece[0] == stream as u8 + 1 && piece[size - 1] == stream as u8 + 1);
        }
    });
    report("from the host", read);
    (0..count).for_each(|stream| fs::remove_file(path(stream)).unwrap());
}
