//! The connections of a store, and the attempts of a request.
//!
//! A lane is a connection and what is remembered of its operations. It has at most one request in flight. So
//! the database needs to hold one operation for each lane, the last one.
//!
//! A request is tried again after a lost connection and after an error by which the server says so, with
//! pauses that grow and are random, until the patience of the store ends.

use std::fmt::{Debug, Display};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Deadline;
use meta::store::StoreError;
use parking_lot::{Condvar, Mutex};

use crate::secrets::Secrets;

/// The shortest time that an attempt gets.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);
/// The longest pause while the server admits no further connection: another request may end meanwhile.
const CROWDED: Duration = Duration::from_millis(100);
/// A connection is waited for until the deadline of the request, and no longer than this.
const CROWDED_MAX: Duration = Duration::from_secs(50);

/// How a store uses its database.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most connections, snapshots not counted: 1 to 1,000.
    pub lanes: usize,
    /// How long a request is tried, in total, before the store reports an error.
    pub patience: Duration,
    /// Where the password comes from.
    pub secrets: Secrets,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lanes: crate::address::LANES,
            patience: Duration::from_secs(10),
            secrets: Secrets::from_env(),
        }
    }
}

/// A request that did not succeed.
#[derive(Debug)]
pub(crate) enum Failure<O> {
    /// The connection is gone, or of no use. Whether the request was carried out is unknown.
    Lost(String),
    /// The request was not carried out; the same request may succeed.
    Again(String),
    /// The server admits no further connection now. Nothing was asked.
    Crowded(String),
    /// A failure that only this engine has. The request was not carried out.
    Own(O),
    /// Trying again is of no use. The request was not carried out.
    Store(StoreError),
}

impl<O: Display> Failure<O> {
    /// Returns the error for the caller once no more attempts are made.
    pub(crate) fn into_store(self) -> StoreError {
        match self {
            Failure::Lost(why) | Failure::Again(why) | Failure::Crowded(why) => StoreError::Unavailable(why),
            Failure::Own(own) => StoreError::Unavailable(own.to_string()),
            Failure::Store(error) => error,
        }
    }

    /// Says that trying again is of no use, and why.
    pub(crate) fn refused(why: impl Into<String>) -> Failure<O> {
        Failure::Store(StoreError::Unavailable(why.into()))
    }
}

/// A connection of one engine.
pub(crate) trait Link: Sized {
    /// How to reach the servers.
    type Door;
    /// The failure that only this engine has.
    type Own: Debug + Display;
    /// What a lane remembers of its operations.
    type Memory: Default;

    /// The longest first pause between attempts, and the longest pause.
    const PAUSES: (Duration, Duration);
    /// The longest time that an attempt gets.
    const ATTEMPT_MAX: Duration;
    /// Whether there is no pause after a first attempt that ends with the engine's own failure.
    const OWN_AT_ONCE: bool;

    /// Connects, within a time limit.
    fn open(door: &Self::Door, limit: Duration) -> Result<Self, Failure<Self::Own>>;

    /// Fails if another server is to be used now. Then this one may show what was.
    fn check(&self, door: &Self::Door) -> Result<(), Failure<Self::Own>>;

    /// Names the servers, for messages.
    fn servers(door: &Self::Door) -> String;
}

/// A connection and its operations.
pub(crate) struct Lane<L: Link> {
    /// The lane's number in the store.
    pub(crate) number: u16,
    pub(crate) memory: L::Memory,
    pub(crate) link: Option<L>,
}

/// All lanes of a store.
pub(crate) struct Pool<L: Link> {
    pub(crate) door: Arc<L::Door>,
    pub(crate) patience: Duration,
    /// The lanes that are not in use. The one used last is at the end, so that few threads need few
    /// connections.
    free: Mutex<Vec<Lane<L>>>,
    returned: Condvar,
}

/// A lane in use. It is returned when this is dropped.
pub(crate) struct Taken<'a, L: Link> {
    pool: &'a Pool<L>,
    pub(crate) lane: Option<Lane<L>>,
    /// When the patience ends.
    end: Instant,
    /// What became of an attempt is unknown, and only this lane can tell.
    is_pinned: bool,
}

impl<L: Link> Pool<L> {
    pub(crate) fn new(door: Arc<L::Door>, lanes: usize, patience: Duration) -> Pool<L> {
        let lanes = u16::try_from(lanes.clamp(1, 1000)).unwrap_or(1000);
        let lane = |number| Lane { number, memory: L::Memory::default(), link: None };
        let free = Mutex::new((0..lanes).rev().map(lane).collect());
        Pool { door, patience, free, returned: Condvar::new() }
    }

