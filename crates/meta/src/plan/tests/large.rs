//! An operation that is too large for one commit is done in steps. Each step leaves a consistent volume.

use base::Ino;

use crate::audit::Finding;
use crate::plan::op::{Body, Piece, SetAttrs};
use crate::plan::{Op, Refusal};

use super::world::{World, dir, file};

const SPAN: u64 = 4 << 20;

/// A file with a byte in each of its first `pages` pages.
fn tall(world: &mut World, ino: u64, pages: u64) {
    let pack = world.open;
    world.packs.get_mut(&pack).unwrap().resize(2 << 20, 7);
    let piece = |page: u64| Piece { at: page * SPAN + 5, len: 1, pack, offset: page as u32, fresh: Some(0) };
    let pieces: Vec<Piece> = (0..pages).map(piece).collect();
    world.write_body(ino, &Body::Packed(&pieces)).unwrap();
}

fn pages(world: &World, ino: u64) -> Vec<u32> {
    world.names.extent_pages(Ino(ino), 0, usize::MAX).unwrap().into_iter().map(|(page, _)| page).collect()
}

#[test]
fn a_large_file_shrinks_from_its_end() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    tall(&mut world, 2, 6_000);
    let op = Op::SetAttr {
        ino: Ino(2),
        set: SetAttrs { size: Some(SPAN + 3), perm: Some(0o600), ..SetAttrs::default() },
    };
    let change = world.run(&op).unwrap();
    assert!(change.more);
    let half = world.attr(2);
    assert_eq!((half.size, half.stored), ((6_000 - 4_096) * SPAN, 6_000 - 4_096));
    assert_eq!(half.mode & 0o777, 0o644, "the rest of the change comes with the last step");
    world.assert_sound();
    assert!(!world.run(&op).unwrap().more);
    assert_eq!((world.attr(2).size, pages(&world, 2)), (SPAN + 3, vec![0]));
    assert_eq!(world.attr(2).mode & 0o777, 0o600);
    world.assert_sound();
}

#[test]
fn a_sparse_file_of_the_largest_size_shrinks_at_once() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    tall(&mut world, 2, 3);
    let grow = SetAttrs { size: Some(base::size::FILE_MAX), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set: grow }).unwrap();
    let shrink = SetAttrs { size: Some(6), ..SetAttrs::default() };
    assert!(!world.run(&Op::SetAttr { ino: Ino(2), set: shrink }).unwrap().more);
    assert_eq!((pages(&world, 2), world.read(2)), (vec![0], vec![0, 0, 0, 0, 0, 7]));
    world.assert_sound();
}

#[test]
fn a_large_range_is_punched_in_steps() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    tall(&mut world, 2, 5_000);
    let op = Op::Punch { ino: Ino(2), offset: SPAN, len: 4_998 * SPAN, grow_to: Some(20_000 * SPAN) };
    assert_eq!(world.run_all(&op).unwrap(), 2);
    assert_eq!(pages(&world, 2), [0, 4_999]);
    assert_eq!(world.attr(2).size, 20_000 * SPAN);
    world.assert_sound();
}

#[test]
fn a_large_orphan_is_collected_in_steps() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    tall(&mut world, 2, 2500);
    world.run(&Op::Unlink { parent: Ino(1), name: b"f" }).unwrap();
    let change = world.run(&Op::Reap { ino: Ino(2) }).unwrap();
    assert!(change.more);
    assert_eq!(change.released, [world.open]);
    world.assert_sound();
    assert_eq!(world.run_all(&Op::Reap { ino: Ino(2) }).unwrap(), 2);
    assert_eq!(world.names.totals().unwrap().bytes, 0);
    assert_eq!(world.names.pack_live(world.open).unwrap(), 0);
    world.assert_sound();
}

