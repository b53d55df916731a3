//! How a read finds its bytes: on the disk, in memory, or in the origin.
//!
//! **The rule**, on a single machine and in a fleet: a read fetches the groups that it asks for and that are
//! not here. It fetches more only on evidence that they will be read ([`super::partial`]). A stream's next
//! blobs are fetched whole. If the whole is wanted and parts are here, only the rest is fetched
//! ([`super::rest`]). A whole blob goes to all waiters and then to the disk. Parts stay in memory. The origin
//! decides where a part comes from, and whether a node must fetch the rest for others. In a fleet,
//! `fleet::node::parts` decides that.
//!
//! The folder verifies bytes from the disk. The code that fetches from the origin verifies the bytes against
//! the blob's name, and this module verifies them against their sums. So the cache writes nothing to the disk
//! that it could not read back.

use std::fs;
use std::io;
use std::sync::Arc;

use base::BlobId;
use base::phase::{self, Phase};
use base::size::{BLOB_MAX, GROUP, MIB};
use blob::folder::past_end;
use blob::{Access, BlobError, Buffer, Part, Sums};

use super::flights::{Flight, Outcome, Pilot, Seat, same};
use super::memory::{self, is_whole};
use super::partial::{Fetch, Need};
use super::pool::{Hint, Job, Landed};
use super::refused::Asked;
use super::{Core, Warmed};

/// Ranges up to this many bytes are prefetched as a part of a blob.
const PART: u32 = MIB as u32;

/// The result of trying the disk.
pub(super) enum Here<T> {
    Done(T),
    /// The disk cannot serve it, so another copy is needed.
    Elsewhere,
}

/// A range of a blob that is read.
#[derive(Clone, Copy)]
struct Range {
    offset: u32,
    len: u32,
}

/// Parts of a blob that overlap a range.
struct Parts {
    parts: Vec<Arc<Part>>,
    /// Whether some of them had to be fetched.
    fetched: bool,
}

impl Core {
    pub(super) fn read(
        self: &Arc<Core>,
        id: &BlobId,
        offset: u32,
        buf: &mut [u8],
        access: Access,
    ) -> Result<(), BlobError> {
        if self.pass(id, offset, buf)? {
            return Ok(());
        }
        let here = self.here(id, || self.shelf.read_at(id, offset, buf))?;
        if let Here::Done(()) = here {
            self.counters.disk_reads.add(1);
            self.counters.disk_bytes.add(buf.len() as u64);
            return Ok(());
        }
        let _phase = phase::enter(Phase::Origin);
        self.is_wanted(id)?;
        if buf.is_empty() {
            return self.read_nothing(id, offset);
        }
        let range = Range { offset, len: buf.len() as u32 };
        match self.parts(id, range, access)? {
            Some(Parts { parts, fetched: false }) => {
                memory::gather(id, &parts, offset, buf)?;
                self.counters.memory_reads.add(1);
                self.counters.memory_bytes.add(buf.len() as u64);
                return Ok(());
            }
            Some(Parts { parts, .. }) => memory::gather(id, &parts, offset, buf)?,
            None => {
                let whole = self.whole(id, false)?;
                memory::copy(id, &whole, offset, buf)?.ok_or_else(|| not_whole(id))?;
            }
        }
        self.counters.far_reads.add(1);
        self.counters.far_bytes.add(buf.len() as u64);
        Ok(())
    }

