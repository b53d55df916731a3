//! Dooms blobs of condemned packs and of trees that are published no more, and deletes them in the origin.

use std::time::Duration;

use base::time::BootTime;
use base::{BlobId, PackNo, Timestamp, time};
use meta::key::{KeyRange, tags};
use meta::plan::{Op, Refusal, op::Unkept};
use meta::record::{DoomedRow, HeldRow, moment_from_u64, moment_to_u64};
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, PackRow};

use super::{HOLD, SEND};
use crate::errno::Error;
use crate::publish::GRACE;
use crate::shared::{SessionId, Sharing, owner};
use crate::volume::Core;

/// Blobs doomed, and deleted with one request.
const BATCH: usize = 256;
/// Rows read at a time, and at most so many times.
const ROWS: usize = 1024;
const READS: usize = 16;
/// What is overdue for so long is deleted by any node.
const LATE: Duration = Duration::from_secs(600);
/// The interval between two looks at the holds of published trees, if some have ended.
const HOLDS: Duration = Duration::from_secs(60);
/// The interval of the first node between two looks at the holds, if it knows of none that have ended.
const HOLDS_SELDOM: Duration = Duration::from_secs(3600);

/// The session of this node, and all sessions that are alive.
pub(super) struct Present {
    pub(super) me: DoomedRow,
    pub(super) alive: Vec<SessionId>,
    /// No living node has a lower number.
    pub(super) is_first: bool,
}

impl Present {
    fn is_alive(&self, by: &DoomedRow) -> bool {
        self.alive.contains(&SessionId { node: by.node, epoch: by.epoch })
    }
}

/// Blobs to delete, with their sizes as far as they are known.
pub(super) type Doomed = Vec<(BlobId, u32)>;

impl Core {
    /// What this node may decide by now. `None`: it has no session.
    pub(super) fn present(&self, sharing: &Sharing) -> Result<Option<Present>, Error> {
        let Some(epoch) = sharing.others.epoch() else { return Ok(None) };
        let me = DoomedRow { node: sharing.node, epoch };
        let alive = sharing.others.alive()?;
        let is_first = alive.iter().map(|session| session.node).min() == Some(sharing.node);
        let present = Present { me, alive, is_first };
        Ok(Some(present).filter(|present| present.is_alive(&me)))
    }

    /// Finishes deletions that were begun, while the volume is being closed.
    pub(crate) fn finish_deletions(&self, sharing: &Sharing) -> Result<(), Error> {
        let Some(present) = self.present(sharing)? else { return Ok(()) };
        let doomed = self.resume(&present)?;
        self.delete_doomed(&present, &doomed)
    }

    /// Deletes what is due. Returns whether there is more to do now. One thread at a time may do this.
    pub(super) fn delete_due(&self, sharing: &Sharing, present: &Present, now: bool) -> Result<bool, Error> {
        let mut doomed = self.resume(present)?;
        let mut more = false;
        if self.is_unpublishing(present)? {
            more = self.doom_packs(sharing, present, &mut doomed)?;
            self.doom_released(present, now, &mut doomed)?;
        }
        self.delete_doomed(present, &doomed)?;
        Ok(more)
    }

    /// Whether no node publishes. The right of a node whose session has ended is taken away, so that it
    /// cannot publish what may be deleted from now on.
    pub(super) fn is_unpublishing(&self, present: &Present) -> Result<bool, Error> {
        let key = Key::publishing();
        let Some(row) = self.parts.store.get(&key)? else { return Ok(true) };
        let holder = session_of(&row);
        let sharing = self.options.shared.as_ref();
        let lasts = |holder: &SessionId| {
            // The sessions that are known are older than the row.
            let alive = sharing.map(|sharing| sharing.others.alive()).transpose()?;
            Ok::<bool, Error>(alive.is_none_or(|alive| alive.contains(holder)))
        };
        if let Some(holder) = &holder
            && (present.alive.contains(holder) || lasts(holder)?)
        {
            return Ok(false);
        }
        let checks = vec![(key.clone(), Expect::Is(row))];
        match self.parts.store.commit(Commit { checks, dels: vec![key], ..Commit::default() }) {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict { .. }) => Ok(false),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// Blobs whose deletion was not finished: this session's after a failure, and those of sessions that have
    /// ended. Blobs whose deletion is over are not doomed any more.
    fn resume(&self, present: &Present) -> Result<Doomed, Error> {
        let rows = self.parts.store.scan(&Key::kind(tags::DOOMED), usize::MAX)?;
        let (now, mut over, mut doomed, mut left) = (time::boot(), Vec::new(), Doomed::new(), Vec::new());
        {
            let state = self.deletions.state.lock();
            for (key, row) in rows {
                let Some(blob) = key.as_doomed() else { continue };
                let by = DoomedRow::decode(&row).map_err(|error| StoreError::Damaged(error.to_string()))?;
                match state.deleted.get(&blob) {
                    _ if by != present.me && present.is_alive(&by) => {}
                    _ if by != present.me => left.push((key, row)),
                    Some(until) if now >= *until => over.push((key, row)),
                    Some(_) => {}
                    None => doomed.push((blob, 0)),
                }
            }
        }
        self.clear(over)?;
        doomed.truncate(BATCH);
        left.truncate(BATCH);
        for (key, row) in left {
            let commit = Commit {
                checks: vec![(key.clone(), Expect::Is(row))],
                puts: vec![(key.clone(), present.me.encode())],
                ..Commit::default()
            };
            match self.parts.store.commit(commit) {
                Ok(()) => doomed.extend(key.as_doomed().map(|blob| (blob, 0))),
                // Another node does it.
                Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::Store(error)) => return Err(error.into()),
            }
        }
        Ok(doomed)
    }

