//! One origin has one writer. The tests use the real program with copies, backups, lost claims and lost
//! markers.

use std::fs;
use std::path::{Path, PathBuf};

use base::Timestamp;
use origin::claim::{Claim, Kind};
use serde_json::Value;

use crate::world::{Done, World, json, soon};

/// A volume with a file. Its origin is outside its folder.
fn filled() -> World {
    let world = World::new();
    format(&world.volume(), &world.path("origin")).ok();
    import(&world, &world.volume(), "a", 1).ok();
    world
}

fn format(volume: &Path, origin: &Path) -> Done {
    json(&["format", volume.to_str().unwrap(), "--origin", &format!("file:{}", origin.display())])
}

fn import(world: &World, volume: &Path, name: &str, seed: u8) -> Done {
    let from = world.path(&format!("from-{name}"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("large"), vec![seed; 5 << 20]).unwrap();
    json(&[Path::new("import"), &from, Path::new(&format!("{}:/{name}", volume.display()))])
}

/// Copies a folder with `cp -a`.
fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success());
}

fn gc(volume: &Path) -> Done {
    json(&[Path::new("gc"), volume])
}

fn sound(volume: &Path) -> Value {
    let found = json(&[Path::new("fsck"), volume]).ok().json();
    assert_eq!(found["sound"], true, "{found}");
    found
}

/// Every command that writes is refused, and the message names the writer's folder.
fn writes_nothing(world: &World, volume: &Path, code: &str, says: &str) {
    for args in [
        vec![Path::new("gc"), volume],
        vec![Path::new("publish"), volume, Path::new("x")],
        vec![Path::new("flush"), volume],
        vec![Path::new("fsck"), volume, Path::new("--repair")],
        vec![Path::new("mount"), volume, &world.mnt()],
    ] {
        let refused = json(&args);
        refused.fails(1, code);
        assert!(refused.err.contains(says), "{says}: {refused:?}");
    }
}

/// A copy of a volume's folder (docs/FORMAT.md mentioned copying) became a second writer with the same
/// identity. Its `rm` and `gc` deleted blobs of the first.
#[test]
fn regression_a_folder_that_was_copied_does_not_write() {
    let world = filled();
    let (volume, second) = (world.volume(), world.path("second"));
    copy(&volume, &second);
    // The copy is refused even if it is opened first.
    writes_nothing(&world, &second, "origin-taken", "a copy");
    gc(&volume).ok();
    writes_nothing(&world, &second, "origin-taken", volume.to_str().unwrap());
    json(&[Path::new("info"), Path::new(&format!("{}:/a/large", second.display()))]).ok();
    sound(&volume);
    // A renamed folder is still the same volume.
    let moved = world.path("moved");
    fs::rename(&volume, &moved).unwrap();
    gc(&moved).ok();
    // If the origin is inside the folder, the copy has its own origin.
    let (inside, twin) = (world.path("inside"), world.path("twin"));
    json(&[Path::new("format"), &inside]).ok();
    import(&world, &inside, "b", 2).ok();
    copy(&inside, &twin);
    for volume in [&twin, &inside, &twin] {
        gc(volume).ok();
        sound(volume);
    }
}

/// Two volumes were formatted with one folder as their origin. `fsck --repair` of each deleted the blobs of
/// the other.
#[test]
fn regression_a_second_format_of_an_origin_is_refused() {
    let world = filled();
    let second = world.path("second");
    let refused = format(&second, &world.path("origin"));
    refused.fails(1, "origin-taken");
    assert!(!second.exists());
    // Earlier programs could leave two volumes and a marker that names neither. The first one that writes
    // owns the origin.
    format(&second, &world.path("other")).ok();
    import(&world, &second, "b", 2).ok();
    fs::remove_dir_all(world.path("other")).unwrap();
    std::os::unix::fs::symlink(world.path("origin"), world.path("other")).unwrap();
    fs::write(world.path("origin/covey-origin"), "covey origin 1\n").unwrap();
    gc(&world.volume()).ok();
    let marker = fs::read_to_string(world.path("origin/covey-origin")).unwrap();
    assert!(marker.starts_with("covey origin 2\nvolume "), "{marker}");
    json(&[Path::new("gc"), &second]).fails(1, "origin-taken");
    sound(&world.volume());
}

