//! Blobs of a shared volume: what keeps them, and what is refused while they are deleted.

use base::{BlobId, Ino, PackNo};

use crate::key::{Key, tags};
use crate::plan::op::Unkept;
use crate::plan::{Op, Refusal};
use crate::record::{DoomedRow, HeldRow, PackRow};
use crate::store::{Commit, CommitError, MetaStore, Value};

use super::world::{World, file};

const ME: DoomedRow = DoomedRow { node: 3, epoch: 7 };

fn rows(world: &World, tag: u8) -> Vec<Key> {
    world.store.scan(&Key::kind(tag), 100).unwrap().into_iter().map(|(key, _)| key).collect()
}

fn put(world: &World, key: Key, value: Value) {
    world.store.commit(Commit { puts: vec![(key, value)], ..Commit::default() }).unwrap();
}

fn doom(world: &World, blob: BlobId, reason: Unkept<'_>) -> Result<bool, Refusal> {
    world.run(&Op::Doom { blob, reason, by: ME }).map(|change| change.doomed)
}

/// A sealed pack that only this file refers to.
fn sealed(world: &mut World, ino: u64, fill: u8) -> (PackNo, BlobId) {
    let pack = world.open;
    world.create(1, &format!("f{ino}"), file(ino, 0o644)).unwrap();
    world.write_packed(ino, 0, &[fill; 5000]).unwrap();
    world.seal();
    let Some(PackRow::Sealed { blob, .. }) = world.pack_row(pack) else { panic!("it is not sealed") };
    (pack, blob)
}

/// The moment since when the pack is condemned.
fn condemned(world: &World, pack: PackNo) -> u64 {
    world.run(&Op::CondemnShared { pack }).unwrap();
    let marks = rows(world, tags::CONDEMNED);
    marks.iter().filter_map(Key::as_condemned).find(|(_, other)| *other == pack).unwrap().0
}

fn cut(world: &World, ino: u64) {
    world.run(&Op::Unlink { parent: Ino(1), name: format!("f{ino}").as_bytes() }).unwrap();
    world.run(&Op::Reap { ino: Ino(ino) }).unwrap();
}

#[test]
fn the_last_pack_of_a_blob_dooms_it_and_then_no_row_names_it() {
    let mut world = World::new();
    let (one, blob) = sealed(&mut world, 2, 9);
    let (two, same) = sealed(&mut world, 3, 9);
    assert_eq!(blob, same);
    assert_eq!(world.run(&Op::CondemnShared { pack: one }).unwrap_err(), Refusal::Busy);
    cut(&world, 2);
    cut(&world, 3);
    let moments = [one, two].map(|pack| condemned(&world, pack));
    world.assert_sound();
    assert_eq!(
        doom(&world, blob, Unkept::Pack(moments[0], one)),
        Ok(false),
        "the other pack is the blob too"
    );
    assert_eq!((world.pack_row(one), rows(&world, tags::DOOMED)), (None, vec![]));
    assert_eq!(doom(&world, blob, Unkept::Pack(moments[1], two)), Ok(true));
    assert_eq!(rows(&world, tags::DOOMED), [Key::doomed(&blob)]);
    assert_eq!((rows(&world, tags::BLOB_PACK), rows(&world, tags::CONDEMNED)), (vec![], vec![]));
    assert_eq!(doom(&world, blob, Unkept::Pack(moments[1], two)), Ok(false), "it is forgotten already");
    assert_eq!(doom(&world, blob, Unkept::Stray), Ok(false), "it is being deleted already");
    let seal = Op::SealPack { pack: world.open, blob, size: 5000 };
    assert_eq!(world.run(&seal).unwrap_err(), Refusal::Busy);
    world.store.commit(Commit { dels: vec![Key::doomed(&blob)], ..Commit::default() }).unwrap();
    world.run(&seal).unwrap();
    assert_eq!(doom(&world, blob, Unkept::Stray), Ok(false), "a row names it");
    world.assert_sound();
}

#[test]
fn a_published_tree_keeps_a_blob_until_its_hold_goes() {
    let mut world = World::new();
    let (pack, blob) = sealed(&mut world, 2, 9);
    cut(&world, 2);
    let moment = condemned(&world, pack);
    let (held, released) = (HeldRow::Held.encode(), HeldRow::Released.encode());
    put(&world, Key::held(&blob, "a"), held.clone());
    put(&world, Key::held(&blob, "b"), released.clone());
    assert_eq!(doom(&world, blob, Unkept::Pack(moment, pack)), Ok(false));
    assert_eq!(world.pack_row(pack), None);
    assert_eq!(doom(&world, blob, Unkept::Hold("b", &released)), Ok(false));
    assert_eq!(rows(&world, tags::HELD), [Key::held(&blob, "a")]);
    assert_eq!(doom(&world, blob, Unkept::Hold("a", &released)), Ok(false), "it is held again");
    assert_eq!(rows(&world, tags::HELD).len(), 1);
    assert_eq!(doom(&world, blob, Unkept::Hold("a", &held)), Ok(true));
    assert_eq!((rows(&world, tags::HELD), rows(&world, tags::DOOMED)), (vec![], vec![Key::doomed(&blob)]));
}

