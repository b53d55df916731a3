//! The lower bound of the transport: how long operations take if the filesystem below does nothing.
//!
//! ```text
//! cargo run --release -p covey-fuse --example floor [DIRECTORY]
//! cargo run --release -p covey-fuse --example floor transports [ROUNDS]
//! ```
//!
//! Prints medians and 99th percentiles in microseconds, with and without the kernel's writeback cache. Prints
//! beside them the same operations on the directory given as an argument (say, one on tmpfs). With
//! `transports` it compares /dev/fuse with io_uring, in turns: the throughput of one caller and of sixteen,
//! and the CPU time of an operation on both sides. The kernel's switch for io_uring must be on, or is turned
//! on.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_fuse as fuse;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::time::monotonic;
use fuse::null::{FILES, Null};
use fuse::{Options, Session, Transport, Unmount};

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

/// Durations of one operation.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = monotonic();
        let done = work();
        self.0.push(begun.elapsed());
        done
    }

    fn show(&mut self, what: &str) {
        self.0.sort_unstable();
        let at = |share: f64| {
            let index = (self.0.len() as f64 * share) as usize;
            self.0.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        println!("  {what:34} p50 {:8.1} us   p99 {:8.1} us", at(0.5), at(0.99));
    }
}

fn cycles(at: &Path) -> Outcome {
    let data = [7; 4096];
    let [mut create, mut write, mut close, mut unlink, mut cycle] = std::array::from_fn(|_| Times::default());
    for i in 0..3000 {
        let path = at.join(format!("new-{i}"));
        let begun = monotonic();
        let mut file = create.take(|| OpenOptions::new().write(true).create_new(true).open(&path))?;
        write.take(|| file.write_all(&data))?;
        close.take(|| drop(file));
        unlink.take(|| std::fs::remove_file(&path))?;
        cycle.0.push(begun.elapsed());
    }
    create.show("create");
    write.show("write 4 KiB");
    close.show("close");
    unlink.show("unlink");
    cycle.show("create+write+close+unlink");
    Ok(())
}

fn small_writes(at: &Path) -> Outcome {
    let data = [7; 4107];
    let mut writes = Times::default();
    let path = at.join("log");
    let mut file = File::create(&path)?;
    let begun = monotonic();
    for _ in 0..16_000 {
        writes.take(|| file.write_all(&data))?;
    }
    drop(file);
    let speed = 16_000.0 * 4107.0 / begun.elapsed().as_secs_f64() / 1e6;
    writes.show("write 4107 B");
    println!("  {:34} {speed:12.0} MB/s with close", "");
    std::fs::remove_file(&path)?;
    Ok(())
}

fn stream(at: &Path) -> Outcome {
    let data = vec![7; 1 << 20];
    let path = at.join("large");
    let begun = monotonic();
    let mut file = File::create(&path)?;
    for _ in 0..512 {
        file.write_all(&data)?;
    }
    drop(file);
    println!("  {:34} {:8.2} GiB/s", "write 512 MiB", 0.5 / begun.elapsed().as_secs_f64());
    std::fs::remove_file(&path)?;
    Ok(())
}

