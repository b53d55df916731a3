//! Owner, permissions, times and attributes of an open file, also of one opened with `O_PATH`.
//!
//! No function here takes a name. Between two calls by name, a user who may change the folder could replace
//! the new file by a symbolic link, or by another name of someone else's file. A descriptor always means the
//! file that was opened.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use base::Timestamp;
use rustix::fs::{self, AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::grow;

/// "The open file itself", for calls that take a folder and a name.
const ITSELF: AtFlags = AtFlags::EMPTY_PATH.union(AtFlags::SYMLINK_NOFOLLOW);

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

/// The kernel's path of the open file, for calls that take a path. It leads to the file itself, also to a
/// symbolic link itself, even after a rename.
pub fn path(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// Sets the owner and the group. An id of all ones leaves it unchanged.
pub fn set_owner(file: &impl AsFd, uid: u32, gid: u32) -> io::Result<()> {
    let uid = (uid != u32::MAX).then(|| Uid::from_raw(uid));
    let gid = (gid != u32::MAX).then(|| Gid::from_raw(gid));
    Ok(fs::chownat(file, "", uid, gid, ITSELF)?)
}

/// Sets the permissions. Not for a symbolic link, which has none.
pub fn set_mode(file: &impl AsFd, mode: u32) -> io::Result<()> {
    // fchmod(2) refuses a descriptor that was opened with O_PATH.
    Ok(fs::chmod(path(file), Mode::from_raw_mode(mode & 0o7777))?)
}

/// Sets the access and the modification time.
pub fn set_times(file: &impl AsFd, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
    let timespec = |time: Timestamp| Timespec { tv_sec: time.seconds(), tv_nsec: time.nanos().into() };
    let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
    Ok(fs::utimensat(file, "", &times, ITSELF)?)
}

/// Sets an extended attribute.
pub fn set_xattr(file: &impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(fs::setxattr(path(file), name, value, XattrFlags::empty())?)
}

/// Removes an extended attribute. A missing attribute is no error.
pub fn remove_xattr(file: &impl AsFd, name: &[u8]) -> io::Result<()> {
    match fs::removexattr(path(file), name) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        other => Ok(other?),
    }
}

/// An extended attribute. None if it does not exist or the filesystem has no attributes.
pub fn xattr(file: &impl AsFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let path = path(file);
    match grow(|buf| fs::getxattr(&path, name, buf)) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        other => Ok(Some(other?)),
    }
}
