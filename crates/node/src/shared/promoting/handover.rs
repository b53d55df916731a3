//! The mount of a volume that is promoted ends and comes back.
//!
//! ```text
//!   command   locks VOLUME/promoting, unmounts, promotes the folder, unlocks
//!   daemon    its mount has ended, the volume is closed: waits for that lock, and mounts again
//! ```
//!
//! The kernel releases the lock when the command ends, whatever the reason. So the daemon mounts what is
//! there then: the shared volume, or the volume as it was.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Duration;

use api::error::{Context, Failure, Result};
use api::own;
use base::lock::{self, FileLock};

use crate::volume_dir::VolumeDir;

/// How often the daemon looks.
const LOOK: Duration = Duration::from_millis(20);

fn file(dir: &VolumeDir) -> PathBuf {
    dir.path().join("promoting")
}

/// A promotion of a mounted volume, until this is dropped.
#[derive(Debug)]
pub struct Handover {
    path: PathBuf,
    _lock: FileLock,
}

impl Handover {
    /// Begins it. The volume is still mounted.
    pub fn begin(dir: &VolumeDir) -> Result<Handover> {
        let path = file(dir);
        let file = own::open(&path, OpenOptions::new().write(true).create(true).truncate(false));
        let mut lock = FileLock::new(file.at("open", &path)?);
        match lock.exclusive(lock::moment()).at("lock", &path)? {
            true => Ok(Handover { path, _lock: lock }),
            false => {
                Err(Failure::new("in-use", format!("another command promotes {}", dir.path().display()))
                    .next("wait until that is done"))
            }
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        // Before the lock is released: a daemon that waits has the file open.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A promotion for which the mount of this daemon ends.
#[derive(Debug)]
pub struct UnderWay(FileLock);

impl UnderWay {
    /// The promotion of this volume, if there is one. The daemon looks while it still holds the volume: a
    /// promotion that fails at once is over before the daemon has closed everything.
    pub fn of(dir: &VolumeDir) -> Option<UnderWay> {
        let mut lock = FileLock::new(own::open(&file(dir), OpenOptions::new().read(true)).ok()?);
        matches!(lock.try_shared(), Ok(false)).then_some(UnderWay(lock))
    }

    /// Waits for its end. Then the daemon mounts again. False if `is_stopped` says that the daemon shall end.
    pub fn wait(mut self, is_stopped: &dyn Fn() -> bool) -> bool {
        loop {
            match self.0.try_shared() {
                Ok(true) => return true,
                Ok(false) if !is_stopped() => std::thread::sleep(LOOK),
                _ => return false,
            }
        }
    }
}
