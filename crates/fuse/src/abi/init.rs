//! INIT: what this transport asks of the kernel, and what it must never ask.
//!
//! The kernel offers flags, and the reply takes those wanted. Some flags are traps for a mount that answers
//! OPEN and FLUSH with ENOSYS. An exclusive or frozen mount never takes them, however tempting:
//!
//! - `ATOMIC_O_TRUNC`: the kernel leaves truncation to OPEN. OPEN never arrives, so O_TRUNC would be lost.
//! - `POSIX_LOCKS`, `FLOCK_LOCKS`: locks would arrive here. But unlocking at close needs FLUSH and RELEASE,
//!   which never arrive. The kernel's own locks are right as long as one machine mounts.
//! - `AUTO_INVAL_DATA`: the kernel would drop pages whenever a time changed. Here its pages are always right.
//! - `ASYNC_DIO`: after an asynchronous O_DIRECT write the kernel does not drop the pages that a reader has
//!   cached in the meantime, and buffered reads would continue to see the old bytes. Without this flag such a
//!   write is done when it has been submitted.
//!
//! `ALLOW_IDMAP` (Linux 6.12) is taken because `default_permissions` is always set: the kernel maps ids and
//! checks permissions, and the volume stores its own ids. In return a request names its caller only if it
//! creates something.
//!
//! A shared mount answers OPEN, so it differs:
//!
//! - `AUTO_INVAL_DATA` is taken: before each read(2) of cached pages the kernel asks for the attributes, and
//!   drops the pages if size or time have changed.
//! - `DIRECT_IO_ALLOW_MMAP` is taken, because files opened with `O_APPEND` use no page cache
//!   ([`crate::shared`]).
//! - `POSIX_LOCKS` and `FLOCK_LOCKS` are taken if locks are decided for all machines.
//! - `DO_READDIRPLUS` is taken only if the kernel may keep names and attributes for a moment. Otherwise it
//!   would ask for both again.
//! - `WRITEBACK_CACHE` is not taken: the kernel would keep sizes and times itself, and append to an old end.
//!
//! `HANDLE_KILLPRIV_V2` is always taken. Without it the kernel asks for `security.capability` before every
//! write (4.5 times slower).

use fs::Errno;

use super::{MAX_WRITE, PAGE, Put, Take};

/// The protocol's major number.
pub const MAJOR: u32 = 7;
/// The newest minor number this transport knows.
pub const MINOR: u32 = 45;
/// The oldest minor number it works with (Linux 5.17).
pub const MINOR_MIN: u32 = 36;

/// INIT flags by name. Bits from 32 up are sent in a second word.
#[allow(missing_docs)]
pub mod flag {
    pub const ASYNC_READ: u64 = 1;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// What a mount wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The kernel may hold written bytes back until close or fsync.
    pub writeback: bool,
    /// Lookups of "." are served, so file handles (NFS, open_by_handle_at) can outlive the kernel's caches.
    pub export: bool,
    /// Requests come through io_uring. The caller must then register a ring for every CPU.
    pub uring: bool,
    /// Other machines change the tree too.
    pub shared: bool,
    /// The kernel may keep names and attributes, as far as each reply says. Only with `shared`.
    pub keeps: bool,
    /// Locks come to the filesystem. Only with `shared`.
    pub locks: bool,
    /// The mount has no extended attributes and no ACLs. The kernel asks for none, and remembers it.
    pub plain: bool,
}

/// The kernel's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// The largest read-ahead in bytes.
    pub max_readahead: u32,
    /// The flags that it supports.
    pub flags: u64,
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The minor number in force.
    pub minor: u32,
    /// The flags in force.
    pub flags: u64,
}

impl Agreed {
    /// Whether the mount has extended attributes and ACLs: both or none.
    pub fn has_xattrs(&self) -> bool {
        self.has(flag::POSIX_ACL)
    }

