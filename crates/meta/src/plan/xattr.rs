//! Extended attributes, and the two that are access control lists.
//!
//! The inode's record keeps which of the special ones it has and how long the list of names is. So nothing
//! here needs to read the other attributes.

use base::Ino;

use crate::key::Key;
use crate::record::{InodeRecord, mode};

use super::acl::Acl;
use super::draft::{Draft, needs_entries_changed};
use super::op::{Change, Ctx, Refusal, XattrMode};
use super::view::{Ask, Node, Stop, View};

/// File capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// The access control list of the inode itself.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The list that new entries of a directory inherit.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The largest value, as everywhere on Linux.
const VALUE_MAX: usize = 64 << 10;
/// The largest list of names, each with a NUL: a longer one could not be listed.
const LIST_MAX: u32 = 64 << 10;
/// Limit of all values of an inode together: 1 MiB. They are collected, and copied, in one commit.
const TOTAL_MAX: u32 = 1 << 20;
/// The kernel's capabilities take at most 24 bytes.
const CAPABILITY_MAX: usize = 64;
/// The longest name.
const NAME_MAX: usize = 255;

/// Updates the record for an attribute whose value's length changes from `old` to `new`; none: it is absent.
pub(super) fn recount(record: &mut InodeRecord, name: &[u8], old: Option<usize>, new: Option<usize>) {
    let name_len = |there: Option<usize>| if there.is_some() { name.len() as u32 + 1 } else { 0 };
    let value_len = |there: Option<usize>| if name == CAPABILITY { 0 } else { there.unwrap_or(0) as u32 };
    record.xattr_list = record.xattr_list.saturating_sub(name_len(old)).saturating_add(name_len(new));
    record.xattr_bytes = record.xattr_bytes.saturating_sub(value_len(old)).saturating_add(value_len(new));
    record.set(InodeRecord::HAS_XATTRS, record.xattr_list > 0);
    let special = match name {
        CAPABILITY => InodeRecord::HAS_CAPABILITY,
        ACCESS_ACL => InodeRecord::HAS_ACL,
        DEFAULT_ACL => InodeRecord::HAS_DEFAULT_ACL,
        _ => return,
    };
    record.set(special, new.is_some());
}

/// Checks that a name is in a namespace that is supported; `Unsupported` for others.
fn check_name(name: &[u8]) -> Result<(), Refusal> {
    if name == ACCESS_ACL || name == DEFAULT_ACL {
        return Ok(());
    }
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let prefix = prefixes.into_iter().find(|prefix| name.starts_with(prefix));
    let prefix = prefix.ok_or(Refusal::Unsupported)?;
    if name.len() == prefix.len() || name.contains(&0) {
        return Err(Refusal::Invalid);
    }
    if name.len() > NAME_MAX { Err(Refusal::AttributeTooLarge) } else { Ok(()) }
}

/// Reads the inode and the attribute's row, and a directory's times.
fn load(view: &View, ino: Ino, name: &[u8]) -> Result<Node, Stop> {
    Ask::new(view).row(&Key::inode(ino)).row(&Key::xattr(ino, name)).done()?;
    let node = view.node(ino)?;
    if needs_entries_changed(&node) {
        view.row(&Key::dir_changed(ino))?;
    }
    Ok(node)
}

/// [`super::Op::SetXattr`]
pub(super) struct Set<'a> {
    pub ino: Ino,
    pub name: &'a [u8],
    pub value: &'a [u8],
    pub mode: XattrMode,
    pub kill_sgid: bool,
}

pub(super) fn set(view: &View, ctx: &Ctx, op: &Set<'_>) -> Result<Change, Stop> {
    check_name(op.name)?;
    if op.value.len() > VALUE_MAX {
        return Err(Refusal::AttributeTooLarge.into());
    }
    if op.name == CAPABILITY && op.value.len() > CAPABILITY_MAX {
        return Err(Refusal::Invalid.into());
    }
    let node = load(view, op.ino, op.name)?;
    let key = Key::xattr(op.ino, op.name);
    let there = view.row(&key)?;
    match (op.mode, there) {
        (XattrMode::Create, Some(_)) => return Err(Refusal::Exists.into()),
        (XattrMode::Replace, None) => return Err(Refusal::NoAttribute.into()),
        _ => {}
    }
    let mut draft = Draft::new();
    let mut record = draft.touched(view, ctx, &node)?;
    // The kernel sets this for either list, but only the access list affects the mode.
    if op.kill_sgid && op.name == ACCESS_ACL {
        record.mode &= !mode::S_ISGID;
    }
    let value = if op.name == ACCESS_ACL || op.name == DEFAULT_ACL {
        acl_value(&mut record, op.name, op.value)?
    } else {
        Some(op.value.to_vec())
    };
    draft.check_seen(key.clone(), there);
    recount(&mut record, op.name, there.map(|row| row.len()), value.as_ref().map(Vec::len));
    let grows = record.xattr_bytes > node.record.xattr_bytes && record.xattr_bytes > TOTAL_MAX;
    if record.xattr_list > LIST_MAX || grows {
        return Err(Refusal::AttributeTooLarge.into());
    }
    match value {
        Some(value) => draft.put(key, value.into()),
        None if there.is_some() => draft.del(key),
        None => {}
    }
    draft.update(&node, record);
    Ok(draft.finish())
}

/// Checks a list and makes the mode follow it. Returns what to store; none if the mode expresses it all.
fn acl_value(record: &mut InodeRecord, name: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
    if record.kind() == mode::S_IFLNK {
        return Err(Refusal::Unsupported);
    }
    let acl = Acl::parse(value)?;
    if name == DEFAULT_ACL {
        if acl.is_some() && !record.is_dir() {
            return Err(Refusal::NotPermitted);
        }
        return Ok(acl.map(|acl| acl.encode()));
    }
    let Some(acl) = acl else { return Ok(None) };
    record.mode = record.mode & !0o777 | acl.mode_bits();
    Ok((!acl.is_mode_alone()).then(|| acl.encode()))
}

/// [`super::Op::RemoveXattr`]
pub(super) fn remove(view: &View, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Change, Stop> {
    check_name(name)?;
    let node = load(view, ino, name)?;
    let key = Key::xattr(ino, name);
    let mut draft = Draft::new();
    let Some(there) = view.row(&key)? else {
        // Local filesystems report success when an absent list is removed.
        if name == ACCESS_ACL || name == DEFAULT_ACL {
            draft.change.inode = Some((ino, node.record));
            return Ok(draft.finish());
        }
        return Err(Refusal::NoAttribute.into());
    };
    let mut record = draft.touched(view, ctx, &node)?;
    draft.check_seen(key.clone(), Some(there));
    draft.del(key);
    recount(&mut record, name, Some(there.len()), None);
    draft.update(&node, record);
    Ok(draft.finish())
}
