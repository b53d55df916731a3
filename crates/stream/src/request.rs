//! What the relay reads from a FUSE request, which it does not serve: the caller, how many credits it takes,
//! whether it may be sent again, and which names are in doubt if its reply is lost.
//!
//! Numbers in FUSE messages are in the byte order of the machine. Both ends of a stream have the same one:
//! the greeting would not be understood otherwise, and all machines that Covey runs on are little-endian.

/// Length of a request's header, in bytes.
pub const IN_HEADER: usize = 40;
/// Length of a reply's header, in bytes.
pub const OUT_HEADER: usize = 16;

/// The numbers of the operations that the relay treats in a special way.
#[allow(missing_docs)]
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const FLUSH: u32 = 25;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;

    /// The name of an operation, for people.
    pub fn name(opcode: u32) -> &'static str {
        match opcode {
            1 => "lookup",
            2 | 42 => "forget",
            3 => "getattr",
            4 => "setattr",
            5 => "readlink",
            6 => "symlink",
            8 => "mknod",
            9 => "mkdir",
            10 => "unlink",
            11 => "rmdir",
            12 | 45 => "rename",
            13 => "link",
            14 => "open",
            15 => "read",
            16 => "write",
            17 => "statfs",
            18 => "release",
            20 => "fsync",
            21 => "setxattr",
            22 => "getxattr",
            23 => "listxattr",
            24 => "removexattr",
            25 => "flush",
            26 => "init",
            27 => "opendir",
            28 => "readdir",
            29 => "releasedir",
            30 => "fsyncdir",
            31 => "getlk",
            32 | 33 => "setlk",
            34 => "access",
            35 => "create",
            39 => "ioctl",
            43 => "fallocate",
            44 => "readdirplus",
            46 => "lseek",
            47 => "copy_file_range",
            51 => "tmpfile",
            52 => "statx",
            _ => "other",
        }
    }
}

/// The parts of a request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The operation.
    pub opcode: u32,
    /// The kernel's number of it.
    pub unique: u64,
    /// The inode.
    pub node: u64,
    /// The caller's thread in the namespace of the process that mounted. 0: not visible.
    pub pid: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|eight| u64::from_ne_bytes(*eight))
}

impl Asked {
    /// Reads a request's header. `None` if it is truncated or says another length.
    pub fn read(request: &[u8]) -> Option<Asked> {
        if request.len() < IN_HEADER || u32_at(request, 0)? as usize != request.len() {
            return None;
        }
        Some(Asked {
            opcode: u32_at(request, 4)?,
            unique: u64_at(request, 8)?,
            node: u64_at(request, 16)?,
            pid: u32_at(request, 32)?,
        })
    }

    /// Whether the kernel waits for a reply.
    pub fn wants_reply(&self) -> bool {
        !matches!(self.opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY)
    }

    /// Whether it may be executed again by a server that does not know whether it was. It changes nothing, or
    /// only what the server knows of the guest, and that is told anew or ends with the server, as locks do.
    /// FSYNC is not among these: a new run of the server cannot promise what an earlier one had in memory.
    pub fn is_repeatable(&self) -> bool {
        matches!(
            self.opcode,
            op::LOOKUP
                | op::FORGET
                | op::BATCH_FORGET
                | op::GETATTR
                | op::READLINK
                | op::OPEN
                | op::READ
                | op::STATFS
                | op::RELEASE
                | op::GETXATTR
                | op::LISTXATTR
                | op::FLUSH
                | op::GETLK
                | op::SETLK
                | op::SETLKW
                | op::INIT
                | op::OPENDIR
                | op::READDIR
                | op::RELEASEDIR
                | op::ACCESS
                | op::DESTROY
                | op::IOCTL
                | op::READDIRPLUS
                | op::LSEEK
                | op::STATX
        )
    }

