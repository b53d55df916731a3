//! A published tree whose store is unreachable.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use covey_tests::program::{covey_ok, covey_run, environment};
use covey_tests::{Finished, Need, Rng, Volume, requires, say};
use s3server::{BUCKET, Canned, Fault, Proxy, Rule, Server};
use serde_json::Value;

use super::soon;

/// The longest time of a mount or a read, whatever the store does: some seconds for asking it, plus the
/// delays of a busy machine. Without a limit of its own, a request to the store takes a minute.
const BOUND: Duration = Duration::from_secs(50);

/// A store with a tree. The volume from which it is published bypasses the proxy.
struct World {
    proxy: Proxy,
    volume: Volume,
    files: Vec<(String, Vec<u8>)>,
    folder: tempfile::TempDir,
    _server: Server,
}

impl World {
    fn new(seed: u64) -> World {
        environment(s3server::environment());
        let server = Server::start();
        let proxy = Proxy::start(server.address(), seed);
        let folder = covey_tests::scratch();
        let origin = format!("s3://{BUCKET}/prefix");
        let volume = Volume::below(folder.path(), &["--origin", &origin, "--endpoint", &server.endpoint()]);
        let mut rng = Rng::new(seed);
        let sizes = [5 << 20, 300_000, 3_000, 100];
        let files = sizes.iter().enumerate().map(|(n, size)| (format!("f{n}"), rng.bytes(*size))).collect();
        let world = World { proxy, volume, files, folder, _server: server };
        world.publish(|at| {
            world.files.iter().for_each(|(name, bytes)| fs::write(at.join(name), bytes).unwrap());
        });
        world
    }

    /// Changes the volume and publishes it.
    fn publish(&self, change: impl FnOnce(&Path)) {
        let mounted = self.volume.mount();
        change(mounted.path());
        covey_ok(&["publish", self.volume.source.to_str().unwrap(), "latest"]);
        mounted.umount();
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn log(&self) -> String {
        let logs = fs::read_dir(self.cache().join("log")).unwrap();
        logs.map(|log| fs::read_to_string(log.unwrap().path()).unwrap()).collect()
    }

    /// The file with the newest record.
    fn record(&self) -> PathBuf {
        let all = fs::read_dir(self.cache().join("known")).unwrap().map(|entry| entry.unwrap().path());
        all.into_iter().find(|path| path.to_str().unwrap().ends_with("@latest")).unwrap()
    }

    fn try_mount(&self, more: &[&str]) -> (Finished, Mount, Duration) {
        let at = self.folder.path().join("at");
        fs::create_dir_all(&at).unwrap();
        let tree = format!("s3://{BUCKET}/prefix@latest");
        let (endpoint, cache) = (self.proxy.endpoint(), self.cache());
        let words = ["mount", "-d", &tree, at.to_str().unwrap(), "--endpoint", &endpoint, "--cache"];
        let words = [&words[..], &[cache.to_str().unwrap(), "--json"], more].concat();
        let began = Instant::now();
        let done = covey_run(&words);
        (done, Mount { at }, began.elapsed())
    }

    fn mount(&self, more: &[&str]) -> Mount {
        let (done, mount, took) = self.try_mount(more);
        assert_eq!(done.code(), 0, "{done:?}");
        assert!(took < BOUND, "{took:?}");
        mount
    }

    fn must_read(&self, mount: &Mount) {
        for (name, bytes) in &self.files {
            let found = fs::read(mount.at.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == *bytes, "{name} holds other bytes");
        }
    }

    /// Mounts it for the first time, and reads everything.
    fn get_to_know(&self) {
        let mount = self.mount(&[]);
        assert_eq!(fs::read_dir(&mount.at).unwrap().count(), self.files.len());
        self.must_read(&mount);
        // A blob goes to its waiting readers first, and is written to the disk afterwards.
        covey_ok(&["warm".as_ref(), mount.at.join("f0").as_os_str()]);
        mount.umount();
    }
}

struct Mount {
    at: PathBuf,
}

impl Mount {
    fn status(&self) -> Value {
        covey_ok(&["status", self.at.to_str().unwrap(), "--json"]).json()
    }

