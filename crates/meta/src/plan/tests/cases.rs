//! Operations one by one: cases that random operations seldom reach.

use base::size::FILE_MAX;
use base::{Ino, Timestamp};

use crate::key::Key;
use crate::plan::op::{Body, Make, Piece, RenameMode, SetAttrs, XattrMode};
use crate::plan::{Ctx, Op, Refusal};
use crate::record::{Dentry, InodeRecord, mode};

use super::world::{World, dir, file};

fn unlink(world: &World, parent: u64, name: &str) -> Result<(), Refusal> {
    world.run(&Op::Unlink { parent: Ino(parent), name: name.as_bytes() }).map(|_| ())
}

fn rename(world: &World, from: (u64, &str), to: (u64, &str), mode: RenameMode) -> Result<(), Refusal> {
    let op = Op::Rename {
        parent: Ino(from.0),
        name: from.1.as_bytes(),
        to: Ino(to.0),
        to_name: to.1.as_bytes(),
        mode,
    };
    world.run(&op).map(|_| ())
}

#[test]
fn impossible_names_are_refused() {
    let world = World::new();
    for (name, refusal) in [
        ("", Refusal::Invalid),
        (".", Refusal::Invalid),
        ("..", Refusal::Invalid),
        ("a/b", Refusal::Invalid),
        ("a\0", Refusal::Invalid),
        (&"x".repeat(256), Refusal::NameTooLong),
    ] {
        assert_eq!(world.create(1, name, file(2, 0o644)).unwrap_err(), refusal, "{name:?}");
        assert_eq!(unlink(&world, 1, name), Err(refusal));
        assert_eq!(rename(&world, (1, "a"), (1, name), RenameMode::Replace), Err(refusal));
    }
    let longest = "x".repeat(255);
    world.create(1, &longest, file(2, 0o644)).unwrap();
    assert_eq!(world.names.lookup(Ino(1), longest.as_bytes()).unwrap().unwrap().ino, Ino(2));
    world.assert_sound();
}

#[test]
fn a_volume_is_formatted_once() {
    let world = World::new();
    assert_eq!(world.run(&Op::Format { rows: &[] }).unwrap_err(), Refusal::Exists);
    assert_eq!(world.names.volume_row("format").unwrap().as_deref(), Some(&b"1"[..]));
    let root = world.attr(1);
    assert_eq!((root.mode, root.nlink, root.parent), (mode::S_IFDIR | 0o755, 2, Ino(1)));
}

#[test]
fn numbers_are_given_once() {
    let world = World::new();
    let take = |count| world.run(&Op::Allocate { counter: "next-ino", count, from: 0 }).unwrap().first;
    assert_eq!((take(1024), take(5), take(1)), (2, 1026, 1031));
    let all = Op::Allocate { counter: "next-ino", count: u64::MAX, from: 0 };
    assert_eq!(world.run(&all).unwrap_err(), Refusal::Invalid);
}

#[test]
fn a_create_does_not_write_its_directory() {
    let world = World::new();
    let before = world.store.rows.lock().unwrap()[&Key::inode(Ino(1))].clone();
    world.create(1, "a", file(2, 0o644)).unwrap();
    world.create(1, "d", dir(3, 0o755)).unwrap();
    unlink(&world, 1, "a").unwrap();
    assert_eq!(world.store.rows.lock().unwrap()[&Key::inode(Ino(1))], before);
    assert_eq!(world.attr(1).nlink, 3);
}

/// Round trips decide what a remote store costs: reads and the commit.
#[test]
fn operations_take_few_round_trips() {
    let mut world = World::new();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    let pieces = world.pack(0, &[7; 5000]);
    let cost = |op: Op<'_>| {
        let before = world.store.calls.load(std::sync::atomic::Ordering::Relaxed);
        world.run(&op).unwrap();
        world.store.calls.load(std::sync::atomic::Ordering::Relaxed) - before
    };
    assert_eq!(cost(Op::Create { parent: Ino(2), name: b"a", make: file(3, 0o644) }), 2);
    let body = Body::Packed(&pieces);
    assert_eq!(
        cost(Op::Write { ino: Ino(3), body, unprivileged: None, cached: false, intern: None, over: None }),
        2
    );
    let how = RenameMode::Replace;
    assert_eq!(cost(Op::Rename { parent: Ino(2), name: b"a", to: Ino(2), to_name: b"b", mode: how }), 3);
    assert_eq!(cost(Op::Unlink { parent: Ino(2), name: b"b" }), 3);
}

