//! Directories that change while they are read, and names of all kinds.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use base::Ino;
use fs::api::{Filesystem, RenameMode};

use crate::memory::Memory;
use crate::{options, rig, rig_with, within};

/// Every name that exists throughout is seen exactly once. The kernel's cached listing never outlives a
/// change.
#[test]
fn a_listing_of_ten_thousand_is_stable_while_names_come_and_go() {
    let Some(rig) = rig() else { return };
    let dir = rig.path("many");
    std::fs::create_dir(&dir).unwrap();
    let name = |i: u32| dir.join(format!("{i:05}"));
    for i in 0..10_000 {
        std::fs::write(name(i), b"").unwrap();
    }
    for round in 0..3 {
        let mut seen: HashMap<String, u32> = HashMap::new();
        let mut churn = 0;
        for (count, entry) in std::fs::read_dir(&dir).unwrap().enumerate() {
            *seen.entry(entry.unwrap().file_name().into_string().unwrap()).or_default() += 1;
            if count % 100 == 0 {
                // Odd names are removed and created again at new positions. Other names appear.
                std::fs::remove_file(name(2 * churn + 1)).unwrap();
                std::fs::write(name(2 * churn + 1), b"").unwrap();
                std::fs::write(dir.join(format!("new-{round}-{count}")), b"").unwrap();
                std::fs::rename(
                    dir.join(format!("new-{round}-{count}")),
                    dir.join(format!("old-{round}-{count}")),
                )
                .unwrap();
                churn += 1;
            }
        }
        for i in (0..10_000).step_by(2) {
            assert_eq!(seen.get(&format!("{i:05}")), Some(&1), "round {round}, {i:05}");
        }
        let again: HashSet<_> =
            std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!((0..10_000).all(|i| again.contains(OsStr::new(&format!("{i:05}")))));
    }
}

