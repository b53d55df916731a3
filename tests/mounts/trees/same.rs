//! A tree shows the volume's contents, and a volume restored from it equals that volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::Ino;
use fs::Errno;
use fs::api::{Filesystem, NewNode};
use fs::volume::Volume;
use tree::TreeError;
use tree::root::Root;
use tree::rows::Scope;

use super::world::{ROOT, Seen, Work, World, look, options, parts};

#[test]
fn a_frozen_tree_shows_what_the_volume_was() {
    for seed in 0..6 {
        println!("seed {seed}");
        let world = World::new();
        let volume = world.open();
        let mut work = Work::new(seed);
        work.steps(&volume, 250);
        let then = look(&volume, Ino::ROOT);
        let done = world.publish(&volume, "one", Scope::Whole).unwrap();
        // Inodes without a name are deleted in the background, so there may be fewer by now.
        assert!(done.root.inodes >= volume.stats().unwrap().inodes);
        work.steps(&volume, 100);
        let now = look(&volume, Ino::ROOT);
        assert_ne!(then, now);
        let again = world.publish(&volume, "two", Scope::Whole).unwrap();
        assert_eq!(again.root.sequence, 1, "another name");
        for (name, expected) in [("one", &then), ("two", &now)] {
            let frozen = world.frozen(name);
            assert_eq!(&look(&frozen, Ino::ROOT), expected);
            let node = NewNode { kind: fs::api::FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
            assert_eq!(frozen.mknod(&ROOT, Ino::ROOT, b"x", &node), Err(Errno::EROFS));
            frozen.close().unwrap();
        }
        volume.close().unwrap();
    }
}

#[test]
fn a_restored_volume_is_the_volume() {
    for seed in 10..14 {
        println!("seed {seed}");
        let world = World::new();
        let volume = world.open();
        let mut work = Work::new(seed);
        work.steps(&volume, 300);
        let then = look(&volume, Ino::ROOT);
        world.publish(&volume, "keep", Scope::Whole).unwrap();
        world.publish(&volume, "latest", Scope::Whole).unwrap();
        // Later changes are lost with the old volume, which is dropped without being closed.
        work.steps(&volume, 50);
        drop(volume);

        let store = Arc::new(meta::Memory::new());
        let rows = tree::restore::restore(&world.tree("latest"), &*store, &mut |_| true).unwrap();
        assert_eq!(rows, Root::read(&*world.origin, "latest", None).unwrap().top.rows);
        for name in ["keep", "latest"] {
            tree::restore::hold(&*store, name, &world.tree(name).blobs().unwrap()).unwrap();
        }
        let parts = parts(store, world.origin.clone());
        let strays: Vec<String> = World::findings(&parts);
        assert!(strays.iter().all(|finding| finding.contains("nobody's")), "{strays:?}");
        let restored = Volume::open(parts.clone(), options()).unwrap();
        assert_eq!(look(&restored, Ino::ROOT), then);
        // The restored volume can be used: new inodes have new numbers, and everything can be removed.
        let mut more = Work::new(seed + 100);
        let before = restored.stats().unwrap().inodes;
        more.steps(&restored, 100);
        assert!(restored.stats().unwrap().inodes > before);
        restored.collect(&mut |_| ()).unwrap();
        restored.close().unwrap();
        let found: Vec<String> = World::findings(&parts);
        assert!(found.iter().all(|finding| finding.contains("nobody's")), "{found:?}");
        assert_eq!(look(&world.frozen("keep"), Ino::ROOT), then, "what is published is still there");
    }
}

/// Removes what a subtree cannot share with the whole: link counts of files that also have names elsewhere,
/// and the root's number.
fn comparable(all: BTreeMap<Vec<u8>, Seen>, root: Ino) -> BTreeMap<Vec<u8>, Seen> {
    let plain = |(path, mut seen): (Vec<u8>, Seen)| {
        if seen.attr.kind != fs::api::FileKind::Dir {
            seen.attr.nlink = 0;
        }
        if seen.attr.ino == root {
            seen.attr.ino = Ino::ROOT;
        }
        (path, seen)
    };
    all.into_iter().map(plain).collect()
}

#[test]
fn a_folder_is_published_as_a_volume_of_its_own() {
    for seed in 20..24 {
        println!("seed {seed}");
        let world = World::new();
        let volume = world.open();
        let mut work = Work::new(seed);
        work.steps(&volume, 400);
        let dir = *work
            .dirs()
            .iter()
            .max_by_key(|dir| look(&volume, **dir).len() * usize::from(dir.0 > 1))
            .unwrap();
        let then = comparable(look(&volume, dir), dir);
        let done = world.publish(&volume, "part", Scope::Folder(dir)).unwrap();
        let frozen = world.frozen("part");
        assert_eq!(comparable(look(&frozen, Ino::ROOT), Ino::ROOT), then);
        assert_eq!(frozen.stats().unwrap().inodes, done.root.inodes);
        let store = Arc::new(meta::Memory::new());
        tree::restore::restore(&world.tree("part"), &*store, &mut |_| true).unwrap();
        let parts = parts(store, world.origin.clone());
        let found = World::findings(&parts);
        assert!(found.iter().all(|finding| finding.contains("nobody's")), "a sound volume: {found:?}");
        let file = volume.mknod(
            &ROOT,
            dir,
            b"a file",
            &NewNode { kind: fs::api::FileKind::File, perm: 0, umask: 0, rdev: 0 },
        );
        let scope = Scope::Folder(file.unwrap().attr.ino);
        assert!(matches!(world.publish(&volume, "part", scope), Err(TreeError::NotAFolder)));
        assert!(matches!(
            world.publish(&volume, "part", Scope::Folder(Ino(1 << 40))),
            Err(TreeError::NotAFolder)
        ));
    }
}

#[test]
fn programs_go_on_writing_while_a_volume_is_published() {
    let world = World::new();
    let volume = world.open();
    let node = NewNode { kind: fs::api::FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    let files: Vec<Ino> = (0..8)
        .map(|n| volume.mknod(&ROOT, Ino::ROOT, format!("f{n}").as_bytes(), &node).unwrap().attr.ino)
        .collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each round writes the same byte to all files, in order. So a snapshot shows at most one unfinished
        // round.
        let writer = scope.spawn(|| {
            let mut round = 0u8;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                round = round.wrapping_add(1);
                for file in &files {
                    volume.write(*file, 0, &vec![round; 70_000], None, false).unwrap();
                }
            }
        });
        for n in 0..12 {
            let name = format!("t{}", n % 3);
            world.publish(&volume, &name, Scope::Whole).unwrap();
            let frozen = world.frozen(&name);
            let mut rounds: Vec<u8> = Vec::new();
            for file in &files {
                let mut bytes = vec![0; 70_000];
                let got = frozen.read(*file, 0, &mut bytes).unwrap();
                assert!(bytes[..got].iter().all(|byte| *byte == bytes[0]), "half of a write");
                rounds.push(if got == 0 { 0 } else { bytes[0] });
            }
            let (first, last) = (rounds[0], rounds[7]);
            let in_order = rounds.windows(2).all(|two| two[0] == two[1] || two[0] == two[1].wrapping_add(1));
            assert!(in_order && (first == last || first == last.wrapping_add(1)), "{rounds:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap();
    });
    volume.close().unwrap();
}
