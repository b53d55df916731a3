//! Ranges of a file: punch them out, or make them refer to what another range refers to.

use base::Ino;
use base::size::FILE_MAX;
use blob::ExtentPage;
use blob::extent::Part;

use crate::key::{Key, KeyRange};
use crate::record::InodeRecord;

use super::draft::Draft;
use super::op::{Change, Ctx, Refusal};
use super::pages::{Ledger, PAGES_PER_CUT, PageWork, SPAN, page_of};
use super::size::{charge, check_file, has_pages, inline_body, put_inline, resize};
use super::view::{Ask, Node, Stop, View};

/// How many pages of the destination one commit of a copy changes: 256 MiB of a file.
const PAGES_PER_COPY: u64 = 64;

/// [`super::Op::Punch`]
pub(super) fn punch(
    view: &View,
    ctx: &Ctx,
    ino: Ino,
    offset: u64,
    len: u64,
    grow_to: Option<u64>,
) -> Result<Change, Stop> {
    let node = view.node(ino)?;
    check_file(&node.record)?;
    if grow_to.is_some_and(|size| size > FILE_MAX) {
        return Err(Refusal::TooLarge.into());
    }
    let mut draft = Draft::new();
    let mut record = draft.touched(view, ctx, &node)?;
    record.mtime = ctx.now;
    let end = offset.saturating_add(len).min(record.size);
    let size = grow_to.unwrap_or(0).max(record.size);
    let mut ledger = Ledger::default();
    let mut more = false;
    if record.has(InodeRecord::INLINE) {
        let grow = punch_inline(&mut draft, view, &node, &mut record, offset, end, size)?;
        debug_assert_eq!(grow, size);
    } else {
        if offset < end && has_pages(&record) {
            more = punch_pages(&mut draft, view, &mut ledger, &node, offset, end)?;
        }
        if !more {
            resize(&mut draft, view, &mut ledger, &node, &mut record, size)?;
        }
    }
    charge(&mut draft, ledger, &mut record);
    draft.drop_privileges(ino, &mut record, None);
    draft.change.more = more;
    draft.update_bytes(&node, record);
    Ok(draft.finish())
}

fn punch_inline(
    draft: &mut Draft,
    view: &View,
    node: &Node,
    record: &mut InodeRecord,
    offset: u64,
    end: u64,
    size: u64,
) -> Result<u64, Stop> {
    if size > base::size::INLINE_MAX as u64 {
        return Err(Refusal::MustOutline.into());
    }
    let mut body = inline_body(draft, view, node)?;
    if let Some(hole) = body.get_mut(offset as usize..end as usize) {
        hole.fill(0);
    }
    body.resize(size as usize, 0);
    put_inline(draft, node, record, &body);
    Ok(record.size)
}

/// True if there were more pages than one commit takes: those at the front are removed.
fn punch_pages(
    draft: &mut Draft,
    view: &View,
    ledger: &mut Ledger,
    node: &Node,
    offset: u64,
    end: u64,
) -> Result<bool, Stop> {
    let (first, last) = (page_of(offset), page_of(end - 1));
    let mut range: KeyRange = Key::extents_from(node.ino, first);
    if let Some(next) = last.checked_add(1) {
        range.end = Key::extents(node.ino, next);
    }
    let rows = view.range(&range, PAGES_PER_CUT + 1)?;
    for (key, value) in rows.iter().take(PAGES_PER_CUT) {
        let mut page = PageWork::from_row(key, value)?;
        let start = u64::from(page.number()) * SPAN;
        let from = offset.saturating_sub(start);
        let to = (end - start).min(SPAN);
        page.punch(ledger, from as u32, (to - from) as u32);
        page.finish(draft);
    }
    Ok(rows.len() > PAGES_PER_CUT)
}

/// [`super::Op::CopyRange`]
pub(super) struct Copy {
    pub from: Ino,
    pub from_offset: u64,
    pub to: Ino,
    pub to_offset: u64,
    pub len: u64,
}

