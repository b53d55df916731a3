//! The operations that change names, and what comes of planning one.

use base::{BlobId, Ino, PackNo, Timestamp};

use crate::key::{Key, KeyRange};
use crate::record::InodeRecord;
use crate::store::Commit;

/// Who asks, and when. Part of the operation, so that a plan is a function of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ctx {
    /// The time the operation happens at.
    pub now: Timestamp,
    /// The caller's effective user.
    pub uid: u32,
    /// The caller's effective group.
    pub gid: u32,
}

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Make<'a> {
    /// The new inode's number, never used before.
    pub ino: Ino,
    /// `S_IFMT` and permission bits as asked for.
    pub mode: u32,
    /// Applied to the permissions unless the parent has a default ACL.
    pub umask: u32,
    /// For device nodes.
    pub rdev: u32,
    /// A symbolic link's target (stored inline whatever its length, up to 4,095 bytes); else empty.
    pub target: &'a [u8],
}

/// New bytes of a file that are in a pack. Lies within one 4 MiB page of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file, in bytes.
    pub at: u64,
    /// How many; not 0.
    pub len: u32,
    /// The pack.
    pub pack: PackNo,
    /// Where in the pack.
    pub offset: u32,
    /// CRC32C of bytes just written to the pack; `None` for a range that was there before (the same content was stored
    /// already): the plan then checks that the pack is neither condemned nor gone. Such a range may be one that nothing has
    /// referred to for a while ([`Op::Write`]'s `intern` outlives the file), so a pack's bytes are kept until it is condemned.
    pub fresh: Option<u32>,
}

/// The bytes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The file's whole new contents, at most 512 bytes: kept among the names. Replaces whatever the file held.
    Inline(&'a [u8]),
    /// Packed pieces, ascending, not overlapping. A file that was inline must be covered from 0 to its size by them (or the plan is
    /// refused with [`Refusal::MustOutline`]).
    Packed(&'a [Piece]),
}

/// Times and attributes to set; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttrs {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New size. A shrink of more than 64 GiB is planned in steps: see [`Change::more`].
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<Timestamp>,
    /// Modification time.
    pub mtime: Option<Timestamp>,
    /// Change time, where the kernel keeps it; else it becomes `now`.
    pub ctime: Option<Timestamp>,
    /// The group of one who may not leave set-id bits standing; `None`: they stay. Set-user-id goes; set-group-id goes where the
    /// file's group may execute, or where this is not the file's group. Changing the owner does so too, as if by one of
    /// the file's group where nobody is named here. A change of owner or size always takes capabilities away.
    pub unprivileged: Option<u32>,
}

/// How rename treats what is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Refuse.
    NoReplace,
    /// Exchange the two.
    Exchange,
}

/// How setxattr treats what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Refuse if there.
    Create,
    /// Refuse if not there.
    Replace,
}

/// A range that moved: the `len` bytes of (`from`, `from_offset`) are also at (`to`, `to_offset`), because compaction copied them there or
/// because equal bytes were stored there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Old pack.
    pub from: PackNo,
    /// Where in it.
    pub from_offset: u32,
    /// How many bytes.
    pub len: u32,
    /// New pack.
    pub to: PackNo,
    /// Where in it.
    pub to_offset: u32,
    /// CRC32C of the copied bytes. None: an earlier commit spoke of them.
    pub crc: Option<u32>,
}