    /// Whether the server keeps the reply until the slot is used again. The others are large, and executing
    /// them again changes nothing.
    pub fn is_kept(&self) -> bool {
        !matches!(self.opcode, op::READ | op::READDIR | op::INIT)
    }
}

/// The bytes that count as in flight for a request: its own, and those that it asks for.
pub fn cost(asked: &Asked, request: &[u8]) -> u32 {
    let wanted = match asked.opcode {
        op::READ | op::READDIR | op::READDIRPLUS => u32_at(request, IN_HEADER + 16),
        op::GETXATTR | op::LISTXATTR => u32_at(request, IN_HEADER),
        _ => None,
    };
    // A reply is never longer than a frame, whatever the request asks for.
    let wanted = wanted.unwrap_or(0).min(crate::frame::PAYLOAD_MAX as u32);
    request.len() as u32 + wanted
}

/// Something of which the kernel must not keep what it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// A name in a directory.
    Name(u64, Vec<u8>),
    /// An inode's attributes and pages, or a directory's listing.
    Inode(u64),
}

/// What is in doubt after a request that may or may not have been executed.
pub fn doubts(asked: &Asked, request: &[u8]) -> Vec<Doubt> {
    let arguments = request.get(IN_HEADER..).unwrap_or_default();
    let names_at = match asked.opcode {
        op::UNLINK | op::RMDIR | op::SYMLINK => 0,
        op::MKDIR | op::LINK | op::RENAME => 8,
        op::MKNOD | op::CREATE | op::RENAME2 => 16,
        _ if asked.is_repeatable() => return Vec::new(),
        _ => return vec![Doubt::Inode(asked.node)],
    };
    let names = arguments.get(names_at..).unwrap_or_default();
    let mut names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec);
    let first = names.next().unwrap_or_default();
    let mut doubts = vec![Doubt::Name(asked.node, first), Doubt::Inode(asked.node)];
    match asked.opcode {
        op::RENAME | op::RENAME2 => {
            let to = u64_at(arguments, 0).unwrap_or(asked.node);
            doubts.push(Doubt::Name(to, names.next().unwrap_or_default()));
            doubts.push(Doubt::Inode(to));
        }
        op::LINK => doubts.extend(u64_at(arguments, 0).map(Doubt::Inode)),
        _ => {}
    }
    doubts
}

/// The inodes to which the kernel holds one more reference each when it has this reply.
pub fn references(asked: &Asked, reply: &[u8]) -> Vec<u64> {
    /// An entry: attributes behind the inode, its generation, and four lifetimes.
    const ENTRY: usize = 128;
    /// The fixed part of a line of a listing.
    const LINE: usize = 24;
    let body = reply.get(OUT_HEADER..).unwrap_or_default();
    if u32_at(reply, 4) != Some(0) {
        return Vec::new();
    }
    match asked.opcode {
        op::LOOKUP | op::SYMLINK | op::MKNOD | op::MKDIR | op::LINK | op::CREATE | op::TMPFILE => {
            u64_at(body, 0).filter(|node| *node != 0).into_iter().collect()
        }
        op::READDIRPLUS => {
            let (mut at, mut found) = (0, Vec::new());
            while let (Some(node), Some(name)) = (u64_at(body, at), u32_at(body, at + ENTRY + 16)) {
                let name_at = at + ENTRY + LINE;
                let Some(text) = body.get(name_at..name_at.saturating_add(name as usize)) else { break };
                if node != 0 && text != b"." && text != b".." {
                    found.push(node);
                }
                at = name_at + (name as usize).next_multiple_of(8);
            }
            found
        }
        _ => Vec::new(),
    }
}

/// What a request says of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockAsked {
    /// What holds it.
    pub holder: Holder,
    /// The open file.
    pub handle: u64,
    /// Whether the request releases a lock.
    pub unlocks: bool,
    /// Whether the request is about all of the file.
    pub whole: bool,
}

