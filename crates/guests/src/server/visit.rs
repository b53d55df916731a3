//! Guests that come by another way than a byte stream. They take places beside the others, and what holds for
//! the others holds for them: how many there may be, what they may change, and that their appends to a file
//! come one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::places::{Peer, Work};

use super::{Options, Server, Shared};
use crate::counted::Counted;

/// Where other ways come in. Clones are equivalent.
#[derive(Clone)]
pub struct Door(Arc<Shared>);

impl Server {
    /// The door of this server.
    pub fn door(&self) -> Door {
        Door(Arc::clone(&self.shared))
    }
}

impl Door {
    /// Gives a guest a place.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub fn admit(&self) -> Result<Visit, String> {
        let shared = &self.0;
        let why = |(_, why)| why;
        // A VMM's socket is its user's alone. It is at work until it is gone.
        let place = Arc::new(shared.place(Peer::Unknown, true, || {}).map_err(why)?);
        let work = place.work();
        let guests = shared.guests.lock();
        shared.may_attach(&guests).map_err(why)?;
        shared.visits.fetch_add(1, Ordering::AcqRel);
        let number = shared.last_guest.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Visit { shared: Arc::clone(shared), number, _work: work })
    }

    /// How guests are served.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Writes a line to the log.
    pub fn log(&self, line: &str) {
        self.0.log(line);
    }
}

/// A guest's place. It is free again when this is dropped.
pub struct Visit {
    shared: Arc<Shared>,
    number: u64,
    /// Holds the place.
    _work: Work,
}

impl Visit {
    /// The guest's number, for people.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// A view that holds nothing yet. A guest needs a new one when its kernel begins anew.
    pub fn view(&self) -> Counted {
        self.shared.view(false)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let _guests = self.shared.guests.lock();
        self.shared.visits.fetch_sub(1, Ordering::AcqRel);
    }
}
