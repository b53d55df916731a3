//! The connections of a store in etcd.

use std::time::Duration;

use etcd_client::Error;
use meta::store::StoreError;

use super::errors::{Failure, NoLease};
use super::link::{Door, Link, Wires};
use crate::pool;

pub(super) type Pool = pool::Pool<Link>;
pub(super) type Taken<'a> = pool::Taken<'a, Link>;

/// What is known of a lane's key in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The key's owner. Another owner has other keys.
    pub(super) owner: String,
    /// The value of the key. `None`: there is no such key.
    pub(super) seen: Option<String>,
    /// The number of the last operation.
    pub(super) op: u64,
    /// Whether it is unknown if the last operation was, or will be, applied.
    pub(super) is_open: bool,
}

impl pool::Link for Link {
    type Door = Door;
    type Own = NoLease;
    type Memory = Record;

    const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
    /// An attempt that waits for one member does not use up the patience, because another one may answer.
    const ATTEMPT_MAX: Duration = Duration::from_secs(4);
    const OWN_AT_ONCE: bool = false;

    fn open(door: &Door, limit: Duration) -> Result<Link, Failure> {
        Link::open(door, limit)
    }

    /// Any member serves.
    fn check(&self, _: &Door) -> Result<(), Failure> {
        Ok(())
    }

    fn servers(door: &Door) -> String {
        format!("the cluster {}", door.target.server())
    }
}

impl Pool {
    /// Makes a last request if a lane is connected. Its failure does not matter.
    pub(super) fn last<T>(&self, limit: Duration, work: impl AsyncFnOnce(Wires) -> Result<T, Error>) {
        self.with_free(|link| _ = link.run(&self.door, limit, work));
    }

    /// Makes a request that may be repeated, until it succeeds or the patience ends.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn ask<T>(
        &self,
        mut work: impl AsyncFnMut(Wires) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.take()?.attempts(|taken, _| taken.once(async |wires| work(wires).await))
    }
}

impl Taken<'_> {
    /// Makes one attempt. Connects if the lane is not connected.
    pub(super) fn once<T>(
        &mut self,
        work: impl AsyncFnOnce(Wires) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        self.attempt(|link, door, limit| link.run(door, limit, work))
    }

    /// The member that the lane is connected to.
    pub(super) fn server(&self) -> String {
        let link = self.lane.as_ref().and_then(|lane| lane.link.as_ref());
        link.map(|link| link.name.clone()).unwrap_or_default()
    }

    /// The lane's number.
    pub(super) fn number(&self) -> u32 {
        self.lane.as_ref().map_or(0, |lane| lane.number.into())
    }

    /// What is known of the lane's key.
    pub(super) fn record(&self) -> Record {
        self.lane.as_ref().map(|lane| lane.memory.clone()).unwrap_or_default()
    }

    /// Remembers what is known of the lane's key.
    pub(super) fn set_record(&mut self, record: Record) {
        if let Some(lane) = &mut self.lane {
            lane.memory = record;
        }
    }
}
