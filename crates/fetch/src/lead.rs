//! The leader of a fetch: a value that is finished with the result, or dropped. Either ends the fetch, so no
//! follower waits for a fetch that nobody does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{BlobId, Deadline};
use blob::{BlobError, Part};

use crate::arriving::{Arriving, Fault};
use crate::budget::Permit;
use crate::in_flight::{Ended, InFlight, same};
use crate::table::{Announced, Stage, Table, Whole};

/// What a whole blob is fetched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A reader of this node.
    Read,
    /// A reader that is expected.
    Prefetch,
    /// Other nodes, or a copy that this node is to keep. The cache did not begin it.
    Others,
}

/// Checks fetched bytes against their sums, and these against the blob's id.
///
/// # Errors
/// `Damaged`.
pub fn check(id: &BlobId, part: &Part) -> Result<(), BlobError> {
    let damaged = |what: String| BlobError::Damaged { id: *id, what };
    if !part.sums.belong_to(id) {
        return Err(damaged(format!("the origin gave the blob {} for it", part.sums.id())));
    }
    if !part.bytes.is_empty() {
        return part.sums.check(part.offset, &part.bytes).map_err(|mismatch| damaged(mismatch.to_string()));
    }
    match part.sums.size() {
        0 => Ok(()),
        _ => Err(damaged("the origin gave no bytes of it".to_owned())),
    }
}

/// A fetch that fails after this time was late.
const LATE: Duration = Duration::from_secs(1);

/// The end of a fetch for its followers. A leader that ran out of time had begun earlier than its followers,
/// which may have time left. They try again, each until its own deadline.
///
/// The leader's deadline alone does not tell: what it called may have had less time (a fleet has eleven
/// twelfths of a reader's). So every late fetch counts.
fn ended(error: &BlobError, began: Instant) -> Ended {
    let took = base::time::monotonic().saturating_duration_since(began);
    match error {
        BlobError::Unavailable(_) if took >= LATE || Deadline::current().is_over() => Ended::GivenUp,
        error => Ended::Failed(same(error)),
    }
}

/// Whether all of a blob is in this part.
fn is_whole(part: &Part) -> bool {
    part.offset == 0 && part.bytes.len() as u64 == u64::from(part.sums.size())
}

/// The leader of the fetch of a whole blob.
pub struct WholeLead {
    table: Arc<Table>,
    fetch: Arc<InFlight>,
    purpose: Purpose,
    began: Instant,
    permit: Option<Permit>,
    over: bool,
}

impl WholeLead {
    pub(crate) fn new(table: Arc<Table>, fetch: Arc<InFlight>, purpose: Purpose) -> WholeLead {
        WholeLead { table, fetch, purpose, began: base::time::monotonic(), permit: None, over: false }
    }

    /// The blob.
    pub fn id(&self) -> &BlobId {
        self.fetch.id()
    }

    /// The fetch, as followers see it.
    pub fn fetch(&self) -> &Arc<InFlight> {
        &self.fetch
    }

