//! Where the programs are built: a new ext4, a volume on disk, a volume in memory.
//!
//! A Covey place keeps figures of its daemon: the requests so far, including those of daemons that a cold
//! walk has ended, its peak memory, and what its volume stores.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::time::monotonic;
use clap::ValueEnum;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use serde_json::Value;

use super::shell::quiet;
use crate::Result;
use crate::place::forget_below;

/// A kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// A new ext4 in an image file, through a loop device.
    Ext4,
    /// A volume in a folder, made by `covey format`.
    Covey,
    /// A volume in memory.
    Mem,
}

impl Kind {
    /// Its name in tables and raw results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Covey => "covey",
            Kind::Mem => "mem",
        }
    }
}

/// Requests by kind.
pub type Counts = BTreeMap<String, u64>;

/// How to mount Covey.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// The program.
    pub covey: PathBuf,
    /// The transport of requests.
    pub transport: fuse::Transport,
    /// Options for `-o`.
    pub options: Option<String>,
}

/// A place, mounted.
pub struct Place {
    /// Its kind.
    pub kind: Kind,
    folder: PathBuf,
    root: PathBuf,
    device: String,
    daemon: Daemon,
    server: Option<Child>,
    /// The server's process id, for the memory monitor; 0 while there is none.
    pub pid: Arc<AtomicU32>,
    counts_before: Counts,
    peak_before_kib: u64,
    /// The transport that the daemon reported.
    pub transport: String,
}

impl Place {
    /// Sets up a place below a scratch folder.
    ///
    /// # Errors
    /// A program it needs is missing or failed.
    pub fn set_up(kind: Kind, scratch: &Path, daemon: &Daemon) -> Result<Place> {
        let folder = scratch.join(kind.name());
        let root = folder.join("mnt");
        fs::create_dir_all(&root)?;
        let mut place = Place {
            kind,
            folder,
            root,
            device: String::new(),
            daemon: daemon.clone(),
            server: None,
            pid: Arc::default(),
            counts_before: Counts::new(),
            peak_before_kib: 0,
            transport: String::new(),
        };
        match kind {
            Kind::Ext4 => {
                File::create(place.image())?.set_len(16 << 30)?;
                quiet(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(place.image()))?;
                let device = quiet(Command::new("losetup").args(["--find", "--show"]).arg(place.image()))?;
                place.device = device.trim().to_owned();
                place.mount_ext4()?;
            }
            Kind::Covey => {
                quiet(Command::new(&daemon.covey).arg("format").arg(place.volume()))?;
                place.serve()?;
            }
            Kind::Mem => place.serve()?,
        }
        Ok(place)
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// The folder of the volume on disk.
    pub fn volume(&self) -> PathBuf {
        self.folder.join("volume")
    }

    /// Its root for programs.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn mount_ext4(&self) -> Result<()> {
        quiet(Command::new("mount").args(["-o", "noatime", &self.device]).arg(&self.root)).map(drop)
    }

    fn serve(&mut self) -> Result<()> {
        let mut command = Command::new(&self.daemon.covey);
        command.arg("mount");
        match self.kind {
            Kind::Mem => command.arg("mem:"),
            _ => command.arg(self.volume()),
        };
        command.arg(&self.root).args(["--transport", &self.daemon.transport.to_string()]);
        if let Some(options) = &self.daemon.options {
            command.arg("-o").arg(options);
        }
        let log = File::create(self.folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        let outside = rustix::fs::stat(&self.folder)?.st_dev;
        let mut server = command.spawn()?;
        let begun = monotonic();
        while rustix::fs::stat(&self.root)?.st_dev == outside {
            if server.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(60) {
                server.kill().ok();
                server.wait()?;
                let said = fs::read_to_string(self.folder.join("log"))?;
                return Err(format!("{} did not mount: {said}", self.kind.name()).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.pid.store(server.id(), Ordering::Relaxed);
        self.server = Some(server);
        let said = self.status()?;
        said["served"]["transport"].as_str().unwrap_or("unknown").clone_into(&mut self.transport);
        Ok(())
    }

    /// The output of `covey status`; null where there is no daemon.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn status(&self) -> Result<Value> {
        if self.server.is_none() {
            return Ok(Value::Null);
        }
        let mut command = Command::new(&self.daemon.covey);
        command.args(["status", "--json"]).arg(&self.root);
        Ok(serde_json::from_str(&quiet(&mut command)?)?)
    }

    /// Requests so far, by kind.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn counts(&self) -> Result<Counts> {
        let mut counts = self.counts_before.clone();
        let status = self.status()?;
        let by_kind = status["served"]["requests_by_kind"].as_object();
        for (kind, count) in by_kind.into_iter().flatten() {
            *counts.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
        Ok(counts)
    }

    /// The highest peak memory of this place's daemons, in KiB.
    pub fn peak_kib(&self) -> u64 {
        let now = self.server.as_ref().map_or(0, |server| memory_kib(server.id(), "VmHWM:"));
        now.max(self.peak_before_kib)
    }

    /// Checks that its daemon still runs.
    ///
    /// # Errors
    /// The daemon has ended, with its output.
    pub fn must_live(&mut self) -> Result<()> {
        if let Some(server) = &mut self.server
            && let Some(status) = server.try_wait()?
        {
            self.pid.store(0, Ordering::Relaxed);
            let said = fs::read_to_string(self.folder.join("log"))?;
            return Err(format!("the daemon ended ({status}): {said}").into());
        }
        Ok(())
    }

    /// Makes the kernel forget names, attributes and pages. Data on a disk is not in memory afterwards; data
    /// of a volume in memory stays there.
    ///
    /// # Errors
    /// It cannot be mounted again.
    pub fn make_cold(&mut self) -> Result<()> {
        match self.kind {
            Kind::Covey => {
                self.stop()?;
                forget_below(&self.volume())?;
                self.serve()
            }
            Kind::Ext4 => {
                unmount(&self.root, UnmountFlags::empty())?;
                forget_below(&self.image())?;
                forget_below(Path::new(&self.device))?;
                self.mount_ext4()
            }
            // A remount drops every unused name, and with it the kernel's cache of the file.
            Kind::Mem => Ok(mount_remount(&self.root, MountFlags::empty(), "")?),
        }
    }

    fn stop(&mut self) -> Result<()> {
        if self.server.is_some() {
            self.counts_before = self.counts().unwrap_or_else(|_| self.counts_before.clone());
            self.peak_before_kib = self.peak_kib();
        }
        self.pid.store(0, Ordering::Relaxed);
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let asked = unmount(&self.root, UnmountFlags::empty());
        if asked.is_err() {
            server.kill()?;
            unmount(&self.root, UnmountFlags::DETACH).ok();
        }
        server.wait()?;
        asked.map_err(|error| format!("{} does not unmount: {error}", self.kind.name()).into())
    }

    /// Unmounts and removes it.
    ///
    /// # Errors
    /// The unmount failed.
    pub fn tear_down(mut self) -> Result<()> {
        self.stop()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop().ok();
        if self.kind == Kind::Ext4 {
            unmount(&self.root, UnmountFlags::empty())
                .or_else(|_| unmount(&self.root, UnmountFlags::DETACH))
                .ok();
        }
        if !self.device.is_empty() {
            quiet(Command::new("losetup").args(["--detach", &self.device])).ok();
        }
    }
}

/// A field of a process's status in KiB; 0 if the process has ended.
pub fn memory_kib(pid: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("");
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}
