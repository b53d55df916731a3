//! The encoding of rows. Fixed fields, big-endian; every decoder refuses what it does not understand.
//!
//! An inode is 96 bytes, or 112 with times outside 1677 to 2262, and 8 more below a directory with a quota; a
//! name 9, a pack 1 or 37, a content 16, a counter 8. docs/FORMAT.md draws each. A decoded record encodes to
//! the same bytes again, so comparing values is the same as comparing records.

mod published;
#[cfg(test)]
mod tests;

mod doomed;

use base::size::{BLOB_MAX, FILE_MAX};
use base::{BlobId, Ino, PackNo, Timestamp};

pub use doomed::DoomedRow;

use crate::store::Value;
pub use published::{ForeignRow, HeldRow};

/// A row's bytes do not fit the kind of its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {what} row is damaged")]
pub struct BadRecord {
    /// Which kind of row.
    pub what: &'static str,
}

/// Bits of a mode, as on every Linux.
pub mod mode {
    /// The bits that give an inode's type.
    pub const S_IFMT: u32 = 0o170_000;
    /// Named pipe.
    pub const S_IFIFO: u32 = 0o010_000;
    /// Character device.
    pub const S_IFCHR: u32 = 0o020_000;
    /// Directory.
    pub const S_IFDIR: u32 = 0o040_000;
    /// Block device.
    pub const S_IFBLK: u32 = 0o060_000;
    /// Regular file.
    pub const S_IFREG: u32 = 0o100_000;
    /// Symbolic link.
    pub const S_IFLNK: u32 = 0o120_000;
    /// Socket.
    pub const S_IFSOCK: u32 = 0o140_000;
    /// Set-user-id.
    pub const S_ISUID: u32 = 0o4_000;
    /// Set-group-id.
    pub const S_ISGID: u32 = 0o2_000;
    /// The group may execute.
    pub const S_IXGRP: u32 = 0o010;
    /// All bits that chmod changes.
    pub const PERM: u32 = 0o7_777;

    /// Whether these are the `S_IFMT` bits of a known type.
    pub fn is_kind(kind: u32) -> bool {
        matches!(kind, S_IFIFO | S_IFCHR | S_IFDIR | S_IFBLK | S_IFREG | S_IFLNK | S_IFSOCK)
    }
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
    /// Number of names. A directory has 1 while it has its name, and 0 before and after (stat's count is 2 +
    /// subdirectories).
    pub nlink: u32,
    /// Device number.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that extents and inline data take (stat's blocks are this divided by 512, rounded up).
    pub stored: u64,
    /// The directory that has its name; 0 when several directories have one, or had. The root's parent is the
    /// root.
    pub parent: Ino,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Increases with every change of the inode, its extents, its inline bytes or its extended attributes. If
    /// the inode row is unchanged, all of those are too. (Extents may still have followed their bytes to
    /// another pack.) A change of the bytes moves its upper bits: see [`InodeRecord::version`].
    pub change: u64,
    /// The length of the list of its extended attributes' names, each with a NUL.
    pub xattr_list: u32,
    /// How many bytes the values of its extended attributes take; `security.capability` is not counted.
    pub xattr_bytes: u32,
    /// The directory whose quota this inode counts for; 0 if there is none. See [`crate::quota`].
    pub quota: Ino,
}

impl InodeRecord {
    /// There is at least one extended attribute. Without this flag there are none.
    pub const HAS_XATTRS: u16 = 1;
    /// The bytes are in the inline row.
    pub const INLINE: u16 = 2;
    /// One of the extended attributes is a default ACL (directories).
    pub const HAS_DEFAULT_ACL: u16 = 4;
    /// One of them is an access ACL.
    pub const HAS_ACL: u16 = 8;
    /// One of them is `security.capability`.
    pub const HAS_CAPABILITY: u16 = 16;
    /// The inode counts for a quota, whose directory follows all other fields.
    const IN_QUOTA: u16 = 32;
    /// The inode is a directory with a quota of its own: what is made in it counts for that.
    pub const QUOTA_ROOT: u16 = 64;