/// A folder that was restored from a backup deleted blobs of a tree that was published after the backup.
#[test]
fn regression_a_folder_that_was_put_back_keeps_what_was_published_since() {
    let Some(_) = World::mountable() else { return };
    let world = filled();
    let (volume, backup) = (world.volume(), world.path("backup"));
    json(&[Path::new("publish"), &volume, Path::new("early")]).ok();
    copy(&volume, &backup);
    import(&world, &volume, "b", 2).ok();
    json(&[Path::new("publish"), &volume, Path::new("release")]).ok();
    fs::remove_dir_all(&volume).unwrap();
    fs::rename(&backup, &volume).unwrap();
    writes_nothing(&world, &volume, "origin-taken", "backup");
    json(&[
        Path::new("mount"),
        Path::new("-o"),
        Path::new("ro"),
        Path::new("--take-over"),
        &volume,
        &world.mnt(),
    ])
    .fails(2, "usage");
    json(&[Path::new("mount"), Path::new("-d"), Path::new("--take-over"), &volume, &world.mnt()]).ok();
    assert_eq!(world.status()["claim"]["state"], "held");
    fs::remove_dir_all(world.mnt().join("a")).unwrap();
    gc(&world.mnt()).ok();
    world.umount().ok();
    gc(&volume).ok();
    json(&[Path::new("fsck"), Path::new("--repair"), &volume]).ok();
    sound(&volume);
    let new = world.path("new");
    let tree = format!("file:{}@release", world.path("origin").display());
    json(&["restore", "--take-over", &tree, new.to_str().unwrap()]).ok();
    sound(&new);
}

/// Adds a claim after the newest one in the origin, as another machine would.
fn claimed_elsewhere(world: &World) {
    let claims = world.path("origin/records/claims");
    let mut names: Vec<PathBuf> = fs::read_dir(&claims).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let newest = Claim::decode(&fs::read(names.last().unwrap()).unwrap()).unwrap();
    let next = Claim {
        epoch: newest.epoch + 1,
        token: [9; 16],
        after: Some(newest.token),
        kind: Kind::Restore,
        moment: Timestamp(0),
        place: "elsewhere:/srv/new".to_owned(),
        ..newest
    };
    fs::write(claims.join(format!("{:020}", next.epoch)), next.encode()).unwrap();
}

/// Fifteen seconds after a restore on another machine, the old mount still accepted writes, and `flush`
/// reported that everything was in the origin.
#[test]
fn regression_a_mount_that_lost_its_claim_turns_read_only() {
    let Some(_) = World::mountable() else { return };
    let world = filled();
    world.mount("writeback=off");
    fs::write(world.mnt().join("before"), "before").unwrap();
    claimed_elsewhere(&world);
    let refused = json(&[Path::new("flush"), &world.mnt()]);
    refused.fails(1, "origin-taken");
    assert!(refused.err.contains("elsewhere:/srv/new"), "{refused:?}");
    json(&[Path::new("publish"), &world.mnt(), Path::new("x")]).fails(1, "origin-taken");
    let read_only = || {
        fs::write(world.mnt().join("after"), "x")
            .is_err_and(|error| error.raw_os_error() == Some(libc::EROFS))
    };
    soon("changes are refused", read_only);
    let status = world.status();
    assert_eq!(status["claim"]["state"], "lost", "{status}");
    assert!(status["claim"]["why"].as_str().unwrap().contains("elsewhere:/srv/new"), "{status}");
    let text = crate::world::run_command(&mut crate::world::covey(&[Path::new("status"), &world.mnt()]));
    assert!(text.out.contains("origin lost") && text.out.contains("taken over"), "{text:?}");
    assert_eq!(fs::read(world.mnt().join("before")).unwrap(), b"before");
    assert_eq!(fs::read(world.mnt().join("a/large")).unwrap(), vec![1; 5 << 20]);
    let log = fs::read_to_string(world.volume().join("covey.log")).unwrap();
    assert_eq!(log.matches("may not write to its origin").count(), 1, "{log}");
    json(&[Path::new("umount"), &world.mnt()]);
    json(&[Path::new("mount"), &world.volume(), &world.mnt()]).fails(1, "origin-taken");
    world.mount("ro");
    assert_eq!(fs::read(world.mnt().join("before")).unwrap(), b"before");
    world.umount().ok();
}