    /// Reads a prefetched blob from memory, even if it is on the disk by now. Drops it from memory once all
    /// of it was read: a stream does not return to it.
    fn pass(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<bool, BlobError> {
        let Some(part) = self.memory.lock().pass(id, buf.len()) else { return Ok(false) };
        if self.removals.has(id) || memory::copy(id, &part, offset, buf)?.is_none() {
            return Ok(false);
        }
        self.counters.memory_reads.add(1);
        self.counters.memory_bytes.add(buf.len() as u64);
        if self.books.touch(id) {
            let gone = self.memory.lock().forget_passed(id);
            drop(part);
            drop(gone);
        }
        Ok(true)
    }

    fn read_nothing(&self, id: &BlobId, offset: u32) -> Result<(), BlobError> {
        match self.remote.size(id)? {
            None => Err(BlobError::Missing(*id)),
            Some(size) if u64::from(offset) > size => Err(past_end(id, size as u32)),
            Some(_) => Ok(()),
        }
    }

    /// Fails for a blob that is to be deleted: the origin may still have it.
    fn is_wanted(&self, id: &BlobId) -> Result<(), BlobError> {
        if self.removals.has(id) { Err(BlobError::Missing(*id)) } else { Ok(()) }
    }

    /// Tries the disk, if the blob may be there. If the blob is pending and cannot be read, that is an error:
    /// no other copy exists.
    pub(super) fn here<T>(
        self: &Arc<Core>,
        id: &BlobId,
        mut look: impl FnMut() -> Result<T, BlobError>,
    ) -> Result<Here<T>, BlobError> {
        let known = self.books.touch(id);
        let readable = self.health.may_read() && (known || !self.is_compared());
        if !readable && !self.pending.is_pending(id) {
            return Ok(Here::Elsewhere);
        }
        let _phase = phase::enter(Phase::Cache);
        let error = match look() {
            Ok(found) => return Ok(Here::Done(found)),
            Err(error) => error,
        };
        match &error {
            BlobError::Io(io) if io.kind() == io::ErrorKind::InvalidInput => return Err(error),
            BlobError::Missing(_) if !self.pending.is_pending(id) => self.forget_if_lost(id),
            BlobError::Missing(_) => {
                if self.link_again(id).is_ok() {
                    return look().map(Here::Done);
                }
                return Err(error);
            }
            _ if self.pending.is_pending(id) => {
                self.counters.damaged.add(1);
                self.tell(id, || format!("a blob that the origin does not have yet cannot be read from this node's disk, and there is no other copy: {error}; covey fsck names the files that lose it"));
                return Err(error);
            }
            BlobError::Damaged { .. } => self.drop_copy(id),
            BlobError::Io(io) if io.raw_os_error() == Some(libc::EIO) => self.drop_copy(id),
            _ => {}
        }
        Ok(Here::Elsewhere)
    }

    /// Drops an unusable copy. Another one is fetched.
    pub(super) fn drop_copy(&self, id: &BlobId) {
        let _turn = self.turn(id);
        if self.pending.is_pending(id) {
            return;
        }
        self.counters.damaged.add(1);
        if let Err(error) = self.shelf.remove(id) {
            self.health.failed(&error);
        }
        self.books.remove(id);
        self.went(id);
    }

    /// Forgets a blob that should be on the disk but is not.
    pub(super) fn forget_if_lost(&self, id: &BlobId) {
        let _turn = self.turn(id);
        if matches!(self.shelf.size(id), Ok(None)) {
            self.books.remove(id);
            self.went(id);
        }
    }

    /// Links a pending blob's file into the folder again, after a power cut took its name there.
    fn link_again(&self, id: &BlobId) -> Result<(), BlobError> {
        let _turn = self.turn(id);
        let file = self.pending.file(id).ok_or(BlobError::Missing(*id))?;
        let bytes = fs::read(&file)?;
        if bytes.len() as u64 > u64::from(BLOB_MAX) {
            return Err(BlobError::Missing(*id));
        }
        let sums = Sums::of(&bytes);
        self.shelf.adopt(id, &sums, &file)?;
        self.books.insert(id, sums.size(), true);
        Ok(())
    }

    /// The parts that overlap a range, from memory and the origin. `None` if the whole blob should be
    /// fetched.
    fn parts(
        self: &Arc<Core>,
        id: &BlobId,
        range: Range,
        access: Access,
    ) -> Result<Option<Parts>, BlobError> {
        let Some(end) = range.offset.checked_add(range.len).filter(|end| *end <= BLOB_MAX) else {
            return Ok(None);
        };
        let pieces = self.memory.lock().pieces(id, range.offset, range.len as usize);
        let mut got = Parts { parts: pieces, fetched: false };
        let mut last = None;
        while let Some((from, to)) = memory::missing(&got.parts, range.offset, end) {
            // A fetched part begins with the missing bytes, so each step makes progress.
            if last.replace(from) == Some(from) {
                return Ok(None);
            }
            match self.part(id, (from, to), end, access) {
                Some(part) => got.parts.push(part?),
                None => return Ok(None),
            }
            got.fetched = true;
        }
        self.partial.lock().reads(id, range.offset, end);
        Ok(Some(got))
    }

    /// A part of a blob that begins with these groups, for a read that ends at `end`. `None` if the whole
    /// blob should be fetched.
    fn part(
        self: &Arc<Core>,
        id: &BlobId,
        (from, to): (u32, u32),
        end: u32,
        access: Access,
    ) -> Option<Outcome> {
        let (pilot, size) = {
            let mut partial = self.partial.lock();
            if self.flights.find(&(*id, None)).is_some() || self.pool.has_hint(&Hint::Whole(*id)) {
                return None;
            }
            if let Some(flight) = self.flights.find(&(*id, Some(from / GROUP))) {
                partial.reads(id, from, to);
                drop(partial);
                return self.join(&flight);
            }
            // It may have arrived since the look into memory.
            if let Some(part) = self.memory.lock().pieces(id, from, 1).pop() {
                return Some(Ok(part));
            }
            let need = Need { from, to, access };
            let Fetch::Part(from, to) = partial.plan(id, &need, self.counters.totals()) else { return None };
            match self.flights.board_part(id, from / GROUP..to / GROUP) {
                Seat::Pilot(pilot) => {
                    let until = pilot.groups().map_or(to, |groups| groups.end * GROUP);
                    partial.fetches(id, from, until);
                    // Before the part arrives: a later or concurrent read then counts as sequential.
                    partial.reads(id, from, need.to);
                    (pilot, partial.size(id))
                }
                Seat::Passenger(flight) => {
                    drop(partial);
                    return self.join(&flight);
                }
            }
        };
        let to = pilot.groups().map_or(to, |groups| groups.end * GROUP);
        // If the blob's size is unknown, the fetch must not extend past the read.
        let to = to.min(size.unwrap_or(end).max(end));
        Some(self.fetch_range(id, (from, to), pilot))
    }

    fn fetch_range(self: &Arc<Core>, id: &BlobId, (from, to): (u32, u32), mut pilot: Pilot) -> Outcome {
        let len = to - from;
        let mut permit = self.room.take(u64::from(len.next_multiple_of(GROUP)), false);
        self.counters.part_fetches.add(1);
        let fetched = self.remote.fetch_part(id, from, len);
        self.refused.came(Asked::Reads, &self.health, &fetched);
        let fetched = fetched.and_then(|part| self.arrived(id, part));
        let part = match fetched {
            Ok(part) => part,
            Err(error) => {
                if matches!(error, BlobError::Damaged { .. } | BlobError::Missing(_)) {
                    self.pending.doubt(id);
                }
                self.counters.failed_fetches.add(1);
                pilot.land(Err(same(&error)));
                return Err(error);
            }
        };
        permit.shrink(part.bytes.len() as u64);
        self.partial.lock().came(id, part.sums.size());
        let landed = Arc::clone(&part);
        if is_whole(&part) {
            pilot.land(Ok(Arc::clone(&part)));
            self.put_away(Landed { id: *id, part: landed, ahead: false, _pilot: pilot, _permit: permit });
        } else {
            let gone = self.memory.lock().keep(id, landed);
            drop(gone);
            pilot.land(Ok(Arc::clone(&part)));
        }
        Ok(part)
    }

    /// Waits for a part that another read fetches. If that read's range was invalid, this says nothing about
    /// this one.
    fn join(&self, flight: &Flight) -> Option<Outcome> {
        self.counters.shared_fetches.add(1);
        let none = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
        Some(flight.wait()).filter(|got| !matches!(got, Err(BlobError::Io(error)) if none(error)))
    }

    /// Fetches a whole remote blob. `hint` says that no reader waits for it yet.
    pub(super) fn whole(self: &Arc<Core>, id: &BlobId, hint: bool) -> Outcome {
        let mut pilot = match self.flights.board((*id, None)) {
            Seat::Pilot(pilot) => pilot,
            Seat::Passenger(flight) => {
                self.counters.shared_fetches.add(1);
                return flight.wait();
            }
        };
        // It may have arrived on the disk since the last look.
        if let Ok(Some((sums, bytes))) = self.whole_here(id) {
            let part = Arc::new(Part { sums, offset: 0, bytes });
            pilot.land(Ok(Arc::clone(&part)));
            return Ok(part);
        }
        let parts = self.parts_here(id);
        // Missing bytes are in memory twice while they are copied into place.
        let twice = if parts.is_empty() { 0 } else { u64::from(BLOB_MAX).saturating_sub(bytes_of(&parts)) };
        let mut permit = self.room.take(u64::from(BLOB_MAX) + twice, hint);
        self.counters.whole_fetches.add(1);
        let completed = self.complete(id, &parts);
        drop(parts);
        match completed.unwrap_or_else(|| self.fetch_whole(id)) {
            Ok(part) if is_whole(&part) => {
                permit.shrink(part.bytes.len() as u64);
                pilot.land(Ok(Arc::clone(&part)));
                if hint {
                    let gone = self.memory.lock().keep_passed(id, Arc::clone(&part), pilot.given());
                    drop(gone);
                }
                let landed = Arc::clone(&part);
                self.put_away(Landed { id: *id, part: landed, ahead: hint, _pilot: pilot, _permit: permit });
                Ok(part)
            }
            other => {
                let error = other.err().unwrap_or_else(|| not_whole(id));
                if matches!(error, BlobError::Damaged { .. } | BlobError::Missing(_)) {
                    self.pending.doubt(id);
                }
                self.counters.failed_fetches.add(1);
                pilot.land(Err(same(&error)));
                Err(error)
            }
        }
    }

    fn fetch_whole(&self, id: &BlobId) -> Outcome {
        let fetched = self.remote.fetch(id);
        self.refused.came(Asked::Reads, &self.health, &fetched);
        fetched.and_then(|(sums, bytes)| self.arrived(id, Part { sums, offset: 0, bytes }))
    }

    /// Verifies fetched bytes against their sums.
    pub(super) fn arrived(&self, id: &BlobId, part: Part) -> Result<Arc<Part>, BlobError> {
        let damaged = |what: String| BlobError::Damaged { id: *id, what };
        if part.sums.id() != *id {
            return Err(damaged(format!("the origin gave the blob {} for it", part.sums.id())));
        }
        if part.bytes.is_empty() {
            if part.sums.size() > 0 {
                return Err(damaged("the origin gave no bytes of it".to_owned()));
            }
        } else {
            part.sums.check(part.offset, &part.bytes).map_err(|mismatch| damaged(mismatch.to_string()))?;
        }
        self.counters.fetched_bytes.add(part.bytes.len() as u64);
        Ok(Arc::new(part))
    }

    fn put_away(self: &Arc<Core>, landed: Landed) {
        if let Err(Job::Keep(landed)) = self.pool.push(self, Job::Keep(Box::new(landed))) {
            self.keep(&landed);
        }
    }

    /// The whole blob from the disk, if it is there.
    fn whole_here(self: &Arc<Core>, id: &BlobId) -> Result<Option<(Sums, Buffer)>, BlobError> {
        let read = || {
            let sums = self.shelf.sums(id)?;
            let mut bytes = Buffer::with_len(sums.size() as usize);
            self.shelf.read_at(id, 0, &mut bytes)?;
            Ok((sums, bytes))
        };
        Ok(match self.here(id, read)? {
            Here::Done(found) => Some(found),
            Here::Elsewhere => None,
        })
    }

    pub(super) fn fetch(self: &Arc<Core>, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        if let Some(here) = self.whole_here(id)? {
            self.counters.disk_reads.add(1);
            self.counters.disk_bytes.add(here.1.len() as u64);
            return Ok(here);
        }
        let _phase = phase::enter(Phase::Origin);
        self.is_wanted(id)?;
        let held = self.memory.lock().whole(id);
        let whole = held.map_or_else(|| self.whole(id, false), Ok)?;
        Ok((whole.sums.clone(), whole.bytes.clone()))
    }

    pub(super) fn fetch_part(
        self: &Arc<Core>,
        id: &BlobId,
        offset: u32,
        len: u32,
    ) -> Result<Part, BlobError> {
        let covers = |part: &Part| {
            let end = u64::from(part.offset) + part.bytes.len() as u64;
            part.offset <= offset && u64::from(offset) + u64::from(len) <= end
        };
        let copy =
            |part: &Part| Part { sums: part.sums.clone(), offset: part.offset, bytes: part.bytes.clone() };
        if let Some((sums, bytes)) = self.whole_here(id)? {
            if u64::from(offset) + u64::from(len) > u64::from(sums.size()) {
                return Err(past_end(id, sums.size()));
            }
            return Ok(Part { sums, offset: 0, bytes });
        }
        let _phase = phase::enter(Phase::Origin);
        self.is_wanted(id)?;
        if len > 0
            && let Some(Parts { parts, .. }) = self.parts(id, Range { offset, len }, Access::Normal)?
        {
            return match parts.iter().find(|part| covers(part)) {
                Some(part) => Ok(copy(part)),
                None => memory::joined(id, &parts, offset, len)?.ok_or_else(|| not_whole(id)),
            };
        }
        let whole = self.whole(id, false)?;
        if covers(&whole) { Ok(copy(&whole)) } else { Err(past_end(id, whole.sums.size())) }
    }

    /// Whether the whole blob is on this machine. A part in memory does not count: the next read may want
    /// another part.
    pub(super) fn is_local(&self, id: &BlobId) -> bool {
        self.is_on_disk(id) || self.memory.lock().has_whole(id)
    }

    fn is_on_disk(&self, id: &BlobId) -> bool {
        let known = self.books.contains(id) || !self.is_compared() && self.shelf.is_local(id);
        known && self.health.may_read() || self.pending.is_pending(id)
    }

    pub(super) fn will_need(self: &Arc<Core>, id: &BlobId) {
        if self.is_on_disk(id) {
            self.shelf.will_need(id);
        } else if !self.memory.lock().has_whole(id)
            && self.flights.find(&(*id, None)).is_none()
            && !(self.has_room_ahead() && self.pool.hint(self, Hint::Whole(*id)))
        {
            self.counters.hints_dropped.add(1);
        }
    }

    /// Whether a prefetched blob has a place to stay: the disk, or memory while caching on disk is off.
    fn has_room_ahead(&self) -> bool {
        let coming = (self.pool.hints() + 1) * BLOB_MAX as usize;
        !self.health.is_off() || self.memory.lock().has_room_ahead(coming)
    }

    /// As [`Core::will_need`], for a range that is read as a part.
    pub(super) fn will_need_part(self: &Arc<Core>, id: &BlobId, offset: u32, len: u32) {
        let is_part = (1..=PART).contains(&len);
        if is_part && !self.is_local(id) && !self.pool.hint(self, Hint::Part(*id, offset, len)) {
            self.counters.hints_dropped.add(1);
        }
    }

    /// Executes a hint. Errors are ignored, because the reader will make the request itself and get the
    /// error.
    pub(super) fn follow(self: &Arc<Core>, hint: Hint) {
        match hint {
            Hint::Whole(id) if !self.is_local(&id) && self.flights.find(&(id, None)).is_none() => {
                let _ = self.whole(&id, true);
            }
            // If the whole blob should be fetched, the read itself does that.
            Hint::Part(id, offset, len) if !self.is_local(&id) => {
                let _ = self.parts(&id, Range { offset, len }, Access::Random);
            }
            _ => {}
        }
    }

    pub(super) fn warm(self: &Arc<Core>, id: &BlobId) -> Result<Warmed, BlobError> {
        if self.is_local(id) {
            return Ok(Warmed::Here);
        }
        self.whole(id, false).map(|part| Warmed::Fetched(u64::from(part.sums.size())))
    }
}

fn bytes_of(parts: &[Arc<Part>]) -> u64 {
    parts.iter().map(|part| part.bytes.len() as u64).sum()
}

fn not_whole(id: &BlobId) -> BlobError {
    BlobError::Damaged { id: *id, what: "the origin gave a part of it only".to_owned() }
}
