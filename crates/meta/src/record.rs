//! How rows are written down. Fixed fields, big-endian; every decoder refuses what it does not understand.

use base::{BlobId, Ino, PackNo, Timestamp};

/// A row's bytes were not what its key promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {what} row is damaged")]
pub struct BadRecord {
    /// Which kind of row.
    pub what: &'static str,
}

/// An inode as it is stored. For a directory, times and link count are completed from the rows `08` and `09`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// `S_IFMT` and permission bits.
    pub mode: u32,
    /// Bits of [`InodeRecord::HAS_XATTRS`] and the like.
    pub flags: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; of a directory 1 while it has its name and 0 after (stat's count is 2 + subdirectories).
    pub nlink: u32,
    /// Device number.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that extents and inline data take (stat's blocks are this over 512, rounded up).
    pub stored: u64,
    /// The directory that has its name; 0 when several have.
    pub parent: Ino,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl InodeRecord {
    /// There is at least one extended attribute; without this flag none need be looked for.
    pub const HAS_XATTRS: u16 = 1;
    /// The bytes are in the inline row.
    pub const INLINE: u16 = 2;
    /// One of the extended attributes is a default ACL (directories).
    pub const HAS_DEFAULT_ACL: u16 = 4;
    /// One of them is an access ACL.
    pub const HAS_ACL: u16 = 8;
    /// One of them is `security.capability`.
    pub const HAS_CAPABILITY: u16 = 16;
}

/// A name's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dentry {
    /// The inode.
    pub ino: Ino,
    /// `S_IFMT` bits of its mode: what readdir shows without reading the inode.
    pub kind: u32,
}

/// A pack's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackRow {
    /// Being written on this node.
    Open,
    /// A blob.
    Sealed {
        /// Its name.
        blob: BlobId,
        /// Its size in bytes.
        size: u32,
    },
    /// A blob that nothing refers to, waiting to be deleted. Never referred to again.
    Condemned {
        /// Its name.
        blob: BlobId,
        /// Its size in bytes.
        size: u32,
    },
}

/// Where a small file's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRow {
    /// The pack.
    pub pack: PackNo,
    /// Where in it.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
}
