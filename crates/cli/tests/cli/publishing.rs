//! Published trees on the command line: publish, list, mount, restore and remove.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::world::{World, covey, json, kill_and_wait, run_command, soon};

/// A volume with some files. Its origin is outside its folder.
fn filled() -> World {
    let world = World::new();
    let origin = format!("file:{}", world.path("origin").display());
    json(&["format", world.volume().to_str().unwrap(), "--origin", &origin]).ok();
    fill(&world, "from", 1);
    json(&[Path::new("import"), &world.path("from"), Path::new(&world.inner("a"))]).ok();
    world
}

/// Creates a folder to import, with small, large and linked files in subfolders.
fn fill(world: &World, name: &str, seed: u8) {
    let from = world.path(name);
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::write(from.join("small"), format!("small {seed}")).unwrap();
    fs::hard_link(from.join("small"), from.join("deep/linked")).unwrap();
    fs::write(from.join("deep/er/large"), vec![seed; 5 << 20]).unwrap();
    fs::write(from.join("deep/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(from.join("deep/script"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("er/large", from.join("deep/link")).unwrap();
}

fn tree(world: &World, name: &str) -> String {
    format!("file:{}@{name}", world.path("origin").display())
}

fn publish(world: &World, name: &str) -> Value {
    json(&[Path::new("publish"), &world.volume(), Path::new(name)]).ok().json()
}

fn published(world: &World) -> Vec<Value> {
    let origin = format!("file:{}", world.path("origin").display());
    json(&["published", &origin]).ok().json().as_array().unwrap().clone()
}

fn blobs(world: &World) -> u64 {
    let mut count = 0;
    for folder in fs::read_dir(world.path("origin")).unwrap().flatten() {
        if folder.file_name().len() == 2 {
            count +=
                fs::read_dir(folder.path()).unwrap().flatten().filter(|e| e.file_name().len() == 64).count();
        }
    }
    count as u64
}

#[test]
fn what_is_published_is_listed_and_taken_away() {
    let world = filled();
    let before = blobs(&world);
    let first = publish(&world, "nightly");
    assert_eq!((first["sequence"].as_u64(), first["unchanged"].as_bool()), (Some(1), Some(false)), "{first}");
    assert_eq!(first["files"].as_u64(), Some(8), "{first}");
    assert!(first["new_nodes"].as_u64() >= Some(1) && first["new_blobs"].as_u64() == Some(1), "{first}");
    let again = publish(&world, "nightly");
    assert_eq!(
        (again["unchanged"].as_bool(), again["new_blobs"].as_u64(), &again["root"]),
        (Some(true), Some(0), &first["root"]),
        "{again}"
    );
    json(&["publish", &world.inner("a/deep"), "v1.0"]).ok();
    let rows = published(&world);
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["nightly", "v1.0"], "{rows:?}");
    assert_eq!(rows[0]["key"].as_str().unwrap().len(), 64);
    assert_eq!(rows[1]["files"].as_u64(), Some(6), "the folder, four files and a folder: {rows:?}");
    let text = run_command(&mut covey(&[Path::new("published"), &world.volume()]));
    assert!(text.out.contains("nightly") && text.out.contains("@NAME"), "{text:?}");

    json(&["publish", &world.inner("a/none"), "x"]).fails(1, "not-found");
    json(&["publish", &world.inner("a/small"), "x"]).fails(2, "usage");
    json(&["publish", &world.inner("a"), "a/b"]).fails(2, "usage");
    json(&["publish", world.path("none").to_str().unwrap(), "x"]).fails(1, "not-found");
    json(&[Path::new("unpublish"), &world.volume(), Path::new("never")]).fails(1, "not-published");
    for name in ["nightly", "v1.0"] {
        json(&[Path::new("unpublish"), &world.volume(), Path::new(name)]).ok();
    }
    json(&[Path::new("gc"), &world.volume()]).ok();
    assert_eq!(
        (published(&world).len(), blobs(&world)),
        (0, before),
        "removed trees should leave no record and no blob"
    );
    assert_eq!(world.fsck(&[])["findings"].as_array().unwrap().len(), 0);
    let secret = fs::metadata(world.volume().join("publisher.json")).unwrap();
    assert_eq!(secret.mode() & 0o777, 0o600, "its key is nobody else's");
}

#[test]
fn a_volume_is_restored_after_its_folder_is_gone() {
    let world = filled();
    publish(&world, "latest");
    let id = json(&[Path::new("status"), &world.volume()]).ok().json()["id"].clone();
    fs::remove_dir_all(world.volume()).unwrap();
    let new = world.path("new");
    let restore = |name: &str, to: &Path| json(&["restore", &tree(&world, name), to.to_str().unwrap()]);
    restore("other", &new).fails(1, "not-published");
    assert!(!new.exists(), "nothing is left of a restore that came to nothing");
    json(&["restore", "/srv/volume", "/tmp/x"]).fails(2, "usage");
    let done = restore("latest", &new).ok().json();
    assert_eq!((done["generation"].as_u64(), &done["id"]), (Some(2), &id), "{done}");
    restore("latest", &new).fails(1, "may-be-alive");
    let found = json(&[Path::new("fsck"), &new]).ok().json();
    assert_eq!((found["sound"].as_bool(), found["findings"].as_array().map(Vec::len)), (Some(true), Some(0)));
    let info = json(&["info", &format!("{}:/a/deep/er/large", new.display())]).ok().json();
    assert_eq!(info["size"].as_u64(), Some(5 << 20), "{info}");
    // The restored volume continues: it accepts more data and publishes under the same name.
    fill(&world, "more", 2);
    json(&[Path::new("import"), &world.path("more"), Path::new(&format!("{}:/b", new.display()))]).ok();
    let next = json(&[Path::new("publish"), &new, Path::new("latest")]).ok().json();
    assert_eq!(next["sequence"].as_u64(), Some(2), "{next}");
    assert!(published(&world).iter().all(|row| row["error"].is_null()));
    json(&[Path::new("gc"), &new]).ok();
    assert_eq!(json(&[Path::new("fsck"), &new]).ok().json()["damage_left"], 0);
}

#[test]
fn two_volumes_do_not_delete_each_others_blobs() {
    let world = filled();
    publish(&world, "latest");
    let new = world.path("new");
    let (from, to) = (tree(&world, "latest"), new.to_str().unwrap().to_owned());
    let refused = json(&["restore", &from, &to]);
    refused.fails(1, "may-be-alive");
    assert!(refused.err.contains(world.volume().to_str().unwrap()), "says whose it is: {refused:?}");
    assert!(!new.exists());
    json(&["restore", &from, &to, "--take-over"]).ok();
    // The old volume can only be read.
    let volume = world.volume();
    for args in [
        [Path::new("gc"), &volume, Path::new("")],
        [Path::new("publish"), &volume, Path::new("x")],
        [Path::new("unpublish"), &volume, Path::new("latest")],
        [Path::new("mount"), &volume, &world.mnt()],
    ] {
        let args: Vec<&Path> = args.into_iter().filter(|arg| !arg.as_os_str().is_empty()).collect();
        let refused = json(&args);
        refused.fails(1, "origin-taken");
        assert!(refused.err.contains(&to), "says where it is now: {refused:?}");
    }
    json(&[Path::new("info"), Path::new(&world.inner("a/small"))]).ok();
    json(&[Path::new("gc"), &new]).ok();
    assert_eq!(json(&[Path::new("fsck"), &new]).ok().json()["sound"], true);
}

#[test]
fn a_tree_is_accepted_only_from_who_signed_it() {
    let world = filled();
    publish(&world, "latest");
    let key = published(&world)[0]["key"].as_str().unwrap().to_owned();
    let new = world.path("new");
    let restore = |key: &str| {
        json(&["restore", "--take-over", "--key", key, &tree(&world, "latest"), new.to_str().unwrap()])
    };
    restore(&"0".repeat(64)).fails(1, "not-trusted");
    restore("12").fails(2, "usage");
    let record = world.path("origin/records/published/latest");
    let good = fs::read(&record).unwrap();
    let mut bad = good.clone();
    bad[60] ^= 1;
    fs::write(&record, &bad).unwrap();
    restore(&key).fails(1, "not-trusted");
    let origin = format!("file:{}", world.path("origin").display());
    let listed = json(&["published", &origin]);
    assert_eq!(listed.code, 1, "{listed:?}");
    assert!(listed.json()[0]["error"].as_str().unwrap().contains("signature"), "{listed:?}");
    fs::write(&record, &good[..40]).unwrap();
    restore(&key).fails(1, "damaged");
    fs::write(&record, &good).unwrap();
    restore(&key).ok();
}

/// A mountpoint for a tree. It is unmounted even if the test fails.
struct Place(PathBuf);

impl Place {
    fn new(path: PathBuf) -> Place {
        fs::create_dir(&path).unwrap();
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        if table.lines().any(|line| line.split(' ').nth(1) == self.0.to_str()) {
            run_command(&mut covey(&[Path::new("umount"), Path::new("--force"), &self.0]));
        }
    }
}

fn mount(from: &str, to: &Path) -> Value {
    json(&["mount", "-d", from, to.to_str().unwrap()]).ok().json()
}

fn same(left: &Path, right: &Path) {
    let list = |folder: &Path| {
        let mut names: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into()).collect();
        names.sort();
        names
    };
    assert_eq!(list(left), list(right), "{}", left.display());
    for name in list(left) {
        let (a, b) = (left.join(&name), right.join(&name));
        let (x, y) = (fs::symlink_metadata(&a).unwrap(), fs::symlink_metadata(&b).unwrap());
        assert_eq!(
            (x.mode(), x.uid(), x.mtime(), x.mtime_nsec()),
            (y.mode(), y.uid(), y.mtime(), y.mtime_nsec())
        );
        if x.is_dir() {
            same(&a, &b);
            continue;
        }
        assert_eq!((x.len(), x.nlink()), (y.len(), y.nlink()), "{}", a.display());
        if x.is_symlink() {
            assert_eq!(fs::read_link(&a).unwrap(), fs::read_link(&b).unwrap());
        } else {
            assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{}", a.display());
        }
    }
}

