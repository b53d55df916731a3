//! Generates sequences of operations from a seed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{Falloc, How, Op, Renaming, SLOTS, USERS, When};
use crate::Rng;

/// The maximum size of files.
const LARGEST: u64 = 1 << 20;

const XATTRS: [&str; 6] = [
    "user.one",
    "user.two",
    "trusted.three",
    "security.four",
    "system.posix_acl_access",
    "system.posix_acl_default",
];

const MODES: [u32; 9] = [0o644, 0o600, 0o755, 0o000, 0o777, 0o4755, 0o2755, 0o2770, 0o1777];

/// A sequence of `count` operations. `users`: also as users other than root.
pub fn sequence(seed: u64, count: usize, users: bool) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let mut ops = Vec::with_capacity(count);
    // An initial tree, because most early operations would find nothing otherwise.
    for folder in ["a", "b", "a/c", "a/c/d"] {
        ops.push(Op::Mkdir { path: folder.into(), mode: 0o777 });
    }
    while ops.len() < count {
        ops.push(if users && rng.one_in(25) {
            Op::Become { user: *rng.pick(&USERS) }
        } else {
            one(&mut rng)
        });
    }
    ops
}

fn one(rng: &mut Rng) -> Op {
    match rng.below(100) {
        0..34 => on_slot(rng),
        34..52 => Op::Open { slot: slot(rng), path: path(rng), how: how(rng), mode: mode(rng) },
        52..76 => on_names(rng),
        _ => on_attributes(rng),
    }
}

fn on_slot(rng: &mut Rng) -> Op {
    let (slot, offset, len) = (slot(rng), rng.length(LARGEST), rng.length(200_000) as usize);
    match rng.below(16) {
        0 => Op::Close { slot },
        1..4 => Op::Read { slot, offset, len },
        4..7 => Op::Write { slot, offset, len, seed: rng.u64() },
        7 => Op::Append { slot, len, seed: rng.u64() },
        8 => Op::MmapWrite { slot, offset, len, seed: rng.u64() },
        9 => Op::Ftruncate { slot, len: rng.length(LARGEST) },
        10 => {
            let all = [Falloc::Grow, Falloc::Keep, Falloc::Punch, Falloc::Zero, Falloc::ZeroKeep];
            Op::Fallocate { slot, how: *rng.pick(&all), offset, len: len as u64 }
        }
        11 | 12 => {
            let (to, to_offset) = (rng.below(SLOTS as u64) as usize, rng.length(LARGEST));
            Op::CopyRange { from: slot, to, from_offset: offset, to_offset, len }
        }
        13 => Op::Fsync { slot },
        14 => Op::Fchmod { slot, mode: mode(rng) },
        _ => Op::Fstat { slot },
    }
}

fn on_names(rng: &mut Rng) -> Op {
    match rng.below(12) {
        0..4 => {
            let how =
                *rng.pick(&[Renaming::Replace, Renaming::Replace, Renaming::NoReplace, Renaming::Exchange]);
            Op::Rename { from: path(rng), to: path(rng), how }
        }
        4 => Op::Link { from: path(rng), to: path(rng) },
        5 | 6 => Op::Unlink { path: path(rng) },
        7 | 8 => Op::Mkdir { path: path(rng), mode: mode(rng) },
        9 => Op::Rmdir { path: path(rng) },
        10 => Op::Symlink { target: target(rng), path: path(rng) },
        _ => {
            let kind = *rng.pick(&[libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFREG]);
            Op::Mknod { path: path(rng), mode: kind | mode(rng), device: libc::makedev(1, 3) }
        }
    }
}

fn on_attributes(rng: &mut Rng) -> Op {
    let path = path(rng);
    match rng.below(14) {
        0 | 1 => Op::Chmod { path, mode: mode(rng) },
        2 => {
            let (uid, gid) = (some_user(rng), some_user(rng));
            // With neither, the kernel sends a FUSE filesystem nothing that would let it clear set-id bits.
            Op::Chown { path, uid, gid: if uid.is_none() { gid.or(Some(0)) } else { gid } }
        }
        3 | 4 => Op::Utimens { path, atime: when(rng), mtime: when(rng) },
        5 => Op::Truncate { path, len: rng.length(LARGEST) },
        6 | 7 => {
            let name = *rng.pick(&XATTRS);
            // Both at once is a contradiction that filesystems handle differently.
            let how = rng.below(8);
            let value = if name.starts_with("system.") { acl(rng) } else { short(rng) };
            Op::SetXattr { path, name, value, create: how == 0, replace: how == 1 }
        }
        8 => Op::GetXattr { path, name: rng.pick::<&str>(&XATTRS) },
        9 => Op::RemoveXattr { path, name: rng.pick::<&str>(&XATTRS) },
        10 => Op::List { path },
        11 => Op::Readlink { path },
        12 => Op::Access { path, mode: rng.below(8) as u32 },
        _ => Op::Stat { path },
    }
}

