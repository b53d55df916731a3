use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use base::Timestamp;

use super::*;

fn item(path: &str, kind: Kind, perm: u32) -> Item {
    let time = Timestamp::from_parts(1_000_000_000, 5);
    let (uid, gid) = (caller::euid(), 0);
    Item { path: path.into(), kind, perm, uid, gid, atime: time, mtime: time, xattrs: Vec::new() }
}

fn file(place: &mut Place, path: &str, bytes: &[u8]) -> Result<()> {
    place.item(item(path, Kind::File { size: bytes.len() as u64 }, 0o644))?;
    place.piece(0, bytes.to_vec())?;
    place.end()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The final chmod of a folder followed a symbolic link that a user had put in its place. So a file of root
/// became accessible to everybody.
#[test]
fn regression_a_link_in_the_place_of_a_folder_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let secret = temp.path().join("secret");
    fs::write(&secret, "s").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let before = fs::metadata(&secret).unwrap();
    let root = temp.path().join("to");
    for target in [secret.clone(), temp.path().join("other")] {
        let _ = fs::create_dir(temp.path().join("other"));
        let _ = fs::remove_dir_all(&root);
        let mut place = Place::new(&root, false).unwrap();
        place.item(item("d", Kind::Dir, 0o777)).unwrap();
        place.item(item("d/e", Kind::Dir, 0o777)).unwrap();
        fs::rename(root.join("d"), root.join("moved")).unwrap();
        symlink(&target, root.join("d")).unwrap();
        let failed = place.finish().unwrap_err();
        assert!(["io", "changed"].contains(&failed.code.as_ref()), "{failed}");
        assert_eq!(mode(&secret), 0o600);
        assert_eq!(fs::metadata(&secret).unwrap().modified().unwrap(), before.modified().unwrap());
        assert!(mode(&temp.path().join("other")) != 0o777);
    }
    // Another folder in its place is detected too.
    let _ = fs::remove_dir_all(&root);
    let mut place = Place::new(&root, false).unwrap();
    place.item(item("d", Kind::Dir, 0o777)).unwrap();
    fs::rename(root.join("d"), root.join("moved")).unwrap();
    fs::create_dir(root.join("d")).unwrap();
    fs::set_permissions(root.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(place.finish().unwrap_err().code, "changed");
    assert_eq!(mode(&root.join("d")), 0o700);
}

#[test]
fn regression_what_is_not_what_was_made_is_not_dressed() {
    let temp = tempfile::tempdir().unwrap();
    let place = Place::new(temp.path(), false).unwrap();
    let pipe = item("p", Kind::Node { format: libc::S_IFIFO, rdev: 0 }, 0o666);
    let reopen = |name: &str| place.rules.reopen(&place.root, &pipe, OsStr::new(name), libc::S_IFIFO);
    fs::write(temp.path().join("file"), "x").unwrap();
    symlink("file", temp.path().join("link")).unwrap();
    for name in ["file", "link"] {
        assert_eq!(reopen(name).unwrap_err().code, "changed", "{name}");
    }
    // This is one more name of another user's file.
    sys::mknod_at(&place.root.fd, OsStr::new("pipe"), libc::S_IFIFO | 0o600, 0).unwrap();
    assert!(reopen("pipe").is_ok());
    fs::hard_link(temp.path().join("pipe"), temp.path().join("again")).unwrap();
    assert_eq!(reopen("pipe").unwrap_err().code, "changed");
}

#[test]
fn regression_folders_are_closed_until_everything_is_in_them() {
    let temp = tempfile::tempdir().unwrap();
    let mut place = Place::new(&temp.path().join("to"), false).unwrap();
    place.item(item("d", Kind::Dir, 0o777)).unwrap();
    file(&mut place, "d/f", b"x").unwrap();
    place.workers.settle().unwrap();
    assert_eq!(mode(&temp.path().join("to/d")), 0o700);
    place.finish().unwrap();
    assert_eq!((mode(&temp.path().join("to/d")), mode(&temp.path().join("to/d/f"))), (0o777, 0o644));
}

/// An archive that was appended to has a name twice. The last member counts. A link to the first keeps the
/// first content.
#[test]
fn regression_a_name_that_comes_again_replaces_what_it_was() {
    let temp = tempfile::tempdir().unwrap();
    let mut place = Place::new(temp.path(), false).unwrap();
    file(&mut place, "a", b"first").unwrap();
    place.item(item("b", Kind::HardLink("a".into()), 0o644)).unwrap();
    file(&mut place, "a", b"second").unwrap();
    place.item(item("a", Kind::HardLink("a".into()), 0o644)).unwrap();
    place.item(item("b", Kind::HardLink("b".into()), 0o644)).unwrap();
    place.item(item("gone", Kind::HardLink("never/was".into()), 0o644)).unwrap();
    file(&mut place, "d", b"x").unwrap();
    place.item(item("d", Kind::Dir, 0o700)).unwrap();
    place.item(item("d", Kind::Dir, 0o750)).unwrap();
    file(&mut place, "d/in", b"x").unwrap();
    place.item(item("e", Kind::Dir, 0o700)).unwrap();
    place.item(item("e", Kind::Symlink("d".into()), 0o777)).unwrap();
    // A file from before the import is not replaced.
    fs::write(temp.path().join("old"), "x").unwrap();
    assert_eq!(
        file(&mut place, "old", b"x").and_then(|()| place.workers.settle()).unwrap_err().code,
        "exists"
    );
    place.finish().unwrap();
    assert_eq!(fs::read(temp.path().join("a")).unwrap(), b"second");
    assert_eq!(fs::read(temp.path().join("b")).unwrap(), b"first");
    assert_eq!(mode(&temp.path().join("d")), 0o750);
    assert_eq!(fs::read_link(temp.path().join("e")).unwrap(), Path::new("d"));
    let left_out = place.left_out();
    assert!(left_out.len() == 1 && left_out[0].why.contains("never/was"), "{left_out:?}");
}

/// The list had no bound: an archive could hold any number of left-out members, each with a long name.
#[test]
fn regression_what_is_left_out_is_listed_within_bounds() {
    let mut left_out = crate::import::LeftOut::default();
    let long = "n".repeat(60_000);
    for _ in 0..10_000 {
        left_out.add(Path::new(&long), "why");
    }
    let list = left_out.take();
    let bytes: usize = list.iter().map(|one| one.path.len()).sum();
    assert!(bytes <= 8 << 20 && list.last().unwrap().why.starts_with("and "), "{bytes}");
    let mut late = Late::default();
    let full = (0..20_000).find(|n| late.add(item(&long, Kind::Dir, 0o700), (1, *n), false).is_err());
    assert!(full.is_some(), "folders with names of 60 kB each");
}

#[test]
fn regression_no_item_leads_out_of_its_place() {
    for path in ["/etc/x", "../x", "a/../../x", "a//b", "a/.", ".", "a\0b"] {
        assert!(crate::import::check(&item(path, Kind::Dir, 0o700)).is_err(), "{path:?}");
        let link = item("a", Kind::HardLink(path.into()), 0o700);
        assert!(crate::import::check(&link).is_err(), "{path:?}");
    }
    for path in ["", "a", "a/..b/c "] {
        assert!(crate::import::check(&item(path, Kind::Dir, 0o700)).is_ok(), "{path:?}");
    }
}
