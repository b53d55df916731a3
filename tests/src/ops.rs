//! Random operations on a small tree of names, which can be executed anywhere, so that the results of two
//! filesystems can be compared.
//!
//! A sequence is generated before it runs and never depends on results, so any part of it can be run again:
//! shrinking needs that. There are only a handful of names, so that most operations find something. Slots are
//! open files.

mod make;
mod side;

pub use make::sequence;
pub use side::Side;

use std::path::PathBuf;

/// How many files may be open at once.
pub const SLOTS: usize = 5;

/// The users that operations may run as (see [`Op::Become`]).
pub const USERS: [u32; 3] = [0, 65_534, 1_234];

/// Flags of open(2) in addition to the access mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// `O_CREAT`
    pub create: bool,
    /// `O_EXCL`
    pub exclusive: bool,
    /// `O_TRUNC`
    pub truncate: bool,
    /// `O_APPEND`
    pub append: bool,
    /// `O_RDONLY` instead of `O_RDWR`
    pub read_only: bool,
    /// `O_NOFOLLOW`
    pub nofollow: bool,
}

/// Modes of fallocate(2) that both sides support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Falloc {
    /// Mode 0.
    Grow,
    /// `FALLOC_FL_KEEP_SIZE`
    Keep,
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`
    Punch,
    /// `FALLOC_FL_ZERO_RANGE`
    Zero,
    /// `FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE`
    ZeroKeep,
}

/// Flags of renameat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renaming {
    /// 0
    Replace,
    /// `RENAME_NOREPLACE`
    NoReplace,
    /// `RENAME_EXCHANGE`
    Exchange,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `UTIME_NOW`
    Now,
    /// `UTIME_OMIT`
    Omit,
    /// Seconds and nanoseconds.
    At(i64, i64),
}

/// One operation. Paths are relative to the side's root.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names of the fields are those of the system call's manual page")]
pub enum Op {
    Open {
        slot: usize,
        path: PathBuf,
        how: How,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        offset: u64,
        len: usize,
    },
    Write {
        slot: usize,
        offset: u64,
        len: usize,
        seed: u64,
    },
    Append {
        slot: usize,
        len: usize,
        seed: u64,
    },
    MmapWrite {
        slot: usize,
        offset: u64,
        len: usize,
        seed: u64,
    },
    Ftruncate {
        slot: usize,
        len: u64,
    },
    Fallocate {
        slot: usize,
        how: Falloc,
        offset: u64,
        len: u64,
    },
    CopyRange {
        from: usize,
        to: usize,
        from_offset: u64,
        to_offset: u64,
        len: usize,
    },
    Fsync {
        slot: usize,
    },
    Fstat {
        slot: usize,
    },
    Fchmod {
        slot: usize,
        mode: u32,
    },
    Truncate {
        path: PathBuf,
        len: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        how: Renaming,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Unlink {
        path: PathBuf,
    },
    Mkdir {
        path: PathBuf,
        mode: u32,
    },
    Rmdir {
        path: PathBuf,
    },
    Symlink {
        target: PathBuf,
        path: PathBuf,
    },
    Readlink {
        path: PathBuf,
    },
    Mknod {
        path: PathBuf,
        mode: u32,
        device: u64,
    },
    Chmod {
        path: PathBuf,
        mode: u32,
    },
    Chown {
        path: PathBuf,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Utimens {
        path: PathBuf,
        atime: When,
        mtime: When,
    },
    SetXattr {
        path: PathBuf,
        name: &'static str,
        value: Vec<u8>,
        create: bool,
        replace: bool,
    },
    GetXattr {
        path: PathBuf,
        name: &'static str,
    },
    RemoveXattr {
        path: PathBuf,
        name: &'static str,
    },
    Stat {
        path: PathBuf,
    },
    Access {
        path: PathBuf,
        mode: u32,
    },
    List {
        path: PathBuf,
    },
    /// The following operations run as this user, in the group of the same number and no other.
    Become {
        user: u32,
    },
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success without a value.
    Done,
    /// A number: bytes written or copied.
    Count(u64),
    /// Bytes: their number and their hash.
    Bytes(usize, u64),
    /// A symlink's target.
    Target(PathBuf),
    /// Attributes.
    Node(Box<crate::tree::Node>),
    /// Names, sorted, with their types.
    Names(Vec<(std::ffi::OsString, u32)>),
    /// An error number.
    Error(rustix::io::Errno),
    /// The slot was empty.
    NoSlot,
}
