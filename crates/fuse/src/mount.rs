//! Mounting and unmounting: mount(2) as root, `fusermount3` for everyone else.
//!
//! `default_permissions` is always given: a mount without it that also opens files without asking us lets any user
//! read any file. A mount is recognised by its device number, so that nothing else is ever unmounted by mistake.

mod helper;
mod outstanding;
mod table;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::channel::{DEVICE, Device};
pub use outstanding::hand_over;

/// How long a forced unmount waits for what programs wrote.
const HAND_OVER: Duration = Duration::from_secs(10);

pub use table::{Mounted, all, find};

/// The filesystem type shown in /proc/self/mounts.
pub const FS_TYPE: &str = "fuse.covey";

/// How the kernel is to mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// What `df` and /proc/self/mounts show as the source: the volume.
    pub source: String,
    /// Refuse all changes.
    pub read_only: bool,
    /// Let other users in; `None`: yes for root, no for others (who need `user_allow_other` in /etc/fuse.conf).
    pub allow_other: Option<bool>,
    /// Ignore set-user-id bits. Always so for a user other than root.
    pub nosuid: bool,
    /// Ignore device nodes. Always so for a user other than root.
    pub nodev: bool,
    /// Let nothing be executed.
    pub noexec: bool,
}

/// Why a mount did not come about. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// No /dev/fuse.
    #[error(
        "there is no {DEVICE}: load the kernel's module with `modprobe fuse`; in a container pass `--device {DEVICE}`"
    )]
    NoDevice,
    /// /dev/fuse may not be opened, or mounting is not allowed.
    #[error(
        "not allowed to mount ({0}): run as root, or install `fusermount3` (package fuse3); in a container add CAP_SYS_ADMIN"
    )]
    NotAllowed(io::Error),
    /// The mountpoint is not there.
    #[error("mountpoint {0} does not exist: create it with `mkdir -p {0}`")]
    NoMountpoint(PathBuf),
    /// The mountpoint is not a directory.
    #[error("mountpoint {0} is not a directory: choose a directory")]
    NotADirectory(PathBuf),
    /// A mount whose daemon has died is in the way.
    #[error(
        "a dead mount is at {0} (its daemon is gone): clear it with `covey umount {0}`, then mount again"
    )]
    DeadMount(PathBuf),
    /// A living mount is in the way.
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
    /// io_uring was demanded and cannot be had.
    #[error("FUSE over io_uring: {0}")]
    NoUring(String),
    /// The filesystem itself could not say what its root is.
    #[error("the volume's root directory cannot be read ({0}): check it with `covey fsck`")]
    Root(fs::Errno),
    /// Something else.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
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
    /// Take it out of sight now; it ends when the last program lets go.
    Lazy,
    /// Hand over what is still in the kernel's pages, then end it under the feet of whoever uses it.
    Force,
}

/// Why an unmount did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnmountError {
    /// A program has a file or its working directory there.
    #[error("{0} is in use: see who with `fuser -vm {0}`, or detach it with `covey umount --lazy {0}`")]
    Busy(PathBuf),
    /// Nothing of ours is mounted there.
    #[error("nothing is mounted at {0}")]
    NotMounted(PathBuf),
    /// Something else.
    #[error("unmounting {path}: {source}")]
    Io {
        /// The mountpoint.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A mount that is there.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    dev: u64,
    by_helper: bool,
}

impl Mount {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its device number, as `st_dev` shows it.
    pub fn dev(&self) -> u64 {
        self.dev
    }

    /// Whether it is still at its place (and not covered by another).
    pub fn is_there(&self) -> bool {
        dev_of(&self.path).is_ok_and(|dev| dev == self.dev)
    }

    /// Unmounts it. Not being there any more is success.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] when polite and in use, or when another mount covers it; or what the system said.
    pub fn unmount(&self, how: Unmount) -> Result<(), UnmountError> {
        if !self.is_there() {
            let covered = table::holds(&self.path, self.dev);
            return if covered { Err(UnmountError::Busy(self.path.clone())) } else { Ok(()) };
        }
        match detach(&self.path, how, self.by_helper) {
            Err(UnmountError::NotMounted(_)) => Ok(()),
            other => other,
        }
    }

    /// Sets how far the kernel reads ahead, in KiB.
    ///
    /// # Errors
    /// Only root may; some containers hide the file.
    pub fn set_read_ahead(&self, kib: u32) -> io::Result<()> {
        let (major, minor) = (libc::major(self.dev), libc::minor(self.dev));
        std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string())
    }
}