#[test]
fn a_published_tree_is_mounted_as_it_was() {
    let Some(_) = World::mountable() else { return };
    let world = filled();
    // On a mounted volume, data that was just written and is still in the kernel is published too.
    world.mount("");
    fs::write(world.mnt().join("fresh"), vec![7; 3 << 20]).unwrap();
    let done = json(&[Path::new("publish"), &world.mnt(), Path::new("now")]).ok().json();
    assert_eq!(done["files"].as_u64(), Some(9), "{done}");
    json(&["publish", world.mnt().join("a/deep").to_str().unwrap(), "deep"]).ok();
    fs::write(world.mnt().join("fresh"), "later").unwrap();
    fs::remove_dir_all(world.mnt().join("a/deep/er")).unwrap();
    json(&[Path::new("gc"), &world.mnt()]).ok();

    let (now, deep) = (Place::new(world.path("now")), Place::new(world.path("deep")));
    let (now, deep) = (&now.0, &deep.0);
    let mounted = mount(&tree(&world, "now"), now);
    assert_eq!(mounted["mode"], "frozen", "{mounted}");
    mount(&tree(&world, "deep"), deep);
    assert_eq!(fs::read(now.join("fresh")).unwrap(), vec![7; 3 << 20]);
    same(&world.path("from"), &now.join("a"));
    assert_eq!(fs::read(deep.join("er/large")).unwrap(), vec![1; 5 << 20]);
    let refused = fs::write(now.join("x"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));

    let status = json(&[Path::new("status"), now]).ok().json();
    assert_eq!((status["mode"].as_str(), status["files"].as_u64()), (Some("frozen"), Some(9)), "{status}");
    assert_eq!(
        (&status["tree"]["name"], status["tree"]["sequence"].as_u64()),
        (&"now".into(), Some(1)),
        "{status}"
    );
    assert!(status["stored_bytes"].as_u64() >= Some(8 << 20), "{status}");
    let text = run_command(&mut covey(&[Path::new("status"), now]));
    assert!(text.out.contains("published") && text.code == 0, "{text:?}");
    let info = json(&[Path::new("info"), &now.join("fresh")]).ok().json();
    assert_eq!(
        (info["size"].as_u64(), &info["packs"][0]["state"]),
        (Some(3 << 20), &"sealed".into()),
        "{info}"
    );
    let rows = json(&[Path::new("df"), now]).ok().json();
    assert_eq!(rows[0]["alive"], true, "{rows}");
    assert_eq!(json(&[Path::new("published"), now]).ok().json().as_array().map(Vec::len), Some(2));
    json(&[Path::new("publish"), now, Path::new("x")]).fails(2, "usage");
    json(&[Path::new("gc"), now]).fails(1, "read-only");
    for place in [now, deep] {
        json(&[Path::new("umount"), place]).ok();
    }
    json(&["mount", &tree(&world, "never"), now.to_str().unwrap()]).fails(1, "not-published");
    json(&["mount", &format!("file:{}", world.path("origin").display()), now.to_str().unwrap()])
        .fails(2, "usage");
    json(&["mount", "file:/nowhere@x", now.to_str().unwrap()]).fails(1, "origin-gone");
    world.umount().ok();
}