#[test]
fn a_large_file_is_cloned_in_steps() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    tall(&mut world, 2, 2500);
    let mut change = world.run(&Op::CloneInode { from: Ino(2), ino: Ino(3), quota: Ino(0) }).unwrap();
    let mut steps = 1;
    while change.more {
        world.assert_sound();
        let page = change.done as u32;
        change = world.run(&Op::CloneMore { from: Ino(2), ino: Ino(3), page, over: None }).unwrap();
        steps += 1;
    }
    assert_eq!(steps, 3);
    world.run(&Op::Link { ino: Ino(3), parent: Ino(1), name: b"g" }).unwrap();
    let (from, to) = (world.attr(2), world.attr(3));
    assert_eq!((to.size, to.stored, to.mode, to.mtime), (from.size, from.stored, from.mode, from.mtime));
    assert_eq!(pages(&world, 2), pages(&world, 3));
    assert_eq!(world.names.pack_live(world.open).unwrap(), 5000);
    world.assert_sound();
}

#[test]
fn a_clone_whose_source_grew_is_cut_to_its_own_size() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    tall(&mut world, 2, 1200);
    let change = world.run(&Op::CloneInode { from: Ino(2), ino: Ino(3), quota: Ino(0) }).unwrap();
    assert!(change.more);
    tall(&mut world, 2, 1300);
    world.write_packed(2, 1199 * SPAN, &[1; 4096]).unwrap();
    let more = Op::CloneMore { from: Ino(2), ino: Ino(3), page: change.done as u32, over: None };
    assert!(!world.run(&more).unwrap().more);
    assert_eq!(pages(&world, 3).len(), 1200);
    world.run(&Op::Attach { ino: Ino(3), parent: Ino(1), name: b"g" }).unwrap();
    assert_eq!(
        world.run(&more).unwrap_err(),
        Refusal::Invalid,
        "an inode with a name is not an unfinished clone"
    );
    world.assert_sound();
}

#[test]
fn a_tree_is_cloned_out_of_sight_and_shown_by_one_name() {
    let mut world = World::new();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    world.create(2, "f", file(3, 0o644)).unwrap();
    world.write(3, 0, &[1; 5000]).unwrap();
    world.run(&Op::CloneInode { from: Ino(2), ino: Ino(4), quota: Ino(0) }).unwrap();
    world.run(&Op::CloneInode { from: Ino(3), ino: Ino(5), quota: Ino(0) }).unwrap();
    world.run(&Op::Attach { ino: Ino(5), parent: Ino(4), name: b"f" }).unwrap();
    world.assert_sound();
    // A machine that stopped here left this. It cannot be removed before its entries.
    assert_eq!(world.run(&Op::Reap { ino: Ino(4) }).unwrap_err(), Refusal::NotEmpty);
    assert_eq!(
        world.run(&Op::Attach { ino: Ino(4), parent: Ino(4), name: b"loop" }).unwrap_err(),
        Refusal::Invalid
    );
    // Adding entries changed its times, so a clone sets the times last.
    let times = SetAttrs { mtime: Some(world.attr(2).mtime), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(4), set: times }).unwrap();
    world.run(&Op::Attach { ino: Ino(4), parent: Ino(1), name: b"e" }).unwrap();
    let (from, to) = (world.attr(2), world.attr(4));
    assert_eq!((from.mtime, from.mode, from.nlink), (to.mtime, to.mode, to.nlink));
    assert_eq!(world.read(5), [1; 5000]);
    assert_eq!(world.names.orphans(Ino(0), 9).unwrap(), []);
    world.assert_sound();
}

/// While a directory is at the top of a tree without a name, no move may put that tree inside itself.
#[test]
fn regression_attach_does_not_make_a_loop_below_a_detached_tree() {
    let world = World::new();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    world.run(&Op::CloneInode { from: Ino(2), ino: Ino(3), quota: Ino(0) }).unwrap();
    world.create(3, "sub", dir(4, 0o755)).unwrap();
    let attach = Op::Attach { ino: Ino(3), parent: Ino(4), name: b"loop" };
    assert_eq!(world.run(&attach).unwrap_err(), Refusal::Invalid);
    let (_, findings) = world.audit();
    assert_eq!(findings, Vec::<Finding>::new());
}
