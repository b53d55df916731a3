//! Mounting and unmounting: mount(2) as root, `fusermount3` for all other users.
//!
//! `default_permissions` is always set. Without it, a mount that also opens files without asking the daemon
//! lets any user read any file. A mount is identified by its device number and, from Linux 6.8 on, by the
//! number that no other mount ever gets, so that nothing else is unmounted by mistake.

mod elsewhere;
mod helper;
mod life;
mod outstanding;
mod table;

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Deadline, lock};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags as Bits, UnmountFlags};

use crate::channel::{DEVICE, Device};
pub use elsewhere::{Elsewhere, elsewhere};
pub use life::{ANSWER_WITHIN, Life, Room};
pub use outstanding::{abort, hand_over};

/// How long a forced unmount waits until written data has reached the daemon.
const HAND_OVER: Duration = Duration::from_secs(10);

pub use table::{Mounted, all, find};

/// The filesystem type shown in /proc/self/mounts.
pub const FS_TYPE: &str = "fuse.covey";

/// The flags of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// The source that `df` and /proc/self/mounts show: the volume.
    pub source: String,
    /// Refuse all changes.
    pub read_only: bool,
    /// Allow access by other users. `None`: yes for root, no for other users (who need `user_allow_other` in
    /// /etc/fuse.conf).
    pub allow_other: Option<bool>,
    /// Ignore set-user-id bits. Always set for a user other than root.
    pub nosuid: bool,
    /// Ignore device nodes. Always set for a user other than root.
    pub nodev: bool,
    /// Allow no execution of programs.
    pub noexec: bool,
}

/// Why mounting failed. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// No /dev/fuse.
    #[error(
        "there is no {DEVICE}: load the kernel's module with `modprobe fuse`; in a container pass `--device {DEVICE}`"
    )]
    NoDevice,
    /// The user of this process may not open /dev/fuse or may not mount.
    #[error(
        "not allowed to mount ({0}): run as root, or install `fusermount3` (package fuse3); in a container add CAP_SYS_ADMIN"
    )]
    NotAllowed(io::Error),
    /// The mountpoint does not exist.
    #[error("mountpoint {0} does not exist: create it with `mkdir -p {0}`")]
    NoMountpoint(PathBuf),
    /// The mountpoint is not a directory.
    #[error("mountpoint {0} is not a directory: choose a directory")]
    NotADirectory(PathBuf),
    /// A dead mount, whose daemon is gone, is in the way.
    #[error(
        "a dead mount is at {0} (its daemon is gone): clear it with `covey umount {0}`, then mount again"
    )]
    DeadMount(PathBuf),
    /// A live mount is in the way.
    #[error(
        "{path} is already the mountpoint of {source_name}: unmount it with `covey umount {path}`, or choose another directory"
    )]
    InUse {
        /// The mountpoint.
        path: PathBuf,
        /// What is mounted there.
        source_name: String,
    },
    /// The kernel is too old.
    #[error("this kernel's FUSE (protocol 7.{0}) is too old: Linux 5.17 or newer is needed")]
    OldKernel(u32),
    /// `fusermount3` refused.
    #[error("fusermount3 could not mount: {0}")]
    Helper(String),
    /// io_uring was demanded and is not available.
    #[error("FUSE over io_uring: {0}")]
    NoUring(String),
    /// The filesystem failed to return the attributes of its root.
    #[error("the volume's root directory cannot be read ({0}): check it with `covey fsck`")]
    Root(fs::Errno),
    /// Any other error.
    #[error("{doing}: {source}")]
    Io {
        /// The step that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl MountError {
    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> MountError {
        move |source| MountError::Io { doing, source }
    }
}

/// How hard to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Refuse while a program uses it.
    Polite,
    /// Detach it now. It ends when the last program has closed its files.
    Lazy,
    /// Write back the kernel's dirty pages, then end it even if programs use it.
    Force,
}

/// Why unmounting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnmountError {
    /// A program has a file or its working directory there.
    #[error("{0} is in use: see who with `fuser -vm {0}`, or detach it with `covey umount --lazy {0}`")]
    Busy(PathBuf),
    /// No FUSE filesystem is mounted there.
    #[error("nothing is mounted at {0}")]
    NotMounted(PathBuf),
    /// Any other error.
    #[error("unmounting {path}: {source}")]
    Io {
        /// The mountpoint.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// An existing mount.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    dev: u64,
    /// The mount's number. `None`: the kernel has none that is given once only.
    number: Option<u64>,
    by_helper: bool,
    /// Whether the mount is gone. The kernel gives its device number to the next mount, which may be at the
    /// same path.
    is_over: AtomicBool,
}