/// An operation that changes names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Rows of a new volume: root directory (mode 0755, owner from ctx), counters. Refused with `Exists` if there is one.
    Format {
        /// The format's version and other rows, opaque to the planner: `00 name` -> value.
        rows: &'a [(&'a str, Vec<u8>)],
    },
    /// A new inode with a name: file, directory, symlink, special.
    Create {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
        /// What.
        make: Make<'a>,
    },
    /// A new regular file without a name; collected unless linked.
    Tmpfile {
        /// The directory whose setgid bit and default ACL it follows.
        parent: Ino,
        /// What.
        make: Make<'a>,
    },
    /// One more name. An orphan (`O_TMPFILE`) ceases to be one.
    Link {
        /// Inode; not a directory.
        ino: Ino,
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// One name less; with the last the inode becomes an orphan.
    Unlink {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// Removes an empty directory's name; it becomes an orphan, whose row keeps its inode: a directory has an inode row
    /// (`01`) exactly as long as names can be made in it.
    Rmdir {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// Renames; what it replaces becomes an orphan (or loses one name).
    Rename {
        /// From this directory
        parent: Ino,
        /// this name
        name: &'a [u8],
        /// to this directory
        to: Ino,
        /// this name.
        to_name: &'a [u8],
        /// What is in the way.
        mode: RenameMode,
    },
    /// Attributes and size.
    SetAttr {
        /// Inode.
        ino: Ino,
        /// What.
        set: SetAttrs,
    },
    /// New bytes.
    Write {
        /// Regular file (or orphan).
        ino: Ino,
        /// The bytes.
        body: Body<'a>,
        /// Clears set-id bits, as in [`SetAttrs`]. (Capabilities go with any write.)
        unprivileged: Option<u32>,
        /// The kernel keeps size and times itself: leave mtime and ctime alone (the size still grows to cover the bytes).
        cached: bool,
        /// The whole content, if it is one piece and should be found by later files of the same content.
        intern: Option<BlobId>,
    },
    /// The range becomes a hole. With `grow_to` the size is raised to it afterwards (allocate, zero-range).
    Punch {
        /// Inode.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// How many (may be 0, for growth alone).
        len: u64,
        /// Raise the size to this.
        grow_to: Option<u64>,
    },
    /// The destination range refers to what the source range refers to. At most 64 pages of 4 MiB per plan; [`Change::done`] says how far it
    /// came. Neither file is inline (refused with [`Refusal::MustOutline`]).
    CopyRange {
        /// Source.
        from: Ino,
        /// First byte.
        from_offset: u64,
        /// Destination.
        to: Ino,
        /// First byte.
        to_offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// A new inode that is as `from` in everything but number and links: attributes, extended attributes, contents (by names). Planned in steps
    /// for large files: the first makes it an orphan, [`Op::CloneMore`] goes on, [`Op::Link`] or [`Op::Attach`] gives it a name.
    CloneInode {
        /// What to copy. For a directory: not its entries.
        from: Ino,
        /// The new inode's number.
        ino: Ino,
    },
    /// Copies up to 1,024 further extent pages from `from` to `ino`, from `page` on: the [`Change::done`] of the step before, while
    /// its [`Change::more`] is set.
    CloneMore {
        /// Source.
        from: Ino,
        /// The orphan being made.
        ino: Ino,
        /// First page to copy.
        page: u32,
    },
    /// Gives an orphan directory (or file) its first name.
    Attach {
        /// Orphan.
        ino: Ino,
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// Collects an orphan: up to 1,024 pages per plan, the inode last. A directory must be empty.
    Reap {
        /// Orphan. One that is none, or is gone, is no error and no change. A directory that a clone was building when the
        /// machine stopped may still have entries: refused with `NotEmpty`; remove them first.
        ino: Ino,
    },
    /// Sets an extended attribute. ACLs (`system.posix_acl_*`) are checked and move the mode's bits.
    SetXattr {
        /// Inode.
        ino: Ino,
        /// Name with its namespace.
        name: &'a [u8],
        /// Value.
        value: &'a [u8],
        /// What is there.
        mode: XattrMode,
        /// Clear the set-group-id bit.
        kill_sgid: bool,
    },
    /// Removes one. An ACL that is not there is no error.
    RemoveXattr {
        /// Inode.
        ino: Ino,
        /// Name with its namespace.
        name: &'a [u8],
    },
    /// A pack begins.
    OpenPack {
        /// Its number.
        pack: PackNo,
    },
    /// A pack has become a blob.
    SealPack {
        /// Its number.
        pack: PackNo,
        /// The blob.
        blob: BlobId,
        /// Its size in bytes.
        size: u32,
    },
    /// A sealed pack with no live bytes is condemned (refused with `Busy` if something refers to it).
    CondemnPack {
        /// Its number.
        pack: PackNo,
    },
    /// A condemned pack's, or an open and unreferenced pack's, row goes.
    ForgetPack {
        /// Its number.
        pack: PackNo,
    },
    /// Extents of one page of a file follow what compaction moved; those that changed meanwhile stay.
    Follow {
        /// Inode.
        ino: Ino,
        /// Page.
        page: u32,
        /// What moved, sorted by (`from`, `from_offset`).
        moves: &'a [Move],
    },
    /// Takes `count` numbers from an allocation counter (`next-ino`, `next-pack`): [`Change::first`] is the first.
    Allocate {
        /// Which counter.
        counter: &'static str,
        /// How many.
        count: u64,
    },
}

/// Why an operation is refused. The room above turns each into an error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("it exists already")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDir,
    /// EISDIR
    #[error("a directory")]
    IsDir,
    /// ENOTEMPTY
    #[error("directory not empty")]
    NotEmpty,
    /// EINVAL
    #[error("invalid")]
    Invalid,
    /// EPERM
    #[error("not permitted")]
    NotPermitted,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// EFBIG
    #[error("file too large")]
    TooLarge,
    /// ENAMETOOLONG
    #[error("name too long")]
    NameTooLong,
    /// ENODATA
    #[error("no such attribute")]
    NoAttribute,
    /// ERANGE, E2BIG, ENOSPC: an extended attribute is too large (64 KiB), or an inode's are together (1 MiB; names 64 KiB)
    #[error("attribute too large")]
    AttributeTooLarge,
    /// EBUSY
    #[error("in use")]
    Busy,
    /// EOPNOTSUPP
    #[error("not supported")]
    Unsupported,
    /// The file's bytes are inline and this plan needs them in a pack: the caller rewrites them (never seen by users).
    #[error("the file's bytes are inline")]
    MustOutline,
    /// The content's pack is condemned or gone: the caller stores the bytes anew (never seen by users).
    #[error("the content is not stored any more")]
    ContentGone,
    /// EIO: rows contradict one another; fsck says more.
    #[error("the volume's names are damaged")]
    Damaged,
}

/// A planned change.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// What to commit. Empty when there is nothing to change, and when it has been committed ([`crate::Names::run`]).
    pub commit: Commit,
    /// The inode after the operation (the new one; the one that was changed or moved; the one that lost a name). A directory as
    /// it is stored; [`crate::Names::run`] completes it.
    pub inode: Option<(Ino, InodeRecord)>,
    /// Inodes whose last name went with this commit.
    pub orphaned: Vec<Ino>,
    /// Packs that lost live bytes: candidates for collection and compaction. Some may have gained as many.
    pub released: Vec<PackNo>,
    /// The page that was written now has more extents than is good: (inode, page).
    pub crowded: Vec<(Ino, u32)>,
    /// Bytes done ([`Op::CopyRange`], [`Op::Follow`]), pages done ([`Op::Reap`]), or the page to go on from ([`Op::CloneInode`],
    /// [`Op::CloneMore`]).
    pub done: u64,
    /// The operation is not finished: plan it again (a clone goes on with [`Op::CloneMore`]).
    pub more: bool,
    /// The first number taken ([`Op::Allocate`]).
    pub first: u64,
}

/// What planning comes to.
#[derive(Clone, Debug)]
pub enum Plan {
    /// Show these rows and plan again.
    Need {
        /// Single rows.
        keys: Vec<Key>,
        /// Ranges, each with how many rows at most.
        ranges: Vec<(KeyRange, usize)>,
    },
    /// Refused.
    Refused(Refusal),
    /// Commit this.
    Change(Box<Change>),
}
