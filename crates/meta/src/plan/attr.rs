//! Attributes: permissions, owners, times, and the size.

use base::{Ino, Timestamp};

use crate::key::Key;
use crate::record::{InodeRecord, mode};

use super::acl::Acl;
use super::draft::{Draft, needs_entries_changed};
use super::op::{Change, Ctx, Refusal, SetAttrs};
use super::pages::Ledger;
use super::size::{charge, resize};
use super::view::{Ask, Node, Stop, View};
use super::xattr::ACCESS_ACL;

/// [`super::Op::SetAttr`]
pub(super) fn set(view: &View, ctx: &Ctx, ino: Ino, set: &SetAttrs) -> Result<Change, Stop> {
    let node = view.node(ino)?;
    let mut draft = Draft::new();
    if *set == SetAttrs::default() {
        draft.change.inode = Some((ino, node.record));
        return Ok(draft.finish());
    }
    let moves_acl = set.perm.is_some() && node.record.has(InodeRecord::HAS_ACL);
    let mut ask = Ask::new(view);
    if needs_entries_changed(&node) {
        ask.row(&Key::dir_changed(ino));
    }
    if moves_acl {
        ask.row(&Key::xattr(ino, ACCESS_ACL));
    }
    ask.done()?;

    let mut record = draft.touched(view, ctx, &node)?;
    if let Some(size) = set.size {
        let mut ledger = Ledger::default();
        let more = resize(&mut draft, view, &mut ledger, &node, &mut record, size)?;
        charge(&mut draft, ledger, &mut record);
        record.mtime = ctx.now;
        if more {
            draft.change.more = true;
            draft.update_bytes(&node, record);
            return Ok(draft.finish());
        }
    }
    set_owner(&mut draft, ino, set, &mut record);
    if let Some(perm) = set.perm {
        record.mode = record.kind() | perm & mode::PERM;
        if moves_acl {
            move_acl(&mut draft, view, &node, record.mode)?;
        }
    }
    record.atime = set.atime.unwrap_or(record.atime);
    record.mtime = set.mtime.unwrap_or(record.mtime);
    if let Some(ctime) = set.ctime {
        // A directory's change time cannot be set to before the last change of its entries, which counts for
        // both times.
        record.ctime = if record.is_dir() { ctime.max(current_ctime(view, &node)?) } else { ctime };
    }
    if record.size != node.record.size {
        draft.update_bytes(&node, record);
    } else {
        draft.update(&node, record);
    }
    Ok(draft.finish())
}

/// When a node was last changed, including a directory's entries.
fn current_ctime(view: &View, node: &Node) -> Result<Timestamp, Stop> {
    if !needs_entries_changed(node) {
        return Ok(node.record.ctime);
    }
    Ok(node.record.with_entries_changed(view.entries_changed(node.ino)?.1).ctime)
}

fn set_owner(draft: &mut Draft, ino: Ino, set: &SetAttrs, record: &mut InodeRecord) {
    let chown = set.uid.is_some() || set.gid.is_some();
    if chown || set.unprivileged.is_some() || set.size.is_some() {
        let member = chown.then_some(record.gid);
        draft.drop_privileges(ino, record, set.unprivileged.or(member));
    }
    record.uid = set.uid.unwrap_or(record.uid);
    record.gid = set.gid.unwrap_or(record.gid);
}

/// Makes the access list follow the mode.
fn move_acl(draft: &mut Draft, view: &View, node: &Node, mode: u32) -> Result<(), Stop> {
    let key = Key::xattr(node.ino, ACCESS_ACL);
    let row = view.row(&key)?.ok_or(Refusal::Damaged)?;
    let mut acl = Acl::parse(row).ok().flatten().ok_or(Refusal::Damaged)?;
    acl.set_mode_bits(mode);
    draft.check_seen(key.clone(), Some(row));
    draft.put(key, acl.encode().into());
    Ok(())
}
