//! Compares the index with the folder, slowly and in the background. Opening the cache never waits for it.
//!
//! Files that the index does not know are added as new blobs. They exist because a kill came before their
//! record, or because a power cut took the end of the index. Blobs in the index without a file are forgotten.
//! Until the comparison ends, a blob that the index does not know is also looked for in the folder.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::BlobId;
use base::size::BLOB_MAX;

use super::Core;

impl Core {
    /// The thread's loop.
    pub(super) fn walk(self: &Arc<Core>) {
        for first in 0..=u8::MAX {
            if self.closed.wait(self.options.walk_pause) {
                return;
            }
            // A folder that cannot be listed now is compared at the next start.
            let Ok(found) = self.disk_store.list_of(first) else { return };
            for some in found.chunks(1000) {
                let fits = |(id, size): &(BlobId, u64)| Some((*id, u32::try_from(*size).ok()?));
                let fitting: Vec<(BlobId, u32)> =
                    some.iter().filter_map(fits).filter(|(_, size)| *size <= BLOB_MAX).collect();
                self.ledger.seen(&fitting);
            }
        }
        for id in self.ledger.unconfirmed() {
            if self.closed.is() {
                return;
            }
            self.forget_if_lost(&id);
        }
        self.compared.store(true, Ordering::Release);
        self.tend();
        if self.ledger.is_long() {
            self.run_later(super::pool::Job::Tidy);
        }
    }
}
