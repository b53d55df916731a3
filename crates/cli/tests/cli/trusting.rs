//! What a mount of a published tree trusts: file mode bits, the signing key, the record.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::world::{Done, World, covey, json, run_command, soon};

/// Mountpoints of trees. They are unmounted even if the test fails.
struct Rig {
    world: World,
    places: Vec<PathBuf>,
}

impl Rig {
    /// A volume with its own external origin, published as `latest`.
    fn new() -> Rig {
        let world = World::new();
        let rig = Rig { world, places: ["a", "b"].map(PathBuf::from).to_vec() };
        rig.places.iter().for_each(|place| fs::create_dir(rig.world.path(place.to_str().unwrap())).unwrap());
        rig.volume("volume", "origin");
        rig.change(1);
        rig
    }

    fn volume(&self, name: &str, origin: &str) {
        let origin = format!("file:{}", self.world.path(origin).display());
        json(&["format", self.world.path(name).to_str().unwrap(), "--origin", &origin]).ok();
    }

    /// Changes the volume and publishes it.
    fn change(&self, n: u8) {
        self.change_in("volume", n);
    }

    fn change_in(&self, volume: &str, n: u8) {
        let from = self.world.path(&format!("from-{volume}-{n}"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("program"), format!("#!/bin/sh\necho {n}\n")).unwrap();
        fs::set_permissions(from.join("program"), fs::Permissions::from_mode(0o4755)).unwrap();
        let to = format!("{}:/{n}", self.world.path(volume).display());
        json(&[Path::new("import"), &from, Path::new(&to)]).ok();
        json(&["publish", self.world.path(volume).to_str().unwrap(), "latest"]).ok();
    }

    fn tree(&self) -> String {
        format!("file:{}@latest", self.world.path("origin").display())
    }

    fn record(&self) -> PathBuf {
        self.world.path("origin/records/published/latest")
    }

    fn mount(&self, place: &str, more: &[&str]) -> Done {
        let (cache, place) = (self.world.path("cache"), self.world.path(place));
        let tree = self.tree();
        let mut args =
            vec!["mount", "-d", "--cache", cache.to_str().unwrap(), &tree, place.to_str().unwrap()];
        args.extend(more);
        json(&args)
    }

    fn umount(&self, place: &str) {
        json(&[Path::new("umount"), &self.world.path(place)]).ok();
    }

    /// The sequence number of the publication that is shown.
    fn sequence(&self, place: &str) -> u64 {
        let status: Value = json(&[Path::new("status"), &self.world.path(place)]).ok().json();
        status["tree"]["sequence"].as_u64().unwrap()
    }

    fn options(&self, place: &str) -> Vec<String> {
        let (table, place) = (fs::read_to_string("/proc/self/mounts").unwrap(), self.world.path(place));
        let line = table.lines().find(|line| line.split(' ').nth(1) == place.to_str()).unwrap();
        line.split(' ').nth(3).unwrap().split(',').map(str::to_owned).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for place in &self.places {
            let path = self.world.path(place.to_str().unwrap());
            let table = fs::read_to_string("/proc/self/mounts").unwrap();
            if table.lines().any(|line| line.split(' ').nth(1) == path.to_str()) {
                run_command(&mut covey(&[Path::new("umount"), Path::new("--force"), &path]));
            }
        }
    }
}

/// Root mounted another user's tree, and a set-uid file in it ran as root for every user.
#[test]
fn regression_somebody_elses_tree_is_nosuid_and_nodev() {
    let Some(_) = World::mountable() else { return };
    let rig = Rig::new();
    let has = |place: &str, option: &str| rig.options(place).iter().any(|found| found == option);
    rig.mount("a", &[]).ok();
    assert!(has("a", "nosuid") && has("a", "nodev"), "{:?}", rig.options("a"));
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        rig.mount("b", &["-o", "suid,dev"]).ok();
        assert!(!has("b", "nosuid") && !has("b", "nodev"), "{:?}", rig.options("b"));
        rig.umount("b");
    } else {
        println!("skipped: only root mounts with set-uid bits");
    }
    let place = rig.world.path("b");
    json(&["mount", "-d", "corpus:1,3,64", place.to_str().unwrap()]).ok();
    assert!(has("b", "nosuid") && has("b", "nodev"), "{:?}", rig.options("b"));
    rig.umount("b");
    rig.umount("a");
}

