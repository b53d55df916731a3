//! What programs do with files, through the kernel and back.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use fuse::Options;

use crate::memory::Memory;
use crate::{options, rig, rig_with};

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

#[test]
fn an_unlinked_file_lives_while_it_is_open_and_ends_after() {
    let Some(rig) = rig() else { return };
    let path = rig.path("gone");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all_at(b"STILL", 0).unwrap();
    file.sync_all().unwrap();
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "STILL here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(rig.fs.inodes().1, 1);
    drop(file);
    // FORGET follows the last close soon, but not at once.
    let gone = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        rig.fs.inodes().1 == 0
    });
    assert!(gone);
}

#[test]
fn o_tmpfile_makes_a_file_that_can_be_given_a_name() {
    let Some(rig) = rig() else { return };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o640)
        .open(rig.root())
        .unwrap();
    file.write_all(b"nameless").unwrap();
    assert_eq!(std::fs::read_dir(rig.root()).unwrap().count(), 0);
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let to = c_path(&rig.path("named"));
    // SAFETY: both are NUL-terminated strings.
    let done = unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    drop(file);
    assert_eq!(std::fs::read(rig.path("named")).unwrap(), b"nameless");
    // A file without a name goes with its descriptor.
    drop(OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(rig.root()).unwrap());
}

#[test]
fn copy_file_range_sees_and_replaces_what_is_dirty() {
    let Some(rig) = rig() else { return };
    let from = OpenOptions::new().read(true).write(true).create_new(true).open(rig.path("from")).unwrap();
    let mut to = OpenOptions::new().read(true).write(true).create_new(true).open(rig.path("to")).unwrap();
    rig.dirty(|| {
        from.write_all_at(&vec![b'f'; 300_000], 0).unwrap();
        to.write_all_at(&vec![b't'; 300_000], 0).unwrap();
    });
    let (mut at, mut onto) = (100_000_i64, 150_000_i64);
    // SAFETY: both descriptors are open, and both offsets outlive the call.
    let copied = unsafe {
        libc::copy_file_range(from.as_raw_fd(), &raw mut at, to.as_raw_fd(), &raw mut onto, 120_000, 0)
    };
    assert_eq!(copied, 120_000);
    assert!(rig.count("COPY_FILE_RANGE") + rig.count("COPY_FILE_RANGE_64") > 0);
    let mut all = Vec::new();
    to.seek(SeekFrom::Start(0)).unwrap();
    to.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 300_000);
    assert!(all[..150_000].iter().all(|byte| *byte == b't'));
    assert!(all[150_000..270_000].iter().all(|byte| *byte == b'f'));
    assert!(all[270_000..].iter().all(|byte| *byte == b't'));
}

#[test]
fn fallocate_reserves_punches_and_zeroes() {
    let Some(rig) = rig() else { return };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(rig.path("f")).unwrap();
    file.write_all_at(&[1; 40_960], 0).unwrap();
    let allocate = |mode: i32, offset: i64, len: i64| {
        // SAFETY: the descriptor is open. The other arguments are numbers.
        let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
    };
    let byte = |at: u64| {
        let mut one = [9];
        file.read_exact_at(&mut one, at).unwrap();
        one[0]
    };
    allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 4096, 8192).unwrap();
    assert_eq!((byte(4095), byte(4096), byte(12287), byte(12288)), (1, 0, 0, 1));
    allocate(libc::FALLOC_FL_ZERO_RANGE, 20_000, 100).unwrap();
    assert_eq!((byte(19_999), byte(20_000), byte(20_099), byte(20_100)), (1, 0, 0, 1));
    allocate(libc::FALLOC_FL_KEEP_SIZE, 0, 100_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 40_960);
    allocate(0, 0, 100_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 100_000);
    assert_eq!(allocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096), Err(libc::EOPNOTSUPP));
}

#[test]
fn rename_modes_are_told_apart() {
    let Some(rig) = rig() else { return };
    std::fs::write(rig.path("a"), b"a").unwrap();
    std::fs::write(rig.path("b"), b"b").unwrap();
    let rename = |flags: u32| {
        let (from, to) = (c_path(&rig.path("a")), c_path(&rig.path("b")));
        // SAFETY: both are NUL-terminated strings.
        let done =
            unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
    };
    assert_eq!(rename(libc::RENAME_NOREPLACE), Err(libc::EEXIST));
    assert_eq!(rename(libc::RENAME_EXCHANGE), Ok(()));
    assert_eq!(std::fs::read(rig.path("a")).unwrap(), b"b");
    assert_eq!(rename(libc::RENAME_WHITEOUT), Err(libc::EINVAL));
    assert_eq!(rename(0), Ok(()));
    assert_eq!(std::fs::read(rig.path("b")).unwrap(), b"b");
    assert!(!rig.path("a").exists());
}

