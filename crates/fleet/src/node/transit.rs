//! The table of in-flight blobs, which can be sent on while they arrive, and of recently received ones.
//!
//! ```text
//!   obtain ──► Coming ──whole──► Landed ──the cache has it──► Recent ──replaced, or 10 s──► removed
//!                 │                 └────not within 2 s─────► removed: requests are refused
//!                 └──failed──► removed
//! ```
//!
//! Between the last byte and the file there is a gap: the cache has the bytes and is writing them. Requests
//! in that time and shortly after are served from memory, which the cache and this table share. Nodes that
//! read the same data want it from one another within seconds. A received stream is written past the kernel's
//! page cache, so each of them would otherwise cause a read from the disk.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::BlobId;
use blob::coming::Missed;
use blob::{Buffer, Sums};
use net::arriving::{Arriving, Await, Verify};
use net::transport::Fail;
use parking_lot::Mutex;

/// The cache has this long to write a blob to the disk.
const LANDING: Duration = Duration::from_secs(2);
/// This many blobs stay in memory after the cache has written them, at most 4 MiB each ...
const RECENT: usize = 16;
/// ... and at most this long.
const REMEMBERED: Duration = Duration::from_secs(10);

struct Entry {
    arriving: Arc<Arriving>,
    /// When all of it had arrived. The cache is to write it.
    landed: Option<Instant>,
    /// The cache has written it.
    kept: bool,
}

#[derive(Default)]
struct Entries {
    all: HashMap<BlobId, Entry>,
    /// The blobs that the cache has written, in this order. Some may be removed already.
    recent: VecDeque<BlobId>,
    /// Waiters for ranges of blobs that have no fetch of the whole, and since when they wait.
    awaited: HashMap<BlobId, Vec<(Await, Instant)>>,
    /// Waiters are no longer accepted.
    closed: bool,
}

impl Entries {
    /// Removes a blob that the cache has written.
    fn forget(&mut self, id: &BlobId) {
        if self.all.get(id).is_some_and(|entry| entry.kept) {
            self.all.remove(id);
        }
    }
}

/// The table.
pub(super) struct Transit {
    verify: Verify,
    entries: Mutex<Entries>,
}

/// The role of a caller in the fetch of a blob.
pub(super) enum Joined {
    /// The leader: there is no fetch yet, and the caller must do it.
    Leader(Arc<Arriving>),
    /// A follower: the fetch is in flight.
    Follower(Arc<Arriving>),
}

impl Transit {
    pub(super) fn new(verify: Verify) -> Transit {
        Transit { verify, entries: Mutex::default() }
    }

    pub(super) fn join_fetch(&self, id: &BlobId) -> Joined {
        let mut entries = self.entries.lock();
        // This includes blobs that have landed. The tracker believes that this node has them. A question
        // about one could make this node fetch it again.
        if let Some(entry) = entries.all.get(id) {
            return Joined::Follower(Arc::clone(&entry.arriving));
        }
        let arriving = Arriving::new(*id, self.verify);
        entries.all.insert(*id, Entry { arriving: Arc::clone(&arriving), landed: None, kept: false });
        // No byte of it is here yet, so nothing is called under the lock.
        let awaited = entries.awaited.remove(id).unwrap_or_default();
        awaited.into_iter().for_each(|(wait, _)| arriving.give(wait));
        Joined::Leader(arriving)
    }

    /// Registers a waiter for a range of a blob in flight, or of one whose fetch may begin within
    /// [`LANDING`]. True: it is in flight.
    pub(super) fn give(&self, id: &BlobId, wait: Await, now: Instant) -> bool {
        let mut entries = self.entries.lock();
        if entries.closed {
            return false;
        }
        let Some(arriving) = entries.all.get(id).map(|entry| Arc::clone(&entry.arriving)) else {
            entries.awaited.entry(*id).or_default().push((wait, now));
            return false;
        };
        drop(entries);
        arriving.give(wait);
        true
    }

