//! Keys of rows: big-endian, so that scans follow the byte order.
//!
//! | key | row |
//! |---|---|
//! | `00 name` | the volume: format, id, allocation counters, totals |
//! | `01 ino:8` | inode ([`crate::record::InodeRecord`]) |
//! | `02 parent:8 hash:8 name` | directory entry ([`crate::record::Dentry`]) |
//! | `03 ino:8` | an inode in the trash ([`crate::trash::TrashRow`]); of a directory: also its inode |
//! | `04 ino:8 page:4` | extents of a 4 MiB range of a file ([`blob::ExtentPage`]) |
//! | `05 ino:8` | the bytes of a file of at most 512 |
//! | `06 ino:8 name` | extended attribute |
//! | `08 dir:8` | when the directory's entries last changed (`max`) |
//! | `09 dir:8` | number of subdirectories (`add`) |
//! `0C ino:8` | an inode without a name, to be collected when no handle is open; of a removed directory: its
//! inode |
//! | `0E hash:32` | a small file's content: which range of a pack holds it |
//! | `0F pack:8` | pack ([`crate::record::PackRow`]) |
//! | `10 pack:8` | bytes of the pack that extents refer to, each reference counted (`add`) |
//! | `11 pack:8 ino:8 page:4` | this page of this file refers to the pack |
//! | `12 hash:32 pack:8` | this sealed pack is this blob |
//! | `13 hash:32 name` | a published tree of this name holds this blob ([`crate::record::HeldRow`]) |
//! | `14 object:20` | in a published tree: an object of a foreign bucket ([`crate::record::ForeignRow`]) |
//! | `15 ino:8 node:4` | in a shared volume: the node holds this inode without a name |
//! | `16 ino:8` | in a shared volume: the locks on the file |
//! | `17 ino:8` | in a shared volume: which nodes have a lease on this directory or file ([`crate::lease`]) |
//! | `18 node:4 epoch:8` | in a shared volume: the number of the last batch that a session wrote |
//! | `19 ino:8` | in a shared volume: a node wants the lease on this, and cannot reach its holder |
//! | `1A dir:8` | the quota of a directory ([`crate::quota::QuotaRow`]) |
//! | `1B dir:8 what:1 part` | what counts for the quota of a directory (`add`) |
//! | `1C moment:8 pack:8` | in a shared volume: the pack is condemned since this moment |
//! | `1D hash:32` | in a shared volume: this blob is being deleted ([`crate::record::DoomedRow`]) |
//! | `1E pack:8` | in a shared volume: a node wants the bytes of the pack, and cannot reach its owner |
//!
//! **Why directory entries contain a hash.** A mount without OPENDIR has no handle that could keep a
//! listing's position. So a position must be a number from which a listing can be resumed without any state.
//! Entries are ordered by 63 bits of the name's BLAKE3, and that number is the position.

use std::fmt;
use std::sync::Arc;

use base::{BlobId, ForeignObject, Ino, PackNo};

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

/// The first byte of each kind of row's key.
pub mod tags {
    /// The volume.
    pub const VOLUME: u8 = 0x00;
    /// Inodes.
    pub const INODE: u8 = 0x01;
    /// Directory entries.
    pub const DENTRY: u8 = 0x02;
    /// Inodes in the trash.
    pub const TRASH: u8 = 0x03;
    /// Extent pages.
    pub const EXTENTS: u8 = 0x04;
    /// Bytes of small files, targets of symbolic links.
    pub const INLINE: u8 = 0x05;
    /// Extended attributes.
    pub const XATTR: u8 = 0x06;
    /// When a directory's entries last changed.
    pub const DIR_CHANGED: u8 = 0x08;
    /// How many subdirectories.
    pub const SUBDIRS: u8 = 0x09;
    /// Inodes without a name.
    pub const ORPHAN: u8 = 0x0C;
    /// Contents of small files.
    pub const CONTENT: u8 = 0x0E;
    /// Packs.
    pub const PACK: u8 = 0x0F;
    /// Bytes of a pack that are referred to.
    pub const PACK_LIVE: u8 = 0x10;
    /// Which pages refer to a pack.
    pub const PACK_USER: u8 = 0x11;
    /// Which packs are a blob.
    pub const BLOB_PACK: u8 = 0x12;
    /// Which published trees hold a blob.
    pub const HELD: u8 = 0x13;
    /// Objects of a foreign bucket, in a published tree.
    pub const FOREIGN: u8 = 0x14;
    /// Nodes of a shared volume that hold an inode without a name.
    pub const HOLD: u8 = 0x15;
    /// Locks on a file of a shared volume.
    pub const LOCK: u8 = 0x16;
    /// Leases of nodes of a shared volume.
    pub const LEASE: u8 = 0x17;
    /// Batches that sessions of a shared volume wrote.
    pub const BATCH: u8 = 0x18;
    /// Leases of a shared volume that a node wants and cannot ask for.
    pub const WISH: u8 = 0x19;
    /// Quotas of directories.
    pub const QUOTA: u8 = 0x1A;
    /// What counts for a quota.
    pub const QUOTA_USED: u8 = 0x1B;
    /// Condemned packs of a shared volume, by the moment of that.
    pub const CONDEMNED: u8 = 0x1C;
    /// Blobs of a shared volume that are being deleted.
    pub const DOOMED: u8 = 0x1D;
    /// Packs of a shared volume whose bytes a node wants and cannot ask for.
    pub const WANTED: u8 = 0x1E;
}

