//! Operations on a whole volume: clone, check, repair, collect.

use base::size::MIB;
use meta::key::KeyRange;
use meta::store::{CommitError, Rows, StoreError, Value};
use meta::{Commit, Key};

use super::*;
use crate::clone::Cloned;
use crate::fsck::{self, Callbacks, Depth, Finding};

fn check(world: &World, depth: Depth) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut callbacks = Callbacks { found: &mut |finding| findings.push(finding), progress: &mut |_| {} };
    fsck::check(&world.parts, depth, &mut callbacks).unwrap();
    findings
}

fn repair(world: &World) -> (usize, usize) {
    let (mut mended, mut left) = (0, 0);
    let mut found = |_: &Finding, done: bool| if done { mended += 1 } else { left += 1 };
    fsck::check_and_repair(&world.parts, Depth::Full, fsck::Unreferenced::Remove, &mut found, &mut |_| {})
        .unwrap();
    (mended, left)
}

fn go_on() -> impl FnMut(Cloned) -> ControlFlow<()> {
    |_| ControlFlow::Continue(())
}

#[test]
fn a_tree_of_ten_thousand_is_cloned_by_names_only() {
    let world = World::new();
    let v = world.open();
    let top = v.dir(Ino::ROOT, "top");
    let shared = v.file(top, "shared");
    v.put(shared, 0, &noise(1, 100_000));
    let mut dir = top;
    for d in 0..100 {
        // Some of it is wide, some of it deep.
        dir = v.dir(if d % 10 == 0 { top } else { dir }, &format!("d{d}"));
        for f in 0..100 {
            let ino = v.file(dir, &format!("f{f}"));
            v.put(ino, 0, format!("{d}/{f}").as_bytes());
        }
        v.link(shared, dir, b"link").unwrap();
        v.setxattr(dir, b"user.d", format!("{d}").as_bytes(), crate::api::XattrMode::Set, false).unwrap();
    }
    v.symlink(&ROOT, top, b"s", b"where").unwrap();
    let big = v.file(top, "big");
    for n in 0..9 {
        v.put(big, n * MIB, &noise(n, MIB as usize));
    }
    let written = v.stats().unwrap().written_bytes;
    let mut told = 0;
    let cloned = v
        .clone_tree(top, Ino::ROOT, b"copy", &mut |so_far| {
            told = told.max(so_far.files);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((cloned.dirs, cloned.files, cloned.links, told), (101, 10_003, 100, 10_003));
    assert_eq!(v.stats().unwrap().written_bytes, written, "no byte moves");
    let copy = v.resolve(b"/copy", true).unwrap();
    assert_ne!(copy.ino, top);
    let was = v.getattr(top).unwrap();
    assert_eq!((copy.mtime, copy.nlink, copy.perm), (was.mtime, was.nlink, was.perm));
    assert!(v.get(v.resolve(b"copy/big", true).unwrap().ino) == v.get(big));
    let link = v.resolve(b"copy/d0/d1/link", true).unwrap();
    assert_eq!((link.nlink, link.ino), (101, v.resolve(b"/copy/shared", true).unwrap().ino));
    assert_eq!(v.get(v.resolve(b"copy/d50/f7", true).unwrap().ino), b"50/7");
    assert_eq!(v.getxattr(v.resolve(b"copy/d50", true).unwrap().ino, b"user.d").unwrap(), b"50");
    assert_eq!(v.readlink(v.resolve(b"copy/s", false).unwrap().ino).unwrap(), b"where");
    // The copy and the original are independent.
    v.put(big, 5, b"changed");
    assert!(v.get(v.resolve(b"copy/big", true).unwrap().ino)[..MIB as usize] == noise(0, MIB as usize));
    assert_eq!(v.clone_tree(top, Ino::ROOT, b"copy", &mut go_on()), Err(Errno::EEXIST));
    v.close().unwrap();
    drop(v);
    assert_eq!(check(&world, Depth::Full), []);
}

#[test]
fn a_clone_that_is_ended_leaves_nothing() {
    let world = World::new();
    let v = world.open();
    let top = v.dir(Ino::ROOT, "top");
    let deep = v.dir(v.dir(top, "a"), "b");
    for f in 0..300 {
        v.put(v.file(deep, &format!("f{f}")), 0, &noise(f, 1000));
    }
    let inodes = v.stats().unwrap().inodes;
    let ended = v.clone_tree(top, Ino::ROOT, b"copy", &mut |so_far| {
        if so_far.files > 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(ended, Err(Errno::EINTR));
    assert_eq!(v.find(Ino::ROOT, "copy"), None);
    eventually("what was made is gone", || v.stats().unwrap().inodes == inodes);
    assert_eq!(v.clone_tree(Ino(99_999), Ino::ROOT, b"x", &mut go_on()), Err(Errno::ENOENT));
    // Clones a single file into its own directory, and a tree into itself.
    v.clone_tree(v.resolve(b"top/a/b/f7", true).unwrap().ino, deep, b"g", &mut go_on()).unwrap();
    assert!(v.get(v.resolve(b"top/a/b/g", true).unwrap().ino) == noise(7, 1000));
    v.clone_tree(top, deep, b"itself", &mut go_on()).unwrap();
    assert!(v.resolve(b"top/a/b/itself/a/b/f7", true).is_ok());
    assert_eq!(v.resolve(b"top/a/b/itself/a/b/itself", true), Err(Errno::ENOENT));
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}

#[test]
fn regression_a_clone_under_way_is_not_reaped_as_left_over() {
    let world = World::new();
    let v = world.open();
    let top = v.dir(Ino::ROOT, "top");
    for f in 0..300 {
        v.file(top, &format!("f{f}"));
    }
    let cloned = v.clone_tree(top, Ino::ROOT, b"copy", &mut |_| {
        // What the reaper does when a volume is opened: it takes every inode without a name.
        let orphans = v.core.names.orphans(Ino(0), 10).unwrap();
        v.core.reaper.push(&orphans);
        eventually("the reaper has looked", || v.core.reaper.is_idle());
        ControlFlow::Continue(())
    });
    assert_eq!(cloned.unwrap().files, 300);
    assert!(v.core.names.orphans(Ino(0), 1).unwrap().is_empty());
    v.close().unwrap();
    drop(v);
    assert_eq!(check(&world, Depth::Full), []);
}

#[test]
fn paths_are_followed_as_the_kernel_does() {
    let world = World::new();
    let v = world.open();
    let d = v.dir(Ino::ROOT, "d");
    let f = v.file(d, "f");
    v.symlink(&ROOT, Ino::ROOT, b"abs", b"/d/f").unwrap();
    v.symlink(&ROOT, d, b"up", b"../d/../abs").unwrap();
    v.symlink(&ROOT, d, b"loop", b"loop").unwrap();
    for path in ["d/f", "/d/f", "//d/./f", "abs", "d/up", "d/../d/up", "../../d/f"] {
        assert_eq!(v.resolve(path.as_bytes(), true).unwrap().ino, f, "{path}");
    }
    assert_eq!(v.resolve(b"abs", false).unwrap().kind, FileKind::Symlink);
    assert_eq!(v.resolve(b"d/loop", true), Err(Errno::ELOOP));
    assert_eq!(v.resolve(b"d/f/x", true), Err(Errno::ENOTDIR));
    assert_eq!(v.resolve(b"d/none", true), Err(Errno::ENOENT));
    assert_eq!(v.resolve(b"/", true).unwrap().ino, Ino::ROOT);
    v.close().unwrap();
}

/// A closed volume with a large file, small files, and no damage.
fn sound() -> World {
    let world = World::new();
    let v = world.open();
    let d = v.dir(Ino::ROOT, "d");
    let big = v.file(d, "big");
    for n in 0..6 {
        v.put(big, n * MIB, &noise(n, MIB as usize));
    }
    for n in 0..20 {
        v.put(v.file(d, &format!("small{n}")), 0, &noise(100 + n, 3000));
    }
    v.close().unwrap();
    drop(v);
    assert_eq!(check(&world, Depth::Full), []);
    world
}

fn blob_of(world: &World, size: u64) -> base::BlobId {
    let mut found = None;
    world
        .parts
        .origin
        .list(&mut |id, len| {
            found = found.or((len == size).then_some(id));
            true
        })
        .unwrap();
    found.unwrap()
}

#[test]
fn fsck_finds_a_missing_blob_and_says_which_file_it_hurts() {
    let world = sound();
    world.parts.origin.remove(&blob_of(&world, 4 * MIB)).unwrap();
    let findings = check(&world, Depth::Presence);
    let [finding @ Finding::MissingBlob { files, .. }] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!(files.len(), 1);
    assert_eq!((files[0].path.as_deref(), files[0].offset, files[0].len), (Some("/d/big"), 0, 4 * MIB));
    assert!(!finding.can_be_repaired() && !finding.is_harmless());
    assert_eq!(repair(&world), (0, 1));
    // Still an error, never zeros.
    let v = world.open();
    let big = v.resolve(b"d/big", true).unwrap().ino;
    assert_eq!(v.read(big, 0, &mut [0; 10]), Err(Errno::EIO));
    assert_eq!(v.read(big, 5 * MIB, &mut [0; 10]), Ok(10));
    drop(v);
}

#[test]
fn fsck_finds_damage_and_strays() {
    let world = sound();
    world.faults.damage(true);
    for depth in [Depth::Sums, Depth::Full] {
        let findings = check(&world, depth);
        assert!(
            findings.len() == 3 && findings.iter().all(|f| matches!(f, Finding::DamagedBlob { .. })),
            "{findings:?}"
        );
    }
    world.faults.heal();
    let bytes = noise(77, 5000);
    let sums = blob::Sums::of(&bytes);
    world.parts.origin.put(&sums.id(), &sums, &bytes).unwrap();
    assert_eq!(check(&world, Depth::Full), [Finding::StrayBlob { blob: sums.id(), size: 5000 }]);
    assert_eq!(repair(&world), (1, 0));
    assert_eq!(check(&world, Depth::Full), []);
    assert_eq!(world.parts.origin.size(&sums.id()).unwrap(), None);
}

#[test]
fn fsck_mends_names_when_asked() {
    let world = sound();
    let v = world.open();
    let small = v.resolve(b"d/small3", true).unwrap().ino;
    let dir = v.resolve(b"d", true).unwrap().ino;
    drop(v);
    // A name whose inode is gone (so that its bytes' counts are wrong), and an inode that lost its name.
    let lost = Commit { dels: vec![Key::inode(small), Key::dentry(dir, b"small4")], ..Commit::default() };
    world.parts.store.commit(lost).unwrap();
    assert!(check(&world, Depth::Presence).len() >= 2);
    let (mended, left) = repair(&world);
    assert!(mended >= 2 && left == 0, "{mended} {left}");
    assert_eq!(check(&world, Depth::Full).into_iter().filter(|f| !f.is_harmless()).count(), 0);
    let v = world.open();
    assert_eq!(v.find(dir, "small3"), None);
    let found = v.names(Ino::ROOT).into_iter().find(|name| name.starts_with("lost+")).unwrap();
    assert!(v.get(v.find(Ino::ROOT, &found).unwrap().ino) == noise(104, 3000));
    v.close().unwrap();
}

#[test]
fn fsck_knows_what_a_crash_leaves_from_what_is_lost() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 100_000));
    let used = world.parts.packs.open_packs().unwrap()[0].0;
    drop(v);
    assert_eq!(check(&world, Depth::Full), [], "an open pack is no damage");
    world.parts.packs.discard(used).unwrap();
    let findings = check(&world, Depth::Full);
    let [Finding::LostOpenPack { pack, len: None, files }] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((*pack, files[0].path.as_deref(), files[0].len), (used, Some("/f"), 100_000));
    // When the file is removed, nothing is lost.
    let v = world.open();
    assert_eq!(v.read(f, 0, &mut [0; 10]), Err(Errno::EIO));
    v.unlink(Ino::ROOT, b"f").unwrap();
    eventually("it is gone", || v.stats().unwrap().inodes == 1);
    v.close().unwrap();
    drop(v);
    repair(&world);
    assert_eq!(check(&world, Depth::Full), []);
    // A row of a pack that was never created.
    let pack = base::PackNo(1 << 30);
    let row = Commit { puts: vec![(Key::pack(pack), meta::PackRow::Open.encode())], ..Commit::default() };
    world.parts.store.commit(row).unwrap();
    assert_eq!(check(&world, Depth::Full), [Finding::DeadPack { pack }]);
    assert_eq!(repair(&world), (1, 0));
    assert_eq!(check(&world, Depth::Full), []);
}

#[test]
fn a_collection_frees_all_that_is_dead() {
    let world = World::new();
    let v = world.open();
    let mut files = Vec::new();
    for n in 0..24u64 {
        let f = v.file(Ino::ROOT, &format!("f{n}"));
        v.put(f, 0, &noise(n, 500_000));
        files.push(f);
    }
    for n in (0..24).filter(|n| n % 3 != 0) {
        v.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
        v.forget(files[n], 1);
    }
    let mut told = 0;
    let done = v.collect(&mut |_| told += 1).unwrap();
    assert!(told > 0);
    // Not everything is freed: a pack that is more live than dead stays.
    eventually("little is dead", || {
        let stats = v.stats().unwrap();
        stats.stored_bytes + stats.open_bytes <= 8 * 500_000 * 3 / 2
    });
    assert!(done.freed_bytes > 0);
    let contents = world.parts.store.scan(&Key::kind(meta::key::tags::CONTENT), 100).unwrap().len();
    assert!(contents <= 8, "{contents} contents are remembered");
    for n in (0..24).step_by(3) {
        assert!(v.get(files[n]) == noise(n as u64, 500_000));
    }
    v.close().unwrap();
    drop(v);
    assert_eq!(check(&world, Depth::Full), []);
}

/// A lookup of names that may need the network does not run on the thread that receives requests.
#[test]
fn lookups_wait_where_names_are_remote() {
    use crate::api::Waiting;
    let world = World::new();
    let local = world.open();
    assert!(!local.would_wait(Waiting::Look));
    local.close().unwrap();
    let options = Options { frozen: true, names_local: false, ..world.options() };
    let far = Volume::open(world.parts.clone(), options).unwrap();
    assert!(far.would_wait(Waiting::Look));
    let read = Waiting::Read { ino: Ino::ROOT, offset: 0, len: 1 };
    assert!(!far.would_wait(read), "these are known to be local");
    far.close().unwrap();
    let parts = Parts { store: Arc::new(Elsewhere(world.parts.store.clone())), ..world.parts.clone() };
    let far = Volume::open(parts, Options { frozen: true, names_local: false, ..world.options() }).unwrap();
    assert!(far.would_wait(read));
}

/// A store whose rows would have to be fetched.
struct Elsewhere(Arc<dyn MetaStore>);

impl MetaStore for Elsewhere {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.0.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.0.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.0.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.0.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.0.flush()
    }
}

