//! A process that commits and flushes is killed with SIGKILL at random moments, repeatedly: every commit that
//! had returned is there.
//!
//! `COVEY_KILL_ROUNDS` sets the number of rounds; the default is 6.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::PackNo;
use blob::PackStore;
use meta::journal::{Journal, Options};
use meta::{Commit, MetaStore};

use crate::support::{Dice, FolderPacks, key, range, value};

const CHILD: &str = "COVEY_KILL_CHILD";
const PACK: PackNo = PackNo(1);

/// Small bounds, so that a kill also hits drains, new segments and waiting commits.
fn options() -> Options {
    Options {
        commit_every: Duration::from_millis(20),
        overlay_rows: 400,
        segment_bytes: 64 << 10,
        log_bytes: 256 << 10,
        reserve_bytes: (4096, 4096),
        ..Options::default()
    }
}

fn open(folder: &Path) -> (Journal, Arc<FolderPacks>, u64) {
    let packs = Arc::new(FolderPacks::new(&folder.join("open")));
    if packs.open_packs().unwrap().is_empty() {
        packs.create(PACK).unwrap();
    }
    let (journal, recovered) = Journal::open(folder, packs.clone(), options()).unwrap();
    assert_eq!((recovered.cut, recovered.reason), (0, None), "a kill should lose no record of the log");
    let count = journal.get(&key("count")).unwrap();
    let count = count.map_or(0, |n| u64::from_be_bytes((*n).try_into().unwrap()));
    (journal, packs, count)
}

fn bytes_of(n: u64) -> Vec<u8> {
    (0..1 + n % 700).map(|at| (n * 7 + at) as u8).collect()
}

/// The offset of commit `n`'s bytes in the pack. It wraps around, but never overlaps those of the last 64
/// commits.
fn offset_of(n: u64) -> u32 {
    (n % 4096 * 700) as u32
}

fn child(folder: &Path) {
    let (journal, packs, count) = open(folder);
    let mut out = std::io::stdout();
    for n in count + 1.. {
        let bytes = bytes_of(n);
        packs.write(PACK, offset_of(n), &bytes).unwrap();
        let fresh = meta::store::FreshData {
            pack: PACK,
            offset: offset_of(n),
            len: bytes.len() as u32,
            crc: blob::sums::crc32c(&bytes),
        };
        let puts = vec![
            (key("count"), value(n.to_be_bytes())),
            (key(format!("row {}", n % 50)), value(n.to_be_bytes())),
            (key(format!("wide {n:09}")), value(n.to_be_bytes())),
        ];
        let dels = if n > 1000 { vec![key(format!("wide {:09}", n - 1000))] } else { vec![] };
        journal.commit(Commit { puts, dels, fresh: vec![fresh], ..Commit::default() }).unwrap();
        if n % 64 == 0 {
            journal.flush().unwrap();
        }
        // The parent reads the progress: one write, so that a line is there whole or not at all.
        out.write_all(format!("{n:020}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

fn check(journal: &Journal, packs: &FolderPacks, count: u64) {
    let rows = journal.scan(&range("row ", "row!"), usize::MAX).unwrap();
    for (row, n) in rows {
        let n = u64::from_be_bytes((*n).try_into().unwrap());
        let expected = count - (count - n % 50) % 50;
        assert_eq!(n, expected, "{row:?} of {count}");
    }
    let wide = journal.scan(&range("wide ", "wide!"), usize::MAX).unwrap();
    assert_eq!(wide.len() as u64, count.min(1000));
    for (_, n) in wide.iter().rev().take(200) {
        let n = u64::from_be_bytes((**n).try_into().unwrap());
        let mut bytes = bytes_of(n);
        bytes.fill(0);
        packs.read(PACK, offset_of(n), &mut bytes).unwrap();
        assert_eq!(bytes, bytes_of(n), "the bytes of commit {n}");
    }
}

#[test]
fn every_commit_that_returned_survives_a_kill() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return child(&PathBuf::from(folder));
    }
    let rounds: u64 = std::env::var("COVEY_KILL_ROUNDS").map_or(6, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut dice = Dice(0x5EED_1234);
    for round in 0..rounds {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "journal_kill::every_commit_that_returned_survives_a_kill", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let number = |line: &str| line.get(line.len().saturating_sub(20)..)?.parse::<u64>().ok();
        let mut seen = lines.by_ref().map_while(Result::ok).find_map(|line| number(&line)).unwrap();
        let until = seen + 50 + dice.below(3000);
        while seen < until {
            seen = number(&lines.next().unwrap().unwrap()).unwrap();
        }
        process.kill().unwrap();
        process.wait().unwrap();
        // What the child still wrote before it died.
        seen = lines.map_while(Result::ok).filter_map(|line| number(&line)).last().unwrap_or(seen);
        let (journal, packs, count) = open(folder.path());
        println!("round {round}: {count} there, {seen} seen");
        // One commit may have returned before its line was written.
        assert!(count == seen || count == seen + 1, "{count} there, {seen} seen");
        check(&journal, &packs, count);
    }
}
