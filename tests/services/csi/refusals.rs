//! Calls that make no sense, come in the wrong order, or try to lead elsewhere.

use std::fs;
use std::os::unix::fs::symlink;

use covey_tests::program::{covey, run_ok};
use covey_tests::{Need, requires, requires_server};
use csi::proto::controller::{CreateVolumeRequest, CreateVolumeResponse};
use csi::proto::identity::Empty;
use csi::proto::node::{PublishRequest, StageRequest, UnpublishRequest};
use csi::proto::{Volume, VolumeContentSource, VolumeSource, mode};
use tonic::Code;

use super::rig::{Driver, capability, many, shared_volume, texts};

#[test]
fn what_comes_too_early_or_is_wrong_changes_nothing() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let volume = Volume { volume_id: "by-hand".to_owned(), ..Volume::default() };
    let code = |answer: Result<Empty, tonic::Status>| answer.unwrap_err().code();
    assert_eq!(code(driver.publish(&volume, "pod", false)), Code::FailedPrecondition, "it is not staged");
    driver.unpublish(&volume, "pod").unwrap();
    driver.unstage(&volume).unwrap();
    for id in
        ["nothing", "shared:../../etc/x@postgres://a@b/c?volume=d", "exclusive:../x@n1", "tree:../../etc"]
    {
        driver.delete(id).unwrap();
    }
    let away = texts(&[("volume", "postgres://covey@127.0.0.1:1/covey?volume=w&sslmode=disable")]);
    let away = driver.create("pvc-1", 0, &away).unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "{away:?}");
    assert!(driver.state("mounts").is_empty() && driver.state("secrets").is_empty(), "{away:?}");
    assert_eq!(code(driver.delete("exclusive:a@other")), Code::FailedPrecondition, "it is another node's");
    for path in ["", "relative", "/a/../../etc", "/"] {
        let call = StageRequest {
            staging_target_path: path.to_owned(),
            volume_capability: Some(many()),
            ..driver.stage_call(&volume)
        };
        assert_eq!(code(driver.call("Node/NodeStageVolume", call)), Code::InvalidArgument, "{path:?}");
        let call = PublishRequest {
            volume_id: "by-hand".to_owned(),
            target_path: path.to_owned(),
            staging_target_path: "/x".to_owned(),
            volume_capability: Some(many()),
            ..PublishRequest::default()
        };
        assert_eq!(code(driver.call("Node/NodePublishVolume", call)), Code::InvalidArgument, "{path:?}");
        let call = UnpublishRequest { volume_id: "by-hand".to_owned(), target_path: path.to_owned() };
        assert_eq!(code(driver.call("Node/NodeUnpublishVolume", call)), Code::InvalidArgument, "{path:?}");
    }
    let unknown = driver.call::<_, Empty>("Node/NodeFormatEverything", Empty {}).unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    // A mount of others at the target stays.
    fs::create_dir(driver.path("foreign")).unwrap();
    let mut mount = std::process::Command::new("mount");
    run_ok(
        mount.args(["-t", "tmpfs", "none"]).arg(driver.path("foreign")),
        std::time::Duration::from_secs(60),
    );
    driver.unpublish(&volume, "foreign").unwrap();
    assert_eq!(driver.mounts(), [driver.path("foreign")]);
    base::trial::unmount(&driver.path("foreign")).unwrap();
    assert!(driver.state("staged").is_empty());
    driver.end();
}

/// A volume is shown below the shared volume's root only: a user of it cannot lead the driver elsewhere
/// with a symbolic link.
#[test]
fn a_symbolic_link_in_a_volume_leads_nowhere() {
    requires!(Need::Root, Need::Covey);
    let server = requires_server!();
    let mut driver = Driver::new();
    let address = shared_volume(&server, "covey", driver.folder.path());
    let mountpoint = driver.path("m");
    fs::create_dir(&mountpoint).unwrap();
    let mut mount = covey();
    mount.args(["mount", "-d", "--cache"]).arg(driver.path("node")).arg(&address).arg(&mountpoint);
    run_ok(&mut mount, std::time::Duration::from_secs(60));
    fs::create_dir(mountpoint.join("real")).unwrap();
    symlink("/etc", mountpoint.join("etc")).unwrap();
    symlink("real", mountpoint.join("link")).unwrap();
    symlink("/etc", mountpoint.join("csi")).unwrap();
    let by_hand = |path: &str| Volume {
        volume_id: format!("hand-{path}"),
        volume_context: texts(&[("volume", &address), ("path", path)]),
        ..Volume::default()
    };
    for path in ["etc", "link", "etc/ssl", "none"] {
        let status = driver.stage(&by_hand(path)).unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{path}: {status:?}");
    }
    let made = driver.create("pvc-1", 0, &texts(&[("volume", &address)]));
    assert!(made.is_err(), "{made:?}");
    assert!(driver.state("staged").is_empty());
    let real = by_hand("real");
    driver.stage(&real).unwrap();
    driver.publish(&real, "pod", false).unwrap();
    fs::write(driver.path("pod/a"), b"one").unwrap();
    driver.unpublish(&real, "pod").unwrap();
    driver.unstage(&real).unwrap();
    run_ok(covey().arg("umount").arg(&mountpoint), std::time::Duration::from_secs(60));
    driver.end();
    assert_eq!(driver.mounts().len(), 0);
}

