//! What a transport asks of a filesystem: one method per kernel operation, in plain types.
//!
//! The transport decodes a request, calls a method on the thread that received it, and encodes what comes back. A
//! method may block only for as long as this machine's own disk takes; [`Filesystem::would_wait`] says beforehand
//! whether a request must wait for more (a network), and the transport then runs it elsewhere.
//!
//! **Lookup counts.** Every [`Entry`] given to the kernel adds one reference to its inode; [`Filesystem::forget`] takes
//! them back. An inode without a name lives until its count is zero.
//!
//! **There are no file handles.** An exclusive or frozen mount answers OPEN, OPENDIR, FLUSH and CREATE with ENOSYS, so the
//! kernel never asks again; what an open file is follows from its inode number alone. Readdir positions are therefore
//! good for ever: a position is a value that the filesystem can resume from with nothing remembered.

use std::ops::ControlFlow;

use base::{Ino, Timestamp};
pub use blob::coming::Coming;

use crate::errno::Errno;

/// Shorthand: what every method answers.
pub type Result<T> = std::result::Result<T, Errno>;

/// The program behind a request. User and group are `u32::MAX` where the kernel does not name them: it allows id-mapped mounts, and nothing is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread, as this process numbers it; 0 where it cannot be seen from here.
    pub pid: u32,
}

/// What kind of thing an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => libc::S_IFREG,
            FileKind::Dir => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
        }
    }

    /// From the `S_IFMT` bits of a mode; bits 0 mean a regular file, as mknod(2) has it.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => FileKind::File,
            libc::S_IFDIR => FileKind::Dir,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => return None,
        })
    }

    /// The `DT_*` value of a directory entry.
    pub fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// An inode's attributes, as stat(2) shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (mode & 07777).
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as the kernel encodes it.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Room taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access (as set; reads do not move it unless the mount says so).
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

/// A name found or made: the kernel holds one more reference to the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode's attributes.
    pub attr: Attr,
    /// The number by which the kernel asks for it from now on: the inode's own, except where one inode has several contents at a
    /// time ([`crate::follow`]).
    pub node: Ino,
    /// Distinguishes inodes that had the same number; always 0 while numbers are never reused.
    pub generation: u64,
    /// It is about to change: the kernel is to ask again when it is looked up next.
    pub fleeting: bool,
}

impl Entry {
    /// Of an inode that goes by its own number, to be kept.
    pub fn of(attr: Attr) -> Entry {
        Entry { attr, node: attr.ino, generation: 0, fleeting: false }
    }
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The moment at which the request is served.
    Now,
    /// This moment.
    To(Timestamp),
}

/// What setattr changes; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to this size.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time: sent only by a kernel that keeps the times itself (writeback cache).
    pub ctime: Option<Timestamp>,
    /// The caller is not privileged to leave set-user-id and set-group-id standing: clear them, the latter where the group may
    /// execute or the caller is not of the file's group. Of a change of owner the kernel says so whoever asks.
    pub kill_suid_sgid: bool,
}

/// Regular files whose change time moved with a change of names: at most one that was moved or lost a name, and one that stood at
/// the new name. A kernel that keeps times itself hands theirs over right after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched(pub [Option<Ino>; 2]);

impl Touched {
    /// One file.
    pub fn one(ino: Ino) -> Touched {
        Touched([Some(ino), None])
    }
}

/// A node to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Regular file, fifo, socket or device (directories and symlinks have methods of their own).
    pub kind: FileKind,
    /// Permission bits asked for (07777), before umask or a default ACL is applied.
    pub perm: u16,
    /// The caller's umask; it counts only where the parent has no default ACL.
    pub umask: u16,
    /// For device nodes.
    pub rdev: u32,
}

/// How rename treats what is in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    #[default]
    Replace,
    /// Refuse with EEXIST (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchange the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// How setxattr treats what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Set,
    /// Refuse with EEXIST if there.
    Create,
    /// Refuse with ENODATA if not there.
    Replace,
}

/// What fallocate(2) is asked to do with the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Make room; the size grows if the range ends beyond it, unless `keep_size`.
    Reserve {
        /// `FALLOC_FL_KEEP_SIZE`
        keep_size: bool,
    },
    /// Free the range; it reads as zeros, the size stays.
    PunchHole,
    /// The range reads as zeros; the size grows if the range ends beyond it, unless `keep_size`.
    Zero {
        /// `FALLOC_FL_KEEP_SIZE`
        keep_size: bool,
    },
}

/// Which edge lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

/// One name of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The name's bytes.
    pub name: &'a [u8],
    /// The inode.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Where to go on: the listing after this entry starts at this position.
    pub next: u64,
}

