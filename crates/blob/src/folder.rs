//! A folder of blobs: each a file, with its sums in a second file beside it.
//!
//! ```text
//!   DIR/ab/ab12...ef         the blob's bytes, nothing else
//!   DIR/ab/ab12...ef.sums    its chaining values and CRCs (`sums`)
//!   DIR/tmp/                 files being written, and spare files for reuse (`spare`);
//!                            what a crash leaves here is removed after an hour
//! ```
//!
//! **A name appears only when its bytes are there.** A blob is added by a hard link or by a rename, after its
//! sums. It survives a power cut only after [`BlobFolder::sync`], which knows which folders and files were
//! changed since the last sync. A power cut before that may leave an empty or a partial file under a blob's
//! name. Storing the blob again therefore checks the existing file, and replaces it unless every CRC matches.
//!
//! **What is read has been checked.** A read fetches the whole 32 KiB segments that the range touches, in one
//! system call and without a copy in between, and compares their CRCs. If they differ, the file is opened and
//! read once more, bypassing the page cache. Only then the copy is called damaged. Missing or damaged sums
//! are computed again, from a blob whose whole hash is its name. A foreign blob has no such name: without its
//! sums, it counts as damaged.
//!
//! Files are accessible to the owner only (0600, folders 0700): a blob holds bytes of files that others may
//! not read.

mod direct;
mod open;
mod prefetch;
mod spare;
mod store;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use base::BlobId;
use base::size::{BLOB_MAX, GROUP};
use parking_lot::Mutex;

use crate::source::{BlobError, BlobSource};
use crate::sums::{Builder, Sums};
use open::{Fault, OpenBlob, OpenBlobs};
use prefetch::Prefetcher;
use spare::Spares;

/// Files in `tmp/` are removed when they are this old. Younger ones may belong to another process that is
/// writing them.
const SWEEP_AFTER: Duration = Duration::from_secs(3600);

/// A folder of blobs. See the [module](self).
pub struct BlobFolder {
    dir: PathBuf,
    open: OpenBlobs,
    spares: Spares,
    prefetcher: Prefetcher,
    /// One bit for each of the 256 folders: it has names that a power cut could lose.
    touched: [AtomicU64; 4],
    /// Whether `DIR` itself has names that a power cut could lose.
    root_touched: AtomicBool,
    /// Blobs whose bytes may not have reached the disk yet either.
    unsynced: Mutex<Vec<BlobId>>,
    /// Held during a sync, so that a second one does not return before the first has done the work of both.
    /// True once a sync failed: the kernel may have dropped what it could not write, and would report success
    /// the next time.
    in_doubt: Mutex<bool>,
}

impl BlobFolder {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// `NotFound` when it is absent, `NotADirectory` when it is something else.
    pub fn open(dir: &Path) -> io::Result<BlobFolder> {
        if !fs::metadata(dir)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(BlobFolder {
            dir: dir.to_owned(),
            open: OpenBlobs::new(),
            spares: Spares::default(),
            prefetcher: Prefetcher::default(),
            touched: Default::default(),
            root_touched: AtomicBool::new(false),
            unsynced: Mutex::default(),
            in_doubt: Mutex::new(false),
        })
    }

    /// Opens a folder. Creates it, with missing parents, if it is absent.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(dir: &Path) -> io::Result<BlobFolder> {
        let mut missing = Vec::new();
        for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
            if dir.try_exists()? {
                break;
            }
            missing.push(dir);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        for made in missing {
            let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        BlobFolder::open(dir)
    }

    /// The folder's path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes what a crash left unfinished. Files of the last hour stay.
    ///
    /// # Errors
    /// The system's error.
    pub fn sweep(&self) -> io::Result<()> {
        let now = base::time::now();
        self.remove_temporary(|file| {
            let modified = file.metadata().and_then(|m| m.modified());
            let since = modified.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
            since.is_some_and(|at| {
                now.seconds().saturating_sub_unsigned(at.as_secs()) > SWEEP_AFTER.as_secs() as i64
            })
        })
    }

    /// Removes all that a crash left unfinished, of whatever age. Only for a folder in which nothing else
    /// writes, and before the first write.
    ///
    /// # Errors
    /// The system's error.
    pub fn sweep_all(&self) -> io::Result<()> {
        self.remove_temporary(|_| true)
    }

    fn remove_temporary(&self, goes: impl Fn(&fs::DirEntry) -> bool) -> io::Result<()> {
        let entries = match fs::read_dir(self.dir.join("tmp")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if goes(&entry) {
                ignore_missing(fs::remove_file(entry.path()))?;
            }
        }
        Ok(())
    }

    /// The blob's size in bytes, if it is there.
    ///
    /// # Errors
    /// The system's error.
    pub fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        match fs::metadata(self.path(id)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The blob's sums.
    ///
    /// # Errors
    /// `Missing` when the blob is not there. `Damaged` when its sums are lost and its bytes do not match the
    /// name.
    pub fn sums(&self, id: &BlobId) -> Result<Sums, BlobError> {
        Ok(self.get(id)?.sums.clone())
    }

    /// Removes a blob; a missing one is not an error.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.spares.remove_one();
        let path = self.path(id);
        ignore_missing(fs::remove_file(&path))?;
        ignore_missing(fs::remove_file(sums_path(&path)))?;
        self.open.forget(id);
        Ok(())
    }

