//! A corpus in memory, served as a frozen filesystem.
//!
//! All bytes lie in one anonymous mapping, file after file. They are made before the mount begins, because a
//! name is the hash of the bytes. The root holds every file. File `index` is inode `index + 2`. Nothing ever
//! changes, so nothing takes a lock. Every time is the start of 1970, the same on every machine.

use std::io;
use std::ops::ControlFlow;

use base::{Ino, Timestamp};
use fs::api::{
    Allocate, Attr, Caller, Coherence, DirEntry, Entry, FileKind, Filesystem, NewNode, RenameMode, Seek,
    SetAttr, StatFs, XattrMode,
};
use fs::{Errno, api};
use memmap2::{Advice, Mmap, MmapMut};
use parking_lot::Mutex;

use crate::{Spec, content};

/// After this many bytes `stop` is called.
const CHECK_EVERY: u64 = 256 << 10;
/// Inode number of file 0.
const FIRST: u64 = 2;
/// Listing position of file 0: `.` and `..` come before.
const FIRST_POSITION: u64 = 2;
/// Memory for a file besides its data: its name, and its place in the order of names.
const OVERHEAD: u64 = size_of::<[u8; 32]>() as u64 + size_of::<u32>() as u64;

/// A corpus, ready to be mounted.
pub struct Corpus {
    spec: Spec,
    owner: (u32, u32),
    /// The names by index.
    names: Vec<[u8; 32]>,
    /// Indices in the order of names.
    order: Vec<u32>,
    map: Mmap,
}

/// Why a corpus could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The corpus does not fit in memory.
    #[error("it takes {needed} bytes of memory and {available} are available")]
    NoRoom {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that it may use.
        available: u64,
    },
    /// The system refused the memory.
    #[error("the system does not give the memory: {0}")]
    Refused(#[from] io::Error),
    /// Two files have the same bytes.
    #[error("two of its files have the same bytes, and so one name: use another seed, or a larger size")]
    Same,
    /// The caller stopped it.
    #[error("it was stopped")]
    Stopped,
}

impl Corpus {
    /// Derives all files, on as many threads as there are cores: about a second per GiB. `owner` is the user
    /// and group of the files. `available` is the number of bytes of memory that may be used. `stop` is
    /// called some thousand times per GiB; if it returns true, the work ends.
    ///
    /// # Errors
    /// See [`MakeError`].
    pub fn make(
        spec: Spec,
        owner: (u32, u32),
        available: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Corpus, MakeError> {
        let needed = spec.bytes().saturating_add(spec.count * OVERHEAD);
        if needed > available {
            return Err(MakeError::NoRoom { needed, available });
        }
        let mut map = MmapMut::map_anon(spec.bytes() as usize)?;
        // Every byte will be written, so large pages waste nothing. Kernels without them refuse the advice.
        let _ = map.advise(Advice::HugePage);
        let names = derive_all(&spec, &mut map, stop)?;
        let mut order: Vec<u32> = (0..spec.count as u32).collect();
        order.sort_unstable_by_key(|index| names[*index as usize]);
        let same = |pair: &[u32]| names[pair[0] as usize] == names[pair[1] as usize];
        if order.windows(2).any(same) {
            return Err(MakeError::Same);
        }
        Ok(Corpus { spec, owner, names, order, map: map.make_read_only()? })
    }

    /// The three numbers of this corpus.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    fn bytes(&self, ino: Ino) -> Option<&[u8]> {
        let index = ino.0.checked_sub(FIRST).filter(|index| *index < self.spec.count)?;
        let size = self.spec.size as usize;
        self.map.get(index as usize * size..)?.get(..size)
    }

    /// A file's bytes, or the error for an inode that is not a file.
    fn file(&self, ino: Ino) -> api::Result<&[u8]> {
        self.bytes(ino).ok_or(if ino == Ino::ROOT { Errno::EISDIR } else { Errno::ENOENT })
    }

