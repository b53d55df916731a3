//! Compaction of a shared volume: moves the bytes in use out of packs that are mostly dead, while other nodes
//! work.
//!
//! ```text
//!   packs below half ──► the ranges in use, copied into one new pack of this node            begin
//!                    ──► sealed and named, then its blob is stored in the origin
//!   the origin has it ──► each page that refers to the old ranges: one commit                 follow
//!                    ──► the old packs have no live bytes: they are condemned like others     dead.rs
//! ```
//!
//! **No promise is weakened.** A page refers to the new place only after the blob is in the origin, synced
//! and with the right size. So fsync(2) holds as before, also if this node is lost in the next moment. Until
//! then nothing but this node's memory knows of the move. If it is killed, the new pack is one without live
//! bytes, and is condemned like any other.
//!
//! **No change is lost.** A page changes by a commit under the write lease of its file's unit, like every
//! change of a file (`meta::lease`): other nodes have given back what they remember of it, and have stored
//! what they had changed. The commit checks that the extents are those that were read, and only extents that
//! refer to the old range get the new one. What was written, cut or removed meanwhile stays so. The contents
//! of the file do not change, so no kernel has to forget anything.
//!
//! **Nothing that a node may name is deleted.** The old packs are condemned and deleted as described in the
//! [module above](super): a copy of the old reference that another node has made and not stored yet keeps the
//! lease of its source, so this node's commit waits for it, and the old pack keeps a user. The new pack has
//! no user before the first commit, so another node's collection on request may condemn it. Each commit
//! checks the pack's row. It is refused then, and the pages that are left stay where they are.
//!
//! **Reads** with names from before the move find the old blob, which stays for a while after it was
//! condemned (`-o gc_delay`). After that they look up the names again.
//!
//! **Which node.** Each node compacts its own packs, and the node with the lowest number those of nodes that
//! are gone: as for dead packs. The node that has written a pack often still has the leases of its files. A
//! lease of another node is taken only if it has not changed hands for a while
//! ([`meta::MetaStore::are_free`]); otherwise the pack is put off, for [`LATE`] at most. If two nodes compact
//! the same pack, each page follows the first one.

use std::time::{Duration, Instant};

use base::size::BLOB_MAX;
use base::{BlobId, Deadline, Ino, PackNo, time};
use blob::BlobError;
use hashbrown::HashSet;
use meta::plan::op::Move;
use meta::plan::{Op, Refusal};
use meta::record::decode_i64;
use meta::{Key, PackRow};
use parking_lot::Mutex;

use super::delete::Present;
use super::worth::{ENOUGH, Partly, Worth};
use crate::bytes::may_have_moved;
use crate::errno::Error;
use crate::gc::all::Collected;
use crate::gc::compact::{READS, is_no_answer, merge_ranges};
use crate::shared::{Sharing, owner};
use crate::volume::Core;

/// How long one round copies and changes pages. The rest follows in the next one.
const ROUND: Duration = Duration::from_secs(2);
/// New packs on their way to the origin at a time, while nothing is written here. Otherwise one.
const JOBS: usize = 4;
/// Old packs that one new pack may take the bytes of.
const CHOICE: usize = 64;
/// A lease that has not changed hands for so many terms of a session may be taken from another node.
const QUIET: u32 = 40;
/// A pack that cannot be compacted now is tried again after so many terms.
const AGAIN: u32 = 4;
/// A pack that was put off for so many terms is compacted whatever leases that takes.
const LATE: u32 = 240;
/// How long the origin may take to say whether it has a blob.
const ORIGIN: Duration = Duration::from_secs(5);
/// The longest time that a collection on request takes for it.
const PATIENCE: Duration = Duration::from_secs(600);
/// The pause between two looks at whether the origin has the new packs.
const LOOK: Duration = Duration::from_millis(20);

/// The state of compaction. See the [module](self).
#[derive(Default)]
pub(crate) struct Compaction(Mutex<State>);

#[derive(Default)]
struct State {
    worth: Worth,
    jobs: Vec<Job>,
    /// Packs whose bytes are being moved.
    from: HashSet<PackNo>,
    /// Packs that nothing refers to yet, and that must not be condemned for that.
    to: HashSet<PackNo>,
}

/// Bytes on their way to a new pack.
struct Job {
    to: PackNo,
    blob: BlobId,
    size: u32,
    from: Vec<PackNo>,
    moves: Vec<Move>,
    /// Pages that may refer to the old place.
    users: Vec<(Ino, u32)>,
    /// The origin has the new pack.
    stored: bool,
}

/// A new pack that is being filled.
#[derive(Default)]
struct Draft {
    bytes: Vec<u8>,
    from: Vec<PackNo>,
    moves: Vec<Move>,
    users: Vec<(Ino, u32)>,
    dead: u64,
}