/// Only one driver listens at an endpoint, and what is there and no socket stays.
#[test]
fn an_endpoint_in_use_is_not_taken() {
    requires!(Need::Root, Need::Covey);
    let driver = Driver::new();
    let start = |endpoint: &std::path::Path| {
        let mut command = covey();
        command.args(["csi", "--node-id", "n2", "--state"]).arg(driver.path("other"));
        command.arg("--endpoint").arg(format!("unix://{}", endpoint.display()));
        covey_tests::run(&mut command, std::time::Duration::from_secs(60))
    };
    let taken = start(&driver.path("sock"));
    assert!(taken.code() == 1 && taken.stderr.contains("a process listens on"), "{taken:?}");
    let mut same = covey();
    same.args(["csi", "--node-id", "n2", "--state"]).arg(driver.path("state"));
    same.arg("--endpoint").arg(driver.path("another"));
    let same = covey_tests::run(&mut same, std::time::Duration::from_secs(60));
    assert!(same.code() == 1 && same.stderr.contains("another driver uses"), "{same:?}");
    fs::write(driver.path("file"), b"mine").unwrap();
    let file = start(&driver.path("file"));
    assert!(file.code() == 2 && file.stderr.contains("is no socket"), "{file:?}");
    assert_eq!(fs::read(driver.path("file")).unwrap(), b"mine");
}

/// The half of a volume that could not be made stayed in the folder, with all that was copied until the disk
/// was full.
#[test]
fn regression_a_volume_that_cannot_be_made_leaves_nothing() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let volume = Some(VolumeSource { volume_id: "exclusive:none@n1".to_owned() });
    let call = CreateVolumeRequest {
        name: "copy".to_owned(),
        volume_capabilities: vec![capability(mode::SINGLE_NODE_WRITER)],
        parameters: texts(&[("exclusive", "true")]),
        volume_content_source: Some(VolumeContentSource { snapshot: None, volume }),
        ..CreateVolumeRequest::default()
    };
    let made = driver.call::<_, CreateVolumeResponse>("Controller/CreateVolume", call).unwrap_err();
    assert_eq!(made.code(), Code::NotFound, "{made:?}");
    assert_eq!(fs::read_dir(driver.path("volumes")).unwrap().count(), 0);
    assert!(driver.mounts().is_empty() && driver.state("volumes").is_empty());
    driver.end();
}

/// A removal that was killed half-way left a folder. Once another volume had the name, it could not be
/// removed any more.
#[test]
fn regression_a_volume_is_removed_although_an_earlier_one_is_half_removed() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let volume = driver.create("db", 0, &texts(&[("exclusive", "true")])).unwrap();
    let hash: String = blake3::hash(b"db").to_hex().chars().take(32).collect();
    fs::create_dir_all(driver.path("volumes").join(format!(".removed-{hash}/blobs"))).unwrap();
    driver.delete(&volume.volume_id).unwrap();
    assert_eq!(fs::read_dir(driver.path("volumes")).unwrap().count(), 0);
    driver.end();
}

/// A copy that did not fit stayed half, and kept the disk full.
#[test]
fn regression_a_copy_that_fills_the_disk_leaves_it_as_it_was() {
    requires!(Need::Root, Need::Covey);
    let mut driver = Driver::new();
    let limit = std::time::Duration::from_secs(60);
    let disk = driver.path("volumes");
    run_ok(
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=110m", "none"]).arg(&disk),
        limit,
    );
    let class = texts(&[("exclusive", "true")]);
    let volume = driver.create("db", 0, &class).unwrap();
    driver.stage(&volume).unwrap();
    let data = covey_tests::Rng::new(3).bytes(30 << 20);
    fs::write(driver.staging(&volume).join("data"), &data).unwrap();
    fs::File::open(driver.staging(&volume).join("data")).unwrap().sync_all().unwrap();
    let source = Some(VolumeSource { volume_id: volume.volume_id.clone() });
    let call = CreateVolumeRequest {
        name: "copy".to_owned(),
        volume_capabilities: vec![capability(mode::SINGLE_NODE_WRITER)],
        parameters: class,
        volume_content_source: Some(VolumeContentSource { snapshot: None, volume: source }),
        ..CreateVolumeRequest::default()
    };
    let full = driver.call::<_, CreateVolumeResponse>("Controller/CreateVolume", call).unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted, "{full:?}");
    let there: Vec<_> = fs::read_dir(&disk).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, ["db"], "{full:?}");
    assert!(fs::read(driver.staging(&volume).join("data")).unwrap() == data);
    driver.unstage(&volume).unwrap();
    driver.delete(&volume.volume_id).unwrap();
    driver.end();
    base::trial::unmount(&disk).unwrap();
}