    /// Calls `each` with every blob and its size, in no order, until it returns false.
    ///
    /// # Errors
    /// The system's error.
    pub fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        for first in 0..=u8::MAX {
            if !self.list_of(first, each)? {
                break;
            }
        }
        Ok(())
    }

    /// Calls `each` with every blob whose name begins with one byte, and its size, in no order. Returns false
    /// if `each` stopped it.
    ///
    /// # Errors
    /// The system's error.
    pub fn list_of(&self, first: u8, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<bool, BlobError> {
        let entries = match fs::read_dir(self.dir.join(format!("{first:02x}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Some(Ok(id)) = entry.file_name().to_str().map(str::parse::<BlobId>) else {
                continue;
            };
            let size = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?.len(),
            };
            if id.0[0] == first && !each(id, size) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the whole blob from the disk and compares it with its name. Then makes sure that its sums are
    /// sound.
    ///
    /// # Errors
    /// `Missing`, `Damaged`, or what the system says.
    pub fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.open.forget(id);
        let file = self.open_file(id)?;
        let kept = self.load_sums(id);
        let sums = hash_file(id, &file, kept.as_ref())?;
        if kept.as_ref() != Some(&sums) {
            self.replace_sums(id, &self.path(id), &sums)?;
        }
        Ok(())
    }

    /// The path of the blob's file, whether or not it exists. It may be linked, never written.
    pub fn file(&self, id: &BlobId) -> PathBuf {
        self.path(id)
    }

    /// The file of a blob. Its folder (all blobs that begin with the same byte) may not exist yet.
    fn path(&self, id: &BlobId) -> PathBuf {
        self.dir.join(format!("{:02x}/{id}", id.0[0]))
    }

    fn get(&self, id: &BlobId) -> Result<Arc<OpenBlob>, BlobError> {
        if let Some(blob) = self.open.get(id) {
            return Ok(blob);
        }
        let file = self.open_file(id)?;
        let size = file.metadata()?.len();
        let sums = match self.load_sums(id) {
            Some(sums) if u64::from(sums.size()) == size => sums,
            Some(sums) => {
                let what = format!("its file holds {size} bytes instead of {}", sums.size());
                return Err(BlobError::Damaged { id: *id, what });
            }
            None => {
                let sums = hash_file(id, &file, None)?;
                // A folder that cannot be written can still be read. The sums are then computed again the
                // next time.
                let _ = self.replace_sums(id, &self.path(id), &sums);
                sums
            }
        };
        let blob = Arc::new(OpenBlob { file, sums });
        self.open.insert(*id, Arc::clone(&blob));
        Ok(blob)
    }

    fn open_file(&self, id: &BlobId) -> Result<File, BlobError> {
        File::open(self.path(id)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BlobError::Missing(*id),
            _ => error.into(),
        })
    }

    /// The sums beside the blob, if they exist and lead to its name.
    fn load_sums(&self, id: &BlobId) -> Option<Sums> {
        let bytes = fs::read(sums_path(&self.path(id))).ok()?;
        Sums::decode_for(id, &bytes).ok()
    }
}

impl BlobSource for BlobFolder {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let mut again = false;
        loop {
            let blob = self.get(id)?;
            if u64::from(offset) + buf.len() as u64 > u64::from(blob.sums.size()) {
                return Err(past_end(id, blob.sums.size()));
            }
            match blob.read(offset, buf) {
                Ok(()) => return Ok(()),
                Err(Fault::Io(error)) => return Err(error.into()),
                Err(Fault::Damaged(what)) => {
                    self.open.forget(id);
                    if again {
                        return Err(BlobError::Damaged { id: *id, what });
                    }
                    // The disk may read correctly the second time, and a sound file may have replaced this
                    // one.
                    blob.drop_cached_pages();
                    again = true;
                }
            }
        }
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.open.has(id) || self.path(id).exists()
    }

    fn will_need(&self, id: &BlobId) {
        self.prefetcher.fetch(id, || self.path(id));
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        let blob = self.get(id).ok()?;
        Some((blob.file.try_clone().ok()?, blob.sums.clone()))
    }
}

/// The error for a range that the blob does not have.
pub fn past_end(id: &BlobId, size: u32) -> BlobError {
    let what = format!("a read past the end of blob {id}, which has {size} bytes");
    BlobError::Io(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// The sums of an open file whose bytes hash to `id`. A foreign blob's do not: `kept`, the sums that were
/// written with it, decide. Without them, the bytes cannot be told from others.
fn hash_file(id: &BlobId, file: &File, kept: Option<&Sums>) -> Result<Sums, BlobError> {
    use std::os::unix::fs::FileExt;

    let damaged = |what: String| BlobError::Damaged { id: *id, what };
    let size = file.metadata()?.len();
    let size = u32::try_from(size).ok().filter(|size| *size <= BLOB_MAX);
    let size = size.ok_or_else(|| damaged("its file is larger than any blob".to_owned()))?;
    let mut builder = Builder::new(size);
    let mut group = vec![0; GROUP as usize];
    let mut at = 0;
    while builder.next_len() > 0 {
        let group = &mut group[..builder.next_len() as usize];
        file.read_exact_at(group, at)?;
        at += group.len() as u64;
        builder.push(group);
    }
    let sums = builder.finish();
    if id.is_foreign() {
        let what = match kept {
            Some(kept) if *kept == sums => return Ok(sums),
            Some(_) => "its bytes do not match the sums beside it",
            None => "the sums beside it are lost or damaged",
        };
        return Err(damaged(what.to_owned()));
    }
    if sums.id() == *id { Ok(sums) } else { Err(damaged(format!("its bytes have the hash {}", sums.id()))) }
}

fn sums_path(blob: &Path) -> PathBuf {
    let mut path = blob.as_os_str().to_owned();
    path.push(".sums");
    PathBuf::from(path)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
