//! Readers who come while a blob is on its way: they are told by whoever brings it, and hold no thread until then.
//!
//! The flight tells them when it lands, whatever it brings. Where the remote can say more ([`blob::BlobSource::coming`]) it tells them sooner: in a
//! fleet, when their range of the blob has come and was compared.

use std::sync::Arc;

use base::BlobId;
use blob::coming::{Coming, Rider, Then};

use super::Core;
use super::flights::{Flight, Ride};

impl Core {
    /// See [`blob::BlobSource::coming`].
    pub(super) fn coming(self: &Arc<Core>, id: &BlobId, offset: u32, len: u32, then: Then) -> Coming {
        if len == 0 || self.is_near(id) || self.removals.has(id) {
            return Coming::No;
        }
        match self.flights.find(&(*id, None)) {
            Some(flight) => {
                self.ride(id, &flight, (offset, len), then);
                Coming::Begun
            }
            None => match self.remote.coming(id, offset, len, then) {
                Coming::No => Coming::No,
                // Somebody else fetches it there, but not for this node's disk.
                Coming::Begun | Coming::Unbegun => Coming::Unbegun,
            },
        }
    }

    fn ride(self: &Arc<Core>, id: &BlobId, flight: &Arc<Flight>, (offset, len): (u32, u32), then: Then) {
        self.counters.shared_fetches.add(1);
        let (core, given) = (Arc::clone(self), Arc::clone(flight));
        let rider = Rider::new(Box::new(move |told| {
            let came = told.as_ref().ok().map(|bytes| bytes.len());
            let used = then(told);
            if let Some(bytes) = came.filter(|_| used) {
                given.gave(bytes);
                core.counters.far_reads.add(1);
                core.counters.far_bytes.add(bytes as u64);
            }
            used
        }));
        let sooner = rider.clone();
        flight.ride(Ride { offset, len, rider });
        // What comes to nothing there may still come of the flight.
        let sooner = move |told: blob::coming::Told<'_>| told.is_ok() && sooner.tell(told);
        let _ = self.remote.coming(id, offset, len, Box::new(sooner));
    }
}
