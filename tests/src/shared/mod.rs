//! Shared volumes: a database, and nodes that mount one volume of it.

pub mod etcd;
pub mod names;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::proc;
use crate::program::{covey, run_ok, wait};

pub use servers::Server;

/// The longest time for a mount, an unmount or a daemon's end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shared volume and its nodes.
pub struct Shared {
    /// The nodes that mount it.
    pub nodes: Vec<Node>,
    /// Its address in the database.
    pub address: String,
    /// What belongs to it and its nodes.
    pub folder: tempfile::TempDir,
    /// The database.
    pub server: Server,
    more: Vec<&'static str>,
}

impl Shared {
    /// A new volume, mounted by `nodes` nodes.
    pub fn new(server: Server, nodes: usize) -> Shared {
        Shared::with(server, nodes, &[])
    }

    /// The same, mounted with more arguments.
    pub fn with(server: Server, nodes: usize, more: &[&'static str]) -> Shared {
        let hosts = format!("127.0.0.1:{}", server.port());
        Shared::made(server, &hosts, nodes, more)
    }

    /// The same with the database behind this port of 127.0.0.1.
    pub fn through(server: Server, port: u16, nodes: usize) -> Shared {
        Shared::made(server, &format!("127.0.0.1:{port}"), nodes, &[])
    }

    /// The same with the database at one of these servers, `HOST:PORT,HOST:PORT`.
    pub fn made(server: Server, hosts: &str, nodes: usize, more: &[&'static str]) -> Shared {
        let folder = crate::scratch();
        let origin = format!("file:{}", folder.path().join("origin").display());
        Shared::stored(server, folder, hosts, nodes, more, &[&origin])
    }

    /// The same with this origin, and arguments that say how it is reached.
    pub fn stored(
        server: Server,
        folder: tempfile::TempDir,
        hosts: &str,
        nodes: usize,
        more: &[&'static str],
        origin: &[&str],
    ) -> Shared {
        let address = format!("postgres://covey@{hosts}/covey?volume=work&sslmode=disable");
        run_ok(covey().args(["format", &address, "--origin"]).args(origin), PATIENCE);
        let more = more.to_vec();
        let mut shared = Shared { nodes: Vec::new(), address, folder, server, more };
        (0..nodes).for_each(|_| shared.add());
        shared
    }

    /// Mounts the volume on one more node.
    pub fn add(&mut self) {
        self.add_with(&[]);
    }

    /// The same with more arguments for this node.
    pub fn add_with(&mut self, more: &[&'static str]) {
        let before = self.more.len();
        self.more.extend(more);
        self.add_in(self.folder.path().join(format!("node{}", self.nodes.len())));
        self.more.truncate(before);
    }

    /// The same for a node that keeps what belongs to it in this folder.
    pub fn add_in(&mut self, folder: PathBuf) {
        let mountpoint = self.folder.path().join(format!("mnt{}", self.nodes.len()));
        std::fs::create_dir_all(&mountpoint).unwrap();
        let mut node = Node { mountpoint, folder, address: self.address.clone(), daemon: None };
        node.try_mount(&self.more).unwrap_or_else(|said| panic!("covey mount: {said}"));
        self.nodes.push(node);
    }

    /// The volume's origin.
    pub fn origin(&self) -> String {
        format!("file:{}", self.folder.path().join("origin").display())
    }

    /// A node of another volume, mounted at `mnt-NAME`.
    pub fn add_of(&self, address: &str, name: &str) -> Node {
        Node::new(self.folder.path(), address, name)
    }

    /// A path on a node.
    pub fn path(&self, node: usize, path: &str) -> PathBuf {
        self.nodes[node].mountpoint.join(path)
    }
}

/// A node: its folder, and its mount.
pub struct Node {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// What belongs to the node.
    pub folder: PathBuf,
    address: String,
    daemon: Option<Child>,
}

impl Node {
    /// A node of the volume at this address, mounted at `mnt-NAME` in a folder.
    pub fn new(within: &Path, address: &str, name: &str) -> Node {
        Node::with(within, address, name, &[])
    }

    /// The same with more arguments.
    pub fn with(within: &Path, address: &str, name: &str, more: &[&str]) -> Node {
        Node::try_with(within, address, name, more).unwrap_or_else(|said| panic!("covey mount: {said}"))
    }

    /// The same. What the program printed, if it does not mount.
    pub fn try_with(within: &Path, address: &str, name: &str, more: &[&str]) -> Result<Node, String> {
        let at = |what: &str| within.join(format!("{what}-{name}"));
        std::fs::create_dir_all(at("mnt")).unwrap();
        let mut node =
            Node { mountpoint: at("mnt"), folder: at("node"), address: address.to_owned(), daemon: None };
        node.try_mount(more)?;
        Ok(node)
    }

    /// Mounts the volume.
    pub fn mount(&mut self) {
        self.try_mount(&[]).unwrap_or_else(|said| panic!("covey mount: {said}"));
    }

    /// The same with more arguments. What the program printed, if it does not mount.
    pub fn try_mount(&mut self, more: &[&str]) -> Result<(), String> {
        let log = self.log_path();
        let mut command = covey();
        command.arg("mount").arg(&self.address).arg(&self.mountpoint);
        if self.address.contains("://") {
            command.arg("--cache").arg(&self.folder);
            // By default a node beside its database listens where other machines reach it.
            if !more.contains(&"--listen") {
                command.args(["--listen", "127.0.0.1:0"]);
            }
        }
        command.args(more);
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::null()).current_dir("/").stdout(file.try_clone().unwrap()).stderr(file);
        let mut daemon = command.spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        while !proc::is_fuse_mount(&self.mountpoint) {
            if daemon.try_wait().unwrap().is_some() || Instant::now() > end {
                daemon.kill().ok();
                daemon.wait().ok();
                return Err(self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.daemon = Some(daemon);
        std::fs::metadata(&self.mountpoint).map(drop).map_err(|error| error.to_string())
    }

    fn log_path(&self) -> PathBuf {
        self.mountpoint.with_extension("log")
    }

    /// What its daemons printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Kills the daemon and takes the dead mount away.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().ok();
            daemon.wait().ok();
        }
        detach(&self.mountpoint);
    }

    /// Sends the daemon SIGTERM.
    pub fn ask_to_end(&self) {
        let pid = self.daemon.as_ref().map_or(0, Child::id) as i32;
        // SAFETY: it sends a signal to a child of this process that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    }

    /// Whether the daemon has a thread of this name now.
    pub fn has_thread(&self, name: &str) -> bool {
        let pid = self.daemon.as_ref().map_or(0, Child::id);
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|found| found.trim() == name)
    }

    /// Stops the daemon, or lets it go on.
    pub fn freeze(&self, on: bool) {
        let pid = self.daemon.as_ref().map_or(0, Child::id) as i32;
        let signal = if on { libc::SIGSTOP } else { libc::SIGCONT };
        // SAFETY: it sends a signal to a child of this process that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Unmounts in good order.
    pub fn unmount(&mut self) {
        let done = crate::volume::umount(&self.mountpoint);
        assert!(done.status.success(), "covey umount: {done:?}");
        if let Some(mut daemon) = self.daemon.take() {
            wait(&mut daemon, PATIENCE).expect("the daemon should end");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            self.freeze(false);
            let mut umount = covey();
            umount.arg("umount").arg(&self.mountpoint).stdout(Stdio::null()).stderr(Stdio::null());
            let ended = umount.status().is_ok_and(|status| status.success());
            if ended && let Some(daemon) = &mut self.daemon {
                wait(daemon, Duration::from_secs(20));
            }
        }
        self.kill();
    }
}

fn detach(path: &Path) {
    if proc::is_fuse_mount(path) {
        Command::new("umount").arg("-l").arg(path).status().ok();
    }
}
