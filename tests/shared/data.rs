//! Bytes between nodes: close-to-open, appends, and what is on one node only.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, requires_server, say};

#[test]
fn what_one_node_closes_the_other_reads() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    let mut rng = Rng::new(1);
    // Inline, in a shared pack, in packs of their own, over the end of a page.
    for (n, len) in [0, 1, 511, 512, 513, 4096, 100_000, 1 << 20, 5 << 20].into_iter().enumerate() {
        let (writer, reader) = (n % 2, 1 - n % 2);
        let name = format!("file{n}");
        let bytes = rng.bytes(len);
        fs::write(shared.path(writer, &name), &bytes).unwrap();
        assert!(fs::read(shared.path(reader, &name)).unwrap() == bytes, "{len} bytes");
        // Written over by the other, in the middle and at the end.
        let mut bytes = bytes;
        let patch = rng.bytes(1000);
        let at = len / 2;
        let mut file = OpenOptions::new().write(true).open(shared.path(reader, &name)).unwrap();
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        file.write_all(&patch).unwrap();
        drop(file);
        bytes.resize(len.max(at + 1000), 0);
        bytes[at..at + 1000].copy_from_slice(&patch);
        assert!(fs::read(shared.path(writer, &name)).unwrap() == bytes, "{len} bytes, written over");
        fs::File::options().write(true).open(shared.path(writer, &name)).unwrap().set_len(7).unwrap();
        assert_eq!(fs::metadata(shared.path(reader, &name)).unwrap().len(), 7);
        assert!(fs::read(shared.path(reader, &name)).unwrap() == bytes[..7], "{len} bytes, cut");
    }
}

/// The kernel of a node keeps names, and their absence, for a moment. Another node's change is seen at once.
#[test]
fn names_that_a_kernel_keeps_are_seen_to_change() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::create_dir(shared.path(0, "dir")).unwrap();
    for round in 0..12 {
        let (node, other) = (round % 2, 1 - round % 2);
        let path = |node: usize, name: &str| shared.path(node, &format!("dir/{name}{round}"));
        fs::write(path(node, "old"), "1").unwrap();
        // Long enough for the node to be alone in the folder, as its leases see it.
        for _ in 0..50 {
            assert!(fs::metadata(path(node, "new")).is_err() && fs::metadata(path(node, "old")).is_ok());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        fs::rename(path(other, "old"), path(other, "new")).unwrap();
        assert!(fs::metadata(path(node, "old")).is_err(), "round {round}: the old name is there");
        assert!(fs::metadata(path(node, "new")).is_ok(), "round {round}: the new name is not there");
    }
}

/// A node's kernel learns of a new name by the reply to the program that makes it. Another node saw the name
/// before, and other programs of the first node still found none, because their kernel kept its absence.
#[test]
fn regression_a_name_that_another_node_has_seen_is_there_on_the_first_one() {
    const NAMES: u64 = 500;
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::create_dir(shared.path(0, "dir")).unwrap();
    let path = |node: usize, n: u64| shared.path(node, &format!("dir/{n}"));
    let is_there = |node: usize, n: u64| fs::symlink_metadata(path(node, n)).is_ok();
    // The last name that the first node has found absent, and that the other node has seen.
    let (absent, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    let kept = AtomicU64::new(0);
    let begun = Instant::now();
    let in_time = || assert!(begun.elapsed() < Duration::from_secs(60), "another thread failed");
    let wait_for = |number: &AtomicU64, n: u64| {
        while number.load(Ordering::SeqCst) < n {
            in_time();
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=NAMES {
                wait_for(&absent, n);
                fs::write(path(0, n), "").unwrap();
            }
        });
        scope.spawn(|| {
            for n in 1..=NAMES {
                while !is_there(1, n) {
                    in_time();
                }
                seen.store(n, Ordering::SeqCst);
            }
        });
        for n in 1..=NAMES {
            loop {
                in_time();
                let was_seen = seen.load(Ordering::SeqCst) >= n;
                if is_there(0, n) {
                    break;
                }
                kept.fetch_add(u64::from(was_seen), Ordering::SeqCst);
                absent.store(n, Ordering::SeqCst);
            }
            wait_for(&seen, n);
        }
    });
    assert_eq!(kept.into_inner(), 0, "looks that found no name after another node had seen it");
}

