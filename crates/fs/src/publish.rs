//! What publishing needs of a volume: a snapshot in which every byte is in a blob, and a hold on those blobs.
//!
//! ```text
//!   pause      no blob is deleted, no pack is forgotten
//!   snapshot   the rows of this moment; programs keep writing
//!   seal       every pack that those rows refer to becomes a blob (later bytes do no harm: packs only grow)
//!   hold       rows say which published tree needs which blob
//!   resume     from here on those rows keep the blobs, whatever happens to the packs
//! ```
//!
//! Writers never wait for any of this. During the pause no space is freed. The pause lasts as long as it
//! takes to seal the open packs and to write the holds.
//!
//! **Holds.** A row for each blob and published name ([`meta::record::HeldRow`]). When a condemned pack's
//! blob is held, the pack is forgotten and the blob stays. When a newer tree of the name no longer needs the
//! blob, it stays for [`GRACE`] more, for nodes that still mount the older tree. Then it is deleted, unless
//! another name or a pack of the volume needs it. If older trees of the name are kept, it stays as long as
//! one of them needs it.

pub(crate) mod state;

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{BlobId, PackNo, Timestamp, time};
use blob::BlobError;
use hashbrown::HashSet;
use meta::key::tags;
use meta::record::HeldRow;
use meta::store::{CommitError, Snapshot, StoreError};
use meta::{Commit, Expect, Key, PackRow, Value};
use parking_lot::MutexGuard;

use crate::errno::{Errno, Error};
use crate::volume::{Core, Volume};

/// How long a blob is kept that only an older tree of a name needs.
pub const GRACE: Duration = Duration::from_secs(3600);
/// The interval between two checks whether a pack is sealed.
const LOOK: Duration = Duration::from_millis(10);
/// How long a publication waits for blobs that are being deleted: the time that a deletion takes, and that
/// after which other nodes finish it.
const DOOMED: Duration = Duration::from_secs(60);
/// Rows written at a time.
pub(crate) const BATCH: usize = 1024;

/// A pack of the published snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedPack {
    /// The pack's number.
    pub no: PackNo,
    /// The blob it is.
    pub blob: BlobId,
    /// The blob's size in bytes.
    pub size: u32,
    /// Bytes referred to, each reference counted.
    pub live: u64,
}

/// A publication in progress. See the [module](self).
pub struct Publication<'v> {
    core: &'v Core,
    _turn: MutexGuard<'v, ()>,
    rows: Box<dyn Snapshot>,
    packs: Vec<SealedPack>,
    paused: bool,
}

impl Volume {
    /// Begins a publication: takes the snapshot, and waits until all of its bytes are blobs. Waits for
    /// another publication that is in progress.
    ///
    /// # Errors
    /// `EROFS`; an error of the names or packs; or `Unavailable` if a pack did not become a blob in time.
    pub fn publication(&self, patience: Duration) -> Result<Publication<'_>, Error> {
        let core = &*self.core;
        if core.is_read_only() {
            return Err(Errno::EROFS.into());
        }
        let turn = core.publishing.turn.lock();
        core.may_delete()?;
        core.pause(true);
        // From here on, dropping it ends the pause.
        let empty: Box<dyn Snapshot> = Box::new(Nothing);
        let mut publication = Publication { core, _turn: turn, rows: empty, packs: Vec::new(), paused: true };
        core.sync()?;
        publication.rows = core.parts.store.snapshot()?;
        publication.seal(patience)?;
        Ok(publication)
    }

    /// Waits until no publication is in progress. None begins until the returned value is dropped.
    pub fn between_publications(&self) -> impl Drop + '_ {
        self.core.publishing.turn.lock()
    }

    /// Prevents publications until the returned value is dropped. `None`: one is in progress.
    pub fn if_none_is_published(&self) -> Option<impl Drop + '_> {
        self.core.publishing.turn.try_lock()
    }

    /// Records that a tree in the course of publication needs these blobs. Durable when it returns.
    ///
    /// # Errors
    /// An error of the names.
    pub fn hold(&self, tree: &str, blobs: &mut dyn Iterator<Item = BlobId>) -> Result<(), Error> {
        self.core.hold(tree, blobs)
    }

    /// Records that a published tree needs these blobs and no others. The others stay for [`GRACE`].
    ///
    /// `kept`: the moment of the oldest tree of the name that is kept, if older ones are. Blobs that a tree
    /// of that moment or later may need stay.
    ///
    /// # Errors
    /// An error of the names. `Unavailable`: a blob that the tree needs is not held any more, because the
    /// tree was unpublished meanwhile, or another node publishes it.
    pub fn hold_only(
        &self,
        tree: &str,
        blobs: &HashSet<BlobId>,
        kept: Option<Timestamp>,
    ) -> Result<(), Error> {
        let now = time::now();
        let dropped = if kept.is_some() { HeldRow::KeptAt(now) } else { HeldRow::DroppedAt(now) };
        let held = Cell::new(0);
        self.core.change_holds(tree, &|blob, row| match (row, blobs.contains(blob)) {
            (HeldRow::Pending | HeldRow::KeptAt(_), true) => {
                held.set(held.get() + 1);
                Some(HeldRow::Held)
            }
            (HeldRow::Held, true) => {
                held.set(held.get() + 1);
                None
            }
            (HeldRow::Held | HeldRow::Pending, false) => Some(dropped),
            // It was dropped when the oldest tree was published, or before.
            (HeldRow::KeptAt(at), false) if kept.is_none_or(|kept| at <= kept) => {
                Some(HeldRow::DroppedAt(now))
            }
            _ => None,
        })?;
        match blobs.len() - held.get().min(blobs.len()) {
            0 => Ok(()),
            lost => Err(BlobError::Unavailable(format!(
                "{lost} of its blobs are not held any more: it was unpublished meanwhile; publish it again"
            ))
            .into()),
        }
    }

    /// Records that a tree is not published any more. The next collection deletes what only it needs.
    ///
    /// # Errors
    /// An error of the names.
    pub fn let_go(&self, tree: &str) -> Result<(), Error> {
        let end = |_: &BlobId, row| (row != HeldRow::Released).then_some(HeldRow::Released);
        self.core.change_holds(tree, &end)
    }

    /// The names of all trees that hold anything.
    ///
    /// # Errors
    /// An error of the names.
    pub fn holders(&self) -> Result<Vec<String>, Error> {
        let mut names = HashSet::new();
        self.core.each_hold(&mut |_, tree, row| {
            if row != HeldRow::Released {
                names.insert(String::from_utf8_lossy(tree).into_owned());
            }
            Ok(())
        })?;
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort();
        Ok(names)
    }
}

