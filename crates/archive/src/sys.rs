//! System calls for which the standard library has no safe form: operations relative to an open folder,
//! extended attributes, holes. Nothing here decides anything. Each function is one call with checked
//! arguments.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

pub mod metadata;
pub mod people;

/// How a folder is opened only to reach what is in it.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A name in an open folder: a single component, which cannot leave the folder.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    if meta::key::is_name(name.as_bytes()) { Ok(name) } else { Err(io::ErrorKind::InvalidFilename.into()) }
}

/// openat(2), close-on-exec.
pub fn open_at(dir: &impl AsFd, name: &OsStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::CLOEXEC;
    Ok(fs::openat(dir, one(name)?, flags, Mode::from_bits_retain(mode))?)
}

/// Opens a folder for a walk from it.
pub fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(fs::open(path, FOLDER, Mode::empty())?)
}

/// Opens the folder above an open one.
pub fn open_above(dir: &impl AsFd) -> io::Result<OwnedFd> {
    Ok(fs::openat(dir, "..", FOLDER, Mode::empty())?)
}

/// mkdirat(2)
pub fn mkdir_at(dir: &impl AsFd, name: &OsStr, mode: u32) -> io::Result<()> {
    Ok(fs::mkdirat(dir, one(name)?, Mode::from_bits_retain(mode))?)
}

/// symlinkat(2)
pub fn symlink_at(target: &OsStr, dir: &impl AsFd, name: &OsStr) -> io::Result<()> {
    Ok(fs::symlinkat(target, dir, one(name)?)?)
}

/// linkat(2), which does not follow a symbolic link.
pub fn link_at(from: &impl AsFd, from_name: &OsStr, to: &impl AsFd, to_name: &OsStr) -> io::Result<()> {
    Ok(fs::linkat(from, one(from_name)?, to, one(to_name)?, AtFlags::empty())?)
}

/// mknodat(2)
pub fn mknod_at(dir: &impl AsFd, name: &OsStr, mode: u32, device: u64) -> io::Result<()> {
    let (kind, mode) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode));
    Ok(fs::mknodat(dir, one(name)?, kind, mode, device)?)
}

/// Removes an empty folder with unlinkat(2).
pub fn rmdir_at(dir: &impl AsFd, name: &OsStr) -> io::Result<()> {
    Ok(fs::unlinkat(dir, one(name)?, AtFlags::REMOVEDIR)?)
}

/// Removes anything but a folder with unlinkat(2).
pub fn unlink_at(dir: &impl AsFd, name: &OsStr) -> io::Result<()> {
    Ok(fs::unlinkat(dir, one(name)?, AtFlags::empty())?)
}

/// Writes the kernel's dirty data of this file's filesystem to its storage, with syncfs(2).
pub fn syncfs(file: &impl AsFd) -> io::Result<()> {
    Ok(fs::syncfs(file)?)
}

/// All extended attributes of an open file. Empty on a filesystem without them.
pub fn xattrs(file: &impl AsFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = metadata::path(file);
    let names = match grow(|buf| fs::listxattr(&path, buf)) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        match grow(|buf| fs::getxattr(&path, name, buf)) {
            Ok(value) => found.push((name.to_vec(), value)),
            // Removed in the meantime, or not readable by this user.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Repeats a call with a larger buffer each time until the answer fits.
fn grow(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    // Most files have no attributes at all. An answer of 0 needs no buffer.
    let mut buf = vec![0; 256];
    loop {
        match call(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(Errno::RANGE) if buf.len() <= 1 << 20 => buf = vec![0; buf.len() * 16],
            Err(error) => return Err(error),
        }
    }
}

/// Reads this process's file mode mask from /proc, because umask(2) would change it for all threads.
pub fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // If the mask cannot be read, no other user gets access.
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}

/// The next range of data at or after `from`: its begin and its end. None if only a hole follows.
pub fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    match fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => Ok(Some((start, fs::seek(file, SeekFrom::Hole(start))?))),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