/// How the kernel names what holds locks on an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// A process, or an open file with OFD locks.
    Owner(u64),
    /// An open file with a flock.
    Handle(u64),
}

/// Reads a GETLK, SETLK or SETLKW. `None`: it is none of these, or truncated.
pub fn lock_asked(asked: &Asked, request: &[u8]) -> Option<LockAsked> {
    const FLOCK: u32 = 1;
    if !matches!(asked.opcode, op::GETLK | op::SETLK | op::SETLKW) {
        return None;
    }
    let lock = request.get(IN_HEADER..)?;
    let (handle, owner) = (u64_at(lock, 0)?, u64_at(lock, 8)?);
    let (start, end) = (u64_at(lock, 16)?, u64_at(lock, 24)?);
    let (kind, flags) = (u32_at(lock, 32)?, u32_at(lock, 40)?);
    let is_flock = flags & FLOCK != 0;
    Some(LockAsked {
        holder: if is_flock { Holder::Handle(handle) } else { Holder::Owner(owner) },
        handle,
        unlocks: kind == libc::F_UNLCK as u32,
        whole: is_flock || (start == 0 && end >= i64::MAX as u64),
    })
}

/// Whether a request waits until a lock is granted. Releasing never waits.
pub fn waits_for_lock(asked: &Asked, request: &[u8]) -> bool {
    asked.opcode == op::SETLKW && lock_asked(asked, request).is_some_and(|lock| !lock.unlocks)
}

/// What a FLUSH or a RELEASE ends: the POSIX locks of a process on an inode, or all locks of an open file.
pub fn lock_ended(asked: &Asked, request: &[u8]) -> Option<Holder> {
    let arguments = request.get(IN_HEADER..)?;
    match asked.opcode {
        op::FLUSH => u64_at(arguments, 16).map(Holder::Owner),
        op::RELEASE => u64_at(arguments, 0).map(Holder::Handle),
        _ => None,
    }
}

/// The references that a FORGET or a BATCH_FORGET gives back.
pub fn forgotten(asked: &Asked, request: &[u8]) -> Vec<(u64, u64)> {
    let arguments = request.get(IN_HEADER..).unwrap_or_default();
    match asked.opcode {
        op::FORGET => u64_at(arguments, 0).map(|count| (asked.node, count)).into_iter().collect(),
        op::BATCH_FORGET => arguments
            .get(8..)
            .unwrap_or_default()
            .chunks_exact(16)
            .filter_map(|pair| Some((u64_at(pair, 0)?, u64_at(pair, 8)?)))
            .collect(),
        _ => Vec::new(),
    }
}

