//! The operations that change names, and the results of planning one.

use base::{BlobId, Ino, PackNo, Timestamp};

use crate::key::{Key, KeyRange};
use crate::quota::{Charge, QuotaRow};
use crate::record::{DoomedRow, InodeRecord};
use crate::store::{Commit, Value};

/// The caller and the time. Part of the operation, so that a plan is a function of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ctx {
    /// The time the operation happens at.
    pub now: Timestamp,
    /// The caller's effective user.
    pub uid: u32,
    /// The caller's effective group.
    pub gid: u32,
}

/// What to create.
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

/// New bytes of a file that are in a pack. They lie within one 4 MiB page of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset in the file, in bytes.
    pub at: u64,
    /// The length in bytes; not 0.
    pub len: u32,
    /// The pack.
    pub pack: PackNo,
    /// The offset in the pack.
    pub offset: u32,
    /// CRC32C of bytes just written to the pack. `None` for a range that was there before, because the same
    /// content is stored already: the plan then checks that the pack is neither condemned nor removed. It may
    /// be a while since anything referred to such a range ([`Op::Write`]'s `intern` outlives the file), so a
    /// pack's bytes are kept until it is condemned.
    pub fresh: Option<u32>,
}

/// The bytes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The file's whole new contents, at most 512 bytes, stored with the metadata. Replaces whatever the file
    /// held.
    Inline(&'a [u8]),
    /// Packed pieces, ascending, not overlapping. If the file was inline, they must cover it from 0 to its
    /// size (or the plan is refused with [`Refusal::MustOutline`]).
    Packed(&'a [Piece]),
    /// Pieces as for [`Body::Packed`], which hold the bytes that an inline file has already: no byte changes.
    Moved(&'a [Piece]),
}

/// Attributes and times to set; `None` leaves one as it is.
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
    /// Change time, if the kernel keeps it; otherwise it becomes `now`.
    pub ctime: Option<Timestamp>,
    /// The group of a caller whose change clears set-id bits; `None`: they stay. Set-user-id is cleared.
    /// Set-group-id is cleared if the file's group may execute, or if this is not the file's group. Changing
    /// the owner clears them too: without a group here, as if the caller were in the file's group. A change
    /// of owner or size always clears capabilities.
    pub unprivileged: Option<u32>,
}

/// What rename does if the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Refuse.
    NoReplace,
    /// Exchange the two names.
    Exchange,
}

/// What setxattr does about an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Refuse if it exists.
    Create,
    /// Refuse if it does not exist.
    Replace,
}

/// A range that moved: the `len` bytes of (`from`, `from_offset`) are also at (`to`, `to_offset`), because
/// compaction copied them there or because equal bytes were stored there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Old pack.
    pub from: PackNo,
    /// The offset in it.
    pub from_offset: u32,
    /// How many bytes.
    pub len: u32,
    /// New pack.
    pub to: PackNo,
    /// The offset in it.
    pub to_offset: u32,
    /// CRC32C of the copied bytes. None: an earlier commit mentioned them.
    pub crc: Option<u32>,
}

/// Why a blob of a shared volume may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unkept<'a> {
    /// The moment since which a pack is condemned, and the pack. The pack is forgotten, or is usable again if
    /// something refers to it after all.
    Pack(u64, PackNo),
    /// The published tree of this name holds it no longer; its row is this.
    Hold(&'a str, &'a Value),
    /// The origin has it, and no row names it.
    Stray,
}