    /// Waits for memory for this many bytes. They are given back when the cache has written the blob, or when
    /// the fetch ends without one.
    ///
    /// # Errors
    /// `Unavailable`: the deadline of the thread's work has passed.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), BlobError> {
        let permit = self.table.budget().take(bytes, self.purpose == Purpose::Prefetch)?;
        self.permit = Some(permit);
        Ok(())
    }

    /// The buffer to fill. From now on other nodes can be served from it, and waiters are completed from it.
    pub fn buffer(&self) -> Arc<Arriving> {
        self.fetch.buffer_or_new(self.table.verify())
    }

    /// A part of the blob, which this fetch needs.
    pub fn part(&self) -> PartLead {
        let fetch = Arc::clone(&self.fetch);
        PartLead { table: Arc::clone(&self.table), fetch, began: self.began, permit: None, over: true }
    }

    /// Ends the fetch. The bytes are checked. Followers get the result, and the subscriber the blob.
    ///
    /// # Errors
    /// The error, or `Damaged` if the bytes are not the blob's.
    pub fn finish(mut self, result: Result<Part, BlobError>) -> Result<Arc<Part>, BlobError> {
        let id = *self.id();
        let checked = result.and_then(|part| match check(&id, &part) {
            Ok(()) if is_whole(&part) => Ok(Arc::new(part)),
            Ok(()) => Err(BlobError::Damaged { id, what: "the origin gave a part of it only".to_owned() }),
            Err(error) => Err(error),
        });
        match checked {
            Ok(part) => {
                self.receive(&part);
                self.over = true;
                let completed = self.completed(Arc::clone(&part));
                match self.table.subscriber() {
                    Some(subscriber) => subscriber.completed(completed),
                    None => drop(completed),
                }
                Ok(part)
            }
            Err(error) => {
                self.fail(ended(&error, self.began));
                if let Some(subscriber) = self.table.subscriber() {
                    subscriber.failed(&id, self.purpose, &error);
                }
                Err(error)
            }
        }
    }

    /// Ends the fetch with a blob that is on this machine already: followers get it, the subscriber does not.
    pub fn found(mut self, part: &Arc<Part>) {
        self.receive(part);
        self.over = true;
        drop(self.completed(Arc::clone(part)));
    }

    fn completed(&mut self, part: Arc<Part>) -> Completed {
        let mut permit = self.permit.take();
        if let Some(permit) = &mut permit {
            permit.shrink(part.bytes.len() as u64);
        }
        let hold = Hold { table: Arc::clone(&self.table), fetch: Arc::clone(&self.fetch), is_kept: false };
        let (purpose, taken) = (self.purpose, self.fetch.taken());
        Completed { hold, id: *self.fetch.id(), part, purpose, taken, _permit: permit }
    }

    /// All of it is here: other nodes, and then followers, get it.
    fn receive(&self, part: &Arc<Part>) {
        let here = || {
            let (sums, bytes) = (Arc::new(part.sums.clone()), part.bytes.clone());
            Arriving::here(*self.id(), self.table.verify(), sums, bytes)
        };
        let is_sound = |buffer: &Arriving| buffer.is_whole() && !buffer.is_doubtful();
        let before = self.fetch.buffer();
        let replaced = match &before {
            Some(buffer) if is_sound(buffer) => false,
            Some(buffer) => !buffer.settle(Arc::new(part.sums.clone()), part.bytes.clone()),
            None => self.table.remembers(),
        };
        if replaced {
            self.fetch.set_buffer(Some(here()));
        }
        let announced = self.table.lock().change(self.id(), |entry| {
            if let Some(whole) = entry.whole.as_mut().filter(|whole| Arc::ptr_eq(&whole.fetch, &self.fetch)) {
                whole.stage = Stage::Received(base::time::monotonic());
            }
            entry.announced.take()
        });
        // Nodes that wait for a buffer that was replaced ask again, and find the new one.
        let stale = before.filter(|_| replaced).into_iter();
        stale.for_each(|buffer| buffer.fail(Fault::GivenUp));
        drop(announced);
        self.fetch.end(Ok(Arc::clone(part)));
    }

    fn fail(&mut self, ended: Ended) {
        self.over = true;
        // First out of the table, so that a follower that tries again begins a new fetch.
        self.table.fail_whole(&self.fetch);
        self.fetch.end(Err(ended));
    }
}

impl Drop for WholeLead {
    fn drop(&mut self) {
        if !self.over {
            self.fail(Ended::GivenUp);
        }
    }
}

/// Keeps a whole blob in the table.
struct Hold {
    table: Arc<Table>,
    fetch: Arc<InFlight>,
    is_kept: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let stays = self.is_kept && self.table.remembers() && self.fetch.buffer().is_some();
        let mut entries = self.table.lock();
        let gone = entries.change(self.fetch.id(), |entry| {
            let is_it = |whole: &mut Whole| Arc::ptr_eq(&whole.fetch, &self.fetch);
            if !stays {
                return entry.whole.take_if(is_it);
            }
            if let Some(whole) = entry.whole.as_mut()
                && Arc::ptr_eq(&whole.fetch, &self.fetch)
                && let Stage::Received(at) = whole.stage
            {
                whole.stage = Stage::Kept(at);
            }
            None
        });
        let displaced = if stays { entries.keep(self.fetch.id()) } else { Vec::new() };
        drop(entries);
        drop((gone, displaced));
    }
}

/// A whole blob that has arrived. Until this is dropped, the table gives it to all that want it.
pub struct Completed {
    // Dropped in this order: first out of the table, then the memory, then its place in the budget.
    hold: Hold,
    /// The blob.
    pub id: BlobId,
    /// All of it, verified.
    pub part: Arc<Part>,
    /// What it was fetched for.
    pub purpose: Purpose,
    /// How many bytes of it waiters have taken.
    pub taken: usize,
    _permit: Option<Permit>,
}

impl Completed {
    /// The cache has written the blob. In a fleet, it stays in memory for a while.
    pub fn kept(&mut self) {
        self.hold.is_kept = true;
    }
}

/// The leader of the fetch of a part of a blob.
pub struct PartLead {
    table: Arc<Table>,
    /// The part's, or the whole blob's if that needs the part.
    fetch: Arc<InFlight>,
    began: Instant,
    permit: Option<Permit>,
    over: bool,
}

impl PartLead {
    pub(crate) fn new(table: Arc<Table>, fetch: Arc<InFlight>) -> PartLead {
        PartLead { table, fetch, began: base::time::monotonic(), permit: None, over: false }
    }

    /// The blob.
    pub fn id(&self) -> &BlobId {
        self.fetch.id()
    }

    /// The fetch, as followers see it.
    pub fn fetch(&self) -> &Arc<InFlight> {
        &self.fetch
    }

    /// The end of the last group that it fetches.
    pub fn end(&self) -> u32 {
        let groups = self.fetch.groups();
        groups.map_or(u32::MAX, |groups| groups.end.saturating_mul(base::size::GROUP))
    }

