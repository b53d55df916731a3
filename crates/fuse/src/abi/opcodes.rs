//! Every opcode of the protocol and what an exclusive or frozen mount does with it, and what a shared mount
//! does differently.
//!
//! The dispatcher looks a request up here first, and a test sends each opcode through it. So the table cannot
//! differ from what is served. The documentation's table is generated from this one.

use fs::Errno;

/// What happens to requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The filesystem is called.
    Served,
    /// Always this error number.
    Refused(i32),
    /// Never sent, because the kernel does it itself or because INIT does not ask for it. ENOSYS if it
    /// arrives all the same.
    Kernel,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Opcode {
    /// The opcode's number.
    pub number: u32,
    /// The opcode's name, without `FUSE_`.
    pub name: &'static str,
    /// What is done with it.
    pub policy: Policy,
    /// Why.
    pub why: &'static str,
}

macro_rules! table {
    ($($number:literal $name:ident $policy:expr, $why:literal;)*) => {
        /// The opcodes' numbers.
        #[allow(missing_docs)]
        pub mod op {
            $(pub const $name: u32 = $number;)*
        }

        /// All opcodes, by number.
        pub const OPCODES: &[Opcode] = &[
            $(Opcode { number: $number, name: stringify!($name), policy: $policy, why: $why },)*
        ];
    };
}

use Policy::{Kernel, Refused, Served};

const ENOSYS: Policy = Refused(libc::ENOSYS);

table! {
    1 LOOKUP Served, "a name the kernel does not hold; a missing one is answered so that the kernel remembers that too";
    2 FORGET Served, "the kernel drops its references; an inode without a name ends here";
    3 GETATTR Served, "attributes the kernel does not hold: after each change of a directory, that directory's";
    4 SETATTR Served, "chmod, chown, truncate, utimes, and the times the kernel kept while it held written bytes back";
    5 READLINK Served, "once per symbolic link; the kernel keeps the target";
    6 SYMLINK Served, "";
    8 MKNOD Served, "makes regular files too, because CREATE is refused";
    9 MKDIR Served, "";
    10 UNLINK Served, "an open file lives on until FORGET";
    11 RMDIR Served, "";
    12 RENAME Served, "";
    13 LINK Served, "";
    14 OPEN ENOSYS, "the kernel opens files by itself from then on: no round trip per open, and no RELEASE";
    15 READ Served, "pages the kernel does not hold, with readahead";
    16 WRITE Served, "up to 1 MiB; with the writeback cache when pages are written back";
    17 STATFS Served, "";
    18 RELEASE Served, "comes only for files made by TMPFILE; nothing to do, the inode lives until FORGET";
    20 FSYNC Served, "after the kernel has written back the file's pages and times";
    21 SETXATTR Served, "";
    22 GETXATTR Served, "also how the kernel reads ACLs";
    23 LISTXATTR Served, "";
    24 REMOVEXATTR Served, "";
    25 FLUSH ENOSYS, "close needs no round trip: the kernel writes dirty pages back by itself before close returns";
    26 INIT Served, "once, before all others";
    27 OPENDIR ENOSYS, "the kernel opens and caches directories by itself";
    28 READDIR Served, "";
    29 RELEASEDIR Kernel, "directories are never opened here";
    30 FSYNCDIR Served, "";
    31 GETLK Kernel, "POSIX locks stay in the kernel: this machine is the only one";
    32 SETLK Kernel, "as GETLK; flock too";
    33 SETLKW Kernel, "as GETLK";
    34 ACCESS ENOSYS, "the kernel checks permissions itself (default_permissions)";
    35 CREATE ENOSYS, "the kernel uses MKNOD and opens by itself, so no RELEASE follows";
    36 INTERRUPT Served, "a request that waits is answered EINTR if its caller is being killed; other signals interrupt nothing, as on a disk";
    37 BMAP ENOSYS, "no block device below";
    38 DESTROY Served, "";
    39 IOCTL Refused(libc::ENOTTY), "no ioctl is known; answered at once, because some programs ask at every open";
    40 POLL ENOSYS, "files are always ready";
    41 NOTIFY_REPLY Kernel, "pages are never retrieved from the kernel";
    42 BATCH_FORGET Served, "many FORGETs in one";
    43 FALLOCATE Served, "reserve, punch, zero";
    44 READDIRPLUS Served, "names with attributes, when the kernel expects them to be wanted";
    45 RENAME2 Served, "RENAME_NOREPLACE and RENAME_EXCHANGE; RENAME_WHITEOUT gives EINVAL";
    46 LSEEK Served, "SEEK_DATA and SEEK_HOLE, after the kernel's dirty pages were written back";
    47 COPY_FILE_RANGE Served, "by names only; the kernel writes both files' dirty pages back first";
    48 SETUPMAPPING Kernel, "DAX windows exist for virtiofs only";
    49 REMOVEMAPPING Kernel, "as SETUPMAPPING";
    50 SYNCFS Served, "today's kernels send it on virtiofs only";
    51 TMPFILE Served, "O_TMPFILE; the one way to get a RELEASE";
    52 STATX ENOSYS, "the time of creation is not shown: served, it would cost a round trip at every stat that asks for it, also when all else is in the kernel's memory";
    53 COPY_FILE_RANGE_64 Served, "as COPY_FILE_RANGE, past 4 GiB at once";
    4096 CUSE_INIT Kernel, "character devices in user space";
}

