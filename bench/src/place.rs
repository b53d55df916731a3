//! The filesystems that are measured: created for a run and removed afterwards.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::time::monotonic;
use rustix::fs::{Advice, fadvise};
use rustix::mount::{UnmountFlags, unmount};

use crate::Result;
use crate::peer::{Peer, Tools};
use crate::process;
use crate::run::PerOperation;
use crate::store::{self, Access};
use crate::work::run;

/// The number of requests so far, by kind.
pub type Requests = std::collections::BTreeMap<String, u64>;

/// A kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A volume in a folder, mounted.
    Covey,
    /// A volume whose blobs are in an S3 store, mounted.
    CoveyS3,
    /// A volume in memory, mounted.
    Memory,
    /// A new ext4 in an image file.
    Ext4,
    /// A tmpfs.
    Tmpfs,
    /// A FUSE filesystem that does nothing: the cost of the kernel's protocol alone.
    Null,
    /// A plain folder on the disk that also holds Covey's volume and the ext4's image.
    Folder,
    /// No filesystem: Covey's planner of names, called directly.
    Planner,
    /// Another FUSE filesystem.
    Peer(Peer),
}

impl Kind {
    /// Its name in tables and raw results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Covey | Kind::CoveyS3 => "covey",
            Kind::Memory => "mem",
            Kind::Ext4 => "ext4",
            Kind::Tmpfs => "tmpfs",
            Kind::Null => "null",
            Kind::Folder => "folder",
            Kind::Planner => "planner",
            Kind::Peer(peer) => peer.name(),
        }
    }

    /// Whether it is third-party software: its failure ends its column, not the run.
    pub fn is_peer(self) -> bool {
        matches!(self, Kind::Peer(_))
    }

    /// Whether the kernel alone serves it.
    fn is_kernels(self) -> bool {
        matches!(self, Kind::Ext4 | Kind::Tmpfs)
    }
}

/// How a place is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The kind of filesystem.
    pub kind: Kind,
    /// Its column's name.
    pub name: String,
    /// The transport of requests to Covey and the empty filesystem.
    pub transport: fuse::Transport,
    /// Threads that read requests; with 0 the program chooses.
    pub readers: usize,
    /// Options for `covey mount -o`.
    pub options: Option<String>,
    /// A calling program may be moved to another CPU by the reply.
    pub moved: bool,
    /// Every request is traced.
    pub traced: bool,
}

impl Setup {
    /// The default setup.
    pub fn new(kind: Kind, transport: fuse::Transport) -> Setup {
        Setup {
            kind,
            name: kind.name().to_owned(),
            transport,
            readers: 0,
            options: None,
            moved: false,
            traced: false,
        }
    }

    /// The same with another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Setup {
        self.name = name.into();
        self
    }
}

/// A filesystem that is mounted.
pub struct Place {
    setup: Setup,
    folder: PathBuf,
    root: PathBuf,
    server: Option<Child>,
    /// The helper processes of the server.
    helpers: Vec<Child>,
    /// Processor time of earlier servers, in seconds.
    cpu_before: f64,
    device: String,
    covey: PathBuf,
    tools: Tools,
}

