//! What requests are about, as far as it must be known whether they wait.

use base::Ino;

#[cfg(doc)]
use super::{Filesystem, Locks};

/// A request, as far as [`Filesystem::would_wait`] needs to know it.
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
    /// [`Filesystem::write`]: waits while uploads to the origin lag behind.
    Write,
    /// [`Filesystem::fsync`] and the like: waits for a disk.
    Sync,
    /// A change of names or attributes.
    Change,
    /// A lookup of names or attributes. On a shared mount also statfs(2), and lseek(2) with `SEEK_DATA` or
    /// `SEEK_HOLE`.
    Look,
    /// A method on locks. Asked only where [`Filesystem::locks`] says [`Locks::Fleet`].
    Lock,
}

/// A part of the names, as far as [`Filesystem::is_at_hand`] needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A name in a directory, and what it stands for.
    Name(Ino, &'a [u8]),
    /// An inode's attributes.
    Inode(Ino),
    /// Where the byte at this offset of a file is.
    Byte(Ino, u64),
    /// An extended attribute of an inode.
    Xattr(Ino, &'a [u8]),
    /// The target of a symbolic link.
    Target(Ino),
    /// A directory's names, and their inodes.
    Listing(Ino),
}
