//! What a mount does differently when other machines change the tree too ([`Coherence::Shared`]).
//!
//! **The kernel keeps what leases permit** (`promises.rs`). Without a lease, names, the absence of names, and
//! attributes have a lifetime of 0, so each use of a path asks. Listings are not cached: OPENDIR is answered,
//! because a kernel whose OPENDIR is refused caches listings.
//!
//! **Data is close-to-open, and better.** OPEN is answered here, without the filesystem, and the kernel drops
//! the file's pages at each open. Before each read(2) of cached pages it asks for the attributes, and drops
//! the pages if size or time have changed (`AUTO_INVAL_DATA`). Written bytes are sent before write(2)
//! returns. sendfile(2) and mappings do not ask. So the kernel looks again at open files that another machine
//! may have changed ([`crate::refresh`]). If the time of a changed file was put back, the kernel is told to
//! drop its pages. Only a shared mapping holds bytes back, until msync(2) or close(2).
//!
//! **Appending.** For O_APPEND the kernel (6.18, without the writeback cache) takes the file's end from the
//! size that it saw last, and does not ask for a newer one. It would overwrite what another machine appended.
//! But each WRITE carries the flags of its open file, so here it becomes [`Filesystem::append`]. The kernel
//! would keep such bytes in the page of the old end until the next read(2), and show them to mappings. So a
//! file opened with O_APPEND uses no page cache (`FOPEN_DIRECT_IO`). What remains: the file's position after
//! such a write is the old end plus the bytes written, a write of more than 1 MiB is several appends, and
//! `RWF_APPEND` without O_APPEND writes at the old end.
//!
//! **Creating.** CREATE is MKNOD and OPEN in one. If another machine has created the name since the kernel
//! looked, and the program did not say O_EXCL, the answer is ESTALE. The kernel then looks the name up again,
//! and opens the file with all checks of permissions.
//!
//! [`Coherence::Shared`]: fs::api::Coherence::Shared
//! [`Filesystem::append`]: fs::api::Filesystem::append

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Ino, Timestamp};
use fs::api::{Attr, Leases};
use parking_lot::Mutex;

use crate::abi::opcodes::Mounted;
use crate::abi::out::open;
use crate::locks::LockRequests;

/// A file that programs have open.
#[derive(Default)]
struct OpenFile {
    /// How often.
    count: u32,
    /// What the kernel was told last: the version of its bytes, its size, and the time of its last change.
    told: Option<(u64, u64, Timestamp)>,
}

/// The state of a shared mount. It needs no more than numbers for open files and, if locks are decided for
/// all machines, the table of owners and waiting requests.
pub struct SharedMount {
    last_handle: AtomicU64,
    open_files: Mutex<HashMap<Ino, OpenFile>>,
    locks: Option<LockRequests>,
    leases: OnceLock<Arc<Leases>>,
    /// Nothing but this mount changes the tree, until its filesystem is replaced ([`crate::swap`]).
    is_alone: AtomicBool,
}

impl SharedMount {
    /// A mount without open files. `locks`: locks reach the filesystem. `leases`: see [`Filesystem::leases`].
    ///
    /// [`Filesystem::leases`]: fs::api::Filesystem::leases
    pub fn new(locks: bool, leases: Option<Arc<Leases>>) -> SharedMount {
        let leases = leases.map_or_else(OnceLock::new, OnceLock::from);
        let (last_handle, is_alone) = (AtomicU64::new(0), AtomicBool::new(false));
        SharedMount {
            last_handle,
            open_files: Mutex::default(),
            locks: locks.then(LockRequests::default),
            leases,
            is_alone,
        }
    }

    /// Sets the number after which open files are numbered.
    pub(crate) fn numbered_from(self, handle: u64) -> SharedMount {
        self.last_handle.store(handle, Ordering::Relaxed);
        self
    }

    /// What decides how long the kernel may keep what replies say.
    pub(crate) fn leases(&self) -> Option<&Arc<Leases>> {
        self.leases.get()
    }

    /// States that the filesystem changes only through this mount until it is replaced.
    pub fn alone(self) -> SharedMount {
        self.is_alone.store(true, Ordering::Release);
        self
    }

    /// The filesystem is about to be replaced by one that other machines change too.
    pub(crate) fn share(&self, leases: Option<Arc<Leases>>) {
        leases.into_iter().for_each(|leases| _ = self.leases.set(leases));
        self.is_alone.store(false, Ordering::Release);
    }

    /// Whether the kernel may keep pages from one open to the next, and what replies say for
    /// [`KEEP`](crate::swap::KEEP).
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Acquire)
    }

    /// What kind of mount it is, for the table of opcodes.
    pub fn mounted(&self) -> Mounted {
        if self.locks.is_some() { Mounted::SharedLocks } else { Mounted::Shared }
    }

    /// The number and the flags of a new open file.
    pub(crate) fn open(&self, ino: Ino, append: bool) -> (u64, u32) {
        self.open_files.lock().entry(ino).or_default().count += 1;
        let handle = self.last_handle.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let flags = match append {
            true => open::DIRECT_IO,
            false if self.is_alone() => open::KEEP_CACHE,
            false => 0,
        };
        (handle, flags)
    }

    /// A file is open once less.
    pub(crate) fn closed(&self, ino: Ino) {
        let mut open = self.open_files.lock();
        if let Some(file) = open.get_mut(&ino) {
            file.count -= 1;
            if file.count == 0 {
                open.remove(&ino);
            }
        }
    }

    /// Whether a file is open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.open_files.lock().contains_key(&ino)
    }

    /// The kernel is about to be told these attributes. Returns whether it would not see that the bytes of an
    /// open file have changed: their version is another one, and size and time are as before.
    pub(crate) fn hides_a_change(&self, attr: &Attr) -> bool {
        let mut open = self.open_files.lock();
        let Some(file) = open.get_mut(&attr.ino) else { return false };
        let now = (attr.version, attr.size, attr.mtime);
        file.told.replace(now).is_some_and(|told| told.0 != now.0 && (told.1, told.2) == (now.1, now.2))
    }

    /// The files that are open.
    pub(crate) fn open_files(&self) -> Vec<Ino> {
        self.open_files.lock().keys().copied().collect()
    }

    /// Locks, if they reach the filesystem.
    pub(crate) fn locks(&self) -> Option<&LockRequests> {
        self.locks.as_ref()
    }
}