    /// The fetch of the whole is given up: a part is fetched instead, or another node fetches it. The waiters
    /// keep waiting.
    pub(super) fn given_up(&self, id: &BlobId, arriving: &Arriving, now: Instant) {
        let mut entries = self.entries.lock();
        entries.all.remove(id);
        let awaits = arriving.take_awaits();
        if !awaits.is_empty() && !entries.closed {
            entries.awaited.entry(*id).or_default().extend(awaits.into_iter().map(|wait| (wait, now)));
        }
        drop(entries);
        arriving.fail(Fail::Missing);
    }

    /// A verified part arrived by itself. It begins at `offset`.
    pub(super) fn came(&self, id: &BlobId, offset: u32, bytes: &[u8]) {
        let within = |range: &Range<u32>| {
            let from = range.start.checked_sub(offset)? as usize;
            bytes.get(from..from + range.len())
        };
        let mut entries = self.entries.lock();
        let Some(waits) = entries.awaited.get_mut(id) else { return };
        let due: Vec<Await> =
            waits.extract_if(.., |(wait, _)| within(&wait.range).is_some()).map(|(wait, _)| wait).collect();
        if waits.is_empty() {
            entries.awaited.remove(id);
        }
        drop(entries);
        for wait in due {
            (wait.then)(within(&wait.range).ok_or(Missed::Read));
        }
    }

    /// The blob, if it is in flight or was received recently.
    pub(super) fn get(&self, id: &BlobId) -> Option<Arc<Arriving>> {
        self.entries.lock().all.get(id).map(|entry| Arc::clone(&entry.arriving))
    }

    /// All of it is here, and goes to the cache.
    pub(super) fn landed(&self, id: &BlobId, sums: &Sums, bytes: &Buffer, now: Instant) {
        let arriving = Arriving::here(*id, self.verify, Arc::new(sums.clone()), bytes.clone());
        self.entries.lock().all.insert(*id, Entry { arriving, landed: Some(now), kept: false });
    }

    /// Whether all of it is in memory.
    pub(super) fn has_landed(&self, id: &BlobId) -> bool {
        self.entries.lock().all.get(id).is_some_and(|entry| entry.landed.is_some())
    }

    /// The fetch failed.
    pub(super) fn ended(&self, id: &BlobId) {
        self.entries.lock().all.remove(id);
    }

    /// The cache has written it. It stays in memory for a while.
    pub(super) fn kept(&self, id: &BlobId) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.all.get_mut(id).filter(|entry| entry.landed.is_some()) else { return };
        if !std::mem::replace(&mut entry.kept, true) {
            // It may have been here before and been removed.
            entries.recent.retain(|other| other != id);
            entries.recent.push_back(*id);
        }
        while entries.recent.len() > RECENT
            && let Some(oldest) = entries.recent.pop_front()
        {
            entries.forget(&oldest);
        }
    }

    /// The cache has evicted it, or another node doubts it.
    pub(super) fn forget(&self, id: &BlobId) {
        self.entries.lock().forget(id);
    }

    /// Drops all waiters, and refuses later ones. A waiter may own what owns this table.
    pub(super) fn close(&self) {
        let mut entries = self.entries.lock();
        entries.closed = true;
        let awaited = std::mem::take(&mut entries.awaited);
        let coming: Vec<Await> =
            entries.all.values().flat_map(|entry| entry.arriving.take_awaits()).collect();
        drop(entries);
        drop((awaited, coming));
    }

    /// Removes blobs that the cache has not written in time, and old ones.
    pub(super) fn tidy(&self, now: Instant) {
        let mut entries = self.entries.lock();
        entries.all.retain(|_, entry| {
            let most = if entry.kept { REMEMBERED } else { LANDING };
            entry.landed.is_none_or(|at| now.saturating_duration_since(at) < most)
        });
        let is_old = |(_, since): &mut (Await, Instant)| now.saturating_duration_since(*since) >= LANDING;
        let old: Vec<_> =
            entries.awaited.values_mut().flat_map(|waits| waits.extract_if(.., is_old)).collect();
        entries.awaited.retain(|_, waits| !waits.is_empty());
        // The waiters' contents are dropped without the lock.
        drop(entries);
        drop(old);
    }

    /// The number of blobs in flight.
    pub(super) fn len(&self) -> usize {
        self.entries.lock().all.values().filter(|entry| entry.landed.is_none()).count()
    }
}

