//! The table of in-flight fetches, and of whole blobs that have just arrived.
//!
//! ```text
//!   join_whole ──► in flight ──finish──► received ──the cache has written it──► kept ──10 s──► removed
//!                      └──error, dropped──► removed    └──not written──► removed
//!   join_part  ──► in flight ──finish, error, dropped──► removed
//!   announce   ──► the buffer of a whole blob whose fetch may begin ──► in flight, or removed
//! ```
//!
//! A blob has at most one fetch of the whole, and at most one fetch of each of its groups. A part is not
//! fetched while the whole is.
//!
//! Nodes that read the same data want a blob from one another within seconds. So in a fleet, whole blobs stay
//! in memory for a while after the cache has written them past the kernel's page cache: each request would
//! otherwise read the disk.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use base::BlobId;
use blob::BlobError;
use parking_lot::{Mutex, MutexGuard};

use crate::arriving::{Arriving, Fault, Verify};
use crate::budget::Budget;
use crate::in_flight::InFlight;
use crate::lead::{Completed, PartLead, Purpose, WholeLead};

/// The number of blobs that stay in memory after the cache has written them, at most 4 MiB each ...
const RECENT: usize = 16;
/// ... and at most this long.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Learns of whole blobs and of failed fetches of them, whatever began them. Called without locks, on the
/// thread of the leader.
pub trait Subscriber: Send + Sync {
    /// A whole blob has arrived and was verified. It stays in the table until the value is dropped.
    fn completed(&self, completed: Completed);

    /// The fetch of a whole blob failed.
    fn failed(&self, id: &BlobId, purpose: Purpose, error: &BlobError);
}

/// The role of a caller in a fetch.
pub enum Join<L> {
    /// There is no fetch yet, and the caller has to do it.
    Leader(L),
    /// The fetch is in flight, or has just ended.
    Follower(Arc<InFlight>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    InFlight,
    /// All of it is here. The cache is to write it.
    Received(Instant),
    /// The cache has written it.
    Kept(Instant),
}

pub(crate) struct Whole {
    pub(crate) fetch: Arc<InFlight>,
    pub(crate) stage: Stage,
}

/// A buffer that other nodes already wait for, although it is not known yet whether the blob will be fetched.
pub(crate) struct Announced {
    pub(crate) buffer: Arc<Arriving>,
    pub(crate) count: usize,
}

#[derive(Default)]
pub(crate) struct Entry {
    pub(crate) whole: Option<Whole>,
    pub(crate) parts: Vec<Arc<InFlight>>,
    pub(crate) announced: Option<Announced>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.whole.is_none() && self.parts.is_empty() && self.announced.is_none()
    }

    fn part(&self, group: u32) -> Option<&Arc<InFlight>> {
        self.parts.iter().find(|part| part.groups().is_some_and(|groups| groups.contains(&group)))
    }

    fn is_kept(&self) -> bool {
        self.whole.as_ref().is_some_and(|whole| matches!(whole.stage, Stage::Kept(_)))
    }
}

#[derive(Default)]
pub(crate) struct Entries {
    all: HashMap<BlobId, Entry>,
    /// The blobs that the cache has written, in this order. Some may be removed already.
    recent: VecDeque<BlobId>,
}

impl Entries {
    pub(crate) fn entry(&mut self, id: &BlobId) -> &mut Entry {
        self.all.entry(*id).or_default()
    }

    /// Changes an entry if there is one, and removes it if nothing is left in it.
    pub(crate) fn change<T>(&mut self, id: &BlobId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.all.get_mut(id)?;
        let result = change(entry);
        if entry.is_empty() {
            self.all.remove(id);
        }
        Some(result)
    }

    /// Takes out a blob that the cache has written. The caller drops it without the lock.
    fn forget(&mut self, id: &BlobId) -> Option<Whole> {
        self.change(id, |entry| if entry.is_kept() { entry.whole.take() } else { None }).flatten()
    }

    /// Records that the cache has written the blob. Returns those that it displaces.
    pub(crate) fn keep(&mut self, id: &BlobId) -> Vec<Whole> {
        // It may have been here before and been removed.
        self.recent.retain(|other| other != id);
        self.recent.push_back(*id);
        let mut gone = Vec::new();
        while self.recent.len() > RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            gone.extend(self.forget(&oldest));
        }
        gone
    }
}