#[test]
fn special_files_symlinks_and_attributes_come_back() {
    let Some(rig) = rig() else { return };
    let fifo = rig.path("fifo");
    // SAFETY: a NUL-terminated string and numbers.
    assert_eq!(unsafe { libc::mkfifo(c_path(&fifo).as_ptr(), 0o600) }, 0);
    assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    let device = rig.path("null");
    let number = libc::makedev(1, 3);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::mknod(c_path(&device).as_ptr(), libc::S_IFCHR | 0o666, number) }, 0);
    assert_eq!(std::fs::metadata(&device).unwrap().rdev(), number);
    std::fs::write(&device, b"swallowed").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(rig.path("socket")).unwrap();
    std::os::unix::fs::symlink("fifo", rig.path("link")).unwrap();
    assert_eq!(std::fs::read_link(rig.path("link")).unwrap(), Path::new("fifo"));

    let file = File::create(rig.path("times")).unwrap();
    let moment = std::time::UNIX_EPOCH - std::time::Duration::new(86_400, 123_456_789);
    file.set_times(std::fs::FileTimes::new().set_modified(moment).set_accessed(moment)).unwrap();
    drop(file);
    let found = std::fs::metadata(rig.path("times")).unwrap();
    assert_eq!(found.modified().unwrap(), moment);
    assert_eq!(found.accessed().unwrap(), moment);
    std::os::unix::fs::chown(rig.path("times"), Some(12), Some(34)).unwrap();
    let found = std::fs::metadata(rig.path("times")).unwrap();
    assert_eq!((found.uid(), found.gid()), (12, 34));
    assert!(found.created().is_err(), "STATX is refused, so the time of creation is not shown");
}

#[test]
fn extended_attributes_and_room() {
    let Some(rig) = rig() else { return };
    std::fs::write(rig.path("x"), b"").unwrap();
    let path = c_path(&rig.path("x"));
    let set = |name: &std::ffi::CStr, value: &[u8], flags: i32| {
        // SAFETY: two NUL-terminated strings, and a value with its length.
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) }
    };
    let big = vec![7; 60_000];
    assert_eq!(set(c"user.big", &big, 0), 0);
    assert_eq!(set(c"user.big", b"again", libc::XATTR_CREATE), -1);
    assert_eq!(set(c"user.none", b"", libc::XATTR_REPLACE), -1);
    assert_eq!(set(c"trusted.t", b"t", libc::XATTR_CREATE), 0);
    let mut room = vec![0; 65_536];
    // SAFETY: NUL-terminated strings, and room with its length.
    let get = |room: &mut [u8]| unsafe {
        libc::getxattr(path.as_ptr(), c"user.big".as_ptr(), room.as_mut_ptr().cast(), room.len())
    };
    assert_eq!(get(&mut []), 60_000);
    assert_eq!(get(&mut room[..100]), -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ERANGE));
    assert_eq!(get(&mut room), 60_000);
    assert_eq!(room[..60_000], big);
    // SAFETY: as above.
    let len = unsafe { libc::listxattr(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    assert_eq!(&room[..len as usize], b"trusted.t\0user.big\0");

    // SAFETY: statfs is plain numbers; the path is NUL-terminated.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::statfs(path.as_ptr(), &raw mut found) }, 0);
    assert_eq!((found.f_blocks * found.f_bsize as u64, found.f_files, found.f_namelen), (1 << 30, 100, 255));
}

#[test]
fn large_files_come_back_whole_with_and_without_the_cache() {
    for writeback in [true, false] {
        let Some(rig) = rig_with(Memory::new(), Options { writeback: Some(writeback), ..options() }) else {
            return;
        };
        let data: Vec<u8> = (0..5_000_003_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(rig.path("large"), &data).unwrap();
        let file = File::open(rig.path("large")).unwrap();
        // SAFETY: the descriptor is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        drop(file);
        assert!(std::fs::read(rig.path("large")).unwrap() == data);
        assert!(rig.count("READ") > 0);
    }
}

#[test]
fn o_direct_and_o_append() {
    let Some(rig) = rig() else { return };
    let path = rig.path("direct");
    let mut buffer = vec![0_u8; 8192 + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let page = &mut buffer[start..start + 8192];
    page.fill(b'd');
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    file.write_all_at(page, 0).unwrap();
    page.fill(0);
    file.read_exact_at(page, 0).unwrap();
    assert!(page.iter().all(|byte| *byte == b'd'));
    let mut append = OpenOptions::new().append(true).open(&path).unwrap();
    append.write_all(b"tail").unwrap();
    assert_eq!(std::fs::read(&path).unwrap().len(), 8196);
}

#[test]
fn a_frozen_tree_can_be_read_and_not_changed() {
    let fs = Memory::frozen();
    fs.plant(b"given", b"once and for all");
    let Some(rig) = rig_with(fs, options()) else {
        return;
    };
    assert_eq!(std::fs::read(rig.path("given")).unwrap(), b"once and for all");
    let refused = std::fs::write(rig.path("new"), b"").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
}
