use base::size::{BLOB_MAX, GROUP, SEGMENT};
use proptest::prelude::*;

use super::*;

/// Reproducible bytes without repetitions.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut reader = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    reader.fill(&mut out);
    out
}

const SIZES: [usize; 17] = [
    0, 1, 1023, 1024, 1025, 32767, 32768, 32769, 65535, 65536, 65537, 131_071, 131_072, 131_073, 196_609,
    4_194_303, 4_194_304,
];

#[test]
fn the_id_is_the_plain_hash_for_every_kind_of_size() {
    for size in SIZES {
        let bytes = noise(size, 1);
        let sums = Sums::of(&bytes);
        assert_eq!(sums.id().0, *blake3::hash(&bytes).as_bytes(), "{size} bytes");
        assert_eq!(sums.size() as usize, size);
        assert_eq!(sums.segments().len(), size.div_ceil(SEGMENT as usize));
        assert_eq!(Sums::root_of(sums.groups()), Some(sums.id()));
        assert_eq!(Sums::decode(&sums.encode()), Ok(sums));
    }
}

#[test]
fn crc32c_is_castagnoli() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(b""), 0);
    let bytes = noise(100_000, 2);
    let mut parts = Crc32c::new();
    for part in [&bytes[..3], &bytes[3..40_000], &[], &bytes[40_000..]] {
        parts.update(part);
    }
    assert_eq!(parts.finish(), crc32c(&bytes));
}

#[test]
fn crcs_of_segments_are_put_together() {
    for size in SIZES.into_iter().skip(1) {
        let bytes = noise(size, 9);
        let sums = Sums::of(&bytes);
        let size = size as u32;
        for start in [0, SEGMENT, 2 * SEGMENT] {
            for end in [SEGMENT, 3 * SEGMENT, size] {
                let valid = start < end && end <= size;
                let right = valid.then(|| crc32c(&bytes[start as usize..end as usize]));
                assert_eq!(sums.crc_of(start, end), right, "{start}..{end} of {size}");
            }
        }
        assert_eq!(sums.crc_of(1, size), None);
    }
    assert_eq!(crc32c_join(crc32c(b"12345"), crc32c(b"6789"), 4), crc32c(b"123456789"));
}

#[test]
fn every_group_and_segment_can_be_checked_alone_and_together() {
    for size in SIZES.into_iter().skip(1) {
        let bytes = noise(size, 3);
        let sums = Sums::of(&bytes);
        sums.check(0, &bytes).unwrap();
        sums.check_group(0, &bytes).unwrap();
        for (i, segment) in bytes.chunks(SEGMENT as usize).enumerate() {
            sums.check(i as u32 * SEGMENT, segment).unwrap();
        }
        for (i, group) in bytes.chunks(GROUP as usize).enumerate() {
            sums.check_group(i as u32 * GROUP, group).unwrap();
        }
    }
}

#[test]
fn ranges_that_are_not_whole_parts_are_refused() {
    let bytes = noise(100_000, 4);
    let sums = Sums::of(&bytes);
    let segment = SEGMENT as usize;
    for (offset, range) in [
        (1, 1..segment),
        (0, 0..segment - 1),
        (0, 0..0),
        (SEGMENT, 0..bytes.len()),
        (u32::MAX, 0..1),
        (131_072, 0..1),
    ] {
        assert!(matches!(sums.check(offset, &bytes[range]), Err(Mismatch::Range { .. })), "{offset}");
    }
    assert!(matches!(sums.check_group(SEGMENT, &bytes[segment..]), Err(Mismatch::Range { .. })));
    assert!(matches!(Sums::of(&[]).check(0, &[]), Err(Mismatch::Range { .. })));
    // The right bytes at the wrong offset.
    assert!(matches!(sums.check(SEGMENT, &bytes[..segment]), Err(Mismatch::Segment { offset: SEGMENT, .. })));
    assert!(matches!(
        sums.check_group(0, &bytes[segment..3 * segment]),
        Err(Mismatch::Group { offset: 0, .. })
    ));
}

