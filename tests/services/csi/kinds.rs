//! Each kind of volume from its making to its end.

use std::fs;
use std::io::ErrorKind;

use covey_tests::{Need, requires, requires_server};
use csi::proto::controller::{ExpandRequest, ExpandResponse, ListVolumesRequest, ListVolumesResponse};
use csi::proto::node::{NodeExpandRequest, NodeExpandResponse, StatsRequest, StatsResponse};
use csi::proto::{CapacityRange, Texts, VolumeContentSource, VolumeSource};
use tonic::Code;

use super::rig::{Driver, capability, published_tree, shared_volume, texts};

const MIB: i64 = 1 << 20;

fn fill(path: &std::path::Path, mib: usize) -> std::io::Result<()> {
    // Random bytes, because equal data would be stored once.
    let data: Vec<u8> = (0..mib << 17).flat_map(|_| rand_word().to_le_bytes()).collect();
    fs::write(path, data).and_then(|()| fs::File::open(path)?.sync_all())
}

fn rand_word() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn grow(driver: &Driver, id: &str, size: i64) -> Result<i64, tonic::Status> {
    let range = CapacityRange { required_bytes: size, limit_bytes: 0 };
    let call =
        ExpandRequest { volume_id: id.to_owned(), capacity_range: Some(range), ..ExpandRequest::default() };
    let done: ExpandResponse = driver.call("Controller/ControllerExpandVolume", call)?;
    Ok(done.capacity_bytes)
}

/// A folder of a shared volume: made with its quota, used by two pods, grown, cloned, removed; and each call
/// twice.
#[test]
fn a_folder_of_a_shared_volume_from_its_making_to_its_end() {
    requires!(Need::Root, Need::Covey);
    let server = requires_server!();
    let driver = Driver::new();
    let address = shared_volume(&server, "covey", driver.folder.path());
    let class = texts(&[("volume", &address), ("mode", "0770")]);
    let volume = driver.create("pvc-1", 8 * MIB, &class).unwrap();
    assert_eq!(driver.create("pvc-1", 8 * MIB, &class).unwrap(), volume, "a repeated call is the same call");
    assert_eq!(driver.create("pvc-1", 9 * MIB, &class).unwrap_err().code(), Code::AlreadyExists);
    let other = texts(&[("volume", &address), ("folder", "else")]);
    assert_eq!(driver.create("pvc-1", 8 * MIB, &other).unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(volume.capacity_bytes, 8 * MIB);

    for _ in 0..2 {
        driver.stage(&volume).unwrap();
        driver.publish(&volume, "pod1", false).unwrap();
        driver.publish(&volume, "pod2", true).unwrap();
    }
    assert_eq!(driver.publish(&volume, "pod1", true).unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(fs::metadata(driver.path("pod1")).map(|about| mode(&about)).unwrap(), 0o770);
    fs::write(driver.path("pod1/a"), b"one").unwrap();
    assert_eq!(fs::read(driver.path("pod2/a")).unwrap(), b"one");
    let refused = fs::write(driver.path("pod2/b"), b"two").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(fs::read_dir(driver.path("pod1")).unwrap().count() == 1, "a pod sees its volume alone");

    assert!(fill(&driver.path("pod1/big"), 16).is_err(), "the size is a limit");
    fs::remove_file(driver.path("pod1/big")).ok();
    assert_eq!(grow(&driver, &volume.volume_id, 40 * MIB).unwrap(), 40 * MIB);
    assert_eq!(grow(&driver, &volume.volume_id, 20 * MIB).unwrap(), 40 * MIB, "sizes only grow");
    fill(&driver.path("pod1/big"), 16).unwrap();
    let about = (volume.volume_id.clone(), driver.path("pod1").display().to_string());
    let stats =
        StatsRequest { volume_id: about.0.clone(), volume_path: about.1.clone(), ..StatsRequest::default() };
    let stats: StatsResponse = driver.call("Node/NodeGetVolumeStats", stats).unwrap();
    assert_eq!(stats.usage[0].total, 40 * MIB);
    assert!(stats.usage[0].used >= 16 * MIB, "{stats:?}");
    let expand =
        NodeExpandRequest { volume_id: about.0, volume_path: about.1, ..NodeExpandRequest::default() };
    let expanded: NodeExpandResponse = driver.call("Node/NodeExpandVolume", expand).unwrap();
    assert_eq!(expanded.capacity_bytes, 40 * MIB);

    let copy = clone(&driver, "pvc-2", &volume.volume_id, &class);
    driver.stage(&copy).unwrap();
    driver.publish(&copy, "pod3", false).unwrap();
    assert_eq!(fs::read(driver.path("pod3/a")).unwrap(), b"one");
    assert_eq!(driver.mounts().iter().filter(|place| place.starts_with(driver.path("state"))).count(), 1);
    let plain = driver.create("pvc-2", 0, &class).unwrap_err();
    assert_eq!(plain.code(), Code::AlreadyExists, "that one is a clone");

    assert_eq!(driver.unstage(&volume).unwrap_err().code(), Code::FailedPrecondition, "it is published");
    assert_eq!(driver.delete(&volume.volume_id).unwrap_err().code(), Code::FailedPrecondition);
    for (volume, targets) in [(&volume, vec!["pod1", "pod2"]), (&copy, vec!["pod3"])] {
        for _ in 0..2 {
            targets.iter().for_each(|target| _ = driver.unpublish(volume, target).unwrap());
            driver.unstage(volume).unwrap();
        }
        for _ in 0..2 {
            driver.delete(&volume.volume_id).unwrap();
        }
        assert!(targets.iter().all(|target| !driver.path(target).exists()));
    }
    let end = driver.stage(&volume).unwrap_err();
    assert_eq!(end.code(), Code::NotFound, "{end:?}");
    assert!(driver.state("staged").is_empty() && driver.state("volumes").is_empty());
    let mut driver = driver;
    driver.end();
    assert_eq!(driver.mounts(), Vec::<std::path::PathBuf>::new(), "{}", driver.log());
}

fn mode(about: &fs::Metadata) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o7777
}

fn clone(driver: &Driver, name: &str, from: &str, class: &Texts) -> csi::proto::Volume {
    use csi::proto::controller::{CreateVolumeRequest, CreateVolumeResponse};
    let volume = Some(VolumeSource { volume_id: from.to_owned() });
    let call = CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability(csi::proto::mode::SINGLE_NODE_WRITER)],
        parameters: class.clone(),
        volume_content_source: Some(VolumeContentSource { snapshot: None, volume }),
        ..CreateVolumeRequest::default()
    };
    let made: CreateVolumeResponse = driver.call("Controller/CreateVolume", call).unwrap();
    made.volume.unwrap()
}

