//! What POSIX and Linux promise beyond what the differential runs compare: things that need two descriptors,
//! two users, a special file, much space, or an event in between. Each test is listed in the table of
//! docs/SEMANTICS.md.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::{Mounted, Need, Rng, Volume, requires, run, run_ok};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs the work on a new mount. Afterwards it must unmount and be clean.
fn on_a_mount(work: impl FnOnce(&Mounted)) {
    let volume = Volume::new();
    let mounted = volume.mount();
    work(&mounted);
    mounted.umount();
    volume.must_be_clean();
}

fn create(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

#[test]
fn flock_posix_and_ofd_locks_exclude_each_other() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let path = mounted.join("locked");
        let (a, b) = (create(&path), File::open(&path).unwrap());
        rustix::fs::flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
        let refused = rustix::fs::flock(&b, FlockOperation::NonBlockingLockShared);
        assert_eq!(refused, Err(Errno::WOULDBLOCK));
        rustix::fs::flock(&a, FlockOperation::Unlock).unwrap();
        rustix::fs::flock(&b, FlockOperation::NonBlockingLockShared).unwrap();
        // A record lock of this process, and one of another open file description: they conflict only where
        // they overlap.
        let b = File::options().read(true).write(true).open(&path).unwrap();
        let lock = |file: &File, command, from: i64, len: i64| {
            // SAFETY: a plain structure of numbers, for which zero is valid, and an open descriptor.
            unsafe {
                let mut lock: libc::flock = std::mem::zeroed();
                (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as i16, from, len);
                if libc::fcntl(file.as_raw_fd(), command, &lock) == 0 { 0 } else { *libc::__errno_location() }
            }
        };
        assert_eq!(lock(&a, libc::F_SETLK, 0, 100), 0);
        assert_eq!(lock(&b, libc::F_OFD_SETLK, 50, 100), libc::EAGAIN);
        assert_eq!(lock(&b, libc::F_OFD_SETLK, 100, 100), 0);
        // Closing a descriptor drops this process's record locks, without notice to the daemon.
        drop(File::open(&path).unwrap());
        assert_eq!(lock(&b, libc::F_OFD_SETLK, 50, 100), 0);
    });
}

#[test]
fn a_file_without_a_name_can_be_given_one() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file: File = match rustix::fs::open(mounted.path(), flags, Mode::from_raw_mode(0o640)) {
            Ok(file) => file.into(),
            // The one clean refusal, after which programs use a temporary name.
            Err(error) => return assert_eq!(error, Errno::OPNOTSUPP),
        };
        (&file).write_all(b"hidden").unwrap();
        assert_eq!((file.metadata().unwrap().nlink(), fs::read_dir(mounted.path()).unwrap().count()), (0, 0));
        let shown = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, shown, CWD, mounted.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read(mounted.join("named")).unwrap(), b"hidden");
        assert_eq!(file.metadata().unwrap().nlink(), 1);
    });
}

#[test]
fn holes_are_found_also_in_a_file_just_written() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let file = create(&mounted.join("sparse"));
        let mib = 1 << 20;
        file.write_all_at(&Rng::new(1).bytes(mib), 0).unwrap();
        file.write_all_at(&Rng::new(2).bytes(mib), 8 << 20).unwrap();
        // Nothing was synced: data that only the kernel has must be found, too.
        for _ in 0..2 {
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap(), 1 << 20);
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(2 << 20)).unwrap(), 8 << 20);
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(8 << 20)).unwrap(), 9 << 20);
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(9 << 20)), Err(Errno::NXIO));
            file.sync_all().unwrap();
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 1 << 20).unwrap();
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap(), 8 << 20);
        let blocks = file.metadata().unwrap().blocks() * 512;
        assert!((1 << 20..2 << 20).contains(&blocks), "{blocks} bytes are said to be taken");
    });
}