impl Mount {
    /// The mountpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the mount's device number, as `st_dev` shows it.
    pub fn dev(&self) -> u64 {
        self.dev
    }

    /// Whether it is still at its mountpoint, and not covered by another mount.
    pub fn is_there(&self) -> bool {
        // Bound over itself, it has another number there.
        let is_it = |(dev, number): (u64, Option<u64>)| {
            dev == self.dev && (number == self.number || table::count(&self.path, dev) > 1)
        };
        !self.is_over.load(Ordering::Acquire) && numbers_of(&self.path).is_ok_and(is_it)
    }

    /// Removes it if it is still there, without a daemon. From then on nothing is unmounted. Call it when no
    /// thread serves it any more. Returns whether it was there.
    pub(crate) fn end(&self) -> bool {
        // Without a number of its own, a mount that answers may be a later one with the same device number.
        let is_dead = |mounted: Mounted| mounted.life(Deadline::after(ANSWER_WITHIN)) == Life::Dead;
        let is_ours = || self.number.is_some() || find(&self.path).is_some_and(is_dead);
        let was_there = self.is_there() && is_ours();
        if was_there {
            let _ = self.unmount(Unmount::Lazy);
        }
        self.is_over.store(true, Ordering::Release);
        was_there
    }

    /// Unmounts it. If it is already gone, that is success.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] if `how` is polite and it is in use, or if another mount covers it. Otherwise
    /// the system's error.
    pub fn unmount(&self, how: Unmount) -> Result<(), UnmountError> {
        if !self.is_there() {
            // A later mount with the same device number covers nothing.
            let covered = !self.is_over.load(Ordering::Acquire)
                && table::count(&self.path, self.dev) > 0
                && dev_of(&self.path).is_ok_and(|dev| dev != self.dev);
            return if covered { Err(UnmountError::Busy(self.path.clone())) } else { Ok(()) };
        }
        match detach(&self.path, how, self.by_helper) {
            Err(UnmountError::NotMounted(_)) => Ok(()),
            other => other,
        }
    }

    /// Sets the kernel's read-ahead, in KiB.
    ///
    /// # Errors
    /// Only root may do this. Some containers hide the file.
    pub fn set_read_ahead(&self, kib: u32) -> io::Result<()> {
        let (major, minor) = (libc::major(self.dev), libc::minor(self.dev));
        std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string())
    }
}

/// Unmounts the FUSE filesystem at `path`, dead or alive, whichever user mounted it.
///
/// # Errors
/// [`UnmountError::NotMounted`] if there is none, [`UnmountError::Busy`] if `how` is polite and it is in use.
pub fn unmount(path: &Path, how: Unmount) -> Result<(), UnmountError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match find(&path) {
        // The helper does not say why it refuses, and a busy mount is another reason.
        Some(mounted) if mounted.is_fuse() && !is_ours(&mounted) => {
            Err(UnmountError::Io { path, source: io::Error::from_raw_os_error(libc::EPERM) })
        }
        Some(mounted) if mounted.is_fuse() => detach(&mounted.path, how, !is_root()),
        _ => Err(UnmountError::NotMounted(path)),
    }
}

/// Whether this process may unmount it.
fn is_ours(mounted: &Mounted) -> bool {
    is_root() || mounted.user.is_none_or(|user| user == rustix::process::geteuid().as_raw())
}

/// Whether this process may mount without the helper.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks a mountpoint and returns its absolute path.
pub(crate) fn check_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let shown = || path.to_owned();
    // Look the path up in the mount table first: access to a mount whose daemon does not answer would wait
    // for ever.
    if let Ok(plain) = std::path::absolute(path) {
        is_free(&plain)?;
    }
    let full = match path.canonicalize() {
        Ok(full) => full,
        Err(error) => {
            return Err(match error.raw_os_error() {
                Some(libc::ENOTCONN) => MountError::DeadMount(shown()),
                Some(libc::ENOENT) => MountError::NoMountpoint(shown()),
                Some(libc::ENOTDIR) => MountError::NotADirectory(shown()),
                _ => MountError::Io { doing: "looking at the mountpoint", source: error },
            });
        }
    };
    // Check this before any access inside: the kernel may still hold the attributes of a dead mount.
    is_free(&full)?;
    match std::fs::metadata(&full) {
        Ok(found) if found.is_dir() => Ok(full),
        Ok(_) => Err(MountError::NotADirectory(full)),
        Err(error) => Err(MountError::Io { doing: "looking at the mountpoint", source: error }),
    }
}