    /// Gives the first lane its connection.
    pub(crate) fn give(&self, link: L) {
        if let Some(lane) = self.free.lock().last_mut() {
            lane.link = Some(link);
        }
    }

    /// Uses a connection that is not in use, if there is one.
    pub(crate) fn with_free(&self, work: impl FnOnce(&mut L)) {
        let mut free = self.free.lock();
        if let Some(link) = free.iter_mut().rev().find_map(|lane| lane.link.as_mut()) {
            work(link);
        }
    }

    /// Takes a lane, and waits for one if all are in use.
    ///
    /// # Errors
    /// None became free in time.
    pub(crate) fn take(&self) -> Result<Taken<'_, L>, StoreError> {
        let end = base::time::monotonic() + self.patience;
        let mut free = self.free.lock();
        loop {
            let connected = free.iter().rposition(|lane| lane.link.is_some());
            if let Some(lane) = connected.map(|at| free.remove(at)).or_else(|| free.pop()) {
                return Ok(Taken { pool: self, lane: Some(lane), end, is_pinned: false });
            }
            if self.returned.wait_until(&mut free, end).timed_out() {
                return Err(StoreError::Unavailable(format!(
                    "all connections to {} are in use; it is slow, or this node needs more of them (-o lanes=N)",
                    L::servers(&self.door)
                )));
            }
        }
    }
}

impl<L: Link> Taken<'_, L> {
    /// How to reach the servers.
    pub(crate) fn door(&self) -> &L::Door {
        &self.pool.door
    }

    /// Makes attempts, numbered from 1, until one succeeds or the patience ends.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn attempts<T>(
        &mut self,
        mut work: impl FnMut(&mut Self, i32) -> Result<T, Failure<L::Own>>,
    ) -> Result<T, StoreError> {
        let (mut pause, longest) = L::PAUSES;
        let (mut attempt, began) = (1, base::time::monotonic());
        let mut said = None;
        loop {
            let failure = match work(self, attempt) {
                Ok(done) => return Ok(done),
                Err(Failure::Store(error)) => return Err(error),
                Err(failure) => failure,
            };
            match &failure {
                Failure::Lost(_) => self.is_pinned = true,
                Failure::Crowded(_) => {
                    self.use_another();
                    pause = pause.min(CROWDED);
                    // A program that waits for longer can wait for a connection too.
                    let left = Deadline::current().is_bounded().then(|| Deadline::current().left());
                    let left = left.unwrap_or_default().min(CROWDED_MAX);
                    self.end = self.end.max(began + left);
                }
                _ => {}
            }
            let now = L::OWN_AT_ONCE && attempt == 1 && matches!(failure, Failure::Own(_));
            let chance = if now { 0.0 } else { base::random::u64() as f64 / u64::MAX as f64 };
            let wait = pause.mul_f64(chance);
            if base::time::monotonic() + wait >= self.end {
                // The last attempt may have had too little time for the server to say the same again.
                let cause = if let Failure::Lost(_) = failure { said.unwrap_or(failure) } else { failure };
                return Err(cause.into_store());
            }
            if !matches!(failure, Failure::Lost(_)) {
                said = Some(failure);
            }
            std::thread::sleep(wait);
            pause = (pause * 2).min(longest);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Goes on with a lane that is connected, if one is free and nothing was asked by this one.
    fn use_another(&mut self) {
        let mut free = self.pool.free.lock();
        let connected = free.iter_mut().rev().find(|lane| lane.link.is_some());
        if let (Some(lane), Some(other), false) = (&mut self.lane, connected, self.is_pinned) {
            std::mem::swap(lane, other);
        }
    }

    /// Makes one attempt. Connects if the lane is not connected.
    pub(crate) fn attempt<T>(
        &mut self,
        work: impl FnOnce(&mut L, &L::Door, Duration) -> Result<T, Failure<L::Own>>,
    ) -> Result<T, Failure<L::Own>> {
        let left = self.end.saturating_duration_since(base::time::monotonic());
        let limit = left.clamp(ATTEMPT_MIN, L::ATTEMPT_MAX);
        let door = &*self.pool.door;
        let Some(lane) = &mut self.lane else {
            return Err(Failure::refused("the lane is in use elsewhere"));
        };
        lane.link.take_if(|link| link.check(door).is_err());
        let link = match &mut lane.link {
            Some(link) => link,
            none => none.insert(L::open(door, limit)?),
        };
        let done = work(link, door, limit);
        let done = link.check(door).and(done);
        if matches!(done, Err(Failure::Lost(_))) {
            lane.link = None;
        }
        done
    }
}

impl<L: Link> Drop for Taken<'_, L> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.pool.free.lock().push(lane);
            self.pool.returned.notify_one();
        }
    }
}
