//! The connections of a store, and the attempts of a request.
//!
//! A lane is a connection and a count of operations. It has at most one request in flight. So the server
//! needs to remember one operation for each lane, the last one.
//!
//! A request is tried again after a lost connection and after an error by which the server says so, with
//! pauses that grow and are random, until the patience of the store ends.

use std::time::{Duration, Instant};

use meta::store::StoreError;
use parking_lot::{Condvar, Mutex};
use tokio_postgres::{Client, Error};

use super::errors::Failure;
use super::link::{Door, Link};

/// The longest first pause.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(1000);
/// The shortest time that an attempt gets.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);

/// A connection and its operations.
pub(super) struct Lane {
    /// Its number in the store.
    pub(super) number: i32,
    /// The number of its last operation.
    pub(super) op: i64,
    link: Option<Link>,
}

/// All lanes of a store.
pub(super) struct Pool {
    pub(super) door: Door,
    pub(super) patience: Duration,
    /// The lanes that nobody uses. The one used last is at the end, so that few threads need few connections.
    free: Mutex<Vec<Lane>>,
    returned: Condvar,
}

/// A lane in use. It is returned when this is dropped.
pub(super) struct Taken<'a> {
    pool: &'a Pool,
    lane: Option<Lane>,
    /// When the patience ends.
    end: Instant,
}

impl Pool {
    pub(super) fn new(door: Door, lanes: usize, patience: Duration) -> Pool {
        let lanes = i32::try_from(lanes.clamp(1, 1000)).unwrap_or(1000);
        let lane = |number| Lane { number, op: 0, link: None };
        let free = Mutex::new((0..lanes).rev().map(lane).collect());
        Pool { door, patience, free, returned: Condvar::new() }
    }

    /// Gives the first lane its connection.
    pub(super) fn give(&self, link: Link) {
        if let Some(lane) = self.free.lock().last_mut() {
            lane.link = Some(link);
        }
    }

    /// Makes a last request if a lane is connected. Its failure does not matter.
    pub(super) fn last<T>(&self, limit: Duration, work: impl AsyncFnOnce(&Client) -> Result<T, Error>) {
        let mut free = self.free.lock();
        if let Some(link) = free.iter_mut().rev().find_map(|lane| lane.link.as_mut()) {
            let _ = link.run(limit, work);
        }
    }

    /// A lane, waiting for one if all are in use.
    ///
    /// # Errors
    /// None became free in time.
    pub(super) fn take(&self) -> Result<Taken<'_>, StoreError> {
        let end = base::time::monotonic() + self.patience;
        let mut free = self.free.lock();
        loop {
            if let Some(lane) = free.pop() {
                return Ok(Taken { pool: self, lane: Some(lane), end });
            }
            if self.returned.wait_until(&mut free, end).timed_out() {
                return Err(StoreError::Unavailable(format!(
                    "all connections to the server {} are in use; it is slow, or this node needs more of them",
                    self.door.target.server()
                )));
            }
        }
    }

    /// Makes a request that may be repeated, until it succeeds or the patience ends.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn ask<T>(
        &self,
        mut work: impl AsyncFnMut(&Client) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.take()?.attempts(|taken, _| taken.once(async |client| work(client).await))
    }
}

impl Taken<'_> {
    /// Attempts, numbered from 1, until one succeeds or the patience ends.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn attempts<T>(
        &mut self,
        mut work: impl FnMut(&mut Self, i32) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut pause = PAUSE_FIRST;
        for attempt in 1.. {
            let failure = match work(self, attempt) {
                Ok(done) => return Ok(done),
                Err(failure @ Failure::Store(_)) => return Err(failure.into_store()),
                Err(failure) => failure,
            };
            // The server's wish for more rows is granted at once, the first time.
            let now = attempt == 1 && matches!(failure, Failure::Grow(_));
            let chance = if now { 0.0 } else { base::random::u64() as f64 / u64::MAX as f64 };
            let wait = pause.mul_f64(chance);
            if base::time::monotonic() + wait >= self.end {
                return Err(failure.into_store());
            }
            std::thread::sleep(wait);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(StoreError::Unavailable("the attempts were used up".to_owned()))
    }

    /// One attempt. Connects if the lane is not connected.
    pub(super) fn once<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let left = self.end.saturating_duration_since(base::time::monotonic()).max(ATTEMPT_MIN);
        let door = &self.pool.door;
        let Some(lane) = &mut self.lane else {
            return Err(Failure::refused("the lane is in use elsewhere"));
        };
        if lane.link.as_ref().is_some_and(|link| link.is_outdated(door)) {
            lane.link = None;
        }
        let link = match &mut lane.link {
            Some(link) => link,
            none => none.insert(Link::open(door, left)?),
        };
        let mut done = link.run(left, work);
        if link.is_outdated(door) {
            // Another lane has moved to another server meanwhile. What this one says may be old.
            let server = link.target.server();
            done = Err(Failure::Lost(format!("the server {server} was given up for another one")));
        }
        if matches!(done, Err(Failure::Lost(_))) {
            lane.link = None;
        }
        done
    }

    /// The lane's number, and the number of a new operation.
    pub(super) fn next_op(&mut self) -> (i32, i64) {
        self.lane.as_mut().map_or((0, 0), |lane| {
            lane.op += 1;
            (lane.number, lane.op)
        })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.pool.free.lock().push(lane);
            self.pool.returned.notify_one();
        }
    }
}
