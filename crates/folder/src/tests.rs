use std::cell::RefCell;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};

use fs::api::{Caller, Filesystem, NewNode, RenameMode};

use super::*;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

const BOB: Caller = Caller { uid: 1002, gid: 1003, pid: 0 };

thread_local! {
    /// What happens once, between the creation of something and the next step.
    static CREATED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

pub(crate) fn created() {
    if let Some(act) = CREATED.take() {
        act();
    }
}

fn folder() -> (tempfile::TempDir, Folder) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("top")).unwrap();
    std::fs::write(dir.path().join("secret"), "outside").unwrap();
    let folder = Folder::open(&dir.path().join("top")).unwrap();
    (dir, folder)
}

fn new_file() -> NewNode {
    NewNode { kind: FileKind::File, perm: 0o666, umask: 0o022, rdev: 0 }
}

/// Nothing outside the folder is reached: not by `..`, not by a name with a slash, not through a symbolic
/// link.
#[test]
fn nothing_outside_can_be_reached() {
    let (dir, folder) = folder();
    symlink("../secret", dir.path().join("top/link")).unwrap();
    symlink("..", dir.path().join("top/up")).unwrap();
    for name in [&b".."[..], b"../secret", b"up/secret", b"/etc/passwd"] {
        assert!(folder.lookup(Ino::ROOT, name).is_err(), "{}", String::from_utf8_lossy(name));
    }
    let link = folder.lookup(Ino::ROOT, b"link").unwrap();
    assert_eq!(link.attr.kind, FileKind::Symlink);
    assert_eq!(folder.readlink(link.node).unwrap(), b"../secret");
    assert!(folder.read(link.node, 0, &mut [0; 9]).is_err());
    let up = folder.lookup(Ino::ROOT, b"up").unwrap();
    assert!(folder.lookup(up.node, b"secret").is_err());
    assert!(folder.mknod(&ROOT, up.node, b"new", &new_file()).is_err());
}

#[test]
fn files_live_as_long_as_they_are_held() {
    let (dir, folder) = folder();
    let made = folder.mknod(&ROOT, Ino::ROOT, b"f", &new_file()).unwrap();
    assert_eq!(made.attr.perm, 0o644);
    assert!(!folder.write(made.node, 3, b"data", None, false).unwrap());
    let again = folder.lookup(Ino::ROOT, b"f").unwrap();
    assert_eq!((again.node, again.attr.size), (made.node, 7));
    folder.unlink(Ino::ROOT, b"f").unwrap();
    let mut room = [1; 10];
    assert_eq!(folder.read(made.node, 0, &mut room), Ok(7));
    assert_eq!(&room[..7], b"\0\0\0data");
    assert_eq!(folder.getattr(made.node).unwrap().nlink, 0);
    folder.forget(made.node, 1);
    assert!(folder.getattr(made.node).is_ok(), "one reference is left");
    folder.forget(made.node, 1);
    assert_eq!(folder.getattr(made.node), Err(Errno(libc::ESTALE)));
    assert_eq!(folder.lookup(Ino::ROOT, b"f"), Err(Errno::ENOENT));
    assert!(dir.path().join("top").read_dir().unwrap().next().is_none());
}

#[test]
fn writes_and_truncations_of_others_clear_set_ids() {
    let (dir, folder) = folder();
    let path = dir.path().join("top/p");
    std::fs::write(&path, "x").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o6755)).unwrap();
    let found = folder.lookup(Ino::ROOT, b"p").unwrap();
    let user = Caller { uid: 1000, gid: 1000, pid: 0 };
    folder.write(found.node, 0, b"y", None, false).unwrap();
    assert_eq!(folder.getattr(found.node).unwrap().perm, 0o6755);
    assert!(folder.write(found.node, 0, b"y", Some(&user), false).unwrap());
    assert_eq!(folder.getattr(found.node).unwrap().perm, 0o755);
}

