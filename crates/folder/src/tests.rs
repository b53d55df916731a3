use std::ops::ControlFlow;
use std::os::unix::fs::{PermissionsExt, symlink};

use fs::api::{Caller, Filesystem, NewNode};

use super::*;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

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
