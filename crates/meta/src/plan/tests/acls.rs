//! Extended attributes and access control lists.

use base::Ino;

use crate::plan::op::{Make, SetAttrs, XattrMode};
use crate::plan::{ACCESS_ACL, DEFAULT_ACL, Op, Refusal};
use crate::record::{InodeRecord, mode};

use super::world::{World, dir, file};

const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

const NONE: u32 = u32::MAX;

fn set(world: &World, ino: u64, name: &[u8], value: &[u8]) -> Result<InodeRecord, Refusal> {
    let op = Op::SetXattr { ino: Ino(ino), name, value, mode: XattrMode::Set, kill_sgid: false };
    world.run(&op).map(|change| change.inode.unwrap().1)
}

fn get(world: &World, ino: u64, name: &[u8]) -> Option<Vec<u8>> {
    world.names.xattr(Ino(ino), name).unwrap().map(|value| value.to_vec())
}

fn full() -> Vec<u8> {
    acl(&[(OWNER, 7, NONE), (USER, 6, 42), (GROUP, 5, NONE), (MASK, 7, NONE), (OTHER, 1, NONE)])
}

#[test]
fn an_access_list_moves_the_mode_and_the_mode_moves_it() {
    let world = World::new();
    world.create(1, "f", file(2, 0o600)).unwrap();
    let record = set(&world, 2, ACCESS_ACL, &full()).unwrap();
    assert_eq!(record.mode & 0o7777, 0o771);
    assert!(record.has(InodeRecord::HAS_ACL));
    let perm = SetAttrs { perm: Some(0o640), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set: perm }).unwrap();
    let expected =
        acl(&[(OWNER, 6, NONE), (USER, 6, 42), (GROUP, 5, NONE), (MASK, 4, NONE), (OTHER, 0, NONE)]);
    assert_eq!(get(&world, 2, ACCESS_ACL), Some(expected), "the group's bits of the mode are the mask");
    // A list that expresses no more than a mode is stored as the mode.
    let plain = acl(&[(OWNER, 7, NONE), (GROUP, 5, NONE), (OTHER, 0, NONE)]);
    let record = set(&world, 2, ACCESS_ACL, &plain).unwrap();
    assert_eq!((record.mode & 0o777, record.flags), (0o750, 0));
    assert_eq!(get(&world, 2, ACCESS_ACL), None);
    world.assert_sound();
}

#[test]
fn removing_a_list_leaves_the_mode_and_removing_none_is_no_error() {
    let world = World::new();
    world.create(1, "f", file(2, 0o600)).unwrap();
    set(&world, 2, ACCESS_ACL, &full()).unwrap();
    let remove = Op::RemoveXattr { ino: Ino(2), name: ACCESS_ACL };
    world.run(&remove).unwrap();
    world.run(&remove).unwrap();
    assert_eq!((world.attr(2).mode & 0o777, world.attr(2).flags), (0o771, 0));
    set(&world, 2, ACCESS_ACL, &full()).unwrap();
    set(&world, 2, ACCESS_ACL, &acl(&[])).unwrap();
    assert_eq!(get(&world, 2, ACCESS_ACL), None, "an empty list removes the list");
    world.assert_sound();
}

