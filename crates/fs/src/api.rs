//! What a transport asks of a filesystem: one method per kernel operation, in plain types.
//!
//! The transport decodes a request, calls a method on the thread that received it, and encodes the result. A
//! method may block only for as long as this machine's own disk takes. [`Filesystem::would_wait`] says in
//! advance whether a request must wait longer (for a network); the transport then runs it on another thread.
//!
//! **Lookup counts.** Every [`Entry`] given to the kernel adds one reference to its inode;
//! [`Filesystem::forget`] removes references. An inode without a name lives until its count is zero.
//!
//! **There are no file handles.** An exclusive or frozen mount answers OPEN, OPENDIR, FLUSH and CREATE with
//! ENOSYS, so the kernel never sends them again. On a shared mount the transport answers OPEN and OPENDIR by
//! itself. Everything about an open file follows from its inode number. A readdir position therefore never
//! expires: the filesystem can resume from it without any state.

mod parts;

use std::ops::ControlFlow;
use std::sync::Arc;

use base::{Ino, Timestamp};
pub use blob::completion::{FetchTask, Start};

use crate::errno::Errno;
pub use crate::locks::{Lock, LockAnswer, LockKind, LockOwner, LockRange, LockStyle, LockWait, Locks};
pub use crate::read_plan::ReadPlan;
pub use meta::lease::{KernelCache, Leases, Promise, in_session};
pub use parts::{Part, Waiting};

/// The result of every method.
pub type Result<T> = std::result::Result<T, Errno>;

/// The process behind a request. User and group are `u32::MAX` where the kernel does not send them: it allows
/// id-mapped mounts, and the request creates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread id in this process's PID namespace; 0 where the thread is not visible from here.
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

    /// From the `S_IFMT` bits of a mode. No bits mean a regular file, as for mknod(2).
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
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last access (as set; reads update it only with `-o atime=relatime`).
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// The version of the bytes of a regular file: another one after every change of them, whatever the times
    /// and the size say. It is not shown by stat(2), and 0 where files never change.
    pub version: u64,
}

/// A name that was found or created. The kernel holds one more reference to its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode's attributes.
    pub attr: Attr,
    /// The number that the kernel uses for it from now on. It is the inode's own number, except where one
    /// inode has several contents at once ([`crate::follow`]), and where inode numbers are given again to
    /// other files (a plain folder).
    pub node: Ino,
    /// Distinguishes inodes that had the same number; always 0 while numbers are never reused.
    pub generation: u64,
    /// The entry is about to change: the kernel must not cache it, and asks again at the next lookup.
    pub fleeting: bool,
    /// In a listing with attributes: the kernel already held this folder, maybe below another one
    /// ([`Filesystem::readdir_plus`]).
    pub held: bool,
}

impl Entry {
    /// An entry that the kernel may cache, under the inode's own number.
    pub fn of(attr: Attr) -> Entry {
        Entry { attr, node: attr.ino, generation: 0, fleeting: false, held: false }
    }
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The moment at which the request is executed.
    Now,
    /// A given moment.
    To(Timestamp),
}

/// What setattr changes; `None` leaves a value as it is.
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
    /// Change time. Only a kernel that keeps the times itself (writeback cache) sends it.
    pub ctime: Option<Timestamp>,
    /// The caller lacks the privilege to keep set-user-id and set-group-id bits: clear them. The set-group-id
    /// bit is cleared only where the group may execute the file or the caller is not in the file's group.
    /// With a change of owner, the kernel sets this for every caller, root too.
    pub kill_suid_sgid: bool,
}

/// The regular files whose change time an operation on names moved: at most one that was moved or lost a
/// name, and one that was replaced at the new name. A kernel that keeps times itself sends their times right
/// afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched(pub [Option<Ino>; 2]);

impl Touched {
    /// One file.
    pub fn one(ino: Ino) -> Touched {
        Touched([Some(ino), None])
    }
}

/// An inode to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Regular file, fifo, socket or device. Directories and symlinks have methods of their own.
    pub kind: FileKind,
    /// Permission bits requested (07777), before the umask or a default ACL is applied.
    pub perm: u16,
    /// The caller's umask. It is applied only where the parent has no default ACL.
    pub umask: u16,
    /// For device nodes.
    pub rdev: u32,
}

/// What rename does when the new name exists.
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

/// What setxattr does when the attribute exists or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Set,
    /// Refuse with EEXIST if it exists.
    Create,
    /// Refuse with ENODATA if it does not exist.
    Replace,
}

/// What fallocate(2) does with the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve space. The size grows if the range ends beyond it, unless `keep_size`.
    Reserve {
        /// `FALLOC_FL_KEEP_SIZE`
        keep_size: bool,
    },
    /// Free the range: it reads as zeros. The size stays.
    PunchHole,
    /// Make the range read as zeros. The size grows if the range ends beyond it, unless `keep_size`.
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

