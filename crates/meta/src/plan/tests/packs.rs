//! The life of packs, and contents that are stored once and found again.

use base::{BlobId, Ino, PackNo};

use crate::plan::op::{Body, Move, Piece};
use crate::plan::{Op, Refusal};
use crate::record::{ContentRow, PackRow};

use super::world::{World, file};

fn condemn(world: &World, pack: PackNo) -> Result<(), Refusal> {
    world.run(&Op::CondemnPack { pack }).map(|_| ())
}

fn forget(world: &World, pack: PackNo) -> Result<(), Refusal> {
    world.run(&Op::ForgetPack { pack }).map(|_| ())
}

#[test]
fn a_pack_is_condemned_only_when_nothing_refers_to_it() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    let pack = world.open;
    world.write_packed(2, 0, &[3; 5000]).unwrap();
    assert_eq!(condemn(&world, pack), Err(Refusal::Invalid), "it is open");
    assert_eq!(forget(&world, pack), Err(Refusal::Busy));
    world.seal();
    let blob = BlobId(*blake3::hash(&world.packs[&pack]).as_bytes());
    let sealed = Some(PackRow::Sealed { blob, size: 5000 });
    assert_eq!(world.pack_row(pack), sealed);
    assert_eq!(world.names.blob_packs(&blob).unwrap(), [pack]);
    assert_eq!(condemn(&world, pack), Err(Refusal::Busy));
    world.run(&Op::Unlink { parent: Ino(1), name: b"f" }).unwrap();
    assert_eq!(condemn(&world, pack), Err(Refusal::Busy), "an inode without a name refers to it");
    world.run(&Op::Reap { ino: Ino(2) }).unwrap();
    assert_eq!(forget(&world, pack), Err(Refusal::Busy), "a sealed pack is condemned first");
    condemn(&world, pack).unwrap();
    condemn(&world, pack).unwrap();
    assert_eq!(world.pack_row(pack), Some(PackRow::Condemned { blob, size: 5000 }));
    world.assert_sound();
    forget(&world, pack).unwrap();
    forget(&world, pack).unwrap();
    assert_eq!((world.pack_row(pack), world.names.blob_packs(&blob).unwrap()), (None, vec![]));
    assert_eq!(condemn(&world, pack), Err(Refusal::NotFound));
    world.assert_sound();
}

#[test]
fn sealing_twice_is_one_sealing_and_another_blob_is_refused() {
    let mut world = World::new();
    let pack = world.open;
    world.seal();
    let Some(PackRow::Sealed { blob, size }) = world.pack_row(pack) else { panic!() };
    world.run(&Op::SealPack { pack, blob, size }).unwrap();
    assert_eq!(world.run(&Op::SealPack { pack, blob, size: size + 1 }).unwrap_err(), Refusal::Invalid);
    let none = PackNo(999);
    assert_eq!(world.run(&Op::SealPack { pack: none, blob, size }).unwrap_err(), Refusal::NotFound);
    assert_eq!(world.run(&Op::OpenPack { pack }).unwrap_err(), Refusal::Exists);
    let open = world.open;
    let large = Op::SealPack { pack: open, blob, size: (4 << 20) + 1 };
    assert_eq!(world.run(&large).unwrap_err(), Refusal::Invalid);
    forget(&world, open).unwrap();
    assert_eq!(world.pack_row(open), None, "an open pack that nothing refers to can go");
}

#[test]
fn interned_content_is_found_until_its_pack_is_condemned() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    world.create(1, "g", file(3, 0o644)).unwrap();
    let data = [8u8; 3000];
    let hash = BlobId(*blake3::hash(&data).as_bytes());
    let [piece] = world.pack(0, &data)[..] else { panic!() };
    let write = |world: &World, ino, piece: Piece, intern| {
        let body = Body::Packed(&[piece]);
        world.run(&Op::Write { ino: Ino(ino), body, unprivileged: None, cached: false, intern, over: None })
    };
    write(&world, 2, piece, Some(hash)).unwrap();
    let row = ContentRow { pack: piece.pack, offset: piece.offset, len: 3000 };
    assert_eq!(world.names.content(&hash).unwrap(), Some(row));
    world.seal();
    let again = Piece { fresh: None, ..piece };
    let change = write(&world, 3, again, None).unwrap();
    assert_eq!(world.read(3), data);
    assert_eq!(world.names.pack_live(piece.pack).unwrap(), 6000);
    assert!(change.released.is_empty());
    for name in ["f", "g"] {
        world.run(&Op::Unlink { parent: Ino(1), name: name.as_bytes() }).unwrap();
    }
    world.run(&Op::Reap { ino: Ino(2) }).unwrap();
    world.run(&Op::Reap { ino: Ino(3) }).unwrap();
    condemn(&world, piece.pack).unwrap();
    world.create(1, "h", file(4, 0o644)).unwrap();
    assert_eq!(write(&world, 4, again, None).unwrap_err(), Refusal::ContentGone);
    forget(&world, piece.pack).unwrap();
    assert_eq!(write(&world, 4, again, None).unwrap_err(), Refusal::ContentGone);
    world.assert_sound();
    let (_, findings) = world.audit();
    assert_eq!(findings.len(), 1, "the content's row remains, harmless: {findings:?}");
}

