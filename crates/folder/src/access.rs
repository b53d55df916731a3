//! The methods of the filesystem.

use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::Ino;
use fs::Errno;
use fs::api::{
    Allocate, Attr, Caller, Coherence, DirEntry, Entry, FileKind, Filesystem, Lock, LockAnswer, LockOwner,
    LockStyle, LockWait, Locks as WhereLocks, NewNode, Positions, RenameMode, Result, Seek, SetAttr, StatFs,
    Touched, Waiting, XattrMode,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, XattrFlags, openat2,
};

use crate::nodes::Node;
use crate::{Folder, errno, path_of, reopen};

/// The largest value and list of names of extended attributes (Linux).
const XATTR_MAX: usize = 64 << 10;
/// How names are resolved: nothing outside of their directory is reached.
pub(crate) const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

impl Folder {
    /// Opens a name, and follows nothing.
    pub(crate) fn name(&self, parent: &Node, name: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(&parent.fd()?, name, flags, Mode::empty(), BELOW).map_err(errno)
    }

    /// What a name means, if it is the last one.
    fn last_name(&self, parent: &Node, name: &[u8]) -> Option<(Ino, OwnedFd)> {
        let fd = self.name(parent, name).ok()?;
        let attr = self.attr(&fd).ok()?;
        (attr.kind == FileKind::Dir || attr.nlink == 1).then_some((attr.ino, fd))
    }

    fn remove(&self, parent: Ino, name: &[u8], flags: AtFlags) -> Result<()> {
        let parent = self.node(parent)?;
        let dir = parent.fd()?;
        let remove = || rustix::fs::unlinkat(&dir, name, flags).map_err(errno);
        self.nodes.without_name(|| self.last_name(&parent, name), remove)
    }

    /// A regular file. Opening anything else, such as a device, could do something.
    fn lockable(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.node(ino)?;
        if node.kind == FileKind::File { Ok(node) } else { Err(Errno::EINVAL) }
    }

