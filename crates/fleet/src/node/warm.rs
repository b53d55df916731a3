//! Warming of depots: a node asks the depots of its zone to fetch blobs before they are read. The bytes do
//! not pass through the node.
//!
//! It asks the depot that readers will ask. The placement says which one, and which is next if that one does
//! not answer. A depot fetches [`WARMING`] blobs at a time for warming and answers "later" to the rest, so
//! that it has capacity for readers. The node asks again after a pause, and gives up in the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use fetch::{Ended, Join, Purpose};
use net::transport::{Fail, Filled, Then, Unfilled};
use parking_lot::Mutex;

use super::counters::Counters;
use super::service::WARMING;
use super::{Fleet, Inner};

/// How many depots are tried for a blob.
const DEPOTS: usize = 2;
/// A fetch from an origin has ended after this time.
const FETCHING: Duration = Duration::from_secs(60);
/// A depot that has had no capacity for this long is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// The first pause before a busy depot is asked again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A blob that a depot has fetched is on its disk within this time.
const KEEPING: Duration = Duration::from_secs(20);
/// The interval at which this is checked.
const LOOK: Duration = Duration::from_millis(5);

/// Why a blob is not at a depot.
#[derive(Debug, thiserror::Error)]
pub enum NotWarmed {
    /// There is no depot.
    #[error("no depot is in this node's zone")]
    NoDepot,
    /// The depot said so, or did not answer.
    #[error("the depot at {address}: {why}")]
    Failed {
        /// The depot's address.
        address: SocketAddr,
        /// The error.
        why: Fail,
    },
}

impl Fleet {
    /// How many depots keep blobs for this node's zone.
    pub fn depots(&self) -> usize {
        self.inner.placed.lock().placement().depot_count()
    }

    /// Makes the zone's depot for a blob fetch it, and waits until it has done so. This takes minutes if the
    /// depot is busy.
    ///
    /// # Errors
    /// [`NotWarmed`].
    pub fn warm_depot(&self, id: &BlobId) -> Result<Filled, NotWarmed> {
        let depots = self.inner.placed.lock().placement().depots(id, DEPOTS);
        let mut failed = NotWarmed::NoDepot;
        for depot in depots.into_iter().filter(|depot| *depot != self.inner.own) {
            let (Some(net), Some(peer)) = (self.inner.net(), self.inner.peer(depot)) else { continue };
            let until = base::time::monotonic() + PATIENCE;
            let mut pause = PAUSES.0;
            let why = loop {
                match net.fill(peer, id, FETCHING).wait() {
                    Ok(filled) => return Ok(filled),
                    Err(Fail::Busy) if base::time::monotonic() < until => {
                        std::thread::sleep(pause);
                        pause = (2 * pause).min(PAUSES.1);
                    }
                    Err(why) => break why,
                }
            };
            self.inner.doubt(depot, &why);
            failed = NotWarmed::Failed { address: peer.address, why };
        }
        Err(failed)
    }
}

impl Inner {
    /// On a depot: fetches a blob for warming. `then` is called with the result, on its own thread if it
    /// takes time.
    pub(super) fn warm(self: &Arc<Inner>, id: &BlobId, then: Then) {
        if self.holds(id) {
            return then(Ok(Filled::Here));
        }
        // A depot whose cache is not open yet has no capacity.
        if self.holdings().is_none() || !self.warming.begin(WARMING) {
            return then(Err(Unfilled::Busy));
        }
        let (inner, id, end) = (Arc::clone(self), *id, Arc::new(Mutex::new(Some(then))));
        let told = Arc::clone(&end);
        let work = move || {
            let came = inner.fetch_and_keep(&id);
            inner.warming.end();
            if came.is_ok() {
                Counters::one(&inner.counters.warmed);
            }
            if let Some(then) = told.lock().take() {
                then(came);
            }
        };
        if base::thread::spawn("covey-warmed", work).is_err() {
            self.warming.end();
            if let Some(then) = end.lock().take() {
                then(Err(Unfilled::Busy));
            }
        }
    }

    /// Fetches a blob, and waits until the cache has it on the disk and it can be sent to other nodes.
    pub(super) fn fetch_and_keep(self: &Arc<Inner>, id: &BlobId) -> Result<Filled, Unfilled> {
        let fetched = loop {
            match self.table.join_whole(id, Purpose::Others) {
                Join::Leader(lead) => break self.lead_for_others(lead),
                Join::Follower(fetch) => match fetch.wait() {
                    Ok(part) => break Ok(part),
                    Err(Ended::Failed(error)) => break Err(error),
                    Err(Ended::GivenUp) => {}
                },
            }
        };
        if let Err(error) = fetched {
            return Err(Unfilled::Failed(format!("it could not fetch it: {error}")));
        }
        // The cache writes in the background. A blob that is only in its memory is soon gone.
        let until = base::time::monotonic() + KEEPING;
        while !self.holds(id) {
            if base::time::monotonic() >= until {
                return Err(Unfilled::Failed("its disk did not keep it: it is full, or fails".to_owned()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Filled::Fetched)
    }
}
