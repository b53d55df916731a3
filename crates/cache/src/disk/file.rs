//! The packs in use: their file handles, of which a bounded number is open, and how much of each pack is
//! durable.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::PackNo;
use parking_lot::Mutex;

use super::sums::PackSums;

const SHARDS: usize = 16;
/// File handles kept open in each shard.
const HANDLES: usize = 32;

pub(super) struct Pack {
    /// None after the handle was closed to stay within the bound.
    file: Mutex<Option<Arc<File>>>,
    /// Whether the handle was used since the clock of [`Packs::bound`] last passed it.
    used: AtomicBool,
    pub(super) durable: Durable,
    /// The sums of its bytes.
    pub(super) sums: Mutex<PackSums>,
}

/// How many of the changes to a file or folder survive a power cut.
pub(crate) struct Durable {
    /// How many changes have returned.
    changes: AtomicU64,
    synced: Mutex<Synced>,
}

struct Synced {
    /// How many of the changes survive.
    changes: u64,
    failed: bool,
}

impl Pack {
    fn new(file: Option<File>, changes: u64, sums: PackSums) -> Arc<Pack> {
        Arc::new(Pack {
            file: Mutex::new(file.map(Arc::new)),
            used: AtomicBool::new(true),
            durable: Durable::new(changes),
            sums: Mutex::new(sums),
        })
    }

    /// The handle, and whether it had to be opened.
    pub(super) fn file(&self, path: impl FnOnce() -> PathBuf) -> io::Result<(Arc<File>, bool)> {
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            if !self.used.load(Ordering::Relaxed) {
                self.used.store(true, Ordering::Relaxed);
            }
            return Ok((Arc::clone(file), false));
        }
        let opened = Arc::new(open(&path())?);
        *file = Some(Arc::clone(&opened));
        self.used.store(true, Ordering::Relaxed);
        Ok((opened, true))
    }
}

impl Durable {
    /// `changes`: 1 for a file found on disk, which may hold data that is not durable yet; 0 for a new one.
    pub(crate) fn new(changes: u64) -> Durable {
        Durable { changes: AtomicU64::new(changes), synced: Mutex::new(Synced { changes: 0, failed: false }) }
    }

    /// Must be called after every change.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Whether [`Durable::sync`] would have to work or to wait.
    pub(crate) fn is_dirty(&self) -> bool {
        let changes = self.changes.load(Ordering::Acquire);
        self.synced.try_lock().is_none_or(|synced| synced.failed || synced.changes < changes)
    }

    /// Ensures that all changes that returned before this call survive a power cut. Calls `work` if a sync is
    /// needed.
    pub(crate) fn sync(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let wanted = self.changes.load(Ordering::Acquire);
        let mut synced = self.synced.lock();
        if synced.failed {
            return Err(io::Error::other("an earlier sync failed; what is on the disk is not known"));
        }
        if synced.changes >= wanted {
            return Ok(());
        }
        let covers = self.changes.load(Ordering::Acquire);
        let result = work();
        match result {
            Ok(()) => synced.changes = covers,
            Err(_) => synced.failed = true,
        }
        result
    }
}

/// All packs in use.
pub(super) struct Packs {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    packs: HashMap<PackNo, Arc<Pack>>,
    /// Packs with an open handle, in the order in which they were opened. Some may have been removed.
    open: VecDeque<PackNo>,
}

impl Packs {
    pub(super) fn new() -> Packs {
        Packs { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, no: PackNo) -> &Mutex<Shard> {
        &self.shards[(no.0 % SHARDS as u64) as usize]
    }

    pub(super) fn get(&self, no: PackNo) -> Option<Arc<Pack>> {
        self.shard(no).lock().packs.get(&no).map(Arc::clone)
    }

    /// A pack that was created just now.
    pub(super) fn insert_new(&self, no: PackNo, file: File) {
        self.shard(no).lock().packs.insert(no, Pack::new(Some(file), 0, PackSums::default()));
        self.bound(no);
    }

    /// A pack of a former run, which may hold data that is not durable yet. Another thread may have inserted
    /// it first.
    pub(super) fn insert_found(&self, no: PackNo, file: File) -> Arc<Pack> {
        let new = || Pack::new(Some(file), 1, PackSums::default());
        let pack = Arc::clone(self.shard(no).lock().packs.entry(no).or_insert_with(new));
        self.bound(no);
        pack
    }

    /// A pack of a former run whose sums are known. Its file is opened at its first use.
    pub(super) fn insert_known(&self, no: PackNo, sums: PackSums) {
        self.shard(no).lock().packs.insert(no, Pack::new(None, 1, sums));
    }

    pub(super) fn remove(&self, no: PackNo) {
        let removed = self.shard(no).lock().packs.remove(&no);
        // Close the file after the lock is released.
        drop(removed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().packs.is_empty())
    }

    /// Records that the pack has an open handle, and closes others if too many are open.
    pub(super) fn bound(&self, no: PackNo) {
        let mut closed = Vec::new();
        let mut guard = self.shard(no).lock();
        let shard = &mut *guard;
        if !shard.open.contains(&no) {
            shard.open.push_back(no);
        }
        while shard.open.len() > HANDLES {
            let Some(oldest) = shard.open.pop_front() else {
                break;
            };
            let Some(pack) = shard.packs.get(&oldest) else {
                continue;
            };
            // A locked handle is in use.
            let handle = pack.file.try_lock();
            match handle.filter(|_| oldest != no && !pack.used.swap(false, Ordering::Relaxed)) {
                Some(mut handle) => closed.extend(handle.take()),
                None => shard.open.push_back(oldest),
            }
        }
        drop(guard);
        drop(closed);
    }

    #[cfg(test)]
    pub(crate) fn handles(&self) -> usize {
        let open =
            |shard: &Mutex<Shard>| shard.lock().packs.values().filter(|p| p.file.lock().is_some()).count();
        self.shards.iter().map(open).sum()
    }
}

pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Opens a pack's file, read-only if it cannot be written to.
pub(super) fn open(path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
            ) =>
        {
            File::open(path)
        }
        result => result,
    }
}
