//! The trash: what comes back, what is deleted, and that nothing else is different.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use base::dice::Dice;
use base::time;

use super::*;
use crate::api::RenameMode;
use crate::fsck::{self, Callbacks, Depth};
use crate::trash::{Picked, Place, RestoreError, Restored, Setting};
use meta::key::KeyRange;
use meta::quota::Limits;
use meta::store::{CommitError, Rows, StoreError};
use meta::{Commit, Key, MetaStore, Value};

const DAY: Option<Duration> = Some(Duration::from_secs(86_400));

fn keeping(world: &World) -> Volume {
    let v = world.open();
    v.set_trash(DAY).unwrap();
    v
}

fn restore(v: &Volume, path: &str) -> Result<Restored, RestoreError> {
    v.restore_trash(Picked::Path(path.as_bytes()), Place::Back, false, &(), &mut |_| ())
}

fn restored(v: &Volume, path: &str) -> (u64, u64) {
    let done = restore(v, path).unwrap();
    assert_eq!(done.path, path.as_bytes());
    (done.files, done.left)
}

fn paths(v: &Volume) -> Vec<String> {
    let mut all: Vec<String> =
        v.trash().unwrap().into_iter().map(|entry| String::from_utf8(entry.path).unwrap()).collect();
    all.sort();
    all
}

/// Removes a file or an empty folder that nothing holds.
fn remove(v: &Volume, dir: Ino, name: &str) {
    let attr = v.find(dir, name).unwrap();
    match attr.kind {
        FileKind::Dir => v.rmdir(dir, name.as_bytes()).unwrap(),
        _ => _ = v.unlink(dir, name.as_bytes()).unwrap(),
    }
    v.forget(attr.ino, u64::MAX);
}

/// Removes a folder and everything below it.
fn remove_all(v: &Volume, dir: Ino, name: &str) {
    let attr = v.find(dir, name).unwrap();
    if attr.kind == FileKind::Dir {
        let names = v.names(attr.ino);
        names
            .iter()
            .filter(|name| *name != "." && *name != "..")
            .for_each(|name| remove_all(v, attr.ino, name));
    }
    remove(v, dir, name);
}

fn check(world: &World) {
    let mut findings = Vec::new();
    let mut callbacks = Callbacks { found: &mut |finding| findings.push(finding), progress: &mut |_| {} };
    fsck::check(&world.parts, Depth::Full, &mut callbacks).unwrap();
    findings.retain(|finding| !finding.is_harmless());
    assert_eq!(findings, []);
}

#[test]
fn a_removed_tree_comes_back_whole() {
    let world = World::new();
    let v = keeping(&world);
    let dir = v.dir(Ino::ROOT, "dir");
    let sub = v.dir(dir, "sub");
    let (small, large) = (v.file(sub, "small"), v.file(sub, "large"));
    v.put(small, 0, b"tiny");
    v.put(large, 0, &noise(1, 3_000_000));
    v.symlink(&ROOT, dir, b"link", b"sub/small").unwrap();
    let before: Vec<Attr> = [small, large, sub].iter().map(|ino| v.getattr(*ino).unwrap()).collect();
    remove_all(&v, Ino::ROOT, "dir");
    assert_eq!(v.find(Ino::ROOT, "dir"), None);
    assert_eq!(paths(&v), ["/dir", "/dir/link", "/dir/sub", "/dir/sub/large", "/dir/sub/small"]);
    assert!(!v.names(Ino::ROOT).iter().any(|name| name.contains("trash")));
    // Nothing of this is only in memory.
    v.fsync(Ino::ROOT, false).unwrap();
    drop(v);
    check(&world);
    let v = world.open();
    assert_eq!(restored(&v, "/dir"), (5, 0));
    assert_eq!(v.find(Ino::ROOT, "dir").unwrap().ino, dir);
    assert!(v.get(large) == noise(1, 3_000_000) && v.get(small) == b"tiny");
    for (ino, before) in [small, large].into_iter().zip(before) {
        let after = v.getattr(ino).unwrap();
        assert_eq!((after.mtime, after.nlink, after.size), (before.mtime, 1, before.size));
    }
    assert_eq!((v.getattr(dir).unwrap().nlink, v.getattr(Ino::ROOT).unwrap().nlink), (3, 3));
    assert_eq!(paths(&v), [""; 0]);
    v.close().unwrap();
    check(&world);
}

