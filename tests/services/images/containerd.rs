//! `covey snapshotter` with a containerd of its own, on private sockets and folders.
//!
//! Images are pulled through containerd's interface for Kubernetes. `ctr` of containerd 1 names no layer to a
//! snapshotter, so it always fetches and unpacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok, covey_run};
use covey_tests::{Finished, Need, Volume, requires, run};

use super::build::{Layout, busybox_layers, here, layer_of};
use super::registry::Registry;
use super::{import, one_at_a_time, running};

const LIMIT: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "k8s.io";
/// Reads an old file and a large one of a lower layer, and writes.
const READS: &str = "cat /etc/motd; busybox=/bin/busybox; $busybox cp /bin/busybox /tmp/x && \
    $busybox cmp /bin/busybox /tmp/x && echo whole";

/// containerd, with a snapshotter. What is left at the end is removed.
struct Containerd {
    folder: PathBuf,
    process: Child,
    had_run: bool,
}

impl Containerd {
    fn start(folder: &Path) -> Containerd {
        let at = folder.display();
        let config = format!(
            r#"version = 2
root = "{at}/root"
state = "{at}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{at}/c.sock"
[ttrpc]
  address = "{at}/c.sock.ttrpc"
[proxy_plugins.covey]
  type = "snapshot"
  address = "{at}/s.sock"
[plugins."io.containerd.grpc.v1.cri"]
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{at}/cni"
    conf_dir = "{at}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "covey"
    disable_snapshot_annotations = false
"#
        );
        fs::write(folder.join("config.toml"), config).unwrap();
        let had_run = Path::new("/run/containerd").exists();
        let mut command = Command::new("containerd");
        command.arg("--config").arg(folder.join("config.toml")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(fs::File::create(folder.join("containerd.log")).unwrap());
        let process = command.spawn().unwrap();
        let containerd = Containerd { folder: folder.to_owned(), process, had_run };
        until("containerd answers", || containerd.ctr(&["version"]).code() == 0);
        containerd
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut ctr = Command::new("ctr");
        ctr.arg("-a").arg(self.folder.join("c.sock")).args(["-n", NAMESPACE]).args(words);
        ctr
    }

    fn ctr(&self, words: &[&str]) -> Finished {
        run(&mut self.command(words), LIMIT)
    }

    fn ctr_ok(&self, words: &[&str]) -> Finished {
        let done = self.ctr(words);
        assert_eq!(done.code(), 0, "ctr {words:?}: {done:?}");
        done
    }

    /// The request PullImage of a kubelet. Returns the status of gRPC, 0 for done.
    fn pull(&self, reference: &str) -> (i32, String) {
        // PullImageRequest { image: ImageSpec { image } }, behind a flag and a length.
        let field = |bytes: &[u8]| [&[10, bytes.len() as u8], bytes].concat();
        let message = field(&field(reference.as_bytes()));
        let body = self.folder.join("request");
        fs::write(&body, [&[0, 0, 0, 0, message.len() as u8], &message[..]].concat()).unwrap();
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "-i",
            "--http2-prior-knowledge",
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
        ]);
        curl.arg("--unix-socket").arg(self.folder.join("c.sock"));
        curl.arg("--data-binary").arg(format!("@{}", body.display()));
        let said = run(curl.arg("http://localhost/runtime.v1.ImageService/PullImage"), LIMIT).stdout;
        let status = said.split("grpc-status: ").nth(1).and_then(|rest| rest.split_whitespace().next());
        (status.and_then(|status| status.parse().ok()).unwrap_or(-1), said)
    }

    fn pull_ok(&self, reference: &str) {
        let (status, said) = self.pull(reference);
        assert_eq!(status, 0, "{said}\n{}", fs::read_to_string(self.folder.join("containerd.log")).unwrap());
    }

    /// Pulls until it succeeds: containerd waits some seconds before it connects to a snapshotter again.
    fn pull_again(&self, reference: &str) {
        let end = Instant::now() + LIMIT;
        while self.pull(reference).0 != 0 {
            if Instant::now() > end {
                self.pull_ok(reference);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The words that start a container.
    fn start_words<'a>(&'a self, more: &[&'a str]) -> Vec<String> {
        let at = self.folder.display();
        let mut words: Vec<String> =
            ["run", "--snapshotter", "covey", "--runc-binary", "runc"].map(String::from).into();
        words.extend(["--runc-root".into(), format!("{at}/runc"), "--fifo-dir".into(), format!("{at}/fifo")]);
        words.extend(more.iter().map(|&word| word.to_owned()));
        words
    }

    fn run(&self, image: &str, name: &str, script: &str) -> Finished {
        let words = self.start_words(&["--rm", image, name, "/bin/sh", "-c", script]);
        self.ctr(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn snapshots(&self) -> usize {
        let listed = self.ctr_ok(&["snapshots", "--snapshotter", "covey", "ls"]).stdout;
        listed.lines().count() - 1
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let containers = self.ctr(&["containers", "ls", "-q"]).stdout;
        for name in containers.lines() {
            self.ctr(&["task", "rm", "-f", name]);
        }
        self.process.kill().ok();
        self.process.wait().ok();
        if !self.had_run {
            // The shims' sockets have no other place. Only empty folders go.
            for folder in ["fifo", "runc/k8s.io", "runc", "s", ""] {
                fs::remove_dir(Path::new("/run/containerd").join(folder)).ok();
            }
        }
    }
}

/// The snapshotter. It is killed at the end, and its tree unmounted.
struct Snapshotter {
    folder: PathBuf,
    process: Child,
}

impl Snapshotter {
    fn start(folder: &Path, source: &str) -> Snapshotter {
        Snapshotter { folder: folder.to_owned(), process: spawn(folder, source) }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.join("snapshotter.log")).unwrap()
    }

    /// Ends it by a signal, which must succeed.
    fn end(&mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = covey_tests::program::wait(&mut self.process, LIMIT).expect("it ends");
        assert!(status.success(), "{}", self.said());
        self.said()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Starts the program, and waits until it listens.
fn spawn(folder: &Path, source: &str) -> Child {
    let socket = folder.join("s.sock");
    let log = fs::File::create(folder.join("snapshotter.log")).unwrap();
    let mut command = covey();
    command.arg("snapshotter").arg("--on").arg(format!("unix:{}", socket.display()));
    command.args(["--source", source, "--root"]).arg(folder.join("snap")).args(["--", "--follow=1"]);
    let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    until("the snapshotter listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    process
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        let tree = self.folder.join("snap/tree");
        if covey_tests::proc::is_fuse_mount(&tree) {
            covey_run(&[Path::new("umount"), Path::new("--force"), &tree]);
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Regular files of the snapshots that are on this machine, without those behind links.
fn files_here(folder: &Path) -> usize {
    let mut files = 0;
    let mut folders = vec![folder.join("snap/snapshots")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            files += usize::from(about.is_file());
            if about.is_dir() {
                folders.push(path);
            }
        }
    }
    files
}

/// A published image of two layers, and in the registry also images with a layer that is not published.
fn published(folder: &Path, registry: &Registry) -> Volume {
    let layout = Layout::new(&folder.join("app"));
    let [below, above] = busybox_layers();
    layout.image("1", &here(), &[below.clone(), above.clone()]);
    let extra = layer_of(0, 0, &[(b'0', "etc/extra", b"unpacked\n")]);
    layout.image("2", &here(), &[below.clone(), extra, above.clone()]);
    let large = covey_tests::Rng::new(3).bytes(20_000_000);
    layout.image("3", &here(), &[below, layer_of(0, 0, &[(b'0', "etc/large", &large)])]);
    for tag in ["1", "2", "3"] {
        registry.push(&layout.source(tag), &format!("app:{tag}"));
    }
    let volume = Volume::below(folder, &[]);
    let place = format!("{}:/images", volume.source.display());
    import(&layout.source("1"), Path::new(&place), &[]);
    covey_ok(&["publish", &place, "images"]);
    volume
}

/// Publishes another image under the same name of a tree, with a layer of its own.
fn publish_more(folder: &Path, registry: &Registry, volume: &Volume) {
    let layout = Layout::new(&folder.join("more"));
    let [below, _] = busybox_layers();
    layout.image("1", &here(), &[below, layer_of(0, 0, &[(b'0', "etc/motd", b"published later\n")])]);
    registry.push(&layout.source("1"), "more:1");
    let place = format!("{}:/images", volume.source.display());
    import(&layout.source("1"), Path::new(&place), &[]);
    covey_ok(&["publish", &place, "images"]);
    until("the mount follows", || fs::read_dir(folder.join("snap/tree/layers")).unwrap().count() == 3);
}

/// containerd fetches and unpacks no layer that is published, and the others as usual. Containers run from
/// both, also while the snapshotter is killed and started again. What is removed leaves nothing.
#[test]
fn containerd_unpacks_no_published_layer() {
    requires!(
        Need::Covey,
        Need::Root,
        Need::Mount,
        Need::Program("containerd"),
        Need::Program("ctr"),
        Need::Program("containerd-shim-runc-v2"),
        Need::Program("runc"),
        Need::Program("busybox"),
        Need::Program("docker-registry"),
        Need::Program("skopeo"),
        Need::Program("curl")
    );
    if running::runc_works().is_none() {
        return covey_tests::say(format_args!("skipped: lacks a runc that works"));
    }
    let _one = one_at_a_time();
    let scratch = covey_tests::scratch();
    let folder = scratch.path();
    let registry = Registry::start(folder);
    let volume = published(folder, &registry);
    let source = format!("file:{}/blobs@images", volume.source.display());
    let snapshotter = Snapshotter::start(folder, &source);
    let containerd = Containerd::start(folder);
    let mut world = World { folder, registry, volume, source, snapshotter, containerd };
    world.layers_are_not_unpacked();
    world.a_kill_is_survived();
    world.what_is_published_later_is_found();
    world.layers_in_use_keep_the_mount();
    world.what_is_removed_leaves_nothing();
}

/// The parts of the test, and what they share.
struct World<'a> {
    folder: &'a Path,
    registry: Registry,
    volume: Volume,
    source: String,
    snapshotter: Snapshotter,
    containerd: Containerd,
}

impl World<'_> {
    /// A reference, as containerd pulls it.
    fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.registry.host)
    }

    /// What a program of the container `stays` prints.
    fn exec(&self, words: &[&str]) -> String {
        let fifo = self.folder.join("fifo");
        let exec = ["task", "exec", "--exec-id", "e", "--fifo-dir", fifo.to_str().unwrap(), "stays"];
        self.containerd.ctr_ok(&[&exec[..], words].concat()).stdout
    }

    fn restart(&mut self) {
        self.snapshotter.process = spawn(self.folder, &self.source);
    }

    fn layers_are_not_unpacked(&self) {
        let World { folder, registry, containerd, .. } = self;
        registry.forget();
        containerd.pull_ok(&self.image("app:1"));
        assert_eq!(registry.blobs_asked_for(), 1, "the config, and no layer");
        assert_eq!((containerd.snapshots(), files_here(folder)), (2, 0), "nothing is unpacked");
        let script = "cat /etc/motd; ls /etc; echo new > /etc/new; cat /etc/new";
        let said = containerd.run(&self.image("app:1"), "one", script).stdout;
        assert!(said.starts_with("hello from the image\n") && said.ends_with("new\n"), "{said}");
        assert!(!said.contains("gone"), "{said}");
        // The layer between two published ones is not published. containerd fetches and unpacks it and those
        // above it: above another layer, the upper one is another layer.
        registry.forget();
        containerd.pull_ok(&self.image("app:2"));
        assert!(
            registry.blobs_asked_for() <= 3,
            "the config, the layer that is missing, and the one above it"
        );
        // What the first container has written goes after its snapshot's record.
        until("these layers are unpacked", || (containerd.snapshots(), files_here(folder)) == (4, 2));
        let said = containerd.run(&self.image("app:2"), "two", "cat /etc/motd /etc/extra").stdout;
        assert_eq!(said, "hello from the image\nunpacked\n");
    }

    /// A container goes on while the snapshotter is killed, and a pull that it interrupts can be repeated.
    fn a_kill_is_survived(&mut self) {
        let image = self.image("app:1");
        let words = self.containerd.start_words(&["-d", &image, "stays", "/bin/sh", "-c", "sleep 300"]);
        self.containerd.ctr_ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let (image, folder) = (self.image("app:3"), self.folder);
        let World { containerd, snapshotter, .. } = self;
        std::thread::scope(|scope| {
            let pulling = scope.spawn(|| containerd.pull(&image));
            let records = || fs::read_dir(folder.join("snap/records")).unwrap().count();
            until("the pull has begun", || records() >= 6 || pulling.is_finished());
            snapshotter.kill();
            pulling.join().unwrap();
        });
        assert_eq!(self.exec(&["/bin/busybox", "cat", "/etc/motd"]), "hello from the image\n");
        self.restart();
        self.containerd.pull_again(&image);
        let said = self.containerd.run(&image, "three", "/bin/busybox wc -c < /etc/large").stdout;
        assert_eq!(said.trim(), "20000000");
    }

    /// Without a restart, and the container goes on.
    fn what_is_published_later_is_found(&self) {
        publish_more(self.folder, &self.registry, &self.volume);
        self.registry.forget();
        let more = self.image("more:1");
        self.containerd.pull_ok(&more);
        assert_eq!(self.registry.blobs_asked_for(), 1);
        assert_eq!(self.containerd.run(&more, "four", "cat /etc/motd").stdout, "published later\n");
        let said = self.exec(&["/bin/busybox", "sh", "-c", READS]);
        assert!(said.starts_with("hello from the image\n") && said.ends_with("whole\n"), "{said}");
    }

    /// So containers go on when the snapshotter ends.
    fn layers_in_use_keep_the_mount(&mut self) {
        let said = self.snapshotter.end();
        assert!(said.contains("stays mounted"), "{said}");
        assert_eq!(self.exec(&["/bin/busybox", "cat", "/etc/motd"]), "hello from the image\n");
        self.restart();
        until("containerd has found the snapshotter again", || {
            self.containerd.ctr(&["snapshots", "--snapshotter", "covey", "ls"]).code() == 0
        });
    }

    fn what_is_removed_leaves_nothing(&mut self) {
        remove_everything(&self.containerd, self.folder);
        let said = self.snapshotter.end();
        assert!(!said.contains("stays mounted"), "{said}");
        assert!(!self.folder.join("snap/tree").exists(), "the tree's mount is gone with the last snapshot");
    }
}

/// Removes the container and the images. containerd then removes what it does not refer to.
fn remove_everything(containerd: &Containerd, folder: &Path) {
    containerd.ctr_ok(&["task", "rm", "-f", "stays"]);
    containerd.ctr_ok(&["containers", "rm", "stays"]);
    let names = containerd.ctr_ok(&["images", "ls", "-q"]).stdout;
    for name in names.lines() {
        containerd.ctr_ok(&["images", "rm", "--sync", name]);
    }
    until("the snapshots are gone", || containerd.snapshots() == 0);
    for kind in ["records", "snapshots"] {
        let left: Vec<_> = fs::read_dir(folder.join("snap").join(kind)).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// What is wrong is said in one line, with what to do next, and nothing stays mounted.
#[test]
fn a_snapshotter_that_cannot_start_says_why() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    let (root, socket) = (folder.path().join("snap"), format!("unix:{}/s.sock", folder.path().display()));
    let run = |on: &str, source: &str, root: &Path| {
        covey_run(&["snapshotter", "--on", on, "--source", source, "--root", root.to_str().unwrap()])
    };
    let at = mounted.path().to_str().unwrap();
    let cases = [
        (run("tcp:127.0.0.1:1", at, &root), 2, "--on unix:"),
        (run(&socket, at, &root), 1, "holds no images"),
        (run(&socket, volume.source.to_str().unwrap(), &folder.path().join("a:b")), 2, "options of a mount"),
        (run(&socket, "file:/nowhere@images", &root), 1, "cannot be mounted"),
        (run(&socket, at, &mounted.join("snap")), 1, "no overlay can be written"),
    ];
    for (done, code, why) in cases {
        assert_eq!(done.code(), code, "{done:?}");
        assert!(done.stderr.contains(why) && done.stderr.contains("next: "), "{why}: {done:?}");
    }
    fs::create_dir_all(mounted.join("layers")).unwrap();
    fs::write(folder.path().join("s.sock"), "").unwrap();
    let busy = run(&socket, at, &root);
    assert!(busy.code() == 1 && busy.stderr.contains("it is no socket"), "{busy:?}");
    mounted.umount();
    let closed = run(&socket, volume.source.to_str().unwrap(), &root);
    assert!(closed.code() == 1 && closed.stderr.contains("is not mounted"), "{closed:?}");
    assert!(!root.join("tree").exists());
}
