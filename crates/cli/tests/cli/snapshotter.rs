//! `covey snapshotter` and the mount of its tree, without containerd.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::world::{World, covey, end_of, json, kill, soon};

const LAYER: &str = "layers/sha256-b0c1785b843f04a293f5cb0e088eacf4c9ef26aeb374f60c8c381580375a4fff";

/// A published folder of images with one layer, and a snapshotter that has it as its source.
struct Node {
    world: World,
    process: Child,
}

impl Node {
    fn new() -> Option<Node> {
        World::mountable()?;
        let world = World::new();
        let origin = format!("file:{}", world.path("origin").display());
        json(&["format", world.volume().to_str().unwrap(), "--origin", &origin]).ok();
        world.mount("");
        let images = world.mnt().join("images");
        fs::create_dir_all(images.join(LAYER)).unwrap();
        fs::create_dir(images.join("names")).unwrap();
        fs::write(images.join(LAYER).join("file"), "of a layer").unwrap();
        json(&["publish", images.to_str().unwrap(), "images"]).ok();
        let process = start(&world);
        Some(Node { world, process })
    }

    fn tree(&self) -> PathBuf {
        self.world.path("snap/tree")
    }

    /// None while the mount is dead or not there.
    fn daemon(&self) -> Option<u32> {
        let status = json(&["status".as_ref(), self.tree().as_os_str()]).json();
        status["served"]["pid"].as_u64().map(|pid| u32::try_from(pid).unwrap())
    }

    fn end(&mut self) {
        kill(self.process.id(), libc::SIGTERM);
        assert_eq!(end_of(&mut self.process, "the snapshotter"), 0);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        json(&["umount".as_ref(), "--force".as_ref(), self.tree().as_os_str()]);
        self.world.umount();
    }
}

fn start(world: &World) -> Child {
    let (socket, origin) = (world.path("socket"), world.path("origin"));
    let mut command = covey(&["snapshotter", "--on", &format!("unix:{}", socket.display()), "--source"]);
    command.arg(format!("file:{}@images", origin.display())).arg("--root").arg(world.path("snap"));
    let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    soon("it listens", || UnixStream::connect(&socket).is_ok());
    process
}

/// A daemon that was killed left a dead mount until the next start of the snapshotter, and no container could
/// start. One that hung kept the snapshotter from starting.
#[test]
fn regression_a_snapshotter_mounts_a_dead_tree_again_and_starts_beside_one_that_hangs() {
    let Some(mut node) = Node::new() else { return };
    let file = node.tree().join(LAYER).join("file");
    let shows = || fs::read_to_string(&file).is_ok_and(|text| text == "of a layer");
    assert!(shows());
    for _ in 0..2 {
        let daemon = node.daemon().unwrap();
        kill(daemon, libc::SIGKILL);
        // The kernel answers some reads without a daemon.
        soon("the tree is mounted again", || node.daemon().is_some_and(|next| next != daemon));
        assert!(shows());
    }
    let daemon = node.daemon().unwrap();
    kill(daemon, libc::SIGSTOP);
    node.end();
    node.process = start(&node.world);
    kill(daemon, libc::SIGCONT);
    assert!(shows());
    node.end();
}