#[test]
fn a_mount_publishes_by_itself() {
    let Some(_) = World::mountable() else { return };
    let world = filled();
    let (volume, mnt) = (world.volume(), world.mnt());
    let args = ["mount", "-d", "--publish-every", "1s", volume.to_str().unwrap(), mnt.to_str().unwrap()];
    json(&args).ok();
    let sequence = || published(&world).first().and_then(|row| row["sequence"].as_u64()).unwrap_or(0);
    soon("it is published", || sequence() > 0);
    let before = sequence();
    fs::write(mnt.join("new"), "new").unwrap();
    soon("it is published again", || sequence() > before);
    let settled = sequence();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(sequence() <= settled + 1, "nothing changed, so nothing is published");
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
    json(&["mount", "--publish-every", "often", volume.to_str().unwrap(), mnt.to_str().unwrap()]);
}

#[test]
fn a_mount_publishes_once_more_at_its_end() {
    let Some(_) = World::mountable() else { return };
    let world = filled();
    let (volume, mnt) = (world.volume(), world.mnt());
    let sequence = || published(&world).first().and_then(|row| row["sequence"].as_u64()).unwrap_or(0);
    let round = |last: &str, name: &str| {
        let (volume, mnt) = (volume.to_str().unwrap(), mnt.to_str().unwrap());
        json(&["mount", "-d", "--publish-every", "1h", "--publish-last", last, volume, mnt]).ok();
        if !name.is_empty() {
            fs::write(Path::new(mnt).join(name), name).unwrap();
        }
        world.umount().ok();
        sequence()
    };
    let first = round("120s", "one");
    assert!(first > 0, "what was written a moment before is published");
    assert_eq!(round("120s", ""), first, "an unchanged volume should not be published");
    assert_eq!(round("0", "two"), first, "a change should not be published while the interval is 0");
    assert!(round("120s", "") > first);
    let place = Place::new(world.path("last"));
    mount(&tree(&world, "latest"), &place.0);
    assert_eq!(fs::read(place.0.join("two")).unwrap(), b"two");
    json(&[Path::new("umount"), &place.0]).ok();
}

