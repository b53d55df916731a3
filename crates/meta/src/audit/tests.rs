//! Planted damage is found, classified, and repaired as far as possible.

use base::{BlobId, Ino, PackNo};
use blob::ExtentPage;

use crate::key::Key;
use crate::plan::op::{Body, SetAttrs, XattrMode};
use crate::plan::tests::world::{World, dir, file};
use crate::plan::{Op, nothing};
use crate::record::{ContentRow, Dentry, DoomedRow, HeldRow, InodeRecord, PackRow, encode_i64, mode};
use crate::store::Value;

use super::{Finding, repair};

const ROOT: Ino = Ino(1);
const DIR: Ino = Ino(2);
const SUB: Ino = Ino(3);
const BIG: Ino = Ino(4);
const SMALL: Ino = Ino(5);
const LINKED: Ino = Ino(6);
const UNNAMED: Ino = Ino(7);

/// A little of everything.
fn world() -> World {
    let mut world = World::new();
    world.create(1, "dir", dir(2, 0o755)).unwrap();
    world.create(2, "sub", dir(3, 0o755)).unwrap();
    world.create(2, "big", file(4, 0o644)).unwrap();
    world.create(3, "small", file(5, 0o644)).unwrap();
    world.create(1, "linked", file(6, 0o644)).unwrap();
    world.run(&Op::Link { ino: LINKED, parent: DIR, name: b"again" }).unwrap();
    world.run(&Op::Tmpfile { parent: ROOT, make: file(7, 0o600) }).unwrap();
    world.write(4, 0, &[1; 10_000]).unwrap();
    world.write(4, (4 << 20) - 50, &[2; 100]).unwrap();
    world.seal();
    world.write(4, 2000, &[3; 100]).unwrap();
    world.write(5, 0, b"few").unwrap();
    let name = b"security.capability";
    let op = Op::SetXattr { ino: BIG, name, value: b"v", mode: XattrMode::Set, kill_sgid: false };
    world.run(&op).unwrap();
    assert_eq!(world.audit().1, []);
    world
}

fn row(world: &World, key: &Key) -> Value {
    world.store.rows.lock().unwrap()[key].clone()
}

/// Audits and repairs until nothing repairable is left. Returns what was found at first, and what is left.
fn mend(world: &World) -> (Vec<Finding>, Vec<Finding>) {
    let (_, first) = world.audit();
    let mut left = first.clone();
    for _ in 0..6 {
        let mended = left
            .iter()
            .filter_map(repair)
            .filter(|commit| world.names.store().commit(commit.clone()).is_ok());
        if mended.count() == 0 {
            break;
        }
        left = world.audit().1;
    }
    for finding in &first {
        assert!(!finding.to_string().is_empty());
    }
    (first, left)
}

#[track_caller]
fn assert_mended(world: &World, is_it: impl Fn(&Finding) -> bool) {
    let (found, left) = mend(world);
    assert!(found.iter().any(is_it), "not among {found:#?}");
    assert!(left.is_empty(), "left: {left:#?}");
}

fn change_inode(world: &World, ino: Ino, change: impl FnOnce(&mut InodeRecord)) {
    let key = Key::inode(ino);
    let mut record = InodeRecord::decode(&row(world, &key)).unwrap();
    change(&mut record);
    world.store.plant(key, Some(record.encode()));
}

fn is_wrong(ino: Ino) -> impl Fn(&Finding) -> bool {
    move |finding| matches!(finding, Finding::WrongInode { ino: it, .. } if *it == ino)
}

#[test]
fn a_sound_volume_is_counted() {
    let world = world();
    let (summary, findings) = world.audit();
    assert_eq!(findings, []);
    let counts = (summary.names, summary.inodes, summary.orphans, summary.pages, summary.packs);
    assert_eq!(counts, (6, 7, 1, 2, 2));
    assert_eq!(summary.bytes, 10_000 + 100 + 3);
}

