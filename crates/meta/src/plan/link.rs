//! Adding and removing names: link, attach, unlink, rmdir; and collecting an inode that has none.

use base::Ino;

use crate::key::{Key, KeyRange};
use crate::record::{Dentry, InodeRecord};

use super::create::check_name;
use super::draft::Draft;
use super::op::{Change, Ctx, Refusal};
use super::pages::{Ledger, PageWork};
use super::quota;
use super::rename::{Ancestors, check_not_within};
use super::size::{charge, has_pages};
use super::view::{Ask, Node, Stop, View};

/// The maximum number of names of an inode.
const LINK_MAX: u32 = 1 << 31;
/// How many pages of an orphan one commit removes.
const PAGES_PER_REAP: usize = 1024;
/// The maximum number of attributes: their list of names, at most 64 KiB, cannot hold more.
pub(super) const XATTRS_MAX: usize = 16_384;

/// [`super::Op::Link`]
pub(super) fn link(view: &View, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Change, Stop> {
    check_name(name)?;
    let entry = Key::dentry(parent, name);
    Ask::new(view).row(&Key::inode(ino)).row(&Key::inode(parent)).row(&entry).done()?;
    let dir = view.live_dir(parent)?;
    let node = view.node(ino)?;
    if node.record.is_dir() {
        return Err(Refusal::NotPermitted.into());
    }
    if view.row(&entry)?.is_some() {
        return Err(Refusal::Exists.into());
    }
    if node.record.nlink >= LINK_MAX {
        return Err(Refusal::TooManyLinks.into());
    }
    let mut draft = Draft::new();
    let mut record = draft.touched(view, ctx, &node)?;
    if record.nlink > 0 {
        quota::check_same(&dir, record.quota)?;
    }
    quota::inherit(&mut draft, &mut record, &dir)?;
    record.parent = if record.nlink == 0 { parent } else { Ino(0) };
    if record.nlink == 0 {
        draft.del(Key::orphan(ino));
        if view.may_have_trash() {
            draft.del(Key::trash(ino));
        }
    }
    record.nlink += 1;
    draft.check_seen(entry.clone(), None);
    draft.put(entry, Dentry { ino, kind: record.kind() }.encode());
    draft.entries_changed(&dir, ctx.now);
    draft.update(&node, record);
    Ok(draft.finish())
}

/// [`super::Op::Attach`]
pub(super) fn attach(view: &View, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Change, Stop> {
    check_name(name)?;
    let entry = Key::dentry(parent, name);
    Ask::new(view).row(&Key::inode(ino)).row(&Key::inode(parent)).row(&entry).done()?;
    let dir = view.live_dir(parent)?;
    let node = view.node(ino)?;
    if node.is_removed() || node.record.nlink != 0 {
        return Err(Refusal::Invalid.into());
    }
    quota::check_same(&dir, node.record.quota)?;
    if view.row(&entry)?.is_some() {
        return Err(Refusal::Exists.into());
    }
    if node.record.is_dir() {
        view.row(&Key::dir_changed(ino))?;
    }
    let mut draft = Draft::new();
    draft.check_seen(entry.clone(), None);
    let mut record = draft.touched(view, ctx, &node)?;
    if record.is_dir() {
        check_not_within(&mut draft, view, &mut Ancestors::default(), ino, parent)?;
        draft.add(Key::subdirs(parent), 1);
    }
    record.nlink = 1;
    record.parent = parent;
    draft.del(Key::orphan(ino));
    draft.put(entry, Dentry { ino, kind: record.kind() }.encode());
    draft.entries_changed(&dir, ctx.now);
    draft.update(&node, record);
    Ok(draft.finish())
}

/// [`super::Op::Unlink`]
pub(super) fn unlink(view: &View, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Change, Stop> {
    check_name(name)?;
    let entry = Key::dentry(parent, name);
    Ask::new(view).row(&Key::inode(parent)).row(&entry).done()?;
    let dir = view.live_dir(parent)?;
    let (dentry, seen) = view.dentry(&entry)?.ok_or(Refusal::NotFound)?;
    if dentry.is_dir() {
        return Err(Refusal::IsDir.into());
    }
    let node = view.named_node(dentry.ino)?;
    let mut draft = Draft::new();
    draft.check_seen(entry.clone(), Some(seen));
    draft.del(entry);
    draft.entries_changed(&dir, ctx.now);
    draft.lose_name(view, ctx, &node, (parent, name))?;
    Ok(draft.finish())
}

/// [`super::Op::Rmdir`]
pub(super) fn rmdir(view: &View, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Change, Stop> {
    check_name(name)?;
    let entry = Key::dentry(parent, name);
    Ask::new(view).row(&Key::inode(parent)).row(&entry).done()?;
    let dir = view.live_dir(parent)?;
    let (dentry, seen) = view.dentry(&entry)?.ok_or(Refusal::NotFound)?;
    if !dentry.is_dir() {
        return Err(Refusal::NotDir.into());
    }
    let inside = Key::dentries(dentry.ino, 0);
    let mut ask = Ask::new(view);
    ask.row(&Key::inode(dentry.ino)).row(&Key::dir_changed(dentry.ino)).range(&inside, 1).done()?;
    let node = view.named_node(dentry.ino)?;
    if !view.range(&inside, 1)?.is_empty() {
        return Err(Refusal::NotEmpty.into());
    }
    let mut draft = Draft::new();
    draft.check_seen(entry.clone(), Some(seen));
    draft.del(entry);
    draft.entries_changed(&dir, ctx.now);
    draft.add(Key::subdirs(parent), -1);
    draft.lose_name(view, ctx, &node, (parent, name))?;
    Ok(draft.finish())
}

/// [`super::Op::Reap`]
pub(super) fn reap(view: &View, ino: Ino) -> Result<Change, Stop> {
    let orphan = Key::orphan(ino);
    Ask::new(view).row(&Key::inode(ino)).row(&orphan).done()?;
    let Some(mark) = view.row(&orphan)? else { return Ok(Change::default()) };
    let node = match view.node(ino) {
        Err(Stop::Refused(Refusal::NotFound)) => {
            // The mark of an inode that does not exist: only the mark is left to remove.
            let mut draft = Draft::new();
            draft.check_seen(orphan.clone(), Some(mark));
            draft.del(orphan);
            return Ok(draft.finish());
        }
        node => node?,
    };
    if node.record.nlink != 0 {
        return Err(Refusal::Damaged.into());
    }
    let (inside, pages, xattrs) = (Key::dentries(ino, 0), Key::extents_from(ino, 0), Key::xattrs(ino));
    let has_xattrs = node.record.has(InodeRecord::HAS_XATTRS);
    let mut ask = Ask::new(view);
    if node.record.is_dir() {
        ask.range(&inside, 1);
    }
    if has_pages(&node.record) {
        ask.range(&pages, PAGES_PER_REAP + 1);
    }
    if has_xattrs {
        ask.range(&xattrs, XATTRS_MAX);
    }
    ask.done()?;

    let mut draft = Draft::new();
    if node.record.is_dir() {
        if !view.range(&inside, 1)?.is_empty() {
            return Err(Refusal::NotEmpty.into());
        }
        draft.check_empty(inside);
    }
    if reap_pages(&mut draft, view, &node, &pages)? {
        return Ok(draft.finish());
    }
    if has_xattrs {
        view.range(&xattrs, XATTRS_MAX)?.iter().for_each(|(key, _)| draft.del(key.clone()));
    }
    if node.record.has(InodeRecord::INLINE) {
        draft.del(Key::inline(ino));
    }
    if node.record.is_dir() {
        draft.del(Key::dir_changed(ino));
        draft.del(Key::subdirs(ino));
    }
    draft.check_seen(node.key.clone(), Some(&node.seen));
    if !node.is_removed() {
        draft.check_seen(orphan.clone(), Some(mark));
        draft.del(node.key.clone());
    }
    draft.del(orphan);
    if node.record.has(InodeRecord::QUOTA_ROOT) {
        draft.del(Key::quota(ino));
    }
    draft.count_inodes(node.record.quota, -1);
    draft.count_bytes(node.record.quota, -(node.record.stored as i64));
    draft.change.inode = Some((ino, node.record));
    Ok(draft.finish())
}

/// [`super::Op::ReapShared`]
pub(super) fn reap_shared(view: &View, ino: Ino) -> Result<Change, Stop> {
    let holds = Key::holds(ino);
    Ask::new(view).range(&holds, 1).done()?;
    if !view.range(&holds, 1)?.is_empty() {
        return Err(Refusal::Busy.into());
    }
    let mut change = reap(view, ino)?;
    if !change.commit.is_empty() {
        change.commit.empty.push(holds);
    }
    Ok(change)
}

/// Removes pages. True if there are more than one commit takes: then the commit does nothing else.
fn reap_pages(draft: &mut Draft, view: &View, node: &Node, pages: &KeyRange) -> Result<bool, Stop> {
    if !has_pages(&node.record) {
        return Ok(false);
    }
    let mut ledger = Ledger::default();
    let rows = view.range(pages, PAGES_PER_REAP + 1)?;
    for (key, value) in rows.iter().take(PAGES_PER_REAP) {
        let mut page = PageWork::from_row(key, value)?;
        page.clear(&mut ledger);
        page.finish(draft);
        draft.change.done += 1;
    }
    let more = rows.len() > PAGES_PER_REAP;
    if more {
        let mut record = node.record;
        charge(draft, ledger, &mut record);
        draft.update(node, record);
        draft.change.more = true;
    } else {
        // The rest of its bytes is subtracted from the total with the inode.
        ledger.write_counters(draft);
    }
    Ok(more)
}