/// What becomes of a pack that was chosen.
enum Taken {
    /// The pack is in the draft, or was put off.
    Next,
    /// The draft has no space for it, or the origin does not answer.
    Full,
}

impl Compaction {
    /// Records what is in use of a pack.
    pub(super) fn note(&self, pack: PackNo, row: &PackRow, live: u64) {
        self.0.lock().worth.note(pack, row, live);
    }

    /// Whether the pack was filled by compaction, and has no users because none were changed yet.
    pub(super) fn is_target(&self, pack: PackNo) -> bool {
        self.0.lock().to.contains(&pack)
    }

    fn put_off(&self, pack: PackNo, sharing: &Sharing) {
        self.0.lock().worth.put_off(pack, AGAIN * sharing.lease);
    }

    fn jobs(&self) -> usize {
        self.0.lock().jobs.len()
    }

    /// Whether nothing is being moved.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().to.is_empty()
    }
}

impl Core {
    /// Goes on with what was begun, then begins a little more. One thread at a time may do this.
    pub(super) fn compact_shared(&self, sharing: &Sharing, present: &Present) -> Result<(), Error> {
        let until = time::monotonic() + ROUND;
        self.advance_jobs(sharing, until)?;
        let written = self.counters.written_bytes.get() - self.counters.moved_bytes.get();
        let most = if self.sweep.is_write_idle(written) { JOBS } else { 1 };
        let is_gone = |node| !present.alive.iter().any(|session| session.node == node);
        let is_mine = |pack| owner(pack) == sharing.node || present.is_first && is_gone(owner(pack));
        while self.deletions.compaction.jobs() < most
            && time::monotonic() < until
            && self.begin_job(sharing, &is_mine, false)?
        {}
        Ok(())
    }

    /// Compaction on request: all that is worth it, whichever node has written it. Call it when the packs
    /// were looked at ([`Compaction::note`]).
    pub(super) fn compact_all_shared(
        &self,
        sharing: &Sharing,
        progress: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        let until = time::monotonic() + PATIENCE;
        self.deletions.compaction.0.lock().worth.try_all_now();
        while time::monotonic() < until && !self.stopping() {
            let round = self.sweep.between_rounds();
            self.advance_jobs(sharing, until)?;
            let begun =
                self.deletions.compaction.jobs() < JOBS && self.begin_job(sharing, &|_| true, true)?;
            drop(round);
            progress();
            match begun {
                true => {}
                false if self.deletions.compaction.jobs() == 0 => break,
                false => self.sweep.pause(LOOK),
            }
        }
        Ok(())
    }

    /// Copies the bytes in use of some packs into a new one. Returns whether it did. `asked`: a person waits,
    /// so it is done also if it frees little or takes leases of other nodes.
    fn begin_job(
        &self,
        sharing: &Sharing,
        is_mine: &dyn Fn(PackNo) -> bool,
        asked: bool,
    ) -> Result<bool, Error> {
        if self.stopping() || !self.has_room_to_copy() {
            return Ok(false);
        }
        let packs = {
            let state = self.deletions.compaction.0.lock();
            let is_free = |pack: PackNo| is_mine(pack) && !state.from.contains(&pack);
            let packs = state.worth.choose(CHOICE, &is_free);
            if !asked && state.worth.dead_of(&packs) < ENOUGH {
                return Ok(false);
            }
            packs
        };
        let mut draft = Draft::default();
        for pack in packs {
            match self.take_pack(sharing, &mut draft, pack, asked)? {
                Taken::Next => {}
                Taken::Full => break,
            }
        }
        if draft.from.is_empty() || !asked && draft.dead < ENOUGH {
            draft.from.iter().for_each(|pack| self.deletions.compaction.put_off(*pack, sharing));
            return Ok(false);
        }
        let from = draft.from.clone();
        let job = self.write_job(draft);
        if !matches!(job, Ok(Some(_))) {
            from.iter().for_each(|pack| self.deletions.compaction.put_off(*pack, sharing));
        }
        let Some(job) = job? else { return Ok(false) };
        let mut state = self.deletions.compaction.0.lock();
        state.from.extend(job.from.iter().copied());
        state.jobs.push(job);
        Ok(true)
    }

