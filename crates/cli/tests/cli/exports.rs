//! An export to a folder or an archive, from a volume mounted or not, and an import of it preserve
//! everything.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use crate::imports::{make, same, set_xattr};
use crate::world::{World, covey, end_of, json, run_command};

fn export(from: &Path, to: &Path) -> crate::world::Done {
    json(&[Path::new("export"), from, to])
}

#[test]
fn what_is_exported_and_imported_is_what_it_was() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    make(&from);
    set_xattr(&from.join("d"), "user.with=sign%", "1");
    let long = from.join("l".repeat(120)).join("m".repeat(120)).join("n".repeat(120));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("deep"), "deep").unwrap();
    std::os::unix::fs::symlink("t".repeat(300), long.join("link")).unwrap();
    json(&[Path::new("import"), &from, Path::new(&world.inner("b"))]).ok();
    let inner = world.inner("b");
    let closed = Path::new(&inner);
    let mut made = Vec::new();
    for name in ["closed.tar", "closed.tar.gz", "closed.tar.zst", "closed.d"] {
        let done = export(closed, &world.path(name)).ok().json();
        assert_eq!(done["skipped"].as_array().unwrap().len(), 0, "{done}");
        made.push(world.path(name));
    }
    same(&from, &world.path("closed.d"), true);
    world.mount("");
    for name in ["mounted.tar.zst", "mounted.d"] {
        export(&world.mnt().join("b"), &world.path(name)).ok();
        made.push(world.path(name));
    }
    // Export through a pipe.
    let piped = File::create(world.path("piped.bin")).unwrap();
    let mut child = covey(&[Path::new("export"), &world.mnt().join("b"), Path::new("-")]);
    let mut child = child.stdout(piped).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(end_of(&mut child, "export -"), 0);
    made.push(world.path("piped.bin"));
    for (number, archive) in made.iter().enumerate() {
        let back = world.mnt().join(format!("back{number}"));
        json(&[Path::new("import"), archive, &back]).ok();
        same(&from, &back, true);
        assert_eq!(fs::read(back.join(long.strip_prefix(&from).unwrap()).join("deep")).unwrap(), b"deep");
    }
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn acls_and_odd_attributes_go_along() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let tree = world.mnt().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "x").unwrap();
    set_xattr(&tree.join("a"), "user.with=sign%", "1");
    let acl =
        std::process::Command::new("setfacl").args(["-m", "u:1000:rx,g:20:r"]).arg(tree.join("a")).output();
    if !acl.is_ok_and(|output| output.status.success()) {
        println!("no setfacl: ACLs: skipped");
    }
    export(&tree, &world.path("a.tar")).ok();
    json(&[Path::new("import"), &world.path("a.tar"), &world.mnt().join("back")]).ok();
    let shown = |place: &str| {
        let path = world.mnt().join(place).join("a");
        let facl = std::process::Command::new("getfacl")
            .args(["--omit-header", "--absolute-names"])
            .arg(&path)
            .output();
        let attr =
            std::process::Command::new("getfattr").args(["--absolute-names", "-d"]).arg(&path).output();
        let text = |output: std::io::Result<std::process::Output>| {
            output.map_or_else(
                |error| error.to_string(),
                |output| String::from_utf8_lossy(&output.stdout).into_owned(),
            )
        };
        (text(facl), text(attr).lines().skip(1).map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(shown("tree"), shown("back"));
    world.umount().ok();
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_there() {
    let world = World::formatted();
    let from = world.path("from");
    fs::create_dir(&from).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(from.join(name), name.repeat(5 << 20)).unwrap();
    }
    json(&[Path::new("import"), &from, Path::new(&world.inner("t"))]).ok();
    let info = json(&["info", &world.inner("t/b")]).ok().json();
    assert_eq!(info["packs"][0]["place"], "here", "{info}");
    let blob = info["packs"][0]["blob"].as_str().unwrap().to_owned();
    fs::remove_file(world.volume().join("blobs").join(&blob[..2]).join(&blob)).unwrap();
    let info = json(&["info", &world.inner("t/b"), "--extents"]).ok().json();
    assert_eq!(info["packs"][0]["place"], "lost", "{info}");
    let bytes: u64 = info["extent_list"].as_array().unwrap().iter().map(|e| e["len"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 5 << 20);
    for out in ["out.tar", "out.d"] {
        let done = export(Path::new(&world.inner("t")), &world.path(out));
        assert_eq!(done.code, 1, "{done:?}");
        let skipped = &done.json()["skipped"];
        assert_eq!(skipped.as_array().unwrap().len(), 1, "{skipped}");
        assert!(skipped[0]["path"].as_str().unwrap().ends_with("/t/b"), "{skipped}");
    }
    for name in ["a", "c"] {
        assert_eq!(fs::read(world.path("out.d").join(name)).unwrap(), name.repeat(5 << 20).as_bytes());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let Some(world) = World::mountable() else { return };
    let volume = world.volume();
    fs::write(world.path("there.tar"), "mine").unwrap();
    export(&volume, &world.path("there.tar")).fails(1, "exists");
    assert_eq!(fs::read(world.path("there.tar")).unwrap(), b"mine");
    fs::create_dir_all(world.path("full/x")).unwrap();
    export(&volume, &world.path("full")).fails(1, "exists");
    export(&volume, &world.path("a.tar.xz")).fails(2, "usage");
    export(&volume, Path::new("-")).fails(2, "usage");
    export(Path::new(&world.inner("none")), &world.path("a.tar")).fails(1, "not-found");
    world.mount("");
    fs::write(world.mnt().join("file"), "x").unwrap();
    export(&world.mnt(), &world.mnt().join("a.tar")).fails(2, "usage");
    export(&world.mnt(), &world.mnt().join("deep/er")).fails(2, "usage");
    export(&world.mnt().join("file"), &world.path("a.tar")).fails(2, "usage");
    assert!(!world.path("a.tar").exists() && !world.path("a.tar.part").exists());
    // Export a whole volume and replace the existing archive.
    let done =
        run_command(covey(&["export", "--overwrite"]).args([&world.mnt(), &world.path("there.tar")])).ok();
    assert!(done.out.contains("Exported 2 files"), "{done:?}");
    world.umount().ok();
}

/// Replaces the directory entry of the file `old` in the volume's root by one with a name that no kernel
/// would accept.
fn plant(world: &World, old: &str, name: &[u8]) {
    use meta::{Commit, Key, MetaStore};
    let store = meta::Sqlite::open(&world.volume().join("meta/names.db")).unwrap();
    let key = Key::dentry(base::Ino::ROOT, old.as_bytes());
    let row = store.get(&key).unwrap().expect("it is in the database when the volume is closed");
    let new = Key::dentry(base::Ino::ROOT, name);
    store.commit(Commit { puts: vec![(new, row)], dels: vec![key], ..Commit::default() }).unwrap();
    store.flush().unwrap();
}

/// With a crafted volume, `covey export` could be made to write anywhere as root, and fsck reported the
/// volume as sound.
#[test]
fn regression_a_prepared_name_leads_nowhere() {
    for (number, climb) in ["absolute", "../../climbed", "..", "a/b"].into_iter().enumerate() {
        let world = World::formatted();
        let from = world.path("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("f"), "planted").unwrap();
        fs::write(from.join("good"), "good").unwrap();
        json(&[Path::new("import"), &from, Path::new(&world.inner(""))]).ok();
        let target = world.path("absolute");
        let name = if number == 0 { target.to_str().unwrap() } else { climb };
        plant(&world, "f", name.as_bytes());
        for out in ["out", "out.tar"] {
            let done = export(&world.volume(), &world.path(out));
            assert_eq!(done.code, 1, "{climb}: {done:?}");
        }
        assert!(!target.exists() && !world.path("climbed").exists() && !world.path("out/a").exists());
        let archive = fs::read(world.path("out.tar")).unwrap();
        assert!(!archive.windows(7).any(|part| part == b"planted"), "{climb}");
        let found = world.fsck(&[]);
        assert!(found["findings"].to_string().contains("cannot be a name"), "{found}");
        assert_eq!(world.fsck(&["--repair"])["damage_left"], 0);
        assert_eq!(world.fsck(&[])["sound"], true);
        export(&world.volume(), &world.path("mended")).ok();
        assert_eq!(fs::read(world.path("mended/good")).unwrap(), b"good");
    }
}
