//! The driver, or a daemon, is killed at any moment. What was begun is found, and repeated calls end it.

use std::fs;
use std::time::Duration;

use covey_tests::program::{covey, run_ok};
use covey_tests::{Need, proc, requires, requires_server};
use csi::proto::Volume;
use csi::proto::controller::CreateVolumeResponse;
use csi::proto::identity::Empty;

use super::rig::{Driver, PATIENCE, published_tree, shared_volume, texts};

/// The calls of a pod, after which nothing is left.
fn live(driver: &Driver, volume: &Volume) {
    driver.stage(volume).unwrap();
    driver.publish(volume, "pod", false).unwrap();
    fs::write(driver.path("pod/a"), b"one").unwrap();
    driver.unpublish(volume, "pod").unwrap();
    driver.unstage(volume).unwrap();
    assert_eq!(driver.mounts().iter().filter(|place| !place.starts_with(driver.path("state"))).count(), 0);
    assert!(driver.state("staged").is_empty());
}

/// kill -9 of the driver while it stages a volume, at several moments; the next driver goes on.
#[test]
fn a_driver_that_is_killed_while_it_stages_goes_on() {
    requires!(Need::Root, Need::Covey);
    let server = requires_server!();
    let mut driver = Driver::new();
    let address = shared_volume(&server, "covey", driver.folder.path());
    let volume = driver.create("pvc-1", 1 << 30, &texts(&[("volume", &address)])).unwrap();
    for pause_ms in [0, 60, 200] {
        // A driver that starts without the mount of the controller.
        driver.end();
        driver.start();
        let (client, call) = (driver.client(), driver.stage_call(&volume));
        let stage = std::thread::spawn(move || client.call::<_, Empty>("Node/NodeStageVolume", call));
        std::thread::sleep(Duration::from_millis(pause_ms));
        driver.kill();
        drop(stage.join().unwrap());
        // What a driver that is killed at the worst moment leaves.
        let half = driver.path("state/secrets/00ff.new-1");
        fs::write(&half, b"half").unwrap();
        driver.start();
        assert!(!half.exists());
        live(&driver, &volume);
    }
    driver.delete(&volume.volume_id).unwrap();
    driver.end();
    assert_eq!(driver.mounts().len(), 0, "{}", driver.log());
}

/// What is in the folder of volumes.
fn volumes(driver: &Driver) -> Vec<String> {
    let entries = fs::read_dir(driver.path("volumes")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn until(driver: &Driver, what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what}: {:?} {}", volumes(driver), driver.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A driver that was killed while it made a volume left that for ever, and a call that made the volume again
/// removed it below its mount.
#[test]
fn regression_what_a_killed_driver_was_making_is_removed_unless_it_is_in_use() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    for pause_ms in [0, 150, 300, 600] {
        let client = driver.client();
        let call = driver.create_call("db", 1 << 30, &texts(&[("exclusive", "true")]));
        let create = std::thread::spawn(move || {
            client.call::<_, CreateVolumeResponse>("Controller/CreateVolume", call)
        });
        std::thread::sleep(Duration::from_millis(pause_ms));
        driver.kill();
        drop(create.join().unwrap());
        driver.start();
        until(&driver, "what was left is removed", || volumes(&driver).iter().all(|name| name == "db"));
    }
    // One that a process uses, which the driver has not started.
    let (half, place) = (driver.path("volumes/.new-used"), driver.path("elsewhere"));
    driver.end();
    fs::create_dir(&place).unwrap();
    run_ok(covey().arg("format").arg(&half), PATIENCE);
    run_ok(covey().args(["mount", "-d"]).args([&half, &place]), PATIENCE);
    run_ok(covey().arg("format").arg(driver.path("volumes/.new-left")), PATIENCE);
    driver.start();
    until(&driver, "what nothing uses is removed", || !driver.path("volumes/.new-left").exists());
    let exclusive = texts(&[("exclusive", "true")]);
    let refused = driver.create("used", 0, &exclusive).unwrap_err();
    assert!(refused.message().contains("is used by the process"), "{refused}");
    fs::write(place.join("file"), "1").unwrap();
    assert!(half.join("covey.json").is_file());
    run_ok(covey().arg("umount").arg(&place), PATIENCE);
    let volume = driver.create("used", 0, &exclusive).unwrap();
    assert!(!half.exists());
    live(&driver, &volume);
    driver.end();
    assert_eq!(driver.mounts().len(), 0, "{}", driver.log());
}

/// A mount goes on without a driver, and the next driver knows it.
#[test]
fn a_published_volume_goes_on_without_the_driver() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let volume = driver.create("db", 0, &texts(&[("exclusive", "true")])).unwrap();
    driver.stage(&volume).unwrap();
    driver.publish(&volume, "pod", false).unwrap();
    driver.kill();
    fs::write(driver.path("pod/a"), b"one").unwrap();
    driver.start();
    driver.publish(&volume, "pod", false).unwrap();
    driver.end();
    assert_eq!(fs::read(driver.path("pod/a")).unwrap(), b"one");
    driver.start();
    driver.unpublish(&volume, "pod").unwrap();
    driver.unstage(&volume).unwrap();
    assert_eq!(driver.mounts().len(), 0);
    driver.delete(&volume.volume_id).unwrap();
}

