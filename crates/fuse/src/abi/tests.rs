use base::{Ino, Timestamp};
use fs::Errno;
use fs::api::{Attr, DirEntry, Entry, FileKind, RenameMode, SetTime, StatFs};

use super::header::{Header, IN_HEADER, out_header};
use super::init::{self, Agreed, Offer, Wishes, flag};
use super::opcodes::{OPCODES, Policy, find, op};
use super::ops::Op;
use super::*;

fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(((IN_HEADER + arguments.len()) as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(77_u64.to_ne_bytes());
    bytes.extend(5_u64.to_ne_bytes());
    for word in [1000_u32, 100, 4321, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(arguments);
    bytes
}

fn decode(opcode: u32, arguments: &[u8]) -> Result<String, Errno> {
    let bytes = request(opcode, arguments);
    let (header, arguments) = Header::split(&bytes).unwrap();
    let agreed = Agreed { minor: 45, flags: flag::SETXATTR_EXT | flag::POSIX_ACL };
    Op::read(&header, arguments, &agreed).map(|op| format!("{op:?}"))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn a_header_comes_back() {
    let bytes = request(op::LOOKUP, b"name\0");
    let (header, arguments) = Header::split(&bytes).unwrap();
    assert_eq!((header.opcode, header.unique, header.ino), (op::LOOKUP, 77, Ino(5)));
    assert_eq!((header.caller.uid, header.caller.gid, header.caller.pid), (1000, 100, 4321));
    assert_eq!(arguments, b"name\0");
    assert_eq!(out_header(4, -5, 77), *b"\x14\0\0\0\xfb\xff\xff\xff\x4d\0\0\0\0\0\0\0");
}

#[test]
fn a_header_that_lies_about_its_length_is_refused() {
    let mut bytes = request(op::LOOKUP, b"name\0");
    for claimed in [0, 39, 46, u32::MAX] {
        bytes[..4].copy_from_slice(&claimed.to_ne_bytes());
        assert_eq!(Header::split(&bytes), Err(Errno::EIO), "{claimed}");
    }
    for len in 0..IN_HEADER {
        assert_eq!(Header::split(&request(1, b"")[..len]), Err(Errno::EIO));
    }
}

#[test]
fn names_are_checked() {
    assert_eq!(decode(op::LOOKUP, b"name"), Err(Errno::EIO), "no NUL");
    assert_eq!(decode(op::LOOKUP, b"\0"), Err(Errno::EINVAL), "empty");
    assert_eq!(decode(op::UNLINK, b"a/b\0"), Err(Errno::EINVAL), "a slash");
    assert!(decode(op::SYMLINK, b"name\0../where\0").is_ok(), "a target need not be a name");
}

#[test]
fn every_cut_of_every_request_is_an_error_and_no_panic() {
    let samples = [
        (op::SETATTR, vec![0xff; 84]),
        (op::MKNOD, [words(&[libc::S_IFREG | 0o644, 0, 0o22, 0]), b"n\0".to_vec()].concat()),
        (op::MKDIR, [words(&[0o755, 0o22]), b"n\0".to_vec()].concat()),
        (op::RENAME2, [words(&[2, 0, 1, 0]), b"a\0b\0".to_vec()].concat()),
        (op::WRITE, [words(&[0, 0, 0, 0, 3, 0, 0, 0, 0, 0]), b"abc".to_vec()].concat()),
        (op::BATCH_FORGET, [words(&[1, 0]), vec![1; 16]].concat()),
        (op::CREATE, [words(&[libc::O_APPEND as u32, 0o644, 0o22, 0]), b"n\0".to_vec()].concat()),
        (op::SETLKW, words(&[1, 0, 2, 0, 5, 0, 9, 0, libc::F_WRLCK as u32, 4321, 0])),
        (op::SETXATTR, [words(&[2, 0, 0, 0]), b"user.a\0xy".to_vec()].concat()),
    ];
    for (opcode, whole) in samples {
        assert!(decode(opcode, &whole).is_ok(), "{opcode}");
        for len in 0..whole.len() {
            assert_eq!(decode(opcode, &whole[..len]), Err(Errno::EIO), "{opcode} cut at {len}");
        }
    }
    assert_eq!(decode(op::BATCH_FORGET, &words(&[u32::MAX, 0])), Err(Errno::EIO), "a count far too large");
    assert_eq!(decode(op::WRITE, &words(&[0, 0, 0, 0, u32::MAX, 0, 0, 0, 0, 0])), Err(Errno::EIO));
}

#[test]
fn values_without_meaning_are_refused() {
    let rename = |flags| decode(op::RENAME2, &[words(&[2, 0, flags, 0]), b"a\0b\0".to_vec()].concat());
    assert!(rename(0).unwrap().contains(&format!("{:?}", RenameMode::Replace)));
    assert_eq!(rename(4), Err(Errno::EINVAL));
    assert_eq!(rename(3), Err(Errno::EINVAL));
    let fallocate = |mode| decode(op::FALLOCATE, &words(&[0, 0, 0, 0, 1, 0, mode, 0]));
    assert_eq!(fallocate(8), Err(Errno::EOPNOTSUPP), "collapse");
    assert_eq!(fallocate(2), Err(Errno::EOPNOTSUPP), "punch without keep");
    assert!(fallocate(0x11).unwrap().contains("Zero"));
    let lock = |start, end, kind| decode(op::SETLK, &words(&[1, 0, 2, 0, start, 0, end, 0, kind, 1, 0, 0]));
    assert!(lock(5, 5, 1).unwrap().contains("Write"));
    assert_eq!(lock(5, 4, 1), Err(Errno::EINVAL), "the end is before the start");
    assert_eq!(lock(5, 5, 3), Err(Errno::EINVAL), "neither read, write nor unlock");
    let mknod = |mode| decode(op::MKNOD, &[words(&[mode, 0, 0, 0]), b"n\0".to_vec()].concat());
    assert_eq!(mknod(libc::S_IFDIR), Err(Errno::EINVAL));
    assert_eq!(
        decode(op::LSEEK, &words(&[0, 0, 0, 0, 0, 0])),
        Err(Errno::EINVAL),
        "the kernel handles SEEK_SET"
    );
}

#[test]
fn setattr_takes_only_what_is_marked() {
    let mut arguments = vec![0; 88];
    arguments[..4].copy_from_slice(&((1_u32 << 4) | (1 << 8) | (1 << 5) | (1 << 10)).to_ne_bytes());
    arguments[32..40].copy_from_slice(&(-2_i64).to_ne_bytes());
    arguments[56..60].copy_from_slice(&5_u32.to_ne_bytes());
    let bytes = request(op::SETATTR, &arguments);
    let (header, arguments) = Header::split(&bytes).unwrap();
    let Ok(Op::Setattr(set)) = Op::read(&header, arguments, &Agreed::default()) else { panic!() };
    assert_eq!(set.atime, Some(SetTime::To(Timestamp::from_parts(-2, 5))));
    assert_eq!(set.mtime, Some(SetTime::Now));
    assert_eq!(set.ctime, Some(Timestamp(0)));
    assert_eq!((set.perm, set.uid, set.gid, set.size), (None, None, None, None));
}

fn attr() -> Attr {
    let time = Timestamp::from_parts(3, 4);
    Attr {
        ino: Ino(9),
        kind: FileKind::File,
        perm: 0o640,
        nlink: 1,
        uid: 2,
        gid: 3,
        rdev: 0,
        size: 10,
        blocks: 8,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: 0,
    }
}

#[test]
fn bodies_have_the_lengths_the_kernel_checks() {
    let entry = Entry::of(attr());
    let len = |write: &dyn Fn(&mut Put<'_>) -> Result<(), Errno>| {
        let mut room = [0xee; 512];
        let mut put = Put::new(&mut room);
        write(&mut put).unwrap();
        put.len()
    };
    assert_eq!(len(&|put| out::entry(put, &entry)), 128);
    assert_eq!(len(&|put| out::no_entry(put, false)), 128);
    assert_eq!(len(&|put| out::attributes(put, &attr(), false)), 104);
    assert_eq!(len(&|put| out::statfs(put, &StatFs::default())), 80);
    assert_eq!(len(&|put| out::written(put, 1)), 8);
    assert_eq!(len(&|put| out::opened(put, 1, 0)), 16);
    assert_eq!(len(&|put| out::lock(put, None)), 24);
    let line = DirEntry { name: b"abcde", ino: Ino(1), kind: FileKind::Dir, next: 1 };
    assert_eq!(len(&|put| out::dirent(put, 512, &line).map(drop)), 32);
    assert_eq!(len(&|put| out::dirent_plus(put, 512, &line, None).map(drop)), 160);
    let offer = Offer { major: 7, minor: 45, max_readahead: 1, flags: 0 };
    assert_eq!(len(&|put| init::put_reply(put, &offer, &Agreed::default())), 64);
}

#[test]
fn a_listing_stops_where_the_room_ends() {
    let mut room = [0; 512];
    let mut put = Put::new(&mut room);
    let line = DirEntry { name: b"12345678", ino: Ino(1), kind: FileKind::File, next: 1 };
    assert_eq!(out::dirent(&mut put, 70, &line), Ok(true));
    assert_eq!(out::dirent(&mut put, 70, &line), Ok(true));
    assert_eq!(out::dirent(&mut put, 70, &line), Ok(false));
    assert_eq!(put.len(), 64);
}

#[test]
fn init_takes_what_is_offered_and_wanted_and_nothing_dangerous() {
    let all = Offer { major: 7, minor: 46, max_readahead: 131_072, flags: u64::MAX };
    let agreed =
        all.agree(&Wishes { writeback: true, export: true, uring: true, ..Wishes::default() }).unwrap();
    assert_eq!(agreed.minor, 45);
    assert!(agreed.has(flag::WRITEBACK_CACHE | flag::EXPORT_SUPPORT | flag::HANDLE_KILLPRIV_V2));
    assert!(agreed.has(flag::OVER_IO_URING));
    assert!(agreed.has(flag::ALLOW_IDMAP), "default_permissions is always set");
    for never in [flag::ATOMIC_O_TRUNC, flag::POSIX_LOCKS, flag::FLOCK_LOCKS, flag::AUTO_INVAL_DATA] {
        assert!(!agreed.has(never));
    }
    let plain = all.agree(&Wishes::default()).unwrap();
    assert!(!plain.has(flag::WRITEBACK_CACHE) && !plain.has(flag::EXPORT_SUPPORT));
    assert!(!plain.has(flag::OVER_IO_URING), "the kernel would wait for rings for ever");
    let old = Offer { minor: 35, ..all };
    assert_eq!(old.agree(&Wishes::default()), Err(Errno(libc::EPROTO)));
    let poor = Offer { flags: !flag::NO_OPEN_SUPPORT, ..all };
    assert_eq!(poor.agree(&Wishes::default()), Err(Errno(libc::EPROTO)));
}

#[test]
fn a_shared_mount_takes_no_flag_that_lets_the_kernel_keep_names_or_times() {
    let all = Offer { major: 7, minor: 45, max_readahead: 131_072, flags: u64::MAX };
    let wishes = Wishes { shared: true, writeback: true, ..Wishes::default() };
    let agreed = all.agree(&wishes).unwrap();
    assert!(agreed.has(flag::AUTO_INVAL_DATA | flag::DIRECT_IO_ALLOW_MMAP | flag::HANDLE_KILLPRIV_V2));
    let never = [
        flag::WRITEBACK_CACHE,
        flag::DO_READDIRPLUS,
        flag::EXPLICIT_INVAL_DATA,
        flag::ATOMIC_O_TRUNC,
        flag::POSIX_LOCKS,
        flag::FLOCK_LOCKS,
    ];
    never.iter().for_each(|never| assert!(!agreed.has(*never), "{never:#x}"));
    let locks = all.agree(&Wishes { locks: true, ..wishes }).unwrap();
    assert!(locks.has(flag::POSIX_LOCKS | flag::FLOCK_LOCKS));
    let alone = all.agree(&Wishes { locks: true, ..Wishes::default() }).unwrap();
    assert!(!alone.has(flag::POSIX_LOCKS) && !alone.has(flag::FLOCK_LOCKS));
}

#[test]
fn the_table_is_in_order_and_found_by_number() {
    assert!(OPCODES.windows(2).all(|pair| pair[0].number < pair[1].number));
    for line in OPCODES {
        assert_eq!(find(line.number).unwrap().name, line.name);
        assert!(line.policy == Policy::Served || !line.why.is_empty(), "{} says why", line.name);
    }
    for unknown in [0, 7, 19, 54, 63, 64, 4095, u32::MAX] {
        assert!(find(unknown).is_none(), "{unknown}");
    }
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300), opcode in 0..60_u32) {
        let _ = decode(opcode, &bytes);
        if let Ok((header, arguments)) = Header::split(&bytes) {
            let _ = Op::read(&header, arguments, &Agreed::default());
        }
        let _ = Offer::read(&bytes);
    }
}