    /// Reads the bytes in use of a pack into the draft, unless it is better left alone for now.
    fn take_pack(
        &self,
        sharing: &Sharing,
        draft: &mut Draft,
        pack: PackNo,
        asked: bool,
    ) -> Result<Taken, Error> {
        let compaction = &self.deletions.compaction;
        let rows = self.parts.store.peek(&[Key::pack(pack), Key::pack_live(pack)])?;
        let row = rows[0].as_deref().map(PackRow::decode).transpose()?;
        let live = decode_i64(rows[1].as_deref())?.max(0).unsigned_abs();
        let Some((row, partly)) = row.and_then(|row| Some((row, Partly::of(&row, live)?))) else {
            compaction.0.lock().worth.forget(pack);
            return Ok(Taken::Next);
        };
        // What is being uploaded is not uploaded twice.
        let is_settled = matches!(row, PackRow::Sealed { blob, .. } if self.parts.origin.is_settled(&blob));
        if !is_settled {
            compaction.put_off(pack, sharing);
            return Ok(Taken::Next);
        }
        let (users, mut ranges) = self.live_ranges(pack)?;
        merge_ranges(&mut ranges);
        let len: u64 = ranges.iter().map(|(_, len)| u64::from(*len)).sum();
        if draft.bytes.len() as u64 + len > u64::from(BLOB_MAX) {
            return Ok(Taken::Full);
        }
        let waited = compaction.0.lock().worth.waited(pack);
        if !asked && waited < LATE * sharing.lease && !self.are_users_free(sharing, &users)? {
            compaction.put_off(pack, sharing);
            return Ok(Taken::Next);
        }
        match Deadline::after(READS).scope(|| self.read_ranges(pack, &ranges, len as usize)) {
            Ok(bytes) => draft.add(pack, &ranges, bytes, users, partly.dead()),
            Err(error) => {
                let is_away = matches!(&error, Error::Blob(error) if is_no_answer(error));
                self.leave_pack(sharing, pack, error)?;
                // Deletions wait for this round, so the other packs are left to the next one.
                if is_away && !asked {
                    return Ok(Taken::Full);
                }
            }
        }
        Ok(Taken::Next)
    }

    /// Whether all these pages can be changed without disturbing another node.
    fn are_users_free(&self, sharing: &Sharing, users: &[(Ino, u32)]) -> Result<bool, Error> {
        let mut inos: Vec<Ino> = users.iter().map(|(ino, _)| *ino).collect();
        inos.sort_unstable();
        inos.dedup();
        Ok(!self.parts.store.are_free(&inos, QUIET * sharing.lease)?.contains(&false))
    }

    fn read_ranges(&self, pack: PackNo, ranges: &[(u32, u32)], len: usize) -> Result<Vec<u8>, Error> {
        let (mut bytes, mut at) = (vec![0; len], 0);
        for (offset, len) in ranges {
            let end = at + *len as usize;
            self.read_pack(pack, *offset, &mut bytes[at..end])?;
            at = end;
        }
        Ok(bytes)
    }

    /// A pack could not be read. It is put off, or left alone for good if its bytes are damaged.
    fn leave_pack(&self, sharing: &Sharing, pack: PackNo, error: Error) -> Result<(), Error> {
        let compaction = &self.deletions.compaction;
        match error {
            Error::Blob(BlobError::Unavailable(_) | BlobError::Refused(_) | BlobError::Full) => {}
            // It was deleted just now.
            error if may_have_moved(&error) => {}
            Error::Blob(error) => {
                if compaction.0.lock().worth.give_up(pack) {
                    self.report(&format!("{pack:?} cannot be read, so it is not compacted; `covey fsck` says which files it holds: {error}"));
                }
                return Ok(());
            }
            error => return Err(error),
        }
        compaction.put_off(pack, sharing);
        Ok(())
    }

    /// Writes the new pack and hands it to the origin. `None`: not now.
    fn write_job(&self, draft: Draft) -> Result<Option<Job>, Error> {
        let to = match self.begin_pack() {
            Err(Error::Blob(_)) => return Ok(None),
            made => made?,
        };
        let size = draft.bytes.len() as u32;
        self.deletions.compaction.0.lock().to.insert(to);
        let sealed = self.seal_moved(to, &draft.bytes);
        if sealed.is_err() {
            // Nothing refers to it. The sealer forgets it, or finishes what was begun.
            self.packs.adopt(to, size);
        }
        let blob = sealed.and_then(|()| match self.pack_row(to)? {
            Some(PackRow::Sealed { blob, .. }) => Ok(Some(blob)),
            // Another node has condemned it.
            _ => Ok(None),
        });
        match blob {
            Ok(Some(blob)) => {
                self.counters.moved_bytes.add(u64::from(size));
                return Ok(Some(draft.job(to, blob, size)));
            }
            // An equal blob is being deleted just now, or the disk or the origin fails.
            Ok(None) | Err(Error::Refused(_) | Error::Blob(_)) => {}
            Err(error) => {
                self.deletions.compaction.0.lock().to.remove(&to);
                return Err(error);
            }
        }
        self.deletions.compaction.0.lock().to.remove(&to);
        self.deletions.touch(vec![to]);
        Ok(None)
    }