/// Room in the volume, for statfs(2); bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the volume in bytes.
    pub total: u64,
    /// Free bytes, with those that nobody can write to: the disk's reserve for root, and what is kept free for removals.
    pub free: u64,
    /// Bytes that can be written.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// A request whose wait can be judged beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// [`Filesystem::read`] of this range.
    Read {
        /// Inode.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// [`Filesystem::write`]: waits where an origin is behind.
    Write,
    /// [`Filesystem::fsync`] and the like: waits for a disk.
    Sync,
    /// A change of names or attributes.
    Change,
    /// A look at names or attributes.
    Look,
}

/// What came of bytes that were on their way: they, an error, or nothing, and then the range has to be read.
pub type Came<'a> = std::result::Result<&'a [u8], Option<Errno>>;

/// Is told of them at most once, on any thread, and does not wait there. True: they were of use.
pub type Answer = Box<dyn FnOnce(Came<'_>) -> bool + Send>;

/// How long the kernel may keep what it was told, and what it is told at all. Asked once, at mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// The tree cannot change.
    Frozen,
    /// All changes come through this mount.
    Exclusive,
}

/// A filesystem that can be mounted. Errors are error numbers, as the kernel will hand them to the program.
///
/// Permission checks are the kernel's (`default_permissions`, always); methods check what only the filesystem knows.
/// Names are 1 to 255 bytes other than `/` and NUL; `ENAMETOOLONG` otherwise.
#[allow(unused_variables)]
pub trait Filesystem: Send + Sync {
    /// What the mount promises about changes.
    fn coherence(&self) -> Coherence;

    /// Whether serving this request would wait for more than memory and the local page cache.
    fn would_wait(&self, request: Waiting) -> bool {
        false
    }

    /// A read of a range, answered by whoever brings its bytes, if they are on their way. Waits for nothing.
    fn coming(&self, ino: Ino, offset: u64, len: u32, then: Answer) -> Coming {
        Coming::No
    }

    /// Whether what is answered now is about to change, so that the kernel may keep it for no time: attributes, and that there is no
    /// such name. Asked after each such answer; an [`Entry`] says so by itself.
    fn fleeting(&self) -> bool {
        false
    }

    /// Finds a name. `ENOENT` where there is none.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// Takes back `count` references of the kernel's.
    fn forget(&self, ino: Ino, count: u64);

    /// Attributes.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes; truncates when the size is among them. Answers the attributes after.
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// A symbolic link's target.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Makes a node that is neither directory nor symlink.
    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry>;

    /// Makes a directory. `umask` as in [`NewNode`].
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry>;

    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;

    /// Makes a file without a name (`O_TMPFILE`).
    fn tmpfile(&self, caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Gives an inode one more name.
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// Removes a name that is not a directory's.
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Touched>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;

    /// Renames.
    fn rename(&self, parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched>;

    /// Reads at most `buf.len()` bytes; fewer only at the end of the file. Answers how many.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`. `unprivileged`: who writes, if set-id bits must go as with `kill_suid_sgid` of [`SetAttr`]; `None`:
    /// they stay. `cached`: the bytes come from the kernel's page cache, which keeps size and times itself, and took capabilities away when
    /// the program wrote; one that is there now was set later and stays. Answers whether set-id bits went: the kernel does not ask for a mode again because of a write.
    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        unprivileged: Option<&Caller>,
        cached: bool,
    ) -> Result<bool>;

    /// Takes from a file what its bytes may not be changed under: set-id bits, as a write by `caller` does. Before
    /// [`Filesystem::allocate`] and, of the target, [`Filesystem::copy_range`]. Answers whether set-id bits went.
    fn drop_privileges(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        let _ = (caller, ino);
        Ok(false)
    }

    /// fallocate(2).
    fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()>;

    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`. `ENXIO` past the end.
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64>;

    /// Copies a range between files of this filesystem by names only. Answers how many bytes.
    fn copy_range(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;

    /// When it returns, everything done to this inode before (and its names) survives a power cut.
    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()>;

    /// The same for the whole filesystem.
    fn sync(&self) -> Result<()>;

    /// Hands `each` the entries from `position` (0: the start) on, `.` and `..` among them, until it breaks. An entry for which
    /// it broke was not taken. Entries that are there throughout a listing are seen exactly once, whatever comes and goes meanwhile.
    fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The same with attributes, and one reference for each entry taken other than `.` and `..` (as by [`Filesystem::lookup`]).
    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// An extended attribute's value. `ENODATA` where there is none.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets one. `kill_sgid`: setting an ACL must clear the set-group-id bit.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()>;

    /// The names of all, each followed by a NUL byte.
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Removes one. `ENODATA` where there is none.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// Room in the volume.
    fn statfs(&self) -> Result<StatFs>;

    /// The kernel is gone: the mount ended. All references are void.
    fn unmounted(&self) {}
}
