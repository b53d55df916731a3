//! Single-flight: one fetch for all that want the same bytes. Also the memory budget of fetches.
//!
//! The first request becomes the leader (`Pilot`) and fetches. A request for the same bytes before the fetch
//! has ended becomes a follower (`Passenger`) and gets the leader's result, also an error. A failed fetch
//! ends at once, so the next request tries again. The fetch of a blob ends only when the blob is on the disk:
//! until then requests get it from memory. A follower either waits on a thread, or registers a `Ride` and is
//! notified without holding a thread.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::BlobId;
use base::size::{BLOB_MAX, GROUP};
use blob::coming::{Missed, Rider};
use blob::{BlobError, Part};
use parking_lot::{Condvar, Mutex};

/// A blob and one of its groups, or `None` for the whole blob. The fetch of a part is found by each of its
/// groups.
pub(super) type Key = (BlobId, Option<u32>);

/// The result that a leader and its followers share.
pub(super) type Outcome = Result<Arc<Part>, BlobError>;

/// A copy of an error for another waiter.
pub(super) fn same(error: &BlobError) -> BlobError {
    match error {
        BlobError::Missing(id) => BlobError::Missing(*id),
        BlobError::Damaged { id, what } => BlobError::Damaged { id: *id, what: what.clone() },
        BlobError::Full => BlobError::Full,
        BlobError::Unavailable(what) => BlobError::Unavailable(what.clone()),
        BlobError::Refused(what) => BlobError::Refused(what.clone()),
        BlobError::Io(error) => BlobError::Io(match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        }),
    }
}

/// A range for which a waiter must be notified.
pub(super) struct Ride {
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) rider: Rider,
}

impl Ride {
    fn end(&self, outcome: &Outcome) {
        let range = |part: &Part| {
            let from = self.offset.checked_sub(part.offset)? as usize;
            part.bytes.get(from..from + self.len as usize).map(|bytes| self.rider.tell(Ok(bytes)))
        };
        let told = match outcome {
            Ok(part) => range(part),
            // Another copy may exist, or the data may be in another blob by now.
            Err(BlobError::Missing(_) | BlobError::Damaged { .. }) => None,
            Err(error) => Some(self.rider.tell(Err(Missed::Failed(same(error))))),
        };
        if told.is_none() {
            self.rider.tell(Err(Missed::Read));
        }
    }
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    rides: Vec<Ride>,
}

fn copy(outcome: &Outcome) -> Outcome {
    outcome.as_ref().map(Arc::clone).map_err(same)
}

/// A fetch that is in flight or has just ended.
#[derive(Default)]
pub(super) struct Flight {
    state: Mutex<State>,
    landed: Condvar,
    /// Bytes given to notified waiters.
    given: AtomicUsize,
}

impl Flight {
    /// Waits for the result.
    pub(super) fn wait(&self) -> Outcome {
        let mut state = self.state.lock();
        loop {
            match &state.outcome {
                Some(outcome) => return copy(outcome),
                None => self.landed.wait(&mut state),
            }
        }
    }

    /// Notifies the waiter when the fetch ends, or at once if it has ended.
    pub(super) fn ride(&self, ride: Ride) {
        let mut state = self.state.lock();
        let Some(outcome) = &state.outcome else { return state.rides.push(ride) };
        let outcome = copy(outcome);
        drop(state);
        ride.end(&outcome);
    }

    /// Records that a notified waiter took this many bytes.
    pub(super) fn gave(&self, bytes: usize) {
        self.given.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }
}

/// All in-flight fetches.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<Key, Arc<Flight>>>);

/// The caller's role in a fetch.
pub(super) enum Seat {
    Pilot(Pilot),
    Passenger(Arc<Flight>),
}

