//! Out of the trash: back to a name, or to the inodes that are collected. [`super::draft::Draft::lose_name`]
//! puts inodes in. [`crate::trash`] has the rules.

use base::{Ino, Timestamp};

use crate::key::Key;
use crate::quota::QuotaRow;
use crate::record::{Dentry, InodeRecord};
use crate::store::Value;
use crate::trash::TrashRow;

use super::create::check_name;
use super::draft::{Draft, nothing};
use super::op::{Change, Ctx, Refusal};
use super::quota;
use super::view::{Ask, Node, Stop, View};

/// An inode in the trash, as it was shown.
struct InTrash<'v> {
    key: Key,
    seen: &'v Value,
    row: TrashRow,
    /// The inode. Of a directory, its key is that of the row in the trash. None: it has a name, or does not
    /// exist, so the row is a leftover.
    node: Option<Node>,
}

fn look(view: &View, ino: Ino) -> Result<Option<InTrash<'_>>, Stop> {
    let key = Key::trash(ino);
    let Some(seen) = view.row(&key)? else { return Ok(None) };
    let row = TrashRow::decode(seen)?;
    let inode = Key::inode(ino);
    let node = match (view.row(&inode)?, row.dir) {
        (None, Some(record)) => Some(Node { ino, key: key.clone(), record, seen: seen.clone() }),
        (Some(value), None) => {
            let record = InodeRecord::decode(value)?;
            (record.nlink == 0).then(|| Node { ino, key: inode, record, seen: value.clone() })
        }
        _ => None,
    };
    Ok(Some(InTrash { key, seen, row, node }))
}

/// [`super::Op::Restore`]
pub(super) fn restore(view: &View, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Change, Stop> {
    check_name(name)?;
    let entry = Key::dentry(parent, name);
    let mut ask = Ask::new(view);
    ask.row(&Key::trash(ino)).row(&Key::inode(ino)).row(&Key::inode(parent)).row(&entry).done()?;
    let found = look(view, ino)?.ok_or(Refusal::NotFound)?;
    let node = found.node.ok_or(Refusal::NotFound)?;
    let dir = view.live_dir(parent)?;
    if view.row(&entry)?.is_some() {
        return Err(Refusal::Exists.into());
    }
    let mut draft = Draft::new();
    draft.check_seen(found.key.clone(), Some(found.seen));
    draft.del(found.key);
    draft.check_seen(entry.clone(), None);
    let mut record = draft.touched(view, ctx, &node)?;
    quota::inherit(&mut draft, &mut record, &dir)?;
    if record.has(InodeRecord::QUOTA_ROOT) {
        // It counted for another quota, or for none, when it was removed.
        let key = Key::quota(ino);
        let seen = view.row(&key)?.ok_or(Refusal::Damaged)?;
        draft.check_seen(key.clone(), Some(seen));
        draft.put(key, QuotaRow { outer: record.quota, ..QuotaRow::decode(seen)? }.encode());
    }
    (record.nlink, record.parent) = (1, parent);
    if record.is_dir() {
        draft.add(Key::subdirs(parent), 1);
    }
    draft.put(entry, Dentry { ino, kind: record.kind() }.encode());
    draft.entries_changed(&dir, ctx.now);
    // A directory gets its row again, and a file's row is written over what was seen.
    let inode = Key::inode(ino);
    let seen = view.row(&inode)?.cloned();
    draft.check_seen(inode.clone(), seen.as_ref());
    record.change = InodeRecord::next_change(record.change, false);
    draft.put(inode, record.encode());
    draft.change.inode = Some((ino, record));
    Ok(draft.finish())
}

/// [`super::Op::Expire`]
pub(super) fn expire(view: &View, ino: Ino, at: Timestamp) -> Result<Change, Stop> {
    Ask::new(view).row(&Key::trash(ino)).row(&Key::inode(ino)).done()?;
    let Some(found) = look(view, ino)?.filter(|found| found.row.at == at) else {
        return Ok(Change::default());
    };
    let mut draft = Draft::new();
    draft.check_seen(found.key.clone(), Some(found.seen));
    draft.del(found.key.clone());
    let inode = Key::inode(ino);
    draft.check_seen(inode.clone(), view.row(&inode)?);
    if let Some(node) = found.node {
        let mark = if node.is_removed() { node.record.encode() } else { nothing() };
        draft.put(Key::orphan(ino), mark);
        draft.change.orphaned.push(ino);
        draft.change.inode = Some((ino, node.record));
    }
    Ok(draft.finish())
}