/// Both nodes have the file open. Whatever one has written, cut or chmodded, the other sees.
#[test]
fn an_open_file_is_the_same_on_both_nodes() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::write(shared.path(0, "file"), "").unwrap();
    let open =
        |node: usize| OpenOptions::new().read(true).write(true).open(shared.path(node, "file")).unwrap();
    let files = [open(0), open(1)];
    let (mut rng, mut model) = (Rng::new(7), Vec::new());
    for step in 0..300 {
        let (one, other) = (rng.below(2) as usize, rng.below(2) as usize);
        let (at, len) = (rng.below(70_000) as usize, 1 + rng.below(9_000) as usize);
        match rng.below(8) {
            0 => {
                files[one].set_len(at as u64).unwrap();
                model.resize(at, 0);
            }
            1..4 => {
                let bytes = rng.bytes(len);
                files[one].write_all_at(&bytes, at as u64).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
            }
            _ => {
                let mut bytes = vec![0; len];
                let got = files[other].read_at(&mut bytes, at as u64).unwrap();
                let there = model.get(at..).unwrap_or_default();
                assert!(bytes[..got] == there[..len.min(there.len())], "step {step}: {at} {len}");
            }
        }
        assert_eq!(files[other].metadata().unwrap().len(), model.len() as u64, "step {step}");
    }
}

/// The other node's kernel showed its old pages if the time of the file was put back, and sendfile(2) and
/// mappings never ask for the time.
#[test]
fn regression_open_files_show_the_present_bytes_whatever_their_time() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::create_dir(shared.path(0, "dir")).unwrap();
    let [writer, reader] = [0, 1].map(|node| shared.path(node, "dir/file"));
    let moment = UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    let write = |letter: u8| {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&writer).unwrap();
        file.write_all_at(&[letter; 3 * 4096], 0).unwrap();
        file.set_modified(moment).unwrap();
    };
    write(b'0');
    let file = File::open(&reader).unwrap();
    // SAFETY: the file is open, and this process only reads the mapping.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    let sent = |at: u64| {
        let mut copy = tempfile::tempfile().unwrap();
        let got = rustix::fs::sendfile(&copy, &file, Some(&mut { at }), 4096).unwrap();
        let mut bytes = Vec::new();
        copy.rewind().unwrap();
        copy.read_to_end(&mut bytes).unwrap();
        assert_eq!(got, 4096);
        bytes
    };
    for letter in *b"123456789" {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        write(letter);
        assert_eq!(file.metadata().unwrap().modified().unwrap(), moment);
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [letter; 4096], "read");
    }
    for letter in *b"abc" {
        // These do not ask for the time.
        let shown = || {
            // SAFETY: it is mapped, and the file has this page.
            let mapped = unsafe { map.cast::<u8>().read_volatile() };
            [mapped, sent(4096)[0]]
        };
        shown();
        write(letter);
        let began = Instant::now();
        while shown() != [letter; 2] {
            assert!(began.elapsed() < Duration::from_secs(30), "{letter} is not shown");
            std::thread::sleep(Duration::from_millis(50));
        }
        say(format_args!("sendfile and a mapping show a change after {:?}", began.elapsed()));
    }
    // SAFETY: it was mapped above, and nothing refers to it.
    assert_eq!(unsafe { libc::munmap(map, 4096) }, 0);
}

#[test]
fn attributes_and_links_are_the_same_on_all_nodes() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    let [a, b] = [0, 1].map(|node| shared.path(node, "dir/file"));
    fs::create_dir(shared.path(0, "dir")).unwrap();
    fs::write(&a, "1").unwrap();
    fs::hard_link(&b, shared.path(1, "dir/other")).unwrap();
    fs::set_permissions(&b, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    let (left, right) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
    let about =
        |meta: &fs::Metadata| (meta.ino(), meta.mode(), meta.nlink(), meta.mtime_nsec(), meta.ctime_nsec());
    assert_eq!((about(&left), left.nlink(), left.mode() & 0o777), (about(&right), 2, 0o640));
    let dirs = [0, 1].map(|node| fs::metadata(shared.path(node, "dir")).unwrap());
    assert_eq!(about(&dirs[0]), about(&dirs[1]));
    fs::rename(shared.path(1, "dir"), shared.path(1, "moved")).unwrap();
    assert!(!shared.path(0, "dir").exists() && shared.path(0, "moved/other").exists());
    fs::remove_dir_all(shared.path(0, "moved")).unwrap();
    assert_eq!(fs::read_dir(shared.path(1, "")).unwrap().count(), 0);
}

/// A list that gives user 1000 these permissions besides the usual ones.
fn acl(permissions: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries =
        [(1, 7, NOBODY), (2, permissions, 1000), (4, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 5, NOBODY)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permissions));
        list.extend(u32::to_le_bytes(id));
    }
    list
}