#[test]
fn setgid_directories_pass_on_their_group() {
    let world = World::new();
    world.create(1, "d", dir(2, 0o2775)).unwrap();
    let set = SetAttrs { gid: Some(55), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
    world.create(2, "sub", dir(3, 0o755)).unwrap();
    world.create(2, "f", file(4, 0o644)).unwrap();
    let (sub, f) = (world.attr(3), world.attr(4));
    assert_eq!((sub.gid, sub.mode & 0o7777), (55, 0o2755));
    assert_eq!((f.gid, f.mode & 0o7777), (55, 0o644));
}

#[test]
fn changing_the_owner_clears_privileges_except_of_directories() {
    let world = World::new();
    world.create(1, "f", file(2, 0o6755)).unwrap();
    world.create(1, "g", file(3, 0o6745)).unwrap();
    world.create(1, "d", dir(4, 0o6755)).unwrap();
    let name = b"security.capability";
    let set = Op::SetXattr { ino: Ino(2), name, value: b"all", mode: XattrMode::Set, kill_sgid: false };
    world.run(&set).unwrap();
    assert!(world.attr(2).has(InodeRecord::HAS_CAPABILITY));
    for ino in [2, 3, 4] {
        let set = SetAttrs { uid: Some(7), ..SetAttrs::default() };
        world.run(&Op::SetAttr { ino: Ino(ino), set }).unwrap();
    }
    assert_eq!(world.attr(2).mode & 0o7777, 0o755);
    assert_eq!(world.attr(3).mode & 0o7777, 0o2745, "without the group's x, setgid means something else");
    assert_eq!(world.attr(4).mode & 0o7777, 0o6755);
    assert_eq!((world.attr(2).flags, world.names.xattr(Ino(2), name).unwrap()), (0, None));
    world.assert_sound();
}

#[test]
fn writes_clear_privileges_on_request_and_cached_ones_keep_times() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o6755)).unwrap();
    let before = world.attr(2);
    let pieces = world.pack(0, b"hello");
    let write = |unprivileged, cached| Op::Write {
        ino: Ino(2),
        body: Body::Packed(&pieces),
        unprivileged,
        cached,
        intern: None,
        over: None,
    };
    world.run(&write(None, true)).unwrap();
    let cached = world.attr(2);
    assert_eq!((cached.mtime, cached.ctime, cached.size), (before.mtime, before.ctime, 5));
    assert_eq!(cached.mode & 0o7777, 0o6755);
    assert!(cached.change > before.change, "an unchanged row must mean unchanged bytes");
    world.run(&write(Some(0), false)).unwrap();
    let plain = world.attr(2);
    assert!(plain.mtime > before.mtime && plain.ctime == plain.mtime);
    assert_eq!(plain.mode & 0o7777, 0o755);
}

/// The kernel sends pages long after the write(2) that filled them. A file capability that `cp -a` or `tar`
/// had set in between was lost when the pages arrived.
#[test]
fn regression_pages_that_are_written_back_leave_capabilities() {
    let name = b"security.capability";
    for (cached, left) in [(true, true), (false, false)] {
        let mut world = World::new();
        world.create(1, "f", file(2, 0o755)).unwrap();
        let pieces = world.pack(0, b"hello");
        let set = Op::SetXattr { ino: Ino(2), name, value: b"all", mode: XattrMode::Set, kill_sgid: false };
        world.run(&set).unwrap();
        for body in [Body::Packed(&pieces), Body::Inline(b"hello")] {
            world
                .run(&Op::Write { ino: Ino(2), body, unprivileged: None, cached, intern: None, over: None })
                .unwrap();
            let stays = world.names.xattr(Ino(2), name).unwrap().is_some();
            assert_eq!((stays, world.attr(2).has(InodeRecord::HAS_CAPABILITY)), (left, left), "{cached}");
        }
        world.assert_sound();
    }
}