/// An operation that changes names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Rows of a new volume: root directory (mode 0755, owner from ctx), counters. Refused with `Exists` if
    /// there is one.
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
    /// Adds a name. An orphan (`O_TMPFILE`) stops being one.
    Link {
        /// Inode; not a directory.
        ino: Ino,
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// Removes a name. With its last name the inode becomes an orphan, or goes to the trash
    /// ([`crate::trash`]).
    Unlink {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// Removes an empty directory's name. It becomes an orphan, whose row keeps its inode: a directory has an
    /// inode row (`01`) exactly as long as names can be created in it.
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
        /// What to do if the new name exists.
        mode: RenameMode,
    },
    /// Sets attributes and size.
    SetAttr {
        /// Inode.
        ino: Ino,
        /// What.
        set: SetAttrs,
    },
    /// Writes bytes.
    Write {
        /// Regular file (or orphan).
        ino: Ino,
        /// The bytes.
        body: Body<'a>,
        /// Clears set-id bits, as in [`SetAttrs`]. (Capabilities go with any write that is not cached.)
        unprivileged: Option<u32>,
        /// The kernel keeps size and times itself, and cleared privileges when the program wrote. So leave
        /// mtime, ctime and capabilities alone (the size still grows to cover the bytes).
        cached: bool,
        /// The hash of the whole content, if it is one piece and later files with the same content should
        /// find it.
        intern: Option<BlobId>,
        /// The [`InodeRecord::change`] of the file that the body was made from. If the file has changed since
        /// then, the write is refused with [`Refusal::Changed`].
        over: Option<u64>,
    },
    /// Makes the range a hole. With `grow_to` the size is then raised to it (allocate, zero-range).
    Punch {
        /// Inode.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// The length in bytes (0 for growth alone).
        len: u64,
        /// Raise the size to this.
        grow_to: Option<u64>,
    },
    /// Makes the destination range refer to what the source range refers to. At most 64 pages of 4 MiB per
    /// plan; [`Change::done`] says how many bytes were done. Neither file may be inline (refused with
    /// [`Refusal::MustOutline`]).
    CopyRange {
        /// Source.
        from: Ino,
        /// First byte.
        from_offset: u64,
        /// Destination.
        to: Ino,
        /// First byte.
        to_offset: u64,
        /// The length in bytes.
        len: u64,
    },
    /// Copies `from` into a new inode: attributes, extended attributes, and contents (by reference), but not
    /// number and links. Planned in steps for large files: the first makes it an orphan, [`Op::CloneMore`]
    /// continues, [`Op::Link`] or [`Op::Attach`] gives it a name.
    CloneInode {
        /// What to copy. For a directory: not its entries.
        from: Ino,
        /// The new inode's number.
        ino: Ino,
        /// The quota that the copy counts for: that of the directory it will be in; 0 if there is none.
        quota: Ino,
    },
    /// Copies up to 1,024 further extent pages from `from` to `ino`, from `page` on. Pass the
    /// [`Change::done`] of the step before, as long as its [`Change::more`] is set.
    CloneMore {
        /// Source.
        from: Ino,
        /// The orphan being made.
        ino: Ino,
        /// First page to copy.
        page: u32,
        /// The source's [`InodeRecord::change`](crate::record::InodeRecord::change) when the first step was
        /// made ([`Change::first`]), if it may have changed since: then the step is refused with
        /// [`Refusal::Changed`].
        over: Option<u64>,
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
    /// Gives an inode in the trash a name again. Refused with `NotFound` if it is not there (any more).
    Restore {
        /// Inode in the trash.
        ino: Ino,
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// Takes an inode out of the trash: it becomes an orphan.
    Expire {
        /// Inode. If it is not in the trash since that moment, nothing changes.
        ino: Ino,
        /// The moment that its row says.
        at: Timestamp,
    },
    /// Collects an orphan: up to 1,024 pages per plan, then the inode. A directory must be empty.
    Reap {
        /// The orphan. If it is not an orphan, or is already removed, that is no error and no change. A
        /// directory that a clone was building when the machine stopped may still have entries: refused with
        /// `NotEmpty`. Remove them first.
        ino: Ino,
    },
    /// Collects an orphan of a shared volume, as [`Op::Reap`] does. Refused with [`Refusal::Busy`] while a
    /// node holds it ([`crate::Key::hold`]).
    ReapShared {
        /// The orphan.
        ino: Ino,
    },
    /// Sets an extended attribute. ACLs (`system.posix_acl_*`) are checked and change the mode bits.
    SetXattr {
        /// Inode.
        ino: Ino,
        /// Name with its namespace.
        name: &'a [u8],
        /// Value.
        value: &'a [u8],
        /// What to do about an existing attribute.
        mode: XattrMode,
        /// Clear the set-group-id bit.
        kill_sgid: bool,
    },
    /// Removes one. Removing an absent ACL is not an error.
    RemoveXattr {
        /// Inode.
        ino: Ino,
        /// Name with its namespace.
        name: &'a [u8],
    },
    /// Creates a pack's row.
    OpenPack {
        /// The pack's number.
        pack: PackNo,
    },
    /// Records that a pack has become a blob. Refused with `Busy` while the blob is being deleted
    /// ([`Op::Doom`]).
    SealPack {
        /// The pack's number.
        pack: PackNo,
        /// The blob.
        blob: BlobId,
        /// The blob's size in bytes.
        size: u32,
    },
    /// Condemns a sealed pack with no live bytes (refused with `Busy` if something refers to it).
    CondemnPack {
        /// The pack's number.
        pack: PackNo,
    },
    /// Condemns a pack of a shared volume, as [`Op::CondemnPack`] does. [`Op::Doom`] finds the pack by the
    /// moment (`now`).
    CondemnShared {
        /// The pack's number.
        pack: PackNo,
    },
    /// Removes what no longer keeps a blob of a shared volume. If nothing keeps it then, the commit says that
    /// the blob is being deleted ([`Change::doomed`]), and excludes every commit that would refer to it
    /// again.
    /// Refused with `Busy` while a node publishes
    /// ([`Key::publishing`]).
    Doom {
        /// The blob.
        blob: BlobId,
        /// What no longer keeps it.
        reason: Unkept<'a>,
        /// The session that deletes the blob.
        by: DoomedRow,
    },
    /// Removes the row of a condemned pack, or of an open pack that nothing refers to.
    ForgetPack {
        /// The pack's number.
        pack: PackNo,
    },
    /// Makes the extents of one page of a file follow what compaction moved. Extents that changed meanwhile
    /// stay.
    Follow {
        /// Inode.
        ino: Ino,
        /// Page.
        page: u32,
        /// What moved, sorted by (`from`, `from_offset`).
        moves: &'a [Move],
    },
    /// Sets, changes or removes the row of a directory's quota. Inodes that are there already do not count
    /// for it: [`Op::MoveToQuota`].
    SetQuota {
        /// The directory.
        dir: Ino,
        /// The row as it is. If it is another one, the plan is refused with [`Refusal::Changed`].
        was: Option<QuotaRow>,
        /// The row, whose `outer` the planner fills in. `None` removes it, once nothing is made in the
        /// directory that counts for it.
        row: Option<QuotaRow>,
    },
    /// Makes an inode count for another quota. No limit refuses this.
    MoveToQuota {
        /// The inode. If it counts for another quota than one of `from`, or does not exist, nothing changes.
        /// Nor does what has no name begin to count.
        ino: Ino,
        /// The quotas that it may count for; 0 for none.
        from: &'a [Ino],
        /// The quota it is to count for; 0 for none.
        to: Ino,
    },
    /// Takes `count` numbers from an allocation counter (`next-ino`, `next-pack`): [`Change::first`] is the
    /// first.
    Allocate {
        /// Which counter.
        counter: &'static str,
        /// How many.
        count: u64,
        /// None is lower than this.
        from: u64,
    },
}

/// Why an operation is refused. The `fs` crate turns each into an error number.
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
    /// ERANGE, E2BIG, ENOSPC: an extended attribute is too large (64 KiB), or an inode's are together (1 MiB;
    /// names 64 KiB)
    #[error("attribute too large")]
    AttributeTooLarge,
    /// EDQUOT
    #[error("the quota of a directory is used up")]
    OverQuota,
    /// EXDEV: what is moved or linked would count for another quota
    #[error("it counts for the quota of another directory")]
    OtherQuota,
    /// EBUSY
    #[error("in use")]
    Busy,
    /// EOPNOTSUPP
    #[error("not supported")]
    Unsupported,
    /// The file's bytes are inline and this plan needs them in a pack. The caller rewrites them; users never
    /// see this.
    #[error("the file's bytes are inline")]
    MustOutline,
    /// The content's pack is condemned or removed. The caller stores the bytes anew; users never see this.
    #[error("the content is not stored any more")]
    ContentGone,
    /// The file has changed since the caller looked at it ([`Op::Write`]'s `over`). The caller looks again;
    /// users never see this.
    #[error("the file has changed")]
    Changed,
    /// EIO: rows contradict one another; fsck gives details.
    #[error("the volume's names are damaged")]
    Damaged,
}

/// A planned change.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// What to commit. Empty if there is nothing to change, and after it was committed
    /// ([`crate::Names::run`]).
    pub commit: Commit,
    /// The inode after the operation: the new one, the one that was changed or moved, or the one that lost a
    /// name. A directory is as stored; [`crate::Names::run`] completes it.
    pub inode: Option<(Ino, InodeRecord)>,
    /// The regular file that had the new name of a rename. It lost that name, or got the other one.
    pub displaced: Option<Ino>,
    /// What counts for which quota, or does so no longer.
    pub charges: Vec<Charge>,
    /// Inodes that lost their last name with this commit.
    pub orphaned: Vec<Ino>,
    /// Packs that lost live bytes: candidates for collection and compaction. Some may have gained as many.
    pub released: Vec<PackNo>,
    /// The page that was written, if it now has too many extents: (inode, page).
    pub crowded: Vec<(Ino, u32)>,
    /// Bytes done ([`Op::CopyRange`], [`Op::Follow`]), pages done ([`Op::Reap`]), or the page to continue
    /// from ([`Op::CloneInode`], [`Op::CloneMore`]).
    pub done: u64,
    /// The operation is not finished: plan it again (a clone continues with [`Op::CloneMore`]).
    pub more: bool,
    /// The first number taken ([`Op::Allocate`]), or the counter of the source's changes
    /// ([`Op::CloneInode`]).
    pub first: u64,
    /// The blob is to be deleted now ([`Op::Doom`]).
    pub doomed: bool,
}

/// The result of planning.
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