    /// Waits for memory for this many bytes, until the fetch ends.
    ///
    /// # Errors
    /// `Unavailable`: the deadline of the thread's work has passed.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), BlobError> {
        self.permit = Some(self.table.budget().take(bytes, false)?);
        Ok(())
    }

    /// Completes waiters before the end of the fetch.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals(Arc::clone(&self.fetch))
    }

    /// Makes the whole blob's buffer visible to other nodes before it is known whether this node fetches the
    /// whole: a tracker may send them here before its answer is here.
    pub fn announce(&self) -> Announcement {
        let (id, verify) = (*self.id(), self.table.verify());
        let new = || Arriving::counting(id, verify, Arc::clone(self.table.served()));
        let mut entries = self.table.lock();
        let entry = entries.entry(&id);
        let table = Arc::clone(&self.table);
        if let Some(whole) = &entry.whole {
            let fetch = Arc::clone(&whole.fetch);
            drop(entries);
            return Announcement { table, buffer: fetch.buffer_or_new(verify), is_counted: false };
        }
        let announced = entry.announced.get_or_insert_with(|| Announced { buffer: new(), count: 0 });
        announced.count += 1;
        Announcement { table, buffer: Arc::clone(&announced.buffer), is_counted: true }
    }

    /// Ends the fetch. The bytes are checked. `keep` is called with a part of a blob before it leaves the
    /// table, so that nobody misses it. A part that is a whole blob goes to the subscriber instead.
    ///
    /// # Errors
    /// The error, or `Damaged` if the bytes are not the blob's.
    pub fn finish(
        mut self,
        result: Result<Part, BlobError>,
        keep: impl FnOnce(&Arc<Part>),
    ) -> Result<Arc<Part>, BlobError> {
        let id = *self.id();
        let checked = result.and_then(|part| check(&id, &part).map(|()| Arc::new(part)));
        let part = match checked {
            Ok(part) => part,
            Err(error) => {
                self.end_with(Err(ended(&error, self.began)));
                return Err(error);
            }
        };
        let whole = if is_whole(&part) { self.become_whole() } else { None };
        match whole {
            Some(mut lead) => {
                lead.permit = self.permit.take();
                // The same check again is cheap for a blob this small, and there is one way to end.
                let copy = Part { sums: part.sums.clone(), offset: 0, bytes: part.bytes.clone() };
                let _ = lead.finish(Ok(copy));
            }
            // Somebody else has all of it too.
            None if is_whole(&part) => {}
            None => keep(&part),
        }
        self.end_with(Ok(Arc::clone(&part)));
        Ok(part)
    }

    /// A fetch of the whole, unless there is one.
    fn become_whole(&self) -> Option<WholeLead> {
        let mut entries = self.table.lock();
        let entry = entries.entry(self.id());
        match entry.whole {
            Some(_) => None,
            None => Some(self.table.begin_whole(entry, self.id(), Purpose::Read)),
        }
    }

    fn end_with(&mut self, outcome: Result<Arc<Part>, Ended>) {
        if !std::mem::replace(&mut self.over, true) {
            self.table.remove_part(&self.fetch);
            self.fetch.end(outcome);
        }
    }
}

impl Drop for PartLead {
    fn drop(&mut self) {
        self.end_with(Err(Ended::GivenUp));
    }
}

/// Completes the waiters of a fetch whose range has arrived, on the thread that received the bytes.
#[derive(Clone)]
pub struct Arrivals(Arc<InFlight>);

impl Arrivals {
    /// Verified bytes from `offset` on have arrived.
    pub fn arrived(&self, offset: u32, bytes: &[u8]) {
        self.0.arrived(offset, bytes);
    }
}

/// See [`PartLead::announce`]. Dropping it withdraws the buffer, unless the whole is being fetched.
pub struct Announcement {
    table: Arc<Table>,
    buffer: Arc<Arriving>,
    is_counted: bool,
}

impl Announcement {
    /// Begins a fetch of the whole blob by this node, for other nodes too. `None`: it is being fetched
    /// already.
    pub fn begin_whole(&self) -> Option<WholeLead> {
        let mut entries = self.table.lock();
        let id = self.buffer.id();
        let entry = entries.entry(&id);
        match entry.whole {
            Some(_) => None,
            None => Some(self.table.begin_whole(entry, &id, Purpose::Others)),
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        let id = self.buffer.id();
        let withdrawn = self.table.lock().change(&id, |entry| {
            let announced = entry.announced.as_mut()?;
            if !Arc::ptr_eq(&announced.buffer, &self.buffer) {
                return None;
            }
            announced.count -= 1;
            if announced.count > 0 {
                return None;
            }
            let is_fetched = entry.whole.as_ref().and_then(|whole| whole.fetch.buffer());
            let is_fetched = is_fetched.is_some_and(|buffer| Arc::ptr_eq(&buffer, &self.buffer));
            entry.announced.take().filter(|_| !is_fetched)
        });
        if let Some(Announced { buffer, .. }) = withdrawn.flatten() {
            buffer.fail(Fault::GivenUp);
        }
    }
}
