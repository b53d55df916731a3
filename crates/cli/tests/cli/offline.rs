//! Commands on a volume that is not mounted: import, info, clone, gc, fsck and status.

use std::fs;
use std::path::Path;

use crate::world::{World, json};

fn tree(world: &World) -> std::path::PathBuf {
    let from = world.path("from");
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::write(from.join("small"), "hello").unwrap();
    fs::write(from.join("deep/er/large"), vec![7; 9 << 20]).unwrap();
    std::os::unix::fs::symlink("../small", from.join("deep/link")).unwrap();
    fs::hard_link(from.join("small"), from.join("deep/second")).unwrap();
    from
}

#[test]
fn a_tree_is_imported_cloned_collected_and_checked() {
    let world = World::formatted();
    let from = tree(&world);
    let done = json(&[Path::new("import"), &from, Path::new(&world.inner("a"))]).ok().json();
    assert_eq!((done["files"].as_u64(), done["bytes"].as_u64()), (Some(7), Some((9 << 20) + 5)), "{done}");
    let again = json(&[Path::new("import"), &from, Path::new(&world.inner("a"))]);
    again.fails(1, "exists");
    json(&["import", from.to_str().unwrap(), &world.inner("a"), "--overwrite"]).ok();

    let large = json(&["info", &world.inner("a/deep/er/large")]).ok().json();
    assert_eq!((large["size"].as_u64(), large["kind"].as_str()), (Some(9 << 20), Some("file")), "{large}");
    let bytes: u64 =
        large["packs"].as_array().unwrap().iter().map(|pack| pack["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 9 << 20);
    assert!(large["packs"][0]["blob"].as_str().is_some_and(|blob| blob.len() == 64), "{large}");
    let small = json(&["info", &world.inner("a/small")]).ok().json();
    assert_eq!((small["inline"].as_bool(), small["links"].as_u64()), (Some(true), Some(2)), "{small}");
    json(&["info", &world.inner("a/none")]).fails(1, "not-found");

    json(&["clone", &world.inner("a"), &world.inner("b")]).ok();
    json(&["clone", &world.inner("a"), &world.inner("b")]).fails(1, "exists");
    json(&["clone", &world.inner("none"), &world.inner("c")]).fails(1, "not-found");
    json(&["clone", &world.inner("a"), world.path("elsewhere").to_str().unwrap()]).fails(1, "not-a-volume");
    let status = json(&[Path::new("status"), &world.volume()]).ok().json();
    assert!(status["bytes"].as_u64().unwrap() >= 18 << 20, "{status}");
    assert!(status["saved_bytes"].as_u64().unwrap() >= 9 << 20, "{status}");

    json(&[Path::new("gc"), &world.volume()]).ok();
    let status = json(&[Path::new("status"), &world.volume()]).ok().json();
    assert!(status["stored_bytes"].as_u64().unwrap() < 13 << 20, "{status}");
    let found = world.fsck(&[]);
    assert_eq!(
        (found["sound"].as_bool(), found["findings"].as_array().unwrap().len()),
        (Some(true), 0),
        "{found}"
    );
}

#[test]
fn a_lost_and_a_flipped_blob_are_found_and_never_repaired_by_zeros() {
    let world = World::formatted();
    let from = world.path("from");
    fs::create_dir(&from).unwrap();
    // Creates three packs with different contents.
    for name in 0..3u8 {
        fs::write(from.join(format!("f{name}")), vec![name + 1; 4 << 20]).unwrap();
    }
    json(&[Path::new("import"), &from, Path::new(&world.inner("t"))]).ok();
    assert_eq!(world.fsck(&[])["sound"], true);
    let blob = |name: &str| {
        let info = json(&["info", &world.inner(&format!("t/{name}"))]).ok().json();
        let blob = info["packs"][0]["blob"].as_str().unwrap().to_owned();
        let found = walk(&world.volume().join("blobs")).into_iter().find(|path| path.ends_with(&blob));
        found.unwrap_or_else(|| panic!("no file of blob {blob}"))
    };
    let (lost, flipped) = (blob("f0"), blob("f1"));
    fs::remove_file(&lost).unwrap();
    let mut bytes = fs::read(&flipped).unwrap();
    bytes[1000] ^= 1;
    let mut permissions = fs::metadata(&flipped).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    fs::set_permissions(&flipped, permissions).unwrap();
    fs::write(&flipped, bytes).unwrap();

    for flags in [&[][..], &["--repair"]] {
        let found = world.fsck(flags);
        assert_eq!(found["damage_left"], 2, "{found}");
        let files: Vec<&str> = found["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|f| f["files"][0]["path"].as_str())
            .collect();
        assert!(files.contains(&"/t/f0") && files.contains(&"/t/f1"), "{found}");
    }
    let quick = world.fsck(&["--quick"]);
    assert_eq!(quick["damage_left"], 1, "a quick check sees what is missing, not what is flipped: {quick}");
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path);
        }
    }
    found
}
