//! Runs operations on a store, and reads from it.
//!
//! [`Names::run`] is the loop around the pure planner. It shows the rows that a plan asks for and commits the
//! result. After a conflict it shows the fresh values and plans again.
//!
//! **A refusal counts only if its rows are of one moment.** Rows that were read in several rounds may never
//! have been true together: a name was read, then its inode, and both were removed in between. So a refusal
//! that rests on more than one round is checked: all its rows are read again at once, and if one has changed,
//! the operation is planned again.

mod page;
mod quota;
mod together;
mod trash;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::phase::{self, Phase};
use base::{BlobId, Ino, PackNo};
use blob::ExtentPage;

use crate::key::{Key, KeyRange};
use crate::plan::{self, Change, Ctx, Op, Plan, Refusal, View};
use crate::quota::Quotas;
use crate::record::{
    BadRecord, ContentRow, Dentry, InodeRecord, PackRow, decode_i64, decode_u64, moment_from_u64,
};
use crate::store::{CommitError, MetaStore, StoreError, Value, in_time};
use crate::trash::{Setting, removed_dir};
pub use page::FilePage;
pub use together::FoundEntry;

/// After this many attempts a plan is given up: the store contradicts itself.
const ATTEMPTS_MAX: u32 = 100_000;

/// Why an operation did not happen.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    /// The operation is invalid, or not permitted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The entry's position. The listing continues after it at `position + 1`.
    pub position: u64,
    /// The name.
    pub name: Box<[u8]>,
    /// What it names.
    pub dentry: Dentry,
}

/// What a volume holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes, those without a name included.
    pub inodes: u64,
    /// Bytes that files refer to, every reference counted.
    pub bytes: u64,
}

/// The names of a volume.
#[derive(Clone)]
pub struct Names {
    store: Arc<dyn MetaStore>,
    /// The volume is shared: its totals are spread over several rows.
    shared: bool,
    quotas: Arc<Quotas>,
    /// See [`crate::trash`]: 0 for never, 1 for off, else 1 more than the milliseconds.
    trash: Arc<AtomicU64>,
}

impl Names {
    /// Names in this store.
    pub fn new(store: Arc<dyn MetaStore>) -> Names {
        Names { store, shared: false, quotas: Arc::default(), trash: Arc::default() }
    }

