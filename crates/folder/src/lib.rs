//! A plain folder of this machine as a [`Filesystem`].
//!
//! ```text
//!   inode number ─► Node: the inode's handle ─► a descriptor (O_PATH) ─► system calls on this machine
//! ```
//!
//! - [`nodes`]: what the kernel of the mount holds. The kernel names it by a number that no other inode ever
//!   gets. `pins`: the handle or the descriptor that leads to it.
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
//! Inode numbers are those of the filesystem below, except that the folder itself is number 1. Where the
//! filesystem gives no handles, each inode that a kernel holds takes a descriptor, and beyond the limit
//! of open files lookups fail with ENFILE.
//!
//! [`Filesystem`]: fs::api::Filesystem

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

mod access;
mod change;
mod identity;
mod locks;
pub mod nodes;
mod pins;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fs::Errno;
use fs::api::{Attr, Entry, FileKind, Positions, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};

use base::{Ino, Timestamp};
use nodes::{Node, Nodes};

/// The type of ext4 in statfs(2).
const EXT4: i64 = 0xef53;

/// See the [crate](self).
pub struct Folder {
    nodes: Nodes,
    /// The device of the folder, which tells its filesystem from others.
    device: (u32, u32),
    /// The inode number of the folder in its filesystem.
    top: u64,
    positions: Positions,
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
        // Others have small ones, or ones that only they understand.
        let is_ext4 = rustix::fs::fstatfs(&root).is_ok_and(|of| of.f_type == EXT4);
        let positions = if is_ext4 { Positions::OfNext } else { Positions::Plain };
        let (nodes, identity) = (Nodes::new(root), identity::Identity::current());
        Ok(Folder { nodes, device, top: found.stx_ino, positions, identity, locks })
    }

    /// What tells this folder from any other, also after a restart.
    pub fn identity(&self) -> String {
        format!("{}:{} {}", self.device.0, self.device.1, self.top)
    }

    /// How many descriptors guests use up together, one for each file that they know. None if files have
    /// handles: then there is no such bound.
    pub fn descriptors(&self) -> Option<u64> {
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        (!self.nodes.has_handles()).then_some(most.unwrap_or(u64::MAX))
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
        let (node, was_held) = self.nodes.hold(attr.ino, fd, attr.kind, attr.nlink > 0);
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
