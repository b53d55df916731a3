//! The kernel that has a volume mounted, for changes that it did not ask for: those of an import, and of
//! other front ends in the daemon. It forgets what changed, if it has seen it at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archive::import::direct::Changes;
use base::Ino;
use fs::trash::Told;
use fs::volume::Volume;
use fuse::Notifier;

/// Notifications that may wait in the queue.
const QUEUE: u64 = 4096;

/// A kernel that has the volume mounted.
#[derive(Clone)]
pub struct Kernel {
    volume: Arc<Volume>,
    notifier: Notifier,
    queued: Arc<AtomicU64>,
}

impl Kernel {
    /// The kernel behind this notifier.
    pub fn new(volume: Arc<Volume>, notifier: Notifier) -> Kernel {
        Kernel { volume, notifier, queued: Arc::default() }
    }

    /// Whether the kernel may know this inode. The front end holds one reference itself. A kernel that learns
    /// of it later sees it as it is then.
    fn knows(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.volume.references(ino) > 1
    }

    /// Waits until the kernel has heard of everything so far. Never call it while answering a request of the
    /// kernel.
    pub fn settle(&self) {
        self.notifier.settle();
        self.queued.store(0, Ordering::Relaxed);
    }

    /// A name in this folder came, went, or stands for something else.
    pub fn name(&self, parent: Ino, name: &[u8]) {
        if self.knows(parent) {
            self.notifier.inval_entry(parent, name);
            self.count();
        }
    }

    /// The attributes or the contents of this inode changed.
    pub fn inode(&self, ino: Ino) {
        if self.knows(ino) {
            self.notifier.inval_inode(ino, 0, 0);
            self.count();
        }
    }

    fn count(&self) {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= QUEUE {
            self.settle();
        }
    }
}

impl Told for Kernel {
    fn came_back(&self, parent: Ino, name: &[u8], ino: Ino) {
        let is_known = |ino: Ino| ino == Ino::ROOT || self.volume.references(ino) > 0;
        if is_known(parent) {
            // It believes that there is no such name, and keeps the folder's listing and times.
            self.notifier.inval_entry(parent, name);
            self.notifier.inval_inode(parent, 0, 0);
            self.count();
        }
        if is_known(ino) {
            self.notifier.inval_inode(ino, 0, 0);
            self.count();
        }
    }

    fn was_removed(&self, parent: Ino, name: &[u8]) {
        self.notifier.inval_entry(parent, name);
        self.count();
    }
}

impl Changes for Kernel {
    fn name(&self, parent: Ino, name: &[u8]) {
        Kernel::name(self, parent, name);
    }

    fn inode(&self, ino: Ino) {
        Kernel::inode(self, ino);
    }
}
