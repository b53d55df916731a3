//! A volume, and a mount of it that cleans up after itself.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::program::{covey, covey_run, run, wait};
use crate::{Finished, Ground, ground, proc};

/// The longest time for a mount, an unmount or a daemon's end before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A formatted volume and a mountpoint; on a plain ground, only a folder. Removed when it is dropped.
pub struct Volume {
    /// The argument of `covey mount`.
    pub source: PathBuf,
    mountpoint: PathBuf,
    ground: Ground,
    // Last, so that it is removed after everything above.
    _folder: Option<tempfile::TempDir>,
}

impl Default for Volume {
    fn default() -> Self {
        Volume::new()
    }
}

impl Volume {
    /// Formats a new volume in a scratch folder.
    pub fn new() -> Volume {
        let folder = match ground() {
            Ground::Below(folder) => {
                tempfile::Builder::new().prefix("covey-test-").tempdir_in(folder).unwrap()
            }
            _ => crate::scratch(),
        };
        let mut volume = Volume::below(folder.path(), &[]);
        volume._folder = Some(folder);
        volume
    }

    /// Formats a new volume as `volume` in the caller's folder, with more arguments to `covey format`.
    pub fn below(folder: &Path, format: &[&str]) -> Volume {
        let volume = Volume::existing(folder);
        if volume.ground == Ground::Covey {
            let done = run(covey().arg("format").arg(&volume.source).args(format), PATIENCE);
            assert!(done.status.success(), "covey format: {done:?}");
        }
        volume
    }

    /// The volume that was formatted in this folder earlier.
    pub fn existing(folder: &Path) -> Volume {
        let (source, mountpoint) = (folder.join("volume"), folder.join("mnt"));
        std::fs::create_dir_all(&mountpoint).unwrap();
        Volume { source, mountpoint, ground: ground(), _folder: None }
    }

    /// A volume in the daemon's memory, with its mountpoint in a scratch folder.
    pub fn in_memory() -> Volume {
        let folder = crate::scratch();
        let mut volume = Volume::existing(folder.path());
        volume.source = PathBuf::from("mem:");
        volume._folder = Some(folder);
        volume
    }

    /// Mounts it.
    pub fn mount(&self) -> Mounted {
        self.mount_with(&[])
    }

    /// Mounts it with options (each becomes `-o OPTION`).
    pub fn mount_with(&self, options: &[&str]) -> Mounted {
        self.try_mount(options).unwrap_or_else(|complaint| panic!("covey mount: {complaint}"))
    }

