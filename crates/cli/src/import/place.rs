//! A mounted path as a sink: system calls relative to open folders, so that no symbolic link is followed on the way.
//!
//! Each call on a mount waits for the daemon, so files of one piece are handed to a few [`workers`]; folders, links and
//! large files are made here, in order. A hard link waits until all that came before it is there.

mod workers;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Must, Timestamp};

use crate::error::{Context, Failure, Result};
use crate::import::{Item, Kind, PIECE, Sink, exists};
use crate::sys;
use workers::{Job, Workers};

const FOLDER: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH;

/// Times and permissions that a folder gets at the end, when nothing is made in it any more.
struct Late {
    path: PathBuf,
    perm: u32,
    atime: Timestamp,
    mtime: Timestamp,
}

/// What holds for everything that is made.
struct Rules {
    root: PathBuf,
    overwrite: bool,
    /// Whether owners are set: only root may.
    owners: bool,
}

/// A place on a mount.
pub struct Place {
    rules: Arc<Rules>,
    root: Arc<OwnedFd>,
    /// The folder that was worked in last, and its open form.
    folder: (PathBuf, Arc<OwnedFd>),
    open: Option<Open>,
    late: Vec<Late>,
    workers: Workers,
}

/// The file being received.
enum Open {
    /// Not made yet; it may be small enough for a worker.
    Waiting(Item, Vec<(u64, Vec<u8>)>),
    /// Being written.
    Made(Made),
}

/// A file that is open for writing.
struct Made {
    item: Item,
    file: File,
    /// The end of the last bytes written: the rest up to its size is a hole.
    end: u64,
}

impl Place {
    /// The folder `root`, made if it is not there (its parent must be).
    pub fn new(root: &Path, overwrite: bool) -> Result<Place> {
        sys::clear_umask();
        match std::fs::create_dir(root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Failure::io(format!("cannot make {}", root.display()), &error));
            }
            _ => {}
        }
        let here = File::open("/").at("open", Path::new("/"))?;
        let absolute = std::fs::canonicalize(root).at("open", root)?;
        let fd = sys::open_at(&here, absolute.as_os_str(), libc::O_DIRECTORY, 0).at("open", root)?;
        let rules = Arc::new(Rules { root: root.to_owned(), overwrite, owners: sys::euid() == 0 });
        let root = Arc::new(fd);
        Ok(Place {
            workers: Workers::start(rules.clone())?,
            rules,
            folder: (PathBuf::new(), root.clone()),
            root,
            open: None,
            late: Vec::new(),
        })
    }

    /// Opens a folder below the root, making what is missing on the way (archives may leave folders out).
    fn descend(&self, path: &Path) -> io::Result<Arc<OwnedFd>> {
        let mut at = self.root.clone();
        for name in path.components() {
            let next = match sys::open_at(&at, name.as_os_str(), FOLDER, 0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    sys::mkdir_at(&at, name.as_os_str(), 0o755)?;
                    sys::open_at(&at, name.as_os_str(), FOLDER, 0)?
                }
                other => other?,
            };
            at = Arc::new(next);
        }
        Ok(at)
    }

    /// Makes the folder of `path` the one that is worked in.
    fn enter(&mut self, path: &Path) -> Result<Arc<OwnedFd>> {
        let folder = path.parent().unwrap_or(Path::new(""));
        if self.folder.0 != folder {
            let fd = self.descend(folder).at("enter", &self.rules.shown(folder))?;
            self.folder = (folder.to_owned(), fd);
        }
        Ok(self.folder.1.clone())
    }

    fn make_folder(&mut self, dir: &OwnedFd, item: &Item, name: &OsStr) -> Result<()> {
        let made = match sys::mkdir_at(dir, name, 0o700 | item.perm) {
            // Only a folder may be there already; a link to one is none.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => sys::open_at(dir, name, FOLDER, 0)
                .map(drop)
                .map_err(|_| exists(&self.rules.shown(&item.path))),
            other => other.at("make", &self.rules.shown(&item.path)),
        };
        made?;
        self.rules.dress(dir, item, name)?;
        let Item { path, perm, atime, mtime, .. } = item;
        self.late.push(Late { path: path.clone(), perm: *perm, atime: *atime, mtime: *mtime });
        Ok(())
    }

    /// The place itself takes over what the source's top folder has.
    fn dress_root(&mut self, item: &Item) -> Result<()> {
        if self.rules.owners {
            sys::chown(&self.root, item.uid, item.gid).at("set the owner of", &self.rules.root)?;
        }
        self.rules.attributes(item, &sys::through(&self.root, OsStr::new(".")))?;
        let Item { perm, atime, mtime, .. } = item;
        self.late.push(Late { path: PathBuf::new(), perm: *perm, atime: *atime, mtime: *mtime });
        Ok(())
    }

    fn link(&mut self, dir: &OwnedFd, item: &Item, name: &OsStr, first: &Path) -> Result<()> {
        // What it links to may still be in a worker's hands.
        self.workers.settle()?;
        let parent = first.parent().unwrap_or(Path::new(""));
        let from = self.descend(parent).at("enter", &self.rules.shown(parent))?;
        let first_name = first.file_name().unwrap_or_default();
        self.rules.make(dir, &item.path, name, |to| sys::link_at(&from, first_name, to, name))
    }
}