#[test]
fn the_largest_encoding_is_what_the_docs_say() {
    assert_eq!(Sums::encoded_len(BLOB_MAX), 2576);
    assert_eq!(Sums::root_of(&[]), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_is_found(size in 1..300_000usize, place in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = noise(size, 5);
        let sums = Sums::of(&bytes);
        prop_assert_eq!(sums.id().0, *blake3::hash(&bytes).as_bytes());
        let place = place.index(size);
        bytes[place] ^= 1 << bit;
        let place = place as u32;
        let (start, end) = sums.segment_around(place);
        prop_assert_eq!(sums.check(0, &bytes), Err(Mismatch::Segment { offset: start, len: end - start }));
        let group = place - place % GROUP;
        let len = GROUP.min(size as u32 - group);
        prop_assert_eq!(sums.check_group(0, &bytes), Err(Mismatch::Group { offset: group, len }));
    }

    #[test]
    fn a_builder_fed_by_groups_agrees(size in 0..500_000usize) {
        let bytes = noise(size, 6);
        let mut builder = Builder::new(size as u32);
        let mut rest = &bytes[..];
        while builder.next_len() > 0 {
            let (group, after) = rest.split_at(builder.next_len() as usize);
            builder.push(group);
            rest = after;
        }
        prop_assert_eq!(builder.finish(), Sums::of(&bytes));
    }

    #[test]
    fn no_bytes_make_decode_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), head in any::<bool>()) {
        let mut bytes = bytes;
        if head && bytes.len() >= 12 {
            bytes[..8].copy_from_slice(b"covS\x01\0\0\0");
        }
        prop_assert!(Sums::decode(&bytes).is_err());
    }

    #[test]
    fn a_damaged_encoding_is_refused(size in 0..300_000usize, place in any::<prop::sample::Index>(), bit in 0..8u8, cut in any::<bool>()) {
        let mut bytes = Sums::of(&noise(size, 7)).encode();
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= 1 << bit;
        }
        prop_assert!(Sums::decode(&bytes).is_err());
    }
}

/// `cargo test --release -p covey-blob -- --ignored --nocapture sums_speed`
#[test]
#[ignore = "a measurement"]
fn sums_speed() {
    let bytes = noise(BLOB_MAX as usize, 8);
    let gib = |rounds: u32, len: usize, start: std::time::Instant| {
        f64::from(rounds) * len as f64 / (1u64 << 30) as f64 / start.elapsed().as_secs_f64()
    };
    // The best of many alternating rounds: other work on the machine disturbs both alike.
    let mut best = [std::time::Duration::MAX; 3];
    for _ in 0..300 {
        let mut round = |i: usize, work: &dyn Fn(&[u8])| {
            let start = base::time::monotonic();
            work(std::hint::black_box(&bytes));
            best[i] = best[i].min(start.elapsed());
        };
        round(0, &|bytes| drop(std::hint::black_box(Sums::of(bytes))));
        round(1, &|bytes| {
            std::hint::black_box(blake3::hash(bytes));
        });
        round(2, &|bytes| {
            bytes.chunks(GROUP as usize).enumerate().for_each(|(i, group)| {
                std::hint::black_box(chaining_value(i, false, group));
            });
        });
    }
    for (what, best) in
        ["Sums::of 4 MiB", "blake3::hash of it", "its groups' chaining values"].iter().zip(best)
    {
        println!("{what}: {:.2} GiB/s", 4.0 / 1024.0 / best.as_secs_f64());
    }
    for len in [64, 4096, 32768, 131_072] {
        let rounds = (1 << 30) / len as u32;
        let start = base::time::monotonic();
        for _ in 0..rounds {
            std::hint::black_box(crc32c(std::hint::black_box(&bytes[..len])));
        }
        println!(
            "crc32c of {len}: {:.2} GiB/s, {:?} each",
            gib(rounds, len, start),
            start.elapsed() / rounds
        );
    }
}

#[test]
fn the_sums_of_a_foreign_blob_name_it_and_no_other() {
    let object = base::ForeignObject([7; 20]);
    let (one, other) = (BlobId::foreign(object, 0), BlobId::foreign(object, 1));
    let sums = Sums::of(&noise(200_000, 4));
    assert!(sums.belong_to(&one) && sums.belong_to(&sums.id()));
    assert!(!sums.belong_to(&Sums::of(b"others").id()));
    let encoded = sums.encode_for(&one);
    assert_eq!(Sums::decode_for(&one, &encoded), Ok(sums.clone()));
    assert_eq!(Sums::decode_for(&other, &encoded), Err(BadSums("they are another blob's")));
    for at in 0..encoded.len() {
        let mut wrong = encoded.clone();
        wrong[at] ^= 1;
        assert!(Sums::decode_for(&one, &wrong).is_err(), "byte {at}");
        assert!(Sums::decode_for(&one, &encoded[..at]).is_err(), "{at} bytes");
    }
    assert!(Sums::decode_for(&one, &sums.encode()).is_err());
    assert_eq!(sums.encode_for(&sums.id()), sums.encode());
    assert!(Sums::decode_for(&Sums::of(b"others").id(), &sums.encode()).is_err());
}

/// A peer that said of a small blob that it is empty made it whole without a byte: its one chaining value is
/// its id. The empty copy was kept, and passed on.
#[test]
fn regression_a_blob_with_bytes_is_not_said_to_be_empty() {
    let sums = Sums::of(&[7; 10_000]);
    let forged = Sums { size: 0, segments: Vec::new(), ..sums.clone() };
    assert!(forged.belong_to(&sums.id));
    assert!(Sums::decode(&forged.encode()).is_err());
    let empty = Sums::of(b"");
    assert_eq!(Sums::decode(&empty.encode()).map(|sums| sums.id), Ok(empty.id));
}
