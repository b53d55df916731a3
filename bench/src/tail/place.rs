//! The mounts whose tails are compared, each served by a separate process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::time::monotonic;
use corpus::Spec;
use rustix::mount::{UnmountFlags, unmount};

use crate::Result;
use crate::tail::readers::{Files, Paths};
use crate::work::run;

/// How a mount is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// A tmpfs: the reference.
    Tmpfs,
    /// A volume, mounted by `covey mount` with these options.
    Volume {
        /// Its folder's name below the scratch folder.
        folder: &'static str,
        /// Options for `-o`.
        options: &'static str,
        /// The transport of requests.
        transport: fuse::Transport,
    },
    /// `covey mount corpus:...`
    Corpus {
        /// The transport of requests.
        transport: fuse::Transport,
    },
}

/// A mount.
pub struct Place {
    /// Its name in tables.
    pub name: String,
    /// The corpus's files on it.
    pub paths: Paths,
    root: PathBuf,
    server: Option<Child>,
}

/// What all places of one size share.
pub struct Ground<'a> {
    /// The program to measure.
    pub covey: &'a Path,
    /// The folder to work in.
    pub scratch: &'a Path,
    /// The corpus.
    pub spec: Spec,
    /// Its files.
    pub files: &'a Files,
}

impl Ground<'_> {
    /// Creates a volume that holds the corpus, all of it in sealed blobs.
    ///
    /// # Errors
    /// The volume cannot be created.
    pub fn volume(&self, folder: &'static str) -> Result<()> {
        run(Command::new(self.covey).arg("format").arg(self.scratch.join(folder)))?;
        let how = How::Volume { folder, options: "rw", transport: fuse::Transport::Classic };
        let filled = self.mount("filled", &how)?;
        self.files.write(&filled.root)?;
        filled.unmount()
    }

    /// Mounts a place.
    ///
    /// # Errors
    /// The server's output.
    pub fn mount(&self, name: &str, how: &How) -> Result<Place> {
        let root = self.scratch.join("mnt").join(name.replace(' ', "-"));
        std::fs::create_dir_all(&root)?;
        let server = match how {
            How::Tmpfs => {
                // Space for the files, and for the unused parts of their last pages.
                let mib = (self.spec.bytes() >> 20) + (self.spec.count >> 8) + 64;
                run(Command::new("mount")
                    .args(["-t", "tmpfs", "-o", &format!("size={mib}M"), "tmpfs"])
                    .arg(&root))?;
                None
            }
            how => Some(self.serve(how, &root)?),
        };
        let place = Place { name: name.to_owned(), paths: self.files.below(&root)?, root, server };
        if *how == How::Tmpfs {
            self.files.write(&place.root)?;
        }
        Ok(place)
    }

    fn serve(&self, how: &How, root: &Path) -> Result<Child> {
        let mut command = match how {
            How::Volume { folder, options, transport } => {
                let mut command = self.covey_mount(*transport);
                command.args(["-o", options]).arg(self.scratch.join(folder)).arg(root);
                command
            }
            How::Corpus { transport } => {
                let mut command = self.covey_mount(*transport);
                command.arg(self.spec.to_string()).arg(root);
                command
            }
            How::Tmpfs => return Err("a tmpfs has no server".into()),
        };
        let log = root.with_extension("log");
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).current_dir("/");
        let outside = rustix::fs::stat(self.scratch)?.st_dev;
        let mut server = command.spawn()?;
        let begun = monotonic();
        while rustix::fs::stat(root)?.st_dev == outside {
            if server.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(120) {
                server.kill().ok();
                server.wait()?;
                let said = std::fs::read_to_string(&log)?;
                return Err(format!("{how:?} did not mount: {said}").into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    fn covey_mount(&self, transport: fuse::Transport) -> Command {
        let mut command = Command::new(self.covey);
        command.arg("mount").args(["--transport", &transport.to_string()]);
        command
    }
}

impl Place {
    /// Unmounts it and waits for its server.
    ///
    /// # Errors
    /// The unmount or the server failed.
    pub fn unmount(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        let asked = unmount(&self.root, UnmountFlags::empty());
        if asked.is_err() {
            server.kill()?;
            unmount(&self.root, UnmountFlags::DETACH).ok();
        }
        let ended = server.wait()?;
        asked.map_err(|error| format!("{}: {error}", self.root.display()))?;
        if ended.success() {
            Ok(())
        } else {
            Err(format!("{}: its server ended with {ended}", self.name).into())
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let served = self.server.is_some();
        if let Err(error) = self.end() {
            eprintln!("covey-bench: {error}");
        }
        if !served {
            // For a tmpfs, or a place that was unmounted already, there may be nothing mounted, which is
            // fine.
            unmount(&self.root, UnmountFlags::DETACH).ok();
        }
    }
}