impl Sink for Place {
    fn item(&mut self, item: Item) -> Result<()> {
        let Some(name) = item.path.file_name().map(OsString::from) else {
            return self.dress_root(&item);
        };
        let dir = self.enter(&item.path)?;
        match &item.kind {
            Kind::Dir => self.make_folder(&dir, &item, &name),
            Kind::File { .. } => {
                self.open = Some(Open::Waiting(item, Vec::new()));
                Ok(())
            }
            Kind::HardLink(first) => self.link(&dir, &item, &name, first),
            Kind::Symlink(target) => {
                self.rules.make(&dir, &item.path, &name, |dir| sys::symlink_at(target, dir, &name))?;
                self.rules.dress(&dir, &item, &name)
            }
            Kind::Node { format, rdev } => {
                let mode = format | item.perm;
                self.rules.make(&dir, &item.path, &name, |dir| sys::mknod_at(dir, &name, mode, *rdev))?;
                self.rules.dress(&dir, &item, &name)
            }
        }
    }

    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        let mut made = match self.open.take().must("pieces follow a file") {
            Open::Waiting(item, mut pieces) => {
                if bytes.len() < PIECE && pieces.is_empty() {
                    pieces.push((offset, bytes));
                    self.open = Some(Open::Waiting(item, pieces));
                    return Ok(());
                }
                let mut made = self.rules.create(&self.folder.1, item)?;
                for (at, piece) in pieces {
                    self.rules.write(&mut made, at, &piece)?;
                }
                made
            }
            Open::Made(made) => made,
        };
        self.rules.write(&mut made, offset, &bytes)?;
        self.open = Some(Open::Made(made));
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match self.open.take().must("an end follows a file") {
            Open::Waiting(item, pieces) => {
                self.workers.send(Job { dir: self.folder.1.clone(), item, pieces })
            }
            Open::Made(made) => self.rules.complete(&self.folder.1, made),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.workers.settle()?;
        // The deepest first: setting a folder's times does not move those of the folder above.
        while let Some(late) = self.late.pop() {
            let shown = self.rules.shown(&late.path);
            let dir = self.enter(&late.path)?;
            let (dir, name) = match late.path.file_name() {
                Some(name) => (&dir, name),
                None => (&self.root, OsStr::new(".")),
            };
            sys::chmod_at(dir, name, late.perm).at("set the mode of", &shown)?;
            sys::times_at(dir, name, late.atime, late.mtime).at("set the times of", &shown)?;
        }
        sys::syncfs(&self.root).at("sync", &self.rules.root)
    }
}

