//! One fetch that is in flight or has just ended: its waiters, and its outcome.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::size::GROUP;
use base::{BlobId, Deadline};
use blob::completion::Missed;
use blob::{BlobError, Part};
use parking_lot::{Condvar, Mutex};

use crate::arriving::{Arriving, Fault, Verify};
use crate::waiter::Waiter;

/// Why a fetch has no bytes.
#[derive(Debug)]
pub enum Ended {
    /// The fetch failed. A repetition would most likely fail too.
    Failed(BlobError),
    /// The leader gave up the fetch. This says nothing about the blob.
    GivenUp,
}

/// The result that a leader and its followers share.
pub type Outcome = Result<Arc<Part>, Ended>;

/// A copy of an error for another waiter.
pub fn same(error: &BlobError) -> BlobError {
    match error {
        BlobError::Missing(id) => BlobError::Missing(*id),
        BlobError::Damaged { id, what } => BlobError::Damaged { id: *id, what: what.clone() },
        BlobError::Full => BlobError::Full,
        BlobError::Unavailable(what) => BlobError::Unavailable(what.clone()),
        BlobError::Refused(what) => BlobError::Refused(what.clone()),
        BlobError::Stale(what) => BlobError::Stale(what.clone()),
        BlobError::Io(error) => BlobError::Io(match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        }),
    }
}

fn copy(outcome: &Outcome) -> Outcome {
    match outcome {
        Ok(part) => Ok(Arc::clone(part)),
        Err(Ended::Failed(error)) => Err(Ended::Failed(same(error))),
        Err(Ended::GivenUp) => Err(Ended::GivenUp),
    }
}

/// The bytes of a range of the blob, if this part has all of them.
fn within(part: &Part, range: Range<u32>) -> Option<&[u8]> {
    let from = range.start.checked_sub(part.offset)? as usize;
    part.bytes.get(from..from + range.len())
}

/// Ends a buffer with the outcome of its fetch, if it has not ended.
fn fill(buffer: &Arriving, outcome: &Outcome) {
    match outcome {
        Ok(part) if !buffer.is_whole() => {
            buffer.settle(Arc::new(part.sums.clone()), part.bytes.clone());
        }
        Ok(_) => {}
        Err(_) => buffer.fail(Fault::GivenUp),
    }
}

struct Registered {
    waiter: Arc<Waiter>,
    /// Whether the waiter's task completes it in the end. Then it takes bytes and no errors.
    has_task: bool,
}

impl Registered {
    fn end(&self, outcome: &Outcome) {
        let missed = match outcome {
            Ok(part) => match within(part, self.waiter.range()) {
                Some(bytes) => {
                    self.waiter.complete(Ok(bytes));
                    return;
                }
                None => Missed::Read,
            },
            // Another copy may exist, or the data may be in another blob by now.
            Err(Ended::GivenUp | Ended::Failed(BlobError::Missing(_) | BlobError::Damaged { .. })) => {
                Missed::Read
            }
            Err(Ended::Failed(error)) => Missed::Failed(same(error)),
        };
        if !self.has_task {
            self.waiter.complete(Err(missed));
        }
    }
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    waiters: Vec<Registered>,
    /// Of a whole blob: the buffer that it arrives in, from which other nodes are served too.
    buffer: Option<Arc<Arriving>>,
}

/// See the [module](self).
pub struct InFlight {
    id: BlobId,
    /// The groups that are fetched, or `None` for the whole blob.
    groups: Option<Range<u32>>,
    state: Mutex<State>,
    ended: Condvar,
    /// Bytes that its waiters took.
    taken: Arc<AtomicUsize>,
    /// The number of waiters that took their bytes before the end of the fetch.
    served: Arc<AtomicU64>,
}

impl InFlight {
    pub(crate) fn new(id: &BlobId, groups: Option<Range<u32>>, served: &Arc<AtomicU64>) -> Arc<InFlight> {
        Arc::new(InFlight {
            id: *id,
            groups,
            state: Mutex::default(),
            ended: Condvar::new(),
            taken: Arc::default(),
            served: Arc::clone(served),
        })
    }

    pub(crate) fn id(&self) -> &BlobId {
        &self.id
    }

    pub(crate) fn groups(&self) -> Option<Range<u32>> {
        self.groups.clone()
    }

    /// Whether it fetches the whole blob.
    pub fn is_whole(&self) -> bool {
        self.groups.is_none()
    }

    /// Whether it fetches all of this range, as far as the blob has it.
    pub fn covers(&self, range: &Range<u32>) -> bool {
        self.groups.as_ref().is_none_or(|groups| {
            groups.start * GROUP <= range.start && range.end <= groups.end.saturating_mul(GROUP)
        })
    }

    /// Bytes that its waiters took so far.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Completes the waiter when its range is here, or at the end of the fetch, also if it fails.
    pub fn notify(&self, waiter: &Arc<Waiter>) {
        self.register(Registered { waiter: Arc::clone(waiter), has_task: false });
    }

    /// Completes the waiter when its range is here. A failure does not: the waiter's task completes it in any
    /// case.
    pub fn notify_of_bytes(&self, waiter: &Arc<Waiter>) {
        self.register(Registered { waiter: Arc::clone(waiter), has_task: true });
    }

    fn register(&self, registered: Registered) {
        registered.waiter.count_in(&self.taken);
        let mut state = self.state.lock();
        if let Some(outcome) = &state.outcome {
            let outcome = copy(outcome);
            drop(state);
            return registered.end(&outcome);
        }
        let (waiter, buffer) = (Arc::clone(&registered.waiter), state.buffer.clone());
        state.waiters.push(registered);
        drop(state);
        if let Some(buffer) = buffer {
            buffer.notify(&waiter);
        }
    }

