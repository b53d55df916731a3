use base::PackNo;
use proptest::prelude::*;

use super::*;

/// What a byte of the page reads as: zero, or a byte of a pack.
type Byte = Option<(u64, u32)>;

/// Positions in the model are in units of this many bytes, so that it stays small while whole pages are
/// covered.
const UNIT: u32 = 64 << 10;
const UNITS: usize = (ExtentPage::SPAN / UNIT) as usize;

#[derive(Clone, Debug)]
enum Change {
    Insert { at: u32, len: u32, pack: u64, offset: u32 },
    Punch { at: u32, len: u32 },
    Truncate { len: u32 },
}

fn range() -> impl Strategy<Value = (u32, u32)> {
    (0..UNITS as u32).prop_flat_map(|at| (Just(at), 1..=(UNITS as u32 - at).min(20)))
}

fn change() -> impl Strategy<Value = Change> {
    // Few packs and offsets, so that neighbours often continue one another.
    let insert = (range(), 0..3u64, 0..2u32).prop_map(|((at, len), pack, shift)| {
        let offset = (at + shift).min(UNITS as u32 - len);
        Change::Insert { at, len, pack, offset }
    });
    let punch = (0..=UNITS as u32, 0..80u32).prop_map(|(at, len)| Change::Punch { at, len });
    let truncate = (0..=UNITS as u32).prop_map(|len| Change::Truncate { len });
    prop_oneof![8 => insert, 3 => punch, 1 => truncate]
}

fn paint(model: &mut [Byte], extent: &Extent) {
    for i in 0..extent.len / UNIT {
        model[(extent.at / UNIT + i) as usize] = Some((extent.pack.0, extent.offset / UNIT + i));
    }
}

fn seen(page: &ExtentPage, at: u32, len: u32) -> Vec<Byte> {
    let mut seen = Vec::new();
    let mut next = at * UNIT;
    for part in page.parts(at * UNIT, len * UNIT) {
        let (start, length) = match part {
            Part::Hole { at, len } => {
                seen.extend((0..len / UNIT).map(|_| None));
                (at, len)
            }
            Part::Data(e) => {
                seen.extend((0..e.len / UNIT).map(|i| Some((e.pack.0, e.offset / UNIT + i))));
                (e.at, e.len)
            }
        };
        assert_eq!(start, next, "parts leave no gap");
        assert!(length > 0, "no part is empty");
        next += length;
    }
    seen
}

fn check_invariants(page: &ExtentPage) {
    for extent in page.extents() {
        assert!(extent.is_sound(), "{extent:?}");
    }
    for pair in page.extents().windows(2) {
        assert!(pair[0].end() <= pair[1].at, "{pair:?} overlap");
        assert!(!pair[0].continues_in(&pair[1]), "{pair:?} should be one");
    }
}

proptest! {
    #[test]
    fn a_page_behaves_like_an_array_of_bytes(changes in prop::collection::vec(change(), 1..60), look in range()) {
        let mut page = ExtentPage::new();
        let mut model: Vec<Byte> = vec![None; UNITS];
        for change in changes {
            let before = model.clone();
            let (removed, from, to) = match change {
                Change::Insert { at, len, pack, offset } => {
                    let new = Extent { at: at * UNIT, len: len * UNIT, pack: PackNo(pack), offset: offset * UNIT };
                    paint(&mut model, &new);
                    (page.insert(new), at, at + len)
                }
                Change::Punch { at, len } => {
                    let end = (at + len).min(UNITS as u32);
                    model[at as usize..end as usize].fill(None);
                    (page.punch(at * UNIT, len * UNIT), at, end)
                }
                Change::Truncate { len } => {
                    model[len as usize..].fill(None);
                    (page.truncate(len * UNIT), len, UNITS as u32)
                }
            };
            check_invariants(&page);
            prop_assert_eq!(&seen(&page, 0, UNITS as u32), &model);
            // What was removed is exactly what the range showed before.
            let mut gone: Vec<Byte> = vec![None; UNITS];
            removed.iter().for_each(|extent| paint(&mut gone, extent));
            prop_assert_eq!(&gone[from as usize..to as usize], &before[from as usize..to as usize]);
            prop_assert!(gone[..from as usize].iter().chain(&gone[to as usize..]).all(Option::is_none));
            prop_assert_eq!(ExtentPage::decode(&page.encode()), Ok(page.clone()));
        }
        prop_assert_eq!(page.covered_bytes() / UNIT, model.iter().flatten().count() as u32);
        prop_assert_eq!(page.is_empty(), model.iter().all(Option::is_none));
        let (at, len) = look;
        prop_assert_eq!(seen(&page, at, len), &model[at as usize..(at + len) as usize]);
        let find = |data: bool| (at as usize..UNITS).find(|i| model[*i].is_some() == data).map(|i| i as u32 * UNIT);
        prop_assert_eq!(page.next_data(at * UNIT), find(true));
        prop_assert_eq!(page.next_hole(at * UNIT), find(false));
    }

    #[test]
    fn no_bytes_make_decode_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), version in any::<bool>()) {
        if version && !bytes.is_empty() {
            bytes[0] = 1;
        }
        if let Ok(page) = ExtentPage::decode(&bytes) {
            check_invariants(&page);
            prop_assert_eq!(page.encode(), bytes, "there is one encoding of a page");
        }
    }

    #[test]
    fn a_damaged_encoding_is_refused_or_sound(packs in prop::collection::vec(any::<u64>(), 1..20), flip in any::<(u16, u8)>(), cut in any::<bool>()) {
        let mut page = ExtentPage::new();
        for (i, pack) in packs.iter().enumerate() {
            page.insert(Extent { at: i as u32 * 5000, len: 4096, pack: PackNo(*pack), offset: i as u32 });
        }
        let mut bytes = page.encode();
        let place = flip.0 as usize % bytes.len();
        if cut {
            bytes.truncate(place);
            prop_assert!(ExtentPage::decode(&bytes).is_err());
        } else {
            bytes[place] ^= flip.1;
            if let Ok(page) = ExtentPage::decode(&bytes) {
                check_invariants(&page);
                prop_assert_eq!(page.encode(), bytes);
            }
        }
    }
}

