//! A filesystem that does nothing: the lower bound for every measurement of the transport.
//!
//! The root holds [`FILES`] files of [`FILE_SIZE`] zero bytes, named `0`, `1`, and so on. Files can be
//! created, removed and written to. Their data and their names are dropped (the kernel remembers the names
//! while it must). No method takes a lock.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Ino, Timestamp};
use fs::api::*;
use fs::{Errno, api};

/// How many files there are at the start.
pub const FILES: u64 = 1000;
/// The size of each, in bytes.
pub const FILE_SIZE: u64 = 64 << 10;
/// Inode number of the file `0`.
const FIRST: u64 = 2;

/// See the [module](self).
#[derive(Debug)]
pub struct Null {
    next: AtomicU64,
}

impl Null {
    /// A new instance.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Null {
        Null { next: AtomicU64::new(FIRST + FILES) }
    }

    fn attr(ino: Ino) -> Attr {
        let dir = ino == Ino::ROOT;
        let size = if (FIRST..FIRST + FILES).contains(&ino.0) { FILE_SIZE } else { 0 };
        Attr {
            ino,
            kind: if dir { FileKind::Dir } else { FileKind::File },
            perm: if dir { 0o755 } else { 0o644 },
            nlink: if dir { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: size / 512,
            atime: Timestamp(0),
            mtime: Timestamp(0),
            ctime: Timestamp(0),
            btime: Timestamp(0),
            version: 0,
        }
    }

    fn entry(ino: Ino) -> Entry {
        Entry::of(Null::attr(ino))
    }

    fn file(name: &[u8]) -> Option<u64> {
        let number: u64 = std::str::from_utf8(name).ok()?.parse().ok()?;
        (number < FILES).then_some(FIRST + number)
    }

    fn list(position: u64, mut each: impl FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>) {
        for number in position..FILES {
            let ino = Ino(FIRST + number);
            let name = number.to_string();
            let line = DirEntry { name: name.as_bytes(), ino, kind: FileKind::File, next: number + 1 };
            if each(line, Some(&Null::entry(ino))).is_break() {
                return;
            }
        }
    }
}

impl Filesystem for Null {
    fn coherence(&self) -> Coherence {
        Coherence::Exclusive
    }

    fn lookup(&self, _: Ino, name: &[u8]) -> api::Result<Entry> {
        Null::file(name).map(|ino| Null::entry(Ino(ino))).ok_or(Errno::ENOENT)
    }

    fn forget(&self, _: Ino, _: u64) {}

    fn getattr(&self, ino: Ino) -> api::Result<Attr> {
        Ok(Null::attr(ino))
    }

    fn setattr(&self, _: &Caller, ino: Ino, _: &SetAttr) -> api::Result<Attr> {
        Ok(Null::attr(ino))
    }

    fn readlink(&self, _: Ino) -> api::Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    fn mknod(&self, _: &Caller, _: Ino, _: &[u8], _: &NewNode) -> api::Result<Entry> {
        Ok(Null::entry(Ino(self.next.fetch_add(1, Ordering::Relaxed))))
    }

    fn mkdir(&self, _: &Caller, _: Ino, _: &[u8], _: u16, _: u16) -> api::Result<Entry> {
        Err(Errno::EPERM)
    }

    fn symlink(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8]) -> api::Result<Entry> {
        Err(Errno::EPERM)
    }

    fn link(&self, _: Ino, _: Ino, _: &[u8]) -> api::Result<Entry> {
        Err(Errno::EPERM)
    }

    fn unlink(&self, _: Ino, _: &[u8]) -> api::Result<api::Touched> {
        Ok(api::Touched::default())
    }

    fn rmdir(&self, _: Ino, _: &[u8]) -> api::Result<()> {
        Err(Errno::ENOTDIR)
    }

    fn rename(&self, _: Ino, _: &[u8], _: Ino, _: &[u8], _: RenameMode) -> api::Result<api::Touched> {
        Ok(api::Touched::default())
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> api::Result<usize> {
        let left = Null::attr(ino).size.saturating_sub(offset);
        Ok(buf.len().min(left as usize))
    }

    fn write(&self, _: Ino, _: u64, _: &[u8], _: Option<&Caller>, _: bool) -> api::Result<bool> {
        Ok(false)
    }

    fn allocate(&self, _: Ino, _: u64, _: u64, _: Allocate) -> api::Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> api::Result<u64> {
        let size = Null::attr(ino).size;
        match what {
            _ if offset >= size => Err(Errno::ENXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn copy_range(&self, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> api::Result<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    fn fsync(&self, _: Ino, _: bool) -> api::Result<()> {
        Ok(())
    }

    fn sync(&self) -> api::Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        _: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> api::Result<()> {
        Null::list(position, |line, _| each(line));
        Ok(())
    }

    fn readdir_plus(
        &self,
        _: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> api::Result<()> {
        Null::list(position, each);
        Ok(())
    }

    fn getxattr(&self, _: Ino, _: &[u8]) -> api::Result<Vec<u8>> {
        Err(Errno::ENODATA)
    }

    fn setxattr(&self, _: Ino, _: &[u8], _: &[u8], _: XattrMode, _: bool) -> api::Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn listxattr(&self, _: Ino) -> api::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn removexattr(&self, _: Ino, _: &[u8]) -> api::Result<()> {
        Err(Errno::ENODATA)
    }

    fn statfs(&self, _: Ino) -> api::Result<StatFs> {
        Ok(StatFs { total: 1 << 40, free: 1 << 40, available: 1 << 40, inodes: FILES, inodes_free: 1 << 30 })
    }
}