/// What the positions of a filesystem's listings are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Small numbers, or numbers that only this filesystem understands.
    Plain,
    /// Hashes of names, spread over 63 bits, in order. A listing may continue at any number.
    /// [`DirEntry::next`] is the entry's own position and 1.
    Hashes,
    /// Hashes as for [`Positions::Hashes`], but [`DirEntry::next`] is the position of the next entry.
    OfNext,
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The name's bytes.
    pub name: &'a [u8],
    /// The inode.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// The position after this entry, from which a listing can be resumed.
    pub next: u64,
}

/// Space in the volume, for statfs(2): bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the volume in bytes.
    pub total: u64,
    /// Free bytes, including those that no user can write to: the disk's reserve for root, and the floor that
    /// is kept free for removals.
    pub free: u64,
    /// Bytes that can be written.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that can still be created.
    pub inodes_free: u64,
}

/// The result of an in-flight fetch: the bytes, an error, or `Err(None)`: the fetch ended without a result,
/// and the range must be read.
pub type Fetched<'a> = std::result::Result<&'a [u8], Option<Errno>>;

/// A completion, called at most once, on any thread. It must not block. It returns true if it used the bytes.
pub type Answer = Box<dyn FnOnce(Fetched<'_>) -> bool + Send>;

/// What the kernel may cache. Asked once, at mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// The tree cannot change.
    Frozen,
    /// All changes come through this mount.
    Exclusive,
    /// Other machines change the tree too. The kernel caches no listings, and names and attributes only as
    /// far as [`Filesystem::leases`] permits. Written bytes reach the filesystem before write(2) returns, or,
    /// if they were written through a shared mapping, before close(2) returns. The kernel drops a file's
    /// pages at each open, and whenever a request shows another size or modification time than before. So
    /// every change of contents must give the file a modification time that it never had: two writes within
    /// one tick of the clock too.
    Shared,
}

/// A filesystem that can be mounted. Errors are error numbers, as the kernel returns them to the program.
///
/// The kernel checks permissions (`default_permissions`, always). Methods check only what the filesystem
/// alone can know. Names are 1 to 255 bytes other than `/` and NUL; otherwise `ENAMETOOLONG`.
#[allow(unused_variables)]
pub trait Filesystem: Send + Sync {
    /// What the mount promises about changes.
    fn coherence(&self) -> Coherence;

    /// Whether this request would wait for more than memory and the local page cache.
    fn would_wait(&self, request: Waiting) -> bool {
        false
    }

