//! Operations on a small tree of names, generated at random and carried out anywhere, so that two filesystems can be
//! asked the same thing and their answers compared.
//!
//! A sequence is made before it is run and never looks at answers, so any part of it can be run again: that is what
//! shrinking needs. Names come from a handful, so that most operations meet something. Slots are open files.

mod make;
mod side;

pub use make::sequence;
pub use side::Side;

use std::path::PathBuf;

/// How many files may be open at once.
pub const SLOTS: usize = 5;

/// The users an operation may run as (see [`Op::Become`]).
pub const USERS: [u32; 3] = [0, 65_534, 1_234];

/// Flags of open(2) beside the access mode.
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

/// fallocate(2)'s modes that both sides have.
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

/// renameat2(2)'s flags.
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
    /// The operations that follow are this user's, who has the group of the same number and no others.
    Become {
        user: u32,
    },
}

/// What an operation answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has nothing to say.
    Done,
    /// A number: bytes written or copied.
    Count(u64),
    /// Bytes: how many and their hash.
    Bytes(usize, u64),
    /// A symlink's target.
    Target(PathBuf),
    /// Attributes.
    Node(Box<crate::tree::Node>),
    /// Names, sorted, with their types.
    Names(Vec<(std::ffi::OsString, u32)>),
    /// An error number.
    Error(rustix::io::Errno),
    /// There was nothing in the slot.
    NoSlot,
}
