//! The filesystem of a session is replaced while programs use the mount ([`crate::swap`]).

use std::sync::Arc;
use std::time::Duration;

use fs::api::{Coherence, Filesystem, Leases};

use super::{Session, Shared};
use crate::kernel::Kernel;

impl Session {
    /// Lets no further request begin, and waits for those that have begun. Requests that arrive wait until
    /// [`Session::resume`]. False: they have not ended within `at_most`, or this filesystem cannot be
    /// replaced, and it is served as before.
    pub fn pause(&self, at_most: Duration) -> bool {
        self.shared.fs.pause(at_most)
    }

    /// Waits, while it is paused, until the kernel has dropped the names and attributes that it was told
    /// before. Other machines may change them from then on.
    pub fn wait_until_dropped(&self) {
        self.shared.fs.wait_until_dropped();
    }

    /// There is no filesystem to go on with for now: requests fail with EIO until there is one.
    pub fn fail_requests(&self) {
        self.shared.fs.fail();
    }

    /// Serves this filesystem from now on: the one of before, or a shared one with the same inodes.
    pub fn resume(&self, fs: Arc<dyn Filesystem>) {
        if fs.coherence() == Coherence::Shared {
            let leases = fs.leases();
            self.shared.shared_mount.iter().for_each(|shared| shared.share(leases.clone()));
            self.shared.obey(leases);
        }
        self.shared.fs.resume(fs);
    }
}

impl Shared {
    /// The kernel forgets what these leases no longer permit.
    pub(super) fn obey(self: &Arc<Shared>, leases: Option<Arc<Leases>>) {
        let Some(leases) = leases else { return };
        let sink = Arc::clone(&self.sink);
        let (mount, refresher) = (self.shared_mount.clone(), self.refresher.clone());
        leases.serve(Arc::new(Kernel { sink, replies: Arc::downgrade(self), mount, refresher }));
    }
}
