//! The cost of the journal: commits per second, microseconds of a create and of a flush, the time to reopen
//! after a kill, memory.
//!
//! `cargo run --release -p covey-meta --example journal_speed -- [FILES] [FOLDER]` measures the disk that
//! holds the folder.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_meta as meta;

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Ino, PackNo};
use blob::PackStore;
use meta::journal::{Journal, Options};
use meta::store::FreshData;
use meta::{Commit, Expect, Key, MetaStore};
use support::FolderPacks;

/// The commit of a file's creation: its inode, its name, its content's row; two counters; the directory's
/// time.
fn create(ino: u64, in_directory: u64) -> Commit {
    let parent = Ino(ino / in_directory + 2);
    let name = format!("file-{ino:08}");
    Commit {
        checks: vec![
            (Key::inode(Ino(1)), Expect::Exists),
            (Key::dentry(parent, name.as_bytes()), Expect::Absent),
        ],
        puts: vec![
            (Key::inode(Ino(ino + 10_000_000)), [7u8; 96].as_slice().into()),
            (Key::dentry(parent, name.as_bytes()), [1u8; 9].as_slice().into()),
            (Key::extents(Ino(ino + 10_000_000), 0), [3u8; 24].as_slice().into()),
        ],
        adds: vec![(Key::volume("bytes"), 4096), (Key::volume("inodes"), 1)],
        maxs: vec![(Key::dir_changed(parent), ino)],
        ..Commit::default()
    }
}

fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    format!("p50 {:.1} us, p99 {:.1} us, max {:.0} us", at(0.5), at(0.99), at(1.0))
}

fn open(folder: &Path) -> (Arc<Journal>, Arc<FolderPacks>) {
    let packs = Arc::new(FolderPacks::new(&folder.join("open")));
    let before = Instant::now();
    let (journal, recovered) = Journal::open(folder, packs.clone(), Options::default()).unwrap();
    println!("open: {:.3} s, {recovered:?}", before.elapsed().as_secs_f64());
    (Arc::new(journal), packs)
}

fn import(journal: &Arc<Journal>, files: u64, threads: u64, from: u64, in_directory: u64) {
    let (before, cpu) = (Instant::now(), cpu_seconds());
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let journal = journal.clone();
            let share = files / threads;
            std::thread::spawn(move || {
                let mut times = Vec::with_capacity(share as usize);
                for n in 0..share {
                    let commit = create(from + thread * share + n, in_directory);
                    let before = Instant::now();
                    journal.commit(commit).unwrap();
                    times.push(before.elapsed());
                }
                times
            })
        })
        .collect();
    let times = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    let (wall, cpu) = (before.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "{files} creates, {threads} thread(s), {in_directory} in a directory: {:.0}/s, {}, {:.1} us CPU each, {} waits, memory {} MiB (peak {})",
        files as f64 / wall,
        percentiles(times),
        cpu * 1e6 / files as f64,
        journal.stats().waits,
        memory("VmRSS"),
        memory("VmHWM"),
    );
}

fn flushes(journal: &Journal, packs: &FolderPacks, rounds: u64) {
    packs.create(PackNo(1)).unwrap();
    let bytes = [5u8; 4096];
    let mut times = Vec::new();
    for n in 0..rounds {
        let offset = (n * 4096) as u32;
        packs.write(PackNo(1), offset, &bytes).unwrap();
        let fresh = FreshData { pack: PackNo(1), offset, len: 4096, crc: blob::sums::crc32c(&bytes) };
        let key = Key::extents(Ino(5), n as u32);
        journal
            .commit(Commit {
                puts: vec![(key, [1; 24].as_slice().into())],
                fresh: vec![fresh],
                ..Commit::default()
            })
            .unwrap();
        let before = Instant::now();
        journal.flush().unwrap();
        times.push(before.elapsed());
    }
    println!("flush with 4 KiB: {}", percentiles(times));
    // For comparison: the time of one write of 4 KiB and its fdatasync on the same disk.
    let file = std::fs::File::create(packs.0.join("../probe")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let times = (0..rounds).map(|n| {
        let before = Instant::now();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, n % 1000 * 4096).unwrap();
        file.sync_data().unwrap();
        before.elapsed()
    });
    println!("the disk's own: {}", percentiles(times.collect()));
}

/// The memory of a `mem:` volume's rows.
fn in_memory(files: u64) {
    let before = memory("VmRSS");
    let store = meta::Memory::new();
    store
        .commit(Commit { puts: vec![(Key::inode(Ino(1)), [7; 96].as_slice().into())], ..Commit::default() })
        .unwrap();
    let start = Instant::now();
    for n in 0..files {
        store.commit(create(n, 1000)).unwrap();
    }
    let (rows, bytes) = (store.rows(), store.bytes());
    let grown = (memory("VmRSS") - before) << 20;
    println!(
        "memory: {:.0} creates/s, {rows} rows, {:.0} bytes each, {:.0} with everything",
        files as f64 / start.elapsed().as_secs_f64(),
        bytes as f64 / rows as f64,
        grown as f64 / rows as f64,
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let files: u64 = args.first().map_or(1_000_000, |n| n.parse().unwrap());
    in_memory(files.min(500_000));
    let kept = args.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(kept).unwrap();
    let (journal, packs) = open(folder.path());
    journal
        .commit(Commit { puts: vec![(Key::inode(Ino(1)), [7; 96].as_slice().into())], ..Commit::default() })
        .unwrap();
    import(&journal, files, 1, 0, 1000);
    import(&journal, files / 4, 2, files, 1000);
    import(&journal, files / 4, 1, files * 2, files);
    flushes(&journal, &packs, 1000);
    import(&journal, 20_000, 1, files * 4, 1000);
    println!("{:?}", journal.stats());
    // Like a kill: no thread runs any more, and nothing was shut down in order.
    drop(journal);
    let (journal, _) = open(folder.path());
    let before = Instant::now();
    let count = journal.scan(&Key::kind(meta::key::tags::INODE), usize::MAX).unwrap().len();
    println!("{count} inodes scanned in {:.2} s", before.elapsed().as_secs_f64());
    let before = Instant::now();
    let some = 100_000.min(files);
    for n in 0..some {
        assert!(journal.get(&Key::inode(Ino(n * (files / some) + 10_000_000))).unwrap().is_some());
    }
    println!("get from SQLite: {:.2} us", before.elapsed().as_secs_f64() * 1e6 / some as f64);
    let before = Instant::now();
    journal.close().unwrap();
    println!("close: {:.3} s", before.elapsed().as_secs_f64());
    let database = std::fs::metadata(folder.path().join("names.db")).unwrap().len();
    println!("database: {} MiB, {:.0} bytes per file", database >> 20, database as f64 / count as f64);
}
