//! Operations on names: everything except the bytes of files.

use std::collections::BTreeSet;

use super::*;
use crate::api::{RenameMode, XattrMode};

/// The kernel resolves a file handle by a lookup of "." in the inode itself. While the inode waits to be
/// reaped, its record still exists.
#[test]
fn regression_a_handle_of_what_has_no_name_finds_nothing() {
    let world = World::new();
    let v = world.open();
    let (f, d) = (v.file(Ino::ROOT, "f"), v.dir(Ino::ROOT, "d"));
    for ino in [f, d] {
        assert_eq!(v.lookup(ino, b".").unwrap().attr.ino, ino);
    }
    v.unlink(Ino::ROOT, b"f").unwrap();
    v.rmdir(Ino::ROOT, b"d").unwrap();
    for ino in [f, d] {
        // Held, so it cannot be reaped here.
        assert_eq!(v.lookup(ino, b"."), Err(Errno::ENOENT));
    }
}

#[test]
fn names_come_and_go() {
    let world = World::new();
    let v = world.open();
    let d = v.dir(Ino::ROOT, "d");
    let f = v.file(d, "f");
    assert_eq!(v.names(d), [".", "..", "f"]);
    assert_eq!(v.getattr(Ino::ROOT).unwrap().nlink, 3);
    let linked = v.link(f, Ino::ROOT, b"g").unwrap();
    assert_eq!((linked.attr.ino, linked.attr.nlink), (f, 2));
    v.unlink(d, b"f").unwrap();
    assert_eq!(v.getattr(f).unwrap().nlink, 1);
    assert_eq!(v.lookup(d, b"f"), Err(Errno::ENOENT));
    assert_eq!(v.rmdir(Ino::ROOT, b"g"), Err(Errno::ENOTDIR));
    assert_eq!(v.unlink(Ino::ROOT, b"d"), Err(Errno::EISDIR));
    let s = v.symlink(&ROOT, d, b"s", b"../g").unwrap().attr;
    assert_eq!((s.kind, s.size, s.perm), (FileKind::Symlink, 4, 0o777));
    assert_eq!(v.readlink(s.ino).unwrap(), b"../g");
    assert_eq!(v.readlink(f), Err(Errno::EINVAL));
    assert_eq!(v.rmdir(Ino::ROOT, b"d"), Err(Errno::ENOTEMPTY));
    v.rename(d, b"s", Ino::ROOT, b"g", RenameMode::Replace).unwrap();
    assert_eq!(v.find(Ino::ROOT, "g").unwrap().ino, s.ino);
    v.rmdir(Ino::ROOT, b"d").unwrap();
    assert_eq!(v.names(Ino::ROOT), [".", "..", "g"]);
    assert_eq!(v.lookup(f, b"x"), Err(Errno::ENOTDIR));
    assert_eq!(v.lookup(Ino::ROOT, &[b'n'; 256]), Err(Errno::ENAMETOOLONG));
    assert_eq!(v.lookup(Ino(999_999), b"x"), Err(Errno::ENOENT));
    assert_eq!(v.mkdir(&ROOT, Ino::ROOT, b"g", 0o755, 0), Err(Errno::EEXIST));
    v.close().unwrap();
}

#[test]
fn special_files_keep_their_kinds_and_numbers() {
    let world = World::new();
    let v = world.open();
    let kinds = [
        (FileKind::Fifo, 0),
        (FileKind::Socket, 0),
        (FileKind::CharDevice, 0x0103),
        (FileKind::BlockDevice, 0x0801),
    ];
    for (n, (kind, rdev)) in kinds.into_iter().enumerate() {
        let node = NewNode { kind, perm: 0o666, umask: 0o022, rdev };
        let made = v.mknod(&ROOT, Ino::ROOT, format!("n{n}").as_bytes(), &node).unwrap().attr;
        assert_eq!((made.kind, made.rdev, made.perm), (kind, rdev, 0o644));
    }
    v.close().unwrap();
}

#[test]
fn an_unlinked_file_lives_while_it_is_held() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 100_000));
    v.unlink(Ino::ROOT, b"f").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(v.getattr(f).unwrap().nlink, 0);
    v.put(f, 100_000, &noise(2, 10));
    assert_eq!(v.get(f).len(), 100_010);
    assert_eq!(v.stats().unwrap().nameless_inodes, 1);
    v.forget(f, 1);
    eventually("it is gone", || v.getattr(f) == Err(Errno::ENOENT));
    // A directory that is removed while it is a process's working directory.
    let d = v.dir(Ino::ROOT, "d");
    v.rmdir(Ino::ROOT, b"d").unwrap();
    assert_eq!(v.getattr(d).unwrap().nlink, 0);
    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    assert_eq!(v.mknod(&ROOT, d, b"x", &node), Err(Errno::ENOENT));
    assert_eq!(v.names(d), [".", ".."]);
    v.forget(d, 1);
    eventually("it is gone", || v.getattr(d) == Err(Errno::ENOENT));
    assert_eq!(v.stats().unwrap().inodes, 1);
    v.close().unwrap();
}