#[test]
fn malformed_lists_are_refused() {
    let world = World::new();
    world.create(1, "f", file(2, 0o600)).unwrap();
    let base = [(OWNER, 7, NONE), (GROUP, 5, NONE), (OTHER, 0, NONE)];
    let mut version = acl(&base);
    version[0] = 3;
    assert_eq!(set(&world, 2, ACCESS_ACL, &version), Err(Refusal::Unsupported));
    let mut cut = acl(&base);
    cut.pop();
    for bad in [
        cut,
        vec![2, 0],
        acl(&base[..2]),
        acl(&[base[0], base[2], base[1]]),
        acl(&[base[0], (USER, 7, 5), base[1], base[2]]),
        acl(&[base[0], (USER, 7, NONE), base[1], (MASK, 7, NONE), base[2]]),
        acl(&[(OWNER, 8, NONE), base[1], base[2]]),
        acl(&[base[0], base[1], base[2], base[2]]),
        acl(&[(3, 7, NONE), base[1], base[2]]),
    ] {
        assert_eq!(set(&world, 2, ACCESS_ACL, &bad), Err(Refusal::Invalid), "{bad:?}");
    }
    assert_eq!(set(&world, 2, DEFAULT_ACL, &acl(&base)), Err(Refusal::NotPermitted));
    let link = Make { mode: mode::S_IFLNK, target: b"x", ..file(3, 0) };
    world.create(1, "l", link).unwrap();
    assert_eq!(set(&world, 3, ACCESS_ACL, &acl(&base)), Err(Refusal::Unsupported));
}

#[test]
fn a_default_list_is_inherited_and_the_umask_ignored() {
    let world = World::new();
    set(&world, 1, DEFAULT_ACL, &full()).unwrap();
    assert_eq!(world.attr(1).mode & 0o777, 0o755, "a default list is not the directory's own");
    let masked = |make: Make<'static>| Make { umask: 0o077, ..make };
    world.create(1, "f", masked(file(2, 0o666))).unwrap();
    world.create(1, "d", masked(dir(3, 0o777))).unwrap();
    assert_eq!(world.attr(2).mode & 0o777, 0o660);
    let inherited =
        acl(&[(OWNER, 6, NONE), (USER, 6, 42), (GROUP, 5, NONE), (MASK, 6, NONE), (OTHER, 0, NONE)]);
    assert_eq!(get(&world, 2, ACCESS_ACL), Some(inherited));
    assert_eq!(get(&world, 2, DEFAULT_ACL), None);
    assert_eq!((get(&world, 3, DEFAULT_ACL), get(&world, 3, ACCESS_ACL)), (Some(full()), Some(full())));
    assert_eq!(world.attr(3).mode & 0o777, 0o771);
    let link = Make { mode: mode::S_IFLNK, target: b"x", ..file(4, 0) };
    world.create(1, "l", link).unwrap();
    assert_eq!(world.attr(4).flags, InodeRecord::INLINE);
    // A default list without a mask or named entries becomes the mode alone.
    set(&world, 1, DEFAULT_ACL, &acl(&[(OWNER, 7, NONE), (GROUP, 4, NONE), (OTHER, 4, NONE)])).unwrap();
    world.create(1, "g", masked(file(5, 0o666))).unwrap();
    assert_eq!((world.attr(5).mode & 0o777, world.attr(5).flags), (0o644, 0));
    world.assert_sound();
}

#[test]
fn setting_a_list_can_clear_setgid() {
    let world = World::new();
    world.create(1, "f", file(2, 0o2755)).unwrap();
    let value = full();
    let op =
        Op::SetXattr { ino: Ino(2), name: ACCESS_ACL, value: &value, mode: XattrMode::Set, kill_sgid: true };
    world.run(&op).unwrap();
    assert_eq!(world.attr(2).mode & 0o7777, 0o771);
}

#[test]
fn regression_setting_a_default_list_leaves_setgid() {
    let world = World::new();
    world.create(1, "d", Make { mode: mode::S_IFDIR | 0o2770, ..file(2, 0) }).unwrap();
    let value = full();
    let op =
        Op::SetXattr { ino: Ino(2), name: DEFAULT_ACL, value: &value, mode: XattrMode::Set, kill_sgid: true };
    world.run(&op).unwrap();
    assert_eq!(world.attr(2).mode & 0o7777, 0o2770);
}