impl Flights {
    /// The fetch for this key, if there is one.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<Flight>> {
        self.0.lock().get(key).cloned()
    }

    /// Joins a fetch, or begins it.
    pub(super) fn board(self: &Arc<Flights>, key: Key) -> Seat {
        let mut all = self.0.lock();
        if let Some(flight) = all.get(&key) {
            return Seat::Passenger(Arc::clone(flight));
        }
        let flight = Arc::new(Flight::default());
        all.insert(key, Arc::clone(&flight));
        Seat::Pilot(Pilot { flights: Arc::clone(self), id: key.0, groups: None, flight, landed: false })
    }

    /// Joins the fetch of the first of these groups. If there is none, begins a fetch of the groups up to the
    /// first that is already in flight.
    pub(super) fn board_part(self: &Arc<Flights>, id: &BlobId, groups: Range<u32>) -> Seat {
        let mut all = self.0.lock();
        if let Some(flight) = all.get(&(*id, Some(groups.start))) {
            return Seat::Passenger(Arc::clone(flight));
        }
        let flight = Arc::new(Flight::default());
        let taken = groups.clone().find(|group| all.contains_key(&(*id, Some(*group))));
        let groups = groups.start..taken.unwrap_or(groups.end);
        all.extend(groups.clone().map(|group| ((*id, Some(group)), Arc::clone(&flight))));
        Seat::Pilot(Pilot { flights: Arc::clone(self), id: *id, groups: Some(groups), flight, landed: false })
    }

    /// The in-flight fetches of parts of a blob.
    pub(super) fn of_parts(&self, id: &BlobId) -> Vec<Arc<Flight>> {
        let all = self.0.lock();
        let mut found: Vec<Arc<Flight>> =
            (0..BLOB_MAX / GROUP).filter_map(|group| all.get(&(*id, Some(group))).cloned()).collect();
        found.dedup_by(|one, other| Arc::ptr_eq(one, other));
        found
    }

    pub(super) fn len(&self) -> usize {
        let all = self.0.lock();
        let mut flights: Vec<_> = all.values().map(Arc::as_ptr).collect();
        flights.sort_unstable();
        flights.dedup();
        flights.len()
    }
}

/// The leader of a fetch. Dropping it ends the fetch.
pub(super) struct Pilot {
    flights: Arc<Flights>,
    id: BlobId,
    /// The groups, if it fetches a part.
    groups: Option<Range<u32>>,
    flight: Arc<Flight>,
    landed: bool,
}

impl Pilot {
    /// The groups that it fetches, if it fetches a part.
    pub(super) fn groups(&self) -> Option<Range<u32>> {
        self.groups.clone()
    }

    /// Gives all followers this result.
    pub(super) fn land(&mut self, outcome: Outcome) {
        self.landed = true;
        let rides = {
            let mut state = self.flight.state.lock();
            state.outcome = Some(copy(&outcome));
            std::mem::take(&mut state.rides)
        };
        self.flight.landed.notify_all();
        rides.iter().for_each(|ride| ride.end(&outcome));
    }

    /// Bytes given to notified waiters.
    pub(super) fn given(&self) -> usize {
        self.flight.given()
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        let mut all = self.flights.0.lock();
        match &self.groups {
            Some(groups) => groups.clone().for_each(|group| drop(all.remove(&(self.id, Some(group))))),
            None => drop(all.remove(&(self.id, None))),
        }
        drop(all);
        if !self.landed {
            let what = format!("the fetch of blob {} was given up", self.id);
            self.land(Err(BlobError::Unavailable(what)));
        }
    }
}

/// A budget of bytes. Each fetch takes some and gives them back.
pub(super) struct Room {
    most: u64,
    used: Mutex<u64>,
    freed: Condvar,
}

impl Room {
    pub(super) fn new(most: u64) -> Arc<Room> {
        Arc::new(Room { most, used: Mutex::new(0), freed: Condvar::new() })
    }

    /// Waits for room. A prefetch leaves a quarter of the budget to fetches that a reader waits for.
    pub(super) fn take(self: &Arc<Room>, bytes: u64, hint: bool) -> Permit {
        let most = if hint { self.most / 4 * 3 } else { self.most };
        let mut used = self.used.lock();
        // A fetch larger than the budget runs alone.
        while *used > 0 && *used + bytes > most {
            self.freed.wait(&mut used);
        }
        *used += bytes;
        Permit { room: Arc::clone(self), bytes }
    }

    pub(super) fn used(&self) -> u64 {
        *self.used.lock()
    }
}

/// Bytes taken from a budget, until dropped.
pub(super) struct Permit {
    room: Arc<Room>,
    bytes: u64,
}

impl Permit {
    /// Gives back the surplus over `bytes`.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        *self.room.used.lock() -= surplus;
        self.room.freed.notify_all();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.room.used.lock() -= self.bytes;
        self.room.freed.notify_all();
    }
}