#[test]
fn a_listing_follows_every_change_at_once() {
    let Some(rig) = rig() else { return };
    let list = || {
        let mut names: Vec<_> =
            std::fs::read_dir(rig.root()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for _ in 0..3 {
        assert!(list().is_empty());
        std::fs::write(rig.path("a"), b"").unwrap();
        assert_eq!(list(), ["a"]);
        assert_eq!(list(), ["a"]);
        std::fs::rename(rig.path("a"), rig.path("b")).unwrap();
        assert_eq!(list(), ["b"]);
        std::fs::create_dir(rig.path("c")).unwrap();
        std::os::unix::fs::symlink("b", rig.path("d")).unwrap();
        std::fs::hard_link(rig.path("b"), rig.path("e")).unwrap();
        assert_eq!(list(), ["b", "c", "d", "e"]);
        std::fs::rename(rig.path("b"), rig.path("c/b")).unwrap();
        assert_eq!(list(), ["c", "d", "e"]);
        std::fs::remove_file(rig.path("e")).unwrap();
        std::fs::remove_file(rig.path("d")).unwrap();
        std::fs::remove_dir_all(rig.path("c")).unwrap();
    }
}

/// Changes in a directory change its times and its link count. The kernel must not keep the old values.
#[test]
fn a_directorys_attributes_follow_what_happens_in_it() {
    let Some(rig) = rig() else { return };
    let dir = rig.path("dir");
    std::fs::create_dir(&dir).unwrap();
    let look = || {
        let found = std::fs::metadata(&dir).unwrap();
        (found.nlink(), (found.mtime(), found.mtime_nsec()))
    };
    let mut last = look();
    let mut moved = |links: u64, what: &str| {
        let found = look();
        assert_eq!(found.0, links, "{what}");
        assert!(found.1 > last.1, "{what} moves mtime");
        last = found;
        std::thread::sleep(base::time::TICK_MAX);
    };
    std::thread::sleep(base::time::TICK_MAX);
    std::fs::write(dir.join("f"), b"").unwrap();
    moved(2, "creating a file");
    std::fs::create_dir(dir.join("d")).unwrap();
    moved(3, "mkdir");
    std::fs::hard_link(dir.join("f"), dir.join("g")).unwrap();
    moved(3, "link");
    assert_eq!(std::fs::metadata(dir.join("f")).unwrap().nlink(), 2);
    std::fs::rename(dir.join("g"), dir.join("h")).unwrap();
    moved(3, "rename");
    std::fs::remove_file(dir.join("h")).unwrap();
    moved(3, "unlink");
    assert_eq!(std::fs::metadata(dir.join("f")).unwrap().nlink(), 1);
    std::fs::remove_dir(dir.join("d")).unwrap();
    moved(2, "rmdir");
}

#[test]
fn names_of_255_bytes_and_any_bytes() {
    let Some(rig) = rig() else { return };
    let long = vec![b'n'; 255];
    let mut odd: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    odd.truncate(255);
    for name in [long, odd, b"\n".to_vec(), b" ".to_vec(), b"...".to_vec(), vec![0xff, 0xfe]] {
        let path = rig.root().join(OsStr::from_bytes(&name));
        std::fs::write(&path, &name).unwrap();
        let listed: Vec<_> =
            std::fs::read_dir(rig.root()).unwrap().map(|e| e.unwrap().file_name().into_vec()).collect();
        assert_eq!(listed, std::slice::from_ref(&name));
        assert_eq!(std::fs::read(&path).unwrap(), name);
        std::fs::remove_file(&path).unwrap();
    }
    let too_long = rig.root().join(OsStr::from_bytes(&[b'n'; 256]));
    for refused in [std::fs::write(&too_long, b"").unwrap_err(), std::fs::metadata(&too_long).unwrap_err()] {
        assert_eq!(refused.raw_os_error(), Some(libc::ENAMETOOLONG));
    }
}

/// Two folders have changed places behind the kernel's back. The kernel cannot link the one below the other,
/// of which it is the ancestor there. It then sends a FORGET as a request for whose end the program waits.
/// Over io_uring it never ended, because a FORGET gets no reply: the program waited for ever, also after
/// SIGKILL.
#[test]
fn regression_a_folder_that_is_its_own_ancestor_can_be_listed() {
    for tells_held in [false, true] {
        let Some(rig) = rig_with(Memory::that_tells_held(tells_held), options()) else { return };
        std::fs::create_dir_all(rig.path("a/b")).unwrap();
        let open = File::open(rig.path("a/b")).unwrap();
        let number = |path| Ino(std::fs::metadata(rig.path(path)).unwrap().ino());
        let (a, b) = (number("a"), number("a/b"));
        rig.fs.rename(a, b"b", Ino::ROOT, b"b", RenameMode::Replace).unwrap();
        rig.fs.rename(Ino::ROOT, b"a", b, b"a", RenameMode::Replace).unwrap();
        let path = format!("/proc/self/fd/{}", open.as_raw_fd());
        let list = move || -> Vec<_> {
            let names = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
            names.collect()
        };
        let before = rig.count("READDIRPLUS");
        assert_eq!(within(Duration::from_secs(120), list), ["a"]);
        assert!(rig.count("READDIRPLUS") > before, "listed without attributes");
        assert_eq!(rig.session.replies_lost(), 0, "a FORGET was answered only because it was overdue");
        // Every reference beside that of MKDIR was given back, and only if it was given. Over /dev/fuse the
        // kernel does not wait until a FORGET is served.
        let begun = Instant::now();
        while rig.fs.lookups(a) != 1 {
            assert!(begun.elapsed() < Duration::from_secs(120), "{} references", rig.fs.lookups(a));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(rig.count("FORGET"), u64::from(!tells_held));
        // Everything goes on.
        std::fs::write(rig.path("b/file"), b"x").unwrap();
        assert_eq!(std::fs::read(rig.path("b/file")).unwrap(), b"x");
    }
}
