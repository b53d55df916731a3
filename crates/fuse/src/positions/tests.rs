//! A folder in memory whose names have positions that a test chooses, so that many are in one cell.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::Timestamp;
use fs::Errno;
use fs::api::Attr;
use proptest::prelude::*;

use super::*;

struct Names {
    style: Positions,
    /// Names in order, by their positions.
    all: RefCell<BTreeSet<(u64, Vec<u8>)>>,
    /// References that the kernel would have.
    held: Cell<i64>,
    /// The filesystem ends a reply after so many entries, as one that would have to wait.
    most: usize,
}

impl Names {
    fn new(style: Positions) -> Names {
        Names { style, all: RefCell::default(), held: Cell::new(0), most: usize::MAX }
    }

    fn add(&self, position: u64, name: impl Into<Vec<u8>>) {
        self.all.borrow_mut().insert((position, name.into()));
    }
}

fn entry() -> Entry {
    let time = Timestamp::from_parts(0, 0);
    Entry::of(Attr {
        ino: Ino(9),
        kind: FileKind::File,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: 0,
    })
}

impl Directory for Names {
    fn positions(&self) -> Positions {
        self.style
    }

    fn entries(&self, start: u64, each: &mut Each<'_>) -> api::Result<()> {
        let all: Vec<(u64, Vec<u8>)> = self.all.borrow().iter().cloned().collect();
        for (at, (position, name)) in all.iter().enumerate().filter(|(_, (position, _))| *position >= start) {
            let follows = all.get(at + 1).map(|(next, _)| *next);
            let next = match self.style {
                Positions::OfNext => follows.unwrap_or((1 << 63) - 1),
                _ if follows == Some(*position) => *position,
                _ => position + 1,
            };
            if each(DirEntry { name, ino: Ino(9), kind: FileKind::File, next }, None).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn entries_for_reply(&self, start: u64, each: &mut Each<'_>) -> api::Result<()> {
        let (mut left, mut waits) = (self.most, false);
        self.entries(start, &mut |line, _| {
            if left == 0 {
                waits = true;
                return ControlFlow::Break(());
            }
            left -= 1;
            let flow = each(line, Some(&entry()));
            self.held.set(self.held.get() + i64::from(flow.is_continue()));
            flow
        })?;
        if waits && self.most == 0 { Err(Errno::EIO) } else { Ok(()) }
    }

    fn give_back(&self, _: Ino) {
        self.held.set(self.held.get() - 1);
    }
}

/// Lists everything, with `room(n)` names in the n-th reply, of which a program takes some and continues at a
/// position, as seekdir(3) and NFS do. `between` runs after each reply. Returns how often each name came.
fn list_all(
    names: &Names,
    mut room: impl FnMut() -> usize,
    mut between: impl FnMut(&[Vec<u8>]),
    mut at: impl FnMut(u64),
) -> HashMap<Vec<u8>, u32> {
    let (mut position, mut seen, mut taken) = (0, HashMap::new(), 0);
    loop {
        let (mut left, mut got) = (room().max(1), Vec::new());
        mapped(names, position, &mut |line, found| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            assert!(found.is_some());
            left -= 1;
            position = line.next;
            got.push(line.name.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        taken += got.len() as i64;
        assert_eq!(names.held.get(), taken, "what the kernel does not learn is given back");
        if got.is_empty() {
            return seen;
        }
        at(position);
        got.iter().for_each(|name| *seen.entry(name.clone()).or_default() += 1);
        between(&got);
    }
}

/// A program of 32 bits got EOVERFLOW from readdir(3): positions had 63 bits.
#[test]
fn regression_positions_have_31_bits() {
    for style in [Positions::Hashes, Positions::OfNext] {
        let names = Names::new(style);
        names.add(0, ".");
        names.add(if style == Positions::Hashes { 1 } else { 1 << 32 }, "..");
        for n in 0..2_000_u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
            names.add(hash.max(3), n.to_string());
        }
        // The last of all, and several at its side.
        for n in 0..3 {
            names.add((1 << 63) - 2 - n, format!("last {n}"));
        }
        for room in [1, 7, 1000] {
            names.held.set(0);
            let seen = list_all(&names, || room, |_| (), |at| assert!(at < 1 << 31, "{at:#x}"));
            assert_eq!(seen.len(), 2_005);
            assert!(seen.values().all(|times| *times == 1));
        }
    }
}

/// Positions that an earlier daemon gave lead to the same place, and so do small ones.
#[test]
fn positions_of_63_bits_are_understood() {
    let names = Names::new(Positions::Hashes);
    for n in 0..10_u64 {
        names.add((7 << BELOW) + n, n.to_string());
        names.add((9 << BELOW) + n, format!("other {n}"));
    }
    let mut rest = Vec::new();
    let mut position = (7 << BELOW) + 4;
    while rest.len() < 16 {
        let mut one = None;
        mapped(&names, position, &mut |line, _| match one {
            None => {
                one = Some((line.name.to_vec(), line.next));
                ControlFlow::Continue(())
            }
            Some(_) => ControlFlow::Break(()),
        })
        .unwrap();
        let (name, next) = one.unwrap();
        rest.push(name);
        position = next;
    }
    assert!(rest[..6].iter().zip(4..).all(|(name, n)| *name == n.to_string().into_bytes()));
    assert_eq!(rest.iter().collect::<BTreeSet<_>>().len(), 16);
}

/// A cell with very many names: all come once. Their positions may be large.
#[test]
fn a_crowded_cell_loses_nothing() {
    for style in [Positions::Hashes, Positions::OfNext] {
        let names = Names::new(style);
        names.add(0, ".");
        for n in 0..999_u64 {
            names.add((5 << BELOW) + 3 * n, n.to_string());
        }
        let seen = list_all(&names, || 13, |_| (), |_| ());
        assert!(seen.len() == 1000 && seen.values().all(|times| *times == 1));
    }
}

/// A filesystem that would have to wait ends a reply early. The rest of the cell comes with the next one.
#[test]
fn a_reply_that_ends_early_ends_no_listing() {
    for most in [1, 2, 3, 5] {
        let names = Names { most, ..Names::new(Positions::Hashes) };
        for n in 0..100_u64 {
            names.add(((n / 3) << BELOW | 1 << 31) + n, n.to_string());
        }
        let seen = list_all(&names, || 10, |_| (), |_| ());
        assert!(seen.len() == 100 && seen.values().all(|times| *times == 1), "{most}: {}", seen.len());
    }
    let names = Names { most: 0, ..Names::new(Positions::Hashes) };
    names.add(5 << BELOW, "x");
    assert_eq!(mapped(&names, 0, &mut |_, _| ControlFlow::Continue(())), Err(Errno::EIO));
}

/// Practically every cell of a folder with a million names has its cuts.
#[test]
fn cells_have_cuts() {
    for (members, most) in [(2, 0), (3, 5), (4, 60)] {
        let missing = (0..2000).filter(|cell| {
            let words: Vec<u64> = (0..members).map(|n| word(format!("{cell}-{n}").as_bytes())).collect();
            let cuts = order(&[], &words, false).unwrap();
            cuts.iter().any(|(_, cut)| cut.is_some_and(|cut| cut >= WIDE))
        });
        let missing = missing.count();
        assert!(missing <= most, "{members} names: {missing} of 2000 cells");
    }
}

/// Positions of this run are used by the next one, so the hash stays.
#[test]
fn the_second_hash_never_changes() {
    let words = [word(b""), word(b"a"), word(b"name")];
    assert_eq!(words, [0xefd0_1f60_ba99_2926, 0x82a2_a958_a9be_ce5b, 0x4372_8e81_94f4_a6c7]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Names that are there throughout come exactly once, whatever comes and goes meanwhile, also in their
    /// own cell, and wherever a reply ends.
    #[test]
    fn a_listing_is_stable_also_within_a_cell(
        stay in proptest::collection::vec((0_u64..8, 0_u64..64), 1..30),
        go in proptest::collection::vec((0_u64..8, 0_u64..64), 0..30),
        come in proptest::collection::vec((0_u64..8, 0_u64..64), 0..30),
        rooms in proptest::collection::vec(1_usize..5, 1..9),
        of_next in any::<bool>(),
    ) {
        let names = Names::new(if of_next { Positions::OfNext } else { Positions::Hashes });
        let position = |(cell, low): (u64, u64), n: usize| {
            // At most some names in a cell, as it is with hashes.
            ((cell * 5 + n as u64 % 5) << BELOW | 1 << 32) + low * 64 + n as u64
        };
        let stays: BTreeMap<Vec<u8>, u64> =
            stay.iter().enumerate().map(|(n, at)| (format!("stay {n}").into_bytes(), position(*at, n))).collect();
        let went: Vec<(u64, Vec<u8>)> =
            go.iter().enumerate().map(|(n, at)| (position(*at, n), format!("go {n}").into_bytes())).collect();
        names.add(0, ".");
        stays.iter().for_each(|(name, at)| names.add(*at, name.clone()));
        went.iter().for_each(|(at, name)| names.add(*at, name.clone()));
        let (mut reply, mut change) = (0, 0);
        let seen = list_all(
            &names,
            || {
                reply += 1;
                rooms[reply % rooms.len()]
            },
            |got| {
                // What was listed is often removed at once.
                let mut all = names.all.borrow_mut();
                all.retain(|(_, name)| !(name.starts_with(b"go") && got.contains(name)));
                if let Some((at, name)) = went.get(change) {
                    all.remove(&(*at, name.clone()));
                }
                if let Some(at) = come.get(change) {
                    all.insert((position(*at, change), format!("come {change}").into_bytes()));
                }
                change += 1;
            },
            |_| (),
        );
        for name in stays.keys() {
            prop_assert_eq!(seen.get(name).copied(), Some(1), "{}", String::from_utf8_lossy(name));
        }
    }
}