    /// Whether these parts of a shared tree can be looked at, or changed, without waiting for another
    /// machine. Never waits itself.
    fn is_at_hand(&self, parts: &[Part<'_>], change: bool) -> bool {
        false
    }

    /// What decides how long the kernel may keep what replies say. `None`: the kind of mount does.
    fn leases(&self) -> Option<Arc<Leases>> {
        None
    }

    /// Looks up what a read needs, once, and says whether the read would wait. Never waits itself. Errors are
    /// found again, and returned, by the read.
    fn plan_read(&self, ino: Ino, offset: u64, len: u32) -> ReadPlan {
        let waits = self.would_wait(Waiting::Read { ino, offset, len });
        ReadPlan::without_names(ino, offset, len, waits)
    }

    /// [`Filesystem::read`] of the range of a plan, which was made just now.
    fn read_planned(&self, plan: &ReadPlan, buf: &mut [u8]) -> Result<usize> {
        self.read(plan.ino, plan.offset, buf)
    }

    /// Begins a read whose plan says that it would wait: joins the in-flight fetch of its bytes, or says how
    /// to fetch them. `answer` is called when they arrive. Never blocks.
    fn start_read(&self, plan: &ReadPlan, answer: Answer) -> Start {
        Start::Read
    }

    /// Whether the current answers are about to change, so that the kernel must not cache attributes or the
    /// absence of a name. Called after each such answer. An [`Entry`] carries its own flag.
    fn fleeting(&self) -> bool {
        false
    }

    /// Finds a name. `ENOENT` where there is none.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// Counts one more reference to an inode that a kernel held before this filesystem was opened again.
    /// `ENOENT` if it is gone. One without a name is there as long as something holds it.
    fn hold_again(&self, ino: Ino) -> Result<()> {
        self.lookup(ino, b".").map(drop)
    }

    /// Drops `count` references that the kernel held. It must not wait: it is called on the thread that
    /// receives requests.
    fn forget(&self, ino: Ino, count: u64);

    /// Returns an inode's attributes.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes, and truncates when the size is among them. Returns the new attributes.
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Returns a symbolic link's target.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Creates an inode that is neither a directory nor a symlink.
    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry>;

    /// Creates a directory. `umask` as in [`NewNode`].
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry>;

    /// Creates a symbolic link.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;

    /// Creates a file without a name (`O_TMPFILE`).
    fn tmpfile(&self, caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Gives an inode one more name.
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// Removes a name of anything but a directory.
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Touched>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;

    /// Renames.
    fn rename(&self, parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched>;

    /// Reads at most `buf.len()` bytes; fewer only at the end of the file. Returns how many.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`. Returns whether set-id bits were cleared: after a write the kernel does not ask
    /// for the mode by itself.
    ///
    /// `unprivileged`: the writer, if set-id bits must be cleared as with `kill_suid_sgid` of [`SetAttr`];
    /// with `None` they stay. `cached`: the bytes come from the kernel's page cache. That kernel keeps size
    /// and times itself, and removed capabilities when the program wrote; a capability that is there now was
    /// set later and stays. The kernel of a shared mount keeps neither size nor times: there `cached` only
    /// means that the bytes were written through a mapping.
    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        unprivileged: Option<&Caller>,
        cached: bool,
    ) -> Result<bool>;

    /// Writes all of `data` at the end of the file, wherever that is now. Returns and takes the same as
    /// [`Filesystem::write`]. Asked only of a shared filesystem, for files opened with `O_APPEND`: the kernel
    /// knows only the size that it saw last. A filesystem that several machines change must find the end and
    /// write in one step; this one does not.
    fn append(&self, ino: Ino, data: &[u8], unprivileged: Option<&Caller>) -> Result<bool> {
        let end = self.getattr(ino)?.size;
        self.write(ino, end, data, unprivileged, false)
    }

    /// Clears the set-id bits of a file, as a write by `caller` does. Called before [`Filesystem::allocate`],
    /// and for the target of [`Filesystem::copy_range`]. Returns whether bits were cleared.
    fn drop_privileges(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        let _ = (caller, ino);
        Ok(false)
    }

    /// fallocate(2).
    fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()>;

    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`. `ENXIO` past the end.
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64>;

    /// Copies a range between files of this filesystem by reference, without copying bytes. Returns how many
    /// bytes.
    fn copy_range(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;

    /// When it returns, every earlier change of this inode (and its names) survives a power cut.
    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()>;

    /// Returns when every earlier change of the whole filesystem survives a power cut.
    fn sync(&self) -> Result<()>;

    /// What the positions of listings are.
    fn positions(&self) -> Positions {
        Positions::Plain
    }

    /// Passes to `each` the entries from `position` (0: the start) on, `.` and `..` included, until it
    /// breaks. The entry at which it broke was not taken. Entries that exist throughout a listing are seen
    /// exactly once, whatever is created or removed meanwhile.
    fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Passes entries to `each` as [`Filesystem::readdir`] does, with their attributes. Adds one reference
    /// for each entry taken other than `.` and `..` (as [`Filesystem::lookup`] does). [`Entry::held`] is set
    /// for a folder to which there were references before.
    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// An extended attribute's value. `ENODATA` where there is none.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets one attribute. `kill_sgid`: setting an ACL must clear the set-group-id bit.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()>;

    /// All attribute names, each followed by a NUL byte.
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Removes one attribute. `ENODATA` where there is none.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// Where locks are decided. Asked once, at mount, and only of a shared filesystem: any other has them in
    /// the kernel.
    fn locks(&self) -> Locks {
        Locks::Local
    }

    /// A lock that keeps this one from being granted, for `F_GETLK`. `None`: it would be granted.
    fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>> {
        Err(Errno::ENOSYS)
    }

    /// Takes or releases a lock without waiting for other owners. `EAGAIN` if it conflicts.
    fn set_lock(&self, ino: Ino, lock: &Lock) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Takes a lock. If it conflicts, the request waits for as long as it takes: `answer` is called when the
    /// lock is granted, when the request fails, or after [`Filesystem::cancel_lock`]. This call itself does
    /// not wait for other owners. A flock that has to wait gives up what its owner held
    /// ([`crate::locks::FileLocks::wait`]).
    fn wait_lock(&self, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        answer(Err(Errno::ENOSYS));
    }

    /// Withdraws a request that waits. If it has not been granted, its answer is called with `EINTR`. If it
    /// has, or is unknown, nothing happens. It must not wait: it is called on the thread that receives
    /// requests.
    fn cancel_lock(&self, wait: LockWait) {}

    /// Releases all locks of one style that an owner holds on a file, because a file was closed. The owner
    /// never appears again. An error is reported to close(2) at most, and nobody repeats the call: the
    /// filesystem must see to it that the locks end.
    fn release_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// The number of the session in which locks are granted now, for [`in_session`]. `None`: locks do not end
    /// with a session.
    fn lock_session(&self) -> Option<u64> {
        None
    }

    /// Whether an owner held locks on a file that ended with a session of this machine. It stays so until the
    /// owner releases all of them, or its file is closed. Meanwhile it may neither read nor write the file.
    fn has_lost_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<bool> {
        Ok(false)
    }

    /// Space in the volume, or what the quotas around an inode leave of it.
    fn statfs(&self, ino: Ino) -> Result<StatFs>;

    /// The mount ended, and the kernel will send nothing more. All references are void. So are the locks that
    /// were taken through this mount, and requests that wait for one have been cancelled.
    fn unmounted(&self) {}
}