macro_rules! shared {
    ($($name:ident $policy:expr, $why:literal;)*) => {
        &[$(Opcode { number: op::$name, name: stringify!($name), policy: $policy, why: $why },)*]
    };
}

/// What a shared mount does differently from [`OPCODES`].
pub const SHARED: &[Opcode] = shared! {
    OPEN Served, "answered by the transport, with a new number; the kernel drops the file's pages";
    RELEASE Served, "ends the locks of an open file; otherwise nothing to do";
    OPENDIR Served, "answered by the transport: otherwise the kernel would cache listings";
    RELEASEDIR Served, "nothing to do";
    CREATE Served, "as MKNOD and OPEN; a name that another machine has just made is looked up again";
    READDIRPLUS Served, "negotiated only with leases; attributes come only of what the kernel may keep";
};

/// What it also does differently if locks are decided for all machines.
pub const SHARED_LOCKS: &[Opcode] = shared! {
    FLUSH Served, "ends the POSIX locks that a process holds on a file; the filesystem is called only if it may hold some";
    GETLK Served, "";
    SETLK Served, "flock too";
    SETLKW Served, "waits without a deadline; any signal that interrupts a lock on a disk interrupts it";
};

/// What kind of mount receives a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mounted {
    /// Exclusive or frozen.
    #[default]
    Alone,
    /// Shared, with locks in the kernel.
    Shared,
    /// Shared, with locks for all machines.
    SharedLocks,
}

/// What this kind of mount does with an opcode. `None`: there is no such opcode.
pub fn policy(number: u32, mounted: Mounted) -> Option<Policy> {
    let tables: [&[Opcode]; 2] = match mounted {
        Mounted::Alone => [&[], &[]],
        Mounted::Shared => [SHARED, &[]],
        Mounted::SharedLocks => [SHARED, SHARED_LOCKS],
    };
    let differs = tables.into_iter().flatten().find(|line| line.number == number);
    differs.or_else(|| find(number)).map(|line| line.policy)
}

/// Whether the kernel waits for a reply to this opcode. Where a request takes up something until it is
/// answered, such as a ring entry, a slot or a chain of descriptors, that must be given back all the same.
pub fn wants_reply(number: u32) -> bool {
    !matches!(number, op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY)
}

/// The line of one opcode.
pub fn find(number: u32) -> Option<&'static Opcode> {
    // All but the last have small gaps between them. Start at the last index where it can be, and search
    // backwards.
    let start = (number as usize).min(OPCODES.len());
    OPCODES[..start].iter().rev().chain(OPCODES.last()).find(|line| line.number == number)
}

/// The table as Markdown, one line per opcode, for the documentation.
pub fn markdown() -> String {
    as_markdown(OPCODES.iter())
}

/// [`SHARED`] and [`SHARED_LOCKS`] in the same form.
pub fn markdown_shared() -> String {
    as_markdown(SHARED.iter().chain(SHARED_LOCKS))
}

fn as_markdown(lines: impl Iterator<Item = &'static Opcode>) -> String {
    let mut text = String::from("| opcode | | what is done | why |\n|---|---|---|---|\n");
    for line in lines {
        let done = match line.policy {
            Policy::Served => "served".to_owned(),
            Policy::Refused(error) => format!("refused: {}", Errno(error)),
            Policy::Kernel => "left to the kernel".to_owned(),
        };
        text.push_str(&format!("| {} | {} | {done} | {} |\n", line.number, line.name, line.why));
    }
    text
}
