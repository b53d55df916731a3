//! A file's size, and the bytes that are removed when it shrinks.
//!
//! A file holds its bytes inline or in extents, never both. What neither covers is a hole. Nothing is stored
//! past the size, so growing shows zeros. A large file shrinks in steps from its end. After each step it has
//! some size in between.

use base::size::{FILE_MAX, INLINE_MAX};

use crate::key::Key;
use crate::record::{InodeRecord, mode};

use super::draft::Draft;
use super::op::Refusal;
use super::pages::{Ledger, PAGES_PER_CUT, PageWork, SPAN, page_of};
use super::view::{Node, Stop, View};

/// Refuses everything but regular files.
pub(super) fn check_file(record: &InodeRecord) -> Result<(), Refusal> {
    match record.kind() {
        mode::S_IFREG => Ok(()),
        mode::S_IFDIR => Err(Refusal::IsDir),
        _ => Err(Refusal::Invalid),
    }
}

/// Whether a file may have extent pages.
pub(super) fn has_pages(record: &InodeRecord) -> bool {
    record.is_file() && record.stored > 0 && !record.has(InodeRecord::INLINE)
}

/// Records what pages gained and lost: in the inode's record, the volume's total, its quota and the packs.
pub(super) fn charge(draft: &mut Draft, ledger: Ledger, record: &mut InodeRecord) {
    record.stored = record.stored.saturating_add_signed(ledger.stored);
    draft.count_bytes(record.quota, ledger.stored);
    ledger.write_counters(draft);
}

/// Sets the file's size. True if this is only an intermediate step, and the operation must be planned again.
pub(super) fn resize(
    draft: &mut Draft,
    view: &View,
    ledger: &mut Ledger,
    node: &Node,
    record: &mut InodeRecord,
    size: u64,
) -> Result<bool, Stop> {
    check_file(record)?;
    if size > FILE_MAX {
        return Err(Refusal::TooLarge.into());
    }
    if record.has(InodeRecord::INLINE) {
        if size > INLINE_MAX as u64 {
            return Err(Refusal::MustOutline.into());
        }
        let mut body = inline_body(draft, view, node)?;
        body.resize(size as usize, 0);
        put_inline(draft, node, record, &body);
        return Ok(false);
    }
    if size < record.size && has_pages(record) {
        let reached = cut(draft, view, ledger, node, size)?;
        record.size = reached;
        return Ok(reached != size);
    }
    record.size = size;
    Ok(false)
}

/// Removes extents from the end of the file, down to `size` or as far as one commit allows. Returns how far.
fn cut(draft: &mut Draft, view: &View, ledger: &mut Ledger, node: &Node, size: u64) -> Result<u64, Stop> {
    let first = page_of(size);
    let limit = PAGES_PER_CUT + 1;
    let mut rows = view.range(&Key::extents_from(node.ino, first), limit)?;
    let mut reach = size;
    if rows.len() > PAGES_PER_CUT {
        // Counts page numbers, not rows, so that at most as many rows lie between there and the end.
        let last = page_of(node.record.size - 1);
        let from = last.saturating_sub(PAGES_PER_CUT as u32 - 1).max(first);
        reach = size.max(u64::from(from) * SPAN);
        rows = view.range(&Key::extents_from(node.ino, from), limit)?;
    }
    let keep = (page_of(reach), (reach % SPAN) as u32);
    for (key, value) in rows {
        let mut page = PageWork::from_row(key, value)?;
        if page.number() == keep.0 {
            page.truncate(ledger, keep.1);
        } else {
            page.clear(ledger);
        }
        page.finish(draft);
    }
    Ok(reach)
}

/// Removes all extents of a small file.
pub(super) fn drop_pages(
    draft: &mut Draft,
    view: &View,
    ledger: &mut Ledger,
    node: &Node,
) -> Result<(), Stop> {
    let rows = view.range(&Key::extents_from(node.ino, 0), PAGES_PER_CUT + 1)?;
    if rows.len() > PAGES_PER_CUT {
        return Err(Refusal::Invalid.into());
    }
    for (key, value) in rows {
        let mut page = PageWork::from_row(key, value)?;
        page.clear(ledger);
        page.finish(draft);
    }
    Ok(())
}

/// The bytes of an inline file. Its row becomes a check.
pub(super) fn inline_body(draft: &mut Draft, view: &View, node: &Node) -> Result<Vec<u8>, Stop> {
    let key = Key::inline(node.ino);
    let row = view.row(&key)?.ok_or(Refusal::Damaged)?;
    if row.len() as u64 != node.record.size {
        return Err(Refusal::Damaged.into());
    }
    draft.check_seen(key, Some(row));
    Ok(row.to_vec())
}

/// Makes these bytes the whole content of a file that has no extents.
pub(super) fn put_inline(draft: &mut Draft, node: &Node, record: &mut InodeRecord, body: &[u8]) {
    let was = if node.record.has(InodeRecord::INLINE) { node.record.stored } else { 0 };
    draft.count_bytes(record.quota, body.len() as i64 - was as i64);
    record.size = body.len() as u64;
    record.stored = body.len() as u64;
    record.set(InodeRecord::INLINE, !body.is_empty());
    if !body.is_empty() {
        draft.put(Key::inline(node.ino), body.into());
    } else if was > 0 {
        draft.del(Key::inline(node.ino));
    }
}
