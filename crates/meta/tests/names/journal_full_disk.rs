//! A journal on a disk that is really full: commits are refused and leave nothing, acknowledged commits are
//! there, and removing works.
//!
//! Needs root to mount a small filesystem. Without it the test prints a message and is skipped.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use meta::journal::{Journal, Options};
use meta::store::{CommitError, StoreError};
use meta::{Commit, Expect, MetaStore};

use crate::support::{SimPacks, key, put, range};

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Lazily: after a failed assertion a file in it may still be open.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn mount(at: &Path) -> Option<Mounted<'_>> {
    let done = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(at).output();
    done.is_ok_and(|output| output.status.success()).then_some(Mounted(at))
}

fn options() -> Options {
    Options {
        commit_every: Duration::from_millis(50),
        overlay_rows: 2000,
        overlay_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        log_bytes: 4 << 20,
        reserve_bytes: (4 << 20, 4 << 20),
        ..Options::default()
    }
}

/// A new row, as a create writes it.
fn create(name: [u8; 4]) -> Commit {
    Commit { checks: vec![(key(name), Expect::Absent)], ..put(name, [1; 900]) }
}

fn name(n: u32) -> [u8; 4] {
    n.wrapping_mul(2_654_435_761).to_be_bytes()
}

fn count(journal: &Journal) -> u32 {
    journal.scan(&range([], [0xFF; 9]), usize::MAX).unwrap().len() as u32
}

/// How often something is tried again, after a pause of 50 ms.
const TRIES: usize = 1200;

/// Retries the commit for a short time, until the journal notices that there is room.
fn insist(journal: &Journal, what: &str, commit: impl Fn() -> Commit) {
    let mut tries = 0;
    while let Err(error) = journal.commit(commit()) {
        tries += 1;
        assert!(tries < TRIES, "{what}: {error:?} {:?}", journal.stats());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn remove_all(journal: &Journal, rows: u32) {
    for n in 0..rows {
        insist(journal, &format!("removing row {n} of {rows}"), || Commit {
            dels: vec![key(name(n))],
            ..Commit::default()
        });
    }
    // The filesystem frees deleted space when it commits the deletion: a busy one may report "full" a few
    // more times.
    let drained = || journal.flush().and_then(|_| journal.drain());
    let tries = (0..TRIES)
        .take_while(|_| drained().is_err())
        .inspect(|_| std::thread::sleep(Duration::from_millis(50)))
        .count();
    assert!(tries < TRIES, "after removing all: {:?}", journal.stats());
    assert_eq!(count(journal), 0);
}

#[test]
fn a_disk_full_of_names_can_be_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mounted) = mount(folder.path()) else {
        eprintln!("mounting a tmpfs needs root: skipped");
        return;
    };
    let packs = Arc::new(SimPacks::default());
    let open = || Journal::open(folder.path(), packs.clone(), options()).unwrap().0;
    let journal = open();
    assert!(!journal.is_tight());
    let mut written = 0u32;
    let refused = loop {
        match journal.commit(create(name(written))) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "the disk does not fill");
    };
    assert!(matches!(refused, CommitError::Store(StoreError::Full)), "{refused:?}");
    println!("{written} rows of 900 bytes on 24 MiB, {:?}", journal.stats());
    assert_eq!(count(&journal), written);

    // Killed when it was full, and opened on the full disk.
    drop(journal);
    let journal = open();
    assert_eq!(count(&journal), written);
    remove_all(&journal, written);
    for n in 0..written / 2 {
        insist(&journal, "creating", || create(name(n)));
    }
    journal.close().unwrap();
}

#[test]
fn a_disk_full_of_other_things_can_be_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mounted) = mount(folder.path()) else {
        eprintln!("mounting a tmpfs needs root: skipped");
        return;
    };
    let packs = Arc::new(SimPacks::default());
    let open = || Journal::open(folder.path(), packs.clone(), options()).unwrap().0;
    let journal = open();
    for n in 0..2000 {
        journal.commit(create(name(n))).unwrap();
    }
    journal.drain().unwrap();
    // Another file takes every byte that is not reserved. (While the reserve is released, it could be taken
    // too.)
    let ballast = folder.path().join("ballast");
    let mut file = File::create(&ballast).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let mut written = 2000;
    while journal.commit(create(name(written))).is_ok() {
        written += 1;
        assert!(written < 100_000, "the disk does not fill");
    }
    journal.flush().unwrap();
    drop(journal);
    while file.write_all(&[1; 4096]).is_ok() {}
    let journal = open();
    assert_eq!(count(&journal), written);
    remove_all(&journal, written);
    drop(file);
    std::fs::remove_file(&ballast).unwrap();
    insist(&journal, "creating", || create(name(0)));
    assert!(!journal.is_tight());
    journal.close().unwrap();
}