    /// From here on the blobs may be stored again.
    fn clear(&self, over: Vec<(Key, Value)>) -> Result<(), Error> {
        for rows in over.chunks(BATCH) {
            let checks = rows.iter().map(|(key, row)| (key.clone(), Expect::Is(row.clone()))).collect();
            let dels = rows.iter().map(|(key, _)| key.clone()).collect();
            match self.parts.store.commit(Commit { checks, dels, ..Commit::default() }) {
                // Another node has taken this one's session for ended.
                Ok(()) | Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::Store(error)) => return Err(error.into()),
            }
            let mut state = self.deletions.state.lock();
            rows.iter()
                .filter_map(|(key, _)| key.as_doomed())
                .for_each(|blob| _ = state.deleted.remove(&blob));
        }
        Ok(())
    }

    /// Forgets condemned packs that are due, and dooms their blobs. Returns whether there are more.
    fn doom_packs(&self, sharing: &Sharing, present: &Present, doomed: &mut Doomed) -> Result<bool, Error> {
        let (now, mut done) = (time::now(), 0);
        let before = |age: Duration| moment_to_u64(Timestamp(now.0 - age.as_nanos() as i128));
        let mut range = KeyRange {
            start: Key::condemned(0, PackNo(0)),
            end: Key::condemned(before(sharing.delay), PackNo(0)),
        };
        let late = moment_from_u64(before(sharing.delay + LATE));
        let is_mine = |moment: u64, pack: PackNo| {
            let node = owner(pack);
            let is_gone = !present.alive.iter().any(|session| session.node == node);
            node == sharing.node || is_gone && present.is_first || moment_from_u64(moment) < late
        };
        for _ in 0..READS {
            let rows = self.parts.store.scan(&range, ROWS)?;
            let Some((last, _)) = rows.last() else { return Ok(false) };
            range.start = last.successor();
            for (moment, pack) in rows.iter().filter_map(|(key, _)| key.as_condemned()) {
                if !is_mine(moment, pack) {
                    continue;
                }
                if doomed.len() >= BATCH || done >= ROWS || self.stopping() {
                    return Ok(true);
                }
                done += 1;
                if !self.doom_pack(present, (moment, pack), doomed)? {
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Returns false while a publication must be waited for.
    fn doom_pack(
        &self,
        present: &Present,
        (moment, pack): (u64, PackNo),
        doomed: &mut Doomed,
    ) -> Result<bool, Error> {
        let (blob, size) = match self.pack_row(pack)? {
            Some(PackRow::Condemned { blob, size } | PackRow::Sealed { blob, size }) => (blob, size),
            // Only the mark is left.
            Some(PackRow::Open) | None => (BlobId([0; 32]), 0),
        };
        let is_doomed = match self.doom(present, blob, Unkept::Pack(moment, pack)) {
            Err(Error::Refused(Refusal::Busy)) => return Ok(false),
            done => done?,
        };
        self.table.drop(pack);
        if is_doomed {
            doomed.push((blob, size));
        }
        Ok(true)
    }

    /// Returns whether this session deletes the blob now.
    pub(super) fn doom(&self, present: &Present, blob: BlobId, reason: Unkept<'_>) -> Result<bool, Error> {
        let done = self.run(&Op::Doom { blob, reason, by: present.me })?.doomed;
        if done {
            // An earlier deletion of the blob is over, and this is another one.
            self.deletions.state.lock().deleted.remove(&blob);
        }
        Ok(done)
    }

    /// Removes holds of published trees that have ended at least [`GRACE`] ago, and dooms what nothing else
    /// needs.
    fn doom_released(&self, present: &Present, now: bool, doomed: &mut Doomed) -> Result<(), Error> {
        let (today, at) = (time::now(), time::monotonic());
        let ended = self.publishing.ended.load(std::sync::atomic::Ordering::Acquire);
        {
            let mut state = self.deletions.state.lock();
            let since = state.looked.map(|looked| at.saturating_duration_since(looked));
            let is_due = |every: Duration| since.is_none_or(|since| since >= every);
            let every = if ended { HOLDS } else { HOLDS_SELDOM };
            let is_asked = ended || present.is_first;
            if !(now || is_asked && is_due(every)) {
                return Ok(());
            }
            state.looked = Some(at);
        }
        let (mut over, mut left) = (Vec::new(), false);
        self.publishing.ended.store(false, std::sync::atomic::Ordering::Release);
        let done = self.each_hold(&mut |blob, tree, row| {
            let is_over = match row {
                HeldRow::Held | HeldRow::Pending | HeldRow::KeptAt(_) => return Ok(()),
                HeldRow::Released => true,
                HeldRow::DroppedAt(at) => today.0 - at.0 >= GRACE.as_nanos() as i128,
            };
            left |= !is_over || over.len() >= BATCH;
            if is_over && over.len() < BATCH {
                over.push((blob, String::from_utf8_lossy(tree).into_owned(), row.encode()));
            }
            Ok(())
        });
        let release = || {
            done?;
            for (blob, tree, row) in &over {
                match self.doom(present, *blob, Unkept::Hold(tree, row)) {
                    Ok(true) => doomed.push((*blob, 0)),
                    Ok(false) => {}
                    // A publication began.
                    Err(Error::Refused(Refusal::Busy)) => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            Ok(left)
        };
        let released = release();
        if !matches!(released, Ok(false)) {
            self.publishing.ended.store(true, std::sync::atomic::Ordering::Release);
        }
        released.map(drop)
    }

    /// Deletes blobs that this session has doomed.
    pub(super) fn delete_doomed(&self, present: &Present, doomed: &Doomed) -> Result<(), Error> {
        for doomed in doomed.chunks(BATCH) {
            let began = time::boot();
            let Some(doomed) = self.confirm(present, doomed)? else { continue };
            self.may_delete()?;
            let ids: Vec<BlobId> = doomed.iter().map(|(blob, _)| *blob).collect();
            self.parts.origin.remove_many(&ids, began.plus(SEND))?;
            self.note_deleted(&doomed, began.plus(HOLD));
        }
        Ok(())
    }

    fn note_deleted(&self, doomed: &Doomed, until: BootTime) {
        let mut state = self.deletions.state.lock();
        for (blob, size) in doomed {
            state.deleted.insert(*blob, until);
            self.counters.freed_bytes.add(u64::from(*size));
        }
    }

    /// Says once more that this session deletes these blobs, in a commit that is accepted only while the
    /// session lasts. Returns those of which it is still true.
    fn confirm(&self, present: &Present, doomed: &[(BlobId, u32)]) -> Result<Option<Doomed>, Error> {
        let mut doomed = doomed.to_vec();
        while !doomed.is_empty() {
            let keys = || doomed.iter().map(|(blob, _)| Key::doomed(blob));
            let row = present.me.encode();
            let commit = Commit {
                checks: keys().map(|key| (key, Expect::Is(row.clone()))).collect(),
                puts: keys().map(|key| (key, row.clone())).collect(),
                ..Commit::default()
            };
            match self.parts.store.commit(commit) {
                Ok(()) => return Ok(Some(doomed)),
                // Another node deletes them, because this session had ended by what it saw.
                Err(CommitError::Conflict { rows, .. }) if !rows.is_empty() => {
                    doomed.retain(|(blob, _)| rows.iter().all(|(key, _)| *key != Key::doomed(blob)));
                }
                Err(CommitError::Conflict { .. }) => return Ok(None),
                Err(CommitError::Store(error)) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

/// The session in the row of a publication.
fn session_of(row: &[u8]) -> Option<SessionId> {
    let (node, rest) = row.split_first_chunk::<4>()?;
    let (epoch, _) = rest.split_first_chunk::<8>()?;
    Some(SessionId { node: u32::from_be_bytes(*node), epoch: u64::from_be_bytes(*epoch) })
}
