//! Reads that do not wait on the thread that begins them.
//!
//! A read whose bytes are in flight registers a waiter with the fetch, and holds no thread. A read that has
//! to begin a fetch gets a task, which a thread that may wait runs. The task fetches like any read of
//! [`super::read`], and its waiter is completed by whatever has the bytes first: in a fleet, the loop that
//! receives them.

use std::ops::Range;
use std::sync::Arc;

use base::BlobId;
use base::phase::{self, Phase};
use base::size::BLOB_MAX;
use blob::completion::{Arrival, Completion, Missed, Start};
use blob::{Access, BlobError, Buffer, Part};
use fetch::{Ended, InFlight, Join, Purpose, Waiter};

use super::Core;
use super::memory;
use super::read::{self, Parts};

impl Core {
    /// See [`blob::BlobSource::start_read`].
    pub(super) fn start_read(
        self: &Arc<Core>,
        id: &BlobId,
        range: Range<u32>,
        access: Access,
        completion: Completion,
    ) -> Start {
        if range.is_empty() || range.end > BLOB_MAX || self.is_local(id) || self.removals.has(id) {
            return Start::Read;
        }
        let Some(completion) = self.give_from_memory(id, &range, completion) else { return Start::Pending };
        let waiter = Waiter::new(range.clone(), self.counted(completion));
        if let Some(fetch) = self.in_flight(id, &range) {
            self.counters.shared_fetches.add(1);
            fetch.notify(&waiter);
            return Start::Pending;
        }
        let (core, id) = (Arc::clone(self), *id);
        Start::Lead(Box::new(move || core.lead_read(&id, access, &waiter)))
    }

    /// Calls the completion if the parts in memory have all of the range. Otherwise returns it.
    fn give_from_memory(
        &self,
        id: &BlobId,
        range: &Range<u32>,
        completion: Completion,
    ) -> Option<Completion> {
        let parts = self.memory.lock().pieces(id, range.start, range.len());
        if parts.is_empty() || memory::missing(&parts, range.start, range.end).is_some() {
            return Some(completion);
        }
        let mut bytes = Buffer::with_len(range.len());
        if memory::gather(id, &parts, range.start, &mut bytes).is_err() {
            // There is no such range. The task finds that out, and says it.
            return Some(completion);
        }
        self.partial.lock().reads(id, range.start, range.end);
        if completion(Ok(&bytes)) {
            self.counters.memory_reads.add(1);
            self.counters.memory_bytes.add(bytes.len() as u64);
        }
        None
    }

    /// A fetch that will bring all of the range.
    fn in_flight(&self, id: &BlobId, range: &Range<u32>) -> Option<Arc<InFlight>> {
        if let Some(whole) = self.table.whole(id) {
            return Some(whole);
        }
        let part = self.table.part(id, range.start / base::size::GROUP)?;
        let part = Some(part).filter(|part| part.covers(range))?;
        // A later read then counts as sequential.
        self.partial.lock().reads(id, range.start, range.end);
        Some(part)
    }

    /// The completion, which also counts what it takes.
    fn counted(self: &Arc<Core>, completion: Completion) -> Completion {
        let core = Arc::clone(self);
        Box::new(move |arrival: Arrival<'_>| {
            let bytes = arrival.as_ref().map_or(0, |bytes| bytes.len());
            let used = completion(arrival);
            if used && bytes > 0 {
                core.counters.far_reads.add(1);
                core.counters.far_bytes.add(bytes as u64);
            }
            used
        })
    }

    /// Fetches the waiter's range and completes it. False: it is to be read, and the waiter is not completed.
    fn lead_read(self: &Arc<Core>, id: &BlobId, access: Access, waiter: &Arc<Waiter>) -> bool {
        if self.is_local(id) {
            return false;
        }
        let _phase = phase::enter(Phase::Origin);
        let Range { start: offset, end } = waiter.range();
        let range = read::Range { offset, len: end - offset };
        let fetched = match self.parts(id, range, access, Some(waiter)) {
            Ok(Some(Parts { parts, .. })) => self.complete_from(id, &parts, waiter),
            Ok(None) => self.complete_from_whole(id, waiter),
            Err(error) => Err(error),
        };
        match fetched {
            Ok(()) => true,
            // It has been completed by the bytes that arrived, and there is nothing else to say.
            Err(_) if !waiter.is_open() => true,
            // Another copy may exist, or the data may be in another blob by now.
            Err(BlobError::Missing(_) | BlobError::Damaged { .. }) => false,
            Err(error) => {
                waiter.complete(Err(Missed::Failed(error)));
                true
            }
        }
    }

    fn complete_from(&self, id: &BlobId, parts: &[Arc<Part>], waiter: &Waiter) -> Result<(), BlobError> {
        if !waiter.is_open() {
            return Ok(());
        }
        let range = waiter.range();
        let covers =
            |part: &&Arc<Part>| part.offset <= range.start && u64::from(range.end) <= memory::end_of(part);
        if let Some(part) = parts.iter().find(covers) {
            let from = (range.start - part.offset) as usize;
            waiter.complete(Ok(&part.bytes[from..from + range.len()]));
            return Ok(());
        }
        let mut bytes = Buffer::with_len(range.len());
        memory::gather(id, parts, range.start, &mut bytes)?;
        waiter.complete(Ok(&bytes));
        Ok(())
    }

    fn complete_from_whole(self: &Arc<Core>, id: &BlobId, waiter: &Arc<Waiter>) -> Result<(), BlobError> {
        loop {
            match self.table.join_whole(id, Purpose::Read) {
                Join::Leader(lead) => {
                    lead.fetch().notify_of_bytes(waiter);
                    let whole = self.lead_whole(lead)?;
                    return self.complete_from(id, &[whole], waiter);
                }
                Join::Follower(fetch) => {
                    self.counters.shared_fetches.add(1);
                    fetch.notify_of_bytes(waiter);
                    match fetch.read_with(waiter.range(), |bytes| _ = waiter.complete(Ok(bytes))) {
                        Ok(()) => return Ok(()),
                        Err(Ended::Failed(error)) => return Err(error),
                        Err(Ended::GivenUp) => {}
                    }
                }
            }
        }
    }
}