fn slot(rng: &mut Rng) -> usize {
    rng.below(SLOTS as u64) as usize
}

fn mode(rng: &mut Rng) -> u32 {
    *rng.pick(&MODES)
}

fn how(rng: &mut Rng) -> How {
    How {
        create: !rng.one_in(3),
        exclusive: rng.one_in(8),
        truncate: rng.one_in(6),
        append: rng.one_in(8),
        read_only: rng.one_in(8),
        nofollow: rng.one_in(12),
    }
}

fn some_user(rng: &mut Rng) -> Option<u32> {
    (!rng.one_in(3)).then(|| *rng.pick(&USERS))
}

fn when(rng: &mut Rng) -> When {
    match rng.below(6) {
        0 => When::Now,
        1 => When::Omit,
        2 => When::At(-rng.range(1, 1_000_000_000).cast_signed(), 999_999_999),
        _ => When::At(rng.below(1_500_000_000).cast_signed(), rng.below(1_000_000_000).cast_signed()),
    }
}

fn short(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(300) as usize;
    rng.bytes(len)
}

/// A POSIX ACL as stored in its attribute; sometimes one that the kernel must refuse.
fn acl(rng: &mut Rng) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let perm = |rng: &mut Rng| rng.below(8) as u16;
    let mut entries = vec![(1u16, perm(rng), NONE)];
    let named = rng.one_in(2);
    if named {
        entries.push((2, perm(rng), USERS[1]));
    }
    entries.push((4, perm(rng), NONE));
    if named && !rng.one_in(10) {
        entries.push((16, perm(rng), NONE));
    }
    entries.push((32, perm(rng), NONE));
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn path(rng: &mut Rng) -> PathBuf {
    let folder = *rng.pick(&["", "", "a", "a", "b", "a/c", "a/c/d", "b/l"]);
    let leaf: OsString = match rng.below(60) {
        0 => "n".repeat(255).into(),
        1 => "n".repeat(256).into(),
        2 => OsString::from_vec(b"\xff\xfe \n".to_vec()),
        3 => ".".into(),
        // Not above the tree: `..` only of a folder in it. See `target`.
        4 if !folder.is_empty() => "..".into(),
        5 => "f0/".into(),
        6..9 => "l".into(),
        9..18 => return [*rng.pick(&["a", "b", "a/c", "a/c/d"])].iter().collect(),
        _ => format!("f{}", rng.below(5)).into(),
    };
    PathBuf::from(folder).join(leaf)
}

/// A symlink's target: never `..`, `.` or absolute, so that no chain of links leads out of the tree, or to
/// its root, whose parent is outside.
fn target(rng: &mut Rng) -> PathBuf {
    match rng.below(10) {
        0 => "b".into(),
        1 => "l".into(),
        2 => "no such".into(),
        3 => "t".repeat(4000).into(),
        4 => "a/c".into(),
        5 => "c/d".into(),
        _ => format!("f{}", rng.below(5)).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::{Component, Path};

    use super::*;

    /// The operations run as root: they must never reach outside their tree.
    #[test]
    fn regression_no_path_leads_out_of_the_tree() {
        let inside = |path: &Path| {
            let mut parts = path.components();
            matches!(parts.next(), None | Some(Component::Normal(_) | Component::CurDir))
                && parts.all(|part| part == Component::ParentDir || matches!(part, Component::Normal(_)))
        };
        let mut rng = Rng::new(1);
        for _ in 0..100_000 {
            let path = path(&mut rng);
            assert!(
                inside(&path) && path.iter().filter(|part| *part == OsStr::new("..")).count() <= 1,
                "{path:?}"
            );
            let target = target(&mut rng);
            assert!(target.components().all(|part| matches!(part, Component::Normal(_))), "{target:?}");
        }
    }
}