/// A store that counts its lookups.
struct Counted {
    inner: Arc<dyn MetaStore>,
    keys: Mutex<Vec<Key>>,
}

impl MetaStore for Counted {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.keys.lock().push(key.clone());
        self.inner.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        true
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.keys.lock().extend(keys.iter().cloned());
        self.inner.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.inner.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.inner.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.inner.flush()
    }
}

/// The question whether a read waits, and the read itself, share one look at the names.
#[test]
fn a_read_looks_its_names_up_once() {
    let world = World::new();
    let local = world.open();
    let (large, small) = (local.file(Ino::ROOT, "large"), local.file(Ino::ROOT, "small"));
    let bytes = noise(1, 500_000);
    local.put(large, 0, &bytes);
    local.put(small, 0, b"inline");
    local.close().unwrap();
    let store = Arc::new(Counted { inner: world.parts.store.clone(), keys: Mutex::default() });
    let parts = Parts { store: store.clone(), ..world.parts.clone() };
    for names_local in [true, false] {
        let options = Options { frozen: true, local: false, names_local, ..world.options() };
        let volume = Volume::open(parts.clone(), options).unwrap();
        let mut buf = vec![0; 4096];
        volume.read(large, 0, &mut buf).unwrap();
        store.keys.lock().clear();
        let plan = volume.plan_read(large, 8192, 4096);
        assert_eq!(volume.read_planned(&plan, &mut buf), Ok(4096));
        assert!(buf == bytes[8192..12288]);
        let expected = [Key::inode(large), Key::extents(large, 0)];
        assert_eq!(*store.keys.lock(), expected, "the inode and the extents once each");
        store.keys.lock().clear();
        let plan = volume.plan_read(small, 0, 4096);
        assert_eq!(volume.read_planned(&plan, &mut buf), Ok(6));
        assert_eq!(*store.keys.lock(), [Key::inode(small), Key::inline(small)], "an inline file too");
        volume.close().unwrap();
    }
}

/// A plan is made of names that may be out of date when the read comes: it then reads them again.
#[test]
fn a_planned_read_finds_bytes_that_moved_meanwhile() {
    let world = World::new();
    let volume = Volume::open(world.parts.clone(), Options { local: false, ..world.options() }).unwrap();
    let file = volume.file(Ino::ROOT, "f");
    let bytes = noise(1, 300_000);
    volume.put(file, 0, &bytes);
    let plan = volume.plan_read(file, 0, 4096);
    // The pack becomes a blob, and what it was is removed.
    volume.seal_now(Duration::from_secs(60)).unwrap();
    volume.sync().unwrap();
    let mut buf = vec![0; 4096];
    assert_eq!(volume.read_planned(&plan, &mut buf), Ok(4096));
    assert!(buf == bytes[..4096]);
    volume.close().unwrap();
}
