//! What is measured on: four filesystems, set up afresh and taken away again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::time::monotonic;
use rustix::fs::{Advice, fadvise};
use rustix::mount::{UnmountFlags, unmount};

use crate::Result;
use crate::work::run;

/// A kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A volume in a folder, mounted.
    Covey,
    /// A fresh ext4 in an image file.
    Ext4,
    /// A tmpfs.
    Tmpfs,
    /// A FUSE filesystem that does nothing: what the kernel's protocol costs by itself.
    Null,
}

impl Kind {
    /// All, in the order of the table's columns.
    pub const ALL: [Kind; 4] = [Kind::Covey, Kind::Ext4, Kind::Tmpfs, Kind::Null];

    /// Its name in tables and raw results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Covey => "covey",
            Kind::Ext4 => "ext4",
            Kind::Tmpfs => "tmpfs",
            Kind::Null => "null",
        }
    }
}

/// One of them, mounted.
pub struct Place {
    /// Which.
    pub kind: Kind,
    folder: PathBuf,
    root: PathBuf,
    server: Option<Child>,
    /// Processor time of servers that ended, in seconds.
    cpu_before: f64,
    device: String,
    covey: PathBuf,
    options: Option<String>,
    transport: fuse::Transport,
}

impl Place {
    /// Sets one up below a scratch folder.
    ///
    /// # Errors
    /// A program it needs is missing or failed.
    pub fn set_up(
        kind: Kind,
        scratch: &Path,
        covey: &Path,
        (options, transport): (Option<&str>, fuse::Transport),
    ) -> Result<Place> {
        let folder = scratch.join(kind.name());
        let root = folder.join("mnt");
        std::fs::create_dir_all(&root)?;
        let (covey, options) = (covey.to_owned(), options.map(str::to_owned));
        let mut place = Place {
            kind,
            folder,
            root,
            server: None,
            cpu_before: 0.0,
            device: String::new(),
            covey,
            options,
            transport,
        };
        match kind {
            Kind::Covey => {
                run(Command::new(&place.covey).arg("format").arg(place.folder.join("volume")))?;
                place.serve()?;
            }
            Kind::Null => place.serve()?,
            Kind::Tmpfs => {
                run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=8G", "tmpfs"]).arg(&place.root))?
            }
            Kind::Ext4 => {
                File::create(place.image())?.set_len(16 << 30)?;
                run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(place.image()))?;
                let shown = Command::new("losetup").args(["--find", "--show"]).arg(place.image()).output()?;
                place.device = String::from_utf8_lossy(&shown.stdout).trim().to_owned();
                run(Command::new("mount").args(["-o", "noatime", &place.device]).arg(&place.root))?;
            }
        }
        Ok(place)
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// Where programs see it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Processor time that its server used so far, in seconds; 0 where the kernel does the work itself.
    pub fn cpu_seconds(&self) -> f64 {
        let Some(server) = &self.server else { return self.cpu_before };
        let text = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap_or_default();
        // The name in parentheses may hold spaces; user and system time are the 12th and 13th words after it.
        let words: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        self.cpu_before + (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second() as f64
    }

    fn serve(&mut self) -> Result<()> {
        let mut command = if self.kind == Kind::Null {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("--serve-null").arg(&self.root).args(["--transport", &self.transport.to_string()]);
            command
        } else {
            let mut command = Command::new(&self.covey);
            command.arg("mount").arg(self.folder.join("volume")).arg(&self.root);
            command.args(["--transport", &self.transport.to_string()]);
            self.options.iter().for_each(|options| {
                command.arg("-o").arg(options);
            });
            command
        };
        let log = File::create(self.folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        let outside = rustix::fs::stat(&self.folder)?.st_dev;
        let mut server = command.spawn()?;
        let begun = monotonic();
        while rustix::fs::stat(&self.root)?.st_dev == outside {
            if server.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(30) {
                let said = std::fs::read_to_string(self.folder.join("log"))?;
                return Err(format!("{} did not mount: {said}", self.kind.name()).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.server = Some(server);
        Ok(())
    }

    /// Leaves nothing of what is stored in any memory, as far as that can be had without disturbing others.
    ///
    /// # Errors
    /// It cannot be mounted again.
    pub fn make_cold(&mut self) -> Result<()> {
        match self.kind {
            Kind::Covey => {
                self.stop()?;
                forget_below(&self.folder.join("volume"))?;
                self.serve()
            }
            Kind::Ext4 => {
                unmount(&self.root, UnmountFlags::empty())?;
                forget_below(&self.image())?;
                forget_below(Path::new(&self.device))?;
                run(Command::new("mount").args(["-o", "noatime", &self.device]).arg(&self.root))
            }
            Kind::Tmpfs | Kind::Null => Ok(()),
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.cpu_before = self.cpu_seconds();
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let asked = unmount(&self.root, UnmountFlags::empty());
        if asked.is_err() {
            server.kill()?;
            unmount(&self.root, UnmountFlags::DETACH).ok();
        }
        server.wait()?;
        Ok(asked?)
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
        if matches!(self.kind, Kind::Ext4 | Kind::Tmpfs) {
            unmount(&self.root, UnmountFlags::empty())
                .or_else(|_| unmount(&self.root, UnmountFlags::DETACH))
                .ok();
        }
        if !self.device.is_empty() {
            run(Command::new("losetup").args(["--detach", &self.device])).ok();
        }
    }
}

/// Drops a file's pages, or those of every file below a folder. What is dirty is written first.
fn forget_below(path: &Path) -> Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            forget_below(&entry?.path())?;
        }
    } else if path.exists() && !path.is_symlink() {
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
pub fn serve_null(mountpoint: &Path, transport: fuse::Transport) -> Result<()> {
    let null = Arc::new(fuse::null::Null::new());
    let options = fuse::Options { transport, ..fuse::Options::default() };
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