/// A daemon dies while it publishes. The earlier publication stays and the volume is sound. Once, blobs that
/// the daemon had not stored yet counted as lost.
#[test]
fn regression_a_kill_while_publishing_costs_no_tree() {
    let Some(_) = World::mountable() else { return };
    let world = filled();
    publish(&world, "latest");
    for round in 0..8u64 {
        let pid = world.mount("");
        for n in 0..40 {
            fs::write(world.mnt().join(format!("f{round}-{n}")), vec![n as u8; 9000 * n]).unwrap();
        }
        let mut asking = covey(&[Path::new("publish"), &world.mnt(), Path::new("latest")])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round * 12));
        kill_and_wait(pid);
        asking.wait().unwrap();
        world.umount().ok();
        // This check also reads every blob that a tree needs.
        let found = world.fsck(&[]);
        assert_eq!(found["damage_left"], 0, "round {round}: {found}");
        let rows = published(&world);
        assert!(rows.len() == 1 && rows[0]["error"].is_null(), "round {round}: {rows:?}");
    }
    assert!(publish(&world, "latest")["sequence"].as_u64() >= Some(2));
    let place = Place::new(world.path("tree"));
    let mnt = place.0.clone();
    mount(&tree(&world, "latest"), &mnt);
    assert_eq!(fs::read(mnt.join("f7-39")).unwrap(), vec![39; 9000 * 39]);
    same(&world.path("from"), &mnt.join("a"));
    json(&[Path::new("umount"), &mnt]).ok();
    json(&[Path::new("gc"), &world.volume()]).ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