    /// Names of a shared volume behind leases ([`crate::lease`]): the store is on another machine, and most
    /// rows are in memory.
    pub fn leased(store: Arc<dyn MetaStore>) -> Names {
        Names { store, shared: true, quotas: Arc::default(), trash: Arc::default() }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn MetaStore> {
        &self.store
    }

    /// Does an operation. The commit of the returned change is empty, because it was applied. The change's
    /// `inode`, if it is a directory's, is complete, as by [`Names::attr`].
    ///
    /// # Errors
    /// Refused, or the store failed. Then nothing was changed, or, if the store's error says so, it is
    /// unknown whether something was.
    pub fn run(&self, op: &Op<'_>, ctx: &Ctx) -> Result<Change, NamesError> {
        self.run_with(op, ctx, self.trash())
    }

    fn run_with(&self, op: &Op<'_>, ctx: &Ctx, trash: Setting) -> Result<Change, NamesError> {
        let _phase = phase::enter(Phase::Names);
        let mut view = View::of(trash);
        let mut rounds = 0;
        for _ in 0..ATTEMPTS_MAX {
            match plan::plan(op, ctx, &view) {
                Plan::Need { keys, ranges } => {
                    rounds += 1;
                    self.show(&mut view, keys, ranges)?;
                }
                Plan::Refused(refusal) => {
                    if rounds < 2 && !view.has_ranges() || self.is_current(&mut view)? {
                        return Err(refusal.into());
                    }
                    // All rows were read just now.
                    rounds = 1;
                }
                Plan::Change(mut change) => {
                    let commit = std::mem::take(&mut change.commit);
                    if !commit.is_empty() {
                        in_time()?;
                        let quotas = self.quotas.hold(!self.shared);
                        let limited = !matches!(op, Op::MoveToQuota { .. });
                        quotas.add(&change.charges, limited)?;
                        let done = self.store.commit(commit);
                        if done.is_err() {
                            quotas.take_back(&change.charges);
                        }
                        drop(quotas);
                        match done {
                            Ok(()) => {}
                            Err(CommitError::Store(error)) => return Err(error.into()),
                            Err(CommitError::Conflict { rows, .. }) => {
                                view.forget_ranges();
                                rows.into_iter().for_each(|(key, value)| view.show(key, value));
                                rounds += 1;
                                continue;
                            }
                        }
                    }
                    match self.finish(op, &mut change) {
                        // It has happened, and must not be done again.
                        Err(StoreError::Waits) if !matches!(op, Op::SetAttr { .. }) => {}
                        done => done?,
                    }
                    return Ok(*change);
                }
            }
        }
        Err(StoreError::Damaged("an operation finds other rows each time it is planned".to_owned()).into())
    }

    /// Completes the inode of a change that was made.
    fn finish(&self, op: &Op<'_>, change: &mut Change) -> Result<(), StoreError> {
        if let Some((ino, record)) = &mut change.inode {
            *record = match op {
                // There is nothing of a new directory that its record does not say.
                Op::Create { .. } if self.shared && record.is_dir() => InodeRecord { nlink: 2, ..*record },
                _ => self.complete(*ino, *record)?,
            };
        }
        Ok(())
    }

    /// Rows first, then ranges: a plan relies on a range through a row that was shown before it or with it.
    fn show(
        &self,
        view: &mut View,
        keys: Vec<Key>,
        ranges: Vec<(KeyRange, usize)>,
    ) -> Result<(), StoreError> {
        if let [key] = &keys[..] {
            let value = self.store.get(key)?;
            view.show(key.clone(), value);
        } else if !keys.is_empty() {
            let values = self.store.get_many(&keys)?;
            keys.into_iter().zip(values).for_each(|(key, value)| view.show(key, value));
        }
        for (range, limit) in ranges {
            let rows = self.store.scan(&range, limit)?;
            view.show_range(range, limit, rows);
        }
        Ok(())
    }

    /// Whether every row is still as it was shown. If not, the view gets the new rows, and its ranges are
    /// forgotten.
    fn is_current(&self, view: &mut View) -> Result<bool, StoreError> {
        let (keys, seen): (Vec<Key>, Vec<Option<Value>>) =
            view.rows().map(|(key, value)| (key.clone(), value.cloned())).unzip();
        let values = self.store.get_many(&keys)?;
        if values == seen {
            return Ok(true);
        }
        view.forget_ranges();
        keys.into_iter().zip(values).for_each(|(key, value)| view.show(key, value));
        Ok(false)
    }

    fn complete(&self, ino: Ino, record: InodeRecord) -> Result<InodeRecord, StoreError> {
        if !record.is_dir() || record.nlink == 0 {
            return Ok(record);
        }
        completed(record, &self.store.get_many(&[Key::dir_changed(ino), Key::subdirs(ino)])?)
    }

    fn decoded<T>(
        &self,
        key: &Key,
        decode: impl FnOnce(&[u8]) -> Result<T, BadRecord>,
    ) -> Result<Option<T>, StoreError> {
        self.store.get(key)?.map(|row| decode(&row)).transpose().map_err(damaged)
    }

    /// The inode that a name stands for.
    ///
    /// # Errors
    /// See [`StoreError`]; the same for all reads here.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Dentry>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        self.decoded(&Key::dentry(parent, name), Dentry::decode)
    }

