//! Collects the texts of a bug report and removes secrets from them.
//!
//! Collecting never fails, because a bundle is made when things do not work. If a text cannot be obtained,
//! the error message takes its place. A bundle holds no file contents of the volume. It has file names only
//! where the log or a message has them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use api::control::{ControlAddress, Request};
use api::error::Failure;
use api::raw_path::RawPath;
use api::watch::Wish;
use fuse::mount::Mounted;
use node::control;
use node::opened::Node;
use node::options::NodeOptions;
use node::secrets::{Cleaner, REMOVED};
use node::volume_dir::VolumeDir;
use node::{log, mounts};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cmd::doctor::folder_of;
use crate::target::{self, Target};

/// The number of lines that are taken from the end of the log.
const LOG_LINES: usize = 5_000;
/// How long the mount's statistics are recorded.
pub const LOOK: Duration = Duration::from_secs(5);
/// The maximum length of one text in bytes. Of a longer text only the end is kept.
const LONGEST: usize = 8 << 20;

/// Kernel files that describe the machine.
const MACHINE: [(&str, &str); 14] = [
    ("machine/kernel.txt", "/proc/version"),
    ("machine/os-release.txt", "/etc/os-release"),
    ("machine/memory.txt", "/proc/meminfo"),
    ("machine/pressure-io.txt", "/proc/pressure/io"),
    ("machine/pressure-memory.txt", "/proc/pressure/memory"),
    ("machine/load.txt", "/proc/loadavg"),
    ("machine/uptime.txt", "/proc/uptime"),
    ("machine/partitions.txt", "/proc/partitions"),
    ("machine/diskstats.txt", "/proc/diskstats"),
    ("machine/filesystems.txt", "/proc/filesystems"),
    ("machine/mounts.txt", "/proc/self/mountinfo"),
    ("machine/limits.txt", "/proc/self/limits"),
    ("machine/cgroup.txt", "/proc/self/cgroup"),
    ("machine/fuse.conf.txt", "/etc/fuse.conf"),
];

/// The texts collected so far.
pub struct Bundle {
    cleaner: Cleaner,
    /// The name and the text of each, with secrets removed.
    pub texts: Vec<(String, String)>,
}

impl Bundle {
    /// Creates an empty bundle. It knows the credentials of this machine and removes them from every text.
    pub fn new() -> Bundle {
        Bundle { cleaner: Cleaner::here(), texts: Vec::new() }
    }

    /// Adds a text.
    pub fn text(&mut self, name: &str, text: &str) {
        let from = text.len().saturating_sub(LONGEST);
        let from = (from..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(from);
        self.texts.push((name.to_owned(), self.cleaner.clean(&text[from..])));
    }

    /// Adds a value as JSON.
    pub fn json(&mut self, name: &str, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value).unwrap_or_else(|error| error.to_string());
        self.text(name, &text);
    }

    fn outcome<T: Serialize>(&mut self, name: &str, outcome: Result<T, Failure>) {
        match outcome {
            Ok(value) => self.json(name, &value),
            Err(failure) => self.json(name, &json!({ "error": failure })),
        }
    }

