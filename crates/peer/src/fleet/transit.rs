//! Blobs on their way here, which can be given away while they come, and those that have come lately.
//!
//! ```text
//!   obtain ──► Coming ──whole──► Landed ──the cache has it──► Recent ──others came, or 10 s──► gone: the file is given away from now on
//!                 │                 └────not within 2 s─────► gone: whoever asks is told to ask elsewhere
//!                 └──failed──► gone
//! ```
//!
//! Between the last byte and the file there is a moment: the bytes belong to the cache, which writes them. Who asks then, and soon afterwards, is given them
//! from memory, which the cache and this share: nodes that read the same want it from one another within seconds, and what a stream brings is
//! written past the kernel's pages, so it would have to be read from the disk for each of them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::BlobId;
use blob::coming::Missed;
use blob::{Buffer, Sums};
use parking_lot::Mutex;

use crate::arriving::{Arriving, Await, Verify};
use crate::net::Fail;

/// The cache has so long to put a blob on the disk.
const LANDING: Duration = Duration::from_secs(2);
/// So many that the cache has written are kept in memory besides, of 4 MiB at most each ...
const RECENT: usize = 16;
/// ... and no longer than this.
const REMEMBERED: Duration = Duration::from_secs(10);

struct Entry {
    arriving: Arc<Arriving>,
    /// All of it was here then, and the cache is to write it.
    landed: Option<Instant>,
    /// The cache has written it.
    kept: bool,
}

#[derive(Default)]
struct Entries {
    all: HashMap<BlobId, Entry>,
    /// What the cache has written, in this order; some may be gone.
    recent: VecDeque<BlobId>,
    /// Who wants to be given ranges of what nobody fetches as a whole, and since when.
    awaited: HashMap<BlobId, Vec<(Await, Instant)>>,
    /// Nobody is told any more.
    closed: bool,
}

impl Entries {
    /// Lets go of what the cache has written.
    fn forget(&mut self, id: &BlobId) {
        if self.all.get(id).is_some_and(|entry| entry.kept) {
            self.all.remove(id);
        }
    }
}

/// All that are on their way.
pub(super) struct Transit {
    verify: Verify,
    entries: Mutex<Entries>,
}

/// How one comes to a blob.
pub(super) enum Seat {
    /// Nobody fetches it: do.
    Pilot(Arc<Arriving>),
    /// Somebody does.
    Passenger(Arc<Arriving>),
}

impl Transit {
    pub(super) fn new(verify: Verify) -> Transit {
        Transit { verify, entries: Mutex::default() }
    }

    pub(super) fn board(&self, id: &BlobId) -> Seat {
        let mut entries = self.entries.lock();
        // Also what landed. To ask the tracker for it would be to ask for what it believes to be here: if nobody else has it, it would be
        // fetched again.
        if let Some(entry) = entries.all.get(id) {
            return Seat::Passenger(Arc::clone(&entry.arriving));
        }
        let arriving = Arriving::new(*id, self.verify);
        entries.all.insert(*id, Entry { arriving: Arc::clone(&arriving), landed: None, kept: false });
        // Nothing of it is here, so nothing is called under the lock.
        let awaited = entries.awaited.remove(id).unwrap_or_default();
        awaited.into_iter().for_each(|(wait, _)| arriving.give(wait));
        Seat::Pilot(arriving)
    }

    /// Gives a range of a blob that is on its way to whoever awaits it, or of one that is within [`LANDING`]. True: it is.
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

    /// The blob is not fetched after all, but a part of it, or by somebody else: whoever awaits it goes on waiting.
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

    /// A part of it has come by itself, which begins at `offset` and was compared.
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

    /// The blob, if it is on its way here or has come lately.
    pub(super) fn get(&self, id: &BlobId) -> Option<Arc<Arriving>> {
        self.entries.lock().all.get(id).map(|entry| Arc::clone(&entry.arriving))
    }

    /// All of it is here, and goes to the cache.
    pub(super) fn landed(&self, id: &BlobId, sums: &Sums, bytes: &Buffer, now: Instant) {
        let arriving = Arriving::here(*id, self.verify, Arc::new(sums.clone()), bytes.clone());
        self.entries.lock().all.insert(*id, Entry { arriving, landed: Some(now), kept: false });
    }

    /// Whether all of it is here, in memory.
    pub(super) fn has_landed(&self, id: &BlobId) -> bool {
        self.entries.lock().all.get(id).is_some_and(|entry| entry.landed.is_some())
    }

    /// It came to nothing.
    pub(super) fn ended(&self, id: &BlobId) {
        self.entries.lock().all.remove(id);
    }

    /// The cache has it, and it is kept in memory for a while.
    pub(super) fn kept(&self, id: &BlobId) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.all.get_mut(id).filter(|entry| entry.landed.is_some()) else { return };
        if !std::mem::replace(&mut entry.kept, true) {
            // It may have come before, and gone.
            entries.recent.retain(|other| other != id);
            entries.recent.push_back(*id);
        }
        while entries.recent.len() > RECENT
            && let Some(oldest) = entries.recent.pop_front()
        {
            entries.forget(&oldest);
        }
    }

    /// The cache has let go of it, or somebody doubts it.
    pub(super) fn forget(&self, id: &BlobId) {
        self.entries.lock().forget(id);
    }

    /// Lets go of all who await something, now and later: they may hold what holds this.
    pub(super) fn close(&self) {
        let mut entries = self.entries.lock();
        entries.closed = true;
        let awaited = std::mem::take(&mut entries.awaited);
        let coming: Vec<Await> =
            entries.all.values().flat_map(|entry| entry.arriving.take_awaits()).collect();
        drop(entries);
        drop((awaited, coming));
    }

    /// Gives up what the cache has not written in time, and what came some time ago.
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
        // What they hold is let go of without the lock.
        drop(entries);
        drop(old);
    }

    /// How many are coming.
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
    fn who_awaits_what_nobody_fetches_is_told_by_who_does_soon() {
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
        let Seat::Pilot(arriving) = transit.board(&id) else { panic!("nobody fetches it") };
        assert!(give(5..100_000, "meanwhile"));
        // A part of it comes alone, and then the whole.
        transit.given_up(&id, &arriving, now);
        transit.came(&id, 65_536, &bytes[65_536..]);
        assert_eq!(*told.lock(), []);
        transit.came(&id, 0, &bytes[..65_536]);
        assert_eq!(*told.lock(), [("before", Some(10))]);
        let Seat::Pilot(arriving) = transit.board(&id) else { panic!("nobody fetches it") };
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
            assert!(matches!(transit.board(id), Seat::Passenger(_)) && transit.has_landed(id));
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
