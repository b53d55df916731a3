use base::size::FILE_MAX;
use base::{BlobId, Ino, PackNo, Timestamp};
use proptest::prelude::*;

use super::*;

fn record() -> impl Strategy<Value = InodeRecord> {
    let kinds = prop::sample::select(vec![
        mode::S_IFIFO,
        mode::S_IFCHR,
        mode::S_IFDIR,
        mode::S_IFBLK,
        mode::S_IFREG,
        mode::S_IFLNK,
        mode::S_IFSOCK,
    ]);
    let near = any::<[i64; 4]>().prop_map(|times| times.map(Timestamp::from_nanos));
    let far = any::<[(i64, u32); 4]>().prop_map(|times| {
        times.map(|(seconds, nanos)| Timestamp::from_parts(seconds, nanos % 1_000_000_000))
    });
    let times = prop_oneof![near, far];
    let ids = any::<[u32; 6]>();
    (kinds, 0u32..0o10000, 0u16..32, ids, 0..=FILE_MAX, any::<[u64; 4]>(), times).prop_map(
        |(
            kind,
            perm,
            flags,
            [uid, gid, nlink, rdev, list, xattr_bytes],
            size,
            [stored, parent, change, quota],
            times,
        )| {
            let [atime, mtime, ctime, btime] = times;
            let xattr_list = if flags & InodeRecord::HAS_XATTRS == 0 { 0 } else { list.max(1) };
            let mode = kind | perm;
            let parent = Ino(parent);
            InodeRecord {
                mode,
                flags,
                uid,
                gid,
                nlink,
                rdev,
                size,
                stored,
                parent,
                atime,
                mtime,
                ctime,
                btime,
                change,
                xattr_list,
                xattr_bytes,
                quota: Ino(if quota % 2 == 0 { 0 } else { quota }),
            }
        },
    )
}

proptest! {
    #[test]
    fn an_inode_survives_its_bytes(record in record()) {
        let bytes = record.encode();
        let near = record.times().iter().all(|time| i128::from(time.as_nanos()) == time.0);
        let plain = if near { InodeRecord::LEN } else { InodeRecord::LEN_WIDE };
        let counts = record.quota != Ino(0);
        prop_assert_eq!(bytes.len(), plain + if counts { InodeRecord::LEN_QUOTA } else { 0 });
        prop_assert_eq!(InodeRecord::decode(&bytes), Ok(record));
    }

    #[test]
    fn accepted_inode_bytes_encode_to_themselves(record in record(), at in 0..InodeRecord::LEN_WIDE, bit in 0u8..8) {
        let mut bytes = record.encode().to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(other) = InodeRecord::decode(&bytes) {
            prop_assert_eq!(&other.encode()[..], &bytes[..]);
            prop_assert_ne!(other, record);
        }
    }

    #[test]
    fn no_bytes_are_taken_for_more_than_one_record(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(row) = PackRow::decode(&bytes) {
            prop_assert_eq!(&row.encode()[..], &bytes[..]);
        }
        if let Ok(row) = Dentry::decode(&bytes) {
            prop_assert_eq!(&row.encode()[..], &bytes[..]);
        }
        if let Ok(row) = ContentRow::decode(&bytes) {
            prop_assert_eq!(&row.encode()[..], &bytes[..]);
        }
        prop_assert_eq!(InodeRecord::decode(&bytes).is_ok(), false);
    }

    #[test]
    fn packs_and_contents_survive_their_bytes(hash in any::<[u8; 32]>(), size in 0..=BLOB_MAX, pack in any::<u64>(), offset in 0..BLOB_MAX) {
        let blob = BlobId(hash);
        for row in [PackRow::Open, PackRow::Sealed { blob, size }, PackRow::Condemned { blob, size }] {
            prop_assert_eq!(PackRow::decode(&row.encode()), Ok(row));
            prop_assert_eq!(PackRow::decode(&row.encode()[1..]), Err(BadRecord { what: "pack" }));
        }
        let row = ContentRow { pack: PackNo(pack), offset, len: BLOB_MAX - offset };
        prop_assert_eq!(ContentRow::decode(&row.encode()), Ok(row));
        let past = ContentRow { len: row.len + 1, ..row };
        prop_assert!(ContentRow::decode(&past.encode()).is_err());
        let too_large = PackRow::Sealed { blob, size: BLOB_MAX + 1 };
        prop_assert!(PackRow::decode(&too_large.encode()).is_err());
    }

    #[test]
    fn moments_as_numbers_keep_their_order(a in any::<i64>(), b in any::<i64>()) {
        let (a, b) = (Timestamp::from_nanos(a), Timestamp::from_nanos(b));
        prop_assert_eq!(moment_from_u64(moment_to_u64(a)), a);
        prop_assert_eq!(moment_to_u64(a) < moment_to_u64(b), a < b);
        prop_assert_eq!(moment_from_u64(0), Timestamp::from_nanos(i64::MIN));
    }
}

