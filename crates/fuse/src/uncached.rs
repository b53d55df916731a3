//! The same filesystem as an ordinary FUSE server would serve it, to measure what the kernel's caches save.
//!
//! A mount made with [`Options::uncached`](crate::Options) answers OPEN, OPENDIR and the matching closes. It
//! gives names and attributes a lifetime of zero, and has files read past the page cache (`FOPEN_DIRECT_IO`).
//! So every open costs LOOKUP, OPEN, FLUSH and RELEASE, and every read a READ. Users cannot choose this. The
//! figures of other mounts are compared with it.

use crate::abi::init::flag;
use crate::abi::opcodes::op;

/// INIT flags that only a mount with caching asks for.
pub(crate) const NOT_ASKED: u64 = flag::NO_OPEN_SUPPORT
    | flag::NO_OPENDIR_SUPPORT
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::CACHE_SYMLINKS
    | flag::WRITEBACK_CACHE;

/// Writes the body of the reply to a request that a cached mount refuses or never sees. Returns its length,
/// or `None` for all other requests.
pub(crate) fn answer(opcode: u32, room: &mut [u8]) -> Option<usize> {
    const DIRECT_IO: u32 = 1;
    // A file handle (none), open flags, and four unused bytes.
    const OPENED: usize = 16;
    let flags = match opcode {
        op::OPEN => DIRECT_IO,
        op::OPENDIR => 0,
        op::FLUSH | op::RELEASE | op::RELEASEDIR => return Some(0),
        _ => return None,
    };
    let body = room.get_mut(..OPENED)?;
    body.fill(0);
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    Some(OPENED)
}

/// Clears the lifetimes in a reply's body, so that the kernel caches nothing of it.
pub(crate) fn expire(opcode: u32, body: &mut [u8]) {
    let times = match opcode {
        op::LOOKUP | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK | op::TMPFILE => 16..32,
        op::GETATTR | op::SETATTR => 0..8,
        _ => return,
    };
    if let Some(times) = body.get_mut(times) {
        times.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Put, out};
    use fs::api::Filesystem;

    #[test]
    fn replies_lose_their_times_and_nothing_else() {
        let attr = crate::null::Null::new().getattr(base::Ino(2)).unwrap();
        let entry = fs::api::Entry { generation: 7, ..fs::api::Entry::of(attr) };
        let (mut kept, mut gone) = ([0; 200], [0; 200]);
        for room in [&mut kept, &mut gone] {
            out::entry(&mut Put::new(room), &entry).unwrap();
        }
        expire(op::READ, &mut gone);
        assert_eq!(kept, gone);
        expire(op::LOOKUP, &mut gone);
        assert_eq!((&gone[..16], &gone[16..32], &gone[32..]), (&kept[..16], &[0; 16][..], &kept[32..]));
        out::attributes(&mut Put::new(&mut kept), &attr, false).unwrap();
        gone = kept;
        expire(op::GETATTR, &mut gone);
        assert_eq!((&gone[..8], &gone[8..]), (&[0; 8][..], &kept[8..]));
        assert_ne!(kept[..8], [0; 8]);
    }

    #[test]
    fn opens_and_closes_are_answered() {
        let mut room = [0xff; 64];
        assert_eq!(answer(op::OPEN, &mut room), Some(16));
        assert_eq!(room[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(answer(op::OPENDIR, &mut room), Some(16));
        assert_eq!(room[..16], [0; 16]);
        assert_eq!([op::FLUSH, op::RELEASE, op::RELEASEDIR].map(|op| answer(op, &mut [])), [Some(0); 3]);
        assert_eq!(answer(op::READ, &mut room), None);
    }
}
