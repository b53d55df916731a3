//! Connections to the store, and what becomes of those that died without a word.
//!
//! A firewall, a balancer or a suspended machine drops a connection, and this side is not told. The next
//! request on it has no answer until a time limit. So a request that has no answer soon is sent once more, on
//! a new connection. If the new one answers first, the old connections are not used any more. If the old one
//! does, the store is slow, and the next request waits longer before it is sent twice.
//!
//! Not every request may be sent twice at the same time: of two that create a record, one finds it there.
//! Such a request is given up, if nothing else had an answer meanwhile. Its caller then tries again.
//!
//! A large body is sent for as long as the line takes. It uses no connection that was idle for a while.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use parking_lot::RwLock;
use reqwest::{Client, Request, Response};
use tokio::time::timeout;

use super::fault::Fault;

/// An answer that pauses for longer is given up.
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// A request without an answer for this long may be on a dead connection.
const SOON: Duration = Duration::from_secs(2);
/// The most requests that are sent a second time at once.
const SECONDS: usize = 8;
/// A request that waits for a place among these looks again after this time.
const TICK: Duration = Duration::from_millis(100);
/// A large body is not sent on connections that were silent for this long.
const SILENT: Duration = Duration::from_secs(2);

/// How a request may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The request may be sent twice at the same time.
    Beside,
    /// Only when the first one was given up.
    After,
    /// The request's body is large.
    Large,
}

/// Connections that began after a moment.
struct Generation {
    client: Client,
    /// Nanoseconds from `Pool::start` to the last answer on one of them, plus one; 0: none yet.
    answered: AtomicU64,
}

/// Makes a client without connections.
type Make = Box<dyn Fn() -> Result<Client, Fault> + Send + Sync>;

/// Connections that are replaced together.
struct Pool {
    make: Make,
    now: RwLock<Arc<Generation>>,
    start: Instant,
}

/// See the [module](self).
pub(super) struct Connections {
    small: Pool,
    /// For large bodies.
    large: Pool,
    /// Milliseconds after which a request is sent a second time.
    soon: AtomicU64,
    /// Requests that are sent a second time at the moment.
    seconds: AtomicUsize,
}

impl Connections {
    /// From what makes the clients for requests without and with a large body.
    ///
    /// # Errors
    /// No client can be made.
    pub(super) fn new(
        small: impl Fn() -> Result<Client, Fault> + Send + Sync + 'static,
        large: impl Fn() -> Result<Client, Fault> + Send + Sync + 'static,
    ) -> Result<Connections, Fault> {
        Ok(Connections {
            small: Pool::new(Box::new(small))?,
            large: Pool::new(Box::new(large))?,
            soon: AtomicU64::new(SOON.as_millis() as u64),
            seconds: AtomicUsize::new(0),
        })
    }

    /// Sends a request. `again` makes it once more.
    ///
    /// # Errors
    /// See [`Fault`].
    pub(super) async fn send(
        &self,
        how: Again,
        first: Request,
        again: impl FnOnce() -> Option<Request>,
        fault_of: impl Fn(&reqwest::Error) -> Fault,
    ) -> Result<Response, Fault> {
        let (pool, sent) = (&self.small, base::time::monotonic());
        if how == Again::Large {
            let on = self.large.unless_silent(sent);
            return self.large.answer(&on, first).await.map_err(|error| fault_of(&error));
        }
        let old = pool.now.read().clone();
        let soon = Duration::from_millis(self.soon.load(Ordering::Relaxed));
        let mut one = pin!(pool.answer(&old, first));
        if let Ok(done) = timeout(soon, one.as_mut()).await {
            self.was_quick(soon);
            return done.map_err(|error| fault_of(&error));
        }
        if how == Again::After {
            if pool.newer_than(&old).is_some() || pool.last(&old).is_some_and(|last| last < sent) {
                pool.replace(&old);
                return Err(Fault::Slow(soon));
            }
            return one.await.map_err(|error| fault_of(&error));
        }
        let Some(second) = again() else { return one.await.map_err(|error| fault_of(&error)) };
        let (fresh, _place) = loop {
            if let Some(newer) = pool.newer_than(&old) {
                break (newer, None);
            }
            if let Some((fresh, place)) = self.second() {
                break (fresh, Some(place));
            }
            if let Ok(done) = timeout(TICK, one.as_mut()).await {
                return done.map_err(|error| fault_of(&error));
            }
        };
        let two = pin!(pool.answer(&fresh, second));
        let done = match select(one, two).await {
            Either::Left((Ok(done), _)) => {
                let longer = (soon * 2).min(IDLE).as_millis() as u64;
                self.soon.store(longer, Ordering::Relaxed);
                return Ok(done);
            }
            Either::Left((Err(_), two)) => two.await,
            Either::Right((Ok(done), _)) => Ok(done),
            Either::Right((Err(_), one)) => return one.await.map_err(|error| fault_of(&error)),
        };
        let done = done.map_err(|error| fault_of(&error))?;
        self.soon.store(SOON.as_millis() as u64, Ordering::Relaxed);
        pool.replace_by(&old, &fresh);
        Ok(done)
    }

