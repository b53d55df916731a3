//! What the destination holds already, so that a second import takes only the rest.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Context, Result};
use base::Ino;
use fs::Errno;
use fs::api::{FileKind, Filesystem};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use super::ETAG;
use crate::import::errno_failure;
use crate::sys::metadata;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A folder.
    Folder,
    /// A regular file.
    File {
        /// The file's size in bytes.
        size: u64,
        /// The ETag that an import recorded. Empty if there is none.
        etag: Vec<u8>,
    },
    /// Anything else.
    Other,
}

/// A look at the destination.
pub trait There: Send {
    /// What is at a path below the destination.
    ///
    /// # Errors
    /// It cannot be seen.
    fn find(&self, path: &Path) -> Result<Found>;
}

/// A path of this machine.
pub struct OnMount {
    root: PathBuf,
    /// The folder that was looked into last. None: it was not there.
    folder: Mutex<Option<(PathBuf, Option<OwnedFd>)>>,
}

impl OnMount {
    /// `root` need not exist.
    pub fn new(root: &Path) -> OnMount {
        OnMount { root: root.to_owned(), folder: Mutex::default() }
    }

    fn open(&self, folder: &Path) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || -> rustix::io::Result<OwnedFd> {
            let root = rustix::fs::open(&self.root, flags, Mode::empty())?;
            if folder.as_os_str().is_empty() {
                return Ok(root);
            }
            openat2(&root, folder, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
        };
        none_if_missing(open())
    }
}

fn none_if_missing<T>(found: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        // A file or a link in place of a folder is reported when the folder is created.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl There for OnMount {
    fn find(&self, path: &Path) -> Result<Found> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let mut last = self.folder.lock();
        if last.as_ref().is_none_or(|(folder, _)| folder != parent) {
            let shown = self.root.join(parent);
            *last = Some((parent.to_owned(), self.open(parent).at("look into", &shown)?));
        }
        let Some((_, Some(folder))) = &*last else { return Ok(Found::Nothing) };
        let look = || -> io::Result<Found> {
            let name = path.file_name().unwrap_or_default();
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Some(file) = none_if_missing(rustix::fs::openat(folder, name, flags, Mode::empty()))? else {
                return Ok(Found::Nothing);
            };
            let about = fstat(&file)?;
            Ok(match FileType::from_raw_mode(about.st_mode) {
                FileType::Directory => Found::Folder,
                FileType::RegularFile => Found::File {
                    size: u64::try_from(about.st_size).unwrap_or(0),
                    etag: metadata::xattr(&file, ETAG)?.unwrap_or_default(),
                },
                _ => Found::Other,
            })
        };
        look().at("look at", &self.root.join(path))
    }
}

/// A volume that this process has opened.
pub struct InVolume {
    volume: Arc<dyn Filesystem>,
    root: PathBuf,
    /// The folder that was looked into last. None: it was not there. It holds one reference.
    folder: Mutex<Option<(PathBuf, Option<Ino>)>>,
}

impl InVolume {
    /// `root` is a path below the volume's root. It need not exist.
    pub fn new(volume: Arc<dyn Filesystem>, root: &Path) -> InVolume {
        InVolume { volume, root: root.to_owned(), folder: Mutex::default() }
    }

    /// The folder at a path, with a reference unless it is the root.
    fn open(&self, folder: &Path) -> fs::api::Result<Option<Ino>> {
        let mut at = Ino::ROOT;
        for name in self.root.join(folder).components() {
            let found = self.volume.lookup(at, name.as_os_str().as_bytes());
            self.forget(at);
            match found {
                Ok(entry) => at = entry.attr.ino,
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(at))
    }

    fn forget(&self, ino: Ino) {
        if ino != Ino::ROOT {
            self.volume.forget(ino, 1);
        }
    }

    fn look(&self, folder: Ino, name: &OsStr) -> fs::api::Result<Found> {
        let attr = match self.volume.lookup(folder, name.as_bytes()) {
            Ok(entry) => entry.attr,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        };
        let found = match attr.kind {
            FileKind::Dir => Ok(Found::Folder),
            FileKind::File => match self.volume.getxattr(attr.ino, ETAG) {
                Ok(etag) => Ok(Found::File { size: attr.size, etag }),
                Err(Errno::ENODATA) => Ok(Found::File { size: attr.size, etag: Vec::new() }),
                Err(error) => Err(error),
            },
            _ => Ok(Found::Other),
        };
        self.forget(attr.ino);
        found
    }
}

impl There for InVolume {
    fn find(&self, path: &Path) -> Result<Found> {
        let failed =
            |errno| errno_failure(format!("cannot look at {}", self.root.join(path).display()), errno);
        let parent = path.parent().unwrap_or(Path::new(""));
        let mut last = self.folder.lock();
        if last.as_ref().is_none_or(|(folder, _)| folder != parent) {
            if let Some((_, Some(ino))) = last.take() {
                self.forget(ino);
            }
            *last = Some((parent.to_owned(), self.open(parent).map_err(failed)?));
        }
        match &*last {
            Some((_, Some(folder))) => {
                self.look(*folder, path.file_name().unwrap_or_default()).map_err(failed)
            }
            _ => Ok(Found::Nothing),
        }
    }
}

impl Drop for InVolume {
    fn drop(&mut self) {
        if let Some((_, Some(ino))) = self.folder.lock().take() {
            self.forget(ino);
        }
    }
}
