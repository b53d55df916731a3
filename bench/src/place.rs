//! What is measured on: filesystems, set up afresh and taken away again.

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

/// How many requests came so far, by kind.
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
    /// A fresh ext4 in an image file.
    Ext4,
    /// A tmpfs.
    Tmpfs,
    /// A FUSE filesystem that does nothing: what the kernel's protocol costs by itself.
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

    /// Whether it is somebody else's: its failures end its column, not the run.
    pub fn is_peer(self) -> bool {
        matches!(self, Kind::Peer(_))
    }

    /// Whether the kernel alone serves it.
    fn is_kernels(self) -> bool {
        matches!(self, Kind::Ext4 | Kind::Tmpfs)
    }
}

/// How a place is to be.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it is.
    pub kind: Kind,
    /// Its column's name.
    pub name: String,
    /// How requests reach Covey and the empty filesystem.
    pub transport: fuse::Transport,
    /// Threads that read requests; 0: the program's choice.
    pub readers: usize,
    /// For `covey mount -o`.
    pub options: Option<String>,
    /// The kernel is to keep nothing.
    pub uncached: bool,
    /// A program that asks may be moved to another CPU by the answer.
    pub moved: bool,
    /// Somebody looks on at every request.
    pub traced: bool,
}

impl Setup {
    /// The usual.
    pub fn new(kind: Kind, transport: fuse::Transport) -> Setup {
        Setup {
            kind,
            name: kind.name().to_owned(),
            transport,
            readers: 0,
            options: None,
            uncached: false,
            moved: false,
            traced: false,
        }
    }

    /// Under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Setup {
        self.name = name.into();
        self
    }
}

/// One of them, mounted.
pub struct Place {
    setup: Setup,
    folder: PathBuf,
    root: PathBuf,
    server: Option<Child>,
    /// What the server needs beside itself.
    helpers: Vec<Child>,
    /// Processor time of servers that ended, in seconds.
    cpu_before: f64,
    device: String,
    covey: PathBuf,
    tools: Tools,
}

impl Place {
    /// Sets one up below a scratch folder.
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
                place.look_on()?;
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

    /// Without the kernel's thread that goes on formatting for minutes after the first mount.
    fn mount_ext4(&self) -> Result<()> {
        run(Command::new("mount").args(["-o", "noatime,noinit_itable", &self.device]).arg(&self.root))
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.setup.kind
    }

    /// Its column's name.
    pub fn name(&self) -> &str {
        &self.setup.name
    }

    /// Whether the kernel keeps nothing of it.
    pub fn is_uncached(&self) -> bool {
        self.setup.uncached
    }

    /// Where programs see it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its server's process, where it has one.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Processor time that its server used so far, its children and helpers included, in seconds; 0 where the kernel does the work
    /// itself.
    pub fn cpu_seconds(&self) -> f64 {
        let all = self.server.iter().chain(&self.helpers);
        self.cpu_before + all.map(|child| process::cpu_seconds(child.id())).sum::<f64>()
    }

    /// FUSE requests so far, by kind; none where nobody counts them.
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

    /// What so many operations cost, of the requests since `before`; `None` where nobody counts them.
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
        if setup.uncached {
            command.arg("--uncached");
        }
        if setup.moved {
            command.args(["--aside", "off"]);
        }
        if setup.kind == Kind::CoveyS3 {
            self.store()?.hand_to(&mut command);
        }
        Ok(command)
    }

    /// Starts `covey trace`, where it is wanted.
    fn look_on(&mut self) -> Result<()> {
        let begun = monotonic();
        while self.setup.traced && self.helpers.is_empty() {
            let mut look = Command::new(&self.covey);
            look.arg("trace").arg(&self.root).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
            let mut child = look.stderr(Stdio::null()).spawn()?;
            // Right after the mount is there, nobody may listen yet.
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

    /// Waits until all that was written is in the S3 store.
    ///
    /// # Errors
    /// The program that should see to it failed.
    pub fn settle(&self) -> Result<()> {
        match self.kind() {
            Kind::CoveyS3 => run(Command::new(&self.covey).arg("flush").arg(&self.root)),
            Kind::Peer(peer) => peer.settle(&self.tools),
            _ => Ok(()),
        }
    }

    /// Ends the server and takes away what it could fetch again from the S3 store, as a node would lose it with its cache's disk.
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

    /// Serves it again after [`Place::lose_cache`].
    ///
    /// # Errors
    /// It does not mount.
    pub fn begin_again(&mut self) -> Result<()> {
        self.serve()
    }

    fn serve(&mut self) -> Result<()> {
        let mut command = self.command()?;
        let log = File::create(self.folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        // Ctrl-C is for the bench, which then ends its servers itself.
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

    /// Leaves nothing of what is stored in any memory, as far as that can be had without disturbing others. Of a volume in memory and
    /// of a plain folder it drops the kernel's pages.
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

    /// Has the kernel forget names and attributes, where that can be had without losing what is stored.
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

    /// Drops the kernel's pages of all files, so that reads reach the server; what the server holds stays.
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

    /// Takes it away.
    ///
    /// # Errors
    /// It does not unmount.
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
        // The scratch folder goes last; what is large goes now, so that many places fit on a disk.
        std::fs::remove_file(self.image()).ok();
    }
}

/// Drops a file's pages, or those of every file below a folder. What is dirty is written first.
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

/// Serves the filesystem that does nothing.
///
/// # Errors
/// It cannot be mounted.
pub fn serve_null(
    mountpoint: &Path,
    transport: fuse::Transport,
    readers: usize,
    uncached: bool,
) -> Result<()> {
    let null = Arc::new(fuse::null::Null::new());
    let options = fuse::Options { transport, readers, uncached, ..fuse::Options::default() };
    let session = fuse::Session::mount(null, mountpoint, options)?;
    session.wait();
    Ok(())
}

/// The kernel's switch for FUSE over io_uring, put back to what it was at the end.
pub struct Switch(Option<bool>);

impl Switch {
    /// Remembers it.
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