#[test]
fn a_listing_continues_from_any_position() {
    let (dir, folder) = folder();
    for n in 0..500 {
        std::fs::write(dir.path().join(format!("top/{n}")), "").unwrap();
    }
    let (mut position, mut names) = (0, Vec::new());
    loop {
        let mut taken = 0;
        folder
            .readdir(Ino::ROOT, position, &mut |line| {
                if taken == 7 {
                    return ControlFlow::Break(());
                }
                taken += 1;
                position = line.next;
                names.push(line.name.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
        if taken == 0 {
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 502);
}

/// The ways to create something under a name.
type Create = fn(&Folder, &Caller, &[u8]) -> Result<Entry>;

const WAYS: [(&str, Create); 5] = [
    ("file", |folder, caller, name| {
        folder.mknod(caller, Ino::ROOT, name, &NewNode { perm: 0o6755, ..new_file() })
    }),
    ("dir", |folder, caller, name| folder.mkdir(caller, Ino::ROOT, name, 0o700, 0)),
    ("fifo", |folder, caller, name| {
        folder.mknod(caller, Ino::ROOT, name, &NewNode { kind: FileKind::Fifo, ..new_file() })
    }),
    ("device", |folder, caller, name| {
        let new = NewNode { kind: FileKind::CharDevice, rdev: 0x103, ..new_file() };
        folder.mknod(caller, Ino::ROOT, name, &new)
    }),
    ("symlink", |folder, caller, name| folder.symlink(caller, Ino::ROOT, name, b"target")),
];

/// Another guest renames a file of another user over the new name. The file was given to the caller, with
/// the permissions that the caller chose, and taken for the new one.
#[test]
fn regression_a_file_that_takes_the_name_of_a_new_one_is_not_given_away() {
    for (what, create) in WAYS {
        let (dir, folder) = folder();
        let (secret, new) = (dir.path().join("top/secret"), dir.path().join("top/x"));
        match what {
            "dir" => std::fs::create_dir(&secret).unwrap(),
            _ => std::fs::write(&secret, "secret").unwrap(),
        }
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&secret, Some(1001), Some(1001)).unwrap();
        let (from, to) = (secret.clone(), new.clone());
        CREATED.set(Some(Box::new(move || std::fs::rename(from, to).unwrap())));
        let made = create(&folder, &BOB, b"x");
        let victim = std::fs::symlink_metadata(&new).unwrap();
        assert_eq!((victim.uid(), victim.gid(), victim.mode() & 0o7777), (1001, 1001, 0o600), "{what}");
        if what == "file" {
            let made = made.unwrap();
            assert_ne!(made.attr.ino, Ino(victim.ino()));
            assert_eq!((made.attr.uid, made.attr.nlink), (1002, 0));
            assert_eq!(folder.read(made.node, 0, &mut [0; 10]), Ok(0));
        }
    }
}

/// What is linked is what was named by its number, whatever is under the new name by then.
#[test]
fn a_link_answers_with_the_file_that_was_linked() {
    let (dir, folder) = folder();
    let made = folder.mknod(&BOB, Ino::ROOT, b"f", &new_file()).unwrap();
    let linked = folder.link(made.node, Ino::ROOT, b"g").unwrap();
    assert_eq!((linked.node, linked.attr.nlink), (made.node, 2));
    std::fs::remove_file(dir.path().join("top/g")).unwrap();
    assert_eq!(folder.getattr(linked.node).unwrap().nlink, 1);
}

/// Also where this machine would not allow the caller to create it. This thread stays what it was.
#[test]
fn what_a_caller_creates_is_the_callers() {
    for dir_mode in [0o500, 0o2500] {
        let (dir, folder) = folder();
        let top = dir.path().join("top");
        chown(&top, Some(1001), Some(1009)).unwrap();
        std::fs::set_permissions(&top, std::fs::Permissions::from_mode(dir_mode)).unwrap();
        let group = if dir_mode == 0o500 { 1003 } else { 1009 };
        for (what, create) in WAYS {
            let attr = create(&folder, &BOB, what.as_bytes()).unwrap().attr;
            assert_eq!((attr.uid, attr.gid), (1002, group), "{what}");
            let found = std::fs::symlink_metadata(top.join(what)).unwrap();
            assert_eq!((found.uid(), found.gid()), (1002, group), "{what}");
            assert_eq!(create(&folder, &BOB, what.as_bytes()), Err(Errno::EEXIST), "{what}");
            create(&folder, &ROOT, b"root").unwrap();
            assert_eq!(std::fs::symlink_metadata(top.join("root")).unwrap().uid(), 0, "{what}");
            std::fs::rename(top.join("root"), dir.path().join(format!("root {what}"))).unwrap();
            // No identity at all: this process's.
            let none = Caller { uid: u32::MAX, gid: u32::MAX, pid: 0 };
            assert_eq!(create(&folder, &none, b"none").unwrap().attr.uid, 0, "{what}");
            std::fs::rename(top.join("none"), dir.path().join(format!("none {what}"))).unwrap();
        }
        let perm = |name: &str| std::fs::symlink_metadata(top.join(name)).unwrap().mode() & 0o7777;
        assert_eq!((perm("file"), perm("fifo")), (0o6755, 0o644));
        assert_eq!(perm("dir"), 0o700 | (dir_mode & 0o2000));
        let device = std::fs::symlink_metadata(top.join("device")).unwrap();
        assert!(device.file_type().is_char_device() && device.rdev() == 0x103);
        // The thread has its own rights again.
        std::fs::write(dir.path().join("own"), "").unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("own")).unwrap().uid(), 0);
        let made = folder.tmpfile(&BOB, Ino::ROOT, 0o600, 0).unwrap().attr;
        assert_eq!((made.uid, made.gid, made.nlink), (1002, group, 0));
    }
}

/// The number of a node that the server knew before its restart is the number of nothing afterwards. It was
/// that of the file which had the inode number then.
#[test]
fn regression_an_old_number_names_nothing_after_a_restart() {
    let (dir, before) = folder();
    let old = before.mknod(&ROOT, Ino::ROOT, b"f", &new_file()).unwrap();
    drop(before);
    let after = Folder::open(&dir.path().join("top")).unwrap();
    let stale = Err(Errno(libc::ESTALE));
    assert_eq!(after.getattr(old.node), stale);
    let new = after.lookup(Ino::ROOT, b"f").unwrap();
    assert_eq!(new.attr.ino, old.attr.ino);
    assert_eq!(after.getattr(old.node), stale);
    assert_eq!(after.read(old.node, 0, &mut [0]), Err(Errno(libc::ESTALE)));
    assert_eq!(after.lookup(old.node, b"."), Err(Errno(libc::ESTALE)));
    assert!(after.getattr(new.node).is_ok() && after.getattr(Ino::ROOT).is_ok());
    // A number is not given again either, when all have forgotten it.
    after.forget(new.node, 1);
    assert_ne!(after.lookup(Ino::ROOT, b"f").unwrap().node, new.node);
    assert_eq!(after.getattr(new.node), stale);
}

/// Opens a folder that keeps few descriptors. Without `handles`, it has nothing but descriptors.
fn narrow(dir: &Path, handles: bool) -> Folder {
    let folder = Folder::open(dir).unwrap();
    let root = reopen(&folder.node(Ino::ROOT).unwrap().fd().unwrap(), OFlags::PATH).unwrap();
    let pins = pins::Pins::with(&root, 8, handles);
    Folder { nodes: Nodes::with(root, pins), ..folder }
}

/// How many descriptors of files in a folder this process has.
fn descriptors(dir: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|entry| {
        let link = std::fs::read_link(entry.as_ref().unwrap().path());
        link.is_ok_and(|link| link.starts_with(dir))
    })
    .count()
}

