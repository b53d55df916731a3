//! Request budgets: requests that need not reach the daemon do not reach it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;

use fuse::Options;

use crate::memory::Memory;
use crate::{options, rig, rig_with};

const NONE: Vec<(&str, u64)> = Vec::new();

/// The same holds for stat by name. Under the writeback cache an fstat after a close costs a request because
/// of the kernel: at every close it distrusts the number of blocks, and the next stat that asks for it sends
/// one GETATTR.
#[test]
fn a_warm_open_read_stat_and_close_send_nothing() {
    for (writeback, fstat) in [(false, 0), (true, 1)] {
        let Some(rig) = rig_with(Memory::new(), Options { writeback: Some(writeback), ..options() }) else {
            return;
        };
        let path = rig.path("warm");
        std::fs::write(&path, vec![5; 100_000]).unwrap();
        std::fs::read(&path).unwrap();
        let rounds = 50;
        let requests = rig.during(|| {
            for _ in 0..rounds {
                let mut data = vec![0; 100_000];
                File::open(&path).unwrap().read_exact(&mut data).unwrap();
            }
        });
        assert_eq!(requests, NONE, "writeback {writeback}");
        std::fs::metadata(&path).unwrap();
        let requests = rig.during(|| {
            (0..rounds).for_each(|_| assert_eq!(std::fs::metadata(&path).unwrap().size(), 100_000))
        });
        assert_eq!(requests, NONE, "writeback {writeback}");
        let requests =
            rig.during(|| (0..rounds).for_each(|_| assert_eq!(std::fs::read(&path).unwrap().len(), 100_000)));
        assert!(
            requests.iter().all(|(name, count)| *name == "GETATTR" && *count <= fstat * rounds),
            "{requests:?}"
        );
    }
}

#[test]
fn a_name_that_is_missing_is_asked_for_once() {
    let Some(rig) = rig() else { return };
    assert!(File::open(rig.path("absent")).is_err());
    let requests = rig.during(|| (0..50).for_each(|_| assert!(File::open(rig.path("absent")).is_err())));
    assert_eq!(requests, NONE);
}

#[test]
fn a_warm_listing_sends_nothing() {
    let Some(rig) = rig() else { return };
    for i in 0..100 {
        std::fs::write(rig.path(&format!("{i}")), b"").unwrap();
    }
    let list = || std::fs::read_dir(rig.root()).unwrap().count();
    // Two listings fill the kernel's cache, because the first one finds the directory changed.
    assert_eq!((list(), list()), (100, 100));
    let requests = rig.during(|| assert_eq!(list(), 100));
    assert_eq!(requests, NONE);
}

/// The refusals come once per mount. After that, creating, writing and removing a file costs this much.
/// GETATTR is for the directory, after each change in it. GETXATTR asks for capabilities before the first
/// write to a file, and never again.
#[test]
fn create_write_close_unlink_cost_what_is_said() {
    let always = [("GETATTR", 2), ("GETXATTR", 1), ("LOOKUP", 1), ("MKNOD", 1), ("UNLINK", 1), ("WRITE", 1)];
    for (writeback, setattrs) in [(false, 0), (true, 2)] {
        let budget: Vec<_> = always.into_iter().chain([("SETATTR", setattrs)]).collect();
        let Some(rig) = rig_with(Memory::new(), Options { writeback: Some(writeback), ..options() }) else {
            return;
        };
        let cycle = |i: u64| {
            let path = rig.path(&format!("f{i}"));
            File::create(&path).unwrap().write_all(&[1; 4096]).unwrap();
            std::fs::remove_file(&path).unwrap();
        };
        cycle(0);
        let rounds = 20;
        let requests = rig.during(|| (1..=rounds).for_each(cycle));
        println!("writeback {writeback}: {requests:?} for {rounds} cycles");
        for (name, count) in requests {
            let allowed = budget.iter().find(|(kind, _)| *kind == name).map_or(0, |(_, per)| per * rounds);
            assert!(count <= allowed, "writeback {writeback}: {count} {name}, budget {allowed}");
        }
    }
}

/// Small sequential writes reach the daemon as few large ones.
#[test]
fn small_writes_are_gathered() {
    let Some(rig) = rig() else { return };
    let mut file = File::create(rig.path("log")).unwrap();
    let requests = rig.during(|| {
        (0..2000).for_each(|_| file.write_all(&[1; 4107]).unwrap());
        drop(file);
    });
    let writes = requests.iter().find(|(name, _)| *name == "WRITE").unwrap().1;
    assert!(writes <= 16, "{requests:?}");
    assert_eq!(std::fs::metadata(rig.path("log")).unwrap().len(), 2000 * 4107);
}

/// Requests that opening, closing and locking must never send, whatever a program does.
#[test]
fn no_open_flush_release_or_access_after_the_first() {
    let Some(rig) = rig() else { return };
    let work = || {
        for i in 0..10 {
            let path = rig.path(&format!("d{i}"));
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("f"), b"x").unwrap();
            std::fs::read(path.join("f")).unwrap();
            std::fs::read_dir(&path).unwrap().count();
            std::fs::metadata(&path).unwrap().mode();
        }
    };
    work();
    let requests = rig.during(work);
    for name in ["OPEN", "OPENDIR", "FLUSH", "RELEASE", "RELEASEDIR", "ACCESS", "CREATE", "POLL"] {
        assert!(!requests.iter().any(|(kind, _)| *kind == name), "{requests:?}");
    }
}
