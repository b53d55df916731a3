//! Opens files of the daemon's own mount by their handles, in a child ([`crate::apart`]).

use std::ffi::{CString, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;

use base::Ino;

use crate::apart::{Child, Parent};
use crate::mount::Mount;
use crate::pending_flush::ClearError;

/// A mount, in a form that a child can use.
#[derive(Clone)]
pub(crate) struct ThroughMount {
    path: CString,
    dev: u64,
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

impl ThroughMount {
    /// Notes where the mount is.
    ///
    /// # Errors
    /// Its path has a zero byte.
    pub(crate) fn new(mount: &Mount) -> io::Result<ThroughMount> {
        Ok(ThroughMount { path: CString::new(mount.path().as_os_str().as_bytes())?, dev: mount.dev() })
    }

    /// Opens a file, does `work` with its descriptor, and closes it. Nothing happens without the privilege to
    /// open by handle, or if the kernel does not hold the inode. A child may call it: it makes system calls
    /// only.
    pub(crate) fn with(&self, ino: Ino, work: impl FnOnce(c_int)) {
        let mut handle = Handle::of(ino);
        // SAFETY: all pointers are to values that live through the calls. The handle has the layout of a
        // file_handle with 12 bytes, as its length field says. `path` is NUL-terminated. stat is plain
        // numbers, for which all zero bytes are a value. Each descriptor is closed once. That of the root
        // stays open only briefly: a polite unmount fails as long as it is.
        unsafe {
            let root = libc::open(self.path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
            if root < 0 {
                return;
            }
            let mut found: libc::stat = std::mem::zeroed();
            let is_root = libc::fstat(root, &raw mut found) == 0 && found.st_dev == self.dev;
            let fd = match is_root {
                true => libc::open_by_handle_at(root, (&raw mut handle).cast(), FLAGS),
                false => -1,
            };
            libc::close(root);
            if fd >= 0 {
                work(fd);
                libc::close(fd);
            }
        }
    }

    /// Makes the kernel drop the pages of files, by opening them, and ask for their attributes. Returns when
    /// it has. If that is not possible, programs see a change by their next look at the attributes.
    pub(crate) fn look_again(&self, files: &[Ino]) {
        let look = |fd: c_int| {
            let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
            // SAFETY: the descriptor is open. statx is plain numbers, for which all zero bytes are a value,
            // and lives through the call. If the call fails, reads fail too, and programs see it there.
            unsafe {
                let mut seen: libc::statx = std::mem::zeroed();
                libc::statx(fd, c"".as_ptr(), flags, libc::STATX_BASIC_STATS, &raw mut seen)
            };
        };
        drop(Child::start(|_| files.iter().for_each(|ino| self.with(*ino, look))));
    }
}

impl ClearError for ThroughMount {
    fn clear(&self, ino: Ino) -> bool {
        /// An offset at which no file has pages. So the call waits for nothing, and only reads and clears the
        /// stored error.
        const BEYOND: i64 = 1 << 62;
        let clear = |fd: c_int, parent: &Parent| {
            // SAFETY: the descriptor is open. The call takes numbers only. Its failure with the stored error
            // is intended.
            unsafe { libc::sync_file_range(fd, BEYOND, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
            parent.answer(true);
        };
        Child::start(|parent| self.with(ino, |fd| clear(fd, parent))).is_ok_and(|child| child.answer())
    }
}
