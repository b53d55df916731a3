//! Keys of rows: big-endian, so that byte order is the order of scans.
//!
//! | key | row |
//! |---|---|
//! | `00 name` | the volume: format, id, allocation counters, totals |
//! | `01 ino:8` | inode ([`crate::record::InodeRecord`]) |
//! | `02 parent:8 hash:8 name` | directory entry ([`crate::record::Dentry`]) |
//! | `03` | reserved: history edges (snapshots, trash) |
//! | `04 ino:8 page:4` | extents of a 4 MiB range of a file ([`blob::ExtentPage`]) |
//! | `05 ino:8` | the bytes of a file of at most 512 |
//! | `06 ino:8 name` | extended attribute |
//! | `08 dir:8` | when the directory's entries last changed (`max`) |
//! | `09 dir:8` | number of subdirectories (`add`) |
//! | `0C ino:8` | an inode without a name, to be collected when nobody holds it |
//! | `0E hash:32` | a small file's content: which range of a pack holds it |
//! | `0F pack:8` | pack ([`crate::record::PackRow`]) |
//! | `10 pack:8` | bytes of the pack that extents refer to, each reference counted (`add`) |
//! | `11 pack:8 ino:8 page:4` | this page of this file refers to the pack |
//! | `12 hash:32 pack:8` | this sealed pack is this blob |
//!
//! **Why a hash in directory entries.** A mount without OPENDIR has no handle in which a listing's position could be
//! kept, so a position must be a number from which a listing can be resumed with nothing remembered. Entries are ordered
//! by 63 bits of the name's BLAKE3, and that number is the position.

use std::fmt;
use std::sync::Arc;

use base::{BlobId, Ino, PackNo};

/// A row's key. At most 280 bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

/// A range of keys: from `start` (included) to `end` (not included).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key.
    pub start: Key,
    /// First key that is not in the range.
    pub end: Key,
}

/// Positions below this are not entries: 0 is the start of a listing, 1 follows `.`, 2 follows `..`.
pub const FIRST_POSITION: u64 = 3;

/// Where a name stands in its directory's listing: 63 bits of the name's BLAKE3, at least [`FIRST_POSITION`].
pub fn name_position(name: &[u8]) -> u64 {
    let hash = blake3::hash(name);
    let mut first = [0u8; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    (u64::from_be_bytes(first) >> 1).max(FIRST_POSITION)
}

macro_rules! build {
    ($tag:expr $(, $part:expr)*) => {{
        let mut bytes = Vec::with_capacity(48);
        bytes.push($tag);
        $(bytes.extend_from_slice($part);)*
        Key(bytes.into())
    }};
}

impl Key {
    /// A key from bytes that an engine stored.
    pub fn from_bytes(bytes: &[u8]) -> Key {
        Key(bytes.into())
    }

    /// The bytes that an engine stores.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A row about the volume: `format`, `id`, `next-ino`, `next-pack`, `bytes`, `inodes`.
    pub fn volume(name: &str) -> Key {
        build!(0x00, name.as_bytes())
    }

    /// An inode.
    pub fn inode(ino: Ino) -> Key {
        build!(0x01, &ino.0.to_be_bytes())
    }

    /// A name in a directory.
    pub fn dentry(parent: Ino, name: &[u8]) -> Key {
        build!(0x02, &parent.0.to_be_bytes(), &name_position(name).to_be_bytes(), name)
    }

    /// All names of a directory from a listing position on.
    pub fn dentries(parent: Ino, position: u64) -> KeyRange {
        KeyRange {
            start: build!(0x02, &parent.0.to_be_bytes(), &position.to_be_bytes()),
            end: build!(0x02, &(parent.0 + 1).to_be_bytes()),
        }
    }

    /// The extents of a file's 4 MiB range number `page`.
    pub fn extents(ino: Ino, page: u32) -> Key {
        build!(0x04, &ino.0.to_be_bytes(), &page.to_be_bytes())
    }

    /// All extent pages of a file from `page` on.
    pub fn extents_from(ino: Ino, page: u32) -> KeyRange {
        KeyRange { start: Key::extents(ino, page), end: build!(0x04, &(ino.0 + 1).to_be_bytes()) }
    }

    /// The bytes of a small file.
    pub fn inline(ino: Ino) -> Key {
        build!(0x05, &ino.0.to_be_bytes())
    }

    /// An extended attribute.
    pub fn xattr(ino: Ino, name: &[u8]) -> Key {
        build!(0x06, &ino.0.to_be_bytes(), name)
    }

    /// All extended attributes of an inode.
    pub fn xattrs(ino: Ino) -> KeyRange {
        KeyRange { start: build!(0x06, &ino.0.to_be_bytes()), end: build!(0x06, &(ino.0 + 1).to_be_bytes()) }
    }

    /// When a directory's entries last changed.
    pub fn dir_changed(dir: Ino) -> Key {
        build!(0x08, &dir.0.to_be_bytes())
    }

    /// How many subdirectories a directory has.
    pub fn subdirs(dir: Ino) -> Key {
        build!(0x09, &dir.0.to_be_bytes())
    }

    /// An inode without a name.
    pub fn orphan(ino: Ino) -> Key {
        build!(0x0C, &ino.0.to_be_bytes())
    }

    /// All inodes without a name.
    pub fn orphans() -> KeyRange {
        KeyRange { start: build!(0x0C), end: build!(0x0D) }
    }

    /// A small file's content.
    pub fn content(hash: &BlobId) -> Key {
        build!(0x0E, &hash.0)
    }

    /// A pack.
    pub fn pack(pack: PackNo) -> Key {
        build!(0x0F, &pack.0.to_be_bytes())
    }

    /// How many bytes of a pack are referred to.
    pub fn pack_live(pack: PackNo) -> Key {
        build!(0x10, &pack.0.to_be_bytes())
    }

    /// A page of a file refers to a pack.
    pub fn pack_user(pack: PackNo, ino: Ino, page: u32) -> Key {
        build!(0x11, &pack.0.to_be_bytes(), &ino.0.to_be_bytes(), &page.to_be_bytes())
    }

    /// All pages that refer to a pack.
    pub fn pack_users(pack: PackNo) -> KeyRange {
        KeyRange { start: build!(0x11, &pack.0.to_be_bytes()), end: build!(0x11, &(pack.0 + 1).to_be_bytes()) }
    }

    /// A sealed pack is this blob.
    pub fn blob_pack(blob: &BlobId, pack: PackNo) -> Key {
        build!(0x12, &blob.0, &pack.0.to_be_bytes())
    }

    /// All packs that are this blob.
    pub fn blob_packs(blob: &BlobId) -> KeyRange {
        KeyRange { start: build!(0x12, &blob.0), end: build!(0x12, &blob.0, &[0xFF; 9]) }
    }

    /// Every row of one kind: the first byte of its key.
    pub fn kind(tag: u8) -> KeyRange {
        KeyRange { start: build!(tag), end: build!(tag + 1) }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