impl Publication<'_> {
    /// The rows of the snapshot.
    pub fn rows(&self) -> &dyn Snapshot {
        &*self.rows
    }

    /// Every pack that they refer to, by number.
    pub fn packs(&self) -> &[SealedPack] {
        &self.packs
    }

    /// Holds blobs of the snapshot's packs for a tree, and ends the pause: from now on, what is not held may
    /// be deleted.
    ///
    /// # Errors
    /// An error of the names.
    pub fn hold(&mut self, tree: &str, blobs: &mut dyn Iterator<Item = BlobId>) -> Result<(), Error> {
        self.core.hold(tree, blobs)?;
        self.resume();
        Ok(())
    }

    fn resume(&mut self) {
        if std::mem::take(&mut self.paused) {
            self.core.pause(false);
        }
    }

    fn seal(&mut self, patience: Duration) -> Result<(), Error> {
        let core = self.core;
        let mut lives: Vec<(PackNo, Value)> = Vec::new();
        self.rows.each(&Key::kind(tags::PACK_LIVE), &mut |key, row| {
            lives.extend(Key::from_bytes(key).number().map(|no| (PackNo(no), row.into())));
            true
        })?;
        core.packs.close_all();
        let until = time::monotonic() + patience;
        while !core.resealing.lock().is_empty() {
            wait(core, until, || "packs of the last run".to_owned())?;
        }
        for (no, live) in lives {
            let live = meta::record::decode_i64(Some(&live))?.max(0).unsigned_abs();
            let (blob, size) = loop {
                match core.pack_row(no)? {
                    Some(PackRow::Sealed { blob, size } | PackRow::Condemned { blob, size }) => {
                        break (blob, size);
                    }
                    Some(PackRow::Open) => wait(core, until, || no.to_string())?,
                    None => {
                        let what = format!("pack {no} is in use and not in the pack table; run `covey fsck`");
                        return Err(StoreError::Damaged(what).into());
                    }
                }
            };
            if live > 0 {
                self.packs.push(SealedPack { no, blob, size, live });
            }
        }
        Ok(())
    }
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        self.resume();
    }
}

fn wait(core: &Core, until: Instant, what: impl Fn() -> String) -> Result<(), Error> {
    if core.stopping() || time::monotonic() >= until {
        let what =
            format!("{} did not become a blob in time; the origin does not take it: see the log", what());
        return Err(BlobError::Unavailable(what).into());
    }
    std::thread::sleep(LOOK);
    Ok(())
}

