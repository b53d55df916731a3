//! The arguments of each operation, decoded into the filesystem's own types.

use base::{Ino, Timestamp};
use fs::Errno;
use fs::api::{
    Allocate, FileKind, LockKind, LockRange, LockStyle, NewNode, Part, RenameMode, Seek, SetAttr, SetTime,
    Waiting, XattrMode,
};

use super::Take;
use super::header::Header;
use super::init::{Agreed, flag};
use super::opcodes::op;

/// A lock as the kernel requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file through which it is requested.
    pub handle: u64,
    /// The kernel's number for the owner. The kernel uses it again for another owner later.
    pub owner: u64,
    /// The style.
    pub style: LockStyle,
    /// The range. All of the file for [`LockStyle::Flock`].
    pub range: LockRange,
    /// The kind.
    pub kind: LockKind,
    /// The process.
    pub pid: u32,
}

/// One request's operation. Names and data point into the request.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    /// Pairs of inode and count, 16 bytes each.
    BatchForget {
        pairs: &'a [u8],
    },
    Getattr,
    Setattr(SetAttr),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        node: NewNode,
    },
    Mkdir {
        name: &'a [u8],
        perm: u16,
        umask: u16,
    },
    Tmpfile {
        perm: u16,
        umask: u16,
        append: bool,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to: Ino,
        to_name: &'a [u8],
        mode: RenameMode,
    },
    Link {
        ino: Ino,
        name: &'a [u8],
    },
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        kill: bool,
        cached: bool,
        /// The file was opened with `O_APPEND`, and the bytes come from write(2).
        append: bool,
    },
    Statfs,
    /// `append`: with `O_APPEND`.
    Open {
        append: bool,
    },
    /// `exclusive`: with `O_EXCL`.
    Create {
        name: &'a [u8],
        node: NewNode,
        exclusive: bool,
        append: bool,
    },
    Opendir,
    Releasedir,
    /// One descriptor was closed. `owner`: of the POSIX locks of the process that did it.
    Flush {
        owner: u64,
    },
    /// The last descriptor of an open file was closed.
    Release {
        handle: u64,
    },
    Getlk(LockRequest),
    /// `wait`: until the lock is granted.
    Setlk {
        lock: LockRequest,
        wait: bool,
    },
    Destroy,
    Fsync {
        data_only: bool,
    },
    Syncfs,
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        mode: XattrMode,
        kill_sgid: bool,
    },
    Getxattr {
        name: &'a [u8],
        room: u32,
    },
    Listxattr {
        room: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Readdir {
        position: u64,
        room: u32,
        plus: bool,
    },
    Fallocate {
        offset: u64,
        len: u64,
        how: Allocate,
    },
    Seek {
        offset: u64,
        what: Seek,
    },
    CopyRange {
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
        wide: bool,
    },
    Interrupt {
        unique: u64,
    },
}