#[test]
fn a_dangling_name() {
    let world = world();
    world.store.plant(Key::inode(SMALL), None);
    world.store.plant(Key::inline(SMALL), None);
    assert_mended(
        &world,
        |finding| matches!(finding, Finding::DanglingName { parent: SUB, ino: SMALL, name, .. } if **name == *b"small"),
    );
    assert_eq!(world.names.lookup(SUB, b"small").unwrap(), None);
}

#[test]
fn an_inode_whose_name_was_lost() {
    let world = world();
    world.store.plant(Key::dentry(SUB, b"small"), None);
    assert_mended(&world, |finding| matches!(finding, Finding::OrphanInode { ino: SMALL, .. }));
    let found = world.names.lookup(ROOT, b"lost+5").unwrap().unwrap();
    assert_eq!(world.read(found.ino.0), b"few");
}

#[test]
fn a_directory_whose_name_was_lost() {
    let world = world();
    world.store.plant(Key::dentry(ROOT, b"dir"), None);
    assert_mended(&world, |finding| matches!(finding, Finding::OrphanInode { ino: DIR, .. }));
    assert_eq!(world.names.lookup(ROOT, b"lost+2").unwrap().unwrap().ino, DIR);
    assert_eq!(world.attr(1).nlink, 3);
}

#[test]
fn names_in_a_directory_that_is_not_there() {
    let world = world();
    world.store.plant(Key::inode(SUB), None);
    assert_mended(
        &world,
        |finding| matches!(finding, Finding::StrayRow { key, .. } if *key == Key::dentry(SUB, b"small")),
    );
    assert_eq!(world.names.lookup(ROOT, b"lost+5").unwrap().unwrap().ino, SMALL);
}

#[test]
fn wrong_counts() {
    for key in [
        Key::subdirs(DIR),
        Key::subdirs(SUB),
        Key::volume("inodes"),
        Key::volume("bytes"),
        Key::pack_live(PackNo(1)),
        Key::pack_live(PackNo(2)),
    ] {
        let world = world();
        world.store.plant(key.clone(), Some(encode_i64(77)));
        assert_mended(&world, |finding| matches!(finding, Finding::WrongCount { key: it, .. } if *it == key));
        world.store.plant(key.clone(), None);
        if key != Key::subdirs(SUB) {
            assert_mended(
                &world,
                |finding| matches!(finding, Finding::WrongCount { key: it, found: None, .. } if *it == key),
            );
        }
    }
}

#[test]
fn inodes_wrong_about_themselves() {
    type Damage = fn(&mut InodeRecord);
    let damages: [(Ino, Damage); 10] = [
        (LINKED, |record| record.nlink = 3),
        (LINKED, |record| record.parent = ROOT),
        (SMALL, |record| record.parent = DIR),
        (SMALL, |record| record.size = 4),
        (SMALL, |record| record.stored = 4),
        (SUB, |record| record.parent = ROOT),
        (DIR, |record| record.nlink = 2),
        (ROOT, |record| record.nlink = 0),
        (UNNAMED, |record| record.nlink = 1),
        (BIG, |record| record.stored = 7),
    ];
    for (ino, damage) in damages {
        let world = world();
        let before = row(&world, &Key::inode(ino));
        change_inode(&world, ino, damage);
        assert_mended(&world, is_wrong(ino));
        assert_eq!(row(&world, &Key::inode(ino)), before);
    }
}

#[test]
fn flags_for_attributes() {
    let world = world();
    change_inode(&world, BIG, |record| (record.flags, record.xattr_list) = (0, 0));
    assert_mended(&world, is_wrong(BIG));
    assert!(world.attr(4).has(InodeRecord::HAS_CAPABILITY));
    world.store.plant(Key::xattr(DIR, b"user.x"), Some(nothing()));
    assert_mended(&world, is_wrong(DIR));
    assert_eq!(world.attr(2).xattr_list, 7);
    change_inode(&world, DIR, |record| record.xattr_bytes = 3);
    assert_mended(&world, is_wrong(DIR));
}