/// The keys of holds that a publication has to write.
fn unheld(keys: Vec<Key>, rows: Vec<Option<Value>>) -> Result<impl Iterator<Item = Key>, Error> {
    let rows = rows.into_iter().map(|row| row.map(|row| HeldRow::decode(&row)).transpose());
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let is_held = |row: &Option<HeldRow>| matches!(row, Some(HeldRow::Held | HeldRow::Pending));
    Ok(keys.into_iter().zip(rows).filter(move |(_, row)| !is_held(row)).map(|(key, _)| key))
}

/// Called with holds: blob, name of the tree, row.
pub(crate) type EachHold<'a> = dyn FnMut(BlobId, &[u8], HeldRow) -> Result<(), Error> + 'a;

/// The rows before the snapshot is taken: none.
struct Nothing;

impl Snapshot for Nothing {
    fn get(&self, _: &Key) -> Result<Option<Value>, StoreError> {
        Ok(None)
    }

    fn each(
        &self,
        _: &meta::key::KeyRange,
        _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Core {
    fn pause(&self, on: bool) {
        let _whole = self.blobs.write();
        match on {
            true => self.publishing.paused.fetch_add(1, Ordering::AcqRel),
            false => self.publishing.paused.fetch_sub(1, Ordering::AcqRel),
        };
        self.sweep.wake();
    }

    fn hold(&self, tree: &str, blobs: &mut dyn Iterator<Item = BlobId>) -> Result<(), Error> {
        let mut commit = Commit::default();
        let mut blobs = blobs.peekable();
        while blobs.peek().is_some() {
            let batch: HashSet<BlobId> = blobs.by_ref().take(BATCH).collect();
            let keys: Vec<Key> = batch.iter().map(|blob| Key::held(blob, tree)).collect();
            if self.is_shared() {
                self.hold_shared(&batch, &keys)?;
                continue;
            }
            // So that none of these holds is released meanwhile.
            let _shared = self.blobs.read();
            let rows = self.parts.store.get_many(&keys)?;
            commit.puts = unheld(keys, rows)?.map(|key| (key, HeldRow::Pending.encode())).collect();
            self.write_holds(std::mem::take(&mut commit))?;
        }
        self.flush()
    }

    /// Records holds, `keys`, of blobs of a shared volume. Waits for a blob that is being deleted: no row may
    /// name it until then ([`crate::gc::shared`]).
    fn hold_shared(&self, blobs: &HashSet<BlobId>, keys: &[Key]) -> Result<(), Error> {
        let until = time::monotonic() + DOOMED;
        loop {
            let rows = self.parts.store.get_many(keys)?;
            let puts: Vec<_> =
                unheld(keys.to_vec(), rows)?.map(|key| (key, HeldRow::Pending.encode())).collect();
            if puts.is_empty() {
                return Ok(());
            }
            let checks = blobs.iter().map(|blob| (Key::doomed(blob), Expect::Absent)).collect();
            match self.parts.store.commit(Commit { checks, puts, ..Commit::default() }) {
                Ok(()) => return Ok(()),
                Err(CommitError::Store(error)) => return Err(error.into()),
                Err(CommitError::Conflict { .. }) => {
                    wait(self, until, || "a blob that is being deleted at this moment".to_owned())?;
                }
            }
        }
    }

    fn write_holds(&self, commit: Commit) -> Result<(), Error> {
        match self.parts.store.commit(commit) {
            Ok(()) => Ok(()),
            Err(CommitError::Store(error)) => Err(error.into()),
            Err(CommitError::Conflict { .. }) => {
                Err(StoreError::Damaged("rows without checks met a conflict".to_owned()).into())
            }
        }
    }

    /// Changes the rows of a tree to the result of `change`, where it returns one.
    fn change_holds(
        &self,
        tree: &str,
        change: &dyn Fn(&BlobId, HeldRow) -> Option<HeldRow>,
    ) -> Result<(), Error> {
        let mut commit = Commit::default();
        self.each_hold(&mut |blob, of, row| {
            if of == tree.as_bytes()
                && let Some(row) = change(&blob, row)
            {
                commit.puts.push((Key::held(&blob, tree), row.encode()));
            }
            if commit.puts.len() >= BATCH { self.write_holds(std::mem::take(&mut commit)) } else { Ok(()) }
        })?;
        self.write_holds(commit)?;
        self.publishing.ended.store(true, Ordering::Release);
        self.flush()
    }

    /// Calls `each` with every hold: blob, name, row.
    pub(crate) fn each_hold(&self, each: &mut EachHold<'_>) -> Result<(), Error> {
        let mut range = Key::kind(tags::HELD);
        loop {
            let rows = self.parts.store.scan(&range, BATCH)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            range.start = last.successor();
            for (key, row) in &rows {
                let Some((blob, tree)) = key.as_held() else { continue };
                each(blob, tree, HeldRow::decode(row)?)?;
            }
        }
    }
}