#[test]
fn the_newest_version_comes_back_and_a_name_that_is_taken_is_an_error() {
    let world = World::new();
    let v = keeping(&world);
    for n in 0..3 {
        let file = v.file(Ino::ROOT, "new");
        v.put(file, 0, format!("version {n}").as_bytes());
        v.rename(Ino::ROOT, b"new", Ino::ROOT, b"file", RenameMode::Replace).unwrap();
        v.forget(file, 1);
    }
    assert_eq!(paths(&v), ["/file", "/file"]);
    assert_eq!(restore(&v, "/file"), Err(RestoreError::Taken(b"/file".to_vec())));
    assert_eq!(restore(&v, "/none"), Err(RestoreError::NotThere));
    assert_eq!(v.trash().unwrap().len(), 2, "nothing is lost");
    let oldest = v.trash().unwrap().pop().unwrap();
    let (picked, place) = (Picked::Ino(oldest.ino), Place::At(Ino::ROOT, Some(b"old")));
    v.restore_trash(picked, place, false, &(), &mut |_| ()).unwrap();
    assert_eq!(v.get(v.find(Ino::ROOT, "old").unwrap().ino), b"version 0");
    remove(&v, Ino::ROOT, "file");
    assert_eq!(restored(&v, "/file"), (1, 0));
    assert_eq!(v.get(v.find(Ino::ROOT, "file").unwrap().ino), b"version 2");
    v.close().unwrap();
    check(&world);
}

/// Rows in memory, and how many of them were read in ranges.
struct Read(meta::engine::Memory, AtomicU64);

impl MetaStore for Read {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.0.get(key)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.0.is_at_hand(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.0.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        let rows = self.0.scan(range, limit)?;
        self.1.fetch_add(rows.len() as u64, Ordering::SeqCst);
        Ok(rows)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.0.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.0.flush()
    }
}

/// To restore one file read all that was in the trash, and held it in memory.
#[test]
fn regression_a_file_is_found_by_its_number_without_reading_the_rest() {
    let mut world = World::new();
    let rows = Arc::new(Read(meta::engine::Memory::new(), AtomicU64::new(0)));
    world.parts.store = rows.clone();
    Volume::format(&world.parts, &Default::default()).unwrap();
    let v = keeping(&world);
    let dir = v.dir(Ino::ROOT, "dir");
    let sub = v.dir(dir, "sub");
    let wanted = v.file(sub, "wanted");
    (0..1000).for_each(|n| _ = v.file(dir, &format!("f{n}")));
    remove_all(&v, Ino::ROOT, "dir");
    assert_eq!(paths(&v).len(), 1003);
    rows.1.store(0, Ordering::SeqCst);
    let done = v.restore_trash(Picked::Ino(wanted), Place::Back, false, &(), &mut |_| ()).unwrap();
    assert_eq!((done.path.as_slice(), done.files), (&b"/dir/sub/wanted"[..], 3));
    let read = rows.1.load(Ordering::SeqCst);
    assert!(read < 20, "{read} rows were read");
    // One that is not there, beside some that are.
    let none = v.restore_trash(Picked::Ino(wanted), Place::Back, false, &(), &mut |_| ());
    assert_eq!(none, Err(RestoreError::NotThere));
    assert_eq!(restored(&v, "/dir"), (1000, 0));
    check(&world);
}

#[test]
fn folders_on_the_way_come_back_and_contents_of_a_folder_that_exists() {
    let world = World::new();
    let v = keeping(&world);
    let (dir, other) = (v.dir(Ino::ROOT, "dir"), v.dir(Ino::ROOT, "other"));
    let sub = v.dir(dir, "sub");
    for name in ["a", "b"] {
        v.file(sub, name);
        v.file(other, name);
    }
    remove_all(&v, Ino::ROOT, "dir");
    assert_eq!(restored(&v, "/dir/sub/a"), (3, 0));
    assert_eq!(paths(&v), ["/dir/sub/b"]);
    remove_all(&v, Ino::ROOT, "dir");
    // A folder was made in its place: that one is used.
    let again = v.dir(Ino::ROOT, "dir");
    assert_eq!(restored(&v, "/dir/sub/a"), (2, 0));
    assert_eq!(v.names(again), [".", "..", "sub"]);
    assert_eq!(restore(&v, "/dir"), Err(RestoreError::Taken(b"/dir".to_vec())));

    // `rm -rf other/*`
    ["a", "b"].iter().for_each(|name| remove(&v, other, name));
    v.file(other, "a");
    assert_eq!(restored(&v, "/other"), (1, 1));
    assert_eq!(v.names(other), [".", "..", "a", "b"]);
    assert_eq!(restore(&v, "/dir/none"), Err(RestoreError::NotThere));

    // The folder of an entry was deleted for good.
    let gone = v.dir(Ino::ROOT, "gone");
    v.file(gone, "f");
    remove(&v, gone, "f");
    v.set_trash(None).unwrap();
    assert_eq!(v.trash_setting(), Ok(Setting::Off));
    remove(&v, Ino::ROOT, "gone");
    eventually("the folder is deleted", || v.getattr(gone).is_err());
    let entry = v.trash().unwrap().into_iter().find(|entry| !entry.has_folder).unwrap();
    let back = |place| v.restore_trash(Picked::Ino(entry.ino), place, false, &(), &mut |_| ());
    assert_eq!((&entry.path[..], back(Place::Back)), (&b"f"[..], Err(RestoreError::NoFolder)));
    back(Place::At(other, None)).unwrap();
    v.close().unwrap();
    check(&world);
}