fn sample() -> InodeRecord {
    InodeRecord {
        mode: 0o100_644,
        flags: InodeRecord::HAS_XATTRS | InodeRecord::HAS_CAPABILITY,
        uid: 0x0102_0304,
        gid: 0x0506_0708,
        nlink: 2,
        rdev: 0x0801,
        size: 0x11,
        stored: 0x12,
        parent: Ino(0x13),
        atime: Timestamp(-1),
        mtime: Timestamp(0x14),
        ctime: Timestamp(0x15),
        btime: Timestamp(0x16),
        change: 0x17,
        xattr_list: 0x18,
        xattr_bytes: 0x19,
        quota: Ino(0),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// docs/FORMAT.md shows these bytes, and existing disks hold them.
#[test]
fn rows_have_the_bytes_that_the_format_says() {
    let inode = concat!(
        "01000011",
        "000081a4",
        "01020304",
        "05060708",
        "00000002",
        "00000801",
        "0000000000000011",
        "0000000000000012",
        "0000000000000013",
        "ffffffffffffffff",
        "0000000000000014",
        "0000000000000015",
        "0000000000000016",
        "0000000000000017",
        "00000018",
        "00000019",
    );
    assert_eq!(hex(&sample().encode()), inode);
    let dentry = Dentry { ino: Ino(0x0102), kind: mode::S_IFDIR };
    assert_eq!(hex(&dentry.encode()), "000000000000010204");
    assert_eq!(hex(&PackRow::Open.encode()), "01");
    let blob = BlobId([0xAB; 32]);
    let ab = "ab".repeat(32);
    assert_eq!(hex(&PackRow::Sealed { blob, size: 0x0010_0001 }.encode()), format!("02{ab}00100001"));
    assert_eq!(hex(&PackRow::Condemned { blob, size: 2 }.encode()), format!("03{ab}00000002"));
    let content = ContentRow { pack: PackNo(7), offset: 0x100, len: 0x200 };
    assert_eq!(hex(&content.encode()), "00000000000000070000010000000200");
    assert_eq!(hex(&encode_i64(-2)), "fffffffffffffffe");
    assert_eq!(hex(&encode_u64(moment_to_u64(Timestamp(1)))), "8000000000000001");
}

#[test]
fn an_inode_of_another_version_or_with_unknown_flags_is_refused() {
    let good = sample().encode().to_vec();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        InodeRecord::decode(&bytes)
    };
    let bad = Err(BadRecord { what: "inode" });
    assert_eq!(with(0, 2), bad, "version");
    assert_eq!(with(1, 1), bad, "reserved");
    assert_eq!(with(2, 0x80), bad, "flags");
    assert_eq!(with(3, 0x10), bad, "a list of names without its flag");
    assert_eq!(with(6, 0x31), bad, "no kind of inode");
    assert_eq!(with(4, 1), bad, "mode bits there are not");
    assert_eq!(with(24, 1), bad, "a size past the largest");
    assert_eq!(InodeRecord::decode(&good[1..]), bad);
    assert_eq!(InodeRecord::decode(&[]), bad);
}

#[test]
fn absent_counters_are_zero_and_others_have_eight_bytes() {
    assert_eq!((decode_i64(None), decode_u64(None)), (Ok(0), Ok(0)));
    assert_eq!(decode_i64(Some(&encode_i64(-5))), Ok(-5));
    assert_eq!(decode_u64(Some(&[1, 2])), Err(BadRecord { what: "counter" }));
}

#[test]
fn later_changes_of_entries_are_a_directorys_times() {
    let dir = InodeRecord { mode: mode::S_IFDIR | 0o755, ..sample() };
    let later = dir.with_entries_changed(Timestamp(0x99));
    assert_eq!((later.mtime, later.ctime), (Timestamp(0x99), Timestamp(0x99)));
    assert_eq!(dir.with_entries_changed(dir.ctime), dir);
}

proptest! {
    #[test]
    fn a_foreign_object_is_read_as_it_was_written(
        key in ".{0,40}", etag in ".{0,40}", numbers in any::<[u64; 4]>(),
        folders in prop::collection::vec(any::<u64>(), 0..5), noise in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let [size, ino, change, pack] = numbers;
        let folders = folders.into_iter().map(Ino).collect();
        let row = ForeignRow { key, etag, size, ino: Ino(ino), change, pack: PackNo(pack), folders };
        let bytes = row.encode();
        prop_assert_eq!(ForeignRow::decode(&bytes), Ok(row.clone()));
        // The key has no length of its own. Everything before it is needed.
        let least = bytes.len() - row.key.len();
        prop_assert!((0..least).all(|len| ForeignRow::decode(&bytes[..len]).is_err()));
        if let Ok(row) = ForeignRow::decode(&noise) {
            prop_assert_eq!(&*row.encode(), &*noise);
        }
    }
}

/// docs/FORMAT.md says how an inode looks that counts for a quota.
#[test]
fn an_inode_that_counts_for_a_quota_is_eight_bytes_longer() {
    let plain = sample();
    let counted = InodeRecord { quota: Ino(0x1A1B), ..plain };
    let row = counted.encode();
    assert_eq!(hex(&row[2..4]), "0031");
    assert_eq!(hex(&row[96..]), "0000000000001a1b");
    assert_eq!(InodeRecord::decode(&row), Ok(counted));
    assert_eq!(InodeRecord::without_quota(&row), Ok(Some(plain.encode())));
    assert_eq!(InodeRecord::without_quota(&plain.encode()), Ok(None));
    // Not without the directory, and not with 0 for it.
    assert!(InodeRecord::decode(&row[..96]).is_err());
    assert!(InodeRecord::decode(&[&row[..96], &[0; 8]].concat()).is_err());
    // Only a directory has a quota of its own.
    let root = InodeRecord { flags: plain.flags | InodeRecord::QUOTA_ROOT, ..plain };
    assert!(InodeRecord::decode(&root.encode()).is_err());
}

/// Programs that compare versions rely on it: other changes must not look like a change of the bytes.
#[test]
fn a_change_of_the_bytes_moves_the_version() {
    let version = |change| InodeRecord { change, ..sample() }.version();
    let mut change = 0;
    for wanted in 1..4 {
        for _ in 0..1000 {
            change = InodeRecord::next_change(change, false);
            assert_eq!(version(change), wanted - 1);
        }
        let before = change;
        change = InodeRecord::next_change(change, true);
        assert!(change > before && version(change) == wanted);
    }
    // More changes than fit move it too, and never back.
    assert_eq!(version(InodeRecord::next_change((4 << 20) - 1, false)), 4);
}