/// The name of the volume's row that says which node of a shared volume publishes.
pub const ROW_PUBLISHING: &str = "publishing";

/// Lower positions are not entries: 0 is the start of a listing, 1 follows `.`, 2 follows `..`.
pub const FIRST_POSITION: u64 = 3;

/// A name's position in its directory's listing: 63 bits of the name's BLAKE3, at least [`FIRST_POSITION`].
pub fn name_position(name: &[u8]) -> u64 {
    let hash = blake3::hash(name);
    let mut first = [0u8; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    (u64::from_be_bytes(first) >> 1).max(FIRST_POSITION)
}

/// Whether this can be a name in a directory: not empty, not `.` or `..`, without `/` and NUL, at most 255
/// bytes.
pub fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= base::size::NAME_MAX
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// The longest key in bytes: a directory entry's, or an extended attribute's, with a name of 255.
const KEY_MAX: usize = 280;

/// Builds a key on the stack, so that the key itself is the only allocation.
macro_rules! build {
    ($tag:expr $(, $part:expr)*) => {{
        let mut bytes = [0u8; KEY_MAX];
        bytes[0] = $tag;
        #[allow(unused_mut)]
        let mut len = 1;
        $({
            let part: &[u8] = $part;
            // A name longer than any stored one finds nothing. The planner refuses it.
            let end = (len + part.len()).min(KEY_MAX);
            bytes[len..end].copy_from_slice(&part[..end - len]);
            len = end;
        })*
        Key(bytes[..len].into())
    }};
}

/// What is counted for a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Used {
    /// Stored bytes.
    Bytes = 0,
    /// Inodes.
    Inodes = 1,
}

/// The parts of a directory entry's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DentryKey<'a> {
    /// The directory.
    pub parent: Ino,
    /// The entry's position in a listing: see [`name_position`].
    pub position: u64,
    /// The name.
    pub name: &'a [u8],
}