impl<'a> Op<'a> {
    /// Decodes a request's arguments.
    ///
    /// # Errors
    /// `EIO` if they are truncated, `EINVAL` or `EOPNOTSUPP` for values without a meaning here, `ENOSYS` for
    /// operations that this transport does not serve.
    pub fn read(header: &Header, arguments: &'a [u8], agreed: &Agreed) -> Result<Op<'a>, Errno> {
        let mut take = Take::new(arguments);
        let take = &mut take;
        Ok(match header.opcode {
            op::LOOKUP => Op::Lookup { name: take.name()? },
            op::FORGET => Op::Forget { count: take.u64()? },
            op::BATCH_FORGET => batch_forget(take)?,
            op::GETATTR => Op::Getattr,
            op::SETATTR => Op::Setattr(setattr(take)?),
            op::READLINK => Op::Readlink,
            op::READ => read(take)?,
            op::WRITE => write(take)?,
            op::STATFS => Op::Statfs,
            op::RELEASE => Op::Release { handle: take.u64()? },
            op::DESTROY => Op::Destroy,
            op::FSYNC | op::FSYNCDIR => fsync(take)?,
            op::SYNCFS => Op::Syncfs,
            op::READDIR | op::READDIRPLUS => {
                take.skip(8)?;
                let (position, room) = (take.u64()?, take.u32()?);
                Op::Readdir { position, room, plus: header.opcode == op::READDIRPLUS }
            }
            op::FALLOCATE => fallocate(take)?,
            op::LSEEK => lseek(take)?,
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => copy_range(take, header.opcode)?,
            op::OPEN => Op::Open { append: appends(take.u32()?) },
            op::OPENDIR => Op::Opendir,
            op::RELEASEDIR => Op::Releasedir,
            op::FLUSH => {
                take.skip(16)?; // file handle, padding
                Op::Flush { owner: take.u64()? }
            }
            op::GETLK => Op::Getlk(lock(take)?),
            op::SETLK | op::SETLKW => {
                let lock = lock(take)?;
                // Releasing never waits.
                let wait = header.opcode == op::SETLKW && lock.kind != LockKind::Unlock;
                Op::Setlk { lock, wait }
            }
            op::INTERRUPT => Op::Interrupt { unique: take.u64()? },
            // The kernel never asks again after this error.
            op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR if !agreed.has_xattrs() => {
                return Err(Errno::ENOSYS);
            }
            op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR => {
                xattr(take, header.opcode, agreed.has(flag::SETXATTR_EXT))?
            }
            _ => names(take, header.opcode)?,
        })
    }

    /// What this operation may have to wait for. `None` for operations that are served inline without asking.
    pub fn waiting(&self, ino: Ino) -> Option<Waiting> {
        match *self {
            Op::Read { offset, len } => Some(Waiting::Read { ino, offset, len }),
            Op::Write { .. } => Some(Waiting::Write),
            Op::Fsync { .. } | Op::Syncfs => Some(Waiting::Sync),
            Op::Setattr(_)
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Create { .. }
            | Op::Mkdir { .. }
            | Op::Tmpfile { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Setxattr { .. }
            | Op::Removexattr { .. }
            | Op::Fallocate { .. }
            | Op::CopyRange { .. } => Some(Waiting::Change),
            Op::Lookup { .. }
            | Op::Getattr
            | Op::Readlink
            | Op::Readdir { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. } => Some(Waiting::Look),
            _ => None,
        }
    }

    /// What it looks at and whether it changes that, on a shared mount. `None`: that is not known in advance,
    /// and [`Op::waiting_shared`] decides.
    pub fn parts(&self, ino: Ino) -> Option<(Vec<Part<'a>>, bool)> {
        Some(match *self {
            Op::Lookup { name } => (vec![Part::Name(ino, name)], false),
            Op::Getattr => (vec![Part::Inode(ino)], false),
            Op::Readlink => (vec![Part::Target(ino)], false),
            Op::Readdir { .. } => (vec![Part::Listing(ino)], false),
            Op::Getxattr { name, .. } => (vec![Part::Xattr(ino, name)], false),
            Op::Write { offset, .. } => (vec![Part::Byte(ino, offset)], true),
            Op::Setattr(_) => (vec![Part::Inode(ino)], true),
            Op::Mknod { name, .. }
            | Op::Create { name, .. }
            | Op::Mkdir { name, .. }
            | Op::Symlink { name, .. }
            | Op::Unlink { name }
            | Op::Rmdir { name } => (vec![Part::Name(ino, name)], true),
            Op::Rename { name, to, to_name, .. } if to == ino => {
                (vec![Part::Name(ino, name), Part::Name(to, to_name)], true)
            }
            _ => return None,
        })
    }

    /// Returns what this operation may have to wait for on a shared mount, where more has to wait for other
    /// machines.
    pub fn waiting_shared(&self, ino: Ino) -> Option<Waiting> {
        match self {
            Op::Statfs | Op::Seek { .. } => Some(Waiting::Look),
            Op::Getlk(_) | Op::Setlk { .. } => Some(Waiting::Lock),
            _ => self.waiting(ino),
        }
    }
}

/// The open files that a request works on, by the transport's numbers. A GETATTR that names one comes before
/// a read(2) of it.
pub fn handles(opcode: u32, arguments: &[u8]) -> impl Iterator<Item = u64> {
    const GETATTR_HANDLE: u32 = 1;
    const SETATTR_HANDLE: u32 = 1 << 6;
    let number = |at: usize| arguments.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    let flags = arguments.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let found = match opcode {
        op::READ | op::WRITE | op::FSYNC | op::FALLOCATE | op::LSEEK => [number(0), None],
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => [number(0), number(24)],
        op::GETATTR if flags & GETATTR_HANDLE != 0 => [number(8), None],
        op::SETATTR if flags & SETATTR_HANDLE != 0 => [number(8), None],
        _ => [None, None],
    };
    found.into_iter().flatten()
}

/// Operations that create, remove or move names.
fn names<'a>(take: &mut Take<'a>, opcode: u32) -> Result<Op<'a>, Errno> {
    Ok(match opcode {
        op::SYMLINK => Op::Symlink { name: take.name()?, target: take.text()? },
        op::MKNOD => {
            let (mode, rdev, umask) = (take.u32()?, take.u32()?, take.u32()?);
            take.skip(4)?;
            let kind = FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
            if matches!(kind, FileKind::Dir | FileKind::Symlink) {
                return Err(Errno::EINVAL);
            }
            let node = NewNode { kind, perm: perm(mode), umask: perm(umask), rdev };
            Op::Mknod { name: take.name()?, node }
        }
        op::CREATE => {
            let (flags, mode, umask) = (take.u32()?, take.u32()?, take.u32()?);
            take.skip(4)?;
            let node = NewNode { kind: FileKind::File, perm: perm(mode), umask: perm(umask), rdev: 0 };
            let exclusive = flags & libc::O_EXCL as u32 != 0;
            Op::Create { name: take.name()?, node, exclusive, append: appends(flags) }
        }
        op::MKDIR => {
            let (mode, umask) = (take.u32()?, take.u32()?);
            Op::Mkdir { perm: perm(mode), umask: perm(umask), name: take.name()? }
        }
        op::TMPFILE => {
            let (flags, mode, umask) = (take.u32()?, take.u32()?, take.u32()?);
            Op::Tmpfile { perm: perm(mode), umask: perm(umask), append: appends(flags) }
        }
        op::UNLINK => Op::Unlink { name: take.name()? },
        op::RMDIR => Op::Rmdir { name: take.name()? },
        op::RENAME => {
            let to = Ino(take.u64()?);
            Op::Rename { to, name: take.name()?, to_name: take.name()?, mode: RenameMode::Replace }
        }
        op::RENAME2 => {
            let to = Ino(take.u64()?);
            let mode = match take.u32()? {
                0 => RenameMode::Replace,
                libc::RENAME_NOREPLACE => RenameMode::NoReplace,
                libc::RENAME_EXCHANGE => RenameMode::Exchange,
                _ => return Err(Errno::EINVAL),
            };
            take.skip(4)?;
            Op::Rename { to, name: take.name()?, to_name: take.name()?, mode }
        }
        op::LINK => Op::Link { ino: Ino(take.u64()?), name: take.name()? },
        _ => return Err(Errno::ENOSYS),
    })
}