#[test]
fn a_name_of_the_wrong_kind() {
    let world = world();
    let wrong = Dentry { ino: BIG, kind: mode::S_IFDIR };
    world.store.plant(Key::dentry(DIR, b"big"), Some(wrong.encode()));
    assert_mended(&world, |finding| matches!(finding, Finding::WrongKind { parent: DIR, .. }));
    assert_eq!(world.names.lookup(DIR, b"big").unwrap().unwrap().kind, mode::S_IFREG);
}

#[test]
fn a_second_name_of_a_directory() {
    let world = world();
    let second = Dentry { ino: SUB, kind: mode::S_IFDIR };
    world.store.plant(Key::dentry(ROOT, b"second"), Some(second.encode()));
    assert_mended(&world, |finding| matches!(finding, Finding::SecondName { parent: ROOT, ino: SUB, .. }));
    assert_eq!(world.names.lookup(DIR, b"sub").unwrap().unwrap().ino, SUB);
}

#[test]
fn directories_within_one_another() {
    let world = world();
    let entry = row(&world, &Key::dentry(ROOT, b"dir"));
    world.store.plant(Key::dentry(ROOT, b"dir"), None);
    world.store.plant(Key::dentry(SUB, b"dir"), Some(entry));
    change_inode(&world, DIR, |record| record.parent = SUB);
    for (dir, count) in [(ROOT, None), (SUB, Some(encode_i64(1)))] {
        world.store.plant(Key::subdirs(dir), count);
    }
    assert_mended(&world, |finding| matches!(finding, Finding::Loop { .. }));
    let rescued = [b"lost+2", b"lost+3"].map(|name| world.names.lookup(ROOT, name).unwrap().is_some());
    assert_ne!(rescued[0], rescued[1]);
}

#[test]
fn marks_of_nameless_inodes() {
    let world = world();
    world.store.plant(Key::orphan(BIG), Some(nothing()));
    assert_mended(
        &world,
        |finding| matches!(finding, Finding::StrayRow { key, .. } if *key == Key::orphan(BIG)),
    );
    world.store.plant(Key::orphan(Ino(99)), Some(nothing()));
    assert_mended(&world, |finding| matches!(finding, Finding::StrayRow { .. }));
    world.store.plant(Key::orphan(UNNAMED), None);
    assert_mended(&world, |finding| matches!(finding, Finding::OrphanInode { ino: UNNAMED, .. }));
}

#[test]
fn bytes_past_the_end() {
    let world = world();
    change_inode(&world, BIG, |record| record.size = 5000);
    assert_mended(&world, |finding| {
        matches!(finding, Finding::PastEnd { ino: BIG, page: 1, right: None, .. })
    });
    assert_eq!(world.read(4).len(), 5000);
    assert_eq!(world.names.totals().unwrap().bytes, 5003);
}

#[test]
fn bytes_inline_and_in_extents() {
    let world = world();
    world.store.plant(Key::inline(BIG), Some(b"huh".as_slice().into()));
    assert_mended(
        &world,
        |finding| matches!(finding, Finding::StrayRow { key, .. } if *key == Key::inline(BIG)),
    );
    let page = row(&world, &Key::extents(BIG, 0));
    world.store.plant(Key::extents(SMALL, 0), Some(page));
    assert_mended(
        &world,
        |finding| matches!(finding, Finding::StrayRow { key, .. } if *key == Key::extents(SMALL, 0)),
    );
    assert_eq!(world.read(5), b"few");
    world.store.plant(Key::inline(SMALL), None);
    assert_mended(&world, is_wrong(SMALL));
    assert_eq!(world.read(5), [0; 3], "lost bytes read as zeros");
}

#[test]
fn rows_of_inodes_that_are_not_there() {
    let world = world();
    let gone = Ino(50);
    let page = row(&world, &Key::extents(BIG, 0));
    for (key, value) in [
        (Key::extents(gone, 3), page),
        (Key::inline(gone), nothing()),
        (Key::xattr(gone, b"user.a"), nothing()),
        (Key::dir_changed(gone), encode_i64(5)),
        (Key::subdirs(gone), encode_i64(5)),
        (Key::pack_user(PackNo(1), gone, 3), nothing()),
        (Key::pack_user(PackNo(1), BIG, 3), nothing()),
        (Key::blob_pack(&BlobId([7; 32]), PackNo(1)), nothing()),
    ] {
        world.store.plant(key.clone(), Some(value));
        let is_it = |finding: &Finding| matches!(finding, Finding::StrayRow { key: it, .. } if *it == key);
        assert_mended(&world, is_it);
    }
}

