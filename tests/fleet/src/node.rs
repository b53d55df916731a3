//! One node: a `covey` process in a namespace of its own. Its cache and its mountpoint are below the
//! network's folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::proc::is_fuse_mount;
use covey_tests::program::{covey, run, wait};
use covey_tests::volume::detach;
use rustix::process::{Pid, Signal, kill_process};

use crate::clock::Clock;
use crate::net::Port;
use crate::store::Store;
use crate::tree::{NAME, PREFIX};

/// The longest time for a start or an end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The figures that a node counts when other nodes fail it.
const TROUBLES: [&str; 5] = ["failed", "hedges", "asks_late", "origin_hedged", "origin_alone"];

/// How a node is started.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// Options of the mount, each as for `-o`.
    pub options: Vec<String>,
    /// More words for the command line: `--join` and what belongs to it.
    pub words: Vec<String>,
}

impl How {
    /// With these options, separated by commas.
    pub fn with(mut self, options: &str) -> How {
        self.options.push(options.to_owned());
        self
    }

    /// The deadline that the mount gives a request: `deadline=` of its options, or the default.
    pub fn deadline(&self) -> Duration {
        let options = self.options.iter().flat_map(|options| options.split(','));
        let seconds = options.filter_map(|option| option.strip_prefix("deadline=")?.parse().ok()).next_back();
        Duration::from_secs(seconds.unwrap_or(60))
    }

    /// With these words.
    pub fn words(mut self, words: &[&str]) -> How {
        self.words.extend(words.iter().map(|&word| word.to_owned()));
        self
    }
}

/// The kind of node.
enum Work {
    /// It mounts the published tree.
    Mount,
    /// It only serves its disk: the words after `covey`.
    Lend(Vec<String>),
}

/// A node. When it is dropped, its process is killed and its mount removed.
pub struct Node {
    name: String,
    folder: PathBuf,
    /// Its port on the network.
    pub port: Port,
    endpoint: String,
    how: How,
    work: Work,
    daemon: Option<Child>,
    /// Its own wall clock, if any, from the next start on.
    pub clock: Option<Clock>,
    /// The length of its log from earlier runs, in bytes.
    said_before: usize,
    /// When its process was last killed.
    killed: Option<Instant>,
}

impl Node {
    /// A node that mounts, not started.
    pub fn new(name: &str, folder: &Path, port: Port, store: &Store, how: How) -> Node {
        let node = Node {
            name: name.to_owned(),
            folder: folder.join(name),
            port,
            endpoint: store.endpoint(),
            how,
            work: Work::Mount,
            daemon: None,
            clock: None,
            said_before: 0,
            killed: None,
        };
        for part in ["mnt", "cache"] {
            std::fs::create_dir_all(node.folder.join(part)).unwrap();
        }
        node
    }