/// What kernels elsewhere held when a volume was closed or killed was deleted at once.
#[test]
fn regression_what_is_held_without_a_name_outlives_the_volume() {
    for closes in [true, false] {
        base::trial::at_some_scale(|scale| what_is_held(closes, scale * Duration::from_secs(1))).unwrap();
    }
}

/// An error if it was not held again within this time, as on a busy machine.
fn what_is_held(closes: bool, short: Duration) -> Result<(), String> {
    let end = |v: Volume| if closes { v.close().unwrap() } else { drop(v) };
    let world = World::new();
    let open = |time| {
        let options = Options { orphans_stay: time, ..world.options() };
        Volume::open(world.parts.clone(), options).unwrap()
    };
    let long = Duration::from_secs(600);
    let v = open(long);
    let (f, g) = (v.file(Ino::ROOT, "f"), v.file(Ino::ROOT, "g"));
    v.put(f, 0, b"kept");
    v.unlink(Ino::ROOT, b"f").unwrap();
    v.unlink(Ino::ROOT, b"g").unwrap();
    v.forget(g, 1);
    eventually("what is not held is gone", || v.hold_again(g) == Err(Errno::ENOENT));
    end(v);
    let v = open(long);
    assert_eq!((v.lookup(f, b".").map(drop), v.hold_again(f)), (Err(Errno::ENOENT), Ok(())));
    assert_eq!(v.get(f), b"kept");
    // The guest that came back lets it go, and another may still come.
    v.forget(f, 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(v.get(f), b"kept");
    end(v);
    let v = open(short);
    v.hold_again(f).map_err(|errno| format!("{short:?}: {errno}"))?;
    std::thread::sleep(short + Duration::from_millis(500));
    assert_eq!(v.get(f), b"kept", "it is held again");
    v.forget(f, 1);
    assert_eq!(v.hold_again(f), Err(Errno::ENOENT));
    eventually("it is gone", || v.stats().unwrap().inodes == 1);
    v.close().unwrap();
    Ok(())
}

#[test]
fn a_file_without_a_name_can_be_given_one() {
    let world = World::new();
    let v = world.open();
    let f = v.tmpfile(&ROOT, Ino::ROOT, 0o600, 0).unwrap().attr;
    assert_eq!(f.nlink, 0);
    v.put(f.ino, 0, b"kept");
    let g = v.tmpfile(&ROOT, Ino::ROOT, 0o600, 0).unwrap().attr;
    std::thread::sleep(Duration::from_millis(100));
    v.link(f.ino, Ino::ROOT, b"f").unwrap();
    v.forget(f.ino, 2);
    v.forget(g.ino, 1);
    eventually("the other is gone", || v.getattr(g.ino) == Err(Errno::ENOENT));
    assert_eq!(v.get(f.ino), b"kept");
    v.close().unwrap();
}

#[test]
fn what_was_held_at_a_crash_is_collected_at_the_next_open() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, 2000));
    v.unlink(Ino::ROOT, b"f").unwrap();
    drop(v);
    let v = world.open();
    eventually("it is gone", || v.getattr(f) == Err(Errno::ENOENT));
    eventually("its space is free", || v.stats().unwrap().stored_bytes == 0 && world.origin.bytes() == 0);
    v.close().unwrap();
    let v = world.open();
    v.file(Ino::ROOT, "g");
    v.unlink(Ino::ROOT, b"g").unwrap();
    v.unmounted();
    eventually("the kernel's end ends its holds", || v.stats().unwrap().inodes == 1);
    v.close().unwrap();
}

