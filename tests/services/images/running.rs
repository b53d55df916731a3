//! Registries and containers: with the programs that people use for them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::program::{covey_ok, covey_run};
use covey_tests::{Need, Volume, requires, run, run_ok};

use super::build::{Layout, busybox_layers, here, layer};
use super::registry::Registry;
use super::{Image, import, one_at_a_time};

/// The registry of Docker's distribution project serves an image, which skopeo has pushed.
#[test]
fn a_real_registry_serves_an_image() {
    requires!(Need::Covey, Need::Root, Need::Program("docker-registry"), Need::Program("skopeo"));
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let large = covey_tests::Rng::new(9).bytes(5_000_000);
    let layers = [layer(&[(b'0', "large", &large)]), layer(&[(b'0', ".wh.gone", b"")])];
    let manifest = layout.image("1", &here(), &layers);
    let registry = Registry::start(folder.path());
    let host = registry.host.clone();
    let reference = format!("{host}/some/app:1");
    registry.push(&layout.source("1"), "some/app:1");
    let volume = Volume::below(folder.path(), &[]);
    let place = format!("{}:/images", volume.source.display());
    let done = import(&format!("docker://{reference}"), Path::new(&place), &[]).json();
    assert_eq!((&done["name"], &done["new_layers"]), (&reference.clone().into(), &2.into()), "{done}");
    let config = covey_ok(&["image", "config", &reference, "--volume", &place]).json();
    assert_eq!(config["config"]["Cmd"][0], "/bin/sh");
    // By its digest, which skopeo may have changed on the way.
    let digest = done["manifest"].as_str().unwrap();
    let pinned = format!("docker://{host}/some/app@{digest}");
    let again = import(&pinned, Path::new(&place), &["--name", "pinned"]).json();
    assert_eq!((&again["manifest"], &again["new_layers"]), (&digest.into(), &0.into()));
    assert!(manifest["digest"].is_string());
    let missing = covey_run(&["import", &format!("docker://{host}/some/app:2"), &place, "--json"]);
    assert_eq!((missing.code(), &missing.json()["error"]["code"]), (1, &"not-found".into()), "{missing:?}");
    drop(registry);
    let gone = covey_run(&["import", &format!("docker://{reference}"), &place, "--json"]);
    assert_eq!((gone.code(), &gone.json()["error"]["code"]), (1, &"no-answer".into()), "{gone:?}");
    assert!(gone.stderr.starts_with(&format!("covey: the registry {host} does not answer\n")), "{gone:?}");
}

/// What runc starts, in the folder that it takes as a bundle.
fn run_container(folder: &Path, root: &Path, args: &[&str]) -> String {
    let bundle = folder.join("bundle");
    fs::create_dir_all(&bundle).unwrap();
    fs::remove_file(bundle.join("config.json")).ok();
    run_ok(Command::new("runc").arg("spec").current_dir(&bundle), Duration::from_secs(20));
    let path = bundle.join("config.json");
    let mut spec: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = args.into();
    spec["process"]["rlimits"] = serde_json::json!([]);
    spec["root"] = serde_json::json!({ "path": root, "readonly": false });
    fs::write(&path, spec.to_string()).unwrap();
    let id = format!("covey-test-{}", std::process::id());
    let mut runc = Command::new("runc");
    runc.arg("--root").arg(folder.join("state")).args(["run", "--bundle"]).arg(&bundle).arg(&id);
    run_ok(&mut runc, Duration::from_secs(60)).stdout
}

/// Whether runc can run here at all.
pub fn runc_works() -> Option<()> {
    (run(Command::new("runc").arg("features"), Duration::from_secs(20)).code() == 0).then_some(())
}