    /// A node without a mount, such as a depot. `words` follow `covey`; the cache's folder and the store's
    /// endpoint are added.
    pub fn lending(name: &str, folder: &Path, port: Port, store: &Store, words: &[&str]) -> Node {
        let mut node = Node::new(name, folder, port, store, How::default());
        node.work = Work::Lend(words.iter().map(|&word| word.to_owned()).collect());
        node
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its mountpoint.
    pub fn mnt(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// Its cache folder.
    pub fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// Its log, of all runs so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.with_extension("log")
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// How it is started.
    pub fn how(&self) -> &How {
        &self.how
    }

    /// Sets how it is started, from the next start on.
    pub fn set_how(&mut self, how: How) {
        self.how = how;
    }

    fn command(&self) -> Command {
        let mut command = covey();
        match &self.work {
            Work::Mount => {
                let tree = format!("{}@{NAME}", Store::origin(PREFIX));
                command.arg("mount").arg(tree).arg(self.mnt());
                // So it caches however full the machine's disk is.
                command.args(["-o", "cache_floor=1M"]);
                self.how.options.iter().for_each(|option| {
                    command.args(["-o", option]);
                });
            }
            Work::Lend(words) => {
                command.args(words);
            }
        }
        command.args(["--endpoint", &self.endpoint]).arg("--cache").arg(self.cache()).args(&self.how.words);
        self.clock.iter().for_each(|clock| clock.give(&mut command));
        command
    }

    /// Starts its process without waiting until it serves.
    pub fn spawn(&mut self) {
        assert!(self.daemon.is_none(), "{} runs already", self.name);
        self.said_before = self.log().len();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = self.port.wrap(&self.command());
        command.stdin(Stdio::null()).current_dir("/");
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemon = Some(command.spawn().unwrap());
    }

    /// Waits until it serves.
    ///
    /// # Errors
    /// Its output, if it does not.
    pub fn await_mounted(&mut self, patience: Duration) -> Result<(), String> {
        let (mnt, end) = (self.mnt(), Instant::now() + patience);
        let lends = matches!(self.work, Work::Lend(_));
        let (log, said_before) = (self.log_path(), self.said_before);
        let serves = || {
            if !lends {
                return is_fuse_mount(&mnt);
            }
            let log = std::fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(&log[said_before.min(log.len())..]).contains("serves on")
        };
        let daemon = self.daemon.as_mut().ok_or("it was not started")?;
        while !serves() {
            let ended = daemon.try_wait().unwrap();
            if ended.is_some() || Instant::now() > end {
                self.kill();
                return Err(format!("{}: {ended:?}: {}", self.name, self.log()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if lends {
            return Ok(());
        }
        let (done, answered) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(std::fs::metadata(mnt).map(drop)));
        let left = end.saturating_duration_since(Instant::now());
        match answered.recv_timeout(left) {
            Ok(Ok(())) => Ok(()),
            other => {
                self.kill();
                Err(format!("{}: mounted, and then {other:?}: {}", self.name, self.log()))
            }
        }
    }

    /// Starts it and waits until it serves.
    pub fn start(&mut self) {
        self.spawn();
        self.await_mounted(PATIENCE).unwrap_or_else(|why| panic!("covey mount: {why}"));
    }

    /// Kills it with SIGKILL and removes the dead mount.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            self.killed = Some(Instant::now());
        }
        detach(&self.mnt());
    }

    /// Whether its mount was without a daemon at any time since then.
    pub fn was_gone(&self, since: Instant) -> bool {
        self.daemon.is_none() || self.killed.is_some_and(|killed| killed >= since)
    }

    /// A figure of its status, such as `/fleet/peer/bytes`; 0 if it has none.
    pub fn figure(&self, pointer: &str) -> u64 {
        self.status().pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0)
    }

    /// How often the fleet was slow or failed for this node: fetches from peers that failed or took long,
    /// requests without an answer, and the resulting requests to the origin.
    pub fn troubles(&self) -> u64 {
        let fleet = self.status()["fleet"].take();
        TROUBLES.iter().filter_map(|name| fleet[name].as_u64()).sum()
    }

    /// Unmounts it. It must end without an error and in time.
    pub fn end(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        if let Work::Lend(_) = self.work {
            kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
        } else {
            let mut umount = covey();
            umount.arg("umount").arg(self.mnt());
            let done = run(&mut self.port.wrap(&umount), PATIENCE);
            if !done.status.success() {
                self.daemon = Some(daemon);
                panic!("covey umount: {done:?}");
            }
        }
        let ended = wait(&mut daemon, PATIENCE);
        if ended.is_none() {
            daemon.kill().ok();
            daemon.wait().ok();
        }
        detach(&self.mnt());
        assert!(
            ended.is_some_and(|status| status.success()),
            "{} ended with {ended:?}: {}",
            self.name,
            self.log()
        );
    }

    /// Stops it with SIGSTOP: connections stay open, but nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(daemon) = &self.daemon {
            kill_process(Pid::from_child(daemon), signal).unwrap();
        }
    }

    /// Whether its process still exists.
    pub fn runs(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| daemon.try_wait().unwrap().is_none())
    }

    /// Puts its cache on a tmpfs of so many bytes. The node must not run.
    pub fn cache_on_tmpfs(&self, bytes: u64) {
        assert!(self.daemon.is_none());
        let mut mount = crate::tool("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "covey-cache"]).arg(self.cache());
        covey_tests::run_ok(&mut mount, PATIENCE);
    }

    /// Resizes that tmpfs, but not below what it holds. With `None`, to exactly that, so that the disk is
    /// full.
    pub fn resize_cache(&self, bytes: Option<u64>) {
        let room = rustix::fs::statvfs(self.cache()).unwrap();
        let bytes = bytes.unwrap_or((room.f_blocks - room.f_bfree) * room.f_frsize);
        let mut mount = crate::tool("mount");
        mount.args(["-o", &format!("remount,size={bytes}")]).arg(self.cache());
        covey_tests::run_ok(&mut mount, PATIENCE);
    }

    /// Deletes its cache. The node must not run.
    pub fn lose_cache(&self) {
        assert!(self.daemon.is_none());
        for entry in std::fs::read_dir(self.cache()).unwrap().flatten() {
            let path = entry.path();
            let gone =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            gone.unwrap();
        }
    }

    /// `covey status --json` of its mount, or of its folder if it has no mount.
    pub fn status(&self) -> serde_json::Value {
        self.try_status().unwrap_or_else(|why| panic!("covey status: {why}"))
    }

    /// The same for a node that may be dead or stopped.
    ///
    /// # Errors
    /// The program's output instead.
    pub fn try_status(&self) -> Result<serde_json::Value, String> {
        // From outside its namespace, as an administrator of the machine does.
        let mut status = covey();
        let place = if let Work::Lend(_) = self.work { self.cache() } else { self.mnt() };
        status.args(["status", "--json"]).arg(place);
        let done = run(&mut status, PATIENCE);
        if !done.status.success() {
            return Err(format!("{done:?}"));
        }
        serde_json::from_str(&done.stdout).map_err(|error| format!("{error}: {done:?}"))
    }

    /// The processor time it has used, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.pid().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        let stat = stat.unwrap_or_default();
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let ticks: u64 =
            after.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process, too.
        self.kill();
        let _ = rustix::mount::unmount(self.cache(), rustix::mount::UnmountFlags::DETACH);
    }
}