    pub(crate) fn file(&self, ino: Ino, writable: bool) -> Result<Arc<OwnedFd>> {
        let node = self.node(ino)?;
        match node.kind {
            FileKind::File => self.nodes.file(ino, &node, writable),
            FileKind::Dir => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn list(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, &Node) -> ControlFlow<()>,
    ) -> Result<()> {
        let node = self.node(ino)?;
        let dir = reopen(&*node.fd()?, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if position > 0 {
            rustix::fs::seek(&dir, SeekFrom::Start(position)).map_err(errno)?;
        }
        let mut room = [MaybeUninit::<u8>::uninit(); 32 << 10];
        let mut lines = RawDir::new(&dir, &mut room);
        while let Some(line) = lines.next() {
            let line = line.map_err(errno)?;
            let name = line.file_name().to_bytes();
            let above = ino == Ino::ROOT && name == b"..";
            let found = DirEntry {
                name,
                ino: if above { Ino::ROOT } else { self.ino(line.ino()) },
                kind: kind_of(line.file_type()),
                next: line.next_entry_cookie(),
            };
            if each(found, &node).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn kind_of(kind: rustix::fs::FileType) -> FileKind {
    FileKind::from_mode(kind.as_raw_mode()).unwrap_or(FileKind::File)
}

impl Filesystem for Folder {
    fn coherence(&self) -> Coherence {
        Coherence::Exclusive
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let node = self.node(parent)?;
        if name == b"." {
            return self.found(reopen(&*node.fd()?, OFlags::PATH)?);
        }
        if name == b".." {
            return Err(Errno(libc::ESTALE));
        }
        self.found(self.name(&node, name)?)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.nodes.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attr(&*self.node(ino)?.fd()?)
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let node = self.node(ino)?;
        self.set(ino, &node, set)?;
        self.attr(&*node.fd()?)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        rustix::fs::readlinkat(&node.fd()?, c"", Vec::new()).map(std::ffi::CString::into_bytes).map_err(errno)
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], new: &NewNode) -> Result<Entry> {
        self.make_node(caller, parent, name, new)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry> {
        self.make_dir(caller, parent, name, perm, umask)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make_link(caller, parent, name, target)
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry> {
        self.make_nameless(caller, parent, perm, umask)
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        let (node, dir) = (self.node(ino)?, self.node(parent)?);
        rustix::fs::linkat(CWD, path_of(&*node.fd()?), &dir.fd()?, name, AtFlags::SYMLINK_FOLLOW)
            .map_err(errno)?;
        // Under the name there may be something else by now.
        self.found(rustix::io::fcntl_dupfd_cloexec(&node.fd()?, 0).map_err(errno)?)
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Touched> {
        self.remove(parent, name, AtFlags::empty()).map(|()| Touched::default())
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, AtFlags::REMOVEDIR)
    }

    fn rename(&self, parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched> {
        use rustix::fs::RenameFlags;
        let (from, to) = (self.node(parent)?, self.node(to)?);
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        let (from_fd, to_fd) = (from.fd()?, to.fd()?);
        let rename = || rustix::fs::renameat_with(&from_fd, name, &to_fd, to_name, flags).map_err(errno);
        match mode {
            RenameMode::Replace => self.nodes.without_name(|| self.last_name(&to, to_name), rename)?,
            RenameMode::NoReplace | RenameMode::Exchange => rename()?,
        }
        Ok(Touched::default())
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.file(ino, false)?;
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&file, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(done)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], caller: Option<&Caller>, _: bool) -> Result<bool> {
        let file = self.file(ino, true)?;
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&file, &data[done..], offset + done as u64) {
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        caller.map_or(Ok(false), |caller| self.drop_privileges(caller, ino))
    }

    fn append(&self, ino: Ino, data: &[u8], caller: Option<&Caller>) -> Result<bool> {
        let node = self.node(ino)?;
        // The filesystem below finds the end, so programs of this machine may append too.
        let file = reopen(&*node.fd()?, OFlags::WRONLY | OFlags::APPEND)?;
        let mut rest = data;
        while !rest.is_empty() {
            match rustix::io::write(&file, rest) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        caller.map_or(Ok(false), |caller| self.drop_privileges(caller, ino))
    }

    fn drop_privileges(&self, _: &Caller, ino: Ino) -> Result<bool> {
        let node = self.node(ino)?;
        self.clear_set_ids(&node)
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let file = self.file(ino, true)?;
        let keep = |keep| if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let flags = match how {
            Allocate::Reserve { keep_size } => keep(keep_size),
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocate::Zero { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
        };
        rustix::fs::fallocate(&file, flags, offset, len).map_err(errno)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let file = self.file(ino, false)?;
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(&file, from).map_err(errno)
    }

    fn copy_range(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> {
        let (source, target) = (self.file(from, false)?, self.file(to, true)?);
        let (mut from_offset, mut to_offset) = (from_offset, to_offset);
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
        let copied =
            rustix::fs::copy_file_range(&source, Some(&mut from_offset), &target, Some(&mut to_offset), len);
        copied.map(|count| count as u64).map_err(errno)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        let node = self.node(ino)?;
        let file = match node.kind {
            FileKind::File => self.nodes.file(ino, &node, false)?,
            FileKind::Dir => Arc::new(reopen(&*node.fd()?, OFlags::RDONLY | OFlags::DIRECTORY)?),
            _ => return Ok(()),
        };
        if data_only { rustix::fs::fdatasync(&file) } else { rustix::fs::fsync(&file) }.map_err(errno)
    }

    fn sync(&self) -> Result<()> {
        let root = reopen(&*self.node(Ino::ROOT)?.fd()?, OFlags::RDONLY | OFlags::DIRECTORY)?;
        rustix::fs::syncfs(&root).map_err(errno)
    }

    fn positions(&self) -> Positions {
        self.positions
    }

    fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(ino, position, &mut |line, _| each(line))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(ino, position, &mut |line, dir| {
            if line.name == b"." || line.name == b".." {
                return each(line, None);
            }
            // What was removed meanwhile, or is another mount, is listed by name alone.
            let found = self.name(dir, line.name).and_then(|fd| self.found(fd)).ok();
            let flow = each(line, found.as_ref());
            if let (ControlFlow::Break(()), Some(found)) = (flow, found) {
                self.forget(found.node, 1);
            }
            flow
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        if node.kind == FileKind::Symlink {
            return Err(Errno::ENODATA);
        }
        let mut room = vec![0; XATTR_MAX];
        let len = rustix::fs::getxattr(path_of(&*node.fd()?), name, &mut room[..]).map_err(errno)?;
        room.truncate(len);
        Ok(room)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()> {
        let node = self.node(ino)?;
        if node.kind == FileKind::Symlink {
            return Err(Errno::EPERM);
        }
        let flags = match mode {
            XattrMode::Set => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        rustix::fs::setxattr(path_of(&*node.fd()?), name, value, flags).map_err(errno)?;
        if kill_sgid {
            let perm = self.attr(&*node.fd()?)?.perm;
            self.chmod(&node, perm & !(libc::S_ISGID as u16))?;
        }
        Ok(())
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        if node.kind == FileKind::Symlink {
            return Ok(Vec::new());
        }
        let mut room = vec![0; XATTR_MAX];
        let len = rustix::fs::listxattr(path_of(&*node.fd()?), &mut room[..]).map_err(errno)?;
        room.truncate(len);
        Ok(room)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let node = self.node(ino)?;
        if node.kind == FileKind::Symlink {
            return Err(Errno::ENODATA);
        }
        rustix::fs::removexattr(path_of(&*node.fd()?), name).map_err(errno)
    }

    fn would_wait(&self, request: Waiting) -> bool {
        // The folder may be on a network filesystem.
        request == Waiting::Lock
    }

    fn locks(&self) -> WhereLocks {
        WhereLocks::Fleet
    }

    fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>> {
        self.locks.test(ino, &*self.lockable(ino)?, lock)
    }

    fn set_lock(&self, ino: Ino, lock: &Lock) -> Result<()> {
        self.locks.set(ino, &*self.lockable(ino)?, lock)
    }

    fn wait_lock(&self, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        match self.lockable(ino) {
            Ok(node) => self.locks.wait(ino, &node, lock, wait, answer),
            Err(error) => answer(Err(error)),
        }
    }

    fn cancel_lock(&self, wait: LockWait) {
        self.locks.cancel(wait);
    }

    fn release_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<()> {
        self.locks.release(ino, owner, style);
        Ok(())
    }

    fn statfs(&self, ino: Ino) -> Result<StatFs> {
        let node = self.node(ino)?;
        let found = rustix::fs::fstatvfs(&node.fd()?).map_err(errno)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(StatFs {
            total: bytes(found.f_blocks),
            free: bytes(found.f_bfree),
            available: bytes(found.f_bavail),
            inodes: found.f_files.saturating_sub(found.f_ffree),
            inodes_free: found.f_ffree,
        })
    }
}