/// A published tree is mounted read-only, once for all volumes of it.
#[test]
fn a_published_tree_is_read() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let class = published_tree(&driver);
    let volumes = ["t1", "t2"].map(|name| driver.create(name, 0, &class).unwrap());
    for (index, volume) in volumes.iter().enumerate() {
        driver.stage(volume).unwrap();
        driver.publish(volume, &format!("pod{index}"), false).unwrap();
        let file = driver.path(&format!("pod{index}/a"));
        assert_eq!(fs::read(&file).unwrap(), b"one");
        assert_eq!(fs::write(&file, b"two").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    assert_eq!(driver.state("mounts").len(), 1, "one mount for both");
    let mut call = driver.stage_call(&volumes[0]);
    call.volume_capability = Some(capability(csi::proto::mode::SINGLE_NODE_WRITER));
    let refused = driver.call::<_, csi::proto::identity::Empty>("Node/NodeStageVolume", call).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    for (index, volume) in volumes.iter().enumerate() {
        driver.unpublish(volume, &format!("pod{index}")).unwrap();
        driver.unstage(volume).unwrap();
        driver.delete(&volume.volume_id).unwrap();
    }
    assert_eq!(driver.mounts().len(), 0);
    driver.end();
}

/// A volume of one node keeps its files while it is used nowhere, and is removed with all of them.
#[test]
fn an_exclusive_volume_keeps_its_files() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let class = texts(&[("exclusive", "true")]);
    let volume = driver.create("db", 64 * MIB, &class).unwrap();
    // The folder of the kubelet may be a symbolic link.
    fs::create_dir(driver.path("pods")).unwrap();
    std::os::unix::fs::symlink("pods", driver.path("link")).unwrap();
    assert_eq!(volume.accessible_topology[0].segments, texts(&[("csi.covey/node", "n1")]));
    for round in 0..2 {
        driver.stage(&volume).unwrap();
        for _ in 0..2 {
            driver.publish(&volume, "link/pod", false).unwrap();
        }
        assert_eq!(driver.mounts().iter().filter(|place| place.ends_with("pods/pod")).count(), 1);
        match round {
            0 => fs::write(driver.path("pods/pod/a"), b"one").unwrap(),
            _ => assert_eq!(fs::read(driver.path("pods/pod/a")).unwrap(), b"one"),
        }
        driver.unpublish(&volume, "link/pod").unwrap();
        driver.unstage(&volume).unwrap();
        assert_eq!(driver.mounts().len(), 0);
    }
    driver.delete(&volume.volume_id).unwrap();
    assert_eq!(fs::read_dir(driver.path("volumes")).unwrap().count(), 0);
    driver.end();
}

/// Lists come in pages, and go on after a volume that was deleted meanwhile.
#[test]
fn volumes_are_listed_in_pages() {
    requires!(Need::Root, Need::Covey);
    let driver = Driver::new();
    let class = texts(&[("tree", "s3://bucket/models@latest"), ("endpoint", "http://127.0.0.1:1")]);
    let ids: Vec<String> =
        (0..7).map(|n| driver.create(&format!("t{n}"), 0, &class).unwrap().volume_id).collect();
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let call = ListVolumesRequest { max_entries: 3, starting_token: token };
        let page: ListVolumesResponse = driver.call("Controller/ListVolumes", call).unwrap();
        let page_ids: Vec<String> =
            page.entries.iter().map(|entry| entry.volume.as_ref().unwrap().volume_id.clone()).collect();
        assert!(page_ids.len() <= 3 && !page_ids.is_empty());
        // The token names the last one.
        if seen.is_empty() {
            driver.delete(page_ids.last().unwrap()).unwrap();
        }
        seen.extend(page_ids);
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, ids);
    let call = ListVolumesRequest { max_entries: 0, starting_token: "nonsense".to_owned() };
    let status = driver.call::<_, ListVolumesResponse>("Controller/ListVolumes", call).unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
}
