//! Executes operations on one tree.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs as rfs;
use rustix::fs::{AtFlags, FallocateFlags, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Answer, Falloc, How, Op, Renaming, SLOTS, When};
use crate::{Rng, tree};

type Result<T> = std::result::Result<T, Errno>;

/// One tree and its open files.
pub struct Side {
    root: PathBuf,
    folder: OwnedFd,
    slots: [Option<OwnedFd>; SLOTS],
}

impl Drop for Side {
    fn drop(&mut self) {
        act_as(0);
    }
}

impl Side {
    /// Starts in an empty folder, which all users may use.
    pub fn new(root: &Path) -> Side {
        rfs::chmod(root, Mode::from_raw_mode(0o777)).unwrap();
        let folder = rfs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Side { root: root.to_owned(), folder, slots: Default::default() }
    }

    /// The whole tree, as root sees it.
    pub fn tree(&self) -> tree::Tree {
        tree::read(&self.root)
    }

    /// Executes one operation as `user`.
    pub fn run(&mut self, op: &Op, user: u32) -> Answer {
        act_as(user);
        let answer =
            self.on_slots(op).or_else(|| self.on_names(op)).unwrap_or_else(|| self.on_attributes(op));
        act_as(0);
        answer.unwrap_or_else(Answer::Error)
    }

