//! Mounts: foreground, background, signals, dead mounts, and the commands that talk to a daemon.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use crate::world::{World, alone, covey, end_of, json, kill, kill_and_wait, run_command, soon};

#[test]
fn what_is_written_is_there_after_the_next_mount() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    fs::write(world.mnt().join("a"), "hello").unwrap();
    let status = world.status();
    assert_eq!((status["mode"].as_str(), status["files"].as_u64()), (Some("exclusive"), Some(2)), "{status}");
    assert_eq!(Path::new(status["served"]["mountpoint"].as_str().unwrap()), world.mnt());
    assert!(status["memory_bytes"].as_u64().unwrap() > 0);
    // The counts by kind add up to the total.
    let kinds = status["served"]["requests_by_kind"].as_object().unwrap();
    assert!(kinds.contains_key("MKNOD") && kinds.values().all(|count| count.as_u64() > Some(0)), "{status}");
    assert!(
        kinds.values().filter_map(serde_json::Value::as_u64).sum::<u64>()
            >= status["served"]["requests"].as_u64().unwrap()
    );
    let by_volume = json(&[Path::new("status"), &world.volume()]).ok().json();
    assert_eq!(
        by_volume["served"]["pid"], status["served"]["pid"],
        "a mounted volume is reached by its folder too"
    );
    let rows = json(&[Path::new("df"), &world.mnt()]).ok().json();
    assert_eq!(rows[0]["alive"], true, "{rows}");
    let info = json(&[Path::new("info"), &world.mnt().join("a")]).ok().json();
    assert_eq!(info["size"], 5, "{info}");
    world.umount().ok();
    assert!(!world.is_mounted());
    world.mount("ro");
    assert_eq!(fs::read_to_string(world.mnt().join("a")).unwrap(), "hello");
    let refused = fs::write(world.mnt().join("b"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    world.umount().ok();
}

/// A bind mount shows a part of the volume, and has its device. Commands took the volume's root instead of
/// what was named, also through a link from outside.
#[test]
fn regression_a_place_is_found_through_bind_mounts_and_links() {
    let Some(world) = World::mountable() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: bind mounts need root");
        return;
    }
    world.mount("");
    fs::create_dir_all(world.mnt().join("a/b")).unwrap();
    fs::write(world.mnt().join("a/b/file"), "hello").unwrap();
    let (bound, link) = (world.path("bound"), world.path("link"));
    fs::create_dir(&bound).unwrap();
    std::os::unix::fs::symlink(world.mnt().join("a/b"), &link).unwrap();
    rustix::mount::mount_bind(world.mnt().join("a"), &bound).unwrap();
    let found = std::panic::catch_unwind(|| {
        let mnt = world.mnt();
        for place in [bound.clone(), bound.join("b"), bound.join("b/file"), link.clone(), mnt.join("a/b")] {
            let info = json(&[Path::new("info"), &place]).ok().json();
            let number = fs::metadata(&place).unwrap().ino();
            assert_eq!(info["inode"].as_u64(), Some(number), "{}: {info}", place.display());
        }
        let of_root = json(&[Path::new("info"), &mnt]).ok().json();
        assert_eq!(of_root["inode"].as_u64(), Some(1), "{of_root}");
    });
    base::trial::unmount(&bound).unwrap();
    found.unwrap();
    world.umount().ok();
}

#[test]
fn one_volume_is_mounted_once_and_one_mountpoint_used_once() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    let twice = json(&[Path::new("mount"), &world.volume(), &other]);
    twice.fails(1, "in-use");
    assert!(twice.err.contains(world.mnt().to_str().unwrap()), "says where: {twice:?}");
    let second = world.path("second");
    json(&[Path::new("format"), &second]).ok();
    json(&[Path::new("mount"), &second, &world.mnt()]).fails(1, "mountpoint-in-use");
    json(&[Path::new("mount"), Path::new("-d"), &second, &world.mnt()]).fails(1, "mountpoint-in-use");
    json(&[Path::new("mount"), &second, &world.path("nowhere")]).fails(1, "no-mountpoint");
    json(&[Path::new("mount"), &second, &second.join("blobs")]).fails(2, "usage");
    json(&[Path::new("fsck"), &world.volume()]).fails(1, "in-use");
    world.umount().ok();
}

#[test]
fn a_busy_mount_is_not_taken_away_and_its_user_is_named() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let mut user = std::process::Command::new("sleep").arg("600").current_dir(world.mnt()).spawn().unwrap();
    soon("the user is there", || {
        fs::read_link(format!("/proc/{}/cwd", user.id())).is_ok_and(|cwd| cwd == world.mnt())
    });
    let busy = world.umount();
    busy.fails(1, "busy");
    assert!(busy.err.contains(&format!("process {} (sleep)", user.id())), "{busy:?}");
    json(&[Path::new("umount"), Path::new("--lazy"), &world.mnt()]).ok();
    assert!(!world.is_mounted());
    user.kill().unwrap();
    user.wait().unwrap();
    soon("the volume is free", || json(&[Path::new("status"), &world.volume()]).code == 0);
}