    /// An inode as it is stored, with or without a name.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        if let Some(record) = self.decoded(&Key::inode(ino), InodeRecord::decode)? {
            return Ok(Some(record));
        }
        // A removed directory's record is kept in its orphan row, or in the trash.
        let orphan = self.store.get(&Key::orphan(ino))?;
        match removed_dir(orphan.as_ref(), None).map_err(damaged)? {
            None => removed_dir(None, self.store.get(&Key::trash(ino))?.as_ref()).map_err(damaged),
            dir => Ok(dir),
        }
    }

    /// An inode as stat(2) shows it: a directory's link count (2 and its subdirectories, 0 once removed) and
    /// its times are complete.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn attr(&self, ino: Ino) -> Result<Option<InodeRecord>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        self.inode(ino)?.map(|record| self.complete(ino, record)).transpose()
    }

    /// About `limit` entries of a directory from `position` on (0: all), in order of position; none at the
    /// end. Entries that exist throughout are found exactly once, whatever else is added and removed
    /// meanwhile, if each call continues at the last position + 1.
    ///
    /// Positions are hashes, so two names may share one. Such names are always in one answer, even if it
    /// becomes longer than `limit`. A caller that passes entries on must not stop between them: continuing
    /// after the first would lose the second.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn readdir(&self, dir: Ino, position: u64, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        let range = Key::dentries(dir, position);
        let mut rows = self.store.scan(&range, limit.max(1))?;
        if rows.len() >= limit
            && let Some((last, _)) = rows.last()
            && let Some(entry) = last.as_dentry()
        {
            let rest =
                KeyRange { start: last.successor(), end: Key::dentries(dir, entry.position + 1).start };
            rows.extend(self.store.scan(&rest, usize::MAX)?);
        }
        rows.iter().map(|(key, value)| listed(key, value)).collect()
    }

    /// Whether a row can be read without waiting for another machine.
    pub fn is_at_hand(&self, key: &Key) -> bool {
        self.store.is_at_hand(key)
    }

    /// Whether a row can be changed without waiting for another machine.
    pub fn is_changeable(&self, key: &Key) -> bool {
        self.store.is_changeable(key)
    }

    /// The extents of a page of a file. An absent page is a hole.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn extents(&self, ino: Ino, page: u32) -> Result<ExtentPage, StoreError> {
        let _phase = phase::enter(Phase::Names);
        match self.store.get(&Key::extents(ino, page))? {
            Some(row) => decode_page(&row),
            None => Ok(ExtentPage::new()),
        }
    }

    /// At most `limit` pages of a file that hold data, from page `from` on.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn extent_pages(
        &self,
        ino: Ino,
        from: u32,
        limit: usize,
    ) -> Result<Vec<(u32, ExtentPage)>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        let rows = self.store.scan(&Key::extents_from(ino, from), limit)?;
        rows.iter().map(|row| decode_extents(row).map(|(_, number, page)| (number, page))).collect()
    }

    /// At most `limit` pages that hold data, in order: of this file from page `from` on, then of all files
    /// with higher numbers.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn extents_after(
        &self,
        ino: Ino,
        from: u32,
        limit: usize,
    ) -> Result<Vec<(Ino, u32, ExtentPage)>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        let rows = self.store.scan(&Key::all_extents_from(ino, from), limit)?;
        rows.iter().map(decode_extents).collect()
    }

    /// The bytes of an inline file, or a symbolic link's target.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn inline(&self, ino: Ino) -> Result<Option<Value>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        self.store.get(&Key::inline(ino))
    }

    /// An extended attribute's value.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Value>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        self.store.get(&Key::xattr(ino, name))
    }

    /// The names of all extended attributes of an inode.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn xattrs(&self, ino: Ino) -> Result<Vec<Box<[u8]>>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        let rows = self.store.scan(&Key::xattrs(ino), usize::MAX)?;
        Ok(rows.iter().filter_map(|(key, _)| Some(key.as_xattr()?.1.into())).collect())
    }

    /// A pack's row.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn pack(&self, pack: PackNo) -> Result<Option<PackRow>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        self.decoded(&Key::pack(pack), PackRow::decode)
    }

    /// At most `limit` packs from number `from` on.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn packs(&self, from: PackNo, limit: usize) -> Result<Vec<(PackNo, PackRow)>, StoreError> {
        let mut range = Key::kind(crate::key::tags::PACK);
        range.start = Key::pack(from);
        let pack = |(key, row): &(Key, Value)| {
            let number = key.number().ok_or_else(|| bad_key(key))?;
            Ok((PackNo(number), PackRow::decode(row).map_err(damaged)?))
        };
        self.store.scan(&range, limit)?.iter().map(pack).collect()
    }

    /// How many bytes of a pack are referred to, with multiple references counted separately.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn pack_live(&self, pack: PackNo) -> Result<u64, StoreError> {
        let live = decode_i64(self.store.get(&Key::pack_live(pack))?.as_deref()).map_err(damaged)?;
        u64::try_from(live).map_err(|_| StoreError::Damaged(format!("{pack:?} has {live} live bytes")))
    }

    /// At most `limit` pages of files that refer to a pack, from (inode, page) `from` on.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn pack_users(
        &self,
        pack: PackNo,
        from: (Ino, u32),
        limit: usize,
    ) -> Result<Vec<(Ino, u32)>, StoreError> {
        let mut range = Key::pack_users(pack);
        range.start = Key::pack_user(pack, from.0, from.1);
        let user = |(key, _): &(Key, Value)| {
            key.as_pack_user().map(|(_, ino, page)| (ino, page)).ok_or_else(|| bad_key(key))
        };
        self.store.scan(&range, limit)?.iter().map(user).collect()
    }

    /// The packs, sealed or condemned, that hold this blob.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn blob_packs(&self, blob: &BlobId) -> Result<Vec<PackNo>, StoreError> {
        let rows = self.store.scan(&Key::blob_packs(blob), usize::MAX)?;
        rows.iter().map(|(key, _)| Ok(key.as_blob_pack().ok_or_else(|| bad_key(key))?.1)).collect()
    }

    /// Whether a published tree holds this blob.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn is_held(&self, blob: &BlobId) -> Result<bool, StoreError> {
        Ok(!self.store.scan(&Key::holders(blob), 1)?.is_empty())
    }

    /// Where a small file's content was stored. Its pack may have been condemned or removed since.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn content(&self, hash: &BlobId) -> Result<Option<ContentRow>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        self.decoded(&Key::content(hash), ContentRow::decode)
    }

    /// At most `limit` inodes without a name, from `from` on.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn orphans(&self, from: Ino, limit: usize) -> Result<Vec<Ino>, StoreError> {
        let range = KeyRange { start: Key::orphan(from), end: Key::orphans().end };
        let rows = self.store.scan(&range, limit)?;
        rows.iter().map(|(key, _)| key.number().map(Ino).ok_or_else(|| bad_key(key))).collect()
    }

    /// A row of the volume that [`Op::Format`] wrote.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn volume_row(&self, name: &str) -> Result<Option<Value>, StoreError> {
        self.store.get(&Key::volume(name))
    }

    /// How many inodes and bytes there are.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn totals(&self) -> Result<Totals, StoreError> {
        let _phase = phase::enter(Phase::Names);
        if self.shared {
            return self.spread_totals();
        }
        let rows = self.store.get_many(&[Key::volume("inodes"), Key::volume("bytes")])?;
        let count = |i: usize| {
            let count = decode_i64(rows.get(i).and_then(|row| row.as_deref())).map_err(damaged)?;
            Ok::<u64, StoreError>(count.max(0).unsigned_abs())
        };
        Ok(Totals { inodes: count(0)?, bytes: count(1)? })
    }
}