#[test]
fn a_file_can_be_larger_than_four_tib() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let path = mounted.join("huge");
        let file = create(&path);
        let far = 5u64 << 40;
        file.write_all_at(b"far out", far).unwrap();
        drop(file);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), far + 7);
        let mut buf = [1; 16];
        assert_eq!(file.read_at(&mut buf, far - 9).unwrap(), 16);
        assert_eq!(&buf, b"\0\0\0\0\0\0\0\0\0far out");
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap() / 4096, far / 4096);
        assert!(file.metadata().unwrap().blocks() < 100);
        file.set_len(3).unwrap();
        file.set_len(far).unwrap();
        assert_eq!(file.read_at(&mut buf, far - 1).unwrap(), 1);
    });
}

/// Entries that exist throughout a listing are seen exactly once, whatever is created and removed meanwhile.
#[test]
fn a_listing_is_stable_while_names_come_and_go() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let folder = mounted.join("many");
        fs::create_dir(&folder).unwrap();
        let count = 4_000;
        (0..count).for_each(|number| drop(create(&folder.join(format!("stays-{number}")))));
        (0..count).for_each(|number| drop(create(&folder.join(format!("goes-{number}")))));
        let opened = rustix::fs::open(&folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let mut rng = Rng::new(3);
        for (number, entry) in rustix::fs::Dir::read_from(&opened).unwrap().enumerate() {
            *seen.entry(entry.unwrap().file_name().to_bytes().to_vec()).or_default() += 1;
            if number % 10 == 9 {
                fs::remove_file(folder.join(format!("goes-{}", rng.below(count)))).ok();
                drop(create(&folder.join(format!("comes-{number}"))));
                let moved = format!("moved-{number}");
                fs::rename(folder.join(format!("comes-{number}")), folder.join(moved)).unwrap();
            }
        }
        for number in 0..count {
            let times = seen.get(format!("stays-{number}").as_bytes()).copied().unwrap_or(0);
            assert_eq!(times, 1, "stays-{number} was listed {times} times");
        }
        assert!(seen.values().all(|times| *times == 1), "a name was listed twice");
    });
}

#[test]
fn names_are_any_bytes_up_to_255() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let mut names: Vec<Vec<u8>> =
            (1..=255u8).filter(|b| *b != b'/').map(|b| vec![b'x', b, b'y']).collect();
        names.extend([vec![0xff; 255], "ü".repeat(127).into_bytes(), b" ".to_vec(), b"...".to_vec()]);
        for name in &names {
            fs::write(mounted.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
        }
        let mut listed: Vec<Vec<u8>> = fs::read_dir(mounted.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_vec())
            .collect();
        listed.sort();
        names.sort();
        assert_eq!(listed, names);
        for name in &names {
            assert_eq!(fs::read(mounted.join(std::ffi::OsStr::from_bytes(name))).unwrap(), *name);
        }
        let long = fs::write(mounted.join("n".repeat(256)), "").unwrap_err();
        assert_eq!(long.raw_os_error(), Some(libc::ENAMETOOLONG));
    });
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    requires!(Need::Mount);
    let volume = Volume::new();
    let mounted = volume.mount();
    let path = mounted.join("gone");
    let file = create(&path);
    file.write_all_at(&Rng::new(4).bytes(3 << 20), 0).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(b"still here", 5 << 20).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut buf = vec![0; 3 << 20];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf == Rng::new(4).bytes(3 << 20));
    assert_eq!((file.metadata().unwrap().nlink(), file.metadata().unwrap().len()), (0, (5 << 20) + 10));
    // The same for a file that was replaced by a rename.
    let old = create(&mounted.join("old"));
    old.write_all_at(b"old", 0).unwrap();
    fs::write(mounted.join("new"), "new").unwrap();
    fs::rename(mounted.join("new"), mounted.join("old")).unwrap();
    let mut buf = [0; 3];
    old.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"old");
    // The daemon is killed: the next mount collects what the crash left.
    mounted.kill();
    drop((file, old));
    let mounted = volume.mount();
    assert!(fs::metadata(mounted.join("gone")).is_err() || volume.fsck().is_none());
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn fifos_sockets_and_device_nodes_work() {
    requires!(Need::Mount, Need::Root);
    on_a_mount(|mounted| {
        let fifo = mounted.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || File::options().write(true).open(fifo).unwrap().write_all(b"through").unwrap()
        });
        let mut text = String::new();
        File::open(&fifo).unwrap().read_to_string(&mut text).unwrap();
        writer.join().unwrap();
        assert_eq!(text, "through");
        let listener = std::os::unix::net::UnixListener::bind(mounted.join("socket")).unwrap();
        let mut client = std::os::unix::net::UnixStream::connect(mounted.join("socket")).unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        text.clear();
        listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        let zero = mounted.join("zero");
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(CWD, &zero, kind, Mode::from_raw_mode(0o600), libc::makedev(1, 5)).unwrap();
        let mut bytes = [1; 8];
        File::open(&zero).unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    });
}

