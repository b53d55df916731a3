//! How blobs are added to a folder, and how they become durable.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use base::BlobId;
use base::size::GROUP;

use super::{BlobFolder, direct, ignore_missing, sums_path};
use crate::source::BlobError;
use crate::sums::Sums;

/// How many files and folders are synced in parallel. Each waits for the disk's cache to be flushed, and the
/// kernel makes one flush of those that wait together (measured on ext4: 64 folders one after the other 185
/// ms, with four threads 3 to 10 ms).
const SYNC_THREADS: usize = 4;

/// Why a sync is incomplete.
enum Unsynced {
    /// A file could not be opened; nothing is lost, and it can be tried again.
    NotTried(io::Error),
    /// The kernel could not write, and will not report that the next time.
    Failed(io::Error),
}

impl BlobFolder {
    /// Adds a blob that is in a file of its own: by a hard link if the filesystem allows it, else by a copy.
    /// `file` holds exactly the blob's bytes and is never written again; it stays where it is.
    ///
    /// # Errors
    /// See [`BlobError`].
    pub fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        let path = self.prepare(id, sums)?;
        match fs::hard_link(file, &path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.keep_or_replace(id, sums, file, &path)?
            }
            Err(error) if cannot_link(&error) => {
                if !self.has_sound_copy(id, sums, &path)? {
                    self.place(&path, |to| copy_checked(sums, &File::open(file)?, to))?;
                }
                self.unsynced.lock().push(*id);
            }
            Err(error) => return Err(error.into()),
        }
        self.touch(id);
        Ok(())
    }

    /// Adds a blob from memory.
    ///
    /// # Errors
    /// See [`BlobError`].
    pub fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        let path = self.prepare(id, sums)?;
        if !self.has_sound_copy(id, sums, &path)? {
            self.place(&path, |mut to| to.write_all(bytes))?;
        }
        self.unsynced.lock().push(*id);
        self.touch(id);
        Ok(())
    }

    /// Adds a copy of a blob that is also stored elsewhere. [`BlobFolder::sync`] ignores it: a power cut may
    /// lose it, or tear it, which a read detects.
    ///
    /// # Errors
    /// See [`BlobError`].
    pub fn keep(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        let path = self.prepare(id, sums)?;
        if self.has_sound_copy(id, sums, &path)? {
            return Ok(());
        }
        self.place(&path, |mut to| to.write_all(bytes))
    }

    /// Adds a copy as [`BlobFolder::keep`] does, of a blob that is read from memory now and from here later:
    /// written past the page cache, if possible.
    ///
    /// # Errors
    /// See [`BlobError`].
    pub fn keep_for_later(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        if self.reuse(id, sums, bytes)? {
            return Ok(());
        }
        let path = self.prepare(id, sums)?;
        if self.has_sound_copy(id, sums, &path)? {
            return Ok(());
        }
        self.place(&path, |to| direct::write(to, bytes))
    }

    /// Writes a file and removes it again, to find out whether the folder is writable.
    ///
    /// # Errors
    /// The system's error.
    pub fn probe(&self) -> io::Result<()> {
        let temporary = self.temporary()?;
        create_new(&temporary)?;
        fs::remove_file(&temporary)
    }

    /// Makes every blob added so far survive a power cut.
    ///
    /// # Errors
    /// The system's error. After a failed write every later call fails too, because it is unknown what
    /// reached the disk.
    pub fn sync(&self) -> Result<(), BlobError> {
        let mut in_doubt = self.in_doubt.lock();
        if *in_doubt {
            let what = format!(
                "{}: an earlier sync failed; mount again to find out what is there",
                self.dir.display()
            );
            return Err(BlobError::Unavailable(what));
        }
        let files = std::mem::take(&mut *self.unsynced.lock());
        let mut folders = [0; 4];
        for (bits, touched) in folders.iter_mut().zip(&self.touched) {
            *bits = touched.swap(0, Ordering::AcqRel);
        }
        let root = self.root_touched.swap(false, Ordering::AcqRel);
        let Err(unsynced) = self.sync_all(&files, folders, root) else {
            return Ok(());
        };
        self.unsynced.lock().extend(files);
        for (bits, touched) in folders.iter().zip(&self.touched) {
            touched.fetch_or(*bits, Ordering::AcqRel);
        }
        self.root_touched.fetch_or(root, Ordering::AcqRel);
        *in_doubt = matches!(unsynced, Unsynced::Failed(_));
        let (Unsynced::NotTried(error) | Unsynced::Failed(error)) = unsynced;
        Err(error.into())
    }

    fn sync_all(&self, files: &[BlobId], folders: [u64; 4], root: bool) -> Result<(), Unsynced> {
        let mut paths: Vec<PathBuf> = files.iter().map(|id| self.path(id)).collect();
        for first in (0..256).filter(|first| folders[first / 64] >> (first % 64) & 1 == 1) {
            paths.push(self.dir.join(format!("{first:02x}")));
        }
        paths.extend(root.then(|| self.dir.clone()));
        let blobs = files.len();
        let paths: Vec<(usize, PathBuf)> = paths.into_iter().enumerate().collect();
        base::thread::for_each("covey-sync", SYNC_THREADS, &paths, |(i, path)| {
            match File::open(path) {
                Ok(file) if *i < blobs => file.sync_data().map_err(Unsynced::Failed),
                Ok(folder) => folder.sync_all().map_err(Unsynced::Failed),
                // A blob that was removed meanwhile.
                Err(error) if *i < blobs && error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(Unsynced::NotTried(error)),
            }
        })
    }

    fn touch(&self, id: &BlobId) {
        let first = id.0[0];
        self.touched[usize::from(first / 64)].fetch_or(1 << (first % 64), Ordering::AcqRel);
    }

    /// Writes the sums, and creates their folder if needed. Returns the blob's own path.
    fn prepare(&self, id: &BlobId, sums: &Sums) -> Result<PathBuf, BlobError> {
        if !sums.belong_to(id) {
            let what = format!("the sums of {} do not belong to {id}", sums.id());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        let path = self.path(id);
        let beside = sums_path(&path);
        let created = match create_new(&beside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_folder(&format!("{:02x}", id.0[0]))?;
                create_new(&beside)
            }
            created => created,
        };
        match created {
            Ok(mut file) => {
                if let Err(error) = file.write_all(&sums.encode_for(id)) {
                    // A partial file would be found damaged and computed again; on a full disk it only takes
                    // space.
                    let _ = fs::remove_file(&beside);
                    return Err(error.into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if self.load_sums(id).as_ref() != Some(sums) {
                    self.replace_sums(id, &path, sums)?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(path)
    }

    /// Replaces the sums beside the blob.
    pub(super) fn replace_sums(&self, id: &BlobId, blob: &Path, sums: &Sums) -> Result<(), BlobError> {
        self.place(&sums_path(blob), |mut to| to.write_all(&sums.encode_for(id)))
    }

    /// Handles an existing file of the blob's name: keeps it if it is sound, else puts `file` in its place.
    fn keep_or_replace(&self, id: &BlobId, sums: &Sums, file: &Path, path: &Path) -> Result<(), BlobError> {
        let (new, old) = (fs::metadata(file)?, fs::metadata(path)?);
        if (new.dev(), new.ino()) == (old.dev(), old.ino()) {
            return Ok(());
        }
        if self.has_sound_copy(id, sums, path)? {
            // Its writer may not have synced it yet, and the caller will rely on this copy.
            self.unsynced.lock().push(*id);
            return Ok(());
        }
        let temporary = self.temporary()?;
        fs::hard_link(file, &temporary)?;
        self.rename(&temporary, path)
    }

    /// Whether the blob is here already, with bytes that match every CRC.
    fn has_sound_copy(&self, id: &BlobId, sums: &Sums, path: &Path) -> Result<bool, BlobError> {
        let size = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            metadata => metadata?.len(),
        };
        let fits = |bytes: Vec<u8>| bytes.is_empty() || sums.check(0, &bytes).is_ok();
        let sound = size == u64::from(sums.size()) && fs::read(path).is_ok_and(fits);
        if !sound {
            self.open.forget(id);
        }
        Ok(sound)
    }

    /// Writes a file under a temporary name and moves it to `path`.
    fn place(&self, path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> Result<(), BlobError> {
        self.spares.remove_one();
        let temporary = self.temporary()?;
        let written = create_new(&temporary).and_then(|file| write(&file));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error.into());
        }
        self.rename(&temporary, path)
    }

    fn rename(&self, temporary: &Path, path: &Path) -> Result<(), BlobError> {
        let moved = fs::rename(temporary, path);
        // A rename onto another name of the same file does nothing and leaves the old name, too.
        let _ = ignore_missing(fs::remove_file(temporary));
        Ok(moved?)
    }

    /// An unused name in `tmp/`.
    pub(super) fn temporary(&self) -> io::Result<PathBuf> {
        let dir = self.dir.join("tmp");
        if !dir.is_dir() {
            self.make_folder("tmp")?;
        }
        Ok(dir.join(format!("{:016x}", base::random::u64())))
    }

    pub(super) fn make_folder(&self, name: &str) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.root_touched.store(true, Ordering::Release),
        }
        Ok(())
    }
}

/// Copies a blob's bytes and compares them with its sums on the way: the copy may soon be the only one.
fn copy_checked(sums: &Sums, from: &File, mut to: &File) -> io::Result<()> {
    let mut group = vec![0; GROUP as usize];
    for at in (0..sums.size()).step_by(GROUP as usize) {
        let group = &mut group[..GROUP.min(sums.size() - at) as usize];
        from.read_exact_at(group, u64::from(at))?;
        sums.check(at, group).map_err(|wrong| io::Error::new(io::ErrorKind::InvalidData, wrong))?;
        to.write_all(group)?;
    }
    Ok(())
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// The error means: another filesystem, one without hard links, or a file that has too many.
fn cannot_link(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [libc::EXDEV, libc::EPERM, libc::EMLINK, libc::EOPNOTSUPP, libc::ENOSYS]
        .into_iter()
        .any(|c| code == Some(c))
}
