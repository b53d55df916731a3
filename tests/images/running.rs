//! Registries and containers: with the programs that people use for them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use covey_tests::program::{covey_ok, covey_run};
use covey_tests::{Need, Volume, requires, run, run_ok};

use crate::build::{Layout, here, layer, layer_of};
use crate::{Image, import, one_at_a_time};

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The registry of Docker's distribution project serves an image, which skopeo has pushed.
#[test]
fn a_real_registry_serves_an_image() {
    requires!(Need::Covey, Need::Root, Need::Program("docker-registry"), Need::Program("skopeo"));
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let large = covey_tests::Rng::new(9).bytes(5_000_000);
    let layers = [layer(&[(b'0', "large", &large)]), layer(&[(b'0', ".wh.gone", b"")])];
    let manifest = layout.image("1", &here(), &layers);
    let port = free_port();
    let config = folder.path().join("registry.yml");
    let data = folder.path().join("data");
    let text = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\n",
        data.display()
    );
    fs::write(&config, text).unwrap();
    let mut registry = Command::new("docker-registry");
    registry.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let registry = Ends(registry.spawn().unwrap());
    let there = (0..300).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    assert!(there, "the registry does not start");
    let reference = format!("127.0.0.1:{port}/some/app:1");
    let mut push = Command::new("skopeo");
    push.args(["copy", "-q", "--dest-tls-verify=false", &layout.source("1")]);
    run_ok(push.arg(format!("docker://{reference}")), Duration::from_secs(60));
    let volume = Volume::below(folder.path(), &[]);
    let place = format!("{}:/images", volume.source.display());
    let done = import(&format!("docker://{reference}"), Path::new(&place), &[]).json();
    assert_eq!((&done["name"], &done["new_layers"]), (&reference.clone().into(), &2.into()), "{done}");
    let config = covey_ok(&["image", "config", &reference, "--volume", &place]).json();
    assert_eq!(config["config"]["Cmd"][0], "/bin/sh");
    // By its digest, which skopeo may have changed on the way.
    let digest = done["manifest"].as_str().unwrap();
    let pinned = format!("docker://127.0.0.1:{port}/some/app@{digest}");
    let again = import(&pinned, Path::new(&place), &["--name", "pinned"]).json();
    assert_eq!((&again["manifest"], &again["new_layers"]), (&digest.into(), &0.into()));
    assert!(manifest["digest"].is_string());
    let missing = covey_run(&["import", &format!("docker://127.0.0.1:{port}/some/app:2"), &place, "--json"]);
    assert_eq!((missing.code(), &missing.json()["error"]["code"]), (1, &"not-found".into()), "{missing:?}");
    drop(registry);
    let gone = covey_run(&["import", &format!("docker://{reference}"), &place, "--json"]);
    assert_eq!((gone.code(), &gone.json()["error"]["code"]), (1, &"no-answer".into()), "{gone:?}");
    assert!(
        gone.stderr.starts_with(&format!("covey: the registry 127.0.0.1:{port} does not answer\n")),
        "{gone:?}"
    );
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

/// A container starts from an image of a published tree, and what it writes stays on this machine.
#[test]
fn runc_starts_a_container_from_a_published_image() {
    requires!(Need::Covey, Need::Root, Need::Mount, Need::Program("runc"), Need::Program("busybox"));
    let busybox = fs::read(covey_tests::need::which("busybox").unwrap()).unwrap();
    if run(Command::new("runc").arg("features"), Duration::from_secs(20)).code() != 0 {
        return covey_tests::say(format_args!("skipped: lacks a runc that works"));
    }
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let dirs = ["bin", "dev", "etc", "proc", "sys", "tmp"];
    let mut below: Vec<_> = dirs.iter().map(|name| (b'5', *name, &b""[..])).collect();
    below.extend([
        (b'0', "bin/busybox", &busybox[..]),
        (b'2', "bin/sh", b"busybox"),
        (b'0', "etc/gone", b"1"),
    ]);
    let above = layer_of(0, 0, &[(b'0', "etc/motd", b"hello from the image\n"), (b'0', "etc/.wh.gone", b"")]);
    layout.image("1", &here(), &[layer_of(0, 0, &below), above]);
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
