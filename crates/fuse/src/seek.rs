//! Flushes a file's dirty pages before SEEK_DATA or SEEK_HOLE is answered.
//!
//! The kernel may hold written bytes that the filesystem has not seen (writeback cache, shared mappings). It
//! asks about data and holes all the same. So the daemon opens the file once more, by its handle on the
//! mount, and writes its dirty pages back with sync_file_range(2).
//!
//! **Why this cannot deadlock.** The program that seeks holds the inode's lock until it is answered. Opening
//! by handle, opening without OPEN, and writing pages back take no inode lock. Reader threads answer the
//! resulting WRITEs, and they never wait for this thread. Closing does take the lock in some kernels, so the
//! descriptor is closed only after the reply. Without the privilege to open by handle, a notification drops
//! the pages instead. It writes dirty pages back one by one, and it takes no inode lock either.

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use base::Ino;

use crate::channel::Sink;
use crate::dispatch::PushDirty;
use crate::mount::{Mount, dev_of};
use crate::notify;
use crate::pending_flush::ClearError;

/// Flushes dirty pages through a second descriptor on the mount itself.
pub struct ThroughMount(pub Arc<Mount>);

impl PushDirty for ThroughMount {
    fn push(&self, sink: &dyn Sink, ino: Ino) -> Box<dyn Any> {
        let pushed = self.open(ino).and_then(|file| {
            let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // SAFETY: the descriptor is open. The call takes numbers only.
            let done = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
            if done < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
        });
        match pushed {
            Ok(file) => Box::new(file),
            Err(_) => {
                // If the kernel does not hold the inode, there is nothing to flush.
                let _ = notify::inval_inode(sink, ino, 0, 0);
                Box::new(())
            }
        }
    }
}

impl ClearError for ThroughMount {
    fn clear(&self, ino: Ino) -> bool {
        /// An offset at which no file has pages. So the call waits for nothing, and only reads and clears the
        /// stored error.
        const BEYOND: i64 = 1 << 62;
        let Ok(file) = self.open(ino) else { return false };
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
        // SAFETY: the descriptor is open. The call takes numbers only. Its failure with the stored error is
        // intended.
        unsafe { libc::sync_file_range(file.as_raw_fd(), BEYOND, 1, flags) };
        true
    }
}

/// A file handle in FUSE's format: the inode number in two halves, and a generation.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    number: [u32; 3],
}

/// The kernel's type number for handles of this format.
const INO64_GEN: i32 = 0x81;

impl ThroughMount {
    /// Makes the kernel drop a file's pages, by opening it, and ask for its attributes. Nothing happens
    /// without the privilege to open by handle.
    pub(crate) fn look_again(&self, ino: Ino) {
        let Ok(file) = self.open(ino) else { return };
        let flags = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC;
        // If that fails, reads fail too, and programs see it there.
        let _ = rustix::fs::statx(&file, c"", flags, rustix::fs::StatxFlags::BASIC_STATS);
    }

    fn open(&self, ino: Ino) -> io::Result<OwnedFd> {
        let root = self.root()?;
        let number = [(ino.0 >> 32) as u32, ino.0 as u32, 0];
        let mut handle = Handle { bytes: size_of_val(&number) as u32, kind: INO64_GEN, number };
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: `handle` has the layout of a file_handle with 12 bytes, as its length field says. `root` is
        // open.
        let fd = unsafe { libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just created this descriptor, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The root of the mount. Hold it only briefly: a polite unmount fails as long as it is open.
    fn root(&self) -> io::Result<OwnedFd> {
        let path = self.0.path();
        let root = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
        if dev_of(path)? != self.0.dev() {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        Ok(root.into())
    }
}