#[test]
fn extents_follow_what_was_moved_and_the_rest_stays() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    let data: Vec<u8> = (0..=255).cycle().take(9000).collect();
    let pack = world.open;
    world.write_packed(2, 100, &data).unwrap();
    world.seal();
    let change = world.attr(2).change;
    let moved: Vec<u8> = [&data[1000..3000], &data[5000..6000]].concat();
    let to = world.pack(0, &moved)[0];
    let step = |from_offset, len, shift| Move {
        from: pack,
        from_offset,
        len,
        to: to.pack,
        to_offset: to.offset + shift,
        crc: Some(9),
    };
    let moves = [step(1000, 2000, 0), step(5000, 1000, 2000)];
    let done = world.run(&Op::Follow { ino: Ino(2), page: 0, moves: &moves }).unwrap();
    assert_eq!((done.done, done.released), (3000, vec![pack]));
    assert_eq!(world.names.pack_live(pack).unwrap(), 6000);
    assert_eq!(world.names.pack_live(to.pack).unwrap(), 3000);
    assert_eq!(world.read(2)[100..], data);
    assert_eq!(world.attr(2).change, change, "the file is as it was");
    assert_eq!(world.names.extents(Ino(2), 0).unwrap().extents().len(), 5);
    // No extent is left that could follow.
    let again = world.run(&Op::Follow { ino: Ino(2), page: 0, moves: &moves }).unwrap();
    assert_eq!(again.done, 0);
    world.run(&Op::Follow { ino: Ino(77), page: 3, moves: &moves }).unwrap();
    world.assert_sound();
}

#[test]
fn extents_do_not_follow_into_a_pack_that_is_gone() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    let pack = world.open;
    world.write_packed(2, 0, &[1; 1000]).unwrap();
    let step = Move { from: pack, from_offset: 0, len: 1000, to: PackNo(55), to_offset: 0, crc: Some(0) };
    let follow = Op::Follow { ino: Ino(2), page: 0, moves: &[step] };
    assert_eq!(world.run(&follow).unwrap_err(), Refusal::ContentGone);
}

#[test]
fn a_write_tells_which_data_is_new_and_which_pack_lost_some() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    let old = world.open;
    world.write_packed(2, 0, &[1; 1000]).unwrap();
    world.seal();
    let pieces = world.pack(500, &[2; 1000]);
    let mut view = crate::plan::View::new();
    let op = Op::Write {
        ino: Ino(2),
        body: Body::Packed(&pieces),
        unprivileged: None,
        cached: false,
        intern: None,
        over: None,
    };
    let ctx = world.ctx();
    let crate::plan::Plan::Need { keys, ranges } = crate::plan::plan(&op, &ctx, &view) else { panic!() };
    assert!(ranges.is_empty());
    for key in keys {
        let row = world.names.store().get(&key).unwrap();
        view.show(key, row);
    }
    let crate::plan::Plan::Change(change) = crate::plan::plan(&op, &ctx, &view) else { panic!() };
    let [fresh] = change.commit.fresh[..] else { panic!() };
    assert_eq!((fresh.pack, fresh.offset, fresh.len, fresh.crc), (world.open, 0, 1000, 0));
    assert_eq!(change.released, [old]);
    world.names.store().commit(change.commit).unwrap();
    assert_eq!(world.names.pack_users(old, (Ino(0), 0), 9).unwrap(), [(Ino(2), 0)]);
    assert_eq!(world.names.pack_live(old).unwrap(), 500);
    world.assert_sound();
}