    /// Whether all of these flags are in force.
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// The flags that are always taken if the kernel has them.
const ALWAYS: u64 = flag::ASYNC_READ
    | flag::BIG_WRITES
    | flag::DONT_MASK
    | PLUS
    | flag::NO_OPEN_SUPPORT
    | flag::PARALLEL_DIROPS
    | flag::POSIX_ACL
    | flag::ABORT_ERROR
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::NO_OPENDIR_SUPPORT
    | flag::EXPLICIT_INVAL_DATA
    | flag::HANDLE_KILLPRIV_V2
    | flag::SETXATTR_EXT
    | flag::INIT_EXT
    | flag::ALLOW_IDMAP;

/// The flags of [`ALWAYS`] that a shared mount does not take.
const NOT_SHARED: u64 = flag::NO_OPEN_SUPPORT | flag::NO_OPENDIR_SUPPORT | flag::EXPLICIT_INVAL_DATA;

/// Listings with attributes, when the kernel expects a program to want them.
const PLUS: u64 = flag::DO_READDIRPLUS | flag::READDIRPLUS_AUTO;

/// The flags that a kernel must have. They exist since 5.17, and without them the mount would be wrong, not
/// just slow.
const NEEDED: u64 = flag::NO_OPEN_SUPPORT
    | flag::POSIX_ACL
    | flag::NO_OPENDIR_SUPPORT
    | flag::EXPLICIT_INVAL_DATA
    | flag::HANDLE_KILLPRIV_V2
    | flag::MAX_PAGES;

impl Offer {
    /// Reads the arguments of an INIT request.
    ///
    /// # Errors
    /// `EIO` if they are truncated.
    pub fn read(arguments: &[u8]) -> Result<Offer, Errno> {
        let mut take = Take::new(arguments);
        let mut offer = Offer {
            major: take.u32()?,
            minor: take.u32()?,
            max_readahead: take.u32()?,
            flags: u64::from(take.u32()?),
        };
        if offer.flags & flag::INIT_EXT != 0 {
            offer.flags |= u64::from(take.u32()?) << 32;
        }
        Ok(offer)
    }

    /// Negotiates with this kernel.
    ///
    /// # Errors
    /// `EPROTO` if the kernel is older than this transport supports.
    pub fn agree(&self, wishes: &Wishes) -> Result<Agreed, Errno> {
        let mut wanted = ALWAYS;
        if wishes.shared {
            wanted &= !NOT_SHARED;
            wanted |= flag::AUTO_INVAL_DATA | flag::DIRECT_IO_ALLOW_MMAP;
            if !wishes.keeps {
                wanted &= !PLUS;
            }
            if wishes.locks {
                wanted |= flag::POSIX_LOCKS | flag::FLOCK_LOCKS;
            }
        } else if wishes.writeback {
            wanted |= flag::WRITEBACK_CACHE;
        }
        if wishes.plain {
            wanted &= !flag::POSIX_ACL;
        }
        if wishes.export {
            wanted |= flag::EXPORT_SUPPORT;
        }
        if wishes.uring {
            wanted |= flag::OVER_IO_URING;
        }
        if self.major != MAJOR || self.minor < MINOR_MIN || self.flags & NEEDED != NEEDED {
            return Err(Errno(libc::EPROTO));
        }
        Ok(Agreed { minor: self.minor.min(MINOR), flags: self.flags & wanted })
    }
}

/// The most background requests (read-ahead, writeback) that the kernel may have under way at a time.
const MAX_BACKGROUND: u16 = 64;
/// Above this number the kernel skips read-ahead.
const CONGESTION: u16 = 48;

/// Writes the reply to INIT.
///
/// # Errors
/// `EIO` if the buffer is too small.
pub fn put_reply(put: &mut Put<'_>, offer: &Offer, agreed: &Agreed) -> Result<(), Errno> {
    put.u32(MAJOR)?;
    put.u32(MINOR)?;
    put.u32(offer.max_readahead)?;
    put.u32(agreed.flags as u32)?;
    put.u16(MAX_BACKGROUND)?;
    put.u16(CONGESTION)?;
    put.u32(MAX_WRITE as u32)?;
    put.u32(1)?; // granularity of times, in nanoseconds
    put.u16((MAX_WRITE / PAGE) as u16)?;
    put.u16(0)?; // alignment of DAX mappings: none
    put.u32((agreed.flags >> 32) as u32)?;
    put.zeros(28)
}
