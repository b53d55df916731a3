//! Reads that join an in-flight fetch of a blob. The fetch notifies them on completion, and they hold no
//! thread until then.
//!
//! The fetch notifies its waiters when it ends, with its result or its error. A remote that supports
//! notification on arrival ([`blob::BlobSource::coming`]) notifies them sooner: in a fleet, as soon as their
//! range of the blob has arrived and was verified.

use std::sync::Arc;

use base::BlobId;
use blob::coming::{Coming, Rider, Then};

use super::Core;
use super::flights::{Flight, Ride};

impl Core {
    /// See [`blob::BlobSource::coming`].
    pub(super) fn coming(self: &Arc<Core>, id: &BlobId, offset: u32, len: u32, then: Then) -> Coming {
        if len == 0 || self.is_local(id) || self.removals.has(id) {
            return Coming::No;
        }
        match self.flights.find(&(*id, None)) {
            Some(flight) => {
                self.ride(id, &flight, (offset, len), then);
                Coming::Begun
            }
            None => match self.remote.coming(id, offset, len, then) {
                Coming::No => Coming::No,
                // Another reader of the remote fetches it there, but not for this node's disk.
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
        // If the remote's notification fails, this fetch may still succeed.
        let sooner = move |told: blob::coming::Told<'_>| told.is_ok() && sooner.tell(told);
        let _ = self.remote.coming(id, offset, len, Box::new(sooner));
    }
}
