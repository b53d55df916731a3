//! What others may have of the blobs here: a node of a fleet gives them away as files.
//!
//! Nothing here counts as a use: what others read does not keep a blob from going. What is given away may go while it is sent; a file
//! that is open stays readable.

use std::fs::File;
use std::sync::Arc;

use base::BlobId;
use blob::Sums;

use super::read::Here;
use super::{Core, NodeCache};
use crate::residency::Cost;

/// Is told what comes to this node's disk and what goes from it. Called on the cache's threads: quick, and without a call back into
/// the cache.
pub trait Watch: Send + Sync {
    /// The blob is on the disk: it can be given away.
    fn came(&self, id: &BlobId);

    /// It is not any more.
    fn went(&self, id: &BlobId);

    /// What it would cost to fetch it again.
    fn cost(&self, id: &BlobId) -> Cost;
}

impl NodeCache {
    /// The blob's file and what it can be checked with, if it is on the disk.
    pub fn lend(&self, id: &BlobId) -> Option<(File, Sums)> {
        let core = &self.core;
        if !core.books.contains(id) || !core.health.may_read() {
            return None;
        }
        let sums = core.shelf.sums(id).ok()?;
        let file = File::open(core.shelf.file(id)).ok()?;
        let is_whole = file.metadata().is_ok_and(|about| about.len() == u64::from(sums.size()));
        is_whole.then_some((file, sums))
    }

    /// Somebody says that the copy here is not the blob: it is compared with its name, and goes if that is so. Whether it was sound;
    /// none where there is no copy.
    pub fn suspect(&self, id: &BlobId) -> Option<bool> {
        let core: &Arc<Core> = &self.core;
        if !core.books.contains(id) {
            return None;
        }
        // Dropping a damaged copy is what every look at the disk does.
        Some(matches!(core.here(id, || core.shelf.verify(id)), Ok(Here::Done(()))))
    }

    /// The blobs that are on the disk.
    pub fn lendable(&self) -> Vec<BlobId> {
        self.core.books.all()
    }

    /// Bytes that could still come without anything going.
    pub fn free(&self) -> u64 {
        let (_, bytes, budget) = self.core.books.totals();
        budget.saturating_sub(bytes)
    }
}

impl Core {
    /// On the disk from now on.
    pub(super) fn came(&self, id: &BlobId) {
        if let Some(watch) = &self.watch {
            watch.came(id);
        }
    }

    /// Not on the disk any more.
    pub(super) fn went(&self, id: &BlobId) {
        if let Some(watch) = &self.watch {
            watch.went(id);
        }
    }

    /// What is written down of a copy of what is elsewhere too.
    pub(super) fn cost(&self, id: &BlobId) -> Cost {
        self.watch.as_ref().map_or(Cost::Origin, |watch| watch.cost(id))
    }
}