/// Fails if a FUSE filesystem is mounted there, dead or alive.
fn is_free(path: &Path) -> Result<(), MountError> {
    match find(path) {
        // A mount whose daemon does not answer still occupies its place.
        Some(mounted) if mounted.is_fuse() => Err(match mounted.life(Deadline::after(ANSWER_WITHIN)) {
            Life::Dead => MountError::DeadMount(path.to_owned()),
            _ => MountError::InUse { path: path.to_owned(), source_name: mounted.source },
        }),
        _ => Ok(()),
    }
}

/// Mounts, and returns the connection to serve. `root_mode` is the mode of the root directory.
pub(crate) fn mount(path: &Path, flags: &MountFlags, root_mode: u32) -> Result<(Device, Mount), MountError> {
    if !Device::exists() {
        return Err(MountError::NoDevice);
    }
    let by_helper = !is_root();
    let device = if by_helper { helper::mount(path, flags)? } else { direct(path, flags, root_mode)? };
    let (dev, number) = match numbers_of(path) {
        Ok(numbers) => numbers,
        Err(error) => {
            let _ = detach(path, Unmount::Lazy, by_helper);
            return Err(MountError::Io { doing: "looking at the new mount", source: error });
        }
    };
    Ok((device, Mount { path: path.to_owned(), dev, number, by_helper, is_over: AtomicBool::new(false) }))
}

fn direct(path: &Path, flags: &MountFlags, root_mode: u32) -> Result<Device, MountError> {
    let denied = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => MountError::NotAllowed(error),
        Some(libc::ENODEV | libc::ENXIO | libc::ENOENT) => MountError::NoDevice,
        _ => MountError::Io { doing: "mounting", source: error },
    };
    let device = Device::open().map_err(denied)?;
    let mut options =
        format!("fd={},rootmode={root_mode:o},user_id=0,group_id=0,default_permissions", device.number());
    if flags.allow_other.unwrap_or(true) {
        options.push_str(",allow_other");
    }
    let bits = [
        (flags.read_only, Bits::RDONLY),
        (flags.nosuid, Bits::NOSUID),
        (flags.nodev, Bits::NODEV),
        (flags.noexec, Bits::NOEXEC),
    ];
    let bits: Bits = bits.into_iter().filter(|(set, _)| *set).map(|(_, bit)| bit).collect();
    let options = CString::new(options).map_err(|error| denied(error.into()))?;
    rustix::mount::mount(flags.source.as_str(), path, FS_TYPE, bits, &*options)
        .map_err(|error| denied(error.into()))?;
    Ok(device)
}

/// Unmounts by path.
fn detach(path: &Path, how: Unmount, by_helper: bool) -> Result<(), UnmountError> {
    if how == Unmount::Force {
        // The result is ignored, because a daemon that hangs is a reason to use force.
        outstanding::hand_over(path, HAND_OVER);
    }
    if by_helper {
        let busy = |done: &Result<(), UnmountError>| matches!(done, Err(UnmountError::Busy(_)));
        return lock::retry(lock::moment(), || helper::unmount(path, how), busy);
    }
    let flags = match how {
        Unmount::Polite => UnmountFlags::empty(),
        Unmount::Lazy => UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    lock::unmount(path, flags | UnmountFlags::NOFOLLOW).map_err(|error| match error {
        Errno::BUSY => UnmountError::Busy(path.to_owned()),
        Errno::INVAL | Errno::NOENT => UnmountError::NotMounted(path.to_owned()),
        _ => UnmountError::Io { path: path.to_owned(), source: error.into() },
    })
}

/// The device number of the filesystem at a path, without a request to that filesystem.
pub(crate) fn dev_of(path: &Path) -> io::Result<u64> {
    numbers_of(path).map(|(dev, _)| dev)
}

/// Returns the device number of the filesystem at a path, and the number of the mount if the kernel has
/// numbers that are given once only.
fn numbers_of(path: &Path) -> io::Result<(u64, Option<u64>)> {
    /// `STATX_MNT_ID_UNIQUE`, since Linux 6.8.
    const ONCE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, ONCE)?;
    let has_number = found.stx_mask & ONCE.bits() != 0;
    let number = has_number.then_some(found.stx_mnt_id);
    Ok((libc::makedev(found.stx_dev_major, found.stx_dev_minor), number))
}

#[cfg(test)]
mod tests;
