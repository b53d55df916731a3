//! Blobs of a shared volume that nothing keeps any more.
//!
//! What keeps a blob is a row: `12` of a pack that is it, or `13` of a published tree. The row `1D` says that
//! a session deletes the blob. The two exclude each other, because each is made by a commit that checks the
//! other:
//!
//! - a commit that makes a row `12` or `13` checks that there is no row `1D` of the blob,
//! - a commit that makes the row `1D` checks that there is no other row `12` or `13` of the blob.
//!
//! **No commit that refers to a condemned pack is under way.** A commit adds a reference to a sealed pack
//! only by copying one that it checks, or that its node's lease covers. So as long as any node may refer to
//! the pack, the engine has a row `10` of it, and the pack is not condemned. A commit whose outcome was never
//! known can still arrive later. So the pack is looked at once more before it is forgotten.

use base::{BlobId, PackNo};

use crate::key::{Key, KeyRange};
use crate::record::{DoomedRow, PackRow, moment_to_u64};
use crate::store::Expect;

use super::draft::{Draft, nothing};
use super::op::{Change, Ctx, Refusal, Unkept};
use super::pack::{check_unused, row};
use super::view::{Ask, Stop, View};

/// [`super::Op::Doom`]
pub(super) struct Doom<'a> {
    pub blob: BlobId,
    pub reason: Unkept<'a>,
    pub by: DoomedRow,
}

/// [`super::Op::CondemnShared`]
pub(super) fn condemn(view: &View, ctx: &Ctx, pack: PackNo) -> Result<Change, Stop> {
    let mut change = super::pack::condemn(view, pack)?;
    if !change.commit.is_empty() {
        change.commit.puts.push((Key::condemned(moment_to_u64(ctx.now), pack), nothing()));
    }
    Ok(change)
}

pub(super) fn doom(view: &View, op: &Doom<'_>) -> Result<Change, Stop> {
    let (packs, holders) = (Key::blob_packs(&op.blob), Key::holders(&op.blob));
    let (doomed, turn) = (Key::doomed(&op.blob), Key::publishing());
    let mut ask = Ask::new(view);
    ask.row(&doomed).row(&turn).range(&packs, 2).range(&holders, 2);
    match op.reason {
        Unkept::Pack(_, pack) => {
            let (users, live) = (Key::pack_users(pack), Key::pack_live(pack));
            ask.row(&Key::pack(pack)).row(&live).range(&users, 1);
        }
        Unkept::Hold(tree, _) => _ = ask.row(&Key::held(&op.blob, tree)),
        Unkept::Stray => {}
    }
    ask.done()?;
    if view.row(&turn)?.is_some() {
        return Err(Refusal::Busy.into());
    }
    let mut draft = Draft::new();
    draft.check_seen(turn, None);
    let Some(gone) = drop_reason(&mut draft, view, op)? else { return Ok(draft.finish()) };
    let others = [&packs, &holders].map(|range| other(view, range, gone.as_ref()));
    let [pack, holder] = others;
    if let Some(keeper) = pack?.or(holder?) {
        if draft.change.commit.is_empty() {
            // Nothing was to be removed, and it is no stray.
            return Ok(Change::default());
        }
        // So that the last of several that go at the same time knows that it is the last.
        draft.change.commit.checks.push((keeper, Expect::Exists));
        return Ok(draft.finish());
    }
    if view.row(&doomed)?.is_some() {
        // A session deletes it already.
        return if draft.change.commit.is_empty() { Ok(Change::default()) } else { Ok(draft.finish()) };
    }
    for range in [packs, holders] {
        without(range, gone.as_ref()).into_iter().for_each(|range| draft.check_empty(range));
    }
    draft.check_seen(doomed.clone(), None);
    draft.put(doomed, op.by.encode());
    draft.change.doomed = true;
    Ok(draft.finish())
}

/// Removes what keeps the blob no longer. Returns the row that named the blob, if there was one; the outer
/// `None` says that the reason is none any more, and that all is done.
fn drop_reason(draft: &mut Draft, view: &View, op: &Doom<'_>) -> Result<Option<Option<Key>>, Stop> {
    match op.reason {
        Unkept::Stray => Ok(Some(None)),
        Unkept::Hold(tree, seen) => {
            let key = Key::held(&op.blob, tree);
            if view.row(&key)? != Some(seen) {
                // It holds the blob again, or another node was first.
                draft.change.commit.checks.clear();
                return Ok(None);
            }
            draft.check_seen(key.clone(), Some(seen));
            draft.del(key.clone());
            Ok(Some(Some(key)))
        }
        Unkept::Pack(moment, pack) => drop_pack(draft, view, moment, pack),
    }
}

fn drop_pack(draft: &mut Draft, view: &View, moment: u64, pack: PackNo) -> Result<Option<Option<Key>>, Stop> {
    let (key, mark) = (Key::pack(pack), Key::condemned(moment, pack));
    draft.del(mark);
    draft.check_seen(key.clone(), view.row(&key)?);
    let Some(PackRow::Condemned { blob, size }) = row(view, pack)? else {
        return Ok(None);
    };
    match check_unused(draft, view, pack) {
        Err(Stop::Refused(Refusal::Busy)) => {
            draft.put(key, PackRow::Sealed { blob, size }.encode());
            return Ok(None);
        }
        done => done?,
    }
    let name = Key::blob_pack(&blob, pack);
    draft.del(key);
    draft.del(name.clone());
    Ok(Some(Some(name)))
}

/// Another row of the range than this one.
fn other(view: &View, range: &KeyRange, than: Option<&Key>) -> Result<Option<Key>, Stop> {
    let rows = view.range(range, 2)?;
    Ok(rows.iter().map(|(key, _)| key).find(|key| Some(*key) != than).cloned())
}

/// The range without one of its keys.
fn without(range: KeyRange, key: Option<&Key>) -> Vec<KeyRange> {
    match key.filter(|key| (&range.start..&range.end).contains(key)) {
        None => vec![range],
        Some(key) => vec![
            KeyRange { start: range.start, end: key.clone() },
            KeyRange { start: key.successor(), end: range.end },
        ],
    }
}