/// A set-group-id file that its group may not execute kept the bit on a write or truncation by any caller.
/// Linux keeps it only if the caller is in the file's group.
#[test]
fn regression_a_write_from_another_group_clears_setgid() {
    const FILE: Ino = Ino(2);
    let left = |mode, writes: bool, by| {
        let mut world = World::new();
        world.create(1, "f", file(FILE.0, mode)).unwrap();
        let own = SetAttrs { gid: Some(55), perm: Some(mode), ..SetAttrs::default() };
        world.run(&Op::SetAttr { ino: FILE, set: own }).unwrap();
        let pieces = world.pack(0, b"hello");
        let op = if writes {
            let body = Body::Packed(&pieces);
            Op::Write { ino: FILE, body, unprivileged: by, cached: false, intern: None, over: None }
        } else {
            let set = SetAttrs { size: Some(9_000), unprivileged: by, ..SetAttrs::default() };
            Op::SetAttr { ino: FILE, set }
        };
        world.run(&op).unwrap();
        world.attr(FILE.0).mode & 0o7777
    };
    for writes in [true, false] {
        assert_eq!(left(0o6766, writes, None), 0o6766, "by a privileged caller");
        assert_eq!(left(0o6766, writes, Some(55)), 0o2766, "by a caller in the group");
        assert_eq!(left(0o6766, writes, Some(56)), 0o766, "by another");
        assert_eq!(left(0o6776, writes, Some(55)), 0o776, "when the group may execute it");
    }
}

/// Bits that a chown by root leaves are cleared by an owner's chown if the owner is not in the file's group.
#[test]
fn changing_the_owner_uses_the_old_group() {
    for (by, left) in [(None, 0o2744), (Some(55), 0o2744), (Some(56), 0o744)] {
        let world = World::new();
        world.create(1, "f", file(2, 0o644)).unwrap();
        let own = SetAttrs { gid: Some(55), perm: Some(0o6744), ..SetAttrs::default() };
        world.run(&Op::SetAttr { ino: Ino(2), set: own }).unwrap();
        let set = SetAttrs { gid: Some(56), unprivileged: by, ..SetAttrs::default() };
        world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
        assert_eq!(world.attr(2).mode & 0o7777, left, "by {by:?}");
    }
}