/// Unmounts whatever FUSE filesystem is at `path`, dead or alive, whoever mounted it.
///
/// # Errors
/// [`UnmountError::NotMounted`] when none is, [`UnmountError::Busy`] when polite and in use.
pub fn unmount(path: &Path, how: Unmount) -> Result<(), UnmountError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match find(&path) {
        Some(mounted) if mounted.is_fuse() => detach(&mounted.path, how, !is_root()),
        _ => Err(UnmountError::NotMounted(path)),
    }
}

/// Whether this process may mount by itself.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Checks a mountpoint and gives its absolute form.
pub(crate) fn check_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let shown = || path.to_owned();
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
    // Before anything that looks inside: a dead mount's attributes may still be in the kernel's memory.
    match find(&full) {
        Some(mounted) if mounted.is_fuse() && !mounted.answers() => return Err(MountError::DeadMount(full)),
        Some(mounted) if mounted.is_fuse() => {
            return Err(MountError::InUse { path: full, source_name: mounted.source });
        }
        _ => {}
    }
    match std::fs::metadata(&full) {
        Ok(found) if found.is_dir() => Ok(full),
        Ok(_) => Err(MountError::NotADirectory(full)),
        Err(error) => Err(MountError::Io { doing: "looking at the mountpoint", source: error }),
    }
}

/// Mounts, and gives the connection to serve. `root_mode` is the mode of the root directory.
pub(crate) fn mount(path: &Path, flags: &MountFlags, root_mode: u32) -> Result<(Device, Mount), MountError> {
    if !Device::exists() {
        return Err(MountError::NoDevice);
    }
    let by_helper = !is_root();
    let device = if by_helper { helper::mount(path, flags)? } else { direct(path, flags, root_mode)? };
    let dev = match dev_of(path) {
        Ok(dev) => dev,
        Err(error) => {
            let _ = detach(path, Unmount::Lazy, by_helper);
            return Err(MountError::Io { doing: "looking at the new mount", source: error });
        }
    };
    Ok((device, Mount { path: path.to_owned(), dev, by_helper }))
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
        (flags.read_only, libc::MS_RDONLY),
        (flags.nosuid, libc::MS_NOSUID),
        (flags.nodev, libc::MS_NODEV),
        (flags.noexec, libc::MS_NOEXEC),
    ];
    let bits = bits.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
    let source = c_string(flags.source.as_bytes())?;
    let target = c_string(path.as_os_str().as_bytes())?;
    let kind = c_string(FS_TYPE.as_bytes())?;
    let options = c_string(options.as_bytes())?;
    // SAFETY: all four are NUL-terminated strings that live until the call returns.
    let done = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), bits, options.as_ptr().cast())
    };
    if done < 0 { Err(denied(io::Error::last_os_error())) } else { Ok(device) }
}

/// Takes a mount away by its path.
fn detach(path: &Path, how: Unmount, by_helper: bool) -> Result<(), UnmountError> {
    if how == Unmount::Force {
        // A daemon that hangs is a reason to use force.
        outstanding::hand_over(path, HAND_OVER);
    }
    if by_helper {
        return helper::unmount(path, how);
    }
    let flags = match how {
        Unmount::Polite => 0,
        Unmount::Lazy => libc::MNT_DETACH,
        Unmount::Force => libc::MNT_DETACH | libc::MNT_FORCE,
    } | libc::UMOUNT_NOFOLLOW;
    let failed = |source: io::Error| UnmountError::Io { path: path.to_owned(), source };
    let target = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
    // SAFETY: `target` is a NUL-terminated string that lives until the call returns.
    if unsafe { libc::umount2(target.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EBUSY) => UnmountError::Busy(path.to_owned()),
        Some(libc::EINVAL | libc::ENOENT) => UnmountError::NotMounted(path.to_owned()),
        _ => failed(error),
    })
}

/// The device number of the filesystem at a path, without asking that filesystem anything.
pub(crate) fn dev_of(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: statx is plain numbers, for which all zero bytes are a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a NUL-terminated string, and `found` is room for one statx.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, 0, &raw mut found) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(libc::makedev(found.stx_dev_major, found.stx_dev_minor))
    }
}

fn c_string(bytes: &[u8]) -> Result<CString, MountError> {
    CString::new(bytes).map_err(|error| MountError::Io { doing: "mounting", source: error.into() })
}

#[cfg(test)]
mod tests;
