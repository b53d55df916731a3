//! The life of a pack: open, sealed, condemned, forgotten. Also extents that follow their bytes, and the
//! counters that allocate numbers.
//!
//! A condemned pack is never referred to again. A commit that refers to bytes stored before has the pack's
//! row as a check, and a pack is condemned only while nothing refers to it.

use base::{BlobId, Ino, PackNo};
use blob::Extent;

use crate::key::Key;
use crate::record::{PackRow, decode_u64, encode_u64};
use crate::store::FreshData;

use super::data::check_usable;
use super::draft::{Draft, nothing};
use super::op::{Change, Move, Refusal};
use super::pages::{Ledger, PageWork};
use super::view::{Ask, Stop, View};

pub(super) fn row(view: &View, pack: PackNo) -> Result<Option<PackRow>, Stop> {
    Ok(view.row(&Key::pack(pack))?.map(|row| PackRow::decode(row)).transpose()?)
}

/// [`super::Op::OpenPack`]
pub(super) fn open(view: &View, pack: PackNo) -> Result<Change, Stop> {
    let key = Key::pack(pack);
    if view.row(&key)?.is_some() {
        return Err(Refusal::Exists.into());
    }
    let mut draft = Draft::new();
    draft.check_seen(key.clone(), None);
    draft.put(key, PackRow::Open.encode());
    Ok(draft.finish())
}

/// [`super::Op::SealPack`]
pub(super) fn seal(view: &View, pack: PackNo, blob: BlobId, size: u32) -> Result<Change, Stop> {
    let (key, doomed) = (Key::pack(pack), Key::doomed(&blob));
    Ask::new(view).row(&key).row(&doomed).done()?;
    let sealed = PackRow::Sealed { blob, size };
    match row(view, pack)?.ok_or(Refusal::NotFound)? {
        PackRow::Open if size <= base::size::BLOB_MAX => {}
        there if there == sealed => return Ok(Change::default()),
        _ => return Err(Refusal::Invalid.into()),
    }
    if view.row(&doomed)?.is_some() {
        return Err(Refusal::Busy.into());
    }
    let mut draft = Draft::new();
    draft.check_seen(doomed, None);
    draft.check_seen(key.clone(), view.row(&key)?);
    draft.put(key, sealed.encode());
    draft.put(Key::blob_pack(&blob, pack), nothing());
    Ok(draft.finish())
}

/// Refuses with `Busy` while something refers to the pack, and checks at the commit that nothing does.
pub(super) fn check_unused(draft: &mut Draft, view: &View, pack: PackNo) -> Result<(), Stop> {
    let (live, users) = (Key::pack_live(pack), Key::pack_users(pack));
    Ask::new(view).row(&live).range(&users, 1).done()?;
    if view.row(&live)?.is_some() || !view.range(&users, 1)?.is_empty() {
        return Err(Refusal::Busy.into());
    }
    draft.check_seen(live, None);
    draft.check_empty(users);
    Ok(())
}

/// [`super::Op::CondemnPack`]
pub(super) fn condemn(view: &View, pack: PackNo) -> Result<Change, Stop> {
    let key = Key::pack(pack);
    Ask::new(view).row(&key).row(&Key::pack_live(pack)).range(&Key::pack_users(pack), 1).done()?;
    let (blob, size) = match row(view, pack)?.ok_or(Refusal::NotFound)? {
        PackRow::Sealed { blob, size } => (blob, size),
        PackRow::Condemned { .. } => return Ok(Change::default()),
        PackRow::Open => return Err(Refusal::Invalid.into()),
    };
    let mut draft = Draft::new();
    check_unused(&mut draft, view, pack)?;
    draft.check_seen(key.clone(), view.row(&key)?);
    draft.put(key, PackRow::Condemned { blob, size }.encode());
    Ok(draft.finish())
}

/// [`super::Op::ForgetPack`]
pub(super) fn forget(view: &View, pack: PackNo) -> Result<Change, Stop> {
    let key = Key::pack(pack);
    Ask::new(view).row(&key).row(&Key::pack_live(pack)).range(&Key::pack_users(pack), 1).done()?;
    let mut draft = Draft::new();
    match row(view, pack)? {
        None => return Ok(Change::default()),
        Some(PackRow::Sealed { .. }) => return Err(Refusal::Busy.into()),
        Some(PackRow::Condemned { blob, .. }) => draft.del(Key::blob_pack(&blob, pack)),
        Some(PackRow::Open) => {}
    }
    check_unused(&mut draft, view, pack)?;
    draft.check_seen(key.clone(), view.row(&key)?);
    draft.del(key);
    Ok(draft.finish())
}

/// [`super::Op::Follow`]
pub(super) fn follow(view: &View, ino: Ino, number: u32, moves: &[Move]) -> Result<Change, Stop> {
    let mut page = PageWork::load(view, ino, number)?;
    let mut found: Vec<(Extent, &Move)> = Vec::new();
    for extent in page.page().extents() {
        let end = extent.offset + extent.len;
        let first = moves.partition_point(|m| {
            (m.from, m.from_offset.saturating_add(m.len)) <= (extent.pack, extent.offset)
        });
        for step in &moves[first..] {
            if step.from != extent.pack || step.from_offset >= end {
                break;
            }
            let from = extent.offset.max(step.from_offset);
            let to = end.min(step.from_offset.saturating_add(step.len));
            let moved = Extent {
                at: extent.at + (from - extent.offset),
                len: to - from,
                pack: step.to,
                offset: step.to_offset + (from - step.from_offset),
            };
            found.push((moved, step));
        }
    }
    let mut draft = Draft::new();
    if found.is_empty() {
        return Ok(draft.finish());
    }
    let mut packs: Vec<PackNo> = found.iter().map(|(_, step)| step.to).collect();
    packs.sort_unstable();
    packs.dedup();
    let mut ask = Ask::new(view);
    packs.iter().for_each(|pack| _ = ask.row(&Key::pack(*pack)));
    ask.done()?;
    for pack in packs {
        check_usable(&mut draft, view, pack)?;
    }
    let mut ledger = Ledger::default();
    for (moved, step) in found {
        if u64::from(moved.offset) + u64::from(moved.len) > super::pages::SPAN {
            return Err(Refusal::Invalid.into());
        }
        page.insert(&mut ledger, moved);
        let fresh =
            step.crc.map(|crc| FreshData { pack: step.to, offset: step.to_offset, len: step.len, crc });
        if let Some(fresh) = fresh
            && !draft.change.commit.fresh.contains(&fresh)
        {
            draft.change.commit.fresh.push(fresh);
        }
        draft.change.done += u64::from(moved.len);
    }
    page.finish(&mut draft);
    ledger.write_counters(&mut draft);
    Ok(draft.finish())
}

/// [`super::Op::Allocate`]
pub(super) fn allocate(view: &View, counter: &str, count: u64, from: u64) -> Result<Change, Stop> {
    let (key, mut draft) = (Key::volume(counter), Draft::new());
    let row = view.row(&key)?.ok_or(Refusal::Damaged)?;
    let first = decode_u64(Some(row))?.max(from);
    let next = first.checked_add(count).ok_or(Refusal::Invalid)?;
    draft.check_seen(key.clone(), Some(row));
    draft.put(key, encode_u64(next));
    draft.change.first = first;
    Ok(draft.finish())
}