#[test]
fn the_kernels_own_times_are_taken() {
    let world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    let set = SetAttrs { mtime: Some(Timestamp(-5)), ctime: Some(Timestamp(77)), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
    assert_eq!((world.attr(2).mtime, world.attr(2).ctime), (Timestamp(-5), Timestamp(77)));
}

#[test]
fn a_directorys_times_follow_entries_and_utimens() {
    let world = World::new();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    let set = SetAttrs { mtime: Some(Timestamp(5)), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
    assert_eq!(world.attr(2).mtime, Timestamp(5));
    world.create(2, "a", file(3, 0o644)).unwrap();
    let after = world.attr(2);
    assert!(after.mtime > Timestamp(1000) && after.ctime == after.mtime);
    // A change of mode keeps the time of the last change of entries.
    let set = SetAttrs { perm: Some(0o700), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
    assert_eq!(world.attr(2).mtime, after.mtime);
    assert!(world.attr(2).ctime > after.ctime);
}

/// The clock may stand still or step back between an utimens and a create. The create still changes the
/// times.
#[test]
fn a_create_shows_in_its_directorys_times_though_the_clock_went_back() {
    let world = World::new();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    let set = SetAttrs { mtime: Some(Timestamp(5)), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
    let ctime = world.attr(2).ctime;
    let early = Ctx { now: Timestamp(-3), ..world.ctx() };
    world.run_as(&Op::Create { parent: Ino(2), name: b"a", make: file(3, 0o644) }, &early).unwrap();
    assert!(world.attr(2).mtime > ctime);
}

#[test]
fn impossible_renames_are_refused() {
    let world = World::new();
    for (parent, name, make) in
        [(1, "a", dir(2, 0o755)), (2, "b", dir(3, 0o755)), (3, "c", dir(4, 0o755)), (1, "f", file(5, 0o644))]
    {
        world.create(parent, name, make).unwrap();
    }
    let replace = |from, to| rename(&world, from, to, RenameMode::Replace);
    assert_eq!(replace((1, "a"), (4, "x")), Err(Refusal::Invalid), "into itself, deep below");
    assert_eq!(replace((1, "a"), (2, "x")), Err(Refusal::Invalid), "into itself");
    assert_eq!(replace((3, "c"), (1, "a")), Err(Refusal::NotEmpty), "onto an ancestor");
    assert_eq!(replace((1, "f"), (1, "a")), Err(Refusal::IsDir));
    assert_eq!(replace((1, "a"), (1, "f")), Err(Refusal::NotDir));
    assert_eq!(replace((1, "nothing"), (1, "f")), Err(Refusal::NotFound));
    assert_eq!(replace((1, "f"), (5, "x")), Err(Refusal::NotDir));
    assert_eq!(replace((1, "f"), (99, "x")), Err(Refusal::NotFound));
    let exchange = |from, to| rename(&world, from, to, RenameMode::Exchange);
    assert_eq!(exchange((3, "c"), (1, "a")), Err(Refusal::Invalid), "an ancestor into its own tree");
    assert_eq!(exchange((1, "a"), (3, "c")), Err(Refusal::Invalid));
    assert_eq!(exchange((1, "a"), (1, "nothing")), Err(Refusal::NotFound));
    exchange((3, "c"), (1, "f")).unwrap();
    assert_eq!((world.attr(4).parent, world.attr(5).parent), (Ino(1), Ino(3)));
    assert_eq!((world.attr(1).nlink, world.attr(3).nlink), (4, 2));
    world.assert_sound();
}

#[test]
fn rename_onto_another_name_of_the_same_file_does_nothing() {
    let world = World::new();
    world.create(1, "a", file(2, 0o644)).unwrap();
    world.run(&Op::Link { ino: Ino(2), parent: Ino(1), name: b"b" }).unwrap();
    let before = world.store.rows.lock().unwrap().clone();
    rename(&world, (1, "a"), (1, "b"), RenameMode::Replace).unwrap();
    rename(&world, (1, "a"), (1, "a"), RenameMode::Replace).unwrap();
    assert_eq!(rename(&world, (1, "a"), (1, "b"), RenameMode::NoReplace), Err(Refusal::Exists));
    assert_eq!(*world.store.rows.lock().unwrap(), before);
}

#[test]
fn what_rename_replaces_lives_on_without_a_name() {
    let mut world = World::new();
    world.create(1, "a", file(2, 0o644)).unwrap();
    world.create(1, "b", file(3, 0o644)).unwrap();
    world.write(3, 0, b"still here").unwrap();
    let op = Op::Rename { parent: Ino(1), name: b"a", to: Ino(1), to_name: b"b", mode: RenameMode::Replace };
    let change = world.run(&op).unwrap();
    assert_eq!(change.orphaned, [Ino(3)]);
    assert_eq!(change.inode.unwrap().0, Ino(2));
    assert_eq!(world.attr(3).nlink, 0);
    assert_eq!(world.read(3), b"still here");
    world.write(3, 10, b", and grows").unwrap();
    world.run_all(&Op::Reap { ino: Ino(3) }).unwrap();
    assert_eq!(world.names.attr(Ino(3)).unwrap(), None);
    assert_eq!(world.names.totals().unwrap().inodes, 2);
    world.assert_sound();
}

#[test]
fn a_removed_directory_takes_no_names_but_can_be_looked_at() {
    let world = World::new();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    world.create(2, "a", file(3, 0o644)).unwrap();
    assert_eq!(world.run(&Op::Rmdir { parent: Ino(1), name: b"d" }).unwrap_err(), Refusal::NotEmpty);
    unlink(&world, 2, "a").unwrap();
    let mtime = world.attr(2).mtime;
    let change = world.run(&Op::Rmdir { parent: Ino(1), name: b"d" }).unwrap();
    assert_eq!(change.orphaned, [Ino(2)]);
    let gone = world.attr(2);
    assert_eq!((gone.nlink, gone.mtime, gone.parent), (0, mtime, Ino(1)));
    assert_eq!(world.create(2, "x", file(4, 0o644)).unwrap_err(), Refusal::NotFound);
    let set = SetAttrs { perm: Some(0o700), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
    let xattr =
        Op::SetXattr { ino: Ino(2), name: b"user.a", value: b"b", mode: XattrMode::Set, kill_sgid: false };
    world.run(&xattr).unwrap();
    assert_eq!(world.attr(2).mode & 0o777, 0o700);
    world.assert_sound();
    world.run(&Op::Reap { ino: Ino(2) }).unwrap();
    world.run(&Op::Reap { ino: Ino(2) }).unwrap();
    assert_eq!(world.names.attr(Ino(2)).unwrap(), None);
    world.assert_sound();
}

#[test]
fn too_many_links_are_refused() {
    let world = World::new();
    world.create(1, "a", file(2, 0o644)).unwrap();
    let record = InodeRecord { nlink: 1 << 31, ..world.attr(2) };
    world.store.plant(Key::inode(Ino(2)), Some(record.encode()));
    let op = Op::Link { ino: Ino(2), parent: Ino(1), name: b"b" };
    assert_eq!(world.run(&op).unwrap_err(), Refusal::TooManyLinks);
}

#[test]
fn a_tmpfile_can_be_named_once_it_is_whole() {
    let mut world = World::new();
    world.run(&Op::Tmpfile { parent: Ino(1), make: file(2, 0o600) }).unwrap();
    assert_eq!(world.names.orphans(Ino(0), 9).unwrap(), [Ino(2)]);
    world.write(2, 0, &[9; 700]).unwrap();
    world.run(&Op::Link { ino: Ino(2), parent: Ino(1), name: b"t" }).unwrap();
    assert_eq!(world.names.orphans(Ino(0), 9).unwrap(), []);
    let record = world.attr(2);
    assert_eq!((record.nlink, record.parent), (1, Ino(1)));
    world.run(&Op::Reap { ino: Ino(2) }).unwrap();
    assert_eq!(world.read(2), [9; 700]);
    world.assert_sound();
}

#[test]
fn symbolic_links_keep_their_target_inline() {
    let world = World::new();
    let make = |ino, target| Make { mode: mode::S_IFLNK | 0o600, target, umask: 0o077, ..file(ino, 0) };
    let long = vec![b'x'; 4095];
    world.create(1, "l", make(2, &long)).unwrap();
    let record = world.attr(2);
    assert_eq!((record.mode, record.size), (mode::S_IFLNK | 0o777, 4095));
    assert_eq!(world.names.inline(Ino(2)).unwrap().as_deref(), Some(&long[..]));
    let longer = vec![b'x'; 4096];
    assert_eq!(world.create(1, "m", make(3, &longer)).unwrap_err(), Refusal::NameTooLong);
    assert_eq!(world.create(1, "m", make(3, b"")).unwrap_err(), Refusal::Invalid);
    let set = SetAttrs { size: Some(0), ..SetAttrs::default() };
    assert_eq!(world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap_err(), Refusal::Invalid);
    unlink(&world, 1, "l").unwrap();
    world.run(&Op::Reap { ino: Ino(2) }).unwrap();
    world.assert_sound();
}

#[test]
fn small_files_grow_and_shrink_inline_and_are_outlined_beyond() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    world.write(2, 0, b"abc").unwrap();
    let resize = |world: &World, size| {
        let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
        world.run(&Op::SetAttr { ino: Ino(2), set }).map(|change| change.inode.unwrap().1)
    };
    let grown = resize(&world, 512).unwrap();
    assert!(grown.has(InodeRecord::INLINE));
    assert_eq!((grown.size, grown.stored), (512, 512));
    assert_eq!(resize(&world, 513), Err(Refusal::MustOutline));
    resize(&world, 2).unwrap();
    assert_eq!(world.read(2), b"ab");
    let empty = resize(&world, 0).unwrap();
    assert!(!empty.has(InodeRecord::INLINE));
    // An empty file is not inline: it can grow to any size, as a hole.
    assert_eq!(resize(&world, 1 << 40).unwrap().stored, 0);
    assert_eq!(resize(&world, FILE_MAX + 1), Err(Refusal::TooLarge));
    resize(&world, 4).unwrap();
    assert_eq!(world.read(2), [0; 4]);
    assert_eq!(world.names.totals().unwrap().bytes, 0);
    world.assert_sound();
}

#[test]
fn an_inline_file_is_outlined_only_as_a_whole() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    world.write(2, 0, &[1; 100]).unwrap();
    assert_eq!(world.write_packed(2, 100, &[2; 600]).unwrap_err(), Refusal::MustOutline);
    assert_eq!(world.write_packed(2, 0, &[2; 99]).unwrap_err(), Refusal::MustOutline);
    let change = world.write_packed(2, 0, &[2; 100]).unwrap();
    let (_, record) = change.inode.unwrap();
    assert!(!record.has(InodeRecord::INLINE));
    assert_eq!((record.size, record.stored), (100, 100));
    assert_eq!(world.names.inline(Ino(2)).unwrap(), None);
    // And back: small contents replace extents.
    let change = world.write_body(2, &Body::Inline(b"x")).unwrap();
    assert_eq!(change.released, [world.open]);
    assert_eq!(world.read(2), b"x");
    assert_eq!(world.names.pack_live(world.open).unwrap(), 0);
    assert_eq!(world.write_body(2, &Body::Inline(&[0; 513])).unwrap_err(), Refusal::Invalid);
    world.assert_sound();
}

#[test]
fn impossible_pieces_are_refused() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    let good = world.pack(0, &[1; 5000])[0];
    let page = 4 << 20;
    for (piece, refusal) in [
        (Piece { len: 0, ..good }, Refusal::Invalid),
        (Piece { at: page - 1, ..good }, Refusal::Invalid),
        (Piece { offset: page as u32 - 1, ..good }, Refusal::Invalid),
        (Piece { at: FILE_MAX - 4000, ..good }, Refusal::Invalid),
        (Piece { at: u64::MAX - 8000, ..good }, Refusal::TooLarge),
    ] {
        let got = world.write_body(2, &Body::Packed(&[piece])).unwrap_err();
        assert!(got == refusal || got == Refusal::TooLarge, "{piece:?} {got}");
    }
    assert_eq!(world.write_body(2, &Body::Packed(&[good, good])).unwrap_err(), Refusal::Invalid);
    assert_eq!(world.write_body(1, &Body::Packed(&[good])).unwrap_err(), Refusal::IsDir);
    let last = Piece { at: FILE_MAX - 5000, ..good };
    world.write_body(2, &Body::Packed(&[last])).unwrap();
    assert_eq!(world.attr(2).size, FILE_MAX);
    world.assert_sound();
}

#[test]
fn a_page_of_many_extents_is_called_crowded() {
    let mut world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    for i in 0..64 {
        assert_eq!(world.write_packed(2, i * 2048, &[1; 1024]).unwrap().crowded, []);
    }
    assert_eq!(world.write_packed(2, 64 * 2048, &[1; 1024]).unwrap().crowded, [(Ino(2), 0)]);
}

#[test]
fn a_listing_gives_names_of_one_position_together() {
    let world = World::new();
    world.create(1, "a", file(2, 0o644)).unwrap();
    // Two names at one position (no real pair is known): planted under chosen keys.
    let key = Key::dentry(Ino(1), b"a");
    let mut twin = key.as_bytes().to_vec();
    twin.extend_from_slice(b"2");
    let row = Dentry { ino: Ino(2), kind: mode::S_IFREG }.encode();
    world.store.plant(Key::from_bytes(&twin), Some(row));
    let listed = world.names.readdir(Ino(1), 0, 1).unwrap();
    let names: Vec<&[u8]> = listed.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!(names, [&b"a"[..], b"a2"]);
    assert_eq!(listed[0].position, listed[1].position);
    assert_eq!(world.names.readdir(Ino(1), listed[0].position + 1, 9).unwrap(), []);
}