/// Daemons that ended with the driver, as in a container that is restarted, are started again by the next
/// one, and the volumes are at their places again.
#[test]
fn what_ended_with_the_driver_is_mounted_again() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let volume = driver.create("db", 0, &texts(&[("exclusive", "true")])).unwrap();
    driver.stage(&volume).unwrap();
    driver.publish(&volume, "pod", false).unwrap();
    driver.publish(&volume, "reader", true).unwrap();
    fs::write(driver.path("pod/a"), b"one").unwrap();
    fs::File::open(driver.path("pod/a")).unwrap().sync_all().unwrap();
    driver.kill();
    kill_daemon(&driver);
    // The kernel still has what was read; what changes something needs the daemon.
    assert!(fs::write(driver.path("pod/b"), b"two").is_err(), "the daemon is dead");
    driver.start();
    until_all_live(&driver, &["pod", "reader"]);
    assert_eq!(fs::read(driver.path("pod/a")).unwrap(), b"one");
    fs::write(driver.path("pod/b"), b"two").unwrap();
    assert!(driver.path("reader/b").exists());
    assert!(fs::write(driver.path("reader/a"), b"two").is_err(), "it refuses changes, as before");
    // A daemon that dies while the driver lives: the next call for the volume starts it again.
    kill_daemon(&driver);
    driver.publish(&volume, "another", false).unwrap();
    assert_eq!(fs::read(driver.path("another/a")).unwrap(), b"one");
    until_all_live(&driver, &["pod", "reader"]);
    fs::write(driver.path("pod/c"), b"three").unwrap();
    for target in ["pod", "reader", "another"] {
        driver.unpublish(&volume, target).unwrap();
    }
    driver.unstage(&volume).unwrap();
    assert_eq!(driver.mounts().len(), 0);
    driver.delete(&volume.volume_id).unwrap();
    driver.end();
}

/// Only the volume and the place of the next call came back, and nothing without a call.
#[test]
fn regression_all_volumes_of_a_daemon_that_died_come_back() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let class = published_tree(&driver);
    let [one, two] = ["t1", "t2"].map(|name| driver.create(name, 0, &class).unwrap());
    for (volume, targets) in [(&one, &["pod1", "pod2"][..]), (&two, &["pod3"])] {
        driver.stage(volume).unwrap();
        targets.iter().for_each(|target| _ = driver.publish(volume, target, false).unwrap());
    }
    kill_daemon(&driver);
    driver.publish(&one, "pod4", false).unwrap();
    until_all_live(&driver, &["pod1", "pod2", "pod3", "pod4"]);
    // Without any call.
    kill_daemon(&driver);
    until_all_live(&driver, &["pod1", "pod2", "pod3", "pod4"]);
    for (volume, targets) in [(&one, &["pod1", "pod2", "pod4"][..]), (&two, &["pod3"])] {
        for target in targets {
            assert_eq!(fs::read(driver.path(target).join("a")).unwrap(), b"one");
            driver.unpublish(volume, target).unwrap();
        }
        assert!(rustix::fs::statvfs(driver.staging(volume)).is_ok());
        driver.unstage(volume).unwrap();
    }
    assert_eq!(driver.mounts().len(), 0);
    driver.end();
}

pub fn until_all_live(driver: &Driver, names: &[&str]) {
    // statvfs(2) always asks the daemon. Between the dead mount and the new one, the place is a plain folder.
    let lives = |name: &&str| {
        let place = driver.path(name);
        proc::is_fuse_mount(&place) && rustix::fs::statvfs(&place).is_ok()
    };
    until(driver, "all places live", || names.iter().all(lives));
}

/// Kills the daemon that has a mount below the state folder in its arguments.
pub fn kill_daemon(driver: &Driver) {
    let state = driver.path("state/mounts").display().to_string();
    let mut killed = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&words).contains(&state) {
            // SAFETY: it sends a signal to a daemon that this test has started.
            killed += i32::from(unsafe { libc::kill(pid, libc::SIGKILL) } == 0);
            while fs::read(entry.path().join("cmdline")).is_ok_and(|words| !words.is_empty()) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    assert_eq!(killed, 1);
}
