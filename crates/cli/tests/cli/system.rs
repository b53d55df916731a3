//! How the system starts Covey: `mount.covey` for mount(8), and the systemd unit.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{Done, World, kill_and_wait, run_command, soon};

/// The program under the name by which mount(8) calls it.
fn helper(world: &World) -> PathBuf {
    let path = world.path("mount.covey");
    symlink(env!("CARGO_BIN_EXE_covey"), &path).unwrap();
    path
}

fn call(helper: &Path, world: &World, args: &[&str]) -> Done {
    let mut command = Command::new(helper);
    command.args([world.volume(), world.mnt()]).args(args).env("COVEY_CONFIG", "");
    run_command(&mut command)
}

#[test]
fn mount_covey_mounts_in_the_background_with_mounts_own_statuses() {
    let Some(world) = World::mountable() else { return };
    let helper = helper(&world);
    let fake = call(&helper, &world, &["-fv", "-o", "rw"]).ok();
    assert!(!world.is_mounted() && fake.err.is_empty(), "{fake:?}");
    let done =
        call(&helper, &world, &["-o", "ro,nofail,_netdev,x-systemd.automount,readers=2,transport=classic"])
            .ok();
    assert_eq!((done.out.as_str(), done.err.as_str()), ("", ""), "a helper says nothing when all is well");
    let status = world.status();
    assert_eq!(
        (status["mode"].as_str(), status["served"]["transport"].as_str()),
        (Some("read-only"), Some("classic"))
    );
    let twice = call(&helper, &world, &[]);
    assert!(twice.code == 32 && twice.err.contains("in use"), "{twice:?}");
    world.umount().ok();
    let done = call(&helper, &world, &["-sv", "-o", "zstd,rw"]).ok();
    assert!(done.out.contains("Mounted ") && done.err.contains("passed over the option zstd"), "{done:?}");
    world.umount().ok();
    let unknown = call(&helper, &world, &["-o", "zstd"]);
    assert!(unknown.code == 1 && unknown.err.contains("zstd"), "{unknown:?}");
    let remount = call(&helper, &world, &["-o", "remount,ro"]);
    assert!(remount.code == 1 && remount.err.contains("remount"), "{remount:?}");
    assert_eq!(run_command(Command::new(&helper).arg("only-one")).code, 1);
    assert!(!world.is_mounted());
}

#[test]
fn a_dead_mount_is_taken_away_and_a_living_one_let_be() {
    let Some(world) = World::mountable() else { return };
    let stale = || crate::world::json(&[Path::new("umount"), Path::new("--stale"), &world.mnt()]).ok().json();
    assert_eq!(stale()["was_dead"], false, "nothing is mounted");
    let pid = world.mount("");
    assert_eq!(stale()["was_dead"], false);
    assert!(world.is_mounted());
    kill_and_wait(pid);
    soon("it is dead", || fs::metadata(world.mnt()).is_err());
    assert_eq!(stale()["was_dead"], true);
    assert!(!world.is_mounted());
}

#[test]
fn the_unit_is_what_systemd_wants() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let unit = fs::read_to_string(folder.join("covey@.service")).unwrap();
    // A service with its own mount namespace would mount where no other process sees it.
    let private = [
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "ReadOnlyPaths",
        "ProtectKernel",
        "ProtectControlGroups",
        "ProtectProc",
        "MountFlags",
        "RootDirectory",
        "BindPaths",
        "TemporaryFileSystem",
    ];
    for word in private {
        assert!(!unit.lines().any(|line| line.starts_with(word)), "{word} would hide the mount");
    }
    assert!(unit.contains("Type=notify"));
    let world = World::new();
    let copy = world.path("covey@x.service");
    fs::write(&copy, unit.replace("/usr/bin/covey", env!("CARGO_BIN_EXE_covey"))).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() {
        Err(error) => println!("systemd-analyze: {error}: skipped"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("covey")).collect();
            assert!(ours.is_empty(), "{said}");
        }
    }
}
