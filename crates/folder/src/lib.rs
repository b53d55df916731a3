//! A plain folder of this machine as a [`Filesystem`].
//!
//! ```text
//!   inode number ─► Node: a descriptor of the inode (O_PATH) ─► system calls on this machine's filesystem
//! ```
//!
//! - [`nodes`]: what the kernel of the mount holds. Every inode that it holds is pinned by a descriptor, so
//!   its number means the same file for as long. The kernel names it by a number that no other inode ever
//!   gets.
//! - `access`: the methods of the filesystem. `change`: those that create, remove and set. `identity`: a
//!   caller, as which something is created. `locks`: those on locks, which are this machine's.
//!
//! **Nothing outside the folder can be reached.** Names are single components, and openat2(2) resolves each
//! below the directory it is in, without following symbolic links and without crossing into another mount.
//!
//! **The mount's kernel checks permissions**, as with every filesystem here, and this process must be root.
//! What a caller creates is the caller's from the beginning, or is given to it by its descriptor, and never
//! by its name: another guest or a program of this machine may have put something else under that name.
//!
//! Inode numbers are those of the filesystem below, except that the folder itself is number 1. The
//! descriptors are bounded by the limit of open files: beyond it, lookups fail with ENFILE.
//!
//! [`Filesystem`]: fs::api::Filesystem

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

mod access;
mod change;
mod identity;
mod locks;
pub mod nodes;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fs::Errno;
use fs::api::{Attr, Entry, FileKind, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};

use base::{Ino, Timestamp};
use nodes::{Node, Nodes};

/// See the [crate](self).
pub struct Folder {
    nodes: Nodes,
    /// The device of the folder, which tells its filesystem from others.
    device: (u32, u32),
    /// The inode number of the folder in its filesystem.
    top: u64,
    identity: identity::Identity,
    locks: locks::Locks,
}

impl Folder {
    /// Opens a folder.
    ///
    /// # Errors
    /// The system's error, or `NotADirectory`.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
        let found = statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        // Every mode is said by the mount's kernel, which has its own umask.
        rustix::process::umask(Mode::empty());
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let locks = locks::Locks::default();
        let (nodes, identity) = (Nodes::new(root), identity::Identity::current());
        Ok(Folder { nodes, device, top: found.stx_ino, identity, locks })
    }

    /// What tells this folder from any other, also after a restart.
    pub fn identity(&self) -> String {
        format!("{}:{} {}", self.device.0, self.device.1, self.top)
    }

    fn ino(&self, number: u64) -> Ino {
        if number == self.top { Ino::ROOT } else { Ino(number) }
    }

    /// The attributes of an open inode.
    fn attr(&self, fd: &OwnedFd) -> Result<Attr> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = statx(fd, c"", AtFlags::EMPTY_PATH, wanted).map_err(errno)?;
        if (found.stx_dev_major, found.stx_dev_minor) != self.device {
            // Numbers of another filesystem could be the same.
            return Err(Errno(libc::EXDEV));
        }
        let time = |time: rustix::fs::StatxTimestamp| Timestamp::from_parts(time.tv_sec, time.tv_nsec);
        let mode = u32::from(found.stx_mode);
        Ok(Attr {
            ino: self.ino(found.stx_ino),
            kind: FileKind::from_mode(mode).ok_or(Errno::EIO)?,
            perm: (mode & 0o7777) as u16,
            nlink: found.stx_nlink,
            uid: found.stx_uid,
            gid: found.stx_gid,
            rdev: (found.stx_rdev_minor & 0xff)
                | (found.stx_rdev_major << 8)
                | ((found.stx_rdev_minor & !0xff) << 12),
            size: found.stx_size,
            blocks: found.stx_blocks,
            atime: time(found.stx_atime),
            mtime: time(found.stx_mtime),
            ctime: time(found.stx_ctime),
            btime: time(found.stx_btime),
            // The system alone sets this time.
            version: time(found.stx_ctime).as_nanos() as u64,
        })
    }

    /// Counts a reference to an open inode, and says what it is.
    fn found(&self, fd: OwnedFd) -> Result<Entry> {
        let attr = self.attr(&fd)?;
        let (node, was_held) = self.nodes.hold(attr.ino, fd, attr.kind);
        Ok(Entry { node, held: was_held && attr.kind == FileKind::Dir, ..Entry::of(attr) })
    }

    fn node(&self, node: Ino) -> Result<std::sync::Arc<Node>> {
        self.nodes.get(node).ok_or(Errno(libc::ESTALE))
    }
}

/// The error number of a system call.
fn errno(error: rustix::io::Errno) -> Errno {
    match error.raw_os_error() {
        libc::EMFILE => Errno(libc::ENFILE),
        number => Errno(number),
    }
}

/// The path under which this process can open an inode again by its descriptor.
fn path_of(fd: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens an inode for reading or writing.
fn reopen(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::openat(CWD, path_of(fd), flags | OFlags::CLOEXEC, Mode::empty()).map_err(errno)
}

#[cfg(test)]
mod tests;
