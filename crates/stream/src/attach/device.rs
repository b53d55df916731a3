//! The guest's kernel: /dev/fuse, mount(2) and umount(2), as root.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{MountFlags, UnmountFlags};

/// The FUSE device.
const DEVICE: &str = "/dev/fuse";
/// The filesystem type that /proc/self/mounts shows.
const FS_TYPE: &str = "fuse.covey";
/// The kernel's read-ahead, in KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// Why mounting failed. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// No /dev/fuse.
    #[error("there is no {DEVICE}: load the kernel's module with `modprobe fuse`")]
    NoDevice,
    /// Not root.
    #[error("not allowed to mount ({0}): run as root, or with CAP_SYS_ADMIN")]
    NotAllowed(io::Error),
    /// The mountpoint is missing or no directory.
    #[error("mountpoint {path}: {error}; name an existing folder")]
    Mountpoint {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Something of this type is mounted there.
    #[error("{0} is already the mountpoint of a FUSE filesystem: unmount it with `umount {0}`")]
    InUse(PathBuf),
    /// A mount whose program was killed is there.
    #[error("the mount at {0} is dead: take it away with `umount {0}`")]
    Dead(PathBuf),
    /// The kernel is too old, or the negotiation failed.
    #[error("the kernel and the server do not agree on FUSE ({0}): Linux 5.17 or newer is needed")]
    Init(io::Error),
    /// Any other error.
    #[error("mounting: {0}")]
    Io(io::Error),
}

/// What came from the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing; call again.
    Nothing,
    /// The mount is gone.
    Gone,
}

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Refuse all changes.
    pub read_only: bool,
    /// Ignore set-user-id bits.
    pub nosuid: bool,
    /// Ignore device nodes.
    pub nodev: bool,
    /// Allow no execution of programs.
    pub noexec: bool,
}

/// A descriptor of /dev/fuse.
#[derive(Debug)]
pub struct Device(File);

impl Device {
    /// One that is no device.
    #[cfg(test)]
    pub fn of(file: File) -> Device {
        Device(file)
    }

    fn open() -> io::Result<Device> {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE).map(Device)
    }

    /// A second descriptor of the same connection, for another thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn cloned(&self) -> io::Result<Device> {
        // The ioctl FUSE_DEV_IOC_CLONE: _IOR(229, 0, u32)
        const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
        let other = Device::open()?;
        let number = self.0.as_raw_fd() as u32;
        // SAFETY: CLONE reads one u32, which `number` is, and both descriptors are open.
        let done = unsafe { libc::ioctl(other.0.as_raw_fd(), CLONE, &raw const number) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(other) }
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// The system's error.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<Received> {
        match (&self.0).read(room) {
            Ok(0) => Ok(Received::Gone),
            Ok(len) => Ok(Received::Request(len)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => Ok(Received::Nothing),
                Some(libc::ENODEV | libc::ECONNABORTED) => Ok(Received::Gone),
                _ => Err(error),
            },
        }
    }

    /// Gives the kernel a reply or a notification, whole.
    ///
    /// # Errors
    /// `ENOENT` if it does not want it, otherwise the system's error.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        (&self.0).write(message).map(drop)
    }
}

/// Checks a mountpoint and returns its absolute path.
///
/// # Errors
/// It is missing, no directory, or in use.
pub fn check(path: &Path) -> Result<PathBuf, MountError> {
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => MountError::Dead(path.to_owned()),
        _ => MountError::Mountpoint { path: path.to_owned(), error },
    };
    let full = path.canonicalize().map_err(failed)?;
    if !full.metadata().map_err(failed)?.is_dir() {
        return Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    let table = std::fs::read("/proc/self/mounts").unwrap_or_default();
    if is_in(&table, &full) { Err(MountError::InUse(full)) } else { Ok(full) }
}

/// Whether a filesystem of this type is mounted at a path. The table has `\\040` for a space, and so on.
fn is_in(table: &[u8], path: &Path) -> bool {
    let escaped: Vec<u8> = path
        .as_os_str()
        .as_bytes()
        .iter()
        .flat_map(|byte| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            _ => vec![*byte],
        })
        .collect();
    table.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(1);
        words.next() == Some(&*escaped) && words.next() == Some(FS_TYPE.as_bytes())
    })
}

/// Mounts. `path` comes from [`check`].
///
/// # Errors
/// [`MountError`].
pub fn mount(path: &Path, source: &str, flags: &Flags, root_mode: u32) -> Result<Device, MountError> {
    let denied = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => MountError::NotAllowed(error),
        Some(libc::ENODEV | libc::ENXIO | libc::ENOENT) => MountError::NoDevice,
        _ => MountError::Io(error),
    };
    let device = Device::open().map_err(denied)?;
    let number = device.0.as_raw_fd();
    let options =
        format!("fd={number},rootmode={root_mode:o},user_id=0,group_id=0,default_permissions,allow_other");
    let bits = [
        (flags.read_only, MountFlags::RDONLY),
        (flags.nosuid, MountFlags::NOSUID),
        (flags.nodev, MountFlags::NODEV),
        (flags.noexec, MountFlags::NOEXEC),
    ];
    let bits: MountFlags = bits.into_iter().filter(|(set, _)| *set).map(|(_, bit)| bit).collect();
    let options = CString::new(options).map_err(|error| denied(error.into()))?;
    rustix::mount::mount(source, path, FS_TYPE, bits, &*options).map_err(|error| denied(error.into()))?;
    Ok(device)
}

/// Sets the kernel's read-ahead. A container may hide the file, and then the kernel's own value stays.
pub fn set_read_ahead(path: &Path) {
    // Without a request to the mount itself: this process serves it, and could not be killed while it waits.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    if let Ok(found) = statx(CWD, path, flags, StatxFlags::empty()) {
        let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
        let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let _ = std::fs::write(file, READ_AHEAD_KIB.to_string());
    }
}

/// Unmounts. `lazy`: detach it although programs use it.
///
/// # Errors
/// The system's error: `EBUSY` while a program uses it, unless `lazy`.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    let how = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    base::lock::unmount(path, how | UnmountFlags::NOFOLLOW).map_err(io::Error::from)
}

/// Whether the caller of a request is being killed or gone, as /proc shows it. A caller that cannot be seen
/// counts as gone: nothing is known of it, and its request must not hold it.
pub fn is_being_killed(pid: u32) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    if pid == 0 {
        return true;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
    let pending = |name: &str| u64::from_str_radix(field(name), 16).unwrap_or(0);
    matches!(field("State:").chars().next(), Some('Z' | 'X'))
        || (pending("SigPnd:") | pending("ShdPnd:")) & SIGKILL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second mount at a path with a space in it hid the first one.
    #[test]
    fn regression_a_mountpoint_with_a_space_is_found_in_the_table() {
        let table = b"a /m\\040b\\134c fuse.covey rw 0 0\nb /m ext4 rw 0 0\nc /\xff fuse.covey rw 0 0\n";
        for (path, there) in [(&b"/m b\\c"[..], true), (b"/m", false), (b"/\xff", true), (b"/m b", false)] {
            assert_eq!(is_in(table, Path::new(std::ffi::OsStr::from_bytes(path))), there, "{path:?}");
        }
    }
}