#[test]
fn packs_that_do_not_know_their_users() {
    let world = world();
    world.store.plant(Key::pack_user(PackNo(1), BIG, 0), None);
    assert_mended(&world, |finding| {
        matches!(finding, Finding::MissingUser { pack: PackNo(1), ino: BIG, page: 0 })
    });
    let Some(PackRow::Sealed { blob, size }) = world.pack_row(PackNo(1)) else { panic!() };
    world.store.plant(Key::blob_pack(&blob, PackNo(1)), None);
    assert_mended(&world, |finding| matches!(finding, Finding::MissingBlobRow { pack: PackNo(1), .. }));
    world.store.plant(Key::pack(PackNo(1)), Some(PackRow::Condemned { blob, size }.encode()));
    assert_mended(&world, |finding| matches!(finding, Finding::CondemnedInUse { pack: PackNo(1), .. }));
}

#[test]
fn packs_that_are_lost_are_reported_and_nothing_is_thrown_away() {
    let world = world();
    let read = world.store.rows.lock().unwrap().len();
    world.store.plant(Key::pack(PackNo(2)), None);
    let (found, left) = mend(&world);
    let lost = Finding::LostPack { pack: PackNo(2), bytes: 100 };
    assert_eq!((found, left), (vec![lost.clone()], vec![lost.clone()]));
    assert_eq!(world.store.rows.lock().unwrap().len(), read - 1);
    // Not one row of the pack is left.
    world.store.plant(Key::pack_live(PackNo(2)), None);
    world.store.plant(Key::pack_user(PackNo(2), BIG, 0), None);
    let (found, left) = mend(&world);
    assert!(found.contains(&lost), "{found:?}");
    assert_eq!(left, [lost]);
    // A blob that is shorter than the extents that refer to it.
    let world = self::world();
    let Some(PackRow::Sealed { blob, .. }) = world.pack_row(PackNo(1)) else { panic!() };
    world.store.plant(Key::pack(PackNo(1)), Some(PackRow::Sealed { blob, size: 10_099 }.encode()));
    assert!(matches!(mend(&world).1[..], [Finding::LostPack { pack: PackNo(1), .. }]));
}

#[test]
fn rows_that_make_no_sense() {
    let mut page = ExtentPage::new().encode();
    page.push(0);
    for (key, bad) in [
        (Key::inode(BIG), vec![1; 96]),
        (Key::dentry(DIR, b"big"), vec![0; 9]),
        (Key::extents(BIG, 0), page),
        (Key::pack(PackNo(1)), vec![9]),
    ] {
        let world = world();
        world.store.plant(key.clone(), Some(bad.into()));
        let (found, _) = mend(&world);
        assert!(found.contains(&Finding::BadRow { key: key.clone() }), "{key:?} {found:#?}");
        // Unreadable rows still count: nothing that they may refer to is given up.
        assert!(
            !found.iter().any(|finding| matches!(finding, Finding::WrongCount { .. })),
            "{key:?} {found:#?}"
        );
    }
}

#[test]
fn contents_that_are_not_where_their_rows_say() {
    let world = world();
    let hash = BlobId([9; 32]);
    let row = ContentRow { pack: PackNo(40), offset: 0, len: 5 };
    world.store.plant(Key::content(&hash), Some(row.encode()));
    let (found, left) = mend(&world);
    assert!(matches!(found[..], [Finding::StaleContent { .. }]) && found[0].is_harmless());
    assert_eq!(left, []);
}

