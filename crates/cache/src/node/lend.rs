//! Lending blobs to other nodes: in a fleet, a node sends its blobs as files.
//!
//! Lending does not count as a use: reads by other nodes do not protect a blob from eviction. A blob may be
//! evicted while it is sent, because its open file stays readable.

use std::fs::File;
use std::sync::Arc;

use base::BlobId;
use blob::Sums;

use super::read::Here;
use super::{Core, NodeCache};
use crate::residency::Cost;

/// Is notified of what is added to this node's disk and evicted from it. Called on the cache's threads, so it
/// must be quick and must not call back into the cache.
pub trait Watch: Send + Sync {
    /// The blob is on the disk, so it can be lent.
    fn inserted(&self, id: &BlobId);

    /// The blob is no longer on the disk.
    fn evicted(&self, id: &BlobId);

    /// The cost of fetching the blob again.
    fn cost(&self, id: &BlobId) -> Cost;
}

impl NodeCache {
    /// The blob's file and its sums, if it is on the disk.
    pub fn lend(&self, id: &BlobId) -> Option<(File, Sums)> {
        let core = &self.core;
        if !core.ledger.contains(id) || !core.health.may_read() {
            return None;
        }
        let sums = core.disk_store.sums(id).ok()?;
        let file = File::open(core.disk_store.file(id)).ok()?;
        let is_whole = file.metadata().is_ok_and(|about| about.len() == u64::from(sums.size()));
        is_whole.then_some((file, sums))
    }

    /// Verifies the copy here after another node reported that it is damaged, and drops it if so. Returns
    /// whether it was sound; `None` if there is no copy.
    pub fn suspect(&self, id: &BlobId) -> Option<bool> {
        let core: &Arc<Core> = &self.core;
        if !core.ledger.contains(id) {
            return None;
        }
        // `here` drops a damaged copy.
        Some(matches!(core.here(id, || core.disk_store.verify(id)), Ok(Here::Done(()))))
    }

    /// The blobs that are on the disk.
    pub fn lendable(&self) -> Vec<BlobId> {
        self.core.ledger.all()
    }

    /// Bytes that could be added without an eviction.
    pub fn free(&self) -> u64 {
        let (_, bytes, budget) = self.core.ledger.totals();
        budget.saturating_sub(bytes)
    }
}

impl Core {
    /// Notifies the watch that the blob is on the disk.
    pub(super) fn inserted(&self, id: &BlobId) {
        if let Some(watch) = &self.watch {
            watch.inserted(id);
        }
    }

    /// Notifies the watch that the blob is no longer on the disk. It is no longer in memory for other nodes
    /// either.
    pub(super) fn evicted(&self, id: &BlobId) {
        self.table.forget(id);
        if let Some(watch) = &self.watch {
            watch.evicted(id);
        }
    }

    /// The cost to record for a copy of a blob that other places hold too.
    pub(super) fn cost(&self, id: &BlobId) -> Cost {
        self.watch.as_ref().map_or(Cost::Origin, |watch| watch.cost(id))
    }
}