/// A directory's record, completed from its rows [`Key::dir_changed`] and [`Key::subdirs`].
fn completed(record: InodeRecord, rows: &[Option<Value>]) -> Result<InodeRecord, StoreError> {
    if !record.is_dir() || record.nlink == 0 {
        return Ok(record);
    }
    let row = |i: usize| rows.get(i).and_then(|row| row.as_deref());
    let changed = moment_from_u64(decode_u64(row(0)).map_err(damaged)?);
    let subdirs = decode_i64(row(1)).map_err(damaged)?;
    let mut record = record.with_entries_changed(changed);
    record.nlink = u32::try_from(subdirs.max(0)).unwrap_or(u32::MAX).saturating_add(2);
    Ok(record)
}

fn listed(key: &Key, value: &Value) -> Result<Listed, StoreError> {
    let entry = key.as_dentry().ok_or_else(|| bad_name(key))?;
    let dentry = Dentry::decode(value).map_err(damaged)?;
    Ok(Listed { position: entry.position, name: entry.name.into(), dentry })
}

fn decode_page(row: &[u8]) -> Result<ExtentPage, StoreError> {
    ExtentPage::decode(row).map_err(|error| StoreError::Damaged(error.to_string()))
}

/// Decodes a row of an extent page into file, page number and extents.
fn decode_extents((key, row): &(Key, Value)) -> Result<(Ino, u32, ExtentPage), StoreError> {
    let (ino, number) = key.as_extents().ok_or_else(|| bad_key(key))?;
    Ok((ino, number, decode_page(row)?))
}

fn damaged(error: BadRecord) -> StoreError {
    StoreError::Damaged(error.to_string())
}

/// A directory entry with an impossible name. It is never passed on: a caller might join it to a path.
fn bad_name(key: &Key) -> StoreError {
    let shown = key.as_bytes().get(17..).unwrap_or_default().escape_ascii();
    let dir = key.number().unwrap_or(0);
    StoreError::Damaged(format!(
        "directory {dir} has an entry \"{shown}\", which cannot be a name: run `covey fsck --repair`"
    ))
}

fn bad_key(key: &Key) -> StoreError {
    StoreError::Damaged(format!("the key {key:?} is none of this format"))
}
