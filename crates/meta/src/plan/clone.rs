//! A copy of an inode: its row, its attributes, and the extents it refers to. No data is copied.
//!
//! The copy is an orphan until it gets a name, so what a crash leaves is collected like any other orphan. A
//! file with more pages than one commit takes is copied in steps, each of which sees the source as it then
//! is. A caller that needs the contents of one moment must block writers meanwhile, or have a step refused if
//! the source has changed since the first one.

use base::Ino;

use crate::key::Key;
use crate::record::InodeRecord;
use crate::store::Value;

use super::draft::{Draft, needs_entries_changed, nothing};
use super::link::XATTRS_MAX;
use super::op::{Change, Ctx, Refusal};
use super::pages::{Ledger, SPAN, packs_of};
use super::size::{charge, has_pages};
use super::view::{Ask, Stop, View, decode_page};

/// How many pages one commit copies: 4 GiB of a file.
const PAGES_PER_CLONE: usize = 1024;

/// [`super::Op::CloneInode`]
pub(super) fn clone(view: &View, ctx: &Ctx, from: Ino, ino: Ino, quota: Ino) -> Result<Change, Stop> {
    let source = view.node(from)?;
    let is_inline = source.record.has(InodeRecord::INLINE);
    let has_xattrs = source.record.has(InodeRecord::HAS_XATTRS);
    let (pages, xattrs, inline) = (Key::extents_from(from, 0), Key::xattrs(from), Key::inline(from));
    let mut ask = Ask::new(view);
    if needs_entries_changed(&source) {
        ask.row(&Key::dir_changed(from));
    }
    if is_inline {
        ask.row(&inline);
    }
    if has_xattrs {
        ask.range(&xattrs, XATTRS_MAX);
    }
    if has_pages(&source.record) {
        ask.range(&pages, PAGES_PER_CLONE + 1);
    }
    ask.done()?;

    let mut draft = Draft::new();
    let touched = draft.touched(view, ctx, &source)?;
    let mut record = InodeRecord {
        nlink: 0,
        parent: Ino(0),
        stored: if is_inline { source.record.stored } else { 0 },
        ctime: ctx.now,
        btime: ctx.now,
        change: 0,
        quota,
        ..touched
    };
    record.set(InodeRecord::QUOTA_ROOT, false);
    draft.check_seen(source.key.clone(), Some(&source.seen));
    if is_inline {
        let row = view.row(&inline)?.ok_or(Refusal::Damaged)?;
        draft.check_seen(inline, Some(row));
        draft.put(Key::inline(ino), row.clone());
    }
    if has_xattrs {
        for (key, value) in view.range(&xattrs, XATTRS_MAX)? {
            let (_, name) = key.as_xattr().ok_or(Refusal::Damaged)?;
            draft.put(Key::xattr(ino, name), value.clone());
        }
    }
    if has_pages(&source.record) {
        let rows = view.range(&pages, PAGES_PER_CLONE + 1)?;
        let mut ledger = Ledger::default();
        copy_pages(&mut draft, &mut ledger, rows, ino, record.size)?;
        record.stored = ledger.stored.unsigned_abs();
        ledger.write_counters(&mut draft);
    }
    draft.put(Key::orphan(ino), nothing());
    draft.create(ino, record);
    draft.change.first = source.record.change;
    Ok(draft.finish())
}

/// [`super::Op::CloneMore`]
pub(super) fn more(view: &View, from: Ino, ino: Ino, page: u32, over: Option<u64>) -> Result<Change, Stop> {
    let pages = Key::extents_from(from, page);
    let mut ask = Ask::new(view);
    ask.row(&Key::inode(from)).row(&Key::inode(ino)).range(&pages, PAGES_PER_CLONE + 1).done()?;
    let node = view.node(ino)?;
    if !node.record.is_file() || node.record.nlink != 0 || node.record.has(InodeRecord::INLINE) {
        return Err(Refusal::Invalid.into());
    }
    let rows = view.range(&pages, PAGES_PER_CLONE + 1)?;
    let mut draft = Draft::new();
    if let Some(over) = over {
        let source = view.node(from)?;
        if source.record.change != over {
            return Err(Refusal::Changed.into());
        }
        draft.check_seen(source.key.clone(), Some(&source.seen));
    }
    let mut ledger = Ledger::default();
    copy_pages(&mut draft, &mut ledger, rows, ino, node.record.size)?;
    let mut record = node.record;
    charge(&mut draft, ledger, &mut record);
    draft.update(&node, record);
    Ok(draft.finish())
}

/// Copies the pages of a scan, cut to the size of the copy. The change says where to continue.
fn copy_pages(
    draft: &mut Draft,
    ledger: &mut Ledger,
    rows: &[(Key, Value)],
    ino: Ino,
    size: u64,
) -> Result<(), Stop> {
    for (key, value) in rows.iter().take(PAGES_PER_CLONE) {
        let (_, number) = key.as_extents().ok_or(Refusal::Damaged)?;
        let start = u64::from(number) * SPAN;
        if start >= size {
            return Ok(());
        }
        let mut page = decode_page(Some(value))?;
        let cut = !page.truncate((size - start).min(SPAN) as u32).is_empty();
        draft.check_seen(key.clone(), Some(value));
        draft.put(Key::extents(ino, number), if cut { page.encode().into() } else { value.clone() });
        for pack in packs_of(&page) {
            draft.put(Key::pack_user(pack, ino, number), nothing());
        }
        page.extents().iter().for_each(|extent| ledger.gain(extent));
    }
    if let Some((next, _)) = rows.get(PAGES_PER_CLONE) {
        let (_, number) = next.as_extents().ok_or(Refusal::Damaged)?;
        draft.change.more = true;
        draft.change.done = u64::from(number);
    }
    Ok(())
}