    fn is_away(&self) -> bool {
        !self.status()["far"]["away"].is_null()
    }

    fn umount(self) {
        covey_ok(&["umount", self.at.to_str().unwrap()]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if covey_tests::proc::is_fuse_mount(&self.at) {
            let _ = covey_run(&["umount", "--lazy", self.at.to_str().unwrap()]);
        }
    }
}

/// A node with all of a tree on its disk could not mount it while the store was unreachable, hung or refused.
#[test]
fn regression_a_tree_that_was_mounted_mounts_while_its_store_is_away() {
    requires!(Need::Covey);
    let world = World::new(41);
    world.get_to_know();
    let mode = fs::metadata(world.record()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let refused = [Canned::ExpiredToken, Canned::UnknownKey, Canned::AccessDenied, Canned::ClockSkew];
    let faults = refused.map(Fault::Answer).into_iter().chain([Fault::Hang, Fault::SlowDown]);
    for fault in faults.map(Some).chain([None]) {
        match &fault {
            Some(fault) => world.proxy.add(Rule::new(fault.clone())),
            None => world.proxy.down(),
        }
        let (done, mount, took) = world.try_mount(&[]);
        assert_eq!(done.code(), 0, "{fault:?}: {done:?}");
        assert!(took < BOUND, "{fault:?}: {took:?}");
        let remark = done.json()["remarks"][0].as_str().unwrap_or_default().to_owned();
        assert!(remark.contains("the origin cannot be used now"), "{done:?}");
        assert!(remark.contains("publication 1 of"), "{remark}");
        assert!(fs::read_dir(&mount.at).unwrap().count() == world.files.len());
        world.must_read(&mount);
        let status = mount.status();
        let away = status["far"]["away"]["why"].as_str().unwrap_or_default();
        assert!(!away.is_empty() && status["tree"]["sequence"] == 1, "{fault:?}: {status}");
        assert_eq!(status["files"], world.files.len() as u64 + 1, "{status}");
        let text = covey_ok(&["status", mount.at.to_str().unwrap()]).stdout;
        assert!(text.contains("origin away"), "{text}");
        say(format_args!("{fault:?}: mounted in {took:.1?}; {away}"));
        mount.umount();
        world.proxy.faults().clear();
    }
    assert_eq!(world.log().matches("the newest that this node has seen").count(), 7, "{}", world.log());
}

/// Blobs of names are read rarely, so file data used to evict them. Then not even the root folder could be
/// read.
#[test]
fn regression_names_stay_when_bytes_push_their_blobs_out() {
    requires!(Need::Covey);
    let world = World::new(45);
    let mut rng = Rng::new(46);
    let mut name = || rng.bytes(60).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let folders: Vec<(String, Vec<String>)> =
        (0..40).map(|n| (format!("d{n}"), (0..100).map(|_| name()).collect())).collect();
    world.publish(|at| {
        for (folder, names) in &folders {
            fs::create_dir(at.join(folder)).unwrap();
            names.iter().for_each(|name| fs::write(at.join(folder).join(name), name).unwrap());
        }
        (0..32).for_each(|n| fs::write(at.join(format!("large{n}")), Rng::new(n).bytes(5 << 20)).unwrap());
    });
    let look = |mount: &Mount, (folder, names): &(String, Vec<String>)| {
        let found = fs::read_dir(mount.at.join(folder)).unwrap();
        assert_eq!(found.count(), names.len());
        assert_eq!(fs::read_to_string(mount.at.join(folder).join(&names[7])).unwrap(), names[7]);
    };
    let mount = world.mount(&["-o", "cache_size=64M"]);
    look(&mount, &folders[11]);
    for n in (0..32).chain(0..32) {
        assert_eq!(fs::read(mount.at.join(format!("large{n}"))).unwrap().len(), 5 << 20);
    }
    mount.umount();
    world.proxy.down();
    let mount = world.mount(&["-o", "cache_size=64M,deadline=3"]);
    look(&mount, &folders[11]);
    let status = mount.status();
    assert!(mount.is_away() && status["files"].as_u64() > Some(4000), "{status}");
    mount.umount();
}

/// A read of data that is not on the node fails within the deadline. When the store is reachable again, it
/// succeeds without a new mount.
#[test]
fn regression_a_tree_goes_on_by_itself_when_its_store_is_back() {
    requires!(Need::Covey);
    let world = World::new(42);
    world.get_to_know();
    world.publish(|at| fs::write(at.join("cold"), Rng::new(99).bytes(5 << 20)).unwrap());
    // Reads its attributes, and none of its bytes.
    let mount = world.mount(&[]);
    assert_eq!(fs::metadata(mount.at.join("cold")).unwrap().len(), 5 << 20);
    mount.umount();
    world.proxy.add(Rule::new(Fault::Hang));
    let mount = world.mount(&["-o", "deadline=4"]);
    let began = Instant::now();
    let failed = fs::read(mount.at.join("cold")).map(drop).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    world.must_read(&mount);
    world.publish(|at| fs::write(at.join("second"), b"2").unwrap());
    world.proxy.faults().clear();
    soon("the store is seen", || !mount.is_away());
    soon("what was not here is read", || fs::read(mount.at.join("cold")).is_ok());
    assert!(!mount.at.join("second").exists(), "it stays with the tree that was mounted");
    soon("it says that there is a newer one", || world.log().contains("was published again"));
    assert!(world.log().contains("the origin answers again"), "{}", world.log());
    mount.umount();
}

/// A mount that follows a name starts with the local tree, and moves on when the store is reachable again.
#[test]
fn regression_a_followed_tree_begins_away_and_moves_on() {
    requires!(Need::Covey);
    let world = World::new(43);
    world.get_to_know();
    world.proxy.down();
    let mount = world.mount(&["--follow=0.2", "-o", "deadline=5"]);
    world.publish(|at| fs::write(at.join("second"), b"2").unwrap());
    world.must_read(&mount);
    assert!(mount.is_away() && mount.status()["tree"]["sequence"] == 1);
    world.proxy.up();
    soon("it moves", || mount.at.join("second").exists());
    soon("the store is seen", || !mount.is_away());
    assert_eq!(mount.status()["tree"]["sequence"], 2);
    assert!(!world.log().contains("cannot follow"), "said once: {}", world.log());
    mount.umount();
    // From now on the second tree is the newest that was seen here.
    world.proxy.down();
    let mount = world.mount(&[]);
    assert_eq!(fs::read(mount.at.join("second")).unwrap(), b"2");
    mount.umount();
}

/// No tree is mounted from a record that is older than one seen before or damaged, or if no record was seen.
#[test]
fn regression_a_store_that_is_away_takes_no_mount_back() {
    requires!(Need::Covey);
    let world = World::new(44);
    let refused = |code: &str| {
        world.proxy.down();
        let (done, _, took) = world.try_mount(&[]);
        world.proxy.up();
        assert_eq!((done.code(), done.json()["error"]["code"].as_str()), (1, Some(code)), "{done:?}");
        assert!(took < BOUND, "{took:?}");
    };
    refused("origin-away");
    world.get_to_know();
    let first = fs::read(world.record()).unwrap();
    world.publish(|at| fs::write(at.join("second"), b"2").unwrap());
    world.mount(&[]).umount();
    let second = fs::read(world.record()).unwrap();
    assert!(first != second);
    fs::write(world.record(), &first).unwrap();
    refused("origin-away");
    let mut damaged = second.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(world.record(), &damaged).unwrap();
    refused("origin-away");
    // With the store, the record is ignored and replaced.
    world.mount(&[]).umount();
    assert!(fs::read(world.record()).unwrap() == second);
    world.proxy.down();
    world.mount(&[]).umount();
    world.proxy.up();
    // An answer of the store is not an outage.
    covey_ok(&["unpublish", world.volume.source.to_str().unwrap(), "latest"]);
    let (done, ..) = world.try_mount(&[]);
    assert_eq!(done.code(), 1, "{done:?}");
}
