//! The time of one operation after the other.
//!
//! "Uncached" means that the guest's kernel has to ask: its caches were dropped before, or the call tells it
//! to ask. "Cached" means the same call again. What the kernel may answer by itself then is what the server
//! allows it to keep.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long each operation is repeated.
const EACH: Duration = Duration::from_millis(500);
/// It is repeated at least so often.
const LEAST: u64 = 30;
/// Entries of a directory.
const ENTRIES: u64 = 200;
const KIB_4: usize = 4096;
const MIB: usize = 1 << 20;
/// Size of the file for reads and writes, in MiB.
const FILE_MIB: usize = 32;

fn line(name: &str, nanos: f64) {
    println!("{name}\t{nanos:.0}");
}

/// Repeats an operation. Its argument counts.
fn repeat(name: &str, mut operation: impl FnMut(u64)) {
    let start = Instant::now();
    let mut count = 0;
    while count < LEAST || start.elapsed() < EACH {
        operation(count);
        count += 1;
    }
    line(name, start.elapsed().as_nanos() as f64 / count as f64);
}

/// Times `times` operations at once, and what must happen before them is not counted.
fn batches(name: &str, times: u64, mut before: impl FnMut(), mut all: impl FnMut()) {
    let (mut spent, mut rounds) = (Duration::ZERO, 0);
    while rounds < 3 || spent < EACH && rounds < 20 {
        before();
        let start = Instant::now();
        all();
        spent += start.elapsed();
        rounds += 1;
    }
    line(name, spent.as_nanos() as f64 / (rounds * times) as f64);
}

/// The kernel forgets pages, names and inodes. It needs root.
pub fn drop_caches() {
    // SAFETY: the call takes nothing.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// Asks the filesystem for a file's attributes, whatever the kernel knows.
fn force_stat(file: &File) {
    // SAFETY: the result is plain numbers, for which zeros are valid.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
    let (fd, mask) = (file.as_raw_fd(), libc::STATX_BASIC_STATS);
    // SAFETY: the name is an empty C string, and the result lives through the call.
    let done = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut found) };
    assert!(done == 0, "statx: {}", std::io::Error::last_os_error());
}

/// Memory that may be read into with O_DIRECT.
#[repr(align(4096))]
struct Aligned([u8; KIB_4]);

/// Every operation.
pub fn operations(dir: &Path) {
    let names = dir.join("names");
    fs::create_dir_all(&names).unwrap();
    for at in 0..ENTRIES {
        File::create(names.join(format!("n{at}"))).unwrap();
    }
    let path = dir.join("data");
    let random: Vec<u8> =
        (0..MIB as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    (0..FILE_MIB).for_each(|at| file.write_all_at(&random, (at * MIB) as u64).unwrap());
    file.sync_all().unwrap();
    of_names(&names);
    of_data(&file, &path);
    large(&file, &random, &path);
    fs::remove_dir_all(&names).unwrap();
    fs::remove_file(&path).unwrap();
}

fn of_names(names: &Path) {
    let one = File::open(names.join("n0")).unwrap();
    let every = || (0..ENTRIES).for_each(|at| look_up(&names.join(format!("n{at}"))));
    repeat("getattr, uncached", |_| force_stat(&one));
    repeat("getattr, cached", |_| look_up(&names.join("n1")));
    batches("lookup, uncached", ENTRIES, drop_caches, every);
    batches("lookup, cached", ENTRIES, || (), every);
    repeat("lookup of a missing name", |_| assert!(fs::metadata(names.join("missing")).is_err()));
    repeat("open and close", |_| drop(File::open(names.join("n2")).unwrap()));
    batches("readdir of 200, uncached", 1, drop_caches, || list(names));
    repeat("readdir of 200, cached", |_| list(names));
    repeat("create and unlink", |at| {
        let path = names.join(format!("new{at}"));
        drop(File::create(&path).unwrap());
        fs::remove_file(&path).unwrap();
    });
}

fn look_up(path: &Path) {
    let _ = black_box(fs::metadata(path).unwrap());
}

fn list(names: &Path) {
    assert!(fs::read_dir(names).unwrap().count() >= ENTRIES as usize);
}

fn of_data(file: &File, path: &Path) {
    let pages = (FILE_MIB * MIB / KIB_4) as u64;
    let place = |at: u64| (at.wrapping_mul(0x9e37_79b9) % pages) * KIB_4 as u64;
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut room = Box::new(Aligned([0; KIB_4]));
    repeat("read 4K, uncached", |at| direct.read_exact_at(&mut room.0, place(at)).unwrap());
    (0..MIB as u64).step_by(KIB_4).for_each(|at| file.read_exact_at(&mut room.0, at).unwrap());
    repeat("read 4K, cached", |at| file.read_exact_at(&mut room.0, place(at) % MIB as u64).unwrap());
    repeat("open, read 4K, close", |_| {
        let file = File::open(path).unwrap();
        file.read_exact_at(&mut room.0, 0).unwrap();
    });
    repeat("write 4K", |at| file.write_all_at(&room.0, place(at)).unwrap());
    file.sync_all().unwrap();
    repeat("append 100 bytes", |at| {
        file.write_all_at(&room.0[..100], (FILE_MIB * MIB) as u64 + at * 100).unwrap()
    });
    file.sync_all().unwrap();
    repeat("write 4K and fsync", |at| {
        file.write_all_at(&room.0, place(at)).unwrap();
        file.sync_data().unwrap();
    });
}

fn large(file: &File, random: &[u8], path: &Path) {
    let mut room = vec![0; MIB];
    batches("read 1M in sequence", FILE_MIB as u64, drop_caches, || {
        let file = File::open(path).unwrap();
        (0..FILE_MIB).for_each(|at| file.read_exact_at(&mut room, (at * MIB) as u64).unwrap());
        assert!(room.len() == random.len());
    });
    batches(
        "write 1M in sequence",
        FILE_MIB as u64,
        || (),
        || {
            (0..FILE_MIB).for_each(|at| file.write_all_at(random, (at * MIB) as u64).unwrap());
            file.sync_data().unwrap();
        },
    );
}

/// Writes with fsync, and nothing else.
pub fn fsync(dir: &Path, count: usize) {
    let path = dir.join("synced");
    let file = File::create(&path).unwrap();
    let start = Instant::now();
    for at in 0..count {
        file.write_all_at(&[at as u8; KIB_4], (at * KIB_4) as u64).unwrap();
        file.sync_data().unwrap();
    }
    line("write 4K and fsync", start.elapsed().as_nanos() as f64 / count as f64);
    fs::remove_file(path).unwrap();
}
