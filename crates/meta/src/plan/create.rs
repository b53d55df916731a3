//! New inodes: with a name, without one, and the root.

use base::size::NAME_MAX;
use base::{Ino, Timestamp};

use crate::key::{Key, is_name};
use crate::record::{Dentry, InodeRecord, encode_i64, encode_u64, mode};
use crate::store::Expect;

use super::acl::Acl;
use super::draft::{Draft, nothing};
use super::op::{Change, Ctx, Make, Refusal};
use super::view::{Ask, Node, Stop, View};
use super::xattr::{ACCESS_ACL, DEFAULT_ACL, recount};

/// The longest target of a symbolic link: 4,096 bytes less the NUL.
const TARGET_MAX: usize = 4095;

/// Checks a name that is to be created or removed.
pub(super) fn check_name(name: &[u8]) -> Result<(), Refusal> {
    if name.len() > NAME_MAX {
        return Err(Refusal::NameTooLong);
    }
    if is_name(name) { Ok(()) } else { Err(Refusal::Invalid) }
}

/// [`super::Op::Create`]
pub(super) fn create(
    view: &View,
    ctx: &Ctx,
    parent: Ino,
    name: &[u8],
    make: &Make<'_>,
) -> Result<Change, Stop> {
    check_name(name)?;
    let entry = Key::dentry(parent, name);
    Ask::new(view).row(&Key::inode(parent)).row(&entry).done()?;
    let dir = view.live_dir(parent)?;
    if view.row(&entry)?.is_some() {
        return Err(Refusal::Exists.into());
    }
    let mut draft = Draft::new();
    draft.check_seen(entry.clone(), None);
    let record = new_inode(&mut draft, view, ctx, &dir, make, 1)?;
    draft.put(entry, Dentry { ino: make.ino, kind: record.kind() }.encode());
    draft.entries_changed(&dir, ctx.now);
    if record.is_dir() {
        draft.add(Key::subdirs(parent), 1);
    }
    Ok(draft.finish())
}

/// [`super::Op::Tmpfile`]
pub(super) fn tmpfile(view: &View, ctx: &Ctx, parent: Ino, make: &Make<'_>) -> Result<Change, Stop> {
    if make.mode & mode::S_IFMT != mode::S_IFREG {
        return Err(Refusal::Invalid.into());
    }
    let dir = view.live_dir(parent)?;
    let mut draft = Draft::new();
    draft.check_seen(dir.key.clone(), Some(&dir.seen));
    new_inode(&mut draft, view, ctx, &dir, make, 0)?;
    draft.put(Key::orphan(make.ino), nothing());
    Ok(draft.finish())
}

/// The rows of a new inode in a directory.
fn new_inode(
    draft: &mut Draft,
    view: &View,
    ctx: &Ctx,
    parent: &Node,
    make: &Make<'_>,
    nlink: u32,
) -> Result<InodeRecord, Stop> {
    let kind = make.mode & mode::S_IFMT;
    if !mode::is_kind(kind) || make.ino.0 <= Ino::ROOT.0 {
        return Err(Refusal::Invalid.into());
    }
    let is_device = kind == mode::S_IFCHR || kind == mode::S_IFBLK;
    let mut record = InodeRecord {
        mode: kind | make.mode & mode::PERM,
        uid: ctx.uid,
        gid: ctx.gid,
        nlink,
        rdev: if is_device { make.rdev } else { 0 },
        parent: if nlink == 0 { Ino(0) } else { parent.ino },
        quota: parent.record.quota_below(parent.ino),
        ..blank(ctx.now)
    };
    let dir = &parent.record;
    if dir.mode & mode::S_ISGID != 0 {
        record.gid = dir.gid;
        if record.is_dir() {
            record.mode |= mode::S_ISGID;
        }
    }
    if kind == mode::S_IFLNK {
        symlink(draft, &mut record, make)?;
    } else if dir.has(InodeRecord::HAS_DEFAULT_ACL) {
        inherit_acl(draft, view, parent.ino, make.ino, &mut record)?;
    } else {
        record.mode &= !(make.umask & 0o777);
    }
    draft.create(make.ino, record);
    Ok(record)
}

/// An empty record.
fn blank(now: Timestamp) -> InodeRecord {
    InodeRecord {
        mode: 0,
        flags: 0,
        uid: 0,
        gid: 0,
        nlink: 0,
        rdev: 0,
        size: 0,
        stored: 0,
        parent: Ino(0),
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        change: 0,
        xattr_list: 0,
        xattr_bytes: 0,
        quota: Ino(0),
    }
}

fn symlink(draft: &mut Draft, record: &mut InodeRecord, make: &Make<'_>) -> Result<(), Refusal> {
    match make.target.len() {
        0 => return Err(Refusal::Invalid),
        len if len > TARGET_MAX => return Err(Refusal::NameTooLong),
        len => (record.size, record.stored) = (len as u64, len as u64),
    }
    record.mode = mode::S_IFLNK | 0o777;
    record.set(InodeRecord::INLINE, true);
    draft.put(Key::inline(make.ino), make.target.into());
    Ok(())
}

/// The parent's default ACL becomes the new inode's ACL, and a subdirectory's default ACL too. Its row
/// becomes a check: the parent's record may have been seen later than the ACL.
fn inherit_acl(
    draft: &mut Draft,
    view: &View,
    parent: Ino,
    ino: Ino,
    record: &mut InodeRecord,
) -> Result<(), Stop> {
    let key = Key::xattr(parent, DEFAULT_ACL);
    let row = view.row(&key)?.ok_or(Refusal::Damaged)?;
    draft.check_seen(key, Some(row));
    let mut acl = Acl::parse(row).ok().flatten().ok_or(Refusal::Damaged)?;
    if record.is_dir() {
        draft.put(Key::xattr(ino, DEFAULT_ACL), row.clone());
        recount(record, DEFAULT_ACL, None, Some(row.len()));
    }
    record.mode = record.mode & !0o777 | acl.inherit(record.mode);
    if !acl.is_mode_alone() {
        let value = acl.encode();
        recount(record, ACCESS_ACL, None, Some(value.len()));
        draft.put(Key::xattr(ino, ACCESS_ACL), value.into());
    }
    Ok(())
}

/// [`super::Op::Format`]
pub(super) fn format(view: &View, ctx: &Ctx, rows: &[(&str, Vec<u8>)]) -> Result<Change, Stop> {
    let root = Key::inode(Ino::ROOT);
    if view.row(&root)?.is_some() {
        return Err(Refusal::Exists.into());
    }
    let mut draft = Draft::new();
    draft.change.commit.checks.push((root.clone(), Expect::Absent));
    let record = InodeRecord {
        mode: mode::S_IFDIR | 0o755,
        uid: ctx.uid,
        gid: ctx.gid,
        nlink: 1,
        parent: Ino::ROOT,
        ..blank(ctx.now)
    };
    draft.put(root, record.encode());
    draft.put(Key::volume("inodes"), encode_i64(1));
    draft.put(Key::volume("next-ino"), encode_u64(Ino::ROOT.0 + 1));
    draft.put(Key::volume("next-pack"), encode_u64(1));
    let own = ["inodes", "bytes", "next-ino", "next-pack"];
    for (name, value) in rows.iter().filter(|(name, _)| !own.contains(name)) {
        draft.put(Key::volume(name), value.as_slice().into());
    }
    draft.change.inode = Some((Ino::ROOT, record));
    Ok(draft.finish())
}
