//! INIT: what this transport asks of the kernel, and what it must never ask.
//!
//! The kernel offers flags, the reply takes those wanted. Some are traps for a mount that answers OPEN and FLUSH
//! with ENOSYS, and are never taken, however tempting:
//!
//! - `ATOMIC_O_TRUNC`: the kernel leaves truncation to OPEN, which never comes: O_TRUNC would be lost.
//! - `POSIX_LOCKS`, `FLOCK_LOCKS`: locks would come here, but unlocking at close is a matter of FLUSH and RELEASE,
//!   which never come. The kernel's own locks are right as long as one machine mounts.
//! - `AUTO_INVAL_DATA`: pages would be dropped whenever a time changed; here the kernel's pages are always right.
//! - `ASYNC_DIO`: after an asynchronous O_DIRECT write the kernel does not drop the pages that a reader brought in
//!   meanwhile, and buffered reads would go on to see the old bytes. Without it such a write is done when submitted.
//!
//! `ALLOW_IDMAP` (Linux 6.12) is taken because `default_permissions` is always given: the kernel maps ids and checks permissions, and
//! what is stored are the volume's own ids. In return a request names its caller only where something is made.
//!
//! `HANDLE_KILLPRIV_V2` is always taken: without it every write is preceded by a question for
//! `security.capability` (4.5 times slower).

use fs::Errno;

use super::{MAX_WRITE, PAGE, Put, Take};

/// The protocol's major number.
pub const MAJOR: u32 = 7;
/// The newest minor number this transport knows.
pub const MINOR: u32 = 45;
/// The oldest minor number it works with (Linux 5.17).
pub const MINOR_MIN: u32 = 36;

/// INIT flags by name: bit 32 and up travel in a second word.
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
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// What a mount wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The kernel may hold written bytes back until close or fsync.
    pub writeback: bool,
    /// Lookups of "." are served, so file handles (NFS, open_by_handle_at) can outlive the kernel's memory.
    pub export: bool,
    /// Requests are to come through io_uring: only for one who then registers a ring for every CPU.
    pub uring: bool,
    /// The kernel is to keep nothing, and to ask for every open: for measuring only.
    pub uncached: bool,
}

/// What the kernel asked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
    /// What it can do.
    pub flags: u64,
}

/// What was agreed upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The minor number in force.
    pub minor: u32,
    /// The flags in force.
    pub flags: u64,
}

impl Agreed {
    /// Whether all of these flags are in force.
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// What always is asked for, where the kernel has it.
const ALWAYS: u64 = flag::ASYNC_READ
    | flag::BIG_WRITES
    | flag::DONT_MASK
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
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

/// What a kernel must have: it is there since 5.17, and without it the mount would be wrong, not only slow.
const NEEDED: u64 = flag::NO_OPEN_SUPPORT
    | flag::NO_OPENDIR_SUPPORT
    | flag::EXPLICIT_INVAL_DATA
    | flag::HANDLE_KILLPRIV_V2
    | flag::MAX_PAGES;

impl Offer {
    /// Reads the arguments of an INIT request.
    ///
    /// # Errors
    /// `EIO` when truncated.
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

    /// What is agreed upon with this kernel.
    ///
    /// # Errors
    /// `EPROTO` when the kernel is older than this transport can work with.
    pub fn agree(&self, wishes: &Wishes) -> Result<Agreed, Errno> {
        let mut wanted = ALWAYS;
        if wishes.writeback {
            wanted |= flag::WRITEBACK_CACHE;
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
        if wishes.uncached {
            wanted &= !crate::uncached::NOT_ASKED;
        }
        Ok(Agreed { minor: self.minor.min(MINOR), flags: self.flags & wanted })
    }
}

/// Background requests (readahead, writeback) the kernel may have under way at a time.
const MAX_BACKGROUND: u16 = 64;
/// Above so many, readahead is left out.
const CONGESTION: u16 = 48;

/// Writes the reply to INIT.
///
/// # Errors
/// `EIO` when the room is too small.
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