fn perm(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn batch_forget<'a>(take: &mut Take<'a>) -> Result<Op<'a>, Errno> {
    let count = take.u32()? as usize;
    take.skip(4)?;
    let pairs = take.bytes(count.checked_mul(16).ok_or(Errno::EIO)?)?;
    Ok(Op::BatchForget { pairs })
}

/// The pairs of a [`Op::BatchForget`].
pub fn forget_pairs(pairs: &[u8]) -> impl Iterator<Item = (Ino, u64)> + '_ {
    pairs.chunks_exact(16).filter_map(|pair| {
        let mut take = Take::new(pair);
        Some((Ino(take.u64().ok()?), take.u64().ok()?))
    })
}

fn setattr(take: &mut Take<'_>) -> Result<SetAttr, Errno> {
    const MODE: u32 = 1;
    const UID: u32 = 1 << 1;
    const GID: u32 = 1 << 2;
    const SIZE: u32 = 1 << 3;
    const ATIME: u32 = 1 << 4;
    const MTIME: u32 = 1 << 5;
    const ATIME_NOW: u32 = 1 << 7;
    const MTIME_NOW: u32 = 1 << 8;
    const CTIME: u32 = 1 << 10;
    const KILL_SUIDGID: u32 = 1 << 11;

    let valid = take.u32()?;
    take.skip(12)?; // padding, file handle
    let size = take.u64()?;
    take.skip(8)?; // owner of locks
    let seconds = [take.u64()?, take.u64()?, take.u64()?];
    let nanos = [take.u32()?, take.u32()?, take.u32()?];
    let mode = take.u32()?;
    take.skip(4)?;
    let (uid, gid) = (take.u32()?, take.u32()?);

    let given = |bit: u32| valid & bit != 0;
    let moment = |i: usize| Timestamp::from_parts(seconds[i] as i64, nanos[i].min(999_999_999));
    let time = |i: usize, bit: u32, now: u32| match (given(now), given(bit)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::To(moment(i))),
        (false, false) => None,
    };
    Ok(SetAttr {
        perm: given(MODE).then_some(perm(mode)),
        uid: given(UID).then_some(uid),
        gid: given(GID).then_some(gid),
        size: given(SIZE).then_some(size),
        atime: time(0, ATIME, ATIME_NOW),
        mtime: time(1, MTIME, MTIME_NOW),
        ctime: given(CTIME).then(|| moment(2)),
        kill_suid_sgid: given(KILL_SUIDGID),
    })
}

