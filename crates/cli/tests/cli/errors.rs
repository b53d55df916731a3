//! Every mistake that needs no mount has its own error message, which says what to do next.

use std::fs;
use std::path::Path;

use crate::world::{World, alone, covey, json, run_command};

#[test]
fn wrong_usage_is_status_2_and_says_how_it_goes() {
    for args in [
        &["mount"][..],
        &["frobnicate"],
        &["status", "--nope"],
        &["gc"],
        &["mount", "a", "b", "--readers", "x"],
    ] {
        let done = run_command(&mut covey(args));
        assert_eq!(done.code, 2, "{args:?}: {done:?}");
        assert!(done.err.contains("Usage") || done.err.contains("--help"), "{done:?}");
    }
    assert_eq!(run_command(&mut covey::<&str>(&[])).code, 2);
    let help = run_command(&mut covey(&["--help"])).ok();
    assert!(help.out.contains("Examples:"), "{help:?}");
}

/// A command that failed ended with a panic if the reader of its messages had ended before.
#[test]
fn regression_nobody_need_read_what_a_command_prints() {
    let world = World::formatted();
    for args in [&["format".as_ref(), world.volume().as_os_str()][..], &["frobnicate".as_ref()]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = covey(args);
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let status = command.status().unwrap().code();
        assert!(matches!(status, Some(1 | 2)), "{args:?}: {status:?}");
    }
}

#[test]
fn unknown_mount_options_are_listed() {
    let world = World::formatted();
    let (volume, mnt) = (world.volume(), world.mnt());
    let done = json(&[Path::new("mount"), Path::new("-o"), Path::new("ro,zstd"), &volume, &mnt]);
    done.fails(2, "usage");
    assert!(done.err.contains("zstd") && done.err.contains("writeback=on|off"), "{done:?}");
}

#[test]
fn what_is_no_volume_is_refused_and_left_alone() {
    let world = World::new();
    let thesis = world.path("thesis");
    fs::create_dir(&thesis).unwrap();
    fs::write(thesis.join("thesis.tex"), "years").unwrap();
    for command in ["status", "fsck", "gc"] {
        json(&[Path::new(command), &thesis]).fails(1, "not-a-volume");
        json(&[Path::new(command), &world.path("nothing")]).fails(1, "not-found");
    }
    json(&[Path::new("mount"), &thesis, &world.mnt()]).fails(1, "not-a-volume");
    json(&[Path::new("format"), &thesis]).fails(1, "exists");
    assert_eq!(fs::read_dir(&thesis).unwrap().count(), 1);
    json(&[Path::new("umount"), &world.mnt()]).fails(1, "not-mounted");
    json(&[Path::new("df"), &world.mnt()]).fails(1, "not-mounted");
    json(&[Path::new("umount"), Path::new("/proc")]).fails(1, "not-mounted");
    json(&[Path::new("import"), &world.path("nothing"), Path::new(&world.path("x:/y"))])
        .fails(1, "not-found");
}

#[test]
fn a_volume_is_formatted_once() {
    let world = World::formatted();
    json(&[Path::new("format"), &world.volume()]).fails(1, "exists");
    json(&[Path::new("format"), Path::new("mem:")]).fails(2, "usage");
    json(&["format", world.path("w").to_str().unwrap(), "--origin", "mem:"]).fails(2, "usage");
    json(&["format", world.path("w").to_str().unwrap(), "--origin", "s3:bucket"]).fails(2, "usage");
    assert!(!world.path("w").exists(), "nothing is left of a format that was refused");
}

#[test]
fn a_newer_format_is_refused_and_nothing_changes() {
    let world = World::formatted();
    let file = world.volume().join("covey.json");
    let text = fs::read_to_string(&file).unwrap().replace("\"format\": 2", "\"format\": 3");
    fs::write(&file, &text).unwrap();
    for command in ["status", "fsck", "gc"] {
        json(&[Path::new(command), &world.volume()]).fails(1, "newer-format");
    }
    json(&[Path::new("mount"), &world.volume(), &world.mnt()]).fails(1, "newer-format");
    fs::write(&file, text.replace("\"format\": 3", "\"format\": 2")).unwrap();
    assert_eq!(world.fsck(&[])["sound"], true);
}

/// Commands that only read leave a volume of format 1 unchanged. The first command that writes raises it to
/// format 2, which older programs refuse. Unknown fields are kept.
#[test]
fn regression_an_older_format_is_raised_by_what_writes() {
    let world = World::formatted();
    let file = world.volume().join("covey.json");
    let format = || serde_json::from_slice::<serde_json::Value>(&fs::read(&file).unwrap()).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let older = text.replace("\"format\": 2", "\"format\": 1,\n  \"colour\": \"green\"");
    fs::write(&file, &older).unwrap();
    assert_eq!(world.fsck(&[])["sound"], true);
    json(&[Path::new("status"), &world.volume()]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), older);
    json(&[Path::new("gc"), &world.volume()]).ok();
    assert_eq!((&format()["format"], &format()["colour"]), (&2.into(), &"green".into()));
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn a_torn_database_is_named_and_not_touched() {
    let world = World::formatted();
    let file = world.volume().join("meta/names.db");
    let whole = fs::read(&file).unwrap();
    for keep in [0, 100, whole.len() / 2] {
        fs::write(&file, &whole[..keep]).unwrap();
        let done = json(&[Path::new("mount"), &world.volume(), &world.mnt()]);
        assert_eq!(done.code, 1, "cut to {keep}: {done:?}");
        assert_eq!(done.json()["error"]["code"], "damaged", "cut to {keep}: {done:?}");
        assert!(done.err.contains("next:"), "{done:?}");
        assert!(!world.is_mounted());
        assert_eq!(fs::read(&file).unwrap().len(), keep, "the file was written to");
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn a_missing_origin_is_named() {
    let world = World::new();
    let (volume, origin) = (world.volume(), world.path("origin"));
    let spec = format!("file:{}", origin.display());
    json(&["format", volume.to_str().unwrap(), "--origin", &spec]).ok();
    fs::rename(&origin, world.path("away")).unwrap();
    for command in ["status", "gc", "fsck"] {
        json(&[Path::new(command), &volume]).fails(1, "origin-gone");
    }
    json(&[Path::new("mount"), &volume, &world.mnt()]).fails(1, "origin-gone");
    // A disk that is not mounted looks like an empty folder.
    fs::create_dir(&origin).unwrap();
    json(&[Path::new("status"), &volume]).fails(1, "origin-gone");
    fs::remove_dir(&origin).unwrap();
    fs::rename(world.path("away"), &origin).unwrap();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn doctor_says_what_is_wrong() {
    let world = World::formatted();
    let doctor = || {
        let mut doctor = covey(&[Path::new("doctor"), &world.volume(), Path::new("--json")]);
        run_command(alone(&mut doctor, world.folder()))
    };
    let done = doctor();
    let checks = done.json();
    let wrong = checks.as_array().unwrap().iter().filter(|check| check["level"] == "wrong").count();
    assert_eq!(done.code, i32::from(wrong > 0), "{done:?}");
    let volume = checks.as_array().unwrap().iter().find(|check| check["name"] == "volume").unwrap().clone();
    assert_eq!(volume["level"], "ok", "{volume}");
    fs::remove_file(world.volume().join("covey.json")).unwrap();
    let done = doctor();
    assert_eq!(done.code, 1);
    assert!(done.out.contains("is not a Covey volume"), "{done:?}");
}