#[cfg(test)]
mod tests {
    use blob::coming::Told;

    use super::*;

    fn land(transit: &Transit, n: u8, now: Instant) -> BlobId {
        let bytes = vec![n; 100_000];
        let sums = Sums::of(&bytes);
        transit.landed(&sums.id(), &sums, &Buffer::from(bytes), now);
        sums.id()
    }

    #[test]
    fn a_waiter_without_a_fetch_is_called_by_a_fetch_that_begins_soon() {
        let (transit, now) = (Transit::new(Verify::Blake3), base::time::monotonic());
        let bytes = vec![7; 100_000];
        let sums = Sums::of(&bytes);
        let (id, told) = (sums.id(), Arc::new(Mutex::new(Vec::new())));
        let give = |range: Range<u32>, name: &'static str| {
            let told = Arc::clone(&told);
            let then = move |bytes: Told<'_>| {
                told.lock().push((name, bytes.ok().map(<[u8]>::len)));
                true
            };
            transit.give(&id, Await { range, then: Box::new(then) }, now)
        };
        assert!(!give(0..10, "too early"));
        transit.tidy(now + LANDING);
        assert!(!give(0..10, "before") && told.lock().is_empty());
        let Joined::Leader(arriving) = transit.join_fetch(&id) else { panic!("no fetch is in flight") };
        assert!(give(5..100_000, "meanwhile"));
        // A part arrives alone, and then the whole.
        transit.given_up(&id, &arriving, now);
        transit.came(&id, 65_536, &bytes[65_536..]);
        assert_eq!(*told.lock(), []);
        transit.came(&id, 0, &bytes[..65_536]);
        assert_eq!(*told.lock(), [("before", Some(10))]);
        let Joined::Leader(arriving) = transit.join_fetch(&id) else { panic!("no fetch is in flight") };
        arriving.begin(sums.clone()).unwrap();
        arriving.append(&bytes).unwrap();
        transit.landed(&id, &sums, &Buffer::from(bytes), now);
        assert!(give(0..100_000, "afterwards"));
        assert_eq!(told.lock()[1..], [("meanwhile", Some(99_995)), ("afterwards", Some(100_000))]);
    }

    #[test]
    fn what_has_come_is_given_from_memory_for_a_while() {
        let (transit, now) = (Transit::new(Verify::Blake3), base::time::monotonic());
        let ids: Vec<BlobId> = (0..RECENT as u8 + 3).map(|n| land(&transit, n, now)).collect();
        for (n, id) in ids.iter().enumerate() {
            let arriving = transit.get(id).unwrap();
            assert!(arriving.bytes(0..100_000).unwrap().iter().all(|byte| usize::from(*byte) == n));
            assert!(matches!(transit.join_fetch(id), Joined::Follower(_)) && transit.has_landed(id));
            transit.forget(id);
            assert!(transit.has_landed(id), "the cache has not written it yet");
            transit.kept(id);
            transit.kept(id);
        }
        let here = |id: &&BlobId| transit.has_landed(id);
        assert_eq!(ids.iter().filter(here).count(), RECENT);
        assert!(!transit.has_landed(&ids[2]) && transit.has_landed(&ids[3]));
        transit.forget(&ids[3]);
        assert!(!transit.has_landed(&ids[3]) && transit.len() == 0);
        let late = land(&transit, 255, now);
        transit.tidy(now + LANDING);
        assert!(!transit.has_landed(&late) && transit.has_landed(&ids[4]), "the cache did not take it");
        transit.tidy(now + REMEMBERED);
        assert_eq!(ids.iter().filter(here).count(), 0);
    }
}