fn read<'a>(take: &mut Take<'a>) -> Result<Op<'a>, Errno> {
    take.skip(8)?; // file handle
    Ok(Op::Read { offset: take.u64()?, len: take.u32()? })
}

/// Whether these flags of open(2) contain `O_APPEND`.
fn appends(flags: u32) -> bool {
    flags & libc::O_APPEND as u32 != 0
}

fn lock(take: &mut Take<'_>) -> Result<LockRequest, Errno> {
    const FLOCK: u32 = 1;
    let (handle, owner) = (take.u64()?, take.u64()?);
    let (start, end) = (take.u64()?, take.u64()?);
    let (kind, pid, flags) = (take.u32()?, take.u32()?, take.u32()?);
    let kind = match kind as i32 {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    let (style, range) = match flags & FLOCK {
        0 if start > end => return Err(Errno::EINVAL),
        0 => (LockStyle::Range, LockRange { start, end: end.min(LockRange::END) }),
        _ => (LockStyle::Flock, LockRange::ALL),
    };
    Ok(LockRequest { handle, owner, style, range, kind, pid })
}

fn write<'a>(take: &mut Take<'a>) -> Result<Op<'a>, Errno> {
    const CACHED: u32 = 1;
    const KILL_SUIDGID: u32 = 1 << 2;
    take.skip(8)?; // file handle
    let (offset, len, flags) = (take.u64()?, take.u32()?, take.u32()?);
    take.skip(8)?; // owner of locks
    let open = take.u32()?;
    take.skip(4)?;
    let data = take.bytes(len as usize)?;
    let cached = flags & CACHED != 0;
    let append = !cached && appends(open);
    Ok(Op::Write { offset, data, kill: flags & KILL_SUIDGID != 0, cached, append })
}

fn fsync<'a>(take: &mut Take<'a>) -> Result<Op<'a>, Errno> {
    take.skip(8)?; // file handle
    Ok(Op::Fsync { data_only: take.u32()? & 1 != 0 })
}

fn fallocate<'a>(take: &mut Take<'a>) -> Result<Op<'a>, Errno> {
    const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
    const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
    take.skip(8)?; // file handle
    let (offset, len, mode) = (take.u64()?, take.u64()?, take.u32()?);
    let how = match mode {
        0 | KEEP => Allocate::Reserve { keep_size: mode == KEEP },
        PUNCH => Allocate::PunchHole,
        _ if mode & !KEEP == ZERO => Allocate::Zero { keep_size: mode & KEEP != 0 },
        _ => return Err(Errno::EOPNOTSUPP),
    };
    Ok(Op::Fallocate { offset, len, how })
}

fn lseek<'a>(take: &mut Take<'a>) -> Result<Op<'a>, Errno> {
    take.skip(8)?; // file handle
    let offset = take.u64()?;
    let what = match take.u32()? as i32 {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Op::Seek { offset, what })
}

fn copy_range<'a>(take: &mut Take<'a>, opcode: u32) -> Result<Op<'a>, Errno> {
    take.skip(8)?; // file handle
    let (from_offset, to) = (take.u64()?, Ino(take.u64()?));
    take.skip(8)?; // the other file handle
    let (to_offset, len, flags) = (take.u64()?, take.u64()?, take.u64()?);
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Op::CopyRange { from_offset, to, to_offset, len, wide: opcode == op::COPY_FILE_RANGE_64 })
}

fn xattr<'a>(take: &mut Take<'a>, opcode: u32, extended: bool) -> Result<Op<'a>, Errno> {
    const ACL_KILL_SGID: u32 = 1;
    Ok(match opcode {
        op::SETXATTR => {
            let (len, flags) = (take.u32()?, take.u32()?);
            let mut kill_sgid = false;
            if extended {
                kill_sgid = take.u32()? & ACL_KILL_SGID != 0;
                take.skip(4)?;
            }
            let mode = match flags as i32 {
                0 => XattrMode::Set,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Errno::EINVAL),
            };
            Op::Setxattr { name: take.text()?, value: take.bytes(len as usize)?, mode, kill_sgid }
        }
        op::REMOVEXATTR => Op::Removexattr { name: take.text()? },
        _ => {
            let room = take.u32()?;
            take.skip(4)?;
            if opcode == op::LISTXATTR {
                Op::Listxattr { room }
            } else {
                Op::Getxattr { name: take.text()?, room }
            }
        }
    })
}
