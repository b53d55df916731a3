//! The index is compared with the folder, slowly and in the background: opening never waits for it.
//!
//! Files that the index does not know (a kill came before the record, a power cut took the end of the index) become newcomers; what it
//! knows and is not there is forgotten. Until this is done, a blob that the index does not know is looked for in the folder all the same.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::BlobId;
use base::size::BLOB_MAX;

use super::Core;

impl Core {
    /// The thread.
    pub(super) fn walk(self: &Arc<Core>) {
        for first in 0..=u8::MAX {
            if self.closed.wait(self.options.walk_pause) {
                return;
            }
            // What cannot be listed now is compared at the next start.
            let Ok(found) = self.shelf.list_of(first) else { return };
            for some in found.chunks(1000) {
                let fits = |(id, size): &(BlobId, u64)| Some((*id, u32::try_from(*size).ok()?));
                let fitting: Vec<(BlobId, u32)> =
                    some.iter().filter_map(fits).filter(|(_, size)| *size <= BLOB_MAX).collect();
                self.books.seen(&fitting);
            }
        }
        for id in self.books.unconfirmed() {
            if self.closed.is() {
                return;
            }
            self.forget_if_lost(&id);
        }
        self.compared.store(true, Ordering::Release);
        self.tend();
        if self.books.is_long() {
            self.run_later(super::pool::Job::Tidy);
        }
    }
}
