//! Owner, permissions, times and attributes of an open file, also of one opened with `O_PATH`.
//!
//! No function here takes a name. Between two calls by name, a user who may change the folder could replace
//! the new file by a symbolic link, or by another name of someone else's file. A descriptor always means the
//! file that was opened.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use base::Timestamp;

use super::{c, check, grow};

/// The fields of fstat(2) that are needed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Device and inode. They identify the file whatever its name.
    pub id: (u64, u64),
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether the file has exactly one name.
    pub is_single: bool,
}

impl Seen {
    /// The `S_IFMT` bits.
    pub fn format(self) -> u32 {
        self.mode & libc::S_IFMT
    }
}

/// fstat(2)
pub fn look(file: &impl AsFd) -> io::Result<Seen> {
    let seen = rustix::fs::fstat(file)?;
    Ok(Seen {
        id: (seen.st_dev, seen.st_ino),
        mode: seen.st_mode,
        uid: seen.st_uid,
        gid: seen.st_gid,
        is_single: seen.st_nlink == 1,
    })
}

/// The kernel's path of the open file. It leads to the file itself, also to a symbolic link itself.
fn myself(file: &impl AsFd) -> io::Result<CString> {
    c(path(file).as_os_str())
}

/// The same path, for calls that take a path. It leads to the open file even after a rename.
pub fn path(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// Sets the owner and the group.
pub fn set_owner(file: &impl AsFd, uid: u32, gid: u32) -> io::Result<()> {
    let how = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the descriptor is open, and the text ends with NUL.
    check(unsafe { libc::fchownat(file.as_fd().as_raw_fd(), c"".as_ptr(), uid, gid, how) })
}

/// Sets the permissions. Not for a symbolic link, which has none.
pub fn set_mode(file: &impl AsFd, mode: u32) -> io::Result<()> {
    let path = myself(file)?;
    // fchmod(2) refuses a descriptor that was opened with O_PATH. SAFETY: `path` ends with NUL.
    check(unsafe { libc::chmod(path.as_ptr(), mode & 0o7777) })
}

/// Sets the access and the modification time.
pub fn set_times(file: &impl AsFd, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
    let timespec =
        |time: Timestamp| libc::timespec { tv_sec: time.seconds(), tv_nsec: i64::from(time.nanos()) };
    let times = [timespec(atime), timespec(mtime)];
    let (file, how) = (file.as_fd().as_raw_fd(), libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: the descriptor is open, the text ends with NUL, and `times` has the two entries that the call
    // reads.
    check(unsafe { libc::utimensat(file, c"".as_ptr(), times.as_ptr(), how) })
}

/// Sets an extended attribute.
pub fn set_xattr(file: &impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    let (path, name) = (myself(file)?, c(OsStr::from_bytes(name))?);
    // SAFETY: both texts end with NUL, and `value` is readable for the given length.
    check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) })
}

/// Removes an extended attribute. A missing attribute is no error.
pub fn remove_xattr(file: &impl AsFd, name: &[u8]) -> io::Result<()> {
    let (path, name) = (myself(file)?, c(OsStr::from_bytes(name))?);
    // SAFETY: both texts end with NUL.
    match check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }) {
        Err(error) if is_without(&error) => Ok(()),
        other => other,
    }
}

/// An extended attribute. None if it does not exist or the filesystem has no attributes.
pub fn xattr(file: &impl AsFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let (path, name) = (myself(file)?, c(OsStr::from_bytes(name))?);
    let value = grow(|buf| {
        // SAFETY: both texts end with NUL. `buf` is writable for its length, and the call gets that length.
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
    });
    match value {
        Err(error) if is_without(&error) => Ok(None),
        other => other.map(Some),
    }
}

fn is_without(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP))
}