/// See the [module](self).
pub struct Table {
    verify: Verify,
    entries: Mutex<Entries>,
    budget: Arc<Budget>,
    subscriber: OnceLock<Weak<dyn Subscriber>>,
    /// Whether whole blobs stay in memory for other nodes.
    remembers: AtomicBool,
    /// The number of waiters that took their bytes before the end of the fetch.
    served: Arc<AtomicU64>,
}

impl Table {
    /// An empty table. `memory` is how many bytes fetches in flight may take. A fetch that exceeds it waits.
    pub fn new(verify: Verify, memory: u64) -> Arc<Table> {
        Arc::new(Table {
            verify,
            entries: Mutex::default(),
            budget: Budget::new(memory),
            subscriber: OnceLock::new(),
            remembers: AtomicBool::new(false),
            served: Arc::default(),
        })
    }

    /// Tells the subscriber of whole blobs from now on. There is one.
    pub fn subscribe(&self, subscriber: Weak<dyn Subscriber>) {
        let _ = self.subscriber.set(subscriber);
    }

    pub(crate) fn subscriber(&self) -> Option<Arc<dyn Subscriber>> {
        self.subscriber.get().and_then(Weak::upgrade)
    }

    /// Whether whole blobs stay in memory for a while after the cache has written them: if there is another
    /// node that may want them.
    pub fn remember(&self, remembers: bool) {
        self.remembers.store(remembers, Ordering::Release);
    }

    pub(crate) fn remembers(&self) -> bool {
        self.remembers.load(Ordering::Acquire)
    }

    /// How received bytes are verified.
    pub fn verify(&self) -> Verify {
        self.verify
    }

    pub(crate) fn served(&self) -> &Arc<AtomicU64> {
        &self.served
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock()
    }

    /// The memory budget of fetches.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Joins the fetch of the whole blob, or begins it.
    pub fn join_whole(self: &Arc<Table>, id: &BlobId, purpose: Purpose) -> Join<WholeLead> {
        let mut entries = self.lock();
        let entry = entries.entry(id);
        match &entry.whole {
            Some(whole) => Join::Follower(Arc::clone(&whole.fetch)),
            None => Join::Leader(self.begin_whole(entry, id, purpose)),
        }
    }

    /// Begins the fetch of a whole blob that has none. Nodes that wait for an announced buffer get it from
    /// this fetch.
    pub(crate) fn begin_whole(
        self: &Arc<Table>,
        entry: &mut Entry,
        id: &BlobId,
        purpose: Purpose,
    ) -> WholeLead {
        let fetch = InFlight::new(id, None, &self.served);
        fetch.set_buffer(entry.announced.as_ref().map(|announced| Arc::clone(&announced.buffer)));
        entry.whole = Some(Whole { fetch: Arc::clone(&fetch), stage: Stage::InFlight });
        WholeLead::new(Arc::clone(self), fetch, purpose)
    }

    /// Joins the fetch of the whole blob or of the first of these groups. If there is none, begins a fetch of
    /// the groups up to the first that is already in flight.
    pub fn join_part(self: &Arc<Table>, id: &BlobId, groups: Range<u32>) -> Join<PartLead> {
        let mut entries = self.lock();
        let entry = entries.entry(id);
        if let Some(whole) = &entry.whole {
            return Join::Follower(Arc::clone(&whole.fetch));
        }
        if let Some(part) = entry.part(groups.start) {
            return Join::Follower(Arc::clone(part));
        }
        let taken = groups.clone().find(|group| entry.part(*group).is_some());
        let groups = groups.start..taken.unwrap_or(groups.end);
        let fetch = InFlight::new(id, Some(groups), &self.served);
        entry.parts.push(Arc::clone(&fetch));
        Join::Leader(PartLead::new(Arc::clone(self), fetch))
    }

    /// The fetch of the whole blob, in flight or just ended.
    pub fn whole(&self, id: &BlobId) -> Option<Arc<InFlight>> {
        let entries = self.lock();
        entries.all.get(id)?.whole.as_ref().map(|whole| Arc::clone(&whole.fetch))
    }

    /// The in-flight fetch of a group of the blob.
    pub fn part(&self, id: &BlobId, group: u32) -> Option<Arc<InFlight>> {
        self.lock().all.get(id)?.part(group).cloned()
    }