    /// All flags that this version knows.
    const KNOWN: u16 = 127;
    /// The version whose times are nanoseconds in 64 bits: 1677 to 2262. It is written if that range
    /// suffices.
    const VERSION: u8 = 1;
    /// The version whose times are seconds in 64 bits, with the nanoseconds after all other fields.
    const VERSION_WIDE: u8 = 2;
    /// Bytes of an encoded inode of version 1.
    pub const LEN: usize = 96;
    /// Bytes of one of version 2.
    pub const LEN_WIDE: usize = 112;
    /// How many more bytes an inode takes that counts for a quota.
    const LEN_QUOTA: usize = 8;

    /// What one change of the bytes adds to `change`: other changes count in the bits below.
    const BYTES: u64 = 1 << 20;

    /// The version of the bytes: it increases with every write, cut and hole. Names, attributes and times do
    /// not move it, and nor do a million of their changes in a row.
    pub fn version(&self) -> u64 {
        self.change / Self::BYTES
    }

    /// The `change` of an inode that is changed once more. `bytes`: its bytes change too.
    pub fn next_change(change: u64, bytes: bool) -> u64 {
        let base = if bytes { change | (Self::BYTES - 1) } else { change };
        base.wrapping_add(1)
    }

    /// The `S_IFMT` bits: its type.
    pub fn kind(&self) -> u32 {
        self.mode & mode::S_IFMT
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == mode::S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == mode::S_IFREG
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Sets or clears a flag.
    pub fn set(&mut self, flag: u16, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    /// A directory's record with the time at which its entries last changed. If that is later than the
    /// record's change time, it becomes the modification time and the change time.
    pub fn with_entries_changed(mut self, changed: Timestamp) -> InodeRecord {
        if changed > self.ctime {
            (self.mtime, self.ctime) = (changed, changed);
        }
        self
    }

    /// The quota that new inodes in this directory, `ino`, count for; 0 if there is none.
    pub fn quota_below(&self, ino: Ino) -> Ino {
        if self.has(InodeRecord::QUOTA_ROOT) { ino } else { self.quota }
    }

    /// An inode's row as it is without quotas. None if nothing of it is about quotas.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn without_quota(row: &[u8]) -> Result<Option<Value>, BadRecord> {
        let about = (Self::IN_QUOTA | Self::QUOTA_ROOT).to_be_bytes();
        if row.get(2..4).is_none_or(|flags| flags[0] & about[0] | flags[1] & about[1] == 0) {
            return Ok(None);
        }
        let mut record = InodeRecord::decode(row)?;
        record.quota = Ino(0);
        record.set(Self::QUOTA_ROOT, false);
        Ok(Some(record.encode()))
    }

    fn times(&self) -> [Timestamp; 4] {
        [self.atime, self.mtime, self.ctime, self.btime]
    }

    /// Whether its times do not fit into version 1.
    fn is_wide(&self) -> bool {
        self.times().iter().any(|time| i128::from(time.as_nanos()) != time.0)
    }

    /// The row.
    pub fn encode(&self) -> Value {
        let wide = self.is_wide();
        let mut out = [0u8; Self::LEN_WIDE + Self::LEN_QUOTA];
        out[0] = if wide { Self::VERSION_WIDE } else { Self::VERSION };
        let counts = self.quota != Ino(0);
        let flags = self.flags & !Self::IN_QUOTA | if counts { Self::IN_QUOTA } else { 0 };
        out[2..4].copy_from_slice(&flags.to_be_bytes());
        let words = [self.mode, self.uid, self.gid, self.nlink, self.rdev];
        for (to, word) in out[4..24].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        let [atime, mtime, ctime, btime] =
            self.times().map(|t| (if wide { t.seconds() } else { t.as_nanos() }) as u64);
        let longs = [self.size, self.stored, self.parent.0, atime, mtime, ctime, btime, self.change];
        for (to, long) in out[24..88].chunks_exact_mut(8).zip(longs) {
            to.copy_from_slice(&long.to_be_bytes());
        }
        out[88..92].copy_from_slice(&self.xattr_list.to_be_bytes());
        out[92..96].copy_from_slice(&self.xattr_bytes.to_be_bytes());
        let mut len = Self::LEN;
        if wide {
            len = Self::LEN_WIDE;
            for (to, time) in out[Self::LEN..len].chunks_exact_mut(4).zip(self.times()) {
                to.copy_from_slice(&time.nanos().to_be_bytes());
            }
        }
        if counts {
            out[len..len + Self::LEN_QUOTA].copy_from_slice(&self.quota.0.to_be_bytes());
            len += Self::LEN_QUOTA;
        }
        out[..len].into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`InodeRecord::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<InodeRecord, BadRecord> {
        let wide = bytes.first() == Some(&Self::VERSION_WIDE);
        let flags = bytes.get(2..4).map_or(0, |flags| u16::from_be_bytes([flags[0], flags[1]]));
        let counts = flags & Self::IN_QUOTA != 0;
        let len = if wide { Self::LEN_WIDE } else { Self::LEN };
        let mut fields = Fields::of("inode", bytes, len + if counts { Self::LEN_QUOTA } else { 0 })?;
        let head = fields.u8() == (if wide { Self::VERSION_WIDE } else { Self::VERSION }) && fields.u8() == 0;
        let mut record = InodeRecord {
            // What this flag says, the field says too.
            flags: fields.u16() & !Self::IN_QUOTA,
            mode: fields.u32(),
            uid: fields.u32(),
            gid: fields.u32(),
            nlink: fields.u32(),
            rdev: fields.u32(),
            size: fields.u64(),
            stored: fields.u64(),
            parent: Ino(fields.u64()),
            atime: fields.time(),
            mtime: fields.time(),
            ctime: fields.time(),
            btime: fields.time(),
            change: fields.u64(),
            xattr_list: fields.u32(),
            xattr_bytes: fields.u32(),
            quota: Ino(0),
        };
        let mut fits = true;
        if wide {
            for time in [&mut record.atime, &mut record.mtime, &mut record.ctime, &mut record.btime] {
                let nanos = fields.u32();
                fits &= nanos < 1_000_000_000;
                // The field holds seconds; it was read as nanoseconds.
                *time = Timestamp::from_parts(time.as_nanos(), nanos);
            }
            // A record that fits into version 1 is written as version 1 only.
            fits &= record.is_wide();
        }
        if counts {
            record.quota = Ino(fields.u64());
            fits &= record.quota != Ino(0);
        }
        let known = record.flags & !Self::KNOWN == 0
            && (record.is_dir() || !record.has(Self::QUOTA_ROOT))
            && mode::is_kind(record.kind())
            && record.mode & !(mode::S_IFMT | mode::PERM) == 0
            && record.size <= FILE_MAX
            && record.has(Self::HAS_XATTRS) == (record.xattr_list > 0);
        fields.good(head && fits && known, record)
    }
}

/// A name's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dentry {
    /// The inode.
    pub ino: Ino,
    /// `S_IFMT` bits of its mode: what readdir shows without reading the inode.
    pub kind: u32,
}

impl Dentry {
    const LEN: usize = 9;

    /// Whether it is a directory's name.
    pub fn is_dir(&self) -> bool {
        self.kind == mode::S_IFDIR
    }

    /// The row.
    pub fn encode(&self) -> Value {
        let mut out = [0u8; Self::LEN];
        out[..8].copy_from_slice(&self.ino.0.to_be_bytes());
        out[8] = (self.kind >> 12) as u8;
        out.as_slice().into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`Dentry::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<Dentry, BadRecord> {
        let mut fields = Fields::of("name", bytes, Self::LEN)?;
        let dentry = Dentry { ino: Ino(fields.u64()), kind: u32::from(fields.u8()) << 12 };
        fields.good(dentry.ino.0 != 0 && mode::is_kind(dentry.kind), dentry)
    }
}

/// A pack's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackRow {
    /// Being written on this node.
    Open,
    /// A blob.
    Sealed {
        /// The blob's name.
        blob: BlobId,
        /// The blob's size in bytes.
        size: u32,
    },
    /// A blob that nothing refers to, waiting to be deleted. Never referred to again.
    Condemned {
        /// The blob's name.
        blob: BlobId,
        /// The blob's size in bytes.
        size: u32,
    },
}

impl PackRow {
    const OPEN: u8 = 1;
    const SEALED: u8 = 2;
    const CONDEMNED: u8 = 3;