#[test]
fn a_listing_can_stop_and_go_on_anywhere() {
    let world = World::new();
    let v = world.open();
    let d = v.dir(Ino::ROOT, "d");
    let all: BTreeSet<String> = (0..1000).map(|n| format!("name{n}")).collect();
    for name in &all {
        v.file(d, name);
    }
    for step in [1usize, 2, 7, 300] {
        let (mut seen, mut position) = (Vec::new(), 0);
        loop {
            let mut taken = 0;
            v.readdir(d, position, &mut |entry| {
                if taken == step {
                    return ControlFlow::Break(());
                }
                taken += 1;
                seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
                position = entry.next;
                ControlFlow::Continue(())
            })
            .unwrap();
            if taken == 0 {
                break;
            }
            // Entries that are created and removed meanwhile disturb nothing.
            v.file(d, "passing");
            v.unlink(d, b"passing").unwrap();
        }
        assert_eq!(&seen[..2], [".", ".."]);
        assert_eq!(seen.len(), 1002, "step {step}");
        assert_eq!(seen[2..].iter().cloned().collect::<BTreeSet<_>>(), all);
    }
    v.close().unwrap();
}

#[test]
fn a_listing_with_attributes_counts_what_it_hands_out() {
    let world = World::new();
    let v = world.open();
    let d = v.dir(Ino::ROOT, "d");
    let f = v.file(d, "f");
    let sub = v.dir(d, "sub");
    v.dir(sub, "deeper");
    v.forget(f, 1);
    v.forget(sub, 1);
    let held = v.stats().unwrap().held_inodes;
    let mut seen = Vec::new();
    v.readdir_plus(d, 0, &mut |entry, plus| {
        seen.push((entry.name.to_vec(), plus.map(|plus| (plus.attr.ino, plus.attr.nlink))));
        ControlFlow::Continue(())
    })
    .unwrap();
    seen.sort();
    let expect = [
        (b".".to_vec(), None),
        (b"..".to_vec(), None),
        (b"f".to_vec(), Some((f, 1))),
        (b"sub".to_vec(), Some((sub, 3))),
    ];
    assert_eq!(seen, expect);
    assert_eq!(v.stats().unwrap().held_inodes, held + 2);
    // Only entries that were taken are counted.
    v.forget(f, 1);
    v.forget(sub, 1);
    v.readdir_plus(d, 2, &mut |_, _| ControlFlow::Break(())).unwrap();
    assert_eq!(v.stats().unwrap().held_inodes, held);
    v.close().unwrap();
}

/// A listing with attributes reads the names, and then their inodes. A file that was replaced in between was
/// missing in it, although its name was always there.
#[test]
fn regression_a_listing_has_a_name_that_is_replaced_meanwhile() {
    const NAMES: usize = 20;
    let world = World::new();
    let v = world.open();
    let d = v.dir(Ino::ROOT, "d");
    let replace = |n: usize| {
        let new = v.file(d, "new");
        v.rename(d, b"new", d, format!("f{}", n % NAMES).as_bytes(), RenameMode::Replace).unwrap();
        v.forget(new, 1);
    };
    (0..NAMES).for_each(replace);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..2000).for_each(replace);
            ended.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        while !ended.load(std::sync::atomic::Ordering::SeqCst) {
            let (mut names, mut held) = (BTreeSet::new(), Vec::new());
            v.readdir_plus(d, 2, &mut |entry, plus| {
                names.insert(entry.name.to_vec());
                held.extend(plus.map(|plus| plus.node));
                ControlFlow::Continue(())
            })
            .unwrap();
            held.into_iter().for_each(|node| v.forget(node, 1));
            names.remove(&b"new"[..]);
            assert_eq!(names.len(), NAMES, "{names:?}");
        }
    });
    v.close().unwrap();
}

/// The kernel may hold a folder below another one, from before it was moved, and even as an ancestor of the
/// folder that it lists. It cannot link it a second time.
#[test]
fn regression_a_listing_says_which_folders_the_kernel_holds() {
    let world = World::new();
    let v = world.open();
    let (a, f) = (v.dir(Ino::ROOT, "a"), v.file(Ino::ROOT, "f"));
    let held = || {
        let mut held = Vec::new();
        v.readdir_plus(Ino::ROOT, 2, &mut |_, plus| {
            held.extend(plus.map(|plus| (plus.node, plus.held)));
            ControlFlow::Continue(())
        })
        .unwrap();
        held.iter().for_each(|(node, _)| v.forget(*node, 1));
        held.sort();
        held
    };
    assert_eq!(held(), [(a, true), (f, false)], "a file can have several names");
    v.forget(a, 1);
    assert_eq!(held(), [(a, false), (f, false)]);
    v.close().unwrap();
}

