//! A file handle, by the system calls.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// As name_to_handle_at(2) fills it in.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    bytes: u32,
    kind: i32,
    room: [u8; 128],
}

impl Handle {
    /// The handle of what a path names. A symbolic link at its end is not followed.
    pub fn of(path: &Path) -> io::Result<Handle> {
        let mut handle = Handle { bytes: 128, kind: 0, room: [0; 128] };
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut mount = 0_i32;
        // SAFETY: the path ends with NUL, the handle has the size that it states, and both live through the
        // call.
        let done = unsafe {
            let handle = std::ptr::from_mut(&mut handle);
            libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), handle, &mut mount, 0)
        };
        if done == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
    }

    /// Opens what it leads to on the filesystem of a mountpoint.
    pub fn open(&self, mount: &Path, flags: i32) -> io::Result<File> {
        let root = File::open(mount)?;
        let mut handle = self.clone();
        // SAFETY: the handle has the size that it states and lives through the call; the descriptor is open.
        let fd = unsafe {
            let handle = std::ptr::from_mut(&mut handle);
            libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), handle, flags | libc::O_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(unsafe { File::from_raw_fd(fd as i32) })
    }
}