    /// The row.
    pub fn encode(&self) -> Value {
        let (state, blob, size) = match self {
            PackRow::Open => return [Self::OPEN].as_slice().into(),
            PackRow::Sealed { blob, size } => (Self::SEALED, blob, size),
            PackRow::Condemned { blob, size } => (Self::CONDEMNED, blob, size),
        };
        let mut out = [state; 37];
        out[1..33].copy_from_slice(&blob.0);
        out[33..].copy_from_slice(&size.to_be_bytes());
        out.as_slice().into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`PackRow::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<PackRow, BadRecord> {
        if bytes == [Self::OPEN] {
            return Ok(PackRow::Open);
        }
        let mut fields = Fields::of("pack", bytes, 37)?;
        let (state, blob, size) = (fields.u8(), BlobId(fields.take()), fields.u32());
        let row = match state {
            Self::SEALED => PackRow::Sealed { blob, size },
            Self::CONDEMNED => PackRow::Condemned { blob, size },
            _ => return Err(fields.bad()),
        };
        fields.good(size <= BLOB_MAX, row)
    }

    /// Whether new extents may refer to it.
    pub fn is_usable(&self) -> bool {
        !matches!(self, PackRow::Condemned { .. })
    }
}

/// Where a small file's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRow {
    /// The pack.
    pub pack: PackNo,
    /// The offset in the pack.
    pub offset: u32,
    /// The length in bytes.
    pub len: u32,
}

impl ContentRow {
    const LEN: usize = 16;

    /// The row.
    pub fn encode(&self) -> Value {
        let mut out = [0u8; Self::LEN];
        out[..8].copy_from_slice(&self.pack.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.offset.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out.as_slice().into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`ContentRow::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<ContentRow, BadRecord> {
        let mut fields = Fields::of("content", bytes, Self::LEN)?;
        let row = ContentRow { pack: PackNo(fields.u64()), offset: fields.u32(), len: fields.u32() };
        let end = row.offset.checked_add(row.len);
        fields.good(row.len > 0 && end.is_some_and(|end| end <= BLOB_MAX), row)
    }
}

/// A counter's row: changed by `adds`.
pub fn encode_i64(count: i64) -> Value {
    count.to_be_bytes().as_slice().into()
}

/// Reads a counter; a row that is not there counts as 0.
///
/// # Errors
/// The row is not 8 bytes.
pub fn decode_i64(row: Option<&[u8]>) -> Result<i64, BadRecord> {
    Ok(decode_u64(row)? as i64)
}

/// A number's row.
pub fn encode_u64(number: u64) -> Value {
    number.to_be_bytes().as_slice().into()
}

/// Reads a number; a row that is not there counts as 0.
///
/// # Errors
/// The row is not 8 bytes.
pub fn decode_u64(row: Option<&[u8]>) -> Result<u64, BadRecord> {
    let Some(bytes) = row else { return Ok(0) };
    Ok(Fields::of("counter", bytes, 8)?.u64())
}

/// A moment as a number that `maxs` can raise. The order is kept, also before 1970, and nothing is below 0.
pub fn moment_to_u64(moment: Timestamp) -> u64 {
    (moment.as_nanos() as u64) ^ (1 << 63)
}

/// The inverse of [`moment_to_u64`]; 0 (no row) is also valid.
pub fn moment_from_u64(number: u64) -> Timestamp {
    Timestamp::from_nanos((number ^ (1 << 63)) as i64)
}

/// Takes fields off a row whose length was checked once.
struct Fields<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of(what: &'static str, bytes: &'a [u8], len: usize) -> Result<Fields<'a>, BadRecord> {
        if bytes.len() == len { Ok(Fields { what, rest: bytes }) } else { Err(BadRecord { what }) }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        // The length was checked, so the end is never passed. Zeros stand in for an error.
        let Some((first, rest)) = self.rest.split_first_chunk() else {
            return [0; N];
        };
        self.rest = rest;
        *first
    }

    fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    fn time(&mut self) -> Timestamp {
        Timestamp::from_nanos(self.u64() as i64)
    }

    fn bad(&self) -> BadRecord {
        BadRecord { what: self.what }
    }

    fn good<T>(&self, is_good: bool, value: T) -> Result<T, BadRecord> {
        if is_good { Ok(value) } else { Err(self.bad()) }
    }
}