/// A container starts from an image of a published tree, and what it writes stays on this machine.
#[test]
fn runc_starts_a_container_from_a_published_image() {
    requires!(Need::Covey, Need::Root, Need::Mount, Need::Program("runc"), Need::Program("busybox"));
    if runc_works().is_none() {
        return covey_tests::say(format_args!("skipped: lacks a runc that works"));
    }
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    layout.image("1", &here(), &busybox_layers());
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    let images = mounted.join("images");
    import(&layout.source("1"), &images, &[]);
    covey_ok(&["publish", images.to_str().unwrap(), "images"]);
    mounted.umount();
    let tree = format!("file:{}/blobs@images", volume.source.display());
    let (at, upper) = (folder.path().join("image"), folder.path().join("kept"));
    let script = "cat /etc/motd; ls /etc; echo written > /etc/new; test -e /etc/new && echo done";
    let args = ["/bin/sh", "-c", script];
    // Twice at a time: the tree is mounted once.
    let image = Image::mount("app:1", &at, Path::new(&tree), &["--upper", upper.to_str().unwrap()]);
    let other = Image::mount("app:1", &folder.path().join("other"), Path::new(&tree), &[]);
    let listed = covey_ok(&["image", "ls", "--json"]).json();
    let trees: Vec<_> = listed.as_array().unwrap().iter().filter(|made| made["volume"] == *tree).collect();
    assert_eq!(trees.len(), 2, "{listed}");
    assert!(trees[0]["tree"].is_string() && trees[0]["tree"] == trees[1]["tree"], "{listed}");
    let mount_of_tree = Path::new(trees[0]["tree"].as_str().unwrap()).to_owned();
    let said = run_container(folder.path(), &at, &args);
    assert!(
        said.starts_with("hello from the image\n") && said.contains("motd") && said.ends_with("done\n"),
        "{said}"
    );
    assert!(!said.contains("gone"), "{said}");
    assert_eq!(fs::read_to_string(upper.join("upper/etc/new")).unwrap(), "written\n");
    // In use, it stays, and the one that uses it is named.
    let holder = fs::File::open(at.join("etc/motd")).unwrap();
    let busy = covey_run(&["image", "umount", at.to_str().unwrap()]);
    assert_eq!(busy.code(), 1, "{busy:?}");
    assert!(busy.stderr.contains(&format!("process {}", std::process::id())), "{busy:?}");
    drop(holder);
    image.umount();
    assert!(covey_tests::proc::is_fuse_mount(&mount_of_tree), "the other image needs it");
    other.umount();
    assert!(!mount_of_tree.exists(), "the tree's mount is gone with its last image");
    assert!(!at.exists() && upper.join("upper/etc/new").exists());
    // What was written is there again, above the same image only.
    let image = Image::mount("app:1", &at, Path::new(&tree), &["--upper", upper.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(at.join("etc/new")).unwrap(), "written\n");
    image.umount();
    let wrong = covey_run(&["image", "mount", "app:2", at.to_str().unwrap(), "--volume", &tree]);
    assert_eq!(wrong.code(), 1, "{wrong:?}");
    assert!(wrong.stderr.contains("there are: app:1"), "{wrong:?}");
    assert!(!mount_of_tree.exists() && !at.exists(), "a mount that fails leaves nothing");
}

/// podman takes the mounted image as its root, and with `:O` leaves it as it is.
#[test]
fn podman_starts_a_container_from_an_image() {
    requires!(
        Need::Covey,
        Need::Root,
        Need::Mount,
        Need::Program("podman"),
        Need::Program("runc"),
        Need::Program("busybox")
    );
    if runc_works().is_none() {
        return covey_tests::say(format_args!("skipped: lacks a runc that works"));
    }
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    layout.image("1", &here(), &busybox_layers());
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    import(&layout.source("1"), &mounted.join("images"), &[]);
    let image = Image::mount("app:1", &folder.path().join("image"), &mounted.join("images"), &[]);
    let at = folder.path().join("podman");
    let podman = |root: &str, script: &str| {
        let mut podman = Command::new("podman");
        for (option, name) in [("--root", "root"), ("--runroot", "runroot"), ("--tmpdir", "tmp")] {
            podman.arg(option).arg(at.join(name));
        }
        podman.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "overlay"]);
        podman.args(["--events-backend", "none", "run", "--rm", "--network", "none"]);
        podman.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--rootfs", root]);
        run_ok(podman.args(["/bin/sh", "-c", script]), Duration::from_secs(60)).stdout
    };
    let root = image.0.to_str().unwrap();
    assert_eq!(
        podman(&format!("{root}:O"), "echo over > /etc/over; cat /etc/motd /etc/over"),
        "hello from the image\nover\n"
    );
    assert!(!image.0.join("etc/over").exists());
    assert_eq!(podman(root, "echo kept > /etc/kept; cat /etc/motd"), "hello from the image\n");
    assert_eq!(fs::read_to_string(image.0.join("etc/kept")).unwrap(), "kept\n");
    // podman keeps its folder mounted on itself.
    run(Command::new("umount").arg(at.join("root/overlay")), Duration::from_secs(20));
    image.umount();
    mounted.umount();
}