#[test]
fn what_is_old_is_deleted_and_open_files_go_on() {
    let world = World::new();
    let v = world.open();
    v.set_trash(Some(Duration::from_millis(700))).unwrap();
    let (open, dir) = (v.file(Ino::ROOT, "open"), v.dir(Ino::ROOT, "dir"));
    v.put(open, 0, &noise(1, 100_000));
    v.file(dir, "f");
    v.unlink(Ino::ROOT, b"open").unwrap();
    assert_eq!(v.getattr(open).unwrap().nlink, 0);
    remove_all(&v, Ino::ROOT, "dir");
    assert_eq!(v.trash().unwrap().len(), 3);
    eventually("it has expired", || v.trash().unwrap().is_empty());
    eventually("the folder is deleted", || v.getattr(dir).is_err());
    assert!(v.get(open) == noise(1, 100_000), "a program has it open");
    v.forget(open, 1);
    eventually("now it is deleted", || v.getattr(open).is_err());
    let held = v.file(Ino::ROOT, "held");
    let until = || v.empty_trash(time::now(), &mut |_| ()).unwrap();
    v.put(held, 0, b"12345");
    remove(&v, Ino::ROOT, "held");
    let done = until();
    assert_eq!((done.files, done.bytes, until().files), (1, 5, 0));
    v.close().unwrap();
    check(&world);
    let v = world.open();
    eventually("no inode is left but the root", || v.statfs(Ino::ROOT).unwrap().inodes == 1);
    v.close().unwrap();
    assert_eq!(world.origin.bytes(), 0);
}

/// An entry whose rows are damaged stays, is told of, and keeps no other from being deleted.
#[test]
fn regression_a_damaged_entry_keeps_no_other_in_the_trash() {
    let world = World::new();
    let v = keeping(&world);
    let inos: Vec<Ino> = ["a", "b", "c"].map(|name| v.file(Ino::ROOT, name)).into();
    ["a", "b", "c"].iter().for_each(|name| remove(&v, Ino::ROOT, name));
    v.sync().unwrap();
    let damaged = Commit { puts: vec![(Key::inode(inos[0]), b"?".as_slice().into())], ..Commit::default() };
    world.parts.store.commit(damaged).unwrap();
    assert_eq!(v.empty_trash(time::now(), &mut |_| ()), Err(Errno::EIO));
    assert_eq!(paths(&v), ["/a"]);
    v.set_trash(Some(Duration::from_millis(1))).unwrap();
    v.file(Ino::ROOT, "d");
    remove(&v, Ino::ROOT, "d");
    eventually("what is old is deleted all the same", || paths(&v) == ["/a"]);
    v.close().unwrap();
}

#[test]
fn a_folder_that_a_program_has_open_stays_in_the_trash() {
    let world = World::new();
    let v = keeping(&world);
    let dir = v.dir(Ino::ROOT, "dir");
    v.rmdir(Ino::ROOT, b"dir").unwrap();
    assert_eq!(restore(&v, "/dir"), Err(RestoreError::InUse(b"dir".to_vec())));
    v.forget(dir, 1);
    assert_eq!(restored(&v, "/dir"), (1, 0));
    v.close().unwrap();
    check(&world);
}

