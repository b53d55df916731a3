//! System calls for which the standard library has no safe form: operations relative to an open folder,
//! extended attributes, holes. Nothing here decides anything. Each function is one call with checked
//! arguments.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

pub mod metadata;
pub mod people;

/// A name in an open folder: a single component, which cannot leave the folder.
fn one(name: &OsStr) -> io::Result<CString> {
    if meta::key::is_name(name.as_bytes()) { c(name) } else { Err(io::ErrorKind::InvalidFilename.into()) }
}

/// Bytes as a C string. An error if they contain a NUL.
fn c(name: &OsStr) -> io::Result<CString> {
    Ok(CString::new(name.as_bytes())?)
}

fn check(status: i32) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// openat(2), close-on-exec.
pub fn open_at(dir: &impl AsFd, name: &OsStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let name = one(name)?;
    // SAFETY: the descriptor is open, and `name` ends with NUL. Nothing else owns the returned descriptor.
    let fd = unsafe { libc::openat(dir.as_fd().as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// mkdirat(2)
pub fn mkdir_at(dir: &impl AsFd, name: &OsStr, mode: u32) -> io::Result<()> {
    let name = one(name)?;
    // SAFETY: the descriptor is open, `name` ends with NUL.
    check(unsafe { libc::mkdirat(dir.as_fd().as_raw_fd(), name.as_ptr(), mode) })
}

/// symlinkat(2)
pub fn symlink_at(target: &OsStr, dir: &impl AsFd, name: &OsStr) -> io::Result<()> {
    let (target, name) = (c(target)?, one(name)?);
    // SAFETY: the descriptor is open, both texts end with NUL.
    check(unsafe { libc::symlinkat(target.as_ptr(), dir.as_fd().as_raw_fd(), name.as_ptr()) })
}

/// linkat(2), which does not follow a symbolic link.
pub fn link_at(from: &impl AsFd, from_name: &OsStr, to: &impl AsFd, to_name: &OsStr) -> io::Result<()> {
    let (from_name, to_name) = (one(from_name)?, one(to_name)?);
    let (from, to) = (from.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    // SAFETY: both descriptors are open, both names end with NUL.
    check(unsafe { libc::linkat(from, from_name.as_ptr(), to, to_name.as_ptr(), 0) })
}

/// mknodat(2)
pub fn mknod_at(dir: &impl AsFd, name: &OsStr, mode: u32, device: u64) -> io::Result<()> {
    let name = one(name)?;
    // SAFETY: the descriptor is open, `name` ends with NUL.
    check(unsafe { libc::mknodat(dir.as_fd().as_raw_fd(), name.as_ptr(), mode, device) })
}

/// Removes an empty folder with unlinkat(2).
pub fn rmdir_at(dir: &impl AsFd, name: &OsStr) -> io::Result<()> {
    let name = one(name)?;
    // SAFETY: the descriptor is open, `name` ends with NUL.
    check(unsafe { libc::unlinkat(dir.as_fd().as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) })
}

/// Removes anything but a folder with unlinkat(2).
pub fn unlink_at(dir: &impl AsFd, name: &OsStr) -> io::Result<()> {
    let name = one(name)?;
    // SAFETY: the descriptor is open, `name` ends with NUL.
    check(unsafe { libc::unlinkat(dir.as_fd().as_raw_fd(), name.as_ptr(), 0) })
}

/// Writes the kernel's dirty data of this file's filesystem to its storage, with syncfs(2).
pub fn syncfs(file: &impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::syncfs(file.as_fd().as_raw_fd()) })
}

/// All extended attributes of an open file. Empty on a filesystem without them.
pub fn xattrs(file: &impl AsFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = c(metadata::path(file).as_os_str())?;
    let list = grow(|buf| {
        // SAFETY: `path` ends with NUL. `buf` is writable for its length, and the call gets that length.
        unsafe { libc::listxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
    });
    let names = match list {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let text = CString::new(name)?;
        let value = grow(|buf| {
            // SAFETY: both texts end with NUL. `buf` is writable for its length, and the call gets that
            // length.
            unsafe { libc::getxattr(path.as_ptr(), text.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
        });
        match value {
            Ok(value) => found.push((name.to_vec(), value)),
            // Removed in the meantime, or not readable by this user.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EPERM | libc::EACCES)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Repeats a call with a larger buffer each time until the answer fits.
fn grow(call: impl Fn(&mut [u8]) -> isize) -> io::Result<Vec<u8>> {
    // Most files have no attributes at all. An answer of 0 needs no buffer.
    let mut buf = vec![0; 256];
    loop {
        let len = call(&mut buf);
        if len >= 0 {
            buf.truncate(len as usize);
            return Ok(buf);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || buf.len() > 1 << 20 {
            return Err(error);
        }
        buf = vec![0; buf.len() * 16];
    }
}

/// This process's file mode mask. Read from /proc, because umask(2) would change it for all threads.
pub fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // If the mask cannot be read, no other user gets access.
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}

/// The next range of data at or after `from`: its begin and its end. None if only a hole follows.
pub fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |at: u64, what: i32| {
        // SAFETY: the descriptor is open.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at as i64, what) };
        if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found as u64) }
    };
    match seek(from, libc::SEEK_DATA) {
        Ok(start) => Ok(Some((start, seek(start, libc::SEEK_HOLE)?))),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// This process's memory, in bytes.
pub struct Memory {
    /// Held now.
    pub now: u64,
    /// The most ever held.
    pub peak: u64,
}

impl Memory {
    /// Reads the kernel's figures.
    pub fn now() -> Memory {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
        };
        Memory { now: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

/// Returns memory to the system that was freed and lies unused in the C library's heap.
///
/// The library itself returns only memory at the end of a heap. Metadata is allocated and freed in small
/// pieces. After a tree is removed, its pages would stay in this process for good, below the few pieces that
/// are still in use.
#[derive(Default)]
pub struct Trimmer {
    /// Unused bytes at the last attempt that could not be returned, or that are used again since.
    stuck: usize,
}

impl Trimmer {
    /// At least this much must be unused before it is worth searching the heap.
    const WORTH: usize = 8 << 20;

    /// A trimmer that has not run yet.
    pub fn new() -> Trimmer {
        Trimmer::default()
    }

    /// Call it from time to time, from a thread on which nothing waits. Returns whether memory was returned.
    pub fn tick(&mut self) -> bool {
        blob::stock::tidy();
        let unused = unused_heap();
        self.stuck = self.stuck.min(unused);
        if unused - self.stuck < Self::WORTH {
            return false;
        }
        trim_heap();
        self.stuck = unused_heap();
        true
    }
}

/// Free bytes of the heap, including those whose pages were already returned.
#[cfg(target_env = "gnu")]
fn unused_heap() -> usize {
    // SAFETY: mallinfo2(3) takes nothing and locks the data that it reads.
    unsafe { libc::mallinfo2() }.fordblks
}

#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: malloc_trim(3) may be called at any time from any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn unused_heap() -> usize {
    0
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn freed_pieces_between_pieces_in_use_go_back() {
        let held = || Memory::now().now;
        let mut trimmer = Trimmer::new();
        trimmer.tick();
        let mut pieces: Vec<Vec<u8>> = (0..400_000).map(|_| vec![1; 200]).collect();
        let full = held();
        // Keep one in a thousand.
        pieces =
            pieces.into_iter().enumerate().filter(|(at, _)| at % 1000 == 0).map(|(_, piece)| piece).collect();
        assert!(trimmer.tick(), "80 MB were freed");
        assert!(held() + (40 << 20) < full, "{} of {full} are still held", held());
        assert_eq!(pieces.len(), 400);
    }
}
