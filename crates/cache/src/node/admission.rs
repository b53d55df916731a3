//! The cache's subscription to the table of in-flight fetches: every whole blob that arrives on this node
//! goes to the disk, whether a read, a prefetch or the fleet began its fetch.

use std::sync::{Arc, Weak};

use base::BlobId;
use blob::BlobError;
use fetch::{Completed, Purpose, Subscriber};

use super::Core;
use super::pool::Job;
use super::refused::Asked;

/// What the table tells. See the [module](self).
pub(super) struct Admission(Weak<Core>);

impl Admission {
    /// Subscribes for this cache, as long as the result lives.
    pub(super) fn of(core: &Arc<Core>) -> Arc<Admission> {
        let admission = Arc::new(Admission(Arc::downgrade(core)));
        let subscriber = Arc::downgrade(&admission);
        core.table.subscribe(subscriber);
        admission
    }
}

impl Subscriber for Admission {
    fn completed(&self, completed: Completed) {
        let Some(core) = self.0.upgrade() else { return };
        core.refused.came(Asked::Reads, &core.health, &Ok(()));
        match completed.purpose {
            Purpose::Read => {}
            // Readers find it here from now on, and not only until it is on the disk.
            Purpose::Prefetch => {
                let part = Arc::clone(&completed.part);
                let gone = core.memory.lock().keep_passed(&completed.id, part, completed.taken);
                drop(gone);
            }
            Purpose::Others => {
                core.counters.whole_fetches.add(1);
                core.counters.fetched_bytes.add(completed.part.bytes.len() as u64);
            }
        }
        if let Err(Job::Keep(completed)) = core.pool.push(&core, Job::Keep(Box::new(completed))) {
            core.keep(*completed);
        }
    }

    fn failed(&self, id: &BlobId, _: Purpose, error: &BlobError) {
        let Some(core) = self.0.upgrade() else { return };
        core.refused.came::<()>(Asked::Reads, &core.health, &Err(fetch::same(error)));
        if matches!(error, BlobError::Damaged { .. } | BlobError::Missing(_)) {
            core.pending.doubt(id);
        }
        core.counters.failed_fetches.add(1);
    }
}
