//! `ls`, `cat`, `cp` and `export` of what is not mounted: a published tree, and a volume's folder.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use crate::world::{World, covey, json, run_command};

/// A volume with a published tree, which is changed afterwards. Returns the tree's text.
fn filled() -> (World, String) {
    let world = World::new();
    let origin = format!("file:{}", world.path("origin").display());
    let volume = world.volume();
    json(&["format", volume.to_str().unwrap(), "--origin", &origin]).ok();
    let from = world.path("from");
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::write(from.join("small"), "small").unwrap();
    fs::write(from.join("deep/er/large"), vec![7; 5 << 20]).unwrap();
    symlink("deep/er/large", from.join("link")).unwrap();
    json(&[Path::new("import"), &from, Path::new(&world.inner("a"))]).ok();
    json(&["publish", "--keep", "5", volume.to_str().unwrap(), "daily"]).ok();
    fs::write(from.join("small"), "changed").unwrap();
    json(&[Path::new("import"), Path::new("--overwrite"), &from, Path::new(&world.inner("a"))]).ok();
    json(&["publish", volume.to_str().unwrap(), "daily"]).ok();
    (world, format!("{origin}@daily"))
}

#[test]
fn a_tree_is_read_without_a_mount() {
    let (world, tree) = filled();
    let volume = world.volume().display().to_string();
    let names = |args: &[&str]| -> Vec<String> {
        let rows = json(&[&["ls"], args].concat()).ok().json();
        rows.as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&[&tree]), ["a"]);
    for place in [format!("{tree}:/a"), format!("{tree}#1:/a"), format!("{volume}:/a")] {
        assert_eq!(names(&[&place]), ["deep", "link", "small"], "{place}");
        let all = ["deep", "deep/er", "deep/er/large", "link", "small"];
        assert_eq!(names(&["-R", &place]), all, "{place}");
    }
    let rows = json(&["ls", "-R", &format!("{tree}:/a")]).ok().json();
    assert_eq!((rows[2]["size"].as_u64(), &rows[2]["kind"]), (Some(5 << 20), &"file".into()), "{rows}");
    let long = run_command(&mut covey(&["ls", "-l", &format!("{tree}:/a/small")]));
    assert!(long.code == 0 && long.out.starts_with("- 06") && long.out.contains(" small"), "{long:?}");

    let cat = |place: &str| run_command(&mut covey(&["cat", place])).ok().out;
    assert_eq!(cat(&format!("{tree}:/a/small")), "changed");
    assert_eq!(cat(&format!("{tree}#1:/a/small")), "small", "an older publication");
    assert_eq!(cat(&format!("{volume}:/a/small")), "changed");
    assert_eq!(cat(&format!("{tree}:/a/link")).len(), 5 << 20, "a link is followed");
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn files_and_folders_are_copied_out_of_a_tree() {
    let (world, tree) = filled();
    let out = world.path("out");
    fs::create_dir(&out).unwrap();
    let to = out.to_str().unwrap();
    let copy = |args: &[&str]| json(&[&["cp"], args].concat());
    copy(&[&format!("{tree}:/a/deep/er/large"), to]).ok();
    assert_eq!(fs::read(out.join("large")).unwrap(), vec![7; 5 << 20]);
    let source = fs::metadata(world.path("from/deep/er/large")).unwrap();
    let copied = fs::metadata(out.join("large")).unwrap();
    assert_eq!((copied.mtime(), copied.mode()), (source.mtime(), source.mode()));
    let named = out.join("named");
    copy(&[&format!("{tree}#1:/a/small"), named.to_str().unwrap()]).ok();
    copy(&[&format!("{tree}:/a/small"), named.to_str().unwrap()]).ok();
    assert_eq!(fs::read(&named).unwrap(), b"changed", "what was there is replaced");
    copy(&[&format!("{tree}:/a"), to]).fails(2, "usage");
    copy(&["-r", &format!("{tree}:/a"), to]).ok();
    assert_eq!(fs::read(out.join("a/small")).unwrap(), b"changed");
    let exported = world.path("exported");
    json(&["export", &format!("{tree}#1:/a"), exported.to_str().unwrap()]).ok();
    assert_eq!(fs::read(exported.join("small")).unwrap(), b"small");
    let left: Vec<_> = fs::read_dir(&out).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 3, "nothing half-copied is left: {left:?}");
}

#[test]
fn what_cannot_be_read_without_a_mount_is_said() {
    let (world, tree) = filled();
    json(&["ls", &format!("{tree}:/missing")]).fails(1, "not-found");
    json(&["ls", &format!("{tree}#9:/a")]).fails(1, "not-published");
    json(&["ls", "s3:/bucket@x"]).fails(1, "not-found");
    json(&["cat", &format!("{tree}:/a/small")]).fails(2, "usage");
    let text = |args: &[&str]| run_command(&mut covey(args));
    let folder = text(&["cat", &format!("{tree}:/a")]);
    assert!(folder.code == 2 && folder.err.contains("is not a file"), "{folder:?}");
    let nowhere = world.path("no/such/folder");
    json(&["cp", &format!("{tree}:/a/small"), nowhere.to_str().unwrap()]).fails(1, "not-found");
    let Some(_) = World::mountable() else { return };
    world.mount("");
    json(&[Path::new("ls"), &world.mnt()]).fails(2, "usage");
    world.umount().ok();
}
