//! Quotas of directories: which one an inode counts for. The limits are checked by [`crate::names`].

use base::Ino;

use crate::key::{Key, Used};
use crate::quota::{QuotaRow, State};
use crate::record::InodeRecord;

use super::draft::Draft;
use super::op::{Change, Refusal};
use super::view::{Ask, Node, Stop, View};

/// Refuses to put something into a directory whose inodes count for another quota. The directory's row must
/// become a check of the commit.
pub(super) fn check_same(dir: &Node, quota: Ino) -> Result<(), Refusal> {
    if dir.record.quota_below(dir.ino) == quota { Ok(()) } else { Err(Refusal::OtherQuota) }
}

/// Makes what is moved within a quota count for it. Usually it does. While the quota is being set, it may not
/// do so yet, and where it is moved to may have been looked through already. The same holds for what is in a
/// directory, so a directory is refused then.
pub(super) fn inherit(draft: &mut Draft, record: &mut InodeRecord, dir: &Node) -> Result<(), Refusal> {
    let to = dir.record.quota_below(dir.ino);
    if record.quota == to {
        return Ok(());
    }
    if record.is_dir() && record.nlink > 0 {
        return Err(Refusal::OtherQuota);
    }
    charge_moved(draft, record, to);
    record.quota = to;
    Ok(())
}

/// What has lost its last name counts for no quota: on a shared volume it may be a while until it is
/// collected.
pub(super) fn leave(draft: &mut Draft, record: &mut InodeRecord) {
    charge_moved(draft, record, Ino(0));
    record.quota = Ino(0);
}

fn charge_moved(draft: &mut Draft, record: &InodeRecord, to: Ino) {
    for (quota, sign) in [(record.quota, -1), (to, 1)] {
        draft.charge(quota, Used::Inodes, sign);
        draft.charge(quota, Used::Bytes, sign * record.stored as i64);
    }
}

/// [`super::Op::SetQuota`]
pub(super) fn set(
    view: &View,
    dir: Ino,
    was: Option<QuotaRow>,
    row: Option<QuotaRow>,
) -> Result<Change, Stop> {
    let key = Key::quota(dir);
    Ask::new(view).row(&Key::inode(dir)).row(&key).done()?;
    let node = view.live_dir(dir)?;
    let seen = view.row(&key)?;
    if seen.map(|seen| QuotaRow::decode(seen)).transpose()? != was {
        return Err(Refusal::Changed.into());
    }
    let mut draft = Draft::new();
    draft.check_seen(key.clone(), seen);
    let counts = row.is_some_and(|row| row.state != State::Removing);
    match row {
        Some(row) => draft.put(key, QuotaRow { outer: node.record.quota, ..row }.encode()),
        None if node.record.has(InodeRecord::QUOTA_ROOT) => return Err(Refusal::Busy.into()),
        None => draft.del(key),
    }
    if node.record.has(InodeRecord::QUOTA_ROOT) == counts {
        draft.check_seen(node.key.clone(), Some(&node.seen));
        draft.change.inode = Some((dir, node.record));
    } else {
        let mut record = node.record;
        record.set(InodeRecord::QUOTA_ROOT, counts);
        draft.update(&node, record);
    }
    Ok(draft.finish())
}

/// [`super::Op::MoveToQuota`]
pub(super) fn move_to(view: &View, ino: Ino, from: &[Ino], to: Ino) -> Result<Change, Stop> {
    let node = match view.node(ino) {
        Err(Stop::Refused(Refusal::NotFound)) => return Ok(Change::default()),
        node => node?,
    };
    let mut draft = Draft::new();
    let InodeRecord { quota, nlink, .. } = node.record;
    // See `leave`.
    let is_gone = nlink == 0 && quota == Ino(0);
    if !from.contains(&quota) || quota == to || is_gone {
        return Ok(draft.finish());
    }
    if node.record.has(InodeRecord::QUOTA_ROOT) {
        let key = Key::quota(ino);
        let seen = view.row(&key)?.ok_or(Refusal::Damaged)?;
        draft.check_seen(key.clone(), Some(seen));
        draft.put(key, QuotaRow { outer: to, ..QuotaRow::decode(seen)? }.encode());
    }
    charge_moved(&mut draft, &node.record, to);
    draft.update(&node, InodeRecord { quota: to, ..node.record });
    Ok(draft.finish())
}