#[test]
fn extended_attributes() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    assert_eq!(v.getxattr(f, b"user.a"), Err(Errno::ENODATA));
    v.setxattr(f, b"user.a", b"1", XattrMode::Create, false).unwrap();
    assert_eq!(v.setxattr(f, b"user.a", b"2", XattrMode::Create, false), Err(Errno::EEXIST));
    assert_eq!(v.setxattr(f, b"user.b", b"2", XattrMode::Replace, false), Err(Errno::ENODATA));
    v.setxattr(f, b"trusted.b", b"", XattrMode::Set, false).unwrap();
    assert_eq!(v.getxattr(f, b"user.a").unwrap(), b"1");
    let mut list: Vec<_> = v.listxattr(f).unwrap().split(|b| *b == 0).map(<[u8]>::to_vec).collect();
    list.sort();
    assert_eq!(list, [b"".to_vec(), b"trusted.b".to_vec(), b"user.a".to_vec()]);
    v.removexattr(f, b"user.a").unwrap();
    assert_eq!(v.removexattr(f, b"user.a"), Err(Errno::ENODATA));
    assert_eq!(v.setxattr(f, b"nonsense", b"", XattrMode::Set, false), Err(Errno::EOPNOTSUPP));
    v.close().unwrap();
}

#[test]
fn a_read_only_volume_changes_nothing() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, b"text");
    v.close().unwrap();
    let options = Options { frozen: true, ..world.options() };
    let v = Volume::open(world.parts.clone(), options).unwrap();
    assert_eq!(v.coherence(), crate::api::Coherence::Frozen);
    assert_eq!(v.get(f), b"text");
    assert_eq!(v.unlink(Ino::ROOT, b"f"), Err(Errno::EROFS));
    assert_eq!(Filesystem::write(&v, f, 0, b"x", None, false), Err(Errno::EROFS));
    assert_eq!(v.mkdir(&ROOT, Ino::ROOT, b"d", 0o755, 0), Err(Errno::EROFS));
    v.fsync(f, true).unwrap();
    v.close().unwrap();
}

#[test]
fn a_volume_says_why_it_cannot_be_opened() {
    let world = World::new();
    assert!(matches!(Volume::format(&world.parts, &FormatRequest::default()), Err(crate::OpenError::Exists)));
    let store: Arc<dyn MetaStore> = Arc::new(meta::engine::memory::Memory::new());
    let empty = Parts { store, ..world.parts.clone() };
    let error = Volume::open(empty.clone(), world.options()).err().unwrap();
    assert!(matches!(error, crate::OpenError::NotFormatted), "{error}");
    let key = meta::Key::volume("format");
    let newer = meta::Commit { puts: vec![(key, Arc::from(&[0u8, 0, 0, 9][..]))], ..Default::default() };
    world.parts.store.commit(newer).unwrap();
    let error = Volume::open(world.parts.clone(), world.options()).err().unwrap();
    assert!(matches!(error, crate::OpenError::Format { found: 9 }), "{error}");
}

#[test]
fn many_threads_in_one_directory() {
    let world = World::new();
    let v = Arc::new(world.open());
    let d = v.dir(Ino::ROOT, "d");
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let v = v.clone();
            std::thread::spawn(move || {
                for n in 0..200 {
                    let name = format!("t{t}n{n}");
                    let f = v.file(d, &name);
                    v.put(f, 0, name.as_bytes());
                    // All threads also compete for one name.
                    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
                    if let Ok(entry) = v.mknod(&ROOT, d, b"one", &node) {
                        v.forget(entry.attr.ino, 1);
                    }
                    let _ = v.unlink(d, b"one");
                    if n % 2 == 0 {
                        v.unlink(d, name.as_bytes()).unwrap();
                    }
                    v.forget(f, 1);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let _ = v.unlink(d, b"one");
    assert_eq!(v.names(d).len(), 2 + 400);
    eventually("all others are gone", || v.stats().unwrap().inodes == 402);
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}

/// ls(1) asks each file for its label, until it hears that there are none.
#[test]
fn regression_labels_that_are_not_there_are_not_supported() {
    let world = World::new();
    let v = world.open();
    let f = v.file(Ino::ROOT, "f");
    let label = b"security.selinux";
    assert_eq!(v.getxattr(f, label), Err(Errno::EOPNOTSUPP));
    assert_eq!(v.getxattr(f, b"security.capability"), Err(Errno::ENODATA));
    v.setxattr(f, b"user.a", b"1", XattrMode::Set, false).unwrap();
    assert_eq!(v.getxattr(f, label), Err(Errno::EOPNOTSUPP));
    v.setxattr(f, label, b"label", XattrMode::Set, false).unwrap();
    assert_eq!(v.getxattr(f, label).unwrap(), b"label");
    v.close().unwrap();
}
