//! Blobs on their way here, which can be given away while they come.
//!
//! ```text
//!   obtain ──► Coming ──whole──► Landed ──the cache has it──► gone: the file is given away from now on
//!                 │                 └────not within 2 s─────► gone: whoever waits is told to ask elsewhere
//!                 └──failed──► gone
//! ```
//!
//! Between the last byte and the file there is a moment: the bytes belong to the cache, which writes them. Who asks then gets a blob
//! that has not begun, and it is filled from the file.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::BlobId;
use parking_lot::Mutex;

use crate::arriving::{Arriving, Verify};
use crate::net::Fail;

/// The cache has so long to put a blob on the disk.
const LANDING: Duration = Duration::from_secs(2);

struct Entry {
    arriving: Arc<Arriving>,
    /// All of it was here then, and the cache is to write it.
    landed: Option<Instant>,
}

/// All that are on their way.
pub(super) struct Transit {
    verify: Verify,
    all: Mutex<HashMap<BlobId, Entry>>,
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
        Transit { verify, all: Mutex::default() }
    }

    pub(super) fn board(&self, id: &BlobId) -> Seat {
        let mut all = self.all.lock();
        match all.get(id) {
            // What landed and is wanted again comes from the disk in a moment. To ask the tracker for it would be to ask for what it
            // believes to be here: if nobody else has it, it would be fetched again.
            Some(entry) => Seat::Passenger(Arc::clone(&entry.arriving)),
            None => {
                let arriving = Arriving::new(*id, self.verify);
                all.insert(*id, Entry { arriving: Arc::clone(&arriving), landed: None });
                Seat::Pilot(arriving)
            }
        }
    }

    /// The blob, if it is on its way here.
    pub(super) fn get(&self, id: &BlobId) -> Option<Arc<Arriving>> {
        self.all.lock().get(id).map(|entry| Arc::clone(&entry.arriving))
    }

    /// All of it is here, and goes to the cache.
    pub(super) fn landed(&self, id: &BlobId, now: Instant) {
        let next = Arriving::new(*id, self.verify);
        self.all.lock().insert(*id, Entry { arriving: next, landed: Some(now) });
    }

    /// Whether all of it is here, and the cache is about to have it.
    pub(super) fn has_landed(&self, id: &BlobId) -> bool {
        self.all.lock().get(id).is_some_and(|entry| entry.landed.is_some())
    }

    /// It came to nothing, or nobody need wait for the cache.
    pub(super) fn ended(&self, id: &BlobId) -> Option<Arc<Arriving>> {
        self.all.lock().remove(id).map(|entry| entry.arriving)
    }

    /// The cache has it: what those wait for who asked in between, if there are any.
    pub(super) fn kept(&self, id: &BlobId) -> Option<Arc<Arriving>> {
        let mut all = self.all.lock();
        all.get(id).filter(|entry| entry.landed.is_some())?;
        let entry = all.remove(id)?;
        // Of one that nobody else holds, nobody waits.
        (Arc::strong_count(&entry.arriving) > 1).then_some(entry.arriving)
    }

    /// Gives up what the cache has not written in time.
    pub(super) fn tidy(&self, now: Instant) {
        let mut late = Vec::new();
        self.all.lock().retain(|_, entry| {
            let keep = entry.landed.is_none_or(|at| now.saturating_duration_since(at) < LANDING);
            if !keep {
                late.push(Arc::clone(&entry.arriving));
            }
            keep
        });
        late.iter().for_each(|arriving| arriving.fail(Fail::Missing));
    }

    /// How many are coming.
    pub(super) fn len(&self) -> usize {
        self.all.lock().values().filter(|entry| entry.landed.is_none()).count()
    }
}