#[test]
fn a_killed_daemon_leaves_a_mount_that_can_be_taken_away() {
    let Some(world) = World::mountable() else { return };
    let pid = world.mount("");
    fs::write(world.mnt().join("kept"), vec![9; 300_000]).unwrap();
    kill_and_wait(pid);
    json(&[Path::new("status"), &world.mnt()]).fails(1, "stale-mount");
    json(&[Path::new("mount"), &world.volume(), &world.mnt()]).fails(1, "stale-mount");
    let rows = run_command(alone(covey(&["df"]).arg("--json"), world.folder())).ok().json();
    let dead =
        |row: &serde_json::Value| row["mountpoint"].as_str() == world.mnt().to_str() && row["alive"] == false;
    assert!(rows.as_array().unwrap().iter().any(dead), "{rows}");
    assert_eq!(world.umount().ok().json()["was_dead"], true);
    world.mount("");
    assert_eq!(fs::read(world.mnt().join("kept")).unwrap(), vec![9; 300_000]);
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn signals_end_a_foreground_mount_in_good_order() {
    let Some(world) = World::mountable() else { return };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut command = covey(&[Path::new("mount"), &world.volume(), &world.mnt()]);
        let mut daemon = command.stderr(Stdio::null()).spawn().unwrap();
        soon("it is mounted", || world.is_mounted());
        fs::write(world.mnt().join(format!("s{signal}")), "x").unwrap();
        kill(daemon.id(), signal);
        assert_eq!(end_of(&mut daemon, "a signalled mount"), 0);
        assert!(!world.is_mounted());
    }
    let mut command = covey(&[Path::new("mount"), &world.volume(), &world.mnt()]);
    let mut daemon = command.stderr(Stdio::null()).spawn().unwrap();
    soon("it is mounted", || world.is_mounted());
    assert_eq!(fs::read_dir(world.mnt()).unwrap().count(), 3);
    // The mount is busy and there is no terminal. It ends nevertheless.
    let mut user = std::process::Command::new("sleep").arg("600").current_dir(world.mnt()).spawn().unwrap();
    soon("the user is there", || {
        fs::read_link(format!("/proc/{}/cwd", user.id())).is_ok_and(|cwd| cwd == world.mnt())
    });
    kill(daemon.id(), libc::SIGTERM);
    end_of(&mut daemon, "a signalled busy mount");
    assert!(!world.is_mounted());
    user.kill().unwrap();
    user.wait().unwrap();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn a_tree_is_cloned_under_the_kernels_eyes() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let (a, b) = (world.mnt().join("a"), world.mnt().join("b"));
    fs::create_dir(&a).unwrap();
    // The data is not synced. The clone must have it nevertheless.
    fs::write(a.join("f"), vec![5; 1 << 20]).unwrap();
    assert!(fs::metadata(&b).is_err(), "the kernel now believes that there is no b");
    assert_eq!(fs::read_dir(world.mnt()).unwrap().count(), 1);
    json(&[Path::new("clone"), &a, &b]).ok();
    assert_eq!(fs::read(b.join("f")).unwrap(), vec![5; 1 << 20]);
    assert_eq!(fs::read_dir(world.mnt()).unwrap().count(), 2);
    fs::write(b.join("f"), "changed").unwrap();
    assert_eq!(fs::read(a.join("f")).unwrap(), vec![5; 1 << 20], "the two change apart");
    json(&[Path::new("clone"), &a, &b]).fails(1, "exists");
    json(&[Path::new("gc"), &world.mnt()]).ok();
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn a_volume_in_memory_lives_as_long_as_its_mount() {
    let Some(world) = World::mountable() else { return };
    let mnt = world.mnt();
    json(&[Path::new("mount"), Path::new("-d"), Path::new("mem:"), &mnt]).ok();
    fs::write(mnt.join("a"), vec![3; 5 << 20]).unwrap();
    let status = world.status();
    assert!(status["volume"].as_str().unwrap().starts_with("mem:"), "{status}");
    assert_eq!(fs::read(mnt.join("a")).unwrap(), vec![3; 5 << 20]);
    world.umount().ok();
    assert!(!world.is_mounted());
}

#[test]
fn up_goes_from_nothing_to_a_mount() {
    let Some(world) = World::mountable() else { return };
    let home = world.path("home");
    fs::create_dir(&home).unwrap();
    let up = |extra: &[&str]| {
        let mut command = covey(&["up", "-d", "--json"]);
        run_command(command.args(extra).env("HOME", &home).env_remove("XDG_DATA_HOME"))
    };
    let mounted = up(&[]).ok().json();
    let place = home.join("covey");
    assert_eq!(mounted["mountpoint"].as_str(), place.to_str());
    assert!(home.join(".local/share/covey/volume/covey.json").exists());
    fs::write(place.join("a"), "x").unwrap();
    up(&[]).fails(1, "in-use");
    json(&[Path::new("umount"), &place]).ok();
    up(&[]).ok();
    assert!(place.join("a").exists());
    json(&[Path::new("umount"), &place]).ok();
}

/// A bit of the log flips after files were synced, and the daemon is killed. Every command refuses and
/// changes nothing. Only salvage, on request, keeps a copy of the log, recovers everything before the damage,
/// and names what is lost.
#[test]
fn regression_a_damaged_log_is_refused_and_salvaged() {
    let Some(world) = World::mountable() else { return };
    let (volume, mnt) = (world.volume(), world.mnt());
    let pid = world.mount("commit=300");
    for n in 0..30 {
        let mut file = fs::File::create(mnt.join(format!("file{n:02}"))).unwrap();
        std::io::Write::write_all(&mut file, b"text").unwrap();
        file.sync_all().unwrap();
    }
    kill_and_wait(pid);
    world.umount().ok();
    let log = volume.join("meta/log");
    let logs = || -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    };
    let (path, mut bytes) =
        logs().into_iter().find(|(_, bytes)| bytes[4096..].iter().any(|b| *b != 0)).unwrap();
    bytes[4096 + 3000] ^= 2;
    fs::write(&path, &bytes).unwrap();
    let before = logs();
    for command in ["fsck", "gc"] {
        json(&[Path::new(command), &volume]).fails(1, "damaged-log");
    }
    json(&[Path::new("fsck"), Path::new("--repair"), &volume]).fails(1, "damaged-log");
    let refused = json(&[Path::new("mount"), &volume, &mnt]);
    refused.fails(1, "damaged-log");
    assert!(refused.err.contains("--salvage"), "{refused:?}");
    assert!(logs() == before, "a refused command wrote to the log");
    let found = world.fsck(&["--salvage"]);
    assert_eq!(found["sound"], true, "{found}");
    let salvaged = &found["salvaged"];
    assert!(salvaged["operations_kept"].as_u64().unwrap() > 0, "{found}");
    assert!(salvaged["names"].to_string().contains("/file29"), "{found}");
    let copy = std::path::PathBuf::from(salvaged["copy"].as_str().unwrap());
    for (path, bytes) in before {
        assert!(fs::read(copy.join(path.file_name().unwrap())).unwrap() == bytes, "{path:?}");
    }
    world.mount("");
    let there: Vec<_> = fs::read_dir(&mnt).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!there.is_empty() && there.len() < 30, "{there:?}");
    for n in 0..there.len() - 1 {
        assert_eq!(fs::read(mnt.join(format!("file{n:02}"))).unwrap(), b"text");
    }
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