    /// The in-flight fetches of parts of a blob.
    pub fn parts(&self, id: &BlobId) -> Vec<Arc<InFlight>> {
        self.lock().all.get(id).map(|entry| entry.parts.clone()).unwrap_or_default()
    }

    /// The blob for another node: it is arriving, or may be about to, or has just arrived.
    pub fn serve(&self, id: &BlobId) -> Option<Arc<Arriving>> {
        let entries = self.lock();
        let entry = entries.all.get(id)?;
        let buffer = entry.whole.as_ref().and_then(|whole| whole.fetch.buffer());
        buffer.or_else(|| entry.announced.as_ref().map(|announced| Arc::clone(&announced.buffer)))
    }

    /// The buffer of a whole blob's fetch, for another node. Nodes can be sent here for it from now on.
    pub fn buffer_of(&self, fetch: &InFlight) -> Arc<Arriving> {
        fetch.buffer_or_new(self.verify)
    }

    /// Whether all of the blob is in memory here, for other nodes.
    pub fn has_whole(&self, id: &BlobId) -> bool {
        let entries = self.lock();
        entries.all.get(id).and_then(|entry| entry.whole.as_ref()).is_some_and(|whole| {
            whole.stage != Stage::InFlight && whole.fetch.buffer().is_some_and(|buffer| buffer.is_whole())
        })
    }

    /// The cache has evicted the blob, or another node doubts it: drops it if the cache has written it.
    pub fn forget(&self, id: &BlobId) {
        let gone = self.lock().forget(id);
        drop(gone);
    }

    /// Drops blobs that were remembered for long enough. Call it about ten times a second.
    pub fn tidy(&self, now: Instant) {
        let mut entries = self.lock();
        let mut gone = Vec::new();
        let is_old = |entry: &Entry| match entry.whole.as_ref().map(|whole| whole.stage) {
            Some(Stage::Kept(at)) => now.saturating_duration_since(at) >= REMEMBERED,
            _ => false,
        };
        let old: Vec<BlobId> =
            entries.all.iter().filter(|(_, entry)| is_old(entry)).map(|(id, _)| *id).collect();
        old.iter().for_each(|id| gone.extend(entries.forget(id)));
        drop(entries);
        drop(gone);
    }

    /// The number of fetches in flight, and of blobs that the cache has not written yet.
    pub fn len(&self) -> usize {
        let whole = |entry: &Entry| usize::from(entry.whole.is_some() && !entry.is_kept());
        self.lock().all.values().map(|entry| entry.parts.len() + whole(entry)).sum()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it holds nothing at all.
    #[cfg(test)]
    pub(crate) fn is_forgotten(&self) -> bool {
        self.lock().all.is_empty()
    }

    /// The number of whole blobs that a tier is fetching or asks about.
    pub fn arriving(&self) -> usize {
        let is_arriving = |entry: &&Entry| match &entry.whole {
            Some(whole) => whole.stage == Stage::InFlight && whole.fetch.buffer().is_some(),
            None => entry.announced.is_some(),
        };
        self.lock().all.values().filter(is_arriving).count()
    }

    /// The number of waiters that took their bytes from the thread that received them.
    pub fn served_early(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// The fetch of the whole has failed: takes it out, and with it the buffer that was announced for it.
    pub(crate) fn fail_whole(&self, fetch: &Arc<InFlight>) {
        let buffer = fetch.buffer();
        let gone = self.lock().change(fetch.id(), |entry| {
            let is_it = |whole: &mut Whole| Arc::ptr_eq(&whole.fetch, fetch);
            let whole = entry.whole.take_if(is_it);
            let same = |announced: &mut Announced| {
                buffer.as_ref().is_some_and(|buffer| Arc::ptr_eq(buffer, &announced.buffer))
            };
            (whole, entry.announced.take_if(same))
        });
        drop(gone);
        if let Some(buffer) = buffer {
            buffer.fail(Fault::GivenUp);
        }
    }

    /// Takes a fetch of a part out.
    pub(crate) fn remove_part(&self, fetch: &Arc<InFlight>) {
        let gone = self.lock().change(fetch.id(), |entry| {
            entry.parts.extract_if(.., |part| Arc::ptr_eq(part, fetch)).collect::<Vec<_>>()
        });
        drop(gone);
    }
}