    fn seal_moved(&self, to: PackNo, bytes: &[u8]) -> Result<(), Error> {
        self.parts.packs.write_summed(to, 0, bytes)?;
        self.counters.written_bytes.add(bytes.len() as u64);
        self.seal_as_blob(to, bytes.len() as u32)
    }

    /// Goes on with what was begun.
    fn advance_jobs(&self, sharing: &Sharing, until: Instant) -> Result<(), Error> {
        let jobs = std::mem::take(&mut self.deletions.compaction.0.lock().jobs);
        let mut done = Ok(());
        for mut job in jobs {
            let is_over = if done.is_ok() { self.advance_job(&mut job, until) } else { Ok(false) };
            match is_over {
                Ok(true) => self.end_job(sharing, job),
                Ok(false) => self.deletions.compaction.0.lock().jobs.push(job),
                Err(error) => {
                    self.deletions.compaction.0.lock().jobs.push(job);
                    done = Err(error);
                }
            }
        }
        done
    }

    /// Returns whether the job is over.
    fn advance_job(&self, job: &mut Job, until: Instant) -> Result<bool, Error> {
        if !job.stored {
            match self.is_in_origin(job) {
                Some(true) => job.stored = true,
                Some(false) => {
                    self.report(&format!(
                        "the origin lost the blob {} right after it was stored; compaction leaves its files as they are",
                        job.blob
                    ));
                    return Ok(true);
                }
                None => return Ok(false),
            }
        }
        while let Some((ino, page)) = job.users.last().copied() {
            if self.stopping() || time::monotonic() > until {
                return Ok(false);
            }
            match self.run(&Op::Follow { ino, page, moves: &job.moves }) {
                // Another node has condemned the new pack.
                Err(Error::Refused(Refusal::ContentGone)) => return Ok(true),
                // Damage is for fsck.
                Ok(_) | Err(Error::Refused(_)) => _ = job.users.pop(),
                Err(error) => {
                    // The others do not wait for this one.
                    job.users.rotate_right(1);
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Whether the new pack is in the origin for good. `None`: not yet.
    fn is_in_origin(&self, job: &Job) -> Option<bool> {
        let origin = &self.parts.origin;
        if !origin.is_settled(&job.blob) || origin.sync().is_err() {
            return None;
        }
        // The pack's row still names it after that, or no page follows. So nothing has deleted it.
        let size = Deadline::after(ORIGIN).scope(|| origin.size(&job.blob)).ok()?;
        Some(size == Some(u64::from(job.size)))
    }

    fn end_job(&self, sharing: &Sharing, job: Job) {
        let mut state = self.deletions.compaction.0.lock();
        state.to.remove(&job.to);
        for pack in &job.from {
            state.from.remove(pack);
            state.worth.forget(*pack);
            // If something is left, it was written or copied meanwhile.
            state.worth.put_off(*pack, AGAIN * sharing.lease);
        }
        drop(state);
        self.deletions.touch(job.from.into_iter().chain([job.to]).collect());
    }

    /// For collection on request.
    pub(super) fn collected_so_far(&self, freed: u64, moved: u64) -> Collected {
        let freed_bytes = self.counters.freed_bytes.get() - freed;
        Collected {
            freed_bytes,
            moved_bytes: self.counters.moved_bytes.get() - moved,
            ..Collected::default()
        }
    }
}

impl Draft {
    fn add(
        &mut self,
        pack: PackNo,
        ranges: &[(u32, u32)],
        bytes: Vec<u8>,
        users: Vec<(Ino, u32)>,
        dead: u64,
    ) {
        let mut to_offset = self.bytes.len() as u32;
        for (from_offset, len) in ranges.iter().copied() {
            // The number of the new pack follows. The bytes are synced before a page names them.
            self.moves.push(Move { from: pack, from_offset, len, to: PackNo(0), to_offset, crc: None });
            to_offset += len;
        }
        self.bytes.extend(bytes);
        self.from.push(pack);
        self.users.extend(users);
        self.dead += dead;
    }

    fn job(mut self, to: PackNo, blob: BlobId, size: u32) -> Job {
        self.moves.iter_mut().for_each(|step| step.to = to);
        self.moves.sort_unstable_by_key(|step| (step.from, step.from_offset));
        // Pages of one file, and files of one folder, mostly come one after the other.
        self.users.sort_unstable();
        self.users.dedup();
        Job { to, blob, size, from: self.from, moves: self.moves, users: self.users, stored: false }
    }
}