/// Any user's FUSE mount could claim to be root's volume. `umount`, `fsck`, `gc` and `export` then asked it,
/// and waited for ever.
#[test]
fn regression_a_foreign_mount_does_not_pose_as_the_volume() {
    use std::os::fd::AsRawFd;
    let Some(world) = World::mountable() else { return };
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let c = |text: &str| std::ffi::CString::new(text).unwrap();
    let options = c(&format!("fd={},rootmode=40000,user_id=1234,group_id=1234", device.as_raw_fd()));
    let (volume, mnt) = (std::fs::canonicalize(world.volume()).unwrap(), world.mnt());
    let (source, target, kind) = (c(volume.to_str().unwrap()), c(mnt.to_str().unwrap()), c("fuse.covey"));
    // SAFETY: the four texts end with NUL and are alive during the call.
    let status = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            options.as_ptr().cast(),
        )
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    // No daemon answers there, and no command asks it.
    let sound = json(&[Path::new("fsck"), &volume]);
    let collected = json(&[Path::new("gc"), &volume]);
    let exported = json(&[Path::new("export"), &volume, &world.path("out")]);
    let umounted = json(&[Path::new("umount"), &volume]);
    let shown = json(&[Path::new("status")]);
    let at = json(&[Path::new("umount"), &mnt]);
    // SAFETY: the text ends with NUL.
    assert_eq!(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }, 0);
    assert_eq!(
        (sound.code, collected.code, exported.code),
        (0, 0, 0),
        "{sound:?} {collected:?} {exported:?}"
    );
    umounted.fails(1, "not-mounted");
    at.fails(1, "not-mounted");
    assert!(!shown.out.contains(mnt.to_str().unwrap()), "{shown:?}");
}
