use base::Ino;
use base::dice::Dice;
use meta::store::{Commit, Expect};
use meta::{Memory, record};

use super::super::super::rows::{ROW_COPYING, ROW_ORIGIN};
use super::*;

fn value(text: &str) -> Value {
    Value::from(text.as_bytes())
}

fn put(store: &Memory, rows: &[(Key, Value)]) {
    store.commit(Commit { puts: rows.to_vec(), ..Commit::default() }).unwrap();
}

fn fence(store: &Memory, token: &str) -> (Key, Value) {
    let row = (Key::volume(ROW_COPYING), value(token));
    put(store, std::slice::from_ref(&row));
    row
}

fn rows(store: &Memory) -> Vec<(Key, Value)> {
    store.scan(&all(), usize::MAX).unwrap()
}

/// Random rows, of which many are common to several draws.
fn random(dice: &mut Dice, many: usize) -> Vec<(Key, Value)> {
    let keys: std::collections::BTreeSet<u64> = (0..many).map(|_| dice.below(2 * many) as u64).collect();
    let row = |key: u64, dice: &mut Dice| {
        // Inodes, and rows of a kind that this program does not know.
        let tag = if key.is_multiple_of(3) { 0x1a } else { tags::INODE };
        let key = [&[tag][..], &key.to_be_bytes()].concat();
        (Key::from_bytes(&key), value(&dice.below(3).to_string()))
    };
    keys.into_iter().map(|key| row(key, dice)).collect()
}

#[test]
fn whatever_was_there_the_copy_is_the_volume() {
    let mut dice = Dice::new(7);
    for round in 0..40 {
        let (source, there) = (Memory::new(), Memory::new());
        // Also more rows than are read at a time.
        let many = if round % 10 == 9 { 2 * AT_ONCE } else { dice.below(300) };
        put(&source, &random(&mut dice, many));
        let before = dice.below(2) * many;
        put(&there, &random(&mut dice, before));
        put(&there, &[(Key::volume("secret"), value("s"))]);
        let fence = fence(&there, "me");
        let snapshot = source.snapshot().unwrap();
        let copied = Moving::of(&*snapshot).unwrap().copy(&there, fence, &mut |_| ()).unwrap();
        assert_eq!(copied.rows as usize, rows(&source).len());
        let found = rows(&there).into_iter().filter(|(key, _)| !is_of_shared(key.as_bytes()));
        assert_eq!(found.collect::<Vec<_>>(), rows(&source), "round {round}");
        assert_eq!(rows(&there).len(), rows(&source).len() + 2, "its own rows stay");
        let back = there.snapshot().unwrap();
        assert_eq!(read_back(&*back, &mut |_| ()).unwrap(), copied.read_back());
        // One row that differs is noticed, and so is one that is missing.
        let first = rows(&source)[0].0.clone();
        put(&there, &[(first.clone(), value("other"))]);
        let back = there.snapshot().unwrap();
        assert_ne!(read_back(&*back, &mut |_| ()).unwrap(), copied.read_back());
        there.commit(Commit { dels: vec![first], ..Commit::default() }).unwrap();
        let back = there.snapshot().unwrap();
        assert_ne!(read_back(&*back, &mut |_| ()).unwrap(), copied.read_back());
    }
}

#[test]
fn what_a_shared_volume_does_not_have_stays_behind() {
    let (source, there) = (Memory::new(), Memory::new());
    let blob = Sums::of(b"x").id();
    let sealed = PackRow::Sealed { blob, size: 1 }.encode();
    let moves = [
        (Key::volume("format"), value("f")),
        (Key::volume("of a later program"), value("x")),
        (Key::inode(Ino(1)), value("i")),
        (Key::orphan(Ino(9)), value("")),
        (Key::pack(PackNo(1)), sealed),
        (Key::held(&blob, "nightly"), HeldRow::Held.encode()),
        (Key::from_bytes(&[0x1b, 7]), value("quota")),
    ];
    let stays = [
        (Key::volume(ROW_ORIGIN), value("an earlier life")),
        (Key::from_bytes(&[&[tags::CONTENT][..], &[0; 32]].concat()), value("hint")),
        (Key::pack(PackNo(2)), PackRow::Open.encode()),
        (Key::hold(Ino(9), 1), value("")),
        (Key::from_bytes(&[tags::LEASE, 1]), value("lease")),
        (Key::from_bytes(&[tags::WISH, 1]), value("")),
    ];
    put(&source, &moves);
    put(&source, &stays);
    let fence = fence(&there, "me");
    let snapshot = source.snapshot().unwrap();
    let copied = Moving::of(&*snapshot).unwrap().copy(&there, fence.clone(), &mut |_| ()).unwrap();
    assert_eq!((copied.rows, copied.left_out), (moves.len() as u64, stays.len() as u64));
    let mut expected = moves.to_vec();
    expected.push(fence);
    expected.sort();
    assert_eq!(rows(&there), expected);
    assert_eq!(needed(&*snapshot).unwrap().get(&blob), Some(&Some(1)));
    // An open pack with bytes of files would be lost.
    put(&source, &[(Key::pack_live(PackNo(2)), record::encode_i64(5))]);
    let snapshot = source.snapshot().unwrap();
    assert!(matches!(Moving::of(&*snapshot), Err(StoreError::Damaged(_))));
}

/// A commit of an earlier attempt that arrives after a later one has begun changes nothing.
#[test]
fn an_attempt_that_was_overtaken_writes_nothing() {
    let (source, there) = (Memory::new(), Memory::new());
    put(&source, &[(Key::inode(Ino(1)), value("old"))]);
    let (old, snapshot) = (fence(&there, "old"), source.snapshot().unwrap());
    let new = fence(&there, "new");
    let done = Moving::of(&*snapshot).unwrap().copy(&there, old, &mut |_| ());
    assert!(matches!(done, Err(TreeError::Store(StoreError::Fenced(_)))));
    assert_eq!(rows(&there), std::slice::from_ref(&new));
    let checks = vec![(new.0.clone(), Expect::Is(new.1))];
    there.commit(Commit { checks, ..Commit::default() }).unwrap();
}

#[test]
fn condemned_packs_get_their_marks() {
    let source = Memory::new();
    let (blob, size) = (BlobId([7; 32]), 9);
    let pack = |number: u64, row: PackRow| (Key::pack(PackNo(number)), row.encode());
    put(&source, &[pack(3, PackRow::Sealed { blob, size }), pack(5, PackRow::Condemned { blob, size })]);
    let marks = marks(&*source.snapshot().unwrap(), Timestamp(1_000_000_000)).unwrap();
    let key = Key::condemned(moment_to_u64(Timestamp(1_000_000_000)), PackNo(5));
    assert_eq!(marks, [(key, value(""))]);
}