#[test]
fn other_users_are_kept_out() {
    requires!(Need::Mount, Need::Root);
    let volume = Volume::new();
    let mounted = volume.mount_with(&["allow_other"]);
    fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = mounted.join("secret");
    fs::write(&path, "for root").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    // Root reads it first, so that the kernel has it in memory.
    assert_eq!(fs::read(&path).unwrap(), b"for root");
    let as_nobody = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(&path).uid(65_534).gid(65_534).current_dir("/");
        run(&mut shell, LIMIT)
    };
    for script in ["cat \"$1\"", "echo x >> \"$1\"", "chmod 666 \"$1\"", "rm -f \"$1\"", "touch \"$1-new\""] {
        let done = as_nobody(script);
        assert!(!done.status.success() && !done.stdout.contains("for root"), "{script}: {done:?}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(as_nobody("cat \"$1\"").stdout, "for root");
    mounted.umount();
}

/// Writing, truncating and changing the owner keep a set-group-id bit only on a file that its group may not
/// execute, and only if the caller is in the file's group, by its first group or by another one.
#[test]
fn set_group_id_stays_only_where_one_of_the_group_writes() {
    requires!(Need::Mount, Need::Root, Need::Program("setpriv"));
    for options in [&["allow_other"][..], &["allow_other", "writeback=off"]] {
        let volume = Volume::new();
        let mounted = volume.mount_with(options);
        fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = mounted.join("file");
        for (doing, owner) in
            [("echo x >> \"$1\"", false), ("truncate -s 9000 \"$1\"", false), ("chown +1234 \"$1\"", true)]
        {
            // User, first group, other groups; the mode before; whether set-group-id stays.
            let rows = [
                ("1234", "55", "--clear-groups", 0o6766, true),
                ("1234", "77", "--groups=66,55", 0o6766, true),
                ("1234", "77", "--groups=66", 0o6766, false),
                ("1234", "77", "--groups=66", 0o2766, false),
                ("1234", "55", "--clear-groups", 0o6776, false),
                ("0", "0", "--clear-groups", 0o2766, true),
            ];
            for (user, group, others, mode, stays) in rows {
                fs::write(&path, "text").unwrap();
                std::os::unix::fs::chown(&path, Some(1_234), Some(55)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                let mut shell = Command::new("setpriv");
                shell.args(["--reuid", user, "--regid", group, others, "sh", "-c", doing, "sh"]).arg(&path);
                run_ok(shell.current_dir("/"), LIMIT);
                let root = user == "0" && !owner;
                let left = if root { mode } else { mode & !0o6000 | if stays { 0o2000 } else { 0 } };
                let found = fs::metadata(&path).unwrap().mode() & 0o7777;
                assert_eq!(
                    found, left,
                    "{options:?} {doing} as {user}:{group} {others} of {mode:o}: {found:o}"
                );
            }
        }
        mounted.umount();
        volume.must_be_clean();
    }
}

/// fallocate(2) and copy_file_range(2) by a user who is not root clear set-id bits, as on ext4. A file of
/// root's with mode 6777 used to keep them, with the user's bytes in it, and ran as root.
#[test]
fn regression_fallocate_and_copies_by_others_take_set_id_bits() {
    requires!(
        Need::Mount,
        Need::Root,
        Need::Program("setpriv"),
        Need::Program("fallocate"),
        Need::Program("python3")
    );
    let volume = Volume::new();
    let mounted = volume.mount_with(&["allow_other"]);
    fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (path, source) = (mounted.join("file"), mounted.join("source"));
    fs::write(&source, vec![7; 100_000]).unwrap();
    let copy = "python3 -c 'import os, sys; a, b = os.open(sys.argv[2], 0), os.open(sys.argv[1], 1); os.copy_file_range(a, b, 5000)' \"$1\" \"$2\"";
    let doings = [
        "fallocate -l 300000 \"$1\"",
        "fallocate -n -l 300000 \"$1\"",
        "fallocate -p -o 0 -l 4096 \"$1\"",
        "fallocate -z -o 0 -l 4096 \"$1\"",
        copy,
    ];
    for doing in doings {
        for (user, group, mode, left) in [
            ("1234", "1234", 0o6777, 0o777),
            ("1234", "0", 0o6767, 0o2767),
            ("1234", "1234", 0o2767, 0o767),
            ("0", "0", 0o6777, 0o6777),
        ] {
            fs::write(&path, vec![1; 50_000]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
            let mut shell = Command::new("setpriv");
            shell.args(["--reuid", user, "--regid", group, "--clear-groups", "sh", "-c", doing, "sh"]);
            run_ok(shell.args([&path, &source]).current_dir("/"), LIMIT);
            let found = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(found, left, "{doing} as {user}:{group} of {mode:o}: {found:o}");
        }
    }
    mounted.umount();
    volume.must_be_clean();
}

/// The kernel sets some times, because it keeps those of regular files itself, and the daemon sets the
/// others. Both use the clock of the kernel's timestamps. A folder made right after a written file used to be
/// up to 4 ms older than the file, while other programs read times.
#[test]
fn regression_what_is_done_later_bears_no_earlier_time() {
    requires!(Need::Mount);
    let volume = Volume::new();
    let mounted = volume.mount();
    let ctime = |path: &Path| {
        let meta = fs::symlink_metadata(path).unwrap();
        Duration::new(meta.ctime() as u64, meta.ctime_nsec() as u32)
    };
    let in_order = |earlier: Duration, later: Duration| {
        assert!(later >= earlier, "{later:?} after {earlier:?}");
    };
    let file = mounted.join("file");
    fs::write(&file, "text").unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    for number in 0..200 {
        let [folder, link, other] = ["d", "l", "s"].map(|kind| mounted.join(format!("{kind}{number}")));
        // A file elsewhere that is stat'ed, changed and stat'ed again advances the kernel's clock beyond its
        // tick.
        outside.as_file().metadata().unwrap();
        outside.as_file().set_modified(std::time::SystemTime::now()).unwrap();
        outside.as_file().metadata().unwrap();
        fs::write(&file, "text").unwrap();
        let written = fs::metadata(&file).unwrap();
        fs::create_dir(&folder).unwrap();
        in_order(Duration::new(written.mtime() as u64, written.mtime_nsec() as u32), ctime(&folder));
        fs::hard_link(&file, &link).unwrap();
        in_order(ctime(&folder), ctime(&link));
        std::os::unix::fs::symlink("x", &other).unwrap();
        in_order(ctime(&link), ctime(&other));
    }
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn an_acl_lets_one_more_user_in() {
    requires!(Need::Mount, Need::Root, Need::Program("setfacl"));
    let volume = Volume::new();
    let mounted = volume.mount_with(&["allow_other"]);
    fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let folder = mounted.join("folder");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    run_ok(Command::new("setfacl").args(["-m", "u:65534:rx,d:u:65534:r"]).arg(&folder), LIMIT);
    fs::write(folder.join("inherits"), "text").unwrap();
    let read = |user: u32| {
        let mut cat = Command::new("cat");
        run(cat.arg(folder.join("inherits")).uid(user).gid(user).current_dir("/"), LIMIT).status.success()
    };
    assert!(read(65_534) && !read(1_234));
    mounted.umount();
    let mounted = volume.mount_with(&["allow_other"]);
    assert!(read(65_534) && !read(1_234));
    mounted.umount();
}

/// `-o xattr=off`: there is no attribute to see or to set, ACLs are not heeded, and all of it stays in the
/// volume. Only what a write takes away goes: a capability of the file that was written.
#[test]
fn a_mount_without_attributes_shows_none_and_keeps_them() {
    requires!(Need::Covey, Need::Root);
    let (volume, mut room) = (Volume::new(), [0_u8; 64]);
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
    };
    // Version 2, and the permission to send raw packets.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mounted = volume.mount();
    for name in ["written", "kept"] {
        fs::write(mounted.join(name), "text").unwrap();
        set(&mounted.join(name), "user.colour", b"red").unwrap();
        set(&mounted.join(name), "security.capability", &capability).unwrap();
    }
    mounted.umount();
    let mounted = volume.mount_with(&["xattr=off"]);
    for name in ["user.colour", "security.capability", "security.selinux"] {
        let got = rustix::fs::getxattr(mounted.join("kept"), name, &mut room[..]);
        assert_eq!(got.map(drop), Err(Errno::OPNOTSUPP), "{name}");
    }
    for _ in 0..2 {
        assert_eq!(set(&mounted.join("kept"), "user.colour", b"blue"), Err(Errno::OPNOTSUPP));
        let removed = rustix::fs::removexattr(mounted.join("kept"), "user.colour");
        assert_eq!(removed, Err(Errno::OPNOTSUPP));
        assert!(matches!(rustix::fs::listxattr(mounted.join("kept"), &mut room[..]), Err(_) | Ok(0)));
    }
    fs::OpenOptions::new().append(true).open(mounted.join("written")).unwrap().write_all(b"more").unwrap();
    mounted.umount();
    let mounted = volume.mount();
    for (name, has) in [("written", false), ("kept", true)] {
        let colour = rustix::fs::getxattr(mounted.join(name), "user.colour", &mut room[..]).unwrap();
        assert_eq!(&room[..colour], b"red", "{name}");
        let got = rustix::fs::getxattr(mounted.join(name), "security.capability", &mut room[..]);
        assert_eq!(got.is_ok(), has, "{name}: {got:?}");
    }
    mounted.umount();
    volume.must_be_clean();
}

/// A file handle as name_to_handle_at(2) fills it in.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    room: [u8; 128],
}

/// File handles (open_by_handle_at, NFS) lead back to their files even after the kernel has forgotten the
/// inode.
#[test]
fn regression_file_handles_outlive_the_kernels_memory() {
    requires!(Need::Covey, Need::Root);
    let volume = Volume::new();
    let mounted = volume.mount();
    fs::create_dir(mounted.join("folder")).unwrap();
    fs::write(mounted.join("folder/file"), "by its handle").unwrap();
    let mut handle = Handle { bytes: 128, kind: 0, room: [0; 128] };
    let path = std::ffi::CString::new(mounted.join("folder/file").into_os_string().into_vec()).unwrap();
    let mut mount_id = 0i32;
    // SAFETY: the path ends with NUL, the handle has the size that it states, and both live through the call.
    let done = unsafe {
        let handle = std::ptr::from_mut(&mut handle);
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), handle, &mut mount_id, 0)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    mounted.umount();
    let mounted = volume.mount();
    let root = File::open(mounted.path()).unwrap();
    // SAFETY: as above; the descriptor of the mount is open.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            root.as_raw_fd(),
            std::ptr::from_mut(&mut handle),
            libc::O_RDONLY,
        )
    };
    assert!(opened >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor that nothing else owns.
    let mut file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(opened as i32) };
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by its handle");
    drop((file, root));
    mounted.umount();
}

