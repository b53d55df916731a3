//! A mount of a filesystem that other nodes change too. "Another node" is a second mount of the same memory
//! filesystem, or a change behind the kernel's back.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use fuse::Options;
use fuse::abi::init::flag;

use crate::mapped::Mapped;
use crate::memory::Memory;
use crate::{Rig, as_nobody, options, rig_with, within};

const SOON: Duration = Duration::from_secs(120);

pub fn shared() -> Option<Rig> {
    rig_with(Memory::shared(), options())
}

/// Two mounts of one filesystem.
pub fn nodes() -> Option<[Rig; 2]> {
    let memory = Memory::shared();
    let other = memory.another_node();
    Some([rig_with(memory, options())?, rig_with(other, options())?])
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

fn kind(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap()
}

#[test]
fn a_shared_mount_negotiates_what_it_needs() {
    for (fleet_locks, writeback) in [(true, None), (false, Some(true))] {
        let mut memory = Memory::shared();
        memory.fleet_locks = fleet_locks;
        let Some(rig) = rig_with(memory, Options { writeback, ..options() }) else { return };
        let agreed = rig.session.agreed();
        assert!(agreed.has(flag::AUTO_INVAL_DATA | flag::DIRECT_IO_ALLOW_MMAP | flag::HANDLE_KILLPRIV_V2));
        let never = [
            flag::WRITEBACK_CACHE,
            flag::ATOMIC_O_TRUNC,
            flag::DO_READDIRPLUS,
            flag::EXPLICIT_INVAL_DATA,
            flag::ASYNC_DIO,
        ];
        never.iter().for_each(|bad| assert!(!agreed.has(*bad), "{bad:#x}"));
        for lock in [flag::POSIX_LOCKS, flag::FLOCK_LOCKS] {
            assert_eq!(agreed.has(lock), fleet_locks);
        }
    }
}

#[test]
fn names_of_another_node_come_and_go_at_once() {
    let Some([here, there]) = nodes() else { return };
    for round in 0..20 {
        let name = format!("name-{}", round % 2);
        assert!(!here.path(&name).exists(), "the absence is looked up");
        std::fs::write(there.path(&name), b"x").unwrap();
        assert_eq!(size(&here.path(&name)), 1);
        std::fs::rename(there.path(&name), there.path("moved")).unwrap();
        assert_eq!(kind(File::open(here.path(&name)).unwrap_err()), libc::ENOENT);
        assert_eq!(std::fs::read(here.path("moved")).unwrap(), b"x");
        std::fs::remove_file(there.path("moved")).unwrap();
        assert_eq!(kind(std::fs::metadata(here.path("moved")).unwrap_err()), libc::ENOENT);
    }
    std::fs::create_dir_all(there.path("a/b")).unwrap();
    std::fs::write(here.path("a/b/c"), b"").unwrap();
    std::fs::remove_file(there.path("a/b/c")).unwrap();
    std::fs::remove_dir(there.path("a/b")).unwrap();
    assert_eq!(kind(File::create(here.path("a/b/d")).unwrap_err()), libc::ENOENT);
    assert_eq!(kind(std::fs::remove_dir(here.path("a/b")).unwrap_err()), libc::ENOENT);
}

#[test]
fn listings_are_not_cached() {
    let Some([here, there]) = nodes() else { return };
    let list = |rig: &Rig| {
        let mut names: Vec<_> =
            std::fs::read_dir(rig.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for round in 0..5 {
        assert_eq!(list(&here).len(), round);
        assert_eq!(list(&here).len(), round);
        std::fs::write(there.path(&format!("{round}")), b"").unwrap();
    }
    std::fs::rename(there.path("0"), there.path("9")).unwrap();
    assert_eq!(list(&here), list(&there));
    assert_eq!((here.count("READDIRPLUS"), here.count("OPENDIR")), (0, 11));
}

#[test]
fn attributes_of_another_node_are_seen_at_once() {
    let Some([here, there]) = nodes() else { return };
    let (mine, theirs) = (here.path("file"), there.path("file"));
    std::fs::write(&mine, b"four").unwrap();
    let open = File::open(&mine).unwrap();
    for (mode, len) in [(0o600, 10_000), (0o644, 3), (0o640, 0), (0o604, 1 << 20)] {
        std::fs::set_permissions(&theirs, PermissionsExt::from_mode(mode)).unwrap();
        OpenOptions::new().write(true).open(&theirs).unwrap().set_len(len).unwrap();
        for seen in [std::fs::metadata(&mine).unwrap(), open.metadata().unwrap()] {
            assert_eq!((seen.mode() & 0o7777, seen.len()), (mode, len));
        }
    }
    std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&format!("cat {}", mine.display())).status.success(), "closed by the other node");
    std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(as_nobody(&format!("cat {}", mine.display())).status.success(), "opened by the other node");
}

#[test]
fn contents_of_another_node_are_seen_at_the_next_open() {
    let Some(rig) = shared() else { return };
    let ino = rig.fs.plant(b"file", b"version 0");
    let path = rig.path("file");
    for version in 1..20 {
        // Often the size stays the same.
        let text = format!("version {}", version * 7 % 20);
        std::fs::read(&path).unwrap();
        rig.fs.replace(ino, text.as_bytes());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    // The modification time does not move, so only the next open helps.
    let mut text = [0; 4];
    rig.fs.overwrite(ino, b"VERS");
    File::open(&path).unwrap().read_exact(&mut text).unwrap();
    assert_eq!(&text, b"VERS");
}

/// Stronger than close-to-open: before it reads cached pages, the kernel compares size and time.
#[test]
fn an_open_file_reads_what_another_node_wrote() {
    let Some([here, there]) = nodes() else { return };
    std::fs::write(here.path("file"), vec![1; 10_000]).unwrap();
    let mut open = File::open(here.path("file")).unwrap();
    let mut read = || {
        let mut data = Vec::new();
        open.seek(SeekFrom::Start(0)).unwrap();
        open.read_to_end(&mut data).unwrap();
        data
    };
    assert!(read() == vec![1; 10_000], "all 1");
    std::fs::write(there.path("file"), vec![2; 10_000]).unwrap();
    assert!(read() == vec![2; 10_000], "all 2");
    std::fs::write(there.path("file"), vec![3; 30_000]).unwrap();
    assert!(read() == vec![3; 30_000], "all 3");
    std::fs::write(there.path("file"), b"").unwrap();
    assert_eq!(read(), b"");
}

#[test]
fn written_bytes_are_there_when_write_returns() {
    let Some([here, there]) = nodes() else { return };
    let mut file = File::create(here.path("log")).unwrap();
    for line in 0..10 {
        file.write_all(format!("line {line}\n").as_bytes()).unwrap();
        let text = std::fs::read_to_string(there.path("log")).unwrap();
        assert_eq!(text.lines().count(), line + 1);
    }
}

/// The kernel takes the end of the file from the size that it saw last.
#[test]
fn appending_uses_the_newest_end() {
    let Some([here, there]) = nodes() else { return };
    let append =
        |rig: &Rig| OpenOptions::new().append(true).read(true).create(true).open(rig.path("log")).unwrap();
    let (mut mine, theirs) = (append(&here), append(&there));
    let mut expected = String::new();
    for round in 0..50 {
        for (mut file, who) in [(&mine, "mine"), (&theirs, "theirs"), (&theirs, "again")] {
            let line = format!("{who} {round}\n");
            file.write_all(line.as_bytes()).unwrap();
            expected.push_str(&line);
        }
        assert_eq!(std::fs::read_to_string(here.path("log")).unwrap(), expected, "round {round}");
    }
    // Also where the file became shorter, and through a file that got O_APPEND only later.
    there.fs.replace(there.fs.plant(b"short", b"0123456789"), b"01234");
    let mut late = OpenOptions::new().read(true).write(true).open(here.path("short")).unwrap();
    late.read_exact(&mut [0; 5]).unwrap();
    // SAFETY: the descriptor is open. The call takes numbers only.
    assert_eq!(unsafe { libc::fcntl(late.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) }, 0);
    std::fs::write(there.path("short"), b"0").unwrap();
    late.write_all(b"abc").unwrap();
    std::fs::OpenOptions::new().append(true).open(there.path("short")).unwrap().write_all(b"xyz").unwrap();
    late.write_all(b"!").unwrap();
    for rig in [&here, &there] {
        assert_eq!(std::fs::read(rig.path("short")).unwrap(), b"0abcxyz!");
    }
    let mut all = String::new();
    mine.seek(SeekFrom::Start(0)).unwrap();
    mine.read_to_string(&mut all).unwrap();
    assert_eq!(all, expected);
}

#[test]
fn many_programs_append_without_losing_a_line() {
    let Some(nodes) = nodes() else { return };
    let paths = nodes.each_ref().map(|rig| rig.path("log"));
    within(SOON, move || {
        std::thread::scope(|scope| {
            for (who, path) in paths.iter().chain(&paths).enumerate() {
                scope.spawn(move || {
                    let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                    (0..100).for_each(|n| log.write_all(format!("{who}-{n};").as_bytes()).unwrap());
                });
            }
        });
    });
    let text = std::fs::read_to_string(nodes[0].path("log")).unwrap();
    assert_eq!(text.split_terminator(';').collect::<std::collections::HashSet<_>>().len(), 400);
}

#[test]
fn mappings_read_and_write() {
    let Some([here, there]) = nodes() else { return };
    std::fs::write(here.path("map"), [7; 4096]).unwrap();
    for append in [false, true] {
        let open =
            || OpenOptions::new().read(true).write(true).append(append).open(here.path("map")).unwrap();
        let file = open();
        let change = |page: &mut [u8]| {
            let is_right = page.iter().all(|byte| *byte == 7);
            page[100] = 42;
            is_right && file.sync_all().is_ok()
        };
        let mapped = Mapped::new(&file, 4096, change, |page| page[101] = 43);
        assert_eq!(std::fs::read(there.path("map")).unwrap()[100], 42, "after fsync");
        mapped.end();
        drop(file);
        assert_eq!(std::fs::read(there.path("map")).unwrap()[101], 43, "after close");
        std::fs::write(there.path("map"), [8; 4096]).unwrap();
        let file = open();
        // What the other node wrote is there after the next open.
        Mapped::new(&file, 4096, |page| page.iter().all(|byte| *byte == 8), |_| ()).end();
        std::fs::write(there.path("map"), [7; 4096]).unwrap();
    }
}

#[test]
fn create_truncate_and_exclusive_do_what_they_say() {
    let Some([here, there]) = nodes() else { return };
    let path = here.path("file");
    std::fs::write(&path, b"a long first version").unwrap();
    std::fs::write(there.path("file"), b"a still longer version of another node").unwrap();
    std::fs::write(&path, b"short").unwrap();
    assert_eq!(std::fs::read(there.path("file")).unwrap(), b"short");
    drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
    assert_eq!(size(&there.path("file")), 0);
    let exclusive = || OpenOptions::new().write(true).create_new(true).open(here.path("one"));
    assert!(exclusive().is_ok());
    assert_eq!(kind(exclusive().unwrap_err()), libc::EEXIST);
    std::fs::remove_file(there.path("one")).unwrap();
    assert!(exclusive().is_ok(), "the other node removed it");
    let mode = OpenOptions::new().write(true).create_new(true).mode(0o400).open(here.path("mode")).unwrap();
    mode.write_all_at(b"x", 0).unwrap();
    assert_eq!(std::fs::metadata(there.path("mode")).unwrap().mode() & 0o7777, 0o400);
    let tmp = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(here.root()).unwrap();
    tmp.write_all_at(b"x", 0).unwrap();
}

/// A program that finds the name made by another node gets that file.
#[test]
fn creating_the_same_names_on_two_nodes_makes_one_file_each() {
    let Some(nodes) = nodes() else { return };
    let roots = nodes.each_ref().map(|rig| rig.root().to_owned());
    within(SOON, move || {
        std::thread::scope(|scope| {
            for (who, root) in roots.iter().chain(&roots).enumerate() {
                scope.spawn(move || {
                    for n in 0..200 {
                        let mut file = OpenOptions::new();
                        file.append(true).create(true);
                        let mut file = file.open(root.join(format!("{n}"))).unwrap();
                        file.write_all(&[b'0' + who as u8]).unwrap();
                    }
                });
            }
        });
    });
    for n in 0..200 {
        let mut text = std::fs::read(nodes[1].path(&format!("{n}"))).unwrap();
        text.sort_unstable();
        assert_eq!(text, b"0123", "{n}");
    }
}

/// A name that another node makes between the kernel's LOOKUP and its CREATE. The kernel checks nothing on a
/// file that it has created, so it must learn that it has not.
#[test]
fn a_file_that_another_node_has_just_created_keeps_its_permissions() {
    let Some(rig) = shared() else { return };
    let script = |name: &str, flags: &str| {
        let path = rig.path(name);
        let script = format!(
            "import os\ntry: os.open('{}', {flags}, 0o666)\nexcept OSError as e: print(e.errno)",
            path.display()
        );
        String::from_utf8(as_nobody(&format!("python3 -c \"{script}\"")).stdout).unwrap().trim().to_owned()
    };
    assert_eq!(script("trap-race-1", "os.O_RDWR | os.O_CREAT"), libc::EACCES.to_string());
    assert_eq!(script("trap-race-2", "os.O_RDWR | os.O_CREAT | os.O_TRUNC"), libc::EACCES.to_string());
    assert_eq!(script("trap-race-3", "os.O_RDWR | os.O_CREAT | os.O_EXCL"), libc::EEXIST.to_string());
    assert_eq!(script("no-race", "os.O_RDWR | os.O_CREAT"), "");
    // A program that may open it gets the file of the other node, and truncates it if told to.
    let open = |name: &str, truncate| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(truncate)
            .open(rig.path(name))
            .unwrap()
    };
    assert_eq!(std::io::read_to_string(open("trap-race-4", false)).unwrap(), "of another node");
    assert_eq!(open("trap-race-5", true).metadata().unwrap().len(), 0);
}

#[test]
fn an_open_file_that_another_node_removed_lives_on() {
    let Some([here, there]) = nodes() else { return };
    std::fs::write(here.path("file"), b"still here").unwrap();
    let mut open = File::open(here.path("file")).unwrap();
    std::fs::remove_file(there.path("file")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    assert!(!here.path("file").exists());
}

/// SEEK_DATA opens the file once more, from the daemon, to write back what a mapping changed.
#[test]
fn data_and_holes_are_found_on_a_shared_mount() {
    let Some(rig) = shared() else { return };
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(rig.path("s")).unwrap();
    file.set_len(1 << 20).unwrap();
    let change = |page: &mut [u8]| {
        page[5] = 1;
        true
    };
    let mapped = Mapped::new(&file, 4096, change, |_| ());
    let found = within(SOON, move || {
        // SAFETY: the descriptor is open. lseek takes numbers only.
        let seek = |at, what| unsafe { libc::lseek(file.as_raw_fd(), at, what) };
        (seek(0, libc::SEEK_DATA), seek(0, libc::SEEK_HOLE))
    });
    assert_eq!(found, (0, 4096));
    mapped.end();
}

/// The requests of each operation on a name in the root, when all of it is warm.
#[test]
fn a_shared_mount_costs_what_is_said() {
    let rounds = 20;
    let stat = |path: &Path| assert_eq!(size(path), 4096);
    let read = |path: &Path| assert_eq!(std::fs::read(path).unwrap().len(), 4096);
    let create = |path: &Path| {
        let path = path.with_extension("new");
        File::create(&path).unwrap().write_all(&[1; 4096]).unwrap();
        std::fs::remove_file(&path).unwrap();
    };
    let append = |path: &Path| {
        OpenOptions::new().append(true).open(path.with_extension("log")).unwrap().write_all(b"x").unwrap();
    };
    let list = |path: &Path| assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    type Work<'a> = &'a dyn Fn(&Path);
    const NAME: [(&str, u64); 2] = [("LOOKUP", 1), ("GETATTR", 2)];
    const OPEN: [(&str, u64); 2] = [("OPEN", 1), ("RELEASE", 1)];
    type Budget<'a> = (&'a str, Work<'a>, Vec<(&'a str, u64)>);
    let budgets: [Budget<'_>; 5] = [
        ("stat", &stat, NAME.to_vec()),
        // GETATTR: of root and file, to check permissions; for fstat(2); before each of two read(2).
        ("read", &read, [&OPEN[..], &[("LOOKUP", 1), ("GETATTR", 5), ("READ", 1)]].concat()),
        (
            "create",
            &create,
            vec![
                ("LOOKUP", 2),
                ("CREATE", 1),
                ("GETATTR", 5),
                ("GETXATTR", 1),
                ("WRITE", 1),
                ("RELEASE", 1),
                ("UNLINK", 1),
            ],
        ),
        ("append", &append, [&OPEN[..], &NAME, &[("WRITE", 1)]].concat()),
        ("list", &list, vec![("GETATTR", 2), ("OPENDIR", 1), ("READDIR", 2), ("RELEASEDIR", 1)]),
    ];
    for fleet_locks in [false, true] {
        let mut memory = Memory::shared();
        memory.fleet_locks = fleet_locks;
        let Some(rig) = rig_with(memory, options()) else { return };
        let path = rig.path("file");
        std::fs::write(&path, [1; 4096]).unwrap();
        std::fs::write(rig.path("file.log"), b"").unwrap();
        for (what, work, budget) in &budgets {
            work(&path);
            let requests = rig.during(|| (0..rounds).for_each(|_| work(&path)));
            println!("locks {fleet_locks}, {what}: {requests:?} for {rounds}");
            let opens = budget.iter().any(|(name, _)| *name == "RELEASE");
            for (name, count) in requests {
                let per = budget.iter().find(|(kind, _)| *kind == name).map_or(0, |(_, per)| *per);
                // RELEASE arrives after close(2) has returned, so some may belong to earlier work. A program
                // that another test starts gets this test's descriptors for a moment, and closes them.
                let allowed = match name {
                    "FLUSH" if fleet_locks && opens => rounds + 3,
                    "RELEASE" | "RELEASEDIR" => per * rounds + 3,
                    _ => per * rounds,
                };
                assert!(count <= allowed, "locks {fleet_locks}, {what}: {count} {name}, budget {allowed}");
            }
        }
    }
}
