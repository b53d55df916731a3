//! How a read finds its bytes: on the disk, in memory, or in the origin.
//!
//! **The rule**, on a single machine and in a fleet: a read fetches the groups that it asks for and that are
//! not here. It fetches more only on evidence that they will be read ([`super::partial`]). A stream's next
//! blobs are fetched whole. If the whole is wanted and parts are here, only the rest is fetched
//! ([`super::rest`]). A whole blob goes to all waiters and then to the disk ([`super::admission`]). Parts
//! stay in memory. The tier decides where a part comes from, and whether a node must fetch the rest for
//! others. In a fleet, `fleet::node::parts` decides that.
//!
//! Each read that misses joins the node's table ([`fetch::table`]): it leads the fetch of a part or of the
//! whole, or follows one.
//!
//! The folder verifies bytes from the disk. The code that fetches from the origin verifies the bytes against
//! the blob's name, and the table verifies them against their sums ([`fetch::check`]). So the cache writes
//! nothing to the disk that it could not read back.

use std::fs;
use std::io;
use std::sync::Arc;

use base::BlobId;
use base::phase::{self, Phase};
use base::size::{BLOB_MAX, GROUP, MIB};
use blob::folder::past_end;
use blob::{Access, BlobError, Buffer, Part, Sums};
use fetch::{Ended, InFlight, Join, PartLead, Purpose, Waiter, WholeLead};

