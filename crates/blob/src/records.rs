//! Records: the few small things of an origin that have names of their own instead of their bytes' hash.
//!
//! Examples are a published tree's root and a volume's description of itself. A record is replaced as a
//! whole: a reader sees the old bytes or the new, never a mixture. There is no lock. A writer that must not
//! overwrite another's record makes it with [`Records::create`], which succeeds for only one of several
//! callers.
//!
//! **A name** is like `published/nightly`: parts of letters, digits, `.`, `_`, `-` and `=`, none of them `.`
//! or `..` or empty, at most 200 bytes in all. So it is a path below a folder and a key in an object store,
//! and nothing needs escaping.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::source::BlobError;

/// A record has at most this many bytes.
pub const RECORD_MAX: usize = 1 << 20;

/// The longest name of a record, in bytes.
pub const NAME_MAX: usize = 200;

/// Small named things beside the blobs. See the [module](self).
pub trait Records: Send + Sync {
    /// The record's bytes, if it is there.
    ///
    /// # Errors
    /// See [`BlobError`]; `Io` with invalid input for an invalid name.
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError>;

    /// Creates or replaces a record. When this returns, it survives a power cut.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError>;

    /// Creates a record that does not exist yet. If it exists, returns false and changes nothing. Of several
    /// concurrent callers one succeeds.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError>;

    /// Removes a record; a missing one is not an error.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn remove_record(&self, name: &str) -> Result<(), BlobError>;

    /// The names of all records below `folder` (such as `published`), in order; all names for an empty
    /// `folder`.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError>;
}

/// Whether this can be the name of a record.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-=".contains(&byte);
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain);
    name.len() <= NAME_MAX && name.split('/').all(part)
}

/// Refuses an invalid name, or too many bytes.
///
/// # Errors
/// `Io`, invalid input.
pub fn check(name: &str, bytes: &[u8]) -> Result<(), BlobError> {
    let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
    if !is_name(name) {
        return refuse(format!("{name:?} is no name for a record"));
    }
    if bytes.len() > RECORD_MAX {
        return refuse(format!("the record {name} would have {} bytes, which is too much", bytes.len()));
    }
    Ok(())
}

/// Whether `name` lies below `folder`.
pub fn is_below(name: &str, folder: &str) -> bool {
    folder.is_empty() || name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Records as files.
pub struct RecordFolder {
    dir: PathBuf,
}

impl RecordFolder {
    /// Records below `dir`, which is created with the first record.
    pub fn new(dir: &Path) -> RecordFolder {
        RecordFolder { dir: dir.to_owned() }
    }

    /// Writes a file beside the record, durably. Returns its path, and the record's path.
    fn prepare(&self, name: &str, bytes: &[u8]) -> Result<(PathBuf, PathBuf), BlobError> {
        check(name, bytes)?;
        let file = self.dir.join(name);
        let folder = file.parent().unwrap_or(&self.dir);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&self.dir)) {
            File::open(folder)?.sync_all()?;
        }
        // No name has a `~`, so a temporary file is never taken for a record.
        let mut temporary = file.clone().into_os_string();
        temporary.push(format!("~{:016x}", base::random::u64()));
        let temporary = PathBuf::from(temporary);
        let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = to.write_all(bytes).and_then(|()| to.sync_all());
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error.into());
        }
        Ok((temporary, file))
    }

    fn walk(&self, folder: &Path, prefix: &str, out: &mut Vec<String>) -> io::Result<()> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Ok(part) = entry.file_name().into_string() else { continue };
            let name = if prefix.is_empty() { part } else { format!("{prefix}/{part}") };
            if !is_name(&name) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.walk(&entry.path(), &name, out)?;
            } else {
                out.push(name);
            }
        }
        Ok(())
    }
}

/// Whether the filesystem has no hard links.
fn has_no_links(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

/// Renames a file, unless the new name exists.
fn rename_to_nothing(from: &Path, to: &Path) -> io::Result<()> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (from, to) = (text(from)?, text(to)?);
    // SAFETY: both names end with a NUL and outlive the call, which keeps neither.
    let done = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn sync_parent(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}

impl Records for RecordFolder {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        check(name, &[])?;
        match fs::read(self.dir.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        let (temporary, file) = self.prepare(name, bytes)?;
        let renamed = fs::rename(&temporary, &file).and_then(|()| sync_parent(&file));
        if renamed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        Ok(renamed?)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        let (temporary, file) = self.prepare(name, bytes)?;
        let mut made = fs::hard_link(&temporary, &file);
        if made.as_ref().is_err_and(has_no_links) {
            made = rename_to_nothing(&temporary, &file);
        }
        let _ = fs::remove_file(&temporary);
        match made {
            Ok(()) => {
                sync_parent(&file)?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        check(name, &[])?;
        let file = self.dir.join(name);
        match fs::remove_file(&file) {
            Ok(()) => Ok(sync_parent(&file)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        if !folder.is_empty() {
            check(folder, &[])?;
        }
        let mut out = Vec::new();
        self.walk(&self.dir.join(folder), folder, &mut out)?;
        out.sort();
        Ok(out)
    }
}

/// Records in memory.
#[derive(Default)]
pub struct RecordMap {
    all: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl Records for RecordMap {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        check(name, &[])?;
        Ok(self.all.lock().get(name).cloned())
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        check(name, bytes)?;
        self.all.lock().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        check(name, bytes)?;
        let mut all = self.all.lock();
        if all.contains_key(name) {
            return Ok(false);
        }
        all.insert(name.to_owned(), bytes.to_vec());
        Ok(true)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        check(name, &[])?;
        self.all.lock().remove(name);
        Ok(())
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        Ok(self.all.lock().keys().filter(|name| is_below(name, folder)).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_hard_links_only_one_caller_creates_a_record() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two, to) = (dir.path().join("one"), dir.path().join("two"), dir.path().join("to"));
        fs::write(&one, "one").unwrap();
        fs::write(&two, "two").unwrap();
        rename_to_nothing(&one, &to).unwrap();
        assert_eq!(rename_to_nothing(&two, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&to).unwrap(), b"one");
        assert!(has_no_links(&io::Error::from_raw_os_error(libc::EPERM)));
        assert!(!has_no_links(&io::Error::from_raw_os_error(libc::EEXIST)));
    }
}