    /// Waits for the outcome, until the deadline of this thread's work.
    pub fn wait(&self) -> Outcome {
        let (began, deadline) = (base::time::monotonic(), Deadline::current());
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return copy(outcome);
            }
            if !deadline.is_bounded() {
                self.ended.wait(&mut state);
            } else if self.ended.wait_for(&mut state, deadline.left()).timed_out() && state.outcome.is_none()
            {
                return Err(self.late(began));
            }
        }
    }

    fn late(&self, began: std::time::Instant) -> Ended {
        let time = base::time::monotonic().saturating_duration_since(began);
        Ended::Failed(BlobError::Unavailable(format!("{} did not arrive within {time:.0?}", self.id)))
    }

    /// Waits until a range has arrived, and copies it. Does not wait for the rest of the blob.
    ///
    /// # Errors
    /// Why it did not arrive. `Missing`: it is not in the blob.
    pub fn read(&self, offset: u32, buf: &mut [u8]) -> Result<(), Ended> {
        let range = offset..offset.saturating_add(buf.len() as u32);
        self.read_with(range, |bytes| buf.copy_from_slice(bytes))
    }

    /// Waits until a range has arrived, and passes its bytes to `take`. Does not wait for the rest of the
    /// blob.
    ///
    /// # Errors
    /// As [`InFlight::read`].
    pub fn read_with(&self, range: Range<u32>, take: impl FnOnce(&[u8])) -> Result<(), Ended> {
        let signal = Arc::new((Mutex::new(false), Condvar::new()));
        let (began, deadline, bell) = (base::time::monotonic(), Deadline::current(), Arc::clone(&signal));
        let completion = move |_: blob::completion::Arrival<'_>| {
            *bell.0.lock() = true;
            bell.1.notify_all();
            false
        };
        self.notify(&Waiter::new(range.clone(), Box::new(completion)));
        let mut is_set = signal.0.lock();
        while !*is_set {
            if !deadline.is_bounded() {
                signal.1.wait(&mut is_set);
            } else if signal.1.wait_for(&mut is_set, deadline.left()).timed_out() && !*is_set {
                return Err(self.late(began));
            }
        }
        drop(is_set);
        let (outcome, buffer) = {
            let state = self.state.lock();
            (state.outcome.as_ref().map(copy), state.buffer.clone())
        };
        match (outcome, buffer) {
            (Some(Ok(part)), _) => match within(&part, range) {
                Some(bytes) => take(bytes),
                None => return Err(Ended::Failed(blob::folder::past_end(&self.id, part.sums.size()))),
            },
            (Some(Err(ended)), _) => return Err(ended),
            (None, Some(buffer)) => take(buffer.bytes(range).ok_or(Ended::GivenUp)?),
            // A part's bytes were passed on from the loop that received them, and its outcome follows.
            (None, None) => {
                let part = self.wait()?;
                take(within(&part, range).ok_or(Ended::GivenUp)?);
            }
        }
        Ok(())
    }

    /// Verified bytes from `offset` on have arrived, before the end of the fetch. Completes the waiters for
    /// ranges within them.
    pub(crate) fn arrived(&self, offset: u32, bytes: &[u8]) {
        let within = |range: Range<u32>| {
            let from = range.start.checked_sub(offset)? as usize;
            bytes.get(from..from + range.len())
        };
        let mut state = self.state.lock();
        let due: Vec<Registered> =
            state.waiters.extract_if(.., |registered| within(registered.waiter.range()).is_some()).collect();
        drop(state);
        for registered in due {
            let Some(bytes) = within(registered.waiter.range()) else { continue };
            if registered.waiter.complete(Ok(bytes)) {
                self.served.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The buffer that the whole blob arrives in.
    pub(crate) fn buffer(&self) -> Option<Arc<Arriving>> {
        self.state.lock().buffer.clone()
    }

    /// Returns the buffer that the whole blob arrives in. If there is none yet, it is created, and the
    /// waiters are completed from it.
    pub(crate) fn buffer_or_new(&self, verify: Verify) -> Arc<Arriving> {
        let mut state = self.state.lock();
        if let Some(buffer) = &state.buffer {
            return Arc::clone(buffer);
        }
        let buffer = Arriving::counting(self.id, verify, Arc::clone(&self.served));
        state.buffer = Some(Arc::clone(&buffer));
        if let Some(outcome) = &state.outcome {
            let outcome = copy(outcome);
            drop(state);
            fill(&buffer, &outcome);
            return buffer;
        }
        let waiters: Vec<Arc<Waiter>> =
            state.waiters.iter().map(|registered| Arc::clone(&registered.waiter)).collect();
        drop(state);
        waiters.iter().for_each(|waiter| buffer.notify(waiter));
        buffer
    }

    /// Replaces the buffer, or removes it.
    pub(crate) fn set_buffer(&self, buffer: Option<Arc<Arriving>>) {
        let before = std::mem::replace(&mut self.state.lock().buffer, buffer);
        drop(before);
    }

    /// Gives all waiters this outcome.
    pub(crate) fn end(&self, outcome: Outcome) {
        let (waiters, buffer) = {
            let mut state = self.state.lock();
            state.outcome = Some(copy(&outcome));
            (std::mem::take(&mut state.waiters), state.buffer.clone())
        };
        self.ended.notify_all();
        // It may have come into being a moment ago.
        buffer.iter().for_each(|buffer| fill(buffer, &outcome));
        waiters.iter().for_each(|registered| registered.end(&outcome));
    }

    /// The outcome, if it has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.state.lock().outcome.as_ref().map(copy)
    }
}
