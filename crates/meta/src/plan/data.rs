//! Writes to a file. This is the hottest plan: one round, and it decodes only the inode and the pages that
//! change.

use base::Ino;
use base::size::{FILE_MAX, INLINE_MAX};
use base::{BlobId, PackNo};
use blob::{Extent, ExtentPage};

use crate::key::Key;
use crate::record::{ContentRow, InodeRecord, PackRow};
use crate::store::FreshData;

use super::draft::Draft;
use super::op::{Body, Change, Ctx, Piece, Refusal};
use super::pages::{Ledger, PageWork, SPAN, page_of};
use super::size::{charge, check_file, drop_pages, has_pages, put_inline};
use super::view::{Ask, Node, Stop, View};

/// [`super::Op::Write`]
pub(super) struct Write<'a> {
    pub ino: Ino,
    pub body: &'a Body<'a>,
    pub unprivileged: Option<u32>,
    pub cached: bool,
    pub intern: Option<BlobId>,
    pub over: Option<u64>,
}

pub(super) fn write(view: &View, ctx: &Ctx, op: &Write<'_>) -> Result<Change, Stop> {
    let mut ask = Ask::new(view);
    ask.row(&Key::inode(op.ino));
    if let Body::Packed(pieces) | Body::Moved(pieces) = op.body {
        check_pieces(pieces)?;
        for group in pages(pieces) {
            ask.row(&Key::extents(op.ino, page_of(group[0].at)));
        }
        for pack in old_packs(pieces) {
            ask.row(&Key::pack(pack));
        }
    }
    ask.done()?;
    let node = view.node(op.ino)?;
    check_file(&node.record)?;
    if op.over.is_some_and(|change| change != node.record.change) {
        return Err(Refusal::Changed.into());
    }

    let mut draft = Draft::new();
    let mut record = draft.touched(view, ctx, &node)?;
    match op.body {
        Body::Inline(bytes) => write_inline(&mut draft, view, &node, &mut record, bytes)?,
        Body::Packed(pieces) | Body::Moved(pieces) => {
            write_packed(&mut draft, view, &node, &mut record, pieces)?
        }
    }
    if op.cached {
        record.ctime = node.record.ctime;
    } else {
        record.mtime = ctx.now;
    }
    // The kernel cleared capabilities and set-id bits when the program wrote, and sends cached bytes later.
    // One that is set now was set after that write, and stays.
    if !op.cached || op.unprivileged.is_some() {
        draft.drop_privileges(op.ino, &mut record, op.unprivileged);
    }
    if let (Some(hash), Body::Packed([piece])) = (&op.intern, op.body)
        && piece.fresh.is_some()
    {
        let row = ContentRow { pack: piece.pack, offset: piece.offset, len: piece.len };
        draft.put(Key::content(hash), row.encode());
    }
    match op.body {
        Body::Moved(_) => draft.update(&node, record),
        Body::Inline(_) | Body::Packed(_) => draft.update_bytes(&node, record),
    };
    Ok(draft.finish())
}

fn check_pieces(pieces: &[Piece]) -> Result<(), Refusal> {
    let mut end = 0;
    for piece in pieces {
        let len = u64::from(piece.len);
        if len == 0 || piece.at < end || u64::from(piece.offset) + len > SPAN || piece.at % SPAN + len > SPAN
        {
            return Err(Refusal::Invalid);
        }
        end = piece.at.checked_add(len).filter(|end| *end <= FILE_MAX).ok_or(Refusal::TooLarge)?;
    }
    Ok(())
}

/// Groups the pieces by page.
fn pages(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    pieces.chunk_by(|a, b| page_of(a.at) == page_of(b.at))
}

/// The packs of pieces that were stored before: each must still be usable.
fn old_packs(pieces: &[Piece]) -> impl Iterator<Item = PackNo> {
    pieces.iter().filter(|piece| piece.fresh.is_none()).map(|piece| piece.pack)
}

fn write_inline(
    draft: &mut Draft,
    view: &View,
    node: &Node,
    record: &mut InodeRecord,
    bytes: &[u8],
) -> Result<(), Stop> {
    if bytes.len() > INLINE_MAX {
        return Err(Refusal::Invalid.into());
    }
    if has_pages(record) {
        let mut ledger = Ledger::default();
        drop_pages(draft, view, &mut ledger, node)?;
        charge(draft, ledger, record);
    }
    put_inline(draft, node, record, bytes);
    Ok(())
}

fn write_packed(
    draft: &mut Draft,
    view: &View,
    node: &Node,
    record: &mut InodeRecord,
    pieces: &[Piece],
) -> Result<(), Stop> {
    let Some(last) = pieces.last() else { return Ok(()) };
    if record.has(InodeRecord::INLINE) {
        if covered(pieces) < record.size {
            return Err(Refusal::MustOutline.into());
        }
        draft.count_bytes(record.quota, -(record.stored as i64));
        draft.del(Key::inline(node.ino));
        record.stored = 0;
        record.set(InodeRecord::INLINE, false);
    }
    let mut checked: Option<PackNo> = None;
    for pack in old_packs(pieces) {
        if checked.replace(pack) != Some(pack) {
            check_usable(draft, view, pack)?;
        }
    }
    let mut ledger = Ledger::default();
    for group in pages(pieces) {
        let mut page = PageWork::load(view, node.ino, page_of(group[0].at))?;
        for piece in group {
            page.insert(&mut ledger, extent_of(piece));
        }
        page.finish(draft);
    }
    let fresh = pieces.iter().filter_map(|piece| {
        let crc = piece.fresh?;
        Some(FreshData { pack: piece.pack, offset: piece.offset, len: piece.len, crc })
    });
    draft.change.commit.fresh.extend(fresh);
    charge(draft, ledger, record);
    record.size = record.size.max(last.at + u64::from(last.len));
    Ok(())
}

/// The length from the file's first byte that the pieces cover without a gap.
fn covered(pieces: &[Piece]) -> u64 {
    pieces.iter().fold(0, |end, piece| if piece.at == end { end + u64::from(piece.len) } else { end })
}

fn extent_of(piece: &Piece) -> Extent {
    let at = (piece.at % u64::from(ExtentPage::SPAN)) as u32;
    Extent { at, len: piece.len, pack: piece.pack, offset: piece.offset }
}

/// Checks that the pack exists and is not condemned, and makes that a check of the commit.
pub(super) fn check_usable(draft: &mut Draft, view: &View, pack: PackNo) -> Result<(), Stop> {
    let key = Key::pack(pack);
    let row = view.row(&key)?.ok_or(Refusal::ContentGone)?;
    if !PackRow::decode(row)?.is_usable() {
        return Err(Refusal::ContentGone.into());
    }
    draft.check_seen(key, Some(row));
    Ok(())
}