use super::memory;
use super::partial::{Fetch, Need};
use super::pool::Hint;
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
pub(super) struct Range {
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// Parts of a blob that overlap a range.
pub(super) struct Parts {
    pub(super) parts: Vec<Arc<Part>>,
    /// Whether some of them had to be fetched.
    fetched: bool,
}

/// How a read gets bytes that are neither on the disk nor in memory.
pub(super) enum Step {
    /// The whole blob should be fetched, or is in flight.
    Whole,
    /// A part with them has just arrived.
    Here(Arc<Part>),
    /// The bytes are in flight.
    Follow(Arc<InFlight>),
    /// The read itself fetches the bytes, from the beginning of a group to this offset.
    Lead(PartLead, u32),
}

impl Step {
    /// Completes the waiter early, if the fetch brings all of its range.
    fn notify(&self, waiter: &Arc<Waiter>) {
        let fetch = match self {
            Step::Lead(lead, _) => lead.fetch(),
            Step::Follow(fetch) => fetch,
            Step::Whole | Step::Here(_) => return,
        };
        if fetch.covers(&waiter.range()) {
            fetch.notify_of_bytes(waiter);
        }
    }
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
        let here = self.here(id, || self.disk_store.read_at(id, offset, buf))?;
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
        match self.parts(id, range, access, None)? {
            Some(Parts { parts, fetched: false }) => {
                memory::gather(id, &parts, offset, buf)?;
                self.counters.memory_reads.add(1);
                self.counters.memory_bytes.add(buf.len() as u64);
                return Ok(());
            }
            Some(Parts { parts, .. }) => memory::gather(id, &parts, offset, buf)?,
            None => self.read_whole(id, offset, buf)?,
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
        if self.ledger.touch(id) {
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
        let known = self.ledger.touch(id);
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
        if let Err(error) = self.disk_store.remove(id) {
            self.health.failed(&error);
        }
        self.ledger.remove(id);
        self.evicted(id);
    }

    /// Forgets a blob that should be on the disk but is not.
    pub(super) fn forget_if_lost(&self, id: &BlobId) {
        let _turn = self.turn(id);
        if matches!(self.disk_store.size(id), Ok(None)) {
            self.ledger.remove(id);
            self.evicted(id);
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
        self.disk_store.adopt(id, &sums, &file)?;
        self.ledger.insert(id, sums.size(), true);
        Ok(())
    }

    /// The parts that overlap a range, from memory and the origin. `None` if the whole blob should be
    /// fetched. `waiter` is completed as soon as a fetch of all of its range has it.
    pub(super) fn parts(
        self: &Arc<Core>,
        id: &BlobId,
        range: Range,
        access: Access,
        waiter: Option<&Arc<Waiter>>,
    ) -> Result<Option<Parts>, BlobError> {
        // A foreign blob is small, and its store gives no sums of a part. Fetched whole, it is fetched once.
        if id.is_foreign() {
            return Ok(None);
        }
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
            let step = self.step(id, &Need { from, to, access }, end);
            waiter.iter().for_each(|waiter| step.notify(waiter));
            match self.take(id, from, step) {
                Some(Ok(part)) => got.parts.push(part),
                // The source says that there is no such range. The size from an earlier part says otherwise.
                Some(Err(Ended::Failed(error)))
                    if is_no_range(&error)
                        && self.partial.lock().size(id).is_some_and(|size| end <= size) =>
                {
                    self.forget_parts(id);
                    return Ok(None);
                }
                Some(Err(Ended::Failed(error))) => return Err(error),
                // The next step begins it again.
                Some(Err(Ended::GivenUp)) => last = None,
                None => return Ok(None),
            }
            got.fetched = true;
        }
        let sizes = || got.parts.iter().map(|part| part.sums.size());
        if sizes().min() != sizes().max() {
            // A source gave a wrong size with its part. The whole blob tells.
            self.forget_parts(id);
            return Ok(None);
        }
        self.partial.lock().reads(id, range.offset, end);
        Ok(Some(got))
    }

    /// How to get a part of a blob that begins with these groups, for a read that ends at `end`.
    pub(super) fn step(&self, id: &BlobId, need: &Need, end: u32) -> Step {
        let Need { from, to, .. } = *need;
        let mut partial = self.partial.lock();
        if self.table.whole(id).is_some() || self.pool.has_hint(&Hint::Whole(*id)) {
            return Step::Whole;
        }
        if let Some(fetch) = self.table.part(id, from / GROUP) {
            partial.reads(id, from, to);
            return Step::Follow(fetch);
        }
        // It may have arrived since the look into memory.
        if let Some(part) = self.memory.lock().pieces(id, from, 1).pop() {
            return Step::Here(part);
        }
        let Fetch::Part(from, to) = partial.plan(id, need, self.counters.totals()) else {
            return Step::Whole;
        };
        match self.table.join_part(id, from / GROUP..to / GROUP) {
            Join::Leader(lead) => {
                partial.fetches(id, from, lead.end());
                // Before the part arrives: a later or concurrent read then counts as sequential.
                partial.reads(id, from, need.to);
                // If the blob's size is unknown, the fetch must not extend past the read.
                let to = lead.end().min(partial.size(id).unwrap_or(end).max(end));
                Step::Lead(lead, to)
            }
            Join::Follower(whole) if whole.is_whole() => Step::Whole,
            Join::Follower(part) => Step::Follow(part),
        }
    }

    /// Gets the part that begins at `from`. `None` if the whole blob should be fetched.
    fn take(self: &Arc<Core>, id: &BlobId, from: u32, step: Step) -> Option<Result<Arc<Part>, Ended>> {
        match step {
            Step::Whole => None,
            Step::Here(part) => Some(Ok(part)),
            Step::Lead(lead, to) => Some(self.fetch_range(id, from, to, lead).map_err(Ended::Failed)),
            Step::Follow(fetch) => {
                self.counters.shared_fetches.add(1);
                // If the range of the read that fetches it was invalid, this says nothing about this one.
                Some(fetch.wait())
                    .filter(|got| !matches!(got, Err(Ended::Failed(error)) if is_no_range(error)))
            }
        }
    }

    /// Fetches the part from `from` to `to`, as its leader.
    fn fetch_range(
        self: &Arc<Core>,
        id: &BlobId,
        from: u32,
        to: u32,
        mut lead: PartLead,
    ) -> Result<Arc<Part>, BlobError> {
        let len = to - from;
        if let Err(error) = lead.reserve(u64::from(len.next_multiple_of(GROUP))) {
            // Only this reader's time is over. Another one that waits for these bytes leads from here.
            self.counters.failed_fetches.add(1);
            return Err(error);
        }
        self.counters.part_fetches.add(1);
        let fetched = self.tier.part(&lead, from, len);
        self.refused.came(Asked::Reads, &self.health, &fetched);
        self.count_fetched(&fetched);
        let keep = |part: &Arc<Part>| {
            self.partial.lock().came(id, part.sums.size());
            let gone = self.memory.lock().keep(id, Arc::clone(part));
            drop(gone);
        };
        match lead.finish(fetched, keep) {
            Ok(part) => Ok(part),
            Err(error) => {
                if matches!(error, BlobError::Damaged { .. } | BlobError::Missing(_)) {
                    self.pending.doubt(id);
                }
                self.counters.failed_fetches.add(1);
                Err(error)
            }
        }
    }

    /// Reads a range of a blob that is fetched whole. Does not wait for the rest if others fetch it.
    fn read_whole(self: &Arc<Core>, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        loop {
            match self.table.join_whole(id, Purpose::Read) {
                Join::Leader(lead) => {
                    let whole = self.lead_whole(lead)?;
                    return memory::copy(id, &whole, offset, buf)?.ok_or_else(|| not_whole(id));
                }
                Join::Follower(fetch) => {
                    self.counters.shared_fetches.add(1);
                    match fetch.read(offset, buf) {
                        Ok(()) => return Ok(()),
                        Err(Ended::Failed(error)) => return Err(error),
                        Err(Ended::GivenUp) => {}
                    }
                }
            }
        }
    }

    /// Fetches a whole remote blob.
    pub(super) fn whole(self: &Arc<Core>, id: &BlobId, purpose: Purpose) -> Result<Arc<Part>, BlobError> {
        loop {
            match self.table.join_whole(id, purpose) {
                Join::Leader(lead) => return self.lead_whole(lead),
                Join::Follower(fetch) => {
                    self.counters.shared_fetches.add(1);
                    match fetch.wait() {
                        Ok(part) => return Ok(part),
                        Err(Ended::Failed(error)) => return Err(error),
                        Err(Ended::GivenUp) => {}
                    }
                }
            }
        }
    }

    /// Fetches a whole remote blob, as the leader.
    pub(super) fn lead_whole(self: &Arc<Core>, mut lead: WholeLead) -> Result<Arc<Part>, BlobError> {
        let id = *lead.id();
        // It may have arrived on the disk since the last look.
        if let Ok(Some((sums, bytes))) = self.whole_here(&id) {
            let part = Arc::new(Part { sums, offset: 0, bytes });
            lead.found(&part);
            return Ok(part);
        }
        let parts = self.parts_here(&id);
        // Missing bytes are in memory twice while they are copied into place.
        let twice = if parts.is_empty() { 0 } else { u64::from(BLOB_MAX).saturating_sub(bytes_of(&parts)) };
        // If this reader's time is over, another one that waits for the blob leads from here.
        lead.reserve(u64::from(BLOB_MAX) + twice)?;
        self.counters.whole_fetches.add(1);
        let completed = self.complete(&lead, &parts);
        drop(parts);
        if let Some(result) = completed {
            return lead.finish(result);
        }
        let fetched = self.tier.whole(&lead).map(|(sums, bytes)| Part { sums, offset: 0, bytes });
        self.count_fetched(&fetched);
        lead.finish(fetched)
    }

    fn count_fetched(&self, fetched: &Result<Part, BlobError>) {
        self.counters.fetched_bytes.add(fetched.as_ref().map_or(0, |part| part.bytes.len() as u64));
    }

    /// Verifies fetched bytes against their sums.
    pub(super) fn arrived(&self, id: &BlobId, part: Part) -> Result<Arc<Part>, BlobError> {
        fetch::check(id, &part)?;
        self.counters.fetched_bytes.add(part.bytes.len() as u64);
        Ok(Arc::new(part))
    }

    /// The whole blob from the disk, if it is there.
    fn whole_here(self: &Arc<Core>, id: &BlobId) -> Result<Option<(Sums, Buffer)>, BlobError> {
        let read = || {
            let sums = self.disk_store.sums(id)?;
            let mut bytes = Buffer::with_len(sums.size() as usize);
            self.disk_store.read_at(id, 0, &mut bytes)?;
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
        let whole = held.map_or_else(|| self.whole(id, Purpose::Read), Ok)?;
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
            && let Some(Parts { parts, .. }) = self.parts(id, Range { offset, len }, Access::Normal, None)?
        {
            return match parts.iter().find(|part| covers(part)) {
                Some(part) => Ok(copy(part)),
                None => memory::joined(id, &parts, offset, len)?.ok_or_else(|| not_whole(id)),
            };
        }
        let whole = self.whole(id, Purpose::Read)?;
        if covers(&whole) { Ok(copy(&whole)) } else { Err(past_end(id, whole.sums.size())) }
    }

    /// Whether the whole blob is on this machine. A part in memory does not count: the next read may want
    /// another part.
    pub(super) fn is_local(&self, id: &BlobId) -> bool {
        self.is_on_disk(id) || self.memory.lock().has_whole(id)
    }

    fn is_on_disk(&self, id: &BlobId) -> bool {
        let known = self.ledger.contains(id) || !self.is_compared() && self.disk_store.is_local(id);
        known && self.health.may_read() || self.pending.is_pending(id)
    }

    pub(super) fn will_need(self: &Arc<Core>, id: &BlobId) {
        if self.is_on_disk(id) {
            self.disk_store.will_need(id);
        } else if !self.memory.lock().has_whole(id)
            && self.table.whole(id).is_none()
            && !(self.has_room_ahead() && self.pool.hint(self, Hint::Whole(*id)))
        {
            self.counters.hints_dropped.add(1);
        }
    }

    /// Whether a prefetched blob has a place to stay: the disk, or memory while caching on disk is off.
    fn has_room_ahead(&self) -> bool {
        let expected = (self.pool.hints() + 1) * BLOB_MAX as usize;
        !self.health.is_off() || self.memory.lock().has_room_ahead(expected)
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
            Hint::Whole(id) if !self.is_local(&id) && self.table.whole(&id).is_none() => {
                let _ = self.whole(&id, Purpose::Prefetch);
            }
            // If the whole blob should be fetched, the read itself does that.
            Hint::Part(id, offset, len) if !self.is_local(&id) => {
                let _ = self.parts(&id, Range { offset, len }, Access::Random, None);
            }
            _ => {}
        }
    }

    pub(super) fn warm(self: &Arc<Core>, id: &BlobId) -> Result<Warmed, BlobError> {
        if self.is_local(id) {
            return Ok(Warmed::Here);
        }
        self.whole(id, Purpose::Read).map(|part| Warmed::Fetched(u64::from(part.sums.size())))
    }
}

/// Whether the blob has no such range, in its source's opinion.
pub(super) fn is_no_range(error: &BlobError) -> bool {
    matches!(error, BlobError::Io(error) if error.kind() == io::ErrorKind::InvalidInput)
}

fn bytes_of(parts: &[Arc<Part>]) -> u64 {
    parts.iter().map(|part| part.bytes.len() as u64).sum()
}

pub(super) fn not_whole(id: &BlobId) -> BlobError {
    BlobError::Damaged { id: *id, what: "the origin gave a part of it only".to_owned() }
}
