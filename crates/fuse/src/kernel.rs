//! The kernel of a mount, as the leases of a shared volume see it: what it is made to drop when they end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use base::Ino;
use fs::api::KernelCache;

use crate::channel::Sink;
use crate::notify;
use crate::refresh::Refresher;
use crate::shared::SharedMount;

/// How long replies on their way to the kernel are waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Replies that have been sent and may not have reached the kernel.
pub(crate) trait OnTheWay: Send + Sync {
    /// Waits until the kernel has all replies that were sent so far. False: that takes longer.
    fn settle(&self, at_most: Duration) -> bool;
}

/// The kernel of a mount.
pub(crate) struct Kernel<T: OnTheWay> {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) replies: Weak<T>,
    pub(crate) mount: Option<Arc<SharedMount>>,
    pub(crate) refresher: Option<Arc<Refresher>>,
}

impl<T: OnTheWay> KernelCache for Kernel<T> {
    fn forget(&self, inos: &[Ino]) -> bool {
        // Without a session there is no kernel left that could keep anything.
        let Some(replies) = self.replies.upgrade() else { return true };
        if !replies.settle(PATIENCE) {
            return false;
        }
        for ino in inos {
            // This takes no lock of the kernel for which a program could hold it. It fails if the kernel does
            // not know the inode.
            let _ = notify::inval_inode(&*self.sink, *ino, -1, 0);
        }
        true
    }

    fn open_files(&self) -> Vec<Ino> {
        self.mount.as_ref().map(|mount| mount.open_files()).unwrap_or_default()
    }

    fn look_again(&self, files: &[Ino]) {
        self.refresher.iter().for_each(|refresher| refresher.push(files));
    }
}