/// An unreadable record of the owner was treated as if there were no other owner.
#[test]
fn regression_a_damaged_owner_record_is_no_permission() {
    let world = filled();
    json(&[Path::new("publish"), &world.volume(), Path::new("x")]).ok();
    let record = world.path("origin/records/owner");
    let good = fs::read(&record).unwrap();
    let newer = [&b"covO\0\0\0\x09"[..], &good[8..]].concat();
    for (bad, code) in [(&good[..20], "damaged"), (&newer, "newer-format")] {
        fs::write(&record, bad).unwrap();
        gc(&world.volume()).fails(1, code);
        json(&[Path::new("fsck"), Path::new("--repair"), &world.volume()]).fails(1, code);
    }
    fs::write(&record, &good).unwrap();
    gc(&world.volume()).ok();
    // A published tree that cannot be read protects blobs that seem unreferenced.
    let stray = [7; 100];
    let sums = blob::Sums::of(&stray);
    let id = sums.id().to_string();
    let file = world.path("origin").join(&id[..2]).join(&id);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, stray).unwrap();
    let root = world.path("origin/records/published/x");
    let record = fs::read(&root).unwrap();
    fs::write(&root, &record[..50]).unwrap();
    json(&[Path::new("fsck"), Path::new("--repair"), &world.volume()]).ok();
    assert!(file.exists());
    fs::write(&root, &record).unwrap();
    json(&[Path::new("fsck"), Path::new("--repair"), &world.volume()]).ok();
    assert!(!file.exists());
}

/// Without the marker nothing could be mounted, and no command could recreate it.
#[test]
fn regression_a_lost_marker_is_made_anew_by_a_command() {
    let world = filled();
    let mark = |volume: &Path| json(&[Path::new("origin"), Path::new("mark"), volume]);
    let marker = world.path("origin/covey-origin");
    let text = fs::read(&marker).unwrap();
    assert_eq!(mark(&world.volume()).ok().json()["made"], false);
    fs::remove_file(&marker).unwrap();
    let refused = gc(&world.volume());
    refused.fails(1, "origin-gone");
    let done = mark(&world.volume()).ok().json();
    assert_eq!((&done["made"], &done["missing"]), (&true.into(), &0.into()), "{done}");
    assert_eq!(fs::read(&marker).unwrap(), text);
    gc(&world.volume()).ok();
    // Remove the claims too, so that nothing says to which volume the origin belongs.
    fs::remove_file(&marker).unwrap();
    fs::remove_dir_all(world.path("origin/records")).unwrap();
    mark(&world.volume()).ok();
    gc(&world.volume()).ok();
    fs::remove_dir_all(world.path("origin/records")).unwrap();
    let refused = gc(&world.volume());
    refused.fails(1, "origin-older");
    assert!(refused.err.contains("covey origin mark"), "{refused:?}");
    mark(&world.volume()).ok();
    sound(&world.volume());
    // The origin of another volume is not marked. First its records show the owner, then only its blobs.
    let other = world.path("other");
    format(&other, &world.path("elsewhere")).ok();
    import(&world, &other, "c", 3).ok();
    fs::remove_dir_all(world.path("elsewhere")).unwrap();
    copy(&world.path("origin"), &world.path("elsewhere"));
    mark(&other).fails(1, "origin-taken");
    fs::remove_file(world.path("elsewhere/covey-origin")).unwrap();
    mark(&other).fails(1, "origin-taken");
    fs::remove_dir_all(world.path("elsewhere/records")).unwrap();
    mark(&other).fails(1, "origin-taken");
}