/// Anybody with write access to the bucket could replace the owner's record and sign with another key.
#[test]
fn regression_another_signer_is_refused_until_it_is_accepted() {
    let Some(_) = World::mountable() else { return };
    let rig = Rig::new();
    rig.mount("a", &[]).ok();
    rig.umount("a");
    // Another user's volume is copied into this origin, with its blobs.
    rig.volume("other", "elsewhere");
    rig.change_in("other", 9);
    let status = std::process::Command::new("cp")
        .args([
            "-rT",
            rig.world.path("elsewhere").to_str().unwrap(),
            rig.world.path("origin").to_str().unwrap(),
        ])
        .status();
    assert!(status.unwrap().success());
    let refused = rig.mount("a", &[]);
    refused.fails(1, "other-key");
    let origin = format!("file:{}", rig.world.path("origin").display());
    let listed = json(&["published", &origin]).ok().json();
    let key = listed[0]["key"].as_str().unwrap();
    assert!(refused.err.contains(&format!("--key {key}")), "says how to accept it: {refused:?}");
    rig.mount("a", &["--key", key]).ok();
    rig.umount("a");
    rig.mount("a", &[]).ok();
    rig.umount("a");
}

/// A restore creates a new key. If the restored volume belongs to this user on this machine, the key is
/// known.
#[test]
fn a_volume_that_was_restored_here_needs_no_acceptance() {
    let Some(_) = World::mountable() else { return };
    let rig = Rig::new();
    rig.mount("a", &[]).ok();
    rig.umount("a");
    fs::remove_dir_all(rig.world.path("volume")).unwrap();
    json(&["restore", &rig.tree(), rig.world.path("new").to_str().unwrap()]).ok();
    rig.change_in("new", 2);
    rig.mount("a", &[]).ok();
    assert_eq!(rig.sequence("a"), 2);
    rig.umount("a");
}

/// An old record that was put back into the origin took a mount back with it. After a restart, the mount did
/// not remember the newer record.
#[test]
fn regression_a_record_that_is_put_back_takes_no_mount_back() {
    let Some(_) = World::mountable() else { return };
    let rig = Rig::new();
    let first = fs::read(rig.record()).unwrap();
    rig.change(2);
    let second = fs::read(rig.record()).unwrap();
    rig.mount("a", &["--follow=0.1"]).ok();
    assert_eq!(rig.sequence("a"), 2);
    fs::write(rig.record(), &first).unwrap();
    rig.mount("b", &[]).fails(1, "older-record");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(rig.sequence("a"), 2, "the one that follows stays");
    fs::write(rig.record(), &second).unwrap();
    rig.change(3);
    soon("it goes on with what is newer", || rig.sequence("a") == 3);
    rig.umount("a");
    fs::write(rig.record(), &second).unwrap();
    rig.mount("a", &["--follow=0.1"]).fails(1, "older-record");
    rig.mount("a", &["--accept-older"]).ok();
    assert_eq!(rig.sequence("a"), 2, "a person said so");
    rig.umount("a");
}

/// The sequence numbers of a name that is published anew start again, but the publication counts as newer.
#[test]
fn a_name_that_is_published_anew_is_followed() {
    let Some(_) = World::mountable() else { return };
    let rig = Rig::new();
    rig.change(2);
    rig.change(3);
    rig.mount("a", &["--follow=0.1"]).ok();
    let old = fs::read(rig.record()).unwrap();
    json(&["unpublish", rig.world.path("volume").to_str().unwrap(), "latest"]).ok();
    rig.change(4);
    soon("it is shown", || rig.sequence("a") == 1);
    rig.umount("a");
    fs::write(rig.record(), old).unwrap();
    rig.mount("a", &[]).fails(1, "older-record");
}
