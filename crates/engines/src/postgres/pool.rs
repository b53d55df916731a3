//! The connections of a store in PostgreSQL.

use std::time::Duration;

use meta::store::StoreError;
use tokio_postgres::{Client, Error};

use super::errors::{Failure, Grow};
use super::link::{Door, Link};
use crate::pool;

pub(super) type Pool = pool::Pool<Link>;
pub(super) type Taken<'a> = pool::Taken<'a, Link>;

impl pool::Link for Link {
    type Door = Door;
    type Own = Grow;
    /// The number of the last operation.
    type Memory = i64;

    const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(1000));
    const ATTEMPT_MAX: Duration = Duration::MAX;
    /// The server's wish for more rows is granted at once.
    const OWN_AT_ONCE: bool = true;

    fn open(door: &Door, limit: Duration) -> Result<Link, Failure> {
        Link::open(door, limit)
    }

    fn check(&self, door: &Door) -> Result<(), Failure> {
        if !self.is_outdated(door) {
            return Ok(());
        }
        let server = self.target.server();
        Err(Failure::Lost(format!("the server {server} was given up for another one")))
    }

    fn servers(door: &Door) -> String {
        format!("the server {}", door.target.server())
    }
}

impl Pool {
    /// Makes a last request if a lane is connected. Its failure does not matter.
    pub(super) fn last<T>(&self, limit: Duration, work: impl AsyncFnOnce(&Client) -> Result<T, Error>) {
        self.with_free(|link| _ = link.run(limit, work));
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
    /// Makes one attempt. Connects if the lane is not connected.
    pub(super) fn once<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        self.attempt(|link, _, limit| link.run(limit, work))
    }

    /// The lane's number.
    pub(super) fn number(&self) -> i32 {
        self.lane.as_ref().map_or(0, |lane| lane.number.into())
    }

    /// The lane's number, and the number of a new operation.
    pub(super) fn next_op(&mut self) -> (i32, i64) {
        self.lane.as_mut().map_or((0, 0), |lane| {
            lane.memory += 1;
            (lane.number.into(), lane.memory)
        })
    }
}
