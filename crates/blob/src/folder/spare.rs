//! Files of copies that went, written over with the next ones.
//!
//! In a cache that is full one blob goes for each that comes. A filesystem has much to do for both: an inode and its blocks are given back, and others are
//! looked for (ext4 passes over every inode that was given back in the last half minute). None of it is needed where the one that comes is as large
//! as the one that went.
//!
//! ```text
//!   retire:  DIR/ab/ab12...ef ──rename──► tmp/...        nobody can open it by its name any more
//!   reuse:   alone? ──► written over, past the kernel's pages ──rename──► DIR/cd/cd34...
//! ```
//!
//! - **Who still reads it goes on reading what it was**: a file that is open anywhere, in this process or another, is not written over but removed. The kernel says so:
//!   a write lease (`fcntl(2)`) is given only to who alone has a file open.
//! - Its pages in memory may still be on their way into sockets. Written past them, they stay as they are; where that cannot be done, nothing is reused.
//! - Bounded: [`MOST`] files wait. Each blob that is written or removed takes one out, so they take no room that was not taken before.
//! - A crash in between leaves a file in `tmp/`, as any other does, or the old bytes under the new name, which a read finds out by their CRCs.

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

/// So many wait: what a cache lets go of at a time.
const MOST: usize = 16;
/// fcntl(2): the signal that says that a lease is asked back.
const F_SETSIG: libc::c_int = 10;

/// Names in `tmp/`; the sums lie beside each.
#[derive(Default)]
pub(super) struct Spares(Mutex<Vec<PathBuf>>);

impl Spares {
    fn take(&self) -> Option<PathBuf> {
        self.0.lock().pop()
    }

    /// Removes one, for the room of what is written elsewhere.
    pub(super) fn make_way(&self) {
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
    // What is left is swept with the rest of `tmp/`.
    let _ = fs::remove_file(spare);
    let _ = fs::remove_file(sums_path(spare));
}

impl BlobFolder {
    /// Removes a blob as [`BlobFolder::remove`] does; its file may become another's. For copies of what is elsewhere too.
    ///
    /// # Errors
    /// What the system says.
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

    /// Writes a blob over one that went. False: there is none that could be, and nothing was done.
    pub(super) fn reuse(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<bool, BlobError> {
        let path = self.path(id);
        if bytes.len() != BLOB_MAX as usize || sums.id() != *id || path.try_exists()? {
            return Ok(false);
        }
        let Some(spare) = self.spares.take() else { return Ok(false) };
        let done = write_over(&spare, sums, bytes).and_then(|written| {
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
            // Swept with the rest of `tmp/`.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            done => Ok(done?),
        }
    }
}

fn write_over(spare: &Path, sums: &Sums, bytes: &[u8]) -> io::Result<bool> {
    let open = |path: &Path| OpenOptions::new().write(true).open(path);
    let file = open(spare)?;
    if !is_alone(&file) || !direct::write_over(&file, bytes)? {
        return Ok(false);
    }
    let (beside, sums) = (open(&sums_path(spare))?, sums.encode());
    beside.write_all_at(&sums, 0)?;
    beside.set_len(sums.len() as u64)?;
    Ok(true)
}

/// Whether nobody else has the file open, or mapped. Also no where the filesystem cannot say.
fn is_alone(file: &File) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: fcntl(2) with numbers, on a descriptor that `file` keeps open. Whoever opens the file while it has the lease waits until it is given back, and what
    // is sent here for that is a signal that is ignored by default, and not one that ends the process.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

#[cfg(test)]
mod tests;
