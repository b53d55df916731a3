//! Volumes in Google's and Azure's stores that are mounted without keys, or with unusable ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run_ok, wait};
use covey_tests::{Need, requires, say};
use s3server::{Azure, Server};
use serde_json::Value;

use super::soon;

/// Variables of this machine that may contain keys.
const CLEARED: [&str; 6] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_BEARER_TOKEN",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_CLIENT_ID",
];

/// A volume in a store of another kind.
struct World {
    folder: tempfile::TempDir,
    keys: Vec<(&'static str, String)>,
}

impl World {
    fn new(origin: &str, endpoint: &str, keys: impl FnOnce(&Path) -> Vec<(&'static str, String)>) -> World {
        let folder = covey_tests::scratch();
        let keys = keys(folder.path());
        let world = World { folder, keys };
        fs::create_dir_all(world.at()).unwrap();
        let source = world.source();
        let words = ["format", source.to_str().unwrap(), "--origin", origin, "--endpoint", endpoint];
        world.run(&words, true);
        world
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    fn at(&self) -> PathBuf {
        self.folder.path().join("at")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn command(&self, words: &[&str], with_keys: bool) -> Command {
        let mut command = covey();
        for name in CLEARED {
            command.env_remove(name);
        }
        command.args(words).env("HOME", self.folder.path());
        if with_keys {
            command.envs(self.keys.iter().cloned());
        }
        command
    }

    fn run(&self, words: &[&str], with_keys: bool) -> String {
        run_ok(&mut self.command(words, with_keys), Duration::from_secs(120)).stdout
    }

    fn status(&self) -> Value {
        let text = self.run(&["status", self.source().to_str().unwrap(), "--json"], false);
        serde_json::from_str(&text).unwrap()
    }

    fn mount(&self, with_keys: bool) -> Mount<'_> {
        let began = Instant::now();
        let words =
            ["mount", self.source().to_str().unwrap(), self.at().to_str().unwrap()].map(str::to_owned);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = self.command(&words, with_keys);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).current_dir("/");
        let mount = Mount { world: self, daemon: command.spawn().unwrap() };
        let is_there = || covey_tests::proc::is_fuse_mount(&self.at());
        while !is_there() {
            assert!(began.elapsed() < Duration::from_secs(120), "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        say(format_args!("mounted in {:.1?}, with keys: {with_keys}", began.elapsed()));
        mount
    }
}

struct Mount<'w> {
    world: &'w World,
    daemon: Child,
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let at = self.world.at();
        let mut umount = self.world.command(&["umount", at.to_str().unwrap()], false);
        let _ = covey_tests::program::run(&mut umount, Duration::from_secs(60));
        if wait(&mut self.daemon, Duration::from_secs(20)).is_none() {
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
        covey_tests::volume::detach(&at);
    }
}

/// Mounts a volume with keys, without keys, and with keys again. Everything written can be read, and is
/// uploaded in the end.
fn with_and_without(world: &World) {
    let (first, second) = (vec![1; 3 << 20], vec![2; 100_000]);
    let flush = || world.run(&["flush", world.source().to_str().unwrap(), "--timeout", "60"], true);
    let mounted = world.mount(true);
    fs::write(world.at().join("f"), &first).unwrap();
    flush();
    assert!(world.status()["far"]["away"].is_null(), "{}", world.status());
    drop(mounted);
    let mounted = world.mount(false);
    assert!(fs::read(world.at().join("f")).unwrap() == first);
    fs::write(world.at().join("g"), &second).unwrap();
    let status = world.status();
    assert!(status["far"]["away"]["why"].as_str().is_some_and(|why| !why.is_empty()), "{status}");
    assert!(world.log().contains("the origin cannot be used now"), "{}", world.log());
    drop(mounted);
    let mounted = world.mount(true);
    flush();
    assert!(fs::read(world.at().join("g")).unwrap() == second);
    assert!(world.status()["far"]["away"].is_null(), "{}", world.status());
    drop(mounted);
}

/// A volume in Azure could not be mounted without keys, although all of its data was on the node.
#[test]
fn regression_a_volume_in_azure_mounts_without_keys() {
    requires!(Need::Covey);
    let server = Azure::start();
    let keys = [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_STORAGE_ACCOUNT_KEY", "b2YtYS10b2tlbg==")];
    let keys = |_: &Path| keys.map(|(name, value)| (name, value.to_owned())).to_vec();
    with_and_without(&World::new("az://container/p", &server.endpoint(), keys));
}

/// The same for Google's store. In addition, keys that appear during the mount are found.
#[test]
fn regression_a_volume_in_google_mounts_without_keys_and_finds_them_later() {
    requires!(Need::Covey);
    // Google's XML requests equal S3's, except for signatures and conditions.
    let server = Server::start_open();
    let key = r#"{"private_key": "x", "private_key_id": "x", "client_email": "x", "disable_oauth": true}"#;
    let keys = |folder: &Path| {
        fs::write(folder.join("key.json"), key).unwrap();
        vec![("GOOGLE_SERVICE_ACCOUNT", folder.join("key.json").display().to_string())]
    };
    let world = World::new("gs://bucket/p", &server.endpoint(), keys);
    with_and_without(&world);
    // The key file is configured and cannot be used: first it is missing, then invalid, then correct.
    let file = world.folder.path().join("key.json");
    fs::remove_file(&file).unwrap();
    let mounted = world.mount(true);
    fs::write(world.at().join("h"), b"h").unwrap();
    assert!(!world.status()["far"]["away"].is_null());
    fs::write(&file, "{").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    fs::write(&file, key).unwrap();
    soon("the store is seen", || world.status()["far"]["away"].is_null());
    soon("it is claimed", || world.status()["claim"]["state"] == "held");
    world.run(&["flush", world.source().to_str().unwrap(), "--timeout", "60"], false);
    drop(mounted);
}