#[test]
fn blobs_that_are_deleted_while_they_are_needed() {
    let world = world();
    let (blob, by) = (BlobId([9; 32]), DoomedRow { node: 1, epoch: 1 });
    world.store.plant(Key::doomed(&blob), Some(by.encode()));
    world.store.plant(Key::condemned(7, PackNo(40)), Some(nothing()));
    assert_eq!(mend(&world), (vec![], vec![]));
    world.store.plant(Key::held(&blob, "tree"), Some(HeldRow::Held.encode()));
    assert_eq!(mend(&world).1, [Finding::DoomedInUse { blob }]);
}

/// A repair applies only if the row is still as it was found.
#[test]
fn a_repair_does_not_overwrite_what_changed_meanwhile() {
    let world = world();
    change_inode(&world, SMALL, |record| record.stored = 9);
    let (_, found) = world.audit();
    world.write_body(5, &Body::Inline(b"new")).unwrap();
    let set = SetAttrs { perm: Some(0o600), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: SMALL, set }).unwrap();
    for commit in found.iter().filter_map(repair) {
        let _ = world.names.store().commit(commit);
    }
    assert_eq!(world.attr(5).mode & 0o777, 0o600);
    assert_eq!(world.read(5), b"new");
}

#[test]
fn an_audit_reports_progress() {
    let world = world();
    let mut seen = Vec::new();
    let mut progress = |rows| seen.push(rows);
    let mut listener = super::Listener { found: &mut |_| {}, progress: &mut progress };
    super::audit(&*world.store, &mut listener).unwrap();
    assert!(seen.is_sorted() && seen.last().is_some_and(|rows| *rows > 30));
}

/// A prepared volume had names that lead out of a directory. Export created files outside its target through
/// them, and fsck called the volume sound.
#[test]
fn regression_an_impossible_name_is_found_repaired_and_never_listed() {
    let long = [b'n'; 256];
    let names: [&[u8]; 7] = [b"", b".", b"..", b"/etc/x", b"../x", b"a\0b", &long];
    for name in names {
        let world = world();
        let entry = row(&world, &Key::dentry(SUB, b"small"));
        world.store.plant(Key::dentry(SUB, b"small"), None);
        world.store.plant(Key::dentry(SUB, name), Some(entry));
        let refused = world.names.readdir(SUB, 0, 10).unwrap_err();
        assert!(refused.to_string().contains("covey fsck"), "{refused}");
        assert_mended(&world, |finding| matches!(finding, Finding::BadName { ino: SMALL, .. }));
        assert_eq!(world.names.readdir(SUB, 0, 10).unwrap().len(), 0);
        assert_eq!(world.names.lookup(ROOT, b"lost+5").unwrap().unwrap().ino, SMALL);
    }
}

#[test]
fn regression_an_entry_that_is_never_looked_up_is_found() {
    let world = world();
    let key = Key::dentry(SUB, b"small");
    let entry = row(&world, &key);
    world.store.plant(key.clone(), None);
    let mut bytes = key.as_bytes().to_vec();
    bytes[12] ^= 1;
    world.store.plant(Key::from_bytes(&bytes), Some(entry));
    assert_mended(&world, |finding| matches!(finding, Finding::BadName { ino: SMALL, .. }));
}

#[test]
fn regression_a_bad_name_of_a_folder_counts_as_none() {
    let world = world();
    let entry = row(&world, &Key::dentry(DIR, b"sub"));
    world.store.plant(Key::dentry(DIR, b"sub"), None);
    world.store.plant(Key::dentry(DIR, b"../sub"), Some(entry));
    assert_mended(&world, |finding| matches!(finding, Finding::BadName { ino: SUB, .. }));
    assert_eq!(world.attr(1).nlink, 4, "it is named in the root");
}

#[test]
fn regression_an_attribute_whose_name_cannot_be_one() {
    for name in [&b""[..], b"user.a\0user.b"] {
        let world = world();
        world.store.plant(Key::xattr(SMALL, name), Some(b"v".as_slice().into()));
        assert_mended(&world, |finding| matches!(finding, Finding::StrayRow { .. }));
    }
}
