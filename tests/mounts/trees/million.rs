//! Large trees: what a change costs, and how soon a million files can be looked up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Ino, Timestamp};
use blob::Origin;
use fs::api::Filesystem;
use fs::volume::{Options, Volume};
use meta::key::Key;
use meta::record::{Dentry, InodeRecord, encode_i64, mode};
use meta::store::Commit;
use meta::{MetaStore, Value};
use tree::rows::Scope;

use super::world::{ROOT, World, options, parts};

const IN_A_FOLDER: u64 = 1000;

fn inode(mode: u32, parent: Ino, bytes: u64) -> Value {
    let time = Timestamp(1_700_000_000_000_000_000);
    let record = InodeRecord {
        mode,
        flags: if bytes > 0 { InodeRecord::INLINE } else { 0 },
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size: bytes,
        stored: bytes,
        parent,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 1,
        xattr_list: 0,
        xattr_bytes: 0,
        quota: Ino(0),
    };
    record.encode()
}

/// A volume with so many small files in folders of a thousand, written directly as rows: creating them one by
/// one would take minutes.
fn with_files(count: u64) -> World {
    let world = World::new();
    let store: &Arc<dyn MetaStore> = &world.parts.store;
    let folders = count / IN_A_FOLDER;
    let mut puts: Vec<(Key, Value)> = Vec::new();
    let first_file = 2 + folders;
    for folder in 0..folders {
        let dir = Ino(2 + folder);
        let dentry = Dentry { ino: dir, kind: mode::S_IFDIR };
        puts.push((Key::inode(dir), inode(mode::S_IFDIR | 0o755, Ino::ROOT, 0)));
        puts.push((Key::dentry(Ino::ROOT, format!("folder {folder}").as_bytes()), dentry.encode()));
        for n in 0..IN_A_FOLDER {
            let ino = Ino(first_file + folder * IN_A_FOLDER + n);
            let dentry = Dentry { ino, kind: mode::S_IFREG };
            puts.push((Key::inode(ino), inode(mode::S_IFREG | 0o644, dir, 8)));
            puts.push((Key::dentry(dir, format!("file {n}.txt").as_bytes()), dentry.encode()));
            puts.push((Key::inline(ino), ino.0.to_be_bytes().as_slice().into()));
        }
        if puts.len() > 100_000 || folder + 1 == folders {
            let puts = std::mem::take(&mut puts);
            store.commit(Commit { puts, ..Commit::default() }).unwrap();
        }
    }
    let all = count + folders;
    let counters = [
        (Key::subdirs(Ino::ROOT), folders as i64),
        (Key::volume("inodes"), all as i64 + 1),
        (Key::volume("bytes"), count as i64 * 8),
    ];
    let mut puts: Vec<(Key, Value)> =
        counters.into_iter().map(|(key, count)| (key, encode_i64(count))).collect();
    puts.push((Key::volume("next-ino"), (all + 100).to_be_bytes().as_slice().into()));
    store.commit(Commit { puts, ..Commit::default() }).unwrap();
    world
}

/// Publishes, changes one file, publishes again, and opens the published tree.
fn cost(count: u64) -> (Duration, Duration) {
    let world = with_files(count);
    let volume = world.open();
    let began = Instant::now();
    let first = world.publish(&volume, "latest", Scope::Whole).unwrap();
    let published = began.elapsed();
    println!("{count} files: {:?} in {published:?}, {} rows", first.written, first.rows);
    let file = volume.resolve(b"folder 7/file 77.txt", false).unwrap();
    volume.write(file.ino, 0, b"changed!", None, false).unwrap();
    let began = Instant::now();
    let again = world.publish(&volume, "latest", Scope::Whole).unwrap();
    println!("one changed: {:?} in {:?}", again.written, began.elapsed());
    assert!(again.written.new_nodes <= 8 && again.written.blobs == 1, "{:?}", again.written);
    assert!(again.written.bytes < 400 << 10, "{:?}", again.written);
    volume.close().unwrap();

    let began = Instant::now();
    let frozen = world.frozen("latest");
    let found = frozen.resolve(b"folder 7/file 77.txt", false).unwrap();
    let opened = began.elapsed();
    println!("mounted and looked up in {opened:?}");
    let mut bytes = [0; 8];
    frozen.read(found.ino, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"changed!");
    let mut names = 0;
    let dir = frozen.resolve(b"folder 3", false).unwrap().ino;
    let mut position = 0;
    loop {
        let before = names;
        frozen
            .readdir(dir, position, &mut |entry| {
                position = entry.next;
                names += 1;
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        if names == before {
            break;
        }
    }
    assert_eq!(names, IN_A_FOLDER + 2);
    (published, opened)
}

#[test]
fn a_change_among_100_000_files_writes_a_handful_of_nodes() {
    let (published, opened) = cost(100_000);
    assert!(
        opened < published / 4,
        "opening reads some nodes, but took {opened:?}; publishing {published:?}"
    );
}

#[test]
#[ignore = "a million files: some seconds and 2 GiB of memory"]
fn long_a_tree_of_a_million_files_is_opened_without_reading_all_of_it() {
    let (published, opened) = cost(1_000_000);
    assert!(
        opened < published / 40,
        "opening reads some nodes, but took {opened:?}; publishing {published:?}"
    );
}

#[test]
fn a_large_tree_is_restored() {
    let world = with_files(20_000);
    let volume = world.open();
    world.publish(&volume, "latest", Scope::Whole).unwrap();
    drop(volume);
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(meta::Sqlite::open(&folder.path().join("names.db")).unwrap());
    tree::restore::restore(&world.tree("latest"), &*store, &mut |_| true).unwrap();
    let origin: Arc<dyn Origin> = world.origin.clone();
    let restored = parts(store, origin);
    assert_eq!(World::findings(&restored).iter().filter(|found| !found.contains("nobody's")).count(), 0);
    let volume = Volume::open(restored, Options { ..options() }).unwrap();
    assert_eq!(volume.stats().unwrap().inodes, 20_021);
    let found = volume.resolve(b"folder 19/file 999.txt", false).unwrap();
    assert_eq!(volume.getattr(found.ino).unwrap().size, 8);
    let made = volume.mkdir(&ROOT, Ino::ROOT, b"more", 0o755, 0).unwrap();
    assert!(made.attr.ino.0 > 20_021, "numbers are not given out twice");
    volume.close().unwrap();
}
