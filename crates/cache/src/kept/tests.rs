use super::*;

const PACK: PackNo = PackNo(7 << 40 | 5);

fn open(dir: &Path) -> KeptPacks {
    KeptPacks::open(&dir.join("kept"), 1 << 20, 0).unwrap()
}

fn read(kept: &KeptPacks, offset: u32, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    kept.read(PACK, offset, &mut bytes).unwrap().then_some(bytes)
}

#[test]
fn what_is_kept_is_read_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let kept = open(dir.path());
    kept.write(PACK, 10, &[1; 10]).unwrap();
    kept.write(PACK, 30, &[3; 10]).unwrap();
    kept.write(PACK, 20, &[2; 10]).unwrap();
    kept.sync(PACK).unwrap();
    let run = kept.run();
    for kept in [kept, open(dir.path())] {
        assert_eq!(kept.ranges(PACK), [(10, 30)]);
        assert_eq!(read(&kept, 10, 30), Some([[1; 10], [2; 10], [3; 10]].concat()));
        assert_eq!(read(&kept, 15, 10), Some([[1; 5], [2; 5]].concat()));
        assert_eq!((read(&kept, 9, 2), read(&kept, 35, 6), read(&kept, 100, 1)), (None, None, None));
        assert_eq!(kept.list().iter().map(|copy| copy.pack).collect::<Vec<_>>(), [PACK]);
    }
    assert_ne!(open(dir.path()).run(), run);
}

#[test]
fn of_two_records_of_a_range_the_later_one_counts() {
    let dir = tempfile::tempdir().unwrap();
    let kept = open(dir.path());
    kept.write(PACK, 0, &[1; 100]).unwrap();
    kept.write(PACK, 50, &[2; 10]).unwrap();
    let bytes = kept.stats().bytes;
    kept.write(PACK, 50, &[2; 10]).unwrap();
    assert_eq!(kept.stats().bytes, bytes, "the same again takes no room");
    for kept in [kept, open(dir.path())] {
        assert_eq!(read(&kept, 45, 20), Some([&[1; 5][..], &[2; 10], &[1; 5]].concat()));
        assert_eq!(kept.ranges(PACK), [(0, 100)]);
    }
}

#[test]
fn a_torn_record_is_cut_off_and_damaged_bytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let kept = open(dir.path());
    kept.write(PACK, 0, &[1; 1000]).unwrap();
    kept.write(PACK, 1000, &[2; 1000]).unwrap();
    let path = dir.path().join("kept").join(PACK.to_string());
    let whole = fs::read(&path).unwrap();
    let first = HEADER + 1000;
    for len in [whole.len() - 1, first + HEADER + 1, first + HEADER, first + 1, first] {
        fs::write(&path, &whole[..len]).unwrap();
        let kept = open(dir.path());
        assert_eq!(read(&kept, 0, 1000), Some(vec![1; 1000]), "{len}");
        assert_eq!(read(&kept, 999, 2), None, "{len}");
        assert_eq!(fs::metadata(&path).unwrap().len(), first as u64);
        // What is sent again takes its place.
        kept.write(PACK, 1000, &[2; 1000]).unwrap();
        assert_eq!(read(&open(dir.path()), 0, 2000), Some([[1; 1000], [2; 1000]].concat()), "{len}");
    }
    for at in [0, 5, 10, 18, 22, 26] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(open(dir.path()).ranges(PACK), [], "a header that is damaged at {at}");
    }
    // A power cut may leave the length without the bytes.
    let mut bytes = whole.clone();
    bytes[first + HEADER..].fill(0);
    fs::write(&path, &bytes).unwrap();
    let kept = open(dir.path());
    assert!(kept.read(PACK, 1500, &mut [0; 10]).is_err());
    assert_eq!(read(&kept, 0, 1000), Some(vec![1; 1000]));
    // Sent again, it counts.
    kept.write(PACK, 1000, &[2; 1000]).unwrap();
    assert_eq!(read(&kept, 1500, 10), Some(vec![2; 10]));
}

#[test]
fn beyond_the_budget_ranges_are_refused_until_copies_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let kept = KeptPacks::open(&dir.path().join("kept"), 10_000, 0).unwrap();
    kept.write(PACK, 0, &[1; 9_000]).unwrap();
    assert!(matches!(kept.write(PACK, 9_000, &[1; 1_000]), Err(BlobError::Full)));
    assert!(matches!(kept.write(PackNo(9), 0, &[1; 1_000]), Err(BlobError::Full)));
    assert_eq!(kept.ranges(PACK), [(0, 9_000)]);
    assert_eq!(kept.stats(), KeptStats { packs: 1, bytes: 9_028, budget: 10_000, refused: 2 });
    // A restart counts what is there.
    let kept = KeptPacks::open(&dir.path().join("kept"), 10_000, 0).unwrap();
    assert_eq!(kept.stats().bytes, 9_028);
    kept.remove(PACK, None).unwrap();
    assert_eq!(kept.stats().bytes, 0);
    kept.write(PackNo(9), 0, &[1; 1_000]).unwrap();
    let none = KeptPacks::open(&dir.path().join("other"), u64::MAX, u64::MAX).unwrap();
    assert!(matches!(none.write(PACK, 0, &[1]), Err(BlobError::Full)), "the disk is to stay free");
}

#[test]
fn a_copy_that_grew_is_not_removed_and_a_removed_one_is_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let kept = open(dir.path());
    kept.write(PACK, 0, &[1; 10]).unwrap();
    let seen = kept.list()[0].version;
    kept.write(PACK, 10, &[2; 10]).unwrap();
    kept.remove(PACK, Some(seen)).unwrap();
    assert_eq!(read(&kept, 0, 20).map(|bytes| bytes.len()), Some(20));
    kept.remove(PACK, Some(kept.list()[0].version)).unwrap();
    assert_eq!((read(&kept, 0, 1), kept.list().len()), (None, 0));
    assert!(kept.sync(PACK).is_err());
    // It may begin anew.
    kept.write(PACK, 5, &[3; 5]).unwrap();
    kept.sync(PACK).unwrap();
    assert_eq!((kept.ranges(PACK), kept.stats().bytes), (vec![(5, 5)], 33));
    assert!(kept.write(PACK, BLOB_MAX, &[1]).is_err());
}

/// A restart of the node makes the other one send all of it again. A power cut tears that.
#[test]
fn a_torn_record_does_not_hide_an_older_one() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).write(PACK, 0, &[1; 1000]).unwrap();
    open(dir.path()).write(PACK, 0, &[1; 1000]).unwrap();
    let path = dir.path().join("kept").join(PACK.to_string());
    let mut bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 2 * (HEADER + 1000), "it was written twice");
    bytes[2 * HEADER + 1000..].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&open(dir.path()), 100, 800), Some(vec![1; 800]));
}