    fn on_slots(&mut self, op: &Op) -> Option<Result<Answer>> {
        let answer = match op {
            Op::Open { slot, path, how, mode } => {
                self.slots[*slot] = None;
                let opened = rfs::openat(&self.folder, path, flags(*how), Mode::from_raw_mode(*mode));
                opened.map(|file| {
                    self.slots[*slot] = Some(file);
                    Answer::Done
                })
            }
            Op::Close { slot } => {
                self.slots[*slot] = None;
                Ok(Answer::Done)
            }
            Op::CopyRange { from, to, from_offset, to_offset, len } => {
                let (Some(a), Some(b)) = (&self.slots[*from], &self.slots[*to]) else {
                    return Some(Ok(Answer::NoSlot));
                };
                copy_range(a, *from_offset, b, *to_offset, *len).map(Answer::Count)
            }
            Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::Append { slot, .. }
            | Op::MmapWrite { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Fallocate { slot, .. }
            | Op::Fsync { slot }
            | Op::Fstat { slot }
            | Op::Fchmod { slot, .. } => match &self.slots[*slot] {
                Some(file) => on_file(file, op),
                None => Ok(Answer::NoSlot),
            },
            _ => return None,
        };
        Some(answer)
    }

    fn on_names(&self, op: &Op) -> Option<Result<Answer>> {
        let at = &self.folder;
        let done = match op {
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Renaming::Replace => rfs::RenameFlags::empty(),
                    Renaming::NoReplace => rfs::RenameFlags::NOREPLACE,
                    Renaming::Exchange => rfs::RenameFlags::EXCHANGE,
                };
                rfs::renameat_with(at, from, at, to, flags)
            }
            Op::Link { from, to } => rfs::linkat(at, from, at, to, AtFlags::empty()),
            Op::Unlink { path } => rfs::unlinkat(at, path, AtFlags::empty()),
            Op::Mkdir { path, mode } => rfs::mkdirat(at, path, Mode::from_raw_mode(*mode)),
            Op::Rmdir { path } => rfs::unlinkat(at, path, AtFlags::REMOVEDIR),
            Op::Symlink { target, path } => rfs::symlinkat(target, at, path),
            Op::Mknod { path, mode, device } => {
                let kind = rfs::FileType::from_raw_mode(*mode);
                rfs::mknodat(at, path, kind, Mode::from_raw_mode(mode & 0o7777), *device)
            }
            _ => return None,
        };
        Some(done.map(|()| Answer::Done))
    }

    fn on_attributes(&self, op: &Op) -> Result<Answer> {
        let at = &self.folder;
        let done = match op {
            Op::Truncate { path, len } => truncate(&self.root.join(path), *len),
            Op::Chmod { path, mode } => rfs::chmodat(at, path, Mode::from_raw_mode(*mode), AtFlags::empty()),
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rfs::chownat(at, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Utimens { path, atime, mtime } => {
                let times = rfs::Timestamps { last_access: spec(*atime), last_modification: spec(*mtime) };
                rfs::utimensat(at, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetXattr { path, name, value, create, replace } => {
                let mut flags = XattrFlags::empty();
                flags.set(XattrFlags::CREATE, *create);
                flags.set(XattrFlags::REPLACE, *replace);
                rfs::lsetxattr(self.root.join(path), *name, value, flags)
            }
            Op::RemoveXattr { path, name } => rfs::lremovexattr(self.root.join(path), *name),
            Op::Access { path, mode } => {
                let asked = rfs::Access::from_bits_truncate(*mode);
                rfs::accessat(at, path, asked, AtFlags::EACCESS)
            }
            other => return self.questions(other),
        };
        done.map(|()| Answer::Done)
    }

    fn questions(&self, op: &Op) -> Result<Answer> {
        match op {
            Op::GetXattr { path, name } => {
                let mut value = vec![0u8; 65_536];
                let got = rfs::lgetxattr(self.root.join(path), *name, &mut value)?;
                Ok(Answer::Bytes(got, tree::hash(&value[..got])))
            }
            Op::Readlink { path } => {
                let target = rfs::readlinkat(&self.folder, path, Vec::new())?;
                Ok(Answer::Target(OsStr::from_bytes(target.as_bytes()).into()))
            }
            Op::Stat { path } => {
                rfs::statat(&self.folder, path, AtFlags::SYMLINK_NOFOLLOW)?;
                act_as(0);
                Ok(Answer::Node(Box::new(tree::node(&self.root.join(path)))))
            }
            Op::List { path } => {
                list(&rfs::openat(&self.folder, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
            }
            other => panic!("{other:?} is handled nowhere"),
        }
    }
}

fn on_file(file: &OwnedFd, op: &Op) -> Result<Answer> {
    let done = |result: Result<()>| result.map(|()| Answer::Done);
    match op {
        Op::Read { offset, len, .. } => {
            let mut buf = vec![0u8; *len];
            let mut got = 0;
            while got < *len {
                match rustix::io::pread(file, &mut buf[got..], offset + got as u64)? {
                    0 => break,
                    more => got += more,
                }
            }
            Ok(Answer::Bytes(got, tree::hash(&buf[..got])))
        }
        Op::Write { offset, len, seed, .. } => {
            let data = Rng::new(*seed).bytes(*len);
            Ok(Answer::Count(rustix::io::pwrite(file, &data, *offset)? as u64))
        }
        Op::Append { len, seed, .. } => {
            rfs::seek(file, rfs::SeekFrom::End(0))?;
            let data = Rng::new(*seed).bytes(*len);
            Ok(Answer::Count(rustix::io::write(file, &data)? as u64))
        }
        Op::MmapWrite { offset, len, seed, .. } => mmap_write(file, *offset, *len, *seed).map(Answer::Count),
        Op::Ftruncate { len, .. } => done(rfs::ftruncate(file, *len)),
        Op::Fallocate { how, offset, len, .. } => done(rfs::fallocate(file, falloc(*how), *offset, *len)),
        Op::Fsync { .. } => done(rfs::fsync(file)),
        Op::Fchmod { mode, .. } => done(rfs::fchmod(file, Mode::from_raw_mode(*mode))),
        Op::Fstat { .. } => {
            let stat = rfs::fstat(file)?;
            let node = tree::Node {
                mode: stat.st_mode,
                nlink: stat.st_nlink as u64,
                uid: stat.st_uid,
                gid: stat.st_gid,
                size: if stat.st_mode & libc::S_IFMT == libc::S_IFDIR { 0 } else { stat.st_size as u64 },
                rdev: 0,
                mtime: tree::old(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
                xattrs: Default::default(),
                content: tree::Content::None,
            };
            Ok(Answer::Node(Box::new(node)))
        }
        other => panic!("{other:?} is handled nowhere"),
    }
}

/// Writes through a shared mapping, up to the end of the file, and calls msync.
fn mmap_write(file: &OwnedFd, offset: u64, len: usize, seed: u64) -> Result<u64> {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let stat = rfs::fstat(file)?;
    let len = (stat.st_size as u64).saturating_sub(offset).min(len as u64) as usize;
    if len == 0 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(0);
    }
    let start = offset - offset % 4096;
    let (lead, whole) = ((offset - start) as usize, (offset - start) as usize + len);
    let data = Rng::new(seed).bytes(len);
    // SAFETY: a new private mapping at an address the kernel chooses. `whole` bytes of it are inside the
    // file, and nothing shrinks the file before it is unmapped two lines below.
    unsafe {
        let map = mmap(
            std::ptr::null_mut(),
            whole,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            start,
        )?;
        std::ptr::copy_nonoverlapping(data.as_ptr(), map.cast::<u8>().add(lead), len);
        let synced = msync(map, whole, MsyncFlags::SYNC);
        munmap(map, whole)?;
        synced?;
    }
    Ok(len as u64)
}

/// Copies until no more is copied: a filesystem may copy less than requested in one call.
fn copy_range(from: &OwnedFd, mut a: u64, to: &OwnedFd, mut b: u64, len: usize) -> Result<u64> {
    let mut copied = 0;
    while copied < len as u64 {
        match rfs::copy_file_range(from, Some(&mut a), to, Some(&mut b), len - copied as usize) {
            Ok(0) => break,
            Ok(more) => copied += more as u64,
            Err(error) if copied == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(copied)
}

fn list(folder: &OwnedFd) -> Result<Answer> {
    let mut names = Vec::new();
    for entry in rfs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        names.push((name, entry.file_type().as_raw_mode()));
    }
    names.sort();
    Ok(Answer::Names(names))
}

/// Does not truncate a file to its own size: filesystems differ in whether that sets its times.
fn truncate(path: &Path, len: u64) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == len) {
        return Ok(());
    }
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: `path` ends with NUL and lives through the call.
    match unsafe { libc::truncate(path.as_ptr(), len as i64) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

fn flags(how: How) -> OFlags {
    // Never waits for a fifo's other end, and never acquires a controlling terminal.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags |= if how.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    flags.set(OFlags::CREATE, how.create);
    flags.set(OFlags::EXCL, how.exclusive);
    flags.set(OFlags::TRUNC, how.truncate);
    flags.set(OFlags::APPEND, how.append);
    flags.set(OFlags::NOFOLLOW, how.nofollow);
    flags
}

fn falloc(how: Falloc) -> FallocateFlags {
    match how {
        Falloc::Grow => FallocateFlags::empty(),
        Falloc::Keep => FallocateFlags::KEEP_SIZE,
        Falloc::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Falloc::Zero => FallocateFlags::ZERO_RANGE,
        Falloc::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

fn spec(when: When) -> rfs::Timespec {
    let (tv_sec, tv_nsec) = match when {
        When::Now => (0, rfs::UTIME_NOW),
        When::Omit => (0, rfs::UTIME_OMIT),
        When::At(seconds, nanos) => (seconds, nanos),
    };
    rfs::Timespec { tv_sec, tv_nsec }
}

/// Makes this thread's file operations run as another user, in that user's group and without root's
/// capabilities over files.
fn act_as(user: u32) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // SAFETY: both calls take a number and change only this thread's credentials. They cannot fail for root.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, user);
        libc::syscall(libc::SYS_setfsuid, user);
    }
}