#[test]
fn what_cannot_be_says_the_right_errno() {
    requires!(Need::Covey);
    on_a_mount(|mounted| {
        fs::write(mounted.join("a"), vec![1; 8192]).unwrap();
        let (a, b) = (File::open(mounted.join("a")).unwrap(), create(&mounted.join("b")));
        assert_eq!(rustix::fs::ioctl_ficlone(&b, &a), Err(Errno::OPNOTSUPP));
        assert_eq!(rustix::fs::fallocate(&b, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        assert_eq!(rustix::fs::fallocate(&b, FallocateFlags::INSERT_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        let label = rustix::fs::getxattr(mounted.join("a"), "security.selinux", &mut [0_u8; 64][..]);
        assert_eq!(label.map(drop), Err(Errno::OPNOTSUPP));
        // Whiteouts are for overlayfs, and the kernel requests them only of its upper layer.
        let whiteout = rustix::fs::RenameFlags::WHITEOUT;
        let renamed = rustix::fs::renameat_with(CWD, mounted.join("a"), CWD, mounted.join("c"), whiteout);
        assert_eq!(renamed, Err(Errno::INVAL));
        // FS_IOC_FIEMAP, with a zeroed header.
        let mut map = [0u8; 64];
        // SAFETY: the descriptor is open, and the header has the space that the request writes to.
        let mapped = unsafe { libc::ioctl(a.as_raw_fd(), 0xc020_660b, map.as_mut_ptr()) };
        assert_eq!((mapped, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
        // SAFETY: the request takes no argument, and the descriptor is open.
        let unknown = unsafe { libc::ioctl(b.as_raw_fd(), libc::_IO(0x7a, 0x7a)) };
        assert_eq!((unknown, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOTTY)));
    });
}

#[test]
fn copies_by_copy_file_range_take_no_room() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount();
    let size = 24 << 20;
    let data = Rng::new(6).bytes(size);
    let source = create(&mounted.join("source"));
    source.write_all_at(&data, 0).unwrap();
    source.sync_all().unwrap();
    let before = volume.disk_bytes();
    for copy in 0..20 {
        let target = create(&mounted.join(format!("copy{copy}")));
        let (mut from, mut to, mut left) = (0, 0, size);
        while left > 0 {
            left -=
                rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), left).unwrap();
        }
        target.write_all_at(b"mine", 4_000_000).unwrap();
        target.sync_all().unwrap();
    }
    drop(source);
    let grown = volume.disk_bytes().saturating_sub(before);
    // The log may allocate segments meanwhile. Less than the space of two copies counts as none for twenty.
    assert!(grown < 2 * size as u64, "20 copies of {size} bytes took {grown}");
    let mut copy = fs::read(mounted.join("copy7")).unwrap();
    assert_eq!(&copy[4_000_000..4_000_004], b"mine");
    copy[4_000_000..4_000_004].copy_from_slice(&data[4_000_000..4_000_004]);
    assert!(copy == data && fs::read(mounted.join("source")).unwrap() == data);
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn times_have_nanoseconds_and_reading_leaves_them() {
    requires!(Need::Covey);
    on_a_mount(|mounted| {
        let path = mounted.join("file");
        fs::write(&path, "text").unwrap();
        let spec = |tv_sec, tv_nsec| rustix::fs::Timespec { tv_sec, tv_nsec };
        let times = rustix::fs::Timestamps {
            last_access: spec(-5, 123_456_789),
            last_modification: spec(13_569_465_600, 987_654_321),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        fs::read(&path).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.atime(), meta.atime_nsec()), (-5, 123_456_789));
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (13_569_465_600, 987_654_321));
        // A change moves them forward, even within one clock tick.
        let before = meta.ctime() * 1_000_000_000 + meta.ctime_nsec();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert!(meta.ctime() * 1_000_000_000 + meta.ctime_nsec() >= before);
    });
}

#[test]
fn statfs_shows_room_and_inodes() {
    requires!(Need::Covey);
    on_a_mount(|mounted| {
        let before = rustix::fs::statvfs(mounted.path()).unwrap();
        (0..500).for_each(|number| fs::write(mounted.join(number.to_string()), "x").unwrap());
        let after = rustix::fs::statvfs(mounted.path()).unwrap();
        assert_eq!(after.f_namemax, 255);
        assert!(after.f_blocks > 0 && after.f_bavail <= after.f_bfree && after.f_bfree <= after.f_blocks);
        let used = |room: &rustix::fs::StatVfs| room.f_files - room.f_ffree;
        assert_eq!(used(&after) - used(&before), 500);
    });
}

#[test]
fn appends_from_many_threads_do_not_overwrite_each_other() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let path = mounted.join("log");
        std::thread::scope(|scope| {
            for writer in 0..8u8 {
                let mut file = File::options().append(true).create(true).open(&path).unwrap();
                scope.spawn(move || (0..200).for_each(|_| file.write_all(&[b'a' + writer; 99]).unwrap()));
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 8 * 200 * 99);
        assert!(bytes.chunks(99).all(|record| record.iter().all(|byte| *byte == record[0])));
    });
}

