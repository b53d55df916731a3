//! Many nodes start a container from one published image at the same time.
//!
//! The image is mounted on each node, and a program of it runs with the image as its root: it reads itself,
//! and parts of large files. The store's requests are counted, and no time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use base::size::BLOB_MAX;
use covey_tests::program::{covey_ok, covey_run};
use covey_tests::{Rng, run_ok};
use nets::fleet::HANG;
use nets::{Fleet, How, Tree, requires_nets, say};
use oci::digest::Digest;
use s3server::Got;
use serde_json::json;

const NODES: usize = 8;
/// The most requests that one node makes for a blob.
const PARTS: u64 = 4;
/// What the program does: it compares what it reads with what was written, by a checksum.
const SCRIPT: &str =
    "b=/bin/busybox; $b cat /etc/motd; for file in /data/*; do $b head -c 1000000 $file | $b md5sum; done";

/// An OCI layout with one layer: busybox and some large files.
fn layout(folder: &Path) -> PathBuf {
    let root = folder.join("root");
    for below in ["bin", "etc", "data"] {
        fs::create_dir_all(root.join(below)).unwrap();
    }
    fs::copy(covey_tests::need::which("busybox").unwrap(), root.join("bin/busybox")).unwrap();
    fs::write(root.join("etc/motd"), "hello from the image\n").unwrap();
    for n in 0..4 {
        fs::write(root.join(format!("data/{n}")), Rng::new(n).bytes(6_000_000)).unwrap();
    }
    let layer = folder.join("layer.tar");
    run_ok(Command::new("tar").arg("-cf").arg(&layer).arg("-C").arg(&root).arg("."), HANG);
    let at = folder.join("app");
    fs::create_dir_all(at.join("blobs/sha256")).unwrap();
    let blob = |kind: &str, bytes: &[u8]| {
        let digest = Digest::of(bytes);
        fs::write(at.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        let media_type = format!("application/vnd.oci.image.{kind}");
        json!({ "mediaType": media_type, "digest": digest.to_string(), "size": bytes.len() })
    };
    let layer = blob("layer.v1.tar", &fs::read(layer).unwrap());
    let platform = oci::manifest::Platform::here();
    let config = json!({ "os": platform.os, "architecture": platform.architecture,
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] } });
    let config = blob("config.v1+json", config.to_string().as_bytes());
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "1" });
    fs::write(at.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    fs::write(at.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())
        .unwrap();
    at
}

/// An image that is mounted on one node.
struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        covey_run(&[Path::new("image"), Path::new("umount"), &self.0]);
    }
}

/// Starts the program on `nodes` nodes at once. Returns what it printed, what the store was asked for, and
/// how often more than one node was to fetch a blob because an answer or a fetch was late.
fn starts(tree: &'static Tree, nodes: usize) -> (String, BTreeMap<String, Got>, u64) {
    let mut fleet = Fleet::joined(tree, nodes, 21, &How::default());
    fleet.start();
    fleet.converge(nodes as u64, HANG);
    fleet.store.forget();
    let images: Vec<Image> = (0..nodes)
        .map(|node| {
            let mnt = fleet.nodes[node].mnt();
            let image = Image(mnt.with_file_name("image"));
            let words = [Path::new("image"), Path::new("mount"), Path::new("app:1"), &image.0];
            covey_ok(&[&words[..], &[Path::new("--volume"), &mnt]].concat());
            image
        })
        .collect();
    let barrier = Barrier::new(nodes);
    let said: Vec<String> = std::thread::scope(|scope| {
        let run = |image: &Image| {
            let mut program = Command::new("chroot");
            program.arg(&image.0).args(["/bin/busybox", "sh", "-c", SCRIPT]);
            barrier.wait();
            run_ok(&mut program, Duration::from_secs(120)).stdout
        };
        let running: Vec<_> = images.iter().map(|image| scope.spawn(move || run(image))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
    drop(images);
    let got = fleet.store.blobs();
    // A lease ends when its node is late. The next node that asks is told to fetch the blob too.
    let told: u64 = fleet.nodes.iter().map(|node| node.figure("/fleet/origin_told")).sum();
    let late = told.saturating_sub(got.len() as u64) + fleet.troubles(&(0..nodes).collect::<Vec<_>>());
    fleet.end();
    (said[0].clone(), got, late)
}

fn sum(got: &BTreeMap<String, Got>) -> (u64, u64) {
    (got.values().map(|got| got.gets).sum(), got.values().map(|got| got.bytes).sum())
}

/// Eight nodes that start a container at once ask the store for about what one node does.
#[test]
fn eight_starts_ask_the_store_as_often_as_one() {
    requires_nets!();
    if covey_tests::need::which("busybox").is_none() {
        return say(format_args!("skipped: lacks the program busybox"));
    }
    let folder = covey_tests::scratch();
    let layout = layout(folder.path());
    let source = format!("oci:{}:1", layout.display());
    let tree: &'static Tree = Box::leak(Box::new(Tree::publish_import(
        &[source.as_ref(), "--name".as_ref(), "app:1".as_ref()],
        folder.path(),
        Vec::new(),
    )));
    let (alone, one, _) = starts(tree, 1);
    let (said, all, late) = starts(tree, NODES);
    assert_eq!(alone, said);
    assert!(said.starts_with("hello from the image\n") && said.lines().count() == 5, "{said}");
    let ((one_gets, one_bytes), (gets, bytes)) = (sum(&one), sum(&all));
    say(format_args!(
        "one start: {one_gets} GETs, {one_bytes} bytes; {NODES} at once: {gets} GETs, {bytes} bytes ({:.2} x), \
         {late} fetches or answers were late",
        gets as f64 / one_gets as f64
    ));
    // The first node that wants a part of a blob fetches it, and the second fetches the whole for all. So a
    // few ranges come twice. On a busy machine some fetches are late, and these blobs are fetched again.
    let more = u64::from(BLOB_MAX) * late;
    assert!(bytes <= one_bytes * 3 / 2 + more, "one start: {one:?}\n{NODES}: {all:?}");
    assert!(gets <= one_gets * 3 / 2 + PARTS * late, "one start: {one:?}\n{NODES}: {all:?}");
    // If each node asked for itself, it would be eight times as much.
    let half = NODES as u64 / 2;
    assert!(gets <= half * one_gets && bytes <= half * one_bytes, "one start: {one:?}\n{NODES}: {all:?}");
}