/// A message of the relay's own: a BATCH_FORGET of these inodes and counts.
pub fn batch_forget(pairs: &[(u64, u64)]) -> Vec<u8> {
    let len = IN_HEADER + 8 + 16 * pairs.len();
    let mut message = vec![0; IN_HEADER + 8];
    message[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    message[4..8].copy_from_slice(&op::BATCH_FORGET.to_ne_bytes());
    message[IN_HEADER..IN_HEADER + 4].copy_from_slice(&(pairs.len() as u32).to_ne_bytes());
    for (node, count) in pairs {
        message.extend(node.to_ne_bytes());
        message.extend(count.to_ne_bytes());
    }
    message
}

/// A reply without a body. `error` is a positive error number, or 0.
pub fn error_reply(unique: u64, error: i32) -> [u8; OUT_HEADER] {
    let mut reply = [0; OUT_HEADER];
    reply[..4].copy_from_slice(&(OUT_HEADER as u32).to_ne_bytes());
    reply[4..8].copy_from_slice(&(-error).to_ne_bytes());
    reply[8..].copy_from_slice(&unique.to_ne_bytes());
    reply
}

/// Whether these bytes are a reply to this request: the right number, the right length, no positive error.
pub fn is_reply(unique: u64, reply: &[u8]) -> bool {
    let error = u32_at(reply, 4).unwrap_or(1) as i32;
    reply.len() >= OUT_HEADER
        && u32_at(reply, 0) == Some(reply.len() as u32)
        && u64_at(reply, 8) == Some(unique)
        && (error == 0 || (-4095..0).contains(&error) && reply.len() == OUT_HEADER)
}

/// Whether a reply says that the request was done.
pub fn succeeded(reply: &[u8]) -> bool {
    u32_at(reply, 4) == Some(0)
}

/// The flag of an INIT that lets the kernel hold written bytes back.
pub const WRITEBACK_CACHE: u64 = 1 << 16;

/// What an INIT agreed: the minor version and the flags, from the server's reply.
pub fn agreed(reply: &[u8]) -> Option<(u32, u64)> {
    let body = reply.get(OUT_HEADER..)?;
    let flags = u64::from(u32_at(body, 12)?) | u64::from(u32_at(body, 32)?) << 32;
    Some((u32_at(body, 4)?, flags))
}

/// The message that makes a kernel drop what is in doubt.
pub fn notification(doubt: &Doubt) -> Vec<u8> {
    const INVAL_INODE: i32 = 2;
    const INVAL_ENTRY: i32 = 3;
    let (code, body) = match doubt {
        Doubt::Inode(node) => (INVAL_INODE, [node.to_ne_bytes(), [0; 8], [0; 8]].concat()),
        Doubt::Name(parent, name) => {
            let len = (name.len() as u32).to_ne_bytes();
            (INVAL_ENTRY, [&parent.to_ne_bytes()[..], &len, &[0; 4], name, &[0]].concat())
        }
    };
    message(code, &body)
}

/// The message that makes a kernel look all names up again (Linux 6.16; `FUSE_NOTIFY_INC_EPOCH`).
pub fn drop_all_names() -> Vec<u8> {
    message(8, &[])
}

fn message(code: i32, body: &[u8]) -> Vec<u8> {
    let len = (OUT_HEADER + body.len()) as u32;
    [&len.to_ne_bytes()[..], &code.to_ne_bytes(), &[0; 8], body].concat()
}

/// Whether this notification concerns attributes alone, so that sending it waits for nothing.
pub fn is_quick(notification: &[u8]) -> bool {
    let offset = u64_at(notification, OUT_HEADER + 8).map(|offset| offset as i64);
    u32_at(notification, 4) == Some(2) && offset.is_some_and(|offset| offset < 0)
}

/// Whether these bytes are a notification that the relay passes on: an invalidation, whole, and no more.
pub fn is_notification(message: &[u8]) -> bool {
    u32_at(message, 0) == Some(message.len() as u32)
        && u64_at(message, 8) == Some(0)
        && matches!(u32_at(message, 4), Some(2 | 3 | 6))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(opcode: u32, arguments: &[u8]) -> (Asked, Vec<u8>) {
        let mut bytes = vec![0; IN_HEADER];
        bytes[..4].copy_from_slice(&((IN_HEADER + arguments.len()) as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[8] = 9;
        bytes[16] = 5;
        bytes.extend(arguments);
        (Asked::read(&bytes).unwrap(), bytes)
    }

    #[test]
    fn what_may_be_in_doubt_is_named() {
        let (asked, bytes) =
            request(op::RENAME2, &[&7_u64.to_ne_bytes()[..], &[0; 8], b"old\0new\0"].concat());
        let name = |parent, name: &[u8]| Doubt::Name(parent, name.to_vec());
        assert_eq!(
            doubts(&asked, &bytes),
            [name(5, b"old"), Doubt::Inode(5), name(7, b"new"), Doubt::Inode(7)]
        );
        let (asked, bytes) = request(op::MKNOD, &[&[0; 16][..], b"file\0"].concat());
        assert_eq!(doubts(&asked, &bytes), [name(5, b"file"), Doubt::Inode(5)]);
        let (asked, bytes) = request(op::GETATTR, &[0; 16]);
        assert_eq!(doubts(&asked, &bytes), []);
        let (asked, bytes) = request(16, &[0; 40]);
        assert_eq!(doubts(&asked, &bytes), [Doubt::Inode(5)], "a WRITE");
    }

    #[test]
    fn replies_must_fit_their_request() {
        let mut good = error_reply(9, 0).to_vec();
        assert!(is_reply(9, &good) && !is_reply(8, &good) && !is_reply(9, &good[..15]));
        good.push(1);
        assert!(!is_reply(9, &good), "the length differs");
        good[0] = 17;
        assert!(is_reply(9, &good));
        good[4..8].copy_from_slice(&(-5_i32).to_ne_bytes());
        assert!(!is_reply(9, &good), "an error has no body");
        assert!(!is_reply(9, &error_reply(9, -5)), "an error is negative");
    }

    #[test]
    fn a_request_for_a_lock_names_its_holder() {
        let lock = |opcode, kind: i32, flags: u32, end: u64| {
            let numbers = [8_u64, 9, 0, end].map(u64::to_ne_bytes).concat();
            let tail = [kind as u32, 77, flags, 0].map(u32::to_ne_bytes).concat();
            request(opcode, &[numbers, tail].concat())
        };
        let (asked, bytes) = lock(op::SETLKW, libc::F_WRLCK, 0, i64::MAX as u64);
        let posix = LockAsked { holder: Holder::Owner(9), handle: 8, unlocks: false, whole: true };
        assert_eq!(lock_asked(&asked, &bytes), Some(posix));
        assert!(waits_for_lock(&asked, &bytes));
        let (asked, bytes) = lock(op::SETLKW, libc::F_UNLCK, 1, 5);
        let flock = LockAsked { holder: Holder::Handle(8), handle: 8, unlocks: true, whole: true };
        assert_eq!(lock_asked(&asked, &bytes), Some(flock));
        assert!(!waits_for_lock(&asked, &bytes), "an unlock never waits");
        let (asked, bytes) = lock(op::GETLK, libc::F_RDLCK, 0, 5);
        assert_eq!(lock_asked(&asked, &bytes).map(|lock| lock.whole), Some(false));
        let (asked, bytes) = request(op::FLUSH, &[[1_u64.to_ne_bytes(); 2].concat(), vec![4; 8]].concat());
        assert_eq!(lock_ended(&asked, &bytes), Some(Holder::Owner(0x0404_0404_0404_0404)));
        let (asked, bytes) = request(op::RELEASE, &[&7_u64.to_ne_bytes()[..], &[0; 16]].concat());
        assert_eq!(lock_ended(&asked, &bytes), Some(Holder::Handle(7)));
        assert_eq!(lock_asked(&asked, &bytes), None);
    }

    #[test]
    fn a_read_costs_what_it_asks_for() {
        let (asked, bytes) = request(op::READ, &[&[0; 16][..], &4096_u32.to_ne_bytes(), &[0; 20]].concat());
        assert_eq!(cost(&asked, &bytes), 80 + 4096);
        let (asked, bytes) = request(op::READ, &[&[0; 16][..], &u32::MAX.to_ne_bytes()].concat());
        assert!(cost(&asked, &bytes) < 2 << 20);
    }

    proptest! {
        #[test]
        fn any_message_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), opcode in 0_u32..60) {
            let asked = Asked { opcode, unique: 1, node: 2, pid: 3 };
            let _ = (Asked::read(&bytes), cost(&asked, &bytes), doubts(&asked, &bytes), agreed(&bytes));
            let _ = (references(&asked, &bytes), forgotten(&asked, &bytes), is_reply(1, &bytes));
            let _ = (is_notification(&bytes), is_quick(&bytes));
            let _ = (waits_for_lock(&asked, &bytes), lock_ended(&asked, &bytes));
        }
    }
}