/// Opens and reads the mount's own files. `cold` drops their pages before each read.
fn reads(at: &Path, cold: bool, len: usize) -> Outcome {
    let mut data = vec![0; len];
    let [mut read, mut open, mut open_stat] = std::array::from_fn(|_| Times::default());
    for round in 0..3 {
        for i in 0..FILES {
            let path = at.join(i.to_string());
            let file = open.take(|| File::open(&path))?;
            if cold {
                // SAFETY: the descriptor is open. The other arguments are numbers.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            }
            read.take(|| file.read_at(&mut data, 0))?;
            drop(file);
            open_stat.take(|| -> std::io::Result<()> { File::open(&path)?.metadata().map(drop) })?;
        }
        if round == 0 {
            // The first round looks the names up.
            for times in [&mut read, &mut open, &mut open_stat] {
                times.0.clear();
            }
        }
    }
    let kind = if cold { "cold" } else { "warm" };
    read.show(&format!("{kind} read {} KiB", len >> 10));
    if !cold {
        open.show("warm open");
        open_stat.show("warm open+fstat+close");
        let mut whole = Times::default();
        for i in 0..FILES {
            whole
                .take(|| -> std::io::Result<usize> { File::open(at.join(i.to_string()))?.read(&mut data) })?;
        }
        whole.show("warm open+read+close");
    }
    Ok(())
}

fn all(at: &Path) -> Outcome {
    cycles(at)?;
    small_writes(at)?;
    stream(at)?;
    reads(at, false, 4096)?;
    reads(at, true, 4096)?;
    reads(at, true, 65536)
}

/// Listings right after mounting, when the kernel has cached nothing of the mount.
fn first_listings(parent: &Path) -> Outcome {
    for stat in [false, true] {
        let mut list = Times::default();
        for _ in 0..20 {
            let session = Session::mount(Arc::new(Null::new()), parent, Options::default())?;
            list.take(|| -> std::io::Result<()> {
                for entry in std::fs::read_dir(parent)? {
                    let entry = entry?;
                    if stat {
                        entry.metadata()?;
                    }
                }
                Ok(())
            })?;
            session.unmount(Unmount::Polite)?;
            session.wait();
        }
        list.show(if stat { "first listing of 1000 with stat" } else { "first listing of 1000" });
    }
    Ok(())
}

/// CPU time of this process, which is both client and server.
fn cpu() -> Duration {
    // SAFETY: rusage is plain numbers, for which all zero bytes are a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `used` is one rusage.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut used) };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(used.ru_utime) + time(used.ru_stime)
}

/// Runs `work` in this many threads, `each` times in every one, and prints latency, rate and CPU time.
fn crowd(
    what: &str,
    threads: usize,
    each: usize,
    work: impl Fn(usize, usize) -> std::io::Result<Duration> + Sync,
) -> Outcome {
    let (begun, used) = (monotonic(), cpu());
    let times: std::io::Result<Vec<Vec<Duration>>> = std::thread::scope(|scope| {
        let work = &work;
        let crowd: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || (0..each).map(|i| work(thread, i)).collect()))
            .collect();
        crowd
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(std::io::Error::other("panicked"))))
            .collect()
    });
    let (took, used) = (begun.elapsed(), cpu() - used);
    let mut times = Times(times?.concat());
    let count = times.0.len() as f64;
    times.show(what);
    let (rate, cost) = (count / took.as_secs_f64() / 1e3, used.as_secs_f64() * 1e6 / count);
    println!("  {:34} {rate:8.1} kop/s {cost:8.1} us of processor time each", "");
    Ok(())
}

fn compare(parent: &Path, rounds: usize) -> Outcome {
    for round in 1..=rounds {
        for transport in [Transport::Classic, Transport::Uring] {
            let options = Options { writeback: Some(false), transport, ..Options::default() };
            let session = Session::mount(Arc::new(Null::new()), parent, options)?;
            println!("round {round}, {}:", session.transport());
            let read = |thread: usize, i: usize| {
                let file = File::open(parent.join(((thread * 61 + i) as u64 % FILES).to_string()))?;
                // SAFETY: the descriptor is open. The other arguments are numbers.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
                let begun = monotonic();
                file.read_at(&mut [0; 4096], 0)?;
                Ok(begun.elapsed())
            };
            let cycle = |thread: usize, i: usize| {
                let path = parent.join(format!("new-{thread}-{i}"));
                let begun = monotonic();
                File::create_new(&path)?.write_all(&[7; 4096])?;
                std::fs::remove_file(&path)?;
                Ok(begun.elapsed())
            };
            // The first pass looks the names up.
            (0..FILES as usize).try_for_each(|i| read(0, i).map(drop))?;
            for threads in [1, 16] {
                crowd(&format!("cold read 4 KiB, {threads} threads"), threads, 16_000 / threads, read)?;
                let what = format!("create+write+close+unlink, {threads} thr");
                crowd(&what, threads, 4_000 / threads, cycle)?;
            }
            session.unmount(Unmount::Polite)?;
            session.wait();
        }
    }
    Ok(())
}

fn main() -> Outcome {
    let parent = std::env::temp_dir().join(format!("covey-floor-{}", std::process::id()));
    std::fs::create_dir(&parent)?;
    if std::env::args().nth(1).as_deref() == Some("transports") {
        let rounds = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(3);
        let done = compare(&parent, rounds);
        std::fs::remove_dir(&parent)?;
        return done;
    }
    for writeback in [false, true] {
        println!("null filesystem, writeback {}:", if writeback { "on" } else { "off" });
        let options = Options { writeback: Some(writeback), ..Options::default() };
        let session = Session::mount(Arc::new(Null::new()), &parent, options)?;
        let done = all(&parent);
        session.unmount(Unmount::Polite)?;
        session.wait();
        done?;
    }
    first_listings(&parent)?;
    std::fs::remove_dir(&parent)?;
    if let Some(other) = std::env::args().nth(1) {
        println!("{other}:");
        for i in 0..FILES {
            std::fs::write(Path::new(&other).join(i.to_string()), vec![0; 65536])?;
        }
        all(Path::new(&other))?;
        for i in 0..FILES {
            std::fs::remove_file(Path::new(&other).join(i.to_string()))?;
        }
    }
    Ok(())
}