#[test]
fn namespaces_and_sizes() {
    let world = World::new();
    world.create(1, "f", file(2, 0o600)).unwrap();
    for name in [&b"system.other"[..], b"btrfs.compression", b"user", b"", b"User.a"] {
        assert_eq!(set(&world, 2, name, b"v"), Err(Refusal::Unsupported), "{}", name.escape_ascii());
    }
    assert_eq!(set(&world, 2, b"user.", b"v"), Err(Refusal::Invalid));
    let long = [&b"user."[..], &[b'x'; 251]].concat();
    assert_eq!(set(&world, 2, &long, b"v"), Err(Refusal::AttributeTooLarge));
    set(&world, 2, &long[..255], &[1; 65536]).unwrap();
    assert_eq!(set(&world, 2, b"user.a", &[1; 65537]), Err(Refusal::AttributeTooLarge));
    set(&world, 2, b"user.empty", b"").unwrap();
    assert_eq!(get(&world, 2, b"user.empty"), Some(Vec::new()));
    let mut names = world.names.xattrs(Ino(2)).unwrap();
    names.sort();
    assert_eq!(names, [Box::from(&b"user.empty"[..]), Box::from(&long[..255])]);
    assert_eq!(world.attr(2).xattr_list, 11 + 256);
    world.assert_sound();
}

#[test]
fn more_names_than_a_list_can_hold_are_refused() {
    let world = World::new();
    world.create(1, "f", file(2, 0o600)).unwrap();
    let name = |i: u32| format!("user.{i:0250}").into_bytes();
    for i in 0..256 {
        set(&world, 2, &name(i), b"").unwrap();
    }
    assert_eq!(world.attr(2).xattr_list, 65536);
    assert_eq!(set(&world, 2, b"user.a", b""), Err(Refusal::AttributeTooLarge));
    set(&world, 2, &name(3), b"new").unwrap();
    world.run(&Op::RemoveXattr { ino: Ino(2), name: &name(4) }).unwrap();
    set(&world, 2, b"user.a", b"").unwrap();
    world.assert_sound();
}

#[test]
fn more_bytes_than_a_commit_should_carry_are_refused() {
    let world = World::new();
    world.create(1, "f", file(2, 0o600)).unwrap();
    let name = |i: u32| format!("user.{i}").into_bytes();
    for i in 0..16 {
        set(&world, 2, &name(i), &[1; 65536]).unwrap();
    }
    assert_eq!(set(&world, 2, b"user.x", b"1"), Err(Refusal::AttributeTooLarge));
    set(&world, 2, b"user.x", b"").unwrap();
    set(&world, 2, b"security.capability", &[1; 24]).unwrap();
    assert_eq!(set(&world, 2, b"security.capability", &[1; 65]), Err(Refusal::Invalid));
    assert_eq!(world.attr(2).xattr_bytes, 1 << 20);
    set(&world, 2, &name(3), b"less").unwrap();
    set(&world, 2, b"user.x", b"1").unwrap();
    world.assert_sound();
    world.run(&Op::CloneInode { from: Ino(2), ino: Ino(3), quota: Ino(0) }).unwrap();
    assert_eq!(world.attr(3).xattr_bytes, world.attr(2).xattr_bytes);
    world.run(&Op::Reap { ino: Ino(3) }).unwrap();
    world.assert_sound();
}

#[test]
fn an_attribute_that_comes_and_goes_leaves_no_trace_in_the_flags() {
    let world = World::new();
    world.create(1, "f", file(2, 0o600)).unwrap();
    set(&world, 2, b"security.capability", b"x").unwrap();
    set(&world, 2, b"user.a", b"x").unwrap();
    let set_size = SetAttrs { size: Some(10), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set: set_size }).unwrap();
    assert_eq!(world.attr(2).flags, InodeRecord::HAS_XATTRS, "a new size clears capabilities");
    world.run(&Op::RemoveXattr { ino: Ino(2), name: b"user.a" }).unwrap();
    assert_eq!(world.attr(2).flags, 0);
    let again = Op::RemoveXattr { ino: Ino(2), name: b"user.a" };
    assert_eq!(world.run(&again).unwrap_err(), Refusal::NoAttribute);
    world.assert_sound();
}