/// A node that had created a file in a directory remembered the directory's default ACL, and gave it to new
/// files after another node had changed it.
#[test]
fn regression_new_files_inherit_the_default_acl_of_now() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const DEFAULT: &str = "system.posix_acl_default";
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    let [here, there] = [0, 1].map(|node| shared.path(node, "dir"));
    fs::create_dir(&here).unwrap();
    for (n, permissions) in [7, 0, 5].into_iter().enumerate() {
        setxattr(&here, DEFAULT, &acl(permissions), XattrFlags::empty()).unwrap();
        let path = there.join(format!("file{n}"));
        fs::write(&path, "").unwrap();
        let mut list = [0; 64];
        let len = getxattr(&path, "system.posix_acl_access", &mut list).unwrap();
        let entry = |at: usize| u16::from_le_bytes([list[at], list[at + 1]]);
        assert_eq!((len, entry(12), entry(14)), (44, 2, permissions), "file{n}");
    }
}

/// O_APPEND by two clients on each of three nodes: every record is there once and whole.
#[test]
fn appended_records_are_all_there_once_and_whole() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 3);
    const RECORDS: usize = 40;
    std::thread::scope(|scope| {
        for client in 0..6 {
            let path = shared.path(client % 3, "log");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for n in 0..RECORDS {
                    // Some records are larger than what is kept in the names.
                    let line = format!("{client} {n} {}\n", "x".repeat(n * 37 % 400));
                    file.write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
    let text = fs::read_to_string(shared.path(0, "log")).unwrap();
    assert_eq!(text, fs::read_to_string(shared.path(2, "log")).unwrap());
    let mut next = [0; 6];
    for line in text.lines() {
        let mut fields = line.split(' ');
        let mut number = || fields.next().unwrap().parse::<usize>().unwrap();
        let (client, n) = (number(), number());
        assert_eq!(n, next[client], "the records of a client are in order: {line}");
        assert_eq!(fields.next().unwrap(), "x".repeat(n * 37 % 400));
        next[client] += 1;
    }
    assert_eq!(next, [RECORDS; 6]);
}

#[test]
fn an_open_file_without_a_name_lives_on_another_node() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::write(shared.path(0, "file"), vec![7; 300_000]).unwrap();
    let mut open = File::open(shared.path(1, "file")).unwrap();
    fs::remove_file(shared.path(0, "file")).unwrap();
    assert!(!shared.path(1, "file").exists());
    // Longer than it takes to delete an inode that nobody holds.
    std::thread::sleep(std::time::Duration::from_secs(35));
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert!(bytes == vec![7; 300_000]);
    drop(open);
    let inodes = || {
        let text =
            shared.server.sql("select count(*) from covey_kv where substring(k from 1 for 1) = '\\x01'");
        text.parse::<u32>().unwrap()
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while inodes() > 1 {
        assert!(std::time::Instant::now() < end, "the inode should be deleted: {}", inodes());
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    say(format_args!("deleted once it was closed"));
}

/// One node writes a file again and again, and another reads it: in place, cut before, and under a new name.
#[test]
fn a_file_that_one_node_writes_and_another_reads_is_always_the_last_one() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 3);
    fs::create_dir(shared.path(0, "dir")).unwrap();
    let mut rng = Rng::new(3);
    let open = |node: usize| File::open(shared.path(node, "dir/file")).unwrap();
    fs::write(shared.path(0, "dir/file"), "first").unwrap();
    let readers = [open(1), open(2)];
    for turn in 0..150 {
        let len = [20, 520, 5_000, 40_000][rng.below(4) as usize];
        let bytes = rng.bytes(len);
        let path = shared.path(0, "dir/file");
        match turn % 3 {
            0 => fs::write(&path, &bytes).unwrap(),
            1 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(&bytes, 0).unwrap();
                file.set_len(len as u64).unwrap();
            }
            _ => {
                fs::write(shared.path(0, "dir/new"), &bytes).unwrap();
                fs::rename(shared.path(0, "dir/new"), &path).unwrap();
            }
        }
        let node = 1 + turn % 2;
        assert!(fs::read(shared.path(node, "dir/file")).unwrap() == bytes, "turn {turn}: {len} bytes");
        if let Some(reader) = readers.get(turn) {
            // Not under another name yet.
            let mut seen = vec![0; len];
            reader.read_exact_at(&mut seen, 0).unwrap();
            assert!(seen == bytes, "turn {turn}: through an open file");
        }
        if turn % 40 == 39 {
            // The reader writes too, and the lease goes there and back.
            fs::write(shared.path(node, "dir/other"), &bytes).unwrap();
            assert!(fs::read(shared.path(0, "dir/other")).unwrap() == bytes, "turn {turn}: the other way");
        }
    }
}
