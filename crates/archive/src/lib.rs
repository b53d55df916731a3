//! Imports, exports, and tar archives: the reader accepts what any program wrote, and every program can read
//! what the writer writes.
//!
//! ```text
//!   bytes ──► read::Reader ──► Entry, its bytes in pieces      Entry, its bytes ──► write::Writer ──► bytes
//!                 records    what pax says of a member
//!                 sparse     where a file's data lies
//!   acl       access control lists, in text and in bytes
//!   transfer  copies from a source to a sink; tells a front end how far it is
//!   import    sources: folders, archives. Sinks: folders, volumes, a volume that another process serves
//!   export    a source: a volume that is not mounted. A sink: an archive
//!   sys       system calls
//! ```
//!
//! Nothing here knows commands or a terminal. What is above hands in opened volumes, connections to daemons,
//! and a closure for progress.
//!
//! An archive is input from somebody else. The reader holds only what it uses of it, and everything that it
//! holds has a bound: a name, all records of a member together, the ranges of a file. Input that exceeds a
//! bound or makes no sense is an error that says so.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod acl;
pub mod export;
pub mod import;
pub mod read;
pub mod sys;
pub mod transfer;
pub mod write;

use base::Timestamp;

/// The unit of an archive, in bytes.
pub const BLOCK: usize = 512;
/// Data comes in pieces of at most this many bytes.
pub const PIECE: usize = 1 << 20;

/// One member of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The type flag: `0` file, `1` hard link, `2` symbolic link, `3` `4` devices, `5` folder, `6` pipe.
    /// Other flags are no files.
    pub kind: u8,
    /// The member's path as written in the archive.
    pub path: Vec<u8>,
    /// Target of a link.
    pub link: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Modification time.
    pub mtime: Timestamp,
    /// Access time, if the archive has one.
    pub atime: Option<Timestamp>,
    /// Major and minor number.
    pub device: (u32, u32),
    /// Size of the file, holes included.
    pub size: u64,
    /// Ranges that hold data: offset in the file, and length. In the archive their bytes follow one another.
    pub data: Vec<(u64, u64)>,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Access control lists in text, by the names of the attributes that they become. The writer makes them
    /// from `xattrs`.
    pub acls: Vec<(&'static [u8], Vec<u8>)>,
    /// Properties in the archive that this reader does not understand.
    pub unknown: Vec<String>,
}