/// Each file that a guest had looked up took a descriptor, and a guest that walked a large tree took them
/// all. Then no guest could open anything.
#[test]
fn regression_files_that_are_known_take_few_descriptors() {
    let (dir, _) = folder();
    let top = dir.path().join("top").canonicalize().unwrap();
    let folder = narrow(&top, true);
    if !folder.nodes.has_handles() {
        return println!("skipped: no handles here, or no CAP_DAC_READ_SEARCH");
    }
    for n in 0..100 {
        std::fs::write(top.join(n.to_string()), n.to_string()).unwrap();
    }
    symlink("target", top.join("link")).unwrap();
    let link = folder.lookup(Ino::ROOT, b"link").unwrap().node;
    let look = |n: usize| folder.lookup(Ino::ROOT, n.to_string().as_bytes()).unwrap().node;
    let nodes: Vec<Ino> = (0..100).map(look).collect();
    assert!(descriptors(&top) <= 8 + 2, "{} descriptors", descriptors(&top));
    // All of them are there still, also under other names and after a change.
    for (n, &node) in nodes.iter().enumerate() {
        folder.rename(Ino::ROOT, n.to_string().as_bytes(), Ino::ROOT, b"new", RenameMode::Replace).unwrap();
        std::fs::rename(top.join("new"), top.join(n.to_string())).unwrap();
        folder.write(node, 0, b"x", None, false).unwrap();
        let mut room = [0; 9];
        let len = folder.read(node, 0, &mut room).unwrap();
        assert_eq!(&room[..len], format!("x{}", &n.to_string()[1..]).as_bytes());
        assert_eq!(look(n), node, "the same node");
    }
    assert_eq!(folder.readlink(link).unwrap(), b"target");
    for &node in &nodes {
        folder.forget(node, 2);
    }
    assert_eq!(folder.getattr(nodes[7]), Err(Errno(libc::ESTALE)));
}

