//! Which database has answered last, and since when it is that one.
//!
//! A server that began anew, or took the place of another one, may lack what was confirmed last. The nodes
//! notice when they renew their sessions, and send it again. Until all of them have done so, what no row
//! refers to may be referred to again.

use std::time::{Duration, Instant};

use meta::engine::database::{Database, Incarnation};
use meta::store::StoreError;
use parking_lot::Mutex;

#[derive(Default)]
struct Last {
    found: Option<Incarnation>,
    changed: Option<Instant>,
}

/// See the [module](self).
pub(super) struct EngineSeen(Mutex<Last>);

impl EngineSeen {
    /// Begins with the database that answers now.
    pub(super) fn now(names: &dyn Database) -> EngineSeen {
        EngineSeen(Mutex::new(Last { found: names.incarnation().ok(), changed: None }))
    }

    /// Notes the database that has answered.
    pub(super) fn note(&self, found: Incarnation) {
        let mut last = self.0.lock();
        if last.found.as_ref().is_some_and(|before| *before != found) {
            last.changed = Some(base::time::monotonic());
        }
        last.found = Some(found);
    }

    /// The database that has answered last.
    pub(super) fn last(&self) -> Option<Incarnation> {
        self.0.lock().found.clone()
    }

    /// Asks the database which one it is.
    ///
    /// # Errors
    /// It does not answer. Or it is not the one that was noted last, or has been that one for a shorter time
    /// than this.
    pub(super) fn check(&self, names: &dyn Database, for_at_least: Duration) -> Result<(), StoreError> {
        let found = names.incarnation()?;
        let last = self.0.lock();
        let is_new = last.changed.is_some_and(|changed| changed.elapsed() < for_at_least);
        if last.found.as_ref() == Some(&found) && !is_new {
            return Ok(());
        }
        let why = "the database has begun anew, and may lack changes that nodes send to it again; try again in some seconds";
        Err(StoreError::Unavailable(why.to_owned()))
    }
}