#[test]
fn the_encoding_is_the_documented_one() {
    let mut page = ExtentPage::new();
    assert_eq!(page.encode(), [1, 0]);
    page.insert(Extent { at: 5, len: 300, pack: PackNo(7), offset: 1 });
    page.insert(Extent { at: 305, len: 1, pack: PackNo(6), offset: 0 });
    assert_eq!(page.encode(), [1, 2, 5, 0xac, 2, 14, 1, 0, 1, 1, 0]);
    let far = u64::MAX;
    page.insert(Extent { at: 0, len: 1, pack: PackNo(far), offset: 0 });
    assert_eq!(ExtentPage::decode(&page.encode()), Ok(page));
}

#[test]
fn a_range_past_the_page_is_cut() {
    let mut page = ExtentPage::new();
    let last = Extent { at: ExtentPage::SPAN - 10, len: 10, pack: PackNo(1), offset: 0 };
    assert_eq!(page.insert(last), []);
    assert_eq!(
        page.parts(ExtentPage::SPAN - 4, u32::MAX).collect::<Vec<_>>(),
        [Part::Data(last.cut(ExtentPage::SPAN - 4, ExtentPage::SPAN))]
    );
    assert_eq!(page.parts(ExtentPage::SPAN, 1).next(), None);
    assert_eq!(page.parts(u32::MAX, u32::MAX).next(), None);
    assert_eq!(page.next_hole(ExtentPage::SPAN - 1), None);
    assert_eq!(page.next_data(ExtentPage::SPAN), None);
    assert_eq!(page.punch(u32::MAX, 7), []);
    assert_eq!(page.truncate(u32::MAX), []);
    assert_eq!(page.punch(0, u32::MAX), [last]);
    assert!(page.is_empty());
}

#[test]
#[should_panic = "an extent lies within its page and its pack"]
fn an_extent_past_its_pack_is_a_bug() {
    ExtentPage::new().insert(Extent { at: 0, len: 2, pack: PackNo(1), offset: ExtentPage::SPAN - 1 });
}

/// `cargo test --release -p covey-blob -- --ignored --nocapture page_speed`
#[test]
#[ignore = "a measurement"]
fn page_speed() {
    let mut page = ExtentPage::new();
    for i in 0..64u32 {
        page.insert(Extent {
            at: i * 65536,
            len: 4096,
            pack: PackNo(1000 + u64::from(i % 7)),
            offset: i * 8192,
        });
    }
    let rounds = 1_000_000u32;
    let mut bytes = Vec::new();
    let start = base::time::monotonic();
    for i in 0..rounds {
        let extent = Extent {
            at: (i % 64) * 65536,
            len: 4096,
            pack: PackNo(u64::from(2000 + i % 5)),
            offset: (i % 500) * 4096,
        };
        std::hint::black_box(page.insert(extent));
        bytes.clear();
        page.encode_into(&mut bytes);
        std::hint::black_box(&bytes);
    }
    let each = start.elapsed() / rounds;
    println!(
        "insert + encode of a page of {} extents ({} bytes): {each:?}",
        page.extents().len(),
        bytes.len()
    );
    let start = base::time::monotonic();
    for _ in 0..rounds {
        std::hint::black_box(ExtentPage::decode(std::hint::black_box(&bytes)).unwrap());
    }
    println!("decode: {:?}", start.elapsed() / rounds);
}