#[test]
fn o_trunc_and_o_excl_do_what_they_say() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let path = mounted.join("file");
        fs::write(&path, vec![7; 100_000]).unwrap();
        let kept = File::open(&path).unwrap();
        drop(File::options().write(true).truncate(true).open(&path).unwrap());
        assert_eq!((fs::metadata(&path).unwrap().len(), kept.metadata().unwrap().len()), (0, 0));
        let again = File::options().write(true).create_new(true).open(&path).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
    });
}

#[test]
fn a_shared_mapping_sees_writes_and_is_seen_by_reads() {
    requires!(Need::Mount);
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    on_a_mount(|mounted| {
        let path = mounted.join("shared");
        let (file, other) = (create(&path), File::options().read(true).write(true).open(&path).unwrap());
        file.set_len(8192).unwrap();
        // SAFETY: a new mapping inside the file, unmapped at the end. Access is volatile, because the
        // descriptors change what it shows.
        unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            let map = mmap(std::ptr::null_mut(), 8192, flags, MapFlags::SHARED, &file, 0).unwrap();
            let byte = map.cast::<u8>().add(5000);
            byte.write_volatile(42);
            let mut buf = [0];
            other.read_exact_at(&mut buf, 5000).unwrap();
            assert_eq!(buf, [42]);
            other.write_all_at(&[43], 5000).unwrap();
            assert_eq!(byte.read_volatile(), 43);
            byte.write_volatile(44);
            msync(map, 8192, MsyncFlags::SYNC).unwrap();
            munmap(map, 8192).unwrap();
        }
        drop((file, other));
        assert_eq!(fs::read(&path).unwrap()[5000], 44);
    });
}