impl Copy {
    /// Returns the copy, cut to the end of the source and to what one commit takes.
    fn cut(&self, source: &InodeRecord) -> Result<Copy, Refusal> {
        let len = self.len.min(source.size.saturating_sub(self.from_offset));
        let (from_end, to_end) = (self.from_offset.saturating_add(len), self.to_offset.saturating_add(len));
        if self.from == self.to && len > 0 && self.from_offset < to_end && self.to_offset < from_end {
            return Err(Refusal::Invalid);
        }
        if len > 0 && to_end > FILE_MAX {
            return Err(Refusal::TooLarge);
        }
        let reach = (self.to_offset / SPAN + PAGES_PER_COPY) * SPAN - self.to_offset;
        Ok(Copy { len: len.min(reach), ..*self })
    }
}

pub(super) fn copy(view: &View, ctx: &Ctx, op: &Copy) -> Result<Change, Stop> {
    Ask::new(view).row(&Key::inode(op.from)).row(&Key::inode(op.to)).done()?;
    let source = view.node(op.from)?;
    let node = view.node(op.to)?;
    check_file(&source.record)?;
    check_file(&node.record)?;
    let op = op.cut(&source.record)?;
    let mut draft = Draft::new();
    if op.len == 0 {
        draft.change.inode = Some((op.to, node.record));
        return Ok(draft.finish());
    }
    if source.record.has(InodeRecord::INLINE) || node.record.has(InodeRecord::INLINE) {
        return Err(Refusal::MustOutline.into());
    }
    let last = |offset: u64| page_of(offset + op.len - 1);
    let to_pages = page_of(op.to_offset)..=last(op.to_offset);
    let from_pages = page_of(op.from_offset)..=last(op.from_offset);
    let mut ask = Ask::new(view);
    to_pages.clone().for_each(|page| _ = ask.row(&Key::extents(op.to, page)));
    from_pages.clone().for_each(|page| _ = ask.row(&Key::extents(op.from, page)));
    ask.done()?;

    let mut ledger = Ledger::default();
    for number in to_pages.clone() {
        copy_page(&mut draft, view, &mut ledger, &op, number)?;
    }
    for number in from_pages.filter(|page| op.from != op.to || !to_pages.contains(page)) {
        draft.check_seen(Key::extents(op.from, number), view.page(op.from, number)?.0);
    }
    let mut record = draft.touched(view, ctx, &node)?;
    record.mtime = ctx.now;
    charge(&mut draft, ledger, &mut record);
    record.size = record.size.max(op.to_offset + op.len);
    draft.drop_privileges(op.to, &mut record, None);
    if op.from != op.to {
        draft.check_seen(source.key.clone(), Some(&source.seen));
    }
    draft.update_bytes(&node, record);
    draft.change.done = op.len;
    Ok(draft.finish())
}

/// Fills one page of the destination with what up to two pages of the source hold.
fn copy_page(
    draft: &mut Draft,
    view: &View,
    ledger: &mut Ledger,
    op: &Copy,
    number: u32,
) -> Result<(), Stop> {
    let start = u64::from(number) * SPAN;
    let mut at = start.max(op.to_offset);
    let end = (start + SPAN).min(op.to_offset + op.len);
    let mut work = PageWork::load(view, op.to, number)?;
    while at < end {
        let source = at - op.to_offset + op.from_offset;
        let len = (end - at).min(SPAN - source % SPAN) as u32;
        let (_, page) = view.page(op.from, page_of(source))?;
        let source_at = (source % SPAN) as u32;
        let shift = (at - start) as u32;
        for part in page.parts(source_at, len) {
            match part {
                Part::Hole { at, len } => work.punch(ledger, at - source_at + shift, len),
                Part::Data(extent) => {
                    let at = extent.at - source_at + shift;
                    work.insert(ledger, blob::Extent { at, ..extent });
                }
            }
        }
        at += u64::from(len);
    }
    work.finish(draft);
    Ok(())
}

const _: () = assert!(ExtentPage::SPAN as u64 == SPAN);
