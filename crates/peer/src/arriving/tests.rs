use super::*;

fn noise(len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut out);
    out
}

#[test]
fn bytes_are_free_group_by_group_and_sources_may_overlap() {
    let bytes = noise(200_000);
    let arriving = Arriving::new(Sums::of(&bytes).id(), Verify::Blake3);
    assert!(matches!(arriving.receive(0, 1, |_| Ok(0)).unwrap(), Err(Fail::Protocol(_))));
    arriving.begin(Sums::of(&bytes)).unwrap();
    arriving.begin(Sums::of(&bytes)).unwrap();
    assert!(arriving.begin(Sums::of(&bytes[1..])).is_err());
    let give = |from: usize, len: usize| {
        arriving.receive(from as u32, len, |room| Ok(copy(&bytes[from..from + len], room))).unwrap()
    };
    assert_eq!(give(0, 65_535), Ok(Took::Bytes(65_535)));
    assert_eq!((arriving.verified(), arriving.bytes(0..1)), (0, None));
    assert_eq!(give(60_000, 10_000), Ok(Took::Skip(5_535)));
    assert!(matches!(give(70_000, 1), Err(Fail::Protocol(_))), "a gap");
    assert_eq!(give(65_535, 134_465), Ok(Took::Bytes(134_465)));
    assert!(arriving.is_whole());
    assert_eq!(arriving.bytes(5..200_000), Some(&bytes[5..]));
    let shared = Arc::clone(&arriving);
    assert_eq!(arriving.into_parts().unwrap().1, bytes);
    assert_eq!(shared.into_parts().unwrap().1, bytes);
}

#[test]
fn a_wrong_byte_frees_nothing_and_the_next_source_goes_on() {
    let bytes = noise(200_000);
    let mut wrong = bytes.clone();
    wrong[150_000] ^= 4;
    for verify in [Verify::Crc, Verify::Blake3] {
        let arriving = Arriving::reusing(Sums::of(&bytes).id(), verify, vec![1; 10]);
        assert!(matches!(arriving.complete(wrong.clone()), Err(Fail::Corrupt(_))));
        arriving.begin(Sums::of(&bytes)).unwrap();
        assert!(matches!(arriving.complete(wrong.clone()), Err(Fail::Corrupt(_))));
        assert_eq!(arriving.verified(), 131_072);
        arriving.complete(bytes.clone()).unwrap();
        assert_eq!(arriving.into_parts().unwrap().1, bytes);
    }
}

#[test]
fn who_waits_hears_of_the_end() {
    let arriving = Arriving::new(Sums::of(b"x").id(), Verify::Crc);
    let soon = base::time::monotonic() + std::time::Duration::from_millis(10);
    assert!(matches!(arriving.wait_for(1, soon), Err(Fail::Late(_))));
    arriving.fail(Fail::Missing);
    assert_eq!(arriving.wait_for(1, soon), Err(Fail::Missing));
    arriving.complete(b"x".to_vec()).unwrap();
    assert_eq!(arriving.wait_for(u32::MAX, soon), Ok(()));
    let empty = Arriving::new(Sums::of(b"").id(), Verify::Crc);
    empty.complete(Vec::new()).unwrap();
    assert_eq!(empty.into_parts().unwrap().1, b"");
}
