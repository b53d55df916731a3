//! Reuse of the files of evicted blobs: the next blobs overwrite them.
//!
//! In a full cache each insertion evicts a blob. Both are expensive for a filesystem: it frees an inode and
//! its blocks, and looks for others (ext4 skips every inode that was freed in the last half minute). Neither
//! is needed if the new blob is as large as the evicted one.
//!
//! ```text
//!   retire:  DIR/ab/ab12...ef ──rename──► tmp/...        the blob cannot be opened by its name any more
//!   reuse:   alone? ──► overwritten, bypassing the page cache ──rename──► DIR/cd/cd34...
//! ```
//!
//! - **A reader of the evicted blob keeps reading its bytes**: a file that is open anywhere, in this process
//!   or another, is removed instead of overwritten. The kernel tells: it gives a write lease (`fcntl(2)`)
//!   only if the file is open nowhere else.
//! - The evicted blob's pages in memory may still be queued in sockets. A direct write leaves them unchanged.
//!   Where direct writes are impossible, nothing is reused.
//! - Bounded: at most [`MOST`] spare files. Each blob that is written or removed takes one out, so they
//!   occupy no additional space.
//! - A crash in between leaves a file in `tmp/`, as in any other write, or the old bytes under the new name.
//!   A read detects the latter by the CRCs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::BlobId;
use base::size::BLOB_MAX;
use parking_lot::Mutex;

use super::{BlobFolder, direct, ignore_missing, sums_path};
use crate::source::BlobError;
use crate::sums::Sums;

/// The maximum number of spare files: what a cache evicts at a time.
const MOST: usize = 16;
/// fcntl(2): chooses the signal that reports that a lease is to be given up.
const F_SETSIG: libc::c_int = 10;

/// Paths in `tmp/`; the sums are beside each.
#[derive(Default)]
pub(super) struct Spares(Mutex<Vec<PathBuf>>);

impl Spares {
    fn take(&self) -> Option<PathBuf> {
        self.0.lock().pop()
    }

    /// Removes one, to make room for a file that is written elsewhere.
    pub(super) fn remove_one(&self) {
        if let Some(spare) = self.take() {
            remove(&spare);
        }
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        self.0.lock().drain(..).for_each(|spare| remove(&spare));
    }
}

fn remove(spare: &Path) {
    // Leftovers are removed with the rest of `tmp/`.
    let _ = fs::remove_file(spare);
    let _ = fs::remove_file(sums_path(spare));
}

impl BlobFolder {
    /// Removes a blob as [`BlobFolder::remove`] does, and may keep its file for reuse. Only for blobs that
    /// are also stored elsewhere.
    ///
    /// # Errors
    /// The system's error.
    pub fn retire(&self, id: &BlobId) -> Result<(), BlobError> {
        let path = self.path(id);
        let full = self.spares.0.lock().len() >= MOST;
        let is_fit = |about: fs::Metadata| about.len() == u64::from(BLOB_MAX) && about.nlink() == 1;
        if full || !fs::metadata(&path).is_ok_and(is_fit) {
            return self.remove(id);
        }
        let moved = self.temporary().and_then(|spare| fs::rename(&path, &spare).map(|()| spare));
        let Ok(spare) = moved else { return self.remove(id) };
        let sums = fs::rename(sums_path(&path), sums_path(&spare));
        self.open.forget(id);
        match sums {
            Ok(()) => self.spares.0.lock().push(spare),
            Err(error) => {
                remove(&spare);
                ignore_missing(Err(error))?;
            }
        }
        Ok(())
    }

    /// Writes a blob over the file of an evicted one. False: there is no suitable file, and nothing was done.
    pub(super) fn reuse(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<bool, BlobError> {
        let path = self.path(id);
        if bytes.len() != BLOB_MAX as usize || !sums.belong_to(id) || path.try_exists()? {
            return Ok(false);
        }
        let Some(spare) = self.spares.take() else { return Ok(false) };
        let done = write_over(&spare, &sums.encode_for(id), bytes).and_then(|written| {
            if written {
                let beside = (sums_path(&spare), sums_path(&path));
                match fs::rename(&beside.0, &beside.1) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        self.make_folder(&format!("{:02x}", id.0[0]))?;
                        fs::rename(&beside.0, &beside.1)?;
                    }
                    renamed => renamed?,
                }
                fs::rename(&spare, &path)?;
            }
            Ok(written)
        });
        if !matches!(done, Ok(true)) {
            remove(&spare);
        }
        match done {
            // It was removed with the rest of `tmp/`.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            done => Ok(done?),
        }
    }
}

fn write_over(spare: &Path, sums: &[u8], bytes: &[u8]) -> io::Result<bool> {
    let open = |path: &Path| OpenOptions::new().write(true).open(path);
    let file = open(spare)?;
    if !is_alone(&file) || !direct::write_over(&file, bytes)? {
        return Ok(false);
    }
    let beside = open(&sums_path(spare))?;
    beside.write_all_at(sums, 0)?;
    beside.set_len(sums.len() as u64)?;
    Ok(true)
}

/// Whether the file is open or mapped nowhere else. False if the filesystem cannot tell.
fn is_alone(file: &File) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: fcntl(2) with numbers, on a descriptor that `file` keeps open. Another process that opens the
    // file while it has the lease waits until the lease is given up. The signal that is sent here for that is
    // one that is ignored by default and does not end the process.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

#[cfg(test)]
mod tests;