    /// Mounts it, or returns what the program printed instead.
    pub fn try_mount(&self, options: &[&str]) -> Result<Mounted, String> {
        let path = self.mountpoint.clone();
        if self.ground != Ground::Covey {
            return Ok(Mounted { path, daemon: None });
        }
        let log = self.mountpoint.with_extension("log");
        let mut command = covey();
        command.arg("mount").arg(&self.source).arg(&path);
        for option in options {
            command.args(["-o", option]);
        }
        // A neutral working directory: the daemon must not keep the test's folder or the mount busy.
        command.stdin(Stdio::null()).current_dir("/");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let mut daemon = command.spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        while !proc::is_fuse_mount(&path) {
            let ended = daemon.try_wait().unwrap();
            if ended.is_some() || Instant::now() > end {
                daemon.kill().ok();
                daemon.wait().ok();
                detach(&path);
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("{ended:?}: {said}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // A mount in the list may not answer yet, so wait for its first answer.
        let mounted = Mounted { path, daemon: Some(daemon) };
        std::fs::metadata(&mounted.path).map_err(|error| format!("{error} on {}", mounted.path.display()))?;
        Ok(mounted)
    }

    /// Starts a mount and kills the daemon after a while, in whatever state it is by then.
    pub fn mount_and_kill(&self, after: Duration) {
        if self.ground != Ground::Covey {
            return;
        }
        let mut command = covey();
        command.arg("mount").arg(&self.source).arg(&self.mountpoint);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut daemon = command.current_dir("/").spawn().unwrap();
        std::thread::sleep(after);
        daemon.kill().ok();
        daemon.wait().unwrap();
        detach(&self.mountpoint);
    }

    /// Mounts and unmounts, so that what a crash left is recovered, and checks the result.
    pub fn must_be_recoverable(&self) {
        self.mount().umount();
        self.must_be_clean();
    }

    /// The output of this volume's daemons so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.mountpoint.with_extension("log")).unwrap_or_default()
    }

    /// Runs `covey fsck`. The volume must not be mounted.
    pub fn fsck(&self) -> Option<Finished> {
        (self.ground == Ground::Covey)
            .then(|| covey_run(&["fsck".as_ref(), self.source.as_os_str(), "--json".as_ref()]))
    }

    /// Runs `covey fsck` and fails unless it finds nothing.
    pub fn must_be_clean(&self) {
        if let Some(found) = self.fsck() {
            assert!(
                found.status.success(),
                "covey fsck: {}\n{}\n{}\n{}",
                found.status,
                found.stdout,
                found.stderr,
                self.log()
            );
        }
    }

    /// Disk space of the volume, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        let source = if self.ground == Ground::Covey { &self.source } else { &self.mountpoint };
        crate::tree::disk_bytes(source)
    }

    /// Bytes of sealed blobs and their companion files, in an origin inside the volume's folder.
    pub fn blob_bytes(&self) -> u64 {
        crate::tree::disk_bytes(&self.source.join("blobs"))
    }
}

/// With `COVEY_KEEP` set, the volume of a failed test is kept for inspection.
impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking()
            && std::env::var_os("COVEY_KEEP").is_some()
            && let Some(folder) = self._folder.take()
        {
            eprintln!("kept: {}", folder.keep().display());
        }
    }
}

/// A mounted volume. When it is dropped, it is unmounted, and the daemon's end is awaited.
pub struct Mounted {
    path: PathBuf,
    daemon: Option<Child>,
}

impl Mounted {
    /// The root folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path below the root folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// The daemon's process id; none on a plain folder.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// Unmounts, and fails unless everything ended without an error.
    pub fn umount(mut self) {
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        let done = umount(&self.path);
        let ended = wait(&mut daemon, PATIENCE);
        if ended.is_none() {
            daemon.kill().ok();
            daemon.wait().ok();
        }
        detach(&self.path);
        assert!(done.status.success(), "covey umount: {done:?}");
        assert!(ended.is_some_and(|status| status.success()), "the daemon ended with {ended:?}");
    }

    /// Kills the daemon with SIGKILL and removes the dead mount.
    pub fn kill(mut self) {
        self.kill_daemon();
    }

    /// Kills the daemon but leaves the dead mount, until this is dropped.
    pub fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            detach(&self.path);
        }
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        if let Some(daemon) = &self.daemon {
            rustix::process::kill_process(rustix::process::Pid::from_child(daemon), signal).unwrap();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        let asked = covey().arg("umount").arg(&self.path).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let gone = asked
            .is_ok_and(|mut child| wait(&mut child, Duration::from_secs(20)).is_some_and(|s| s.success()));
        if !(gone && wait(&mut daemon, Duration::from_secs(20)).is_some()) {
            // Killing it ends the connection, so that no access to the mount can hang any more.
            daemon.kill().ok();
            daemon.wait().ok();
        }
        detach(&self.path);
    }
}

/// Runs `covey umount`, again for as long as the mount is busy. Another process may be reading all mounts for
/// a moment (as df does), and one that another thread has just forked has copies of all open files until it
/// executes its program.
pub fn umount(path: &Path) -> Finished {
    let end = Instant::now() + PATIENCE;
    loop {
        let done = run(covey().arg("umount").arg(path), PATIENCE);
        if !done.stderr.contains("is busy") || Instant::now() > end {
            return done;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Removes a mount even if it is dead or in use.
pub fn detach(path: &Path) {
    while proc::is_fuse_mount(path) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        if rustix::mount::unmount(path, flags).is_ok() {
            continue;
        }
        let helper = Command::new("fusermount3").args(["-u", "-z"]).arg(path).stderr(Stdio::null()).status();
        if !helper.is_ok_and(|status| status.success()) {
            return;
        }
    }
}