    fn file(&mut self, name: &str, path: &Path) {
        match fs::read(path) {
            Ok(bytes) => self.text(name, &String::from_utf8_lossy(&bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => self.text(name, &format!("cannot be read: {error}\n")),
        }
    }

    /// Adds the output of a program, if the program exists.
    fn program(&mut self, name: &str, words: &[&str]) {
        match printed_by(words) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => self.text(name, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => self.text(name, &format!("{} cannot be run: {error}\n", words[0])),
        }
    }

    /// Adds the machine: kernel, processors, memory, disks, limits, mounts.
    pub fn machine(&mut self) {
        let version = env!("CARGO_PKG_VERSION");
        self.text("covey.txt", &format!("covey {version} for {}\n", std::env::consts::ARCH));
        for (name, path) in MACHINE {
            self.file(name, Path::new(path));
        }
        self.text("machine/processors.txt", &processors());
        self.text("machine/disks.txt", &values_below(Path::new("/sys/block"), &DISK));
        self.text("machine/fuse.txt", &values_below(Path::new("/sys/module/fuse"), &["parameters"]));
        self.text("machine/read-ahead.txt", &read_ahead());
        let lines = LOG_LINES.to_string();
        // A mount that systemd started logs to the journal. The kernel's messages say why a mount was
        // aborted.
        self.program(
            "machine/journal.txt",
            &["journalctl", "--no-pager", "-q", "-n", &lines, "-u", "covey@*"],
        );
        self.program("machine/kernel-log.txt", &["dmesg"]);
    }

    /// Adds the names of the environment variables that matter to Covey or to object stores. Their values are
    /// left out.
    pub fn environment(&mut self) {
        const BEGIN: [&str; 6] = ["COVEY_", "AWS_", "GOOGLE_", "AZURE_", "RUST_", "XDG_"];
        let named = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        let mut names: Vec<String> = named
            .filter(|name| {
                BEGIN.iter().any(|begin| name.starts_with(begin)) || name.to_lowercase().ends_with("_proxy")
            })
            .collect();
        names.sort();
        self.text(
            "environment.txt",
            &names.iter().map(|name| format!("{name} is set\n")).collect::<String>(),
        );
    }

    /// Adds a volume and the daemon that serves it. `say` receives progress messages.
    ///
    /// # Errors
    /// The path leads to no volume at all.
    pub fn volume(&mut self, path: &Path, say: &dyn Fn(&str)) -> Result<(), Failure> {
        match target::resolve_volume(path) {
            Ok(Target::Mounted(place)) => {
                let pid = self.daemon(&place.address(), say);
                let dir = mounts::volume_of(&place.mount).and_then(|path| VolumeDir::open(&path).ok());
                match (dir, pid) {
                    (Some(dir), _) => self.folder(&dir),
                    // A volume in memory has no folder that names its daemon.
                    (None, Some(pid)) => self.process(pid),
                    (None, None) => {}
                }
            }
            Ok(Target::Closed { dir, .. }) => {
                let status = Node::open(&dir, &NodeOptions::reading("bundle")).and_then(|node| {
                    let status = Node::status(&node);
                    node.close().and(status)
                });
                self.outcome("volume/status-1.json", status);
                self.folder(&dir);
            }
            // Either the mount is dead or the volume cannot be read. Its folder says why.
            Err(failure) => {
                let Ok(dir) = VolumeDir::open(&folder_of(path)) else { return Err(failure) };
                self.outcome::<()>("volume/status-1.json", Err(failure));
                self.folder(&dir);
            }
        }
        Ok(())
    }

    /// Adds the files in a volume's folder, without the data.
    pub fn folder(&mut self, dir: &VolumeDir) {
        self.file("volume/covey.json", &dir.path().join("covey.json"));
        self.file("volume/lock.json", &dir.path().join("lock"));
        let log = dir.log();
        let mut lines = log::tail(&log, LOG_LINES);
        if lines.len() < LOG_LINES {
            let before = log::tail(&log.with_extension("log.old"), LOG_LINES - lines.len());
            lines.splice(0..0, before);
        }
        self.text("volume/log.txt", &(lines.join("\n") + "\n"));
        self.text("volume/folder.txt", &listing(dir.path()));
        if let Ok(Some(holder)) = dir.holder()
            && holder.pid > 0
        {
            self.process(holder.pid);
        }
    }

    /// Adds the daemon's status, taken twice, and its statistics in between. Returns the daemon's process id.
    /// A daemon that does not answer is asked only once, because each request would wait for the whole
    /// timeout.
    fn daemon(&mut self, address: &ControlAddress, say: &dyn Fn(&str)) -> Option<u32> {
        let status = || control::ask::<Value>(address, &Request::Status, &mut |_| ());
        let first = status();
        let pid = first.as_ref().map(|status| status["served"]["pid"].as_u64());
        let pid = pid.map(|pid| pid.and_then(|pid| u32::try_from(pid).ok())).map_err(drop);
        self.outcome("volume/status-1.json", first);
        let Ok(pid) = pid else { return None };
        say(&format!("Looking on for {} s ...", LOOK.as_secs()));
        let stats = look_on(address);
        if stats.is_err() {
            std::thread::sleep(LOOK);
        }
        self.outcome("volume/stats.json", stats);
        self.outcome("volume/status-2.json", status());
        match control::ask::<String>(address, &Request::Metrics, &mut |_| ()) {
            Ok(page) => self.text("volume/metrics.txt", &page),
            Err(failure) => self.text("volume/metrics.txt", &failure.to_string()),
        }
        pid
    }

    fn process(&mut self, pid: u32) {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        for name in ["status", "limits", "io", "stat", "wchan"] {
            self.file(&format!("daemon/{name}.txt"), &proc.join(name));
        }
        let words = |name: &str| {
            let bytes = fs::read(proc.join(name)).unwrap_or_default();
            let words = bytes.split(|&byte| byte == 0).filter(|word| !word.is_empty());
            words.map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>()
        };
        self.text("daemon/command-line.txt", &words("cmdline").join(" "));
        let names = words("environ")
            .into_iter()
            .filter_map(|word| Some(word.split_once('=')?.0.to_owned() + " is set\n"));
        self.text("daemon/environment.txt", &names.collect::<String>());
        let open = fs::read_dir(proc.join("fd")).map_or(0, Iterator::count);
        self.text("daemon/descriptors.txt", &format!("{open}\n"));
        self.text("daemon/threads.txt", &threads(&proc));
    }

    /// Adds all Covey mounts of this machine, and whether their daemons are alive.
    pub fn mounts(&mut self) {
        let row = |mount: &Mounted| {
            let path = RawPath::from(&*mount.path);
            json!({ "path": path, "source": mount.source, "alive": mount.answers() })
        };
        let rows: Vec<Value> = mounts::of_each(&node::trust::mounts(), row);
        self.json("mounts.json", &rows);
    }
}

/// Records one line of statistics a second.
fn look_on(address: &ControlAddress) -> Result<Vec<Value>, Failure> {
    let asked = control::begin(address, &Request::Watch { wish: Wish::Stats { interval_ms: 1_000 } })?;
    let enough = asked.stopper()?;
    let wanted = LOOK.as_secs() as usize;
    let mut lines = Vec::new();
    asked.hear::<Value>(&mut |_| (), &mut |line| {
        lines.push(line);
        if lines.len() == wanted {
            enough.stop();
        }
    })?;
    Ok(lines)
}

/// The name, state, wait channel and system call of each thread of a process. For a daemon that hangs, this
/// is the most that can be learned from outside.
fn threads(proc: &Path) -> String {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let mut lines: Vec<String> = fs::read_dir(proc.join("task"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| {
            let file = |name: &str| read(task.path().join(name));
            let stat = file("stat");
            // The state follows the name. The name can contain anything, so the last `)` ends it.
            let state = stat.rsplit(')').next().unwrap_or_default().trim().chars().next().unwrap_or('?');
            let number = task.file_name().to_string_lossy().into_owned();
            format!("{number} {} {state} {} syscall {}\n", file("comm"), file("wchan"), file("syscall"))
        })
        .collect();
    lines.sort();
    lines.concat()
}

/// Returns the output of a program. A program that exceeds the time limit is killed.
fn printed_by(words: &[&str]) -> std::io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let mut command = Command::new(words[0]);
    let mut child = command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let out = child.stdout.take();
    let reader = base::thread::spawn("covey-read", move || {
        let mut bytes = Vec::new();
        let read = out.map(|mut out| out.read_to_end(&mut bytes));
        read.transpose().map(|_| bytes)
    })?;
    let until = base::time::monotonic() + PATIENCE;
    while child.try_wait()?.is_none() && base::time::monotonic() < until && !reader.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The program has exited or is killed now. Its output up to here is kept.
    let _ = child.kill();
    child.wait()?;
    let bytes = reader.join().unwrap_or_else(|_| Ok(Vec::new()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The attributes that are recorded for each disk.
const DISK: [&str; 5] =
    ["size", "queue/rotational", "queue/scheduler", "queue/logical_block_size", "queue/nr_requests"];

/// The values of these files in every folder below `top`. If `top` itself has a folder of such a name, the
/// values of all files in it.
fn values_below(top: &Path, names: &[&str]) -> String {
    let mut text = String::new();
    let below = |folder: &Path| {
        let mut found: Vec<PathBuf> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        found.sort();
        found
    };
    let mut add = |path: &Path| {
        if let Ok(value) = fs::read_to_string(path) {
            text.push_str(&format!("{} {}\n", path.display(), value.trim()));
        }
    };
    for name in names {
        below(&top.join(name)).iter().for_each(|path| add(path));
    }
    for folder in below(top) {
        names.iter().for_each(|name| add(&folder.join(name)));
    }
    text
}

fn processors() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let count = text.lines().filter(|line| line.starts_with("processor")).count();
    // On nearly every machine all processors are alike, so only the first is listed.
    format!("{count} processors; the first:\n{}\n", text.split("\n\n").next().unwrap_or_default())
}

fn read_ahead() -> String {
    let knob = |dev: u64| format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(dev), libc::minor(dev));
    let line = |mount: &Mounted| {
        let value = fs::read_to_string(knob(mount.dev)).unwrap_or_else(|error| error.to_string());
        format!("{} {}\n", mount.path.display(), value.trim())
    };
    node::trust::mounts().iter().map(line).collect()
}

/// The entries of a volume's folder: the size of each file and the number of entries of each folder. No
/// contents.
fn listing(folder: &Path) -> String {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        lines.push(match meta.is_dir() {
            true => {
                let below = fs::read_dir(entry.path()).map_or(0, Iterator::count);
                format!("{name}/ {below} entries\n")
            }
            false => format!("{name} {} bytes\n", meta.len()),
        });
    }
    lines.sort();
    lines.concat()
}

/// The text that describes the bundle itself.
pub fn about(volume: Option<&Path>) -> String {
    format!(
        "A report of Covey {}.{}\n\nSecrets are replaced by {REMOVED}; of variables only the names are here. Look it through before\n\
         you send it on: names of folders and of this machine are in it.\n",
        env!("CARGO_PKG_VERSION"),
        volume.map(|path| format!(" The volume: {}", path.display())).unwrap_or_default(),
    )
}
