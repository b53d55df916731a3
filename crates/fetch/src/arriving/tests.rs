use blob::completion::Arrival;

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
    assert!(matches!(arriving.receive(0, 1, |_| Ok(0)).unwrap(), Err(Fault::Misplaced(_))));
    arriving.begin(Sums::of(&bytes)).unwrap();
    arriving.begin(Sums::of(&bytes)).unwrap();
    assert!(arriving.begin(Sums::of(&bytes[1..])).is_err());
    let give = |from: usize, len: usize| {
        arriving.receive(from as u32, len, |room| Ok(copy(&bytes[from..from + len], room))).unwrap()
    };
    assert_eq!(give(0, 65_535), Ok(Took::Bytes(65_535)));
    assert_eq!((arriving.verified(), arriving.bytes(0..1)), (0, None));
    assert_eq!(give(60_000, 10_000), Ok(Took::Skip(5_535)));
    assert!(matches!(give(70_000, 1), Err(Fault::Misplaced(_))), "bytes after a gap should be refused");
    assert_eq!(give(65_535, 134_465), Ok(Took::Bytes(134_465)));
    assert!(arriving.is_whole());
    assert_eq!(arriving.bytes(5..200_000), Some(&bytes[5..]));
    let shared = Arc::clone(&arriving);
    assert_eq!(arriving.into_parts().unwrap().1, bytes);
    assert_eq!(shared.into_parts().unwrap().1, bytes);
}

#[test]
fn a_wrong_byte_frees_nothing_and_the_next_source_continues() {
    let bytes = noise(200_000);
    let mut wrong = bytes.clone();
    wrong[150_000] ^= 4;
    for verify in [Verify::Crc, Verify::Blake3] {
        let arriving = Arriving::new(Sums::of(&bytes).id(), verify);
        assert!(matches!(arriving.complete(wrong.clone().into()), Err((Fault::Wrong(_), _))));
        arriving.begin(Sums::of(&bytes)).unwrap();
        assert!(matches!(arriving.complete(wrong.clone().into()), Err((Fault::Wrong(_), _))));
        assert_eq!(arriving.verified(), 131_072);
        arriving.complete(bytes.clone().into()).unwrap();
        assert_eq!(arriving.into_parts().unwrap().1, bytes);
    }
}

#[test]
fn a_waiter_learns_of_the_end() {
    let arriving = Arriving::new(Sums::of(b"x").id(), Verify::Crc);
    let soon = base::time::monotonic() + std::time::Duration::from_millis(10);
    assert!(matches!(arriving.wait_for(1, soon), Err(Fault::Late(_))));
    arriving.fail(Fault::GivenUp);
    assert_eq!(arriving.wait_for(1, soon), Err(Fault::GivenUp));
    arriving.complete(b"x".to_vec().into()).unwrap();
    assert_eq!(arriving.wait_for(u32::MAX, soon), Ok(()));
    let empty = Arriving::new(Sums::of(b"").id(), Verify::Crc);
    empty.complete(Vec::new().into()).unwrap();
    assert!(empty.into_parts().unwrap().1.is_empty());
}

/// Sums with the same id and other contents.
fn made_up(sums: &Sums, change: impl FnOnce(&mut Vec<u8>)) -> Sums {
    let mut bytes = sums.encode();
    bytes.truncate(bytes.len() - 4);
    change(&mut bytes);
    let own = blob::sums::crc32c(&bytes);
    bytes.extend_from_slice(&own.to_le_bytes());
    Sums::decode(&bytes).unwrap()
}

#[test]
fn regression_made_up_crcs_do_not_keep_right_bytes_out() {
    let bytes = noise(200_000);
    let sums = Sums::of(&bytes);
    let lie = made_up(&sums, |encoded| *encoded.last_mut().unwrap() ^= 1);
    assert_eq!(lie.id(), sums.id());
    let arriving = Arriving::new(sums.id(), Verify::Blake3);
    arriving.begin(lie.clone()).unwrap();
    arriving.append(&bytes).unwrap();
    assert!(arriving.is_whole() && arriving.is_doubtful());
    let (kept, got) = arriving.into_parts().unwrap();
    assert!(got == bytes && *kept == sums, "what is kept has right CRCs");
    // With CRCs alone it is unknown which sender lies. The bytes from elsewhere are returned.
    let arriving = Arriving::new(sums.id(), Verify::Crc);
    arriving.begin(lie).unwrap();
    let Err((Fault::Wrong(_), back)) = arriving.complete(bytes.clone().into()) else { panic!() };
    assert!(back == bytes);
}

#[test]
fn regression_a_made_up_size_gives_the_origins_bytes_back() {
    let bytes = noise(200_000);
    let sums = Sums::of(&bytes);
    let lie = made_up(&sums, |encoded| encoded[8..12].copy_from_slice(&200_001u32.to_le_bytes()));
    assert_eq!((lie.id(), lie.size()), (sums.id(), 200_001));
    for verify in [Verify::Blake3, Verify::Crc] {
        let arriving = Arriving::new(sums.id(), verify);
        arriving.begin(lie.clone()).unwrap();
        let Err((Fault::Wrong(_), back)) = arriving.complete(bytes.clone().into()) else { panic!() };
        assert!(back == bytes && !arriving.is_whole());
    }
}

#[test]
fn a_waiter_is_completed_once_when_its_bytes_are_here_and_not_by_a_failure() {
    let bytes = noise(300_000);
    let arriving = Arriving::new(Sums::of(&bytes).id(), Verify::Blake3);
    let called = Arc::new(Mutex::new(Vec::new()));
    let give = |end: u32| {
        let called = Arc::clone(&called);
        let completion = move |arrival: Arrival<'_>| {
            called.lock().push((end, arrival.ok().map(<[u8]>::len)));
            true
        };
        arriving.notify(&Waiter::new(0..end, Box::new(completion)));
    };
    give(1);
    give(70_000);
    give(u32::MAX);
    arriving.begin(Sums::of(&bytes)).unwrap();
    arriving.append(&bytes[..65_535]).unwrap();
    assert_eq!(*called.lock(), [], "a group is compared when it is whole");
    arriving.append(&bytes[..140_000]).unwrap();
    assert_eq!(*called.lock(), [(1, Some(1)), (70_000, Some(70_000))]);
    give(5);
    assert_eq!(
        called.lock()[2..],
        [(5, Some(5))],
        "a waiter for bytes that are here should be called at once"
    );
    give(200_000);
    arriving.fail(Fault::GivenUp);
    give(299_999);
    arriving.append(&bytes).unwrap();
    give(300_000);
    assert_eq!(called.lock()[3..], [(300_000, Some(300_000))]);
    assert_eq!(arriving.served.load(Ordering::Relaxed), 4);
}