/// A handle alone does not keep a file alive.
#[test]
fn what_is_removed_here_lives_as_long_as_it_is_held() {
    let (dir, _) = folder();
    let top = dir.path().join("top");
    let folder = narrow(&top, true);
    let make = |name: &str| {
        let node = folder.mknod(&ROOT, Ino::ROOT, name.as_bytes(), &new_file()).unwrap().node;
        folder.write(node, 0, name.as_bytes(), None, false).unwrap();
        node
    };
    let removed = make("removed");
    let replaced = make("replaced");
    folder.unlink(Ino::ROOT, b"removed").unwrap();
    assert!(folder.unlink(Ino::ROOT, b"removed").is_err());
    make("new");
    folder.rename(Ino::ROOT, b"new", Ino::ROOT, b"replaced", RenameMode::Replace).unwrap();
    let nameless = folder.tmpfile(&ROOT, Ino::ROOT, 0o600, 0).unwrap().node;
    folder.write(nameless, 0, b"nameless", None, false).unwrap();
    folder.mkdir(&ROOT, Ino::ROOT, b"d", 0o755, 0).unwrap();
    let gone = folder.lookup(Ino::ROOT, b"d").unwrap().node;
    folder.rmdir(Ino::ROOT, b"d").unwrap();
    // Many others are used meanwhile.
    for n in 0..300 {
        make(&n.to_string());
    }
    for (node, content) in [(removed, "removed"), (replaced, "replaced"), (nameless, "nameless")] {
        let mut room = [0; 20];
        let len = folder.read(node, 0, &mut room).unwrap();
        assert_eq!(&room[..len], content.as_bytes());
        assert_eq!(folder.getattr(node).unwrap().nlink, 0);
    }
    assert!(folder.getattr(gone).is_ok());
}

/// A file that a program of this machine removes gives its number to another one. A node is never that
/// other one.
#[test]
fn a_number_that_is_used_again_is_another_node() {
    for handles in [true, false] {
        let (dir, _) = folder();
        let top = dir.path().join("top");
        let folder = narrow(&top, handles);
        let mut seen = std::collections::HashSet::new();
        for n in 0..200 {
            std::fs::write(top.join("f"), n.to_string()).unwrap();
            let node = folder.lookup(Ino::ROOT, b"f").unwrap().node;
            assert!(seen.insert(node), "{n}");
            let mut room = [0; 9];
            let len = folder.read(node, 0, &mut room).unwrap();
            assert_eq!(&room[..len], n.to_string().as_bytes());
            std::fs::remove_file(top.join("f")).unwrap();
        }
    }
}
