//! Volumes whose bytes are in an object store: what waits for upload when the last pod ends, and what is
//! cached of trees.

use std::fs;

use covey_tests::program::covey;
use covey_tests::{Need, requires, requires_server, run_ok};
use csi::proto::controller::{CreateVolumeRequest, CreateVolumeResponse};
use csi::proto::identity::Empty;
use csi::proto::node::StageRequest;
use csi::proto::{Texts, Volume, mode};
use s3server::{Fault, Method, Proxy, Rule, Server as Store};
use servers::Server;
use tonic::Code;

use super::kills::kill_daemon;
use super::rig::{Driver, PATIENCE, capability, texts};

fn keys() -> Texts {
    texts(&[("AWS_ACCESS_KEY_ID", s3server::KEY), ("AWS_SECRET_ACCESS_KEY", s3server::SECRET)])
}

fn run_with_keys(args: &[&str]) {
    run_ok(covey().args(args).envs(s3server::environment()), PATIENCE);
}

fn origin() -> String {
    format!("s3://{}/csi", s3server::BUCKET)
}

fn stage(driver: &Driver, volume: &Volume) {
    let call = StageRequest { secrets: keys(), ..driver.stage_call(volume) };
    driver.call::<_, Empty>("Node/NodeStageVolume", call).unwrap();
}

/// Random bytes: equal ones would be stored once.
fn random(mib: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    (0..mib << 17).flat_map(|_| next()).collect()
}

/// A shared volume in a store behind a gate, as a volume that was there before the driver.
fn shared(server: &Server, gate: &Proxy) -> Volume {
    let port = server.port();
    let address = format!("postgres://covey@127.0.0.1:{port}/covey?volume=w&sslmode=disable");
    run_with_keys(&["format", &address, "--origin", &origin(), "--endpoint", &gate.endpoint()]);
    Volume {
        volume_id: "whole".to_owned(),
        volume_context: texts(&[("volume", &address)]),
        ..Volume::default()
    }
}

/// A pod on another node reads what one on the first node wrote, which has left the volume.
fn is_read_elsewhere(volume: &Volume, data: &[u8]) {
    let second = Driver::new();
    stage(&second, volume);
    second.publish(volume, "pod", false).unwrap();
    assert!(fs::read(second.path("pod/file")).unwrap() == data);
    second.unpublish(volume, "pod").unwrap();
    second.unstage(volume).unwrap();
    assert_eq!(second.mounts().len(), 0);
}

/// A shared volume whose store is behind a gate, and a pod that uses it.
struct World {
    driver: Driver,
    volume: Volume,
    gate: Proxy,
    _store: Store,
    _server: Server,
}

impl World {
    fn new(server: Server) -> World {
        let store = Store::start();
        let gate = Proxy::start(store.address(), 1);
        let (volume, driver) = (shared(&server, &gate), Driver::new());
        stage(&driver, &volume);
        driver.publish(&volume, "pod", false).unwrap();
        World { driver, volume, gate, _store: store, _server: server }
    }
}

/// The mount ended with its last pod, and what was not uploaded stayed on the node, which had left. After a
/// failure the same call said OK.
#[test]
fn regression_a_mount_stays_until_everything_is_uploaded() {
    requires!(Need::Root, Need::Covey);
    let world = World::new(requires_server!());
    let World { gate, volume, driver, .. } = &world;
    let data = random(32);
    gate.add(Rule::new(Fault::SlowDown).only(Method::PUT));
    fs::write(driver.path("pod/file"), &data).unwrap();
    driver.unpublish(volume, "pod").unwrap();
    for _ in 0..2 {
        let status = driver.unstage(volume).unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("next: "), "{status:?}");
        assert_eq!((driver.state("staged").len(), driver.state("secrets").len()), (1, 1));
        assert_eq!(driver.mounts().len(), 1);
    }
    // A stage that fails meanwhile drops neither the record nor the bytes.
    let staging = driver.staging(volume);
    let _ = fs::remove_dir(&staging);
    fs::write(&staging, "").unwrap();
    let call = driver.stage_call(volume);
    driver.call::<_, Empty>("Node/NodeStageVolume", call).unwrap_err();
    assert_eq!((driver.state("staged").len(), driver.state("secrets").len()), (1, 1));
    assert_eq!(driver.mounts().len(), 1);
    fs::remove_file(&staging).unwrap();
    assert_eq!(driver.unstage(volume).unwrap_err().code(), Code::Unavailable);
    gate.faults().clear();
    for _ in 0..2 {
        driver.unstage(volume).unwrap();
    }
    assert_eq!((driver.mounts().len(), driver.state("secrets").len()), (0, 0));
    is_read_elsewhere(volume, &data);
}