#[test]
fn the_trash_counts_for_no_quota_and_what_comes_back_does() {
    let world = World::new();
    let v = keeping(&world);
    let team = v.dir(Ino::ROOT, "team");
    let inner = v.dir(team, "inner");
    v.file(inner, "f");
    let limits = |inodes| Limits { bytes: None, inodes: Some(inodes) };
    v.set_quota(team, limits(2), &mut |_| ()).unwrap();
    v.set_quota(inner, limits(5), &mut |_| ()).unwrap();
    let used = |dir: Ino| v.quotas().unwrap().iter().find(|quota| quota.dir == dir).unwrap().inodes;
    assert_eq!((used(team), used(inner)), (2, 1));
    remove_all(&v, team, "inner");
    assert_eq!((used(team), used(inner)), (0, 0));
    let new = v.file(team, "new");
    let done = restore(&v, "/team/inner");
    assert_eq!(done, Err(RestoreError::Failed(Errno::EDQUOT)), "the folder came back, the file did not");
    assert_eq!((used(team), used(inner)), (2, 0));
    remove(&v, team, "new");
    assert_eq!(restored(&v, "/team/inner"), (1, 0), "the rest of it");
    assert_eq!((used(team), used(inner)), (2, 1));
    assert!(v.getattr(new).is_ok_and(|attr| attr.nlink == 0));
    v.close().unwrap();
    check(&world);
}

#[test]
fn random_removals_and_restores_leave_what_a_map_says() {
    for seed in 0..6 {
        let world = World::new();
        let mut v = keeping(&world);
        let mut dice = Dice::counting_from(seed);
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut trash: Vec<(String, Vec<u8>)> = Vec::new();
        let dirs: Vec<Ino> = (0..3).map(|n| v.dir(Ino::ROOT, &format!("d{n}"))).collect();
        for _ in 0..150 {
            let (at, name) = (dice.roll() as usize % 3, format!("f{}", dice.roll() % 5));
            let path = format!("/d{at}/{name}");
            match dice.roll() % 8 {
                0..=2 if !files.contains_key(&path) => {
                    let bytes = noise(dice.roll(), 1 + dice.roll() as usize % 3000);
                    let file = v.file(dirs[at], &name);
                    v.put(file, 0, &bytes);
                    v.forget(file, 1);
                    files.insert(path, bytes);
                }
                3..=4 if files.contains_key(&path) => {
                    remove(&v, dirs[at], &name);
                    let bytes = files.remove(&path).unwrap();
                    trash.push((path, bytes));
                }
                5 => {
                    let newest = trash.iter().rposition(|(other, _)| *other == path);
                    match (restore(&v, &path), newest) {
                        (Ok(_), Some(newest)) => {
                            let (path, bytes) = trash.remove(newest);
                            assert!(files.insert(path, bytes).is_none());
                        }
                        (Err(RestoreError::Taken(_)), Some(_)) => assert!(files.contains_key(&path)),
                        (Err(RestoreError::NotThere), None) => {}
                        (done, newest) => panic!("seed {seed}: {done:?}, {newest:?}"),
                    }
                }
                6 if dice.roll().is_multiple_of(8) => {
                    v.empty_trash(time::now(), &mut |_| ()).unwrap();
                    trash.clear();
                }
                7 if dice.roll().is_multiple_of(8) => {
                    if dice.roll().is_multiple_of(2) {
                        v.close().unwrap();
                    }
                    drop(v);
                    v = world.open();
                }
                _ => {}
            }
        }
        let mut said: Vec<String> = trash.iter().map(|(path, _)| path.clone()).collect();
        said.sort();
        assert_eq!(paths(&v), said, "seed {seed}");
        for (path, bytes) in &files {
            assert!(v.get(v.resolve(path.as_bytes(), false).unwrap().ino) == *bytes, "seed {seed}: {path}");
        }
        v.close().unwrap();
        check(&world);
    }
}

/// An older program would take what is in the trash for damage, so it refuses the volume by its format.
#[test]
fn a_volume_with_trash_is_of_another_format() {
    let world = World::new();
    let format = || world.parts.store.get(&meta::Key::volume("format")).unwrap().unwrap().to_vec();
    let v = world.open();
    v.file(Ino::ROOT, "f");
    remove(&v, Ino::ROOT, "f");
    v.set_trash(None).unwrap();
    assert_eq!((format(), v.trash_setting()), (vec![0, 0, 0, 1], Ok(Setting::Never)));
    v.set_trash(DAY).unwrap();
    assert_eq!(format(), [0, 0, 0, 2]);
    v.set_trash(None).unwrap();
    v.close().unwrap();
    drop(v);
    assert_eq!(format(), [0, 0, 0, 2]);
    world.open().close().unwrap();
    let puts = vec![(meta::Key::volume("format"), [0, 0, 0, 3][..].into())];
    world.parts.store.commit(meta::Commit { puts, ..meta::Commit::default() }).unwrap();
    let refused = Volume::open(world.parts.clone(), world.options()).err();
    assert!(matches!(refused, Some(crate::OpenError::Format { found: 3 })));
}