impl Place {
    /// Sets up a place below a scratch folder.
    ///
    /// # Errors
    /// A program it needs is missing or failed.
    pub fn set_up(setup: Setup, scratch: &Path, covey: &Path, tools: &Tools) -> Result<Place> {
        let folder = scratch.join(setup.name.replace(' ', "-"));
        let root = folder.join("mnt");
        std::fs::create_dir_all(&root)?;
        let (covey, tools) = (covey.to_owned(), tools.clone());
        let mut place = Place {
            setup,
            folder,
            root,
            server: None,
            helpers: Vec::new(),
            cpu_before: 0.0,
            device: String::new(),
            covey,
            tools,
        };
        match place.kind() {
            Kind::Covey => {
                run(Command::new(&place.covey).arg("format").arg(place.folder.join("volume")))?;
                place.serve()?;
                place.start_trace()?;
            }
            Kind::CoveyS3 => {
                place.format_over_s3()?;
                place.serve()?;
            }
            Kind::Peer(peer) => {
                place.helpers = peer.prepare(&place.tools, &place.folder)?;
                place.serve()?;
            }
            Kind::Memory | Kind::Null => place.serve()?,
            Kind::Folder | Kind::Planner => {}
            Kind::Tmpfs => {
                run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=8G", "tmpfs"]).arg(&place.root))?
            }
            Kind::Ext4 => {
                File::create(place.image())?.set_len(32 << 30)?;
                run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(place.image()))?;
                let shown = Command::new("losetup").args(["--find", "--show"]).arg(place.image()).output()?;
                place.device = String::from_utf8_lossy(&shown.stdout).trim().to_owned();
                if place.device.is_empty() {
                    let said = String::from_utf8_lossy(&shown.stderr).trim().to_owned();
                    return Err(format!("no loop device for an ext4: {said}").into());
                }
                place.mount_ext4()?;
            }
        }
        Ok(place)
    }

    /// Mounts the ext4 without the kernel thread that would initialize inode tables for minutes after the
    /// first mount.
    fn mount_ext4(&self) -> Result<()> {
        run(Command::new("mount").args(["-o", "noatime,noinit_itable", &self.device]).arg(&self.root))
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.setup.kind
    }

    /// Its column's name.
    pub fn name(&self) -> &str {
        &self.setup.name
    }

    /// Its root for programs.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its server's process, where it has one.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Processor time that its server used so far, including children and helpers, in seconds; 0 where the
    /// kernel itself does the work.
    pub fn cpu_seconds(&self) -> f64 {
        let all = self.server.iter().chain(&self.helpers);
        self.cpu_before + all.map(|child| process::cpu_seconds(child.id())).sum::<f64>()
    }

    /// FUSE requests so far, by kind; none where they are not counted.
    pub fn requests(&self) -> Requests {
        if !matches!(self.kind(), Kind::Covey | Kind::CoveyS3 | Kind::Memory) || self.server.is_none() {
            return Requests::new();
        }
        let asked = Command::new(&self.covey).args(["status", "--json"]).arg(&self.root).output();
        let answer =
            asked.ok().and_then(|done| serde_json::from_slice::<serde_json::Value>(&done.stdout).ok());
        let counts = answer.and_then(|status| status.pointer("/served/requests_by_kind").cloned());
        counts.and_then(|counts| serde_json::from_value(counts).ok()).unwrap_or_default()
    }

    /// The requests since `before`, per operation; `None` where they are not counted.
    pub fn requests_since(&self, before: &Requests, operations: u64) -> Option<PerOperation> {
        let now = self.requests();
        let more = |(kind, count): (String, u64)| {
            let count = count.saturating_sub(before.get(&kind).copied().unwrap_or(0));
            (kind, count as f64 / operations as f64)
        };
        (!now.is_empty()).then(|| now.into_iter().map(more).collect())
    }

    fn command(&self) -> Result<Command> {
        let (setup, transport) = (&self.setup, self.setup.transport.to_string());
        let mut command = match setup.kind {
            Kind::Peer(peer) => return peer.command(&self.tools, &self.folder, &self.root),
            Kind::Null => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("serve-null").arg(&self.root);
                command
            }
            _ => {
                let mut command = Command::new(&self.covey);
                let volume = self.folder.join("volume");
                let volume = if setup.kind == Kind::Memory { Path::new("mem:") } else { &volume };
                command.arg("mount").arg(volume).arg(&self.root);
                setup.options.iter().for_each(|options| {
                    command.arg("-o").arg(options);
                });
                command
            }
        };
        command.args(["--transport", &transport]);
        if setup.readers > 0 {
            command.args(["--readers", &setup.readers.to_string()]);
        }
        if setup.moved {
            command.args(["--yield", "off"]);
        }
        if setup.kind == Kind::CoveyS3 {
            self.store()?.hand_to(&mut command);
        }
        Ok(command)
    }

    /// Starts `covey trace`, if wanted.
    fn start_trace(&mut self) -> Result<()> {
        let begun = monotonic();
        while self.setup.traced && self.helpers.is_empty() {
            let mut look = Command::new(&self.covey);
            look.arg("trace").arg(&self.root).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
            let mut child = look.stderr(Stdio::null()).spawn()?;
            // Right after the mount appears, its control socket may not listen yet.
            std::thread::sleep(Duration::from_millis(200));
            match child.try_wait()? {
                None => self.helpers.push(child),
                Some(status) if begun.elapsed() > Duration::from_secs(10) => {
                    return Err(format!("covey trace ended: {status}").into());
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn store(&self) -> Result<&Access> {
        self.tools.store.as_ref().ok_or_else(|| "there is no S3 store to measure over".into())
    }

    fn format_over_s3(&self) -> Result<()> {
        let access = self.store()?;
        let mut format = Command::new(&self.covey);
        format.arg("format").arg(self.folder.join("volume")).arg("--origin");
        format.arg(format!("s3://{}/volume", store::BUCKETS[0])).args([
            "--region",
            "us-east-1",
            "--endpoint",
        ]);
        format.arg(access.endpoint());
        access.hand_to(&mut format);
        run(&mut format)
    }

    /// Waits until everything written is in the S3 store.
    ///
    /// # Errors
    /// The program that uploads it failed.
    pub fn settle(&self) -> Result<()> {
        match self.kind() {
            Kind::CoveyS3 => run(Command::new(&self.covey).arg("flush").arg(&self.root)),
            Kind::Peer(peer) => peer.settle(&self.tools),
            _ => Ok(()),
        }
    }

    /// Ends the server and removes what it could fetch again from the S3 store, as after the loss of the disk
    /// with the cache.
    ///
    /// # Errors
    /// The place has no such store.
    pub fn lose_cache(&mut self) -> Result<()> {
        match self.kind() {
            Kind::CoveyS3 => {
                run(Command::new(&self.covey).args(["cache", "evict", "--all"]).arg(&self.root))?;
                self.stop()?;
            }
            Kind::Peer(peer) => {
                self.stop()?;
                let cache = peer.cache(&self.folder);
                if cache.exists() {
                    std::fs::remove_dir_all(cache)?;
                }
            }
            _ => return Err("only what is over an S3 store can lose its cache".into()),
        }
        forget_below(&self.folder)
    }

    /// Mounts it again after [`Place::lose_cache`].
    ///
    /// # Errors
    /// The mount failed.
    pub fn begin_again(&mut self) -> Result<()> {
        self.serve()
    }

    fn serve(&mut self) -> Result<()> {
        let mut command = self.command()?;
        let log = File::create(self.folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        // Ctrl-C goes only to the bench, which then ends its servers itself.
        command.process_group(0);
        let outside = rustix::fs::stat(&self.folder)?.st_dev;
        let mut server = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let begun = monotonic();
        while rustix::fs::stat(&self.root)?.st_dev == outside {
            let ended = server.try_wait()?.is_some();
            if ended || begun.elapsed() > Duration::from_secs(30) {
                let said = std::fs::read_to_string(self.folder.join("log"))?;
                server.kill().ok();
                server.wait().ok();
                return Err(format!("{} did not mount: {said}", self.name()).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.server = Some(server);
        Ok(())
    }

    /// Removes what is stored from all memory, as far as possible without disturbing others. For a volume in
    /// memory and a plain folder, only the kernel's pages are dropped.
    ///
    /// # Errors
    /// It cannot be mounted again.
    pub fn make_cold(&mut self) -> Result<()> {
        match self.kind() {
            Kind::Covey | Kind::CoveyS3 | Kind::Peer(_) => {
                self.stop()?;
                forget_below(&self.folder)?;
                self.serve()
            }
            Kind::Ext4 => {
                unmount(&self.root, UnmountFlags::empty())?;
                forget_below(&self.image())?;
                forget_below(Path::new(&self.device))?;
                self.mount_ext4()
            }
            Kind::Memory | Kind::Folder => forget_below(&self.root),
            Kind::Tmpfs | Kind::Null | Kind::Planner => Ok(()),
        }
    }

    /// Makes the kernel forget names and attributes, where that does not lose stored data.
    ///
    /// # Errors
    /// It cannot be mounted again.
    pub fn remount(&mut self) -> Result<()> {
        match self.kind() {
            Kind::Covey | Kind::CoveyS3 | Kind::Peer(_) => {
                self.stop()?;
                self.serve()
            }
            Kind::Ext4 => {
                unmount(&self.root, UnmountFlags::empty())?;
                self.mount_ext4()
            }
            _ => Ok(()),
        }
    }

    /// Drops the kernel's pages of all files, so that reads reach the server. The server keeps its own
    /// memory.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn drop_pages(&self) -> Result<()> {
        forget_below(&self.root)
    }

    fn stop(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let before = process::cpu_seconds(server.id());
        let asked = unmount(&self.root, UnmountFlags::empty());
        if asked.is_err() {
            unmount(&self.root, UnmountFlags::DETACH).ok();
        }
        self.cpu_before += before;
        let clean = asked.is_ok() && process::ends_within(&mut server, Duration::from_secs(60))?;
        if !clean {
            process::end(&mut server);
        }
        if !clean && !self.kind().is_peer() {
            return Err(format!("{} did not unmount in order", self.name()).into());
        }
        Ok(())
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
        if self.kind().is_kernels() {
            unmount(&self.root, UnmountFlags::empty())
                .or_else(|_| unmount(&self.root, UnmountFlags::DETACH))
                .ok();
        }
        if !self.device.is_empty() {
            run(Command::new("losetup").args(["--detach", &self.device])).ok();
        }
        self.helpers.iter_mut().for_each(process::end);
        // The scratch folder is removed last. Large files are removed now, so that many places fit on a disk.
        std::fs::remove_file(self.image()).ok();
    }
}

/// Drops the cached pages of a file, or of every file below a folder. Dirty pages are written first.
///
/// # Errors
/// A folder cannot be read.
pub fn forget_below(path: &Path) -> Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            forget_below(&entry?.path())?;
        }
    } else if path.is_file() || path.starts_with("/dev/") {
        // A socket cannot be opened, and has no pages.
        if let Ok(file) = File::open(path) {
            file.sync_all().ok();
            fadvise(&file, 0, None, Advice::DontNeed).ok();
        }
    }
    Ok(())
}

/// Serves the empty filesystem.
///
/// # Errors
/// It cannot be mounted.
pub fn serve_null(mountpoint: &Path, transport: fuse::Transport, readers: usize) -> Result<()> {
    let null = Arc::new(fuse::null::Null::new());
    let options = fuse::Options { transport, readers, ..fuse::Options::default() };
    let session = fuse::Session::mount(null, mountpoint, options)?;
    session.wait();
    Ok(())
}

/// The kernel's switch for FUSE over io_uring, restored at the end.
pub struct Switch(Option<bool>);

impl Switch {
    /// Remembers its state.
    #[must_use]
    pub fn as_it_is() -> Switch {
        Switch(fuse::uring::switched_on())
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.0 == Some(false) {
            let _ = std::fs::write(fuse::uring::SWITCH, "N");
        }
    }
}