impl DentryKey<'_> {
    /// Whether the entry is at the position where a lookup of its name searches.
    pub fn is_placed(&self) -> bool {
        self.position == name_position(self.name)
    }
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

    /// The kind of row: the key's first byte.
    pub fn tag(&self) -> u8 {
        self.0.first().copied().unwrap_or(0)
    }

    /// The number after the tag: the inode, or the pack, that the row is about.
    pub fn number(&self) -> Option<u64> {
        self.number_at(1)
    }

    /// The parts of a directory entry's key; none for other keys, and none if its name is impossible
    /// ([`is_name`]). Rows may come from a volume that somebody else prepared, and code that reads names from
    /// rows may join them to a path.
    pub fn as_dentry(&self) -> Option<DentryKey<'_>> {
        let (&tag, _) = self.0.split_first()?;
        let name = self.0.get(17..).filter(|name| tag == tags::DENTRY && is_name(name))?;
        Some(DentryKey { parent: Ino(self.number_at(1)?), position: self.number_at(9)?, name })
    }

    /// The inode and page of an extent page's key; none for other keys.
    pub fn as_extents(&self) -> Option<(Ino, u32)> {
        (self.tag() == tags::EXTENTS && self.0.len() == 13).then_some(())?;
        Some((Ino(self.number_at(1)?), self.page_at(9)?))
    }

    /// The inode and name of an extended attribute's key; none for other keys.
    pub fn as_xattr(&self) -> Option<(Ino, &[u8])> {
        let name = self.0.get(9..).filter(|_| self.tag() == tags::XATTR)?;
        Some((Ino(self.number_at(1)?), name))
    }

    /// The pack, inode and page of a [`Key::pack_user`]; none for other keys.
    pub fn as_pack_user(&self) -> Option<(PackNo, Ino, u32)> {
        (self.tag() == tags::PACK_USER && self.0.len() == 21).then_some(())?;
        Some((PackNo(self.number_at(1)?), Ino(self.number_at(9)?), self.page_at(17)?))
    }

    /// The blob and pack of a [`Key::blob_pack`]; none for other keys.
    pub fn as_blob_pack(&self) -> Option<(BlobId, PackNo)> {
        (self.tag() == tags::BLOB_PACK && self.0.len() == 41).then_some(())?;
        Some((BlobId(self.0.get(1..33)?.try_into().ok()?), PackNo(self.number_at(33)?)))
    }

    /// The blob and the tree's name of a [`Key::held`]; none for other keys.
    pub fn as_held(&self) -> Option<(BlobId, &[u8])> {
        let name = self.0.get(33..).filter(|_| self.tag() == tags::HELD)?;
        Some((BlobId(self.0.get(1..33)?.try_into().ok()?), name))
    }

    /// The hash of a [`Key::content`]; none for other keys.
    pub fn as_content(&self) -> Option<BlobId> {
        (self.tag() == tags::CONTENT && self.0.len() == 33).then_some(())?;
        Some(BlobId(self.0.get(1..33)?.try_into().ok()?))
    }

    /// The first key after this one.
    pub fn successor(&self) -> Key {
        let mut bytes = Vec::with_capacity(self.0.len() + 1);
        bytes.extend_from_slice(&self.0);
        bytes.push(0);
        Key(bytes.into())
    }

    fn number_at(&self, at: usize) -> Option<u64> {
        Some(u64::from_be_bytes(self.0.get(at..at + 8)?.try_into().ok()?))
    }

    fn page_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }

    /// A row about the volume: `format`, `id`, `next-ino`, `next-pack`, `bytes`, `inodes`.
    pub fn volume(name: &str) -> Key {
        build!(tags::VOLUME, name.as_bytes())
    }

    /// Which node of a shared volume publishes.
    pub fn publishing() -> Key {
        Key::volume(ROW_PUBLISHING)
    }

    /// An inode.
    pub fn inode(ino: Ino) -> Key {
        build!(tags::INODE, &ino.0.to_be_bytes())
    }

    /// A name in a directory.
    pub fn dentry(parent: Ino, name: &[u8]) -> Key {
        build!(tags::DENTRY, &parent.0.to_be_bytes(), &name_position(name).to_be_bytes(), name)
    }

    /// All names of a directory from a listing position on.
    pub fn dentries(parent: Ino, position: u64) -> KeyRange {
        KeyRange {
            start: build!(tags::DENTRY, &parent.0.to_be_bytes(), &position.to_be_bytes()),
            end: build!(tags::DENTRY, &parent.0.saturating_add(1).to_be_bytes()),
        }
    }

    /// The extents of a file's 4 MiB range number `page`.
    pub fn extents(ino: Ino, page: u32) -> Key {
        build!(tags::EXTENTS, &ino.0.to_be_bytes(), &page.to_be_bytes())
    }

    /// All extent pages of a file from `page` on.
    pub fn extents_from(ino: Ino, page: u32) -> KeyRange {
        KeyRange {
            start: Key::extents(ino, page),
            end: build!(tags::EXTENTS, &ino.0.saturating_add(1).to_be_bytes()),
        }
    }

    /// All of a file's extents from `page` on, and those of all files with higher numbers.
    pub fn all_extents_from(ino: Ino, page: u32) -> KeyRange {
        KeyRange { start: Key::extents(ino, page), end: build!(tags::EXTENTS + 1) }
    }

    /// The bytes of a small file.
    pub fn inline(ino: Ino) -> Key {
        build!(tags::INLINE, &ino.0.to_be_bytes())
    }

    /// An extended attribute.
    pub fn xattr(ino: Ino, name: &[u8]) -> Key {
        build!(tags::XATTR, &ino.0.to_be_bytes(), name)
    }

    /// All extended attributes of an inode.
    pub fn xattrs(ino: Ino) -> KeyRange {
        KeyRange {
            start: build!(tags::XATTR, &ino.0.to_be_bytes()),
            end: build!(tags::XATTR, &ino.0.saturating_add(1).to_be_bytes()),
        }
    }

    /// When a directory's entries last changed.
    pub fn dir_changed(dir: Ino) -> Key {
        build!(tags::DIR_CHANGED, &dir.0.to_be_bytes())
    }

    /// How many subdirectories a directory has.
    pub fn subdirs(dir: Ino) -> Key {
        build!(tags::SUBDIRS, &dir.0.to_be_bytes())
    }

    /// An inode without a name.
    pub fn orphan(ino: Ino) -> Key {
        build!(tags::ORPHAN, &ino.0.to_be_bytes())
    }

    /// An inode in the trash.
    pub fn trash(ino: Ino) -> Key {
        build!(tags::TRASH, &ino.0.to_be_bytes())
    }

    /// All inodes in the trash, from one on.
    pub fn trash_from(ino: Ino) -> KeyRange {
        KeyRange { start: Key::trash(ino), end: build!(tags::TRASH + 1) }
    }

    /// All inodes without a name.
    pub fn orphans() -> KeyRange {
        KeyRange { start: build!(tags::ORPHAN), end: build!(tags::ORPHAN + 1) }
    }

    /// A small file's content.
    pub fn content(hash: &BlobId) -> Key {
        build!(tags::CONTENT, &hash.0)
    }

    /// A pack.
    pub fn pack(pack: PackNo) -> Key {
        build!(tags::PACK, &pack.0.to_be_bytes())
    }

    /// How many bytes of a pack are referred to.
    pub fn pack_live(pack: PackNo) -> Key {
        build!(tags::PACK_LIVE, &pack.0.to_be_bytes())
    }

    /// A page of a file refers to a pack.
    pub fn pack_user(pack: PackNo, ino: Ino, page: u32) -> Key {
        build!(tags::PACK_USER, &pack.0.to_be_bytes(), &ino.0.to_be_bytes(), &page.to_be_bytes())
    }

    /// All pages that refer to a pack.
    pub fn pack_users(pack: PackNo) -> KeyRange {
        KeyRange {
            start: build!(tags::PACK_USER, &pack.0.to_be_bytes()),
            end: build!(tags::PACK_USER, &pack.0.saturating_add(1).to_be_bytes()),
        }
    }

    /// A sealed pack is this blob.
    pub fn blob_pack(blob: &BlobId, pack: PackNo) -> Key {
        build!(tags::BLOB_PACK, &blob.0, &pack.0.to_be_bytes())
    }

    /// All packs that are this blob.
    pub fn blob_packs(blob: &BlobId) -> KeyRange {
        KeyRange {
            start: build!(tags::BLOB_PACK, &blob.0),
            end: build!(tags::BLOB_PACK, &blob.0, &[0xFF; 9]),
        }
    }

    /// A published tree holds this blob.
    pub fn held(blob: &BlobId, tree: &str) -> Key {
        build!(tags::HELD, &blob.0, tree.as_bytes())
    }

    /// All published trees that hold this blob.
    pub fn holders(blob: &BlobId) -> KeyRange {
        KeyRange {
            start: build!(tags::HELD, &blob.0),
            // Tree names are ASCII: no byte is above 0x7F.
            end: build!(tags::HELD, &blob.0, &[0xFF]),
        }
    }

    /// An object of a foreign bucket.
    pub fn foreign(object: ForeignObject) -> Key {
        build!(tags::FOREIGN, &object.0)
    }

    /// The object of a [`Key::foreign`]; none for other keys.
    pub fn as_foreign(&self) -> Option<ForeignObject> {
        let object = self.0.get(1..).filter(|_| self.tag() == tags::FOREIGN)?;
        Some(ForeignObject(object.try_into().ok()?))
    }

    /// A node of a shared volume holds an inode without a name.
    pub fn hold(ino: Ino, node: u32) -> Key {
        build!(tags::HOLD, &ino.0.to_be_bytes(), &node.to_be_bytes())
    }

    /// All nodes that hold an inode without a name.
    pub fn holds(ino: Ino) -> KeyRange {
        KeyRange {
            start: build!(tags::HOLD, &ino.0.to_be_bytes()),
            end: build!(tags::HOLD, &ino.0.saturating_add(1).to_be_bytes()),
        }
    }

    /// The inode and node of a [`Key::hold`]; none for other keys.
    pub fn as_hold(&self) -> Option<(Ino, u32)> {
        (self.tag() == tags::HOLD && self.0.len() == 13).then_some(())?;
        Some((Ino(self.number_at(1)?), self.page_at(9)?))
    }

    /// The locks on a file of a shared volume.
    pub fn lock(ino: Ino) -> Key {
        build!(tags::LOCK, &ino.0.to_be_bytes())
    }

    /// The inode of a [`Key::lock`]; none for other keys.
    pub fn as_lock(&self) -> Option<Ino> {
        (self.tag() == tags::LOCK && self.0.len() == 9).then_some(())?;
        self.number_at(1).map(Ino)
    }

    /// Which nodes have a lease on a directory or file of a shared volume.
    pub fn lease(unit: Ino) -> Key {
        build!(tags::LEASE, &unit.0.to_be_bytes())
    }

    /// A node wants the lease on this, and cannot reach its holder.
    pub fn wish(unit: Ino) -> Key {
        build!(tags::WISH, &unit.0.to_be_bytes())
    }

    /// The number of the last batch that a session of a shared volume wrote.
    pub fn batch(node: u32, epoch: u64) -> Key {
        build!(tags::BATCH, &node.to_be_bytes(), &epoch.to_be_bytes())
    }

    /// The node and epoch of a [`Key::batch`]; none for other keys.
    pub fn as_batch(&self) -> Option<(u32, u64)> {
        (self.tag() == tags::BATCH && self.0.len() == 13).then_some(())?;
        Some((self.page_at(1)?, self.number_at(5)?))
    }

    /// The quota of a directory.
    pub fn quota(dir: Ino) -> Key {
        build!(tags::QUOTA, &dir.0.to_be_bytes())
    }

    /// How much counts for the quota of a directory: bytes, or inodes. A shared volume spreads the sum over
    /// rows whose keys have one more byte.
    pub fn quota_used(dir: Ino, what: Used) -> Key {
        build!(tags::QUOTA_USED, &dir.0.to_be_bytes(), &[what as u8])
    }

    /// All that counts for the quota of a directory.
    pub fn quota_uses(dir: Ino) -> KeyRange {
        KeyRange {
            start: build!(tags::QUOTA_USED, &dir.0.to_be_bytes()),
            end: build!(tags::QUOTA_USED, &dir.0.saturating_add(1).to_be_bytes()),
        }
    }

    /// The directory, and what is counted, of a [`Key::quota_used`] or of a part of one; none for other keys.
    pub fn as_quota_used(&self) -> Option<(Ino, Used)> {
        (self.tag() == tags::QUOTA_USED && matches!(self.0.len(), 10 | 11)).then_some(())?;
        let what = match self.0.get(9)? {
            0 => Used::Bytes,
            1 => Used::Inodes,
            _ => return None,
        };
        Some((Ino(self.number_at(1)?), what))
    }

    /// One of the rows over which a shared volume spreads a counter.
    pub(crate) fn part(&self, number: u8) -> Key {
        Key([&self.0[..], &[number]].concat().into())
    }

    /// One of the rows over which a shared volume spreads this sum; none if it is no such sum.
    pub fn spread_part(&self) -> Option<Key> {
        if self.tag() == tags::QUOTA_USED {
            return Some(self.part(0));
        }
        let total = crate::shared::TOTALS.iter().find(|name| *self == Key::volume(name))?;
        Some(Key::volume(&format!("{total} 00")))
    }

    /// A pack of a shared volume that is condemned since a moment ([`crate::record::moment_to_u64`]).
    pub fn condemned(moment: u64, pack: PackNo) -> Key {
        build!(tags::CONDEMNED, &moment.to_be_bytes(), &pack.0.to_be_bytes())
    }

    /// The moment and pack of a [`Key::condemned`]; none for other keys.
    pub fn as_condemned(&self) -> Option<(u64, PackNo)> {
        (self.tag() == tags::CONDEMNED && self.0.len() == 17).then_some(())?;
        Some((self.number_at(1)?, PackNo(self.number_at(9)?)))
    }

    /// A node wants the bytes of this pack, and cannot reach its owner.
    pub fn wanted(pack: PackNo) -> Key {
        build!(tags::WANTED, &pack.0.to_be_bytes())
    }

    /// A blob of a shared volume that is being deleted.
    pub fn doomed(blob: &BlobId) -> Key {
        build!(tags::DOOMED, &blob.0)
    }

    /// The blob of a [`Key::doomed`]; none for other keys.
    pub fn as_doomed(&self) -> Option<BlobId> {
        (self.tag() == tags::DOOMED && self.0.len() == 33).then_some(())?;
        Some(BlobId(self.0.get(1..33)?.try_into().ok()?))
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