#[test]
fn nothing_is_doomed_while_a_node_publishes() {
    let mut world = World::new();
    let (pack, blob) = sealed(&mut world, 2, 9);
    cut(&world, 2);
    let moment = condemned(&world, pack);
    put(&world, Key::publishing(), [1; 20].as_slice().into());
    for reason in [Unkept::Pack(moment, pack), Unkept::Stray] {
        assert_eq!(doom(&world, blob, reason), Err(Refusal::Busy));
    }
    world.store.commit(Commit { dels: vec![Key::publishing()], ..Commit::default() }).unwrap();
    assert_eq!(doom(&world, blob, Unkept::Pack(moment, pack)), Ok(true));
}

/// A write whose outcome was unknown to its node may arrive after the pack was sealed and condemned.
#[test]
fn a_condemned_pack_that_is_referred_to_after_all_is_usable_again() {
    let mut world = World::new();
    let (pack, blob) = sealed(&mut world, 2, 9);
    world.create(1, "late", file(3, 0o644)).unwrap();
    cut(&world, 2);
    let moment = condemned(&world, pack);
    let piece = crate::plan::op::Piece { at: 0, len: 5000, pack, offset: 0, fresh: Some(0) };
    world.write_body(3, &crate::plan::op::Body::Packed(&[piece])).unwrap();
    assert_eq!(doom(&world, blob, Unkept::Pack(moment, pack)), Ok(false));
    assert_eq!(world.pack_row(pack), Some(PackRow::Sealed { blob, size: 5000 }));
    assert_eq!((rows(&world, tags::CONDEMNED), rows(&world, tags::DOOMED)), (vec![], vec![]));
    world.assert_sound();
}

/// Rows are planned with what is seen, and something happens before the commit.
fn with_between(world: &World, op: &Op<'_>, between: impl FnOnce()) -> Result<bool, Refusal> {
    let mut view = crate::plan::View::new();
    let mut between = Some(between);
    loop {
        match crate::plan::plan(op, &world.ctx(), &view) {
            crate::plan::Plan::Need { keys, ranges } => {
                for key in keys {
                    let value = world.store.get(&key).unwrap();
                    view.show(key, value);
                }
                for (range, limit) in ranges {
                    let rows = world.store.scan(&range, limit).unwrap();
                    view.show_range(range, limit, rows);
                }
            }
            crate::plan::Plan::Refused(refusal) => return Err(refusal),
            crate::plan::Plan::Change(change) => {
                between.take().into_iter().for_each(|between| between());
                match world.store.commit(change.commit) {
                    Ok(()) => return Ok(change.doomed),
                    Err(CommitError::Conflict { rows, .. }) => {
                        view.forget_ranges();
                        rows.into_iter().for_each(|(key, value)| view.show(key, value));
                    }
                    Err(CommitError::Store(error)) => panic!("{error}"),
                }
            }
        }
    }
}

/// Whatever is committed first, a blob is never named and deleted at the same time.
#[test]
fn what_would_name_a_blob_and_what_dooms_it_exclude_each_other() {
    let make = || {
        let mut world = World::new();
        let (pack, blob) = sealed(&mut world, 2, 9);
        cut(&world, 2);
        let moment = condemned(&world, pack);
        (world, pack, blob, moment)
    };
    let seal = |world: &World, blob| Op::SealPack { pack: world.open, blob, size: 5000 };
    let is_either = |world: &World, blob: BlobId| {
        let named = rows(world, tags::BLOB_PACK).len() + rows(world, tags::HELD).len();
        (named > 0) != world.store.get(&Key::doomed(&blob)).unwrap().is_some()
    };
    let (world, pack, blob, moment) = make();
    let dooms = Op::Doom { blob, reason: Unkept::Pack(moment, pack), by: ME };
    let sealing = || drop(world.run(&seal(&world, blob)).unwrap());
    assert_eq!(with_between(&world, &dooms, sealing), Ok(false));
    assert!(is_either(&world, blob));
    let (world, pack, blob, moment) = make();
    let dooms = || assert_eq!(doom(&world, blob, Unkept::Pack(moment, pack)), Ok(true));
    assert_eq!(with_between(&world, &seal(&world, blob), dooms), Err(Refusal::Busy));
    assert!(is_either(&world, blob));
    let (world, pack, blob, moment) = make();
    let dooms = Op::Doom { blob, reason: Unkept::Pack(moment, pack), by: ME };
    let holding = || put(&world, Key::held(&blob, "a"), HeldRow::Pending.encode());
    assert_eq!(with_between(&world, &dooms, holding), Ok(false));
    assert!(is_either(&world, blob));
    let (world, pack, blob, moment) = make();
    let dooms = Op::Doom { blob, reason: Unkept::Pack(moment, pack), by: ME };
    let publishing = || put(&world, Key::publishing(), [1; 20].as_slice().into());
    assert_eq!(with_between(&world, &dooms, publishing), Err(Refusal::Busy));
    assert!(is_either(&world, blob));
}
