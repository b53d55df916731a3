//! The notes: a folder with a link for each blob that the origin does not have yet.
//!
//! ```text
//!   VOLUME/upload/ab12...ef       a second name of the blob's file; removed when the origin has the blob
//!   VOLUME/upload/ab12...ef.new   unfinished; the next open removes what a crash leaves
//! ```
//!
//! The `.new` name is used for a link that replaces an older note, and for a copy where a link is impossible.
//!
//! A link preserves the bytes whatever happens to the file's other names, and making one is a single write to
//! a folder. So a note costs no second copy. A crash between two steps can leave a note that is not needed,
//! but never a stored blob without its note.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use base::size::BLOB_MAX;
use base::{BlobId, Timestamp};
use blob::{Space, Sums};

use crate::disk::{Durable, space_of};

/// A blob that an earlier run left to be uploaded.
pub(super) struct Left {
    pub(super) id: BlobId,
    pub(super) size: u64,
    /// When its bytes were last written.
    pub(super) since: Timestamp,
}

/// The folder. See the [module](self).
pub(super) struct Notes {
    dir: PathBuf,
    handle: File,
    durable: Durable,
}

impl Notes {
    /// Opens the folder. Creates it if it is absent.
    pub(super) fn open(dir: &Path) -> io::Result<Notes> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {
                if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    File::open(parent)?.sync_all()?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        // Existing notes may have been made just before a kill.
        Ok(Notes { dir: dir.to_owned(), handle: File::open(dir)?, durable: Durable::new(1) })
    }

    pub(super) fn path(&self, id: &BlobId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// All notes, oldest first. `tidy` removes leftovers of a crash.
    pub(super) fn list(&self, tidy: bool) -> io::Result<Vec<Left>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let Ok(id) = name.parse::<BlobId>() else {
                if tidy && name.ends_with(".new") {
                    let _ = fs::remove_file(entry.path());
                }
                continue;
            };
            let metadata = match entry.metadata() {
                // A run that is just ending removed it after its upload.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let written = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let since = written
                .map_or(Timestamp(0), |at| Timestamp::from_parts(at.as_secs() as i64, at.subsec_nanos()));
            all.push(Left { id, size: metadata.len(), since });
        }
        all.sort_by_key(|left| left.since);
        Ok(all)
    }

    /// Notes a blob whose bytes are in `file`.
    pub(super) fn link(&self, id: &BlobId, file: &Path) -> io::Result<()> {
        let to = self.path(id);
        match fs::hard_link(file, &to) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if same_file(file, &to)? {
                    return Ok(());
                }
                // The old note may hold anything after a power cut, or may be damaged.
                let new = self.temporary(id);
                match fs::hard_link(file, &new) {
                    Ok(()) => fs::rename(&new, &to)?,
                    Err(error) if cannot_link(&error) => self.copy(id, file)?,
                    Err(error) => return Err(error),
                }
            }
            Err(error) if cannot_link(&error) => self.copy(id, file)?,
            Err(error) => return Err(error),
        }
        self.durable.changed();
        Ok(())
    }

    /// Whether the blob's note is `file` itself or another file with the blob's bytes.
    pub(super) fn holds(&self, id: &BlobId, file: &Path) -> io::Result<bool> {
        match same_file(file, &self.path(id)) {
            Ok(true) => Ok(true),
            Ok(false) => {
                let is_right =
                    |bytes: Vec<u8>| bytes.len() <= BLOB_MAX as usize && Sums::of(&bytes).id() == *id;
                Ok(self.read(id).is_ok_and(is_right))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn temporary(&self, id: &BlobId) -> PathBuf {
        self.dir.join(format!("{id}.{:016x}.new", base::random::u64()))
    }

    fn copy(&self, id: &BlobId, file: &Path) -> io::Result<()> {
        let new = self.temporary(id);
        let copied = (|| {
            let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            io::copy(&mut File::open(file)?, &mut to)?;
            to.sync_data()?;
            fs::rename(&new, self.path(id))
        })();
        if copied.is_err() {
            let _ = fs::remove_file(&new);
        }
        copied
    }

    /// Removes a note.
    pub(super) fn unlink(&self, id: &BlobId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// A noted blob's bytes.
    pub(super) fn read(&self, id: &BlobId) -> io::Result<Vec<u8>> {
        fs::read(self.path(id))
    }

    /// Makes the notes durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.durable.sync(|| self.handle.sync_all())
    }

    /// Free space of the disk.
    pub(super) fn space(&self) -> io::Result<Space> {
        space_of(&self.handle)
    }
}

fn same_file(a: &Path, b: &Path) -> io::Result<bool> {
    let (a, b) = (fs::metadata(a)?, fs::metadata(b)?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Whether a hard link is impossible: another filesystem, one without hard links, or a file with too many.
fn cannot_link(error: &io::Error) -> bool {
    let codes = [libc::EXDEV, libc::EPERM, libc::EMLINK, libc::EOPNOTSUPP, libc::ENOSYS];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}