/// One publication is mounted by its number, whatever is published later.
#[test]
fn a_given_publication_is_mounted() {
    let Some(_) = World::mountable() else { return };
    let world = filled();
    let (volume, mnt) = (world.volume(), world.mnt());
    let volume = volume.to_str().unwrap();
    json(&["publish", "--keep", "0", volume, "daily"]).fails(2, "usage");
    json(&["publish", "--keep", "4000000", volume, "daily"]).fails(2, "usage");
    let publish = |day: u64, keep: &[&str]| {
        world.mount("");
        fs::write(mnt.join("day"), day.to_string()).unwrap();
        world.umount().ok();
        let done = json(&[&["publish", volume, "daily"], keep].concat()).ok().json();
        assert_eq!(done["sequence"].as_u64(), Some(day), "{done}");
    };
    publish(1, &[]);
    publish(2, &["--keep", "3"]);
    // The number is remembered.
    (3..=5).for_each(|day| publish(day, &[]));
    let all = json(&["published", "--all", volume]).ok().json();
    let sequences: Vec<_> = all.as_array().unwrap().iter().map(|row| row["sequence"].as_u64()).collect();
    assert_eq!(sequences, [Some(3), Some(4), Some(5)], "{all}");
    assert_eq!(published(&world).len(), 1, "without --all the newest");

    let place = Place::new(world.path("old"));
    let day = |of: &str| {
        mount(&tree(&world, of), &place.0);
        let day = fs::read_to_string(place.0.join("day")).unwrap();
        let status = json(&[Path::new("status"), &place.0]).ok().json();
        assert_eq!(status["tree"]["sequence"].as_u64(), day.parse().ok(), "{status}");
        json(&[Path::new("umount"), &place.0]).ok();
        day
    };
    assert_eq!((day("daily#3"), day("daily#5"), day("daily")), ("3".into(), "5".into(), "5".into()));
    let old = place.0.to_str().unwrap();
    json(&["mount", &tree(&world, "daily#2"), old]).fails(1, "not-published");
    json(&["mount", &tree(&world, "daily#6"), old]).fails(1, "not-published");
    json(&["mount", &tree(&world, "daily#x"), old]).fails(2, "usage");
    json(&["mount", &tree(&world, "daily#0"), old]).fails(2, "usage");
    json(&["mount", "--follow=1s", &tree(&world, "daily#4"), old]).fails(2, "usage");

    // A volume goes back to a day, and the other days stay.
    let back = world.path("back");
    json(&["restore", "--take-over", &tree(&world, "daily#4"), back.to_str().unwrap()]).ok();
    json(&["gc", back.to_str().unwrap()]).ok();
    assert_eq!(day("daily#3"), "3");
    json(&["unpublish", back.to_str().unwrap(), "daily"]).ok();
    json(&["mount", &tree(&world, "daily#4"), old]).fails(1, "not-published");
}