impl Rules {
    fn shown(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    /// Makes a name with `make`; one that is there is removed first if that was asked for.
    fn make<T>(
        &self,
        dir: &OwnedFd,
        path: &Path,
        name: &OsStr,
        make: impl Fn(&OwnedFd) -> io::Result<T>,
    ) -> Result<T> {
        let shown = || self.shown(path);
        match make(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !self.overwrite {
                    return Err(exists(&shown()));
                }
                sys::unlink_at(dir, name).at("replace", &shown())?;
                make(dir).at("make", &shown())
            }
            other => other.at("make", &shown()),
        }
    }

    /// Makes a file and opens it.
    fn create(&self, dir: &OwnedFd, item: Item) -> Result<Made> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let name = item.path.file_name().unwrap_or_default();
        let mode = item.perm & 0o777;
        let fd = self.make(dir, &item.path, name, |dir| sys::open_at(dir, name, flags, mode))?;
        Ok(Made { item, file: fd.into(), end: 0 })
    }

    fn write(&self, made: &mut Made, offset: u64, bytes: &[u8]) -> Result<()> {
        made.end = made.end.max(offset + bytes.len() as u64);
        made.file.write_all_at(bytes, offset).at("write", &self.shown(&made.item.path))
    }

    /// Size, owner, mode, attributes and, last, times of a file.
    fn complete(&self, dir: &OwnedFd, made: Made) -> Result<()> {
        let Made { item, file, end } = made;
        let Kind::File { size } = item.kind else { return Ok(()) };
        let finish = || -> io::Result<()> {
            if end < size {
                file.set_len(size)?;
            }
            if self.owners {
                // A question of the kernel's own memory, where a change would go to the daemon.
                let now = file.metadata()?;
                if (now.uid(), now.gid()) != (item.uid, item.gid) {
                    sys::chown(&file, item.uid, item.gid)?;
                }
            }
            if item.perm & 0o7000 != 0 {
                sys::chmod(&file, item.perm)?;
            }
            Ok(())
        };
        finish().at("complete", &self.shown(&item.path))?;
        if !item.xattrs.is_empty() {
            self.attributes(&item, &sys::through(dir, item.path.file_name().unwrap_or_default()))?;
        }
        sys::times(&file, item.atime, item.mtime).at("set the times of", &self.shown(&item.path))
    }

    /// Owner and attributes of a name that is no file, and times of one that is no folder either.
    fn dress(&self, dir: &OwnedFd, item: &Item, name: &OsStr) -> Result<()> {
        let shown = || self.shown(&item.path);
        if self.owners {
            sys::chown_at(dir, name, item.uid, item.gid).at("set the owner of", &shown())?;
        }
        self.attributes(item, &sys::through(dir, name))?;
        if matches!(item.kind, Kind::Dir) {
            return Ok(());
        }
        if matches!(item.kind, Kind::Node { .. }) && self.owners {
            sys::chmod_at(dir, name, item.perm).at("set the mode of", &shown())?;
        }
        sys::times_at(dir, name, item.atime, item.mtime).at("set the times of", &shown())
    }

    /// An ordinary user cannot set those that only root has; everything else must work.
    fn attributes(&self, item: &Item, path: &Path) -> Result<()> {
        for (name, value) in &item.xattrs {
            match sys::set_xattr(path, name, value) {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && !self.owners => {}
                // Labels of a security module that this filesystem does not carry.
                Err(error)
                    if error.raw_os_error() == Some(libc::EOPNOTSUPP) && name.starts_with(b"security.") => {}
                other => other.or_fail(|| {
                    let name = String::from_utf8_lossy(name);
                    format!("cannot set the attribute {name} of {}", self.shown(&item.path).display())
                })?,
            }
        }
        Ok(())
    }
}