#[test]
fn a_program_on_the_mount_runs() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let program = mounted.join("sleep");
        covey_tests::program::install(&covey_tests::need::which("sleep").unwrap(), &program);
        let mut running = Command::new(&program).arg("30").current_dir("/").spawn().unwrap();
        let busy = File::options().write(true).open(&program).map(drop).unwrap_err();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(busy.raw_os_error(), Some(libc::ETXTBSY));
        // The kernel releases its last pages a moment after its end.
        drop(File::options().write(true).open(&program));
    });
}

#[test]
fn everything_that_syncs_returns() {
    requires!(Need::Mount);
    on_a_mount(|mounted| {
        let file = create(&mounted.join("file"));
        file.write_all_at(b"data", 0).unwrap();
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        let folder = File::open(mounted.path()).unwrap();
        folder.sync_all().unwrap();
        rustix::fs::syncfs(&folder).unwrap();
        let range = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: numbers, and an open descriptor.
        assert_eq!(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 4, range) }, 0);
    });
}

#[test]
fn a_read_only_mount_refuses_changes() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount();
    fs::write(mounted.join("file"), "text").unwrap();
    mounted.umount();
    for options in ["ro", "frozen"] {
        let mounted = volume.mount_with(&[options]);
        assert_eq!(fs::read(mounted.join("file")).unwrap(), b"text");
        let changes = [
            fs::write(mounted.join("new"), ""),
            fs::remove_file(mounted.join("file")),
            fs::rename(mounted.join("file"), mounted.join("other")),
            fs::set_permissions(mounted.join("file"), fs::Permissions::from_mode(0o600)),
            File::options().append(true).open(mounted.join("file")).map(drop),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(
                change.unwrap_err().raw_os_error(),
                Some(libc::EROFS),
                "change {number} on a mount with -o {options}"
            );
        }
        mounted.umount();
    }
    volume.must_be_clean();
}