/// The store is gone for good. If the node's folder is removed, what only that had is given up.
#[test]
fn a_folder_that_is_removed_lets_its_volume_go() {
    requires!(Need::Root, Need::Covey);
    let world = World::new(requires_server!());
    let World { gate, volume, driver, .. } = &world;
    gate.add(Rule::new(Fault::SlowDown).only(Method::PUT));
    fs::write(driver.path("pod/file"), random(16)).unwrap();
    driver.unpublish(volume, "pod").unwrap();
    let status = driver.unstage(volume).unwrap_err();
    let mount = driver.mounts().pop().unwrap();
    assert!(status.message().contains(mount.to_str().unwrap()), "{status:?}");
    let folder = driver.path("state/cache").join(mount.file_name().unwrap());
    fs::remove_dir_all(folder).unwrap();
    driver.unstage(volume).unwrap();
    assert_eq!(
        (driver.mounts().len(), driver.state("staged").len(), driver.state("secrets").len()),
        (0, 0, 0)
    );
}

/// A daemon that died before the last pod ended is started again, to upload what it has left.
#[test]
fn what_a_dead_daemon_has_left_is_uploaded_before_the_end() {
    requires!(Need::Root, Need::Covey);
    let world = World::new(requires_server!());
    let World { gate, volume, driver, .. } = &world;
    let data = random(16);
    gate.add(Rule::new(Fault::SlowDown).only(Method::PUT));
    fs::write(driver.path("pod/file"), &data).unwrap();
    driver.unpublish(volume, "pod").unwrap();
    rustix::fs::syncfs(fs::File::open(driver.staging(volume)).unwrap()).unwrap();
    kill_daemon(driver);
    gate.faults().clear();
    driver.unstage(volume).unwrap();
    assert_eq!((driver.mounts().len(), driver.state("staged").len()), (0, 0));
    is_read_elsewhere(volume, &data);
}

/// Each class of a tree had a cache of its own, which stayed on the disk for ever.
#[test]
fn regression_classes_of_one_tree_have_one_cache() {
    requires!(Need::Root, Need::Covey);
    let store = Store::start();
    let endpoint = format!("http://{}", store.address());
    let mut driver = Driver::new();
    let text = |name: &str| driver.path(name).display().to_string();
    run_with_keys(&["format", &text("v"), "--origin", &origin(), "--endpoint", &endpoint]);
    fs::create_dir(driver.path("m")).unwrap();
    run_with_keys(&["mount", "-d", &text("v"), &text("m")]);
    let data = random(16);
    fs::write(driver.path("m/file"), &data).unwrap();
    run_with_keys(&["publish", &text("m"), "latest"]);
    run_with_keys(&["umount", &text("m")]);

    let tree = format!("{}@latest", origin());
    let class = [("tree", &*tree), ("endpoint", &*endpoint), ("region", "us-east-1")];
    let follows = [class[0], class[1], class[2], ("follow", "3600")];
    for (name, parameters) in [("t1", &class[..]), ("t2", &follows[..])] {
        store.forget();
        let call = CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: vec![capability(mode::MULTI_NODE_READER_ONLY)],
            parameters: texts(parameters),
            ..CreateVolumeRequest::default()
        };
        let made: CreateVolumeResponse = driver.call("Controller/CreateVolume", call).unwrap();
        let volume = made.volume.unwrap();
        stage(&driver, &volume);
        driver.publish(&volume, "pod", false).unwrap();
        assert!(fs::read(driver.path("pod/file")).unwrap() == data);
        driver.unpublish(&volume, "pod").unwrap();
        driver.unstage(&volume).unwrap();
        assert_eq!(driver.mounts().len(), 0);
        let fetched: u64 = store.got().values().map(|got| got.bytes).sum();
        assert_eq!(fetched >= 16 << 20, name == "t1", "{name}: {:?}", store.got());
    }
    assert_eq!(driver.state("cache"), [driver.path("state/cache/trees")]);
    driver.end();
}
