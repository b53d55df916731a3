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
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
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
/// How files are opened by their handles.
const FLAGS: libc::c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;

impl Handle {
    fn of(ino: Ino) -> Handle {
        let number = [(ino.0 >> 32) as u32, ino.0 as u32, 0];
        Handle { bytes: size_of_val(&number) as u32, kind: INO64_GEN, number }
    }
}

/// Waits for the end of a child.
fn reap(child: libc::pid_t) {
    let is_interrupted = || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
    // SAFETY: the child is ours, and is reaped here only. No status is stored.
    let wait = || unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    while wait() < 0 && is_interrupted() {}
}

/// Opens files one after the other, asks for the attributes of each, and ends the process.
fn open_all(path: &CStr, dev: u64, handles: Vec<Handle>) -> ! {
    // Freed with the process: freeing is not async-signal-safe.
    let handles = handles.leak();
    // SAFETY: all pointers are to values that live through the call. The handles have the layout of a
    // file_handle with 12 bytes, as their length fields say. `path` is NUL-terminated. stat and statx are
    // plain numbers, for which all zero bytes are a value. _exit ends the child without running the parent's
    // exit handlers.
    unsafe {
        libc::close_range(0, libc::c_uint::MAX, 0);
        let root = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
        let mut found: libc::stat = std::mem::zeroed();
        if root >= 0 && libc::fstat(root, &raw mut found) == 0 && found.st_dev == dev {
            for handle in handles {
                let fd = libc::open_by_handle_at(root, std::ptr::from_mut(handle).cast(), FLAGS);
                if fd >= 0 {
                    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
                    let mut seen: libc::statx = std::mem::zeroed();
                    // If that fails, reads fail too, and programs see it there.
                    libc::statx(fd, c"".as_ptr(), flags, libc::STATX_BASIC_STATS, &raw mut seen);
                    libc::close(fd);
                }
            }
        }
        libc::_exit(0)
    }
}

impl ThroughMount {
    /// Makes the kernel drop the pages of files, by opening them, and ask for their attributes. Returns when
    /// it has. Nothing happens without the privilege to open by handle.
    ///
    /// A child process does it, without any descriptor of this one. Opening waits for pages that this daemon
    /// is about to fill, and nothing can interrupt that. A thread that waits so when the daemon is killed
    /// would never end, nor would the connection that it has a descriptor of: all programs on the mount would
    /// hang.
    pub(crate) fn look_again(&self, files: &[Ino]) {
        let Ok(path) = CString::new(self.0.path().as_os_str().as_bytes()) else { return };
        let handles: Vec<Handle> = files.iter().map(|ino| Handle::of(*ino)).collect();
        // SAFETY: the child makes a few system calls, all async-signal-safe, on memory of which it has a
        // copy.
        match unsafe { libc::fork() } {
            // Programs see the change by their next look at the attributes.
            -1 => {}
            0 => open_all(&path, self.0.dev(), handles),
            child => reap(child),
        }
    }

    fn open(&self, ino: Ino) -> io::Result<OwnedFd> {
        let root = self.root()?;
        let mut handle = Handle::of(ino);
        // SAFETY: `handle` has the layout of a file_handle with 12 bytes, as its length field says. `root` is
        // open.
        let fd = unsafe { libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), FLAGS) };
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
