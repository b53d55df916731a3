//! The connections of a store, and the attempts of a request.
//!
//! A lane is a connection and a count of operations. It has at most one request in flight. So etcd needs to
//! hold one operation for each lane, the last one.
//!
//! A request is tried again after a lost connection and after an error by which the server says so, with
//! pauses that grow and are random, until the patience of the store ends. An attempt that waits for one
//! member does not use up all of it, because another member may answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::Error;
use meta::store::StoreError;
use parking_lot::{Condvar, Mutex};

use super::errors::Failure;
use super::link::{Door, Link, Wires};

/// The longest first pause.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The shortest and the longest time that an attempt gets.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);
const ATTEMPT_MAX: Duration = Duration::from_secs(4);

/// What is known of a lane's key in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The key's owner. Another owner has other keys.
    pub(super) owner: String,
    /// The value of the key. `None`: there is no such key.
    pub(super) seen: Option<String>,
    /// The number of the last operation.
    pub(super) op: u64,
    /// It is unknown whether the last operation was, or will be, applied.
    pub(super) is_open: bool,
}

/// A connection and its operations.
struct Lane {
    number: u32,
    record: Record,
    link: Option<Link>,
}

/// All lanes of a store.
pub(super) struct Pool {
    pub(super) door: Arc<Door>,
    pub(super) patience: Duration,
    /// The lanes that are not in use. The one used last is at the end, so that few threads need few
    /// connections.
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
    pub(super) fn new(door: Arc<Door>, lanes: usize, patience: Duration) -> Pool {
        let lanes = u32::try_from(lanes.clamp(1, 1000)).unwrap_or(1000);
        let lane = |number| Lane { number, record: Record::default(), link: None };
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
    pub(super) fn last<T>(&self, limit: Duration, work: impl AsyncFnOnce(Wires) -> Result<T, Error>) {
        let mut free = self.free.lock();
        if let Some(link) = free.iter_mut().rev().find_map(|lane| lane.link.as_mut()) {
            let _ = link.run(&self.door, limit, work);
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
                    "all connections to the cluster {} are in use; it is slow, or this node needs more of them",
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
        mut work: impl AsyncFnMut(Wires) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.take()?.attempts(|taken| taken.once(async |wires| work(wires).await))
    }
}

impl Taken<'_> {
    /// Attempts, until one succeeds or the patience ends.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn attempts<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut pause = PAUSE_FIRST;
        loop {
            let failure = match work(self) {
                Ok(done) => return Ok(done),
                Err(failure @ Failure::Store(_)) => return Err(failure.into_store()),
                Err(failure) => failure,
            };
            let chance = base::random::u64() as f64 / u64::MAX as f64;
            let wait = pause.mul_f64(chance);
            if base::time::monotonic() + wait >= self.end {
                return Err(failure.into_store());
            }
            std::thread::sleep(wait);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// One attempt. Connects if the lane is not connected.
    pub(super) fn once<T>(
        &mut self,
        work: impl AsyncFnOnce(Wires) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let left = self.end.saturating_duration_since(base::time::monotonic());
        let limit = left.clamp(ATTEMPT_MIN, ATTEMPT_MAX);
        let door = &*self.pool.door;
        let Some(lane) = &mut self.lane else {
            return Err(Failure::refused("the lane is in use elsewhere"));
        };
        let link = match &mut lane.link {
            Some(link) => link,
            none => none.insert(Link::open(door, limit)?),
        };
        let done = link.run(door, limit, work);
        if matches!(done, Err(Failure::Lost(_))) {
            lane.link = None;
        }
        done
    }

    /// The member that the lane is connected to.
    pub(super) fn server(&self) -> String {
        let link = self.lane.as_ref().and_then(|lane| lane.link.as_ref());
        link.map(|link| link.name.clone()).unwrap_or_default()
    }

    /// The lane's number.
    pub(super) fn number(&self) -> u32 {
        self.lane.as_ref().map_or(0, |lane| lane.number)
    }

    /// What is known of the lane's key.
    pub(super) fn record(&mut self) -> Record {
        self.lane.as_ref().map(|lane| lane.record.clone()).unwrap_or_default()
    }

    /// Remembers what is known of the lane's key.
    pub(super) fn set_record(&mut self, record: Record) {
        if let Some(lane) = &mut self.lane {
            lane.record = record;
        }
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
