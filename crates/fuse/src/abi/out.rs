//! The bodies of replies.

use fs::Errno;
use fs::api::{Attr, DirEntry, Entry, Lock, LockKind, Promise, StatFs};

use super::Put;

/// "For ever", in seconds: 136 years. Nothing that the kernel caches of an exclusive or frozen mount can
/// become wrong without passing through the kernel itself. On a shared mount everything is fleeting, unless a
/// lease permits more ([`keep`]).
pub const FOREVER: u64 = u32::MAX as u64;

/// Length of an entry, in bytes.
pub const ENTRY: usize = 128;
/// Where the mode is in attributes, in bytes.
const MODE: usize = 60;
/// Length of a directory entry before its name, in bytes.
const DIRENT: usize = 24;
/// The unit of statfs(2), in bytes.
const STATFS_UNIT: u64 = 4096;

type Done = Result<(), Errno>;

fn attr(put: &mut Put<'_>, attr: &Attr) -> Done {
    put.u64(attr.ino.0)?;
    put.u64(attr.size)?;
    put.u64(attr.blocks)?;
    let times = [attr.atime, attr.mtime, attr.ctime];
    for time in times {
        put.u64(time.seconds() as u64)?;
    }
    for time in times {
        put.u32(time.nanos())?;
    }
    put.u32(attr.kind.mode_bits() | u32::from(attr.perm))?;
    put.u32(attr.nlink)?;
    put.u32(attr.uid)?;
    put.u32(attr.gid)?;
    put.u32(attr.rdev)?;
    put.u32(super::PAGE as u32)?;
    put.u32(0)
}

/// How long the kernel may keep something, in seconds.
fn time(fleeting: bool) -> u64 {
    if fleeting { 0 } else { FOREVER }
}

/// A name found or created. The kernel keeps it for ever, unless the entry says otherwise.
pub fn entry(put: &mut Put<'_>, entry: &Entry) -> Done {
    put.u64(entry.node.0)?;
    put.u64(entry.generation)?;
    put.u64(time(entry.fleeting))?;
    put.u64(time(entry.fleeting))?;
    put.u64(0)?;
    attr(put, &entry.attr)
}

/// Fills in how long the kernel may keep an entry, or attributes, that stand at this place in a reply.
pub fn keep(body: &mut [u8], at: usize, is_entry: bool, promise: &Promise) {
    let Some(place) = body.get_mut(at..) else { return };
    let mut put = |at: usize, bytes: &[u8]| {
        place.get_mut(at..at + bytes.len()).into_iter().for_each(|place| place.copy_from_slice(bytes));
    };
    let (name, attributes) = (promise.name, promise.attributes);
    if is_entry {
        put(16, &name.as_secs().to_ne_bytes());
        put(24, &attributes.as_secs().to_ne_bytes());
        put(32, &name.subsec_nanos().to_ne_bytes());
        put(36, &attributes.subsec_nanos().to_ne_bytes());
    } else {
        put(0, &attributes.as_secs().to_ne_bytes());
        put(8, &attributes.subsec_nanos().to_ne_bytes());
    }
}

/// The mode in an entry, or in attributes, that stand at this place in a reply.
pub fn mode(body: &[u8], at: usize, is_entry: bool) -> Option<u32> {
    let at = at + if is_entry { 40 } else { 16 } + MODE;
    body.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// A missing name: an entry whose inode is 0. The kernel keeps it for ever, or not at all.
pub fn no_entry(put: &mut Put<'_>, fleeting: bool) -> Done {
    put.u64(0)?;
    put.u64(0)?;
    put.u64(time(fleeting))?;
    put.zeros(ENTRY - 24)
}

/// How the kernel uses an open file.
pub mod open {
    /// Reads and writes go past the page cache.
    pub const DIRECT_IO: u32 = 1;
    /// The pages that the kernel holds are still right.
    pub const KEEP_CACHE: u32 = 1 << 1;
}

/// An open file: its number, and flags of [`open`]. It also follows the entry in the replies to CREATE and
/// TMPFILE.
pub fn opened(put: &mut Put<'_>, handle: u64, flags: u32) -> Done {
    put.u64(handle)?;
    put.u32(flags)?;
    put.u32(0)
}

/// A lock that conflicts, or none.
pub fn lock(put: &mut Put<'_>, held: Option<&Lock>) -> Done {
    let kind = match held.map(|held| held.kind) {
        Some(LockKind::Read) => libc::F_RDLCK,
        Some(LockKind::Write) => libc::F_WRLCK,
        Some(LockKind::Unlock) | None => libc::F_UNLCK,
    };
    put.u64(held.map_or(0, |held| held.range.start))?;
    put.u64(held.map_or(0, |held| held.range.end))?;
    put.u32(kind as u32)?;
    put.u32(held.map_or(0, |held| held.pid))
}

/// Attributes. The kernel keeps them for ever, or not at all.
pub fn attributes(put: &mut Put<'_>, of: &Attr, fleeting: bool) -> Done {
    put.u64(time(fleeting))?;
    put.u64(0)?;
    attr(put, of)
}

/// How many bytes were written or copied.
pub fn written(put: &mut Put<'_>, bytes: u32) -> Done {
    put.u32(bytes)?;
    put.u32(0)
}

/// The space in the volume.
pub fn statfs(put: &mut Put<'_>, room: &StatFs) -> Done {
    put.u64(room.total / STATFS_UNIT)?;
    put.u64(room.free / STATFS_UNIT)?;
    put.u64(room.available / STATFS_UNIT)?;
    put.u64(room.inodes.saturating_add(room.inodes_free))?;
    put.u64(room.inodes_free)?;
    put.u32(STATFS_UNIT as u32)?;
    put.u32(base::size::NAME_MAX as u32)?;
    put.u32(STATFS_UNIT as u32)?;
    put.zeros(28)
}

/// The bytes that one directory entry takes. `plus`: with attributes.
fn line(name: &[u8], plus: bool) -> usize {
    let fixed = if plus { ENTRY + DIRENT } else { DIRENT };
    (fixed + name.len()).next_multiple_of(8)
}

/// Appends one directory entry, if it fits into the first `room` bytes of the reply. Returns whether it did.
///
/// # Errors
/// `EIO` if the reply's buffer is smaller than `room`.
pub fn dirent(put: &mut Put<'_>, room: usize, of: &DirEntry<'_>) -> Result<bool, Errno> {
    if put.len() + line(of.name, false) > room {
        return Ok(false);
    }
    bare(put, of).map(|()| true)
}

/// Appends one directory entry with its attributes, as [`dirent`] does. `found` is `None` for an entry that
/// the kernel must look up by itself.
///
/// # Errors
/// As [`dirent`].
pub fn dirent_plus(
    put: &mut Put<'_>,
    room: usize,
    of: &DirEntry<'_>,
    found: Option<&Entry>,
) -> Result<bool, Errno> {
    if put.len() + line(of.name, true) > room {
        return Ok(false);
    }
    match found {
        Some(found) => entry(put, found)?,
        None => put.zeros(ENTRY)?,
    }
    bare(put, of).map(|()| true)
}

fn bare(put: &mut Put<'_>, of: &DirEntry<'_>) -> Done {
    put.u64(of.ino.0)?;
    put.u64(of.next)?;
    put.u32(of.name.len() as u32)?;
    put.u32(u32::from(of.kind.dirent_type()))?;
    put.bytes(of.name)?;
    put.zeros(line(of.name, false) - DIRENT - of.name.len())
}