    /// A request had its answer before this time, which was longer for a slow store.
    fn was_quick(&self, soon: Duration) {
        if soon > SOON {
            let shorter = SOON.max(soon - soon / 16).as_millis() as u64;
            self.soon.store(shorter, Ordering::Relaxed);
        }
    }

    /// New connections for a second request, if there are not too many of these.
    fn second(&self) -> Option<(Arc<Generation>, Place<'_>)> {
        let before = self.seconds.fetch_add(1, Ordering::Relaxed);
        let place = Place(&self.seconds);
        (before < SECONDS).then(|| self.small.fresh()).flatten().map(|fresh| (fresh, place))
    }
}

impl Pool {
    fn new(make: Make) -> Result<Pool, Fault> {
        let first = Generation { client: make()?, answered: AtomicU64::new(0) };
        Ok(Pool { make, now: RwLock::new(Arc::new(first)), start: base::time::monotonic() })
    }

    fn fresh(&self) -> Option<Arc<Generation>> {
        let client = (self.make)().ok()?;
        Some(Arc::new(Generation { client, answered: AtomicU64::new(0) }))
    }

    /// The connections in use, or new ones if these had no answer for a while.
    fn unless_silent(&self, now: Instant) -> Arc<Generation> {
        let current = self.now.read().clone();
        let is_silent = self.last(&current).is_some_and(|last| now.saturating_duration_since(last) >= SILENT);
        if is_silent {
            self.replace(&current);
        }
        self.now.read().clone()
    }

    /// The connections in use, if these are others.
    fn newer_than(&self, old: &Arc<Generation>) -> Option<Arc<Generation>> {
        let now = self.now.read();
        (!Arc::ptr_eq(&now, old)).then(|| now.clone())
    }

    /// Uses new connections from now on. Those that are in use stay until their requests end.
    fn replace(&self, old: &Arc<Generation>) {
        if self.newer_than(old).is_none()
            && let Some(fresh) = self.fresh()
        {
            self.replace_by(old, &fresh);
        }
    }

    fn replace_by(&self, old: &Arc<Generation>, fresh: &Arc<Generation>) {
        let mut now = self.now.write();
        if Arc::ptr_eq(&now, old) {
            *now = Arc::clone(fresh);
        }
    }

    /// When the last answer came, if one did.
    fn last(&self, of: &Generation) -> Option<Instant> {
        let at = of.answered.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.start + Duration::from_nanos(at))
    }

    /// Sends a request on one of these connections.
    async fn answer(&self, on: &Generation, request: Request) -> Result<Response, reqwest::Error> {
        let answer = on.client.execute(request).await?;
        let at = base::time::monotonic().saturating_duration_since(self.start).as_nanos() as u64;
        on.answered.store(at + 1, Ordering::Relaxed);
        Ok(answer)
    }
}

/// Counts a second request until it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