    fn attr(&self, ino: Ino) -> Attr {
        let dir = ino == Ino::ROOT;
        let size = if dir { 0 } else { self.spec.size };
        Attr {
            ino,
            kind: if dir { FileKind::Dir } else { FileKind::File },
            perm: if dir { 0o555 } else { 0o444 },
            nlink: if dir { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            atime: Timestamp(0),
            mtime: Timestamp(0),
            ctime: Timestamp(0),
            btime: Timestamp(0),
            version: 0,
        }
    }

    fn entry(&self, ino: Ino) -> Entry {
        Entry::of(self.attr(ino))
    }

    fn find(&self, name: &[u8]) -> Option<Ino> {
        let name = content::unhex(name)?;
        let at = self.order.binary_search_by_key(&name, |index| self.names[*index as usize]).ok()?;
        Some(Ino(FIRST + u64::from(self.order[at])))
    }

    fn list(
        &self,
        ino: Ino,
        position: u64,
        mut each: impl FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> api::Result<()> {
        if ino != Ino::ROOT {
            return Err(if self.bytes(ino).is_some() { Errno::ENOTDIR } else { Errno::ENOENT });
        }
        for (at, name) in [(0, &b"."[..]), (1, b"..")].into_iter().skip(position.min(2) as usize) {
            let line = DirEntry { name, ino: Ino::ROOT, kind: FileKind::Dir, next: at + 1 };
            if each(line, None).is_break() {
                return Ok(());
            }
        }
        for index in position.saturating_sub(FIRST_POSITION)..self.spec.count {
            let ino = Ino(FIRST + index);
            let name = content::hex(&self.names[index as usize]);
            let line = DirEntry { name: &name, ino, kind: FileKind::File, next: FIRST_POSITION + index + 1 };
            if each(line, Some(&self.entry(ino))).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// What one thread fills at a time: the first file's index, the names, the bytes.
type Share<'a> = (usize, &'a mut [[u8; 32]], &'a mut [u8]);

/// Fills the mapping and returns the names.
fn derive_all(
    spec: &Spec,
    map: &mut [u8],
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<[u8; 32]>, MakeError> {
    let mut names = vec![[0; 32]; spec.count as usize];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Several shares for each core, so that no core waits long for the last one.
    let files = names.len().div_ceil(cores * 4).max(1);
    let parts = names.chunks_mut(files).zip(map.chunks_mut(files * spec.size as usize)).enumerate();
    let shares: Vec<Mutex<Share<'_>>> =
        parts.map(|(at, (names, bytes))| Mutex::new((at * files, names, bytes))).collect();
    let check_every = (CHECK_EVERY / spec.size).max(1) as usize;
    let work = |share: &Mutex<Share<'_>>| {
        let (from, names, bytes) = &mut *share.lock();
        for (at, (name, bytes)) in names.iter_mut().zip(bytes.chunks_mut(spec.size as usize)).enumerate() {
            if at % check_every == 0 && stop() {
                return Err(MakeError::Stopped);
            }
            content::fill(spec, (*from + at) as u64, bytes);
            *name = content::name(bytes);
        }
        Ok(())
    };
    let done = base::thread::for_each("covey-corpus", cores, &shares, work);
    drop(shares);
    done.map(|()| names)
}

impl Filesystem for Corpus {
    fn coherence(&self) -> Coherence {
        Coherence::Frozen
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> api::Result<Entry> {
        if name == b"." && (parent == Ino::ROOT || self.bytes(parent).is_some()) {
            return Ok(self.entry(parent));
        }
        match parent {
            Ino::ROOT if name == b".." => Ok(self.entry(Ino::ROOT)),
            Ino::ROOT if name.len() > base::size::NAME_MAX => Err(Errno::ENAMETOOLONG),
            Ino::ROOT => self.find(name).map(|ino| self.entry(ino)).ok_or(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn forget(&self, _: Ino, _: u64) {}

    fn getattr(&self, ino: Ino) -> api::Result<Attr> {
        let there = ino == Ino::ROOT || self.bytes(ino).is_some();
        if there { Ok(self.attr(ino)) } else { Err(Errno::ENOENT) }
    }

    fn setattr(&self, _: &Caller, _: Ino, _: &SetAttr) -> api::Result<Attr> {
        Err(Errno::EROFS)
    }

    fn readlink(&self, _: Ino) -> api::Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    fn mknod(&self, _: &Caller, _: Ino, _: &[u8], _: &NewNode) -> api::Result<Entry> {
        Err(Errno::EROFS)
    }

    fn mkdir(&self, _: &Caller, _: Ino, _: &[u8], _: u16, _: u16) -> api::Result<Entry> {
        Err(Errno::EROFS)
    }

    fn symlink(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8]) -> api::Result<Entry> {
        Err(Errno::EROFS)
    }

    fn link(&self, _: Ino, _: Ino, _: &[u8]) -> api::Result<Entry> {
        Err(Errno::EROFS)
    }

    fn unlink(&self, _: Ino, _: &[u8]) -> api::Result<api::Touched> {
        Err(Errno::EROFS)
    }

    fn rmdir(&self, _: Ino, _: &[u8]) -> api::Result<()> {
        Err(Errno::EROFS)
    }

    fn rename(&self, _: Ino, _: &[u8], _: Ino, _: &[u8], _: RenameMode) -> api::Result<api::Touched> {
        Err(Errno::EROFS)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> api::Result<usize> {
        let bytes = self.file(ino)?;
        let left = &bytes[(offset.min(bytes.len() as u64)) as usize..];
        let len = left.len().min(buf.len());
        buf[..len].copy_from_slice(&left[..len]);
        Ok(len)
    }

    fn write(&self, _: Ino, _: u64, _: &[u8], _: Option<&Caller>, _: bool) -> api::Result<bool> {
        Err(Errno::EROFS)
    }

    fn allocate(&self, _: Ino, _: u64, _: u64, _: Allocate) -> api::Result<()> {
        Err(Errno::EROFS)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> api::Result<u64> {
        let size = self.file(ino)?.len() as u64;
        match what {
            _ if offset >= size => Err(Errno::ENXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn copy_range(&self, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> api::Result<u64> {
        Err(Errno::EROFS)
    }

    fn fsync(&self, _: Ino, _: bool) -> api::Result<()> {
        Ok(())
    }

    fn sync(&self) -> api::Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> api::Result<()> {
        self.list(ino, position, |line, _| each(line))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> api::Result<()> {
        self.list(ino, position, each)
    }

    fn getxattr(&self, _: Ino, _: &[u8]) -> api::Result<Vec<u8>> {
        Err(Errno::ENODATA)
    }

    fn setxattr(&self, _: Ino, _: &[u8], _: &[u8], _: XattrMode, _: bool) -> api::Result<()> {
        Err(Errno::EROFS)
    }

    fn listxattr(&self, _: Ino) -> api::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn removexattr(&self, _: Ino, _: &[u8]) -> api::Result<()> {
        Err(Errno::EROFS)
    }

    fn statfs(&self, _: Ino) -> api::Result<StatFs> {
        let inodes = self.spec.count + 1;
        Ok(StatFs { total: self.spec.bytes(), free: 0, available: 0, inodes, inodes_free: 0 })
    }
}
