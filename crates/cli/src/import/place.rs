//! A mounted path as a sink: system calls relative to open folders, so that no symbolic link is followed on the way.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::{Must, Timestamp};

use crate::error::{Context, Failure, Result};
use crate::import::{Item, Kind, Sink, exists};
use crate::sys;

const FOLDER: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH;

/// Times and permissions that a folder gets at the end, when nothing is made in it any more.
struct Late {
    path: PathBuf,
    perm: u32,
    atime: Timestamp,
    mtime: Timestamp,
}

/// A place on a mount.
pub struct Place {
    root: PathBuf,
    root_fd: OwnedFd,
    overwrite: bool,
    owners: bool,
    /// The folder that was worked in last, and its open form.
    folder: (PathBuf, Option<OwnedFd>),
    open: Option<Open>,
    late: Vec<Late>,
}

/// The file being written.
struct Open {
    item: Item,
    size: u64,
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
        let root_fd = sys::open_at(&here, absolute.as_os_str(), libc::O_DIRECTORY, 0).at("open", root)?;
        Ok(Place {
            root: root.to_owned(),
            root_fd,
            overwrite,
            owners: sys::euid() == 0,
            folder: (PathBuf::new(), None),
            open: None,
            late: Vec::new(),
        })
    }

    fn shown(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    /// Opens a folder below the root, making what is missing on the way (archives may leave folders out).
    fn descend(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let mut at: Option<OwnedFd> = None;
        for name in path.components() {
            let dir = at.as_ref().unwrap_or(&self.root_fd);
            let next = match sys::open_at(dir, name.as_os_str(), FOLDER, 0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    sys::mkdir_at(dir, name.as_os_str(), 0o755)?;
                    sys::open_at(dir, name.as_os_str(), FOLDER, 0)?
                }
                other => other?,
            };
            at = Some(next);
        }
        Ok(at)
    }

    /// Makes the folder of `path` the one that is worked in.
    fn enter(&mut self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(Path::new(""));
        if self.folder.0 != folder || (self.folder.1.is_none() && !folder.as_os_str().is_empty()) {
            self.folder.1 = self.descend(folder).at("enter", &self.shown(folder))?;
            self.folder.0 = folder.to_owned();
        }
        Ok(())
    }

    fn here(&self) -> &OwnedFd {
        self.folder.1.as_ref().unwrap_or(&self.root_fd)
    }

    /// Makes a name with `make`; one that is there is removed first if that was asked for.
    fn make<T>(&self, path: &Path, name: &OsStr, make: impl Fn(&OwnedFd) -> io::Result<T>) -> Result<T> {
        let shown = || self.shown(path);
        match make(self.here()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !self.overwrite {
                    return Err(exists(&shown()));
                }
                sys::unlink_at(self.here(), name).at("replace", &shown())?;
                make(self.here()).at("make", &shown())
            }
            other => other.at("make", &shown()),
        }
    }

    fn folder(&mut self, item: &Item, name: &OsStr) -> Result<()> {
        match sys::mkdir_at(self.here(), name, 0o700 | item.perm) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Only a folder may be there already; a link to one is none.
                sys::open_at(self.here(), name, FOLDER, 0).map_err(|_| exists(&self.shown(&item.path)))?;
                Ok(())
            }
            other => other.at("make", &self.shown(&item.path)),
        }
    }

    /// Owner, attributes, times of a name that is no file and no folder's end.
    fn dress(&self, item: &Item, name: &OsStr) -> Result<()> {
        let dir = self.here();
        let shown = || self.shown(&item.path);
        if self.owners {
            sys::chown_at(dir, name, item.uid, item.gid).at("set the owner of", &shown())?;
        }
        self.attributes(item, &sys::through(dir, name))?;
        if !matches!(item.kind, Kind::Dir) {
            if matches!(item.kind, Kind::Node { .. }) && self.owners {
                sys::chmod_at(dir, name, item.perm).at("set the mode of", &shown())?;
            }
            sys::times_at(dir, name, item.atime, item.mtime).at("set the times of", &shown())?;
        }
        Ok(())
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

impl Sink for Place {
    fn item(&mut self, item: Item) -> Result<()> {
        let Some(name) = item.path.file_name().map(OsString::from) else {
            return self.root(&item);
        };
        self.enter(&item.path)?;
        let perm = item.perm;
        match &item.kind {
            Kind::Dir => {
                self.folder(&item, &name)?;
                self.dress(&item, &name)?;
                self.late.push(Late { path: item.path.clone(), perm, atime: item.atime, mtime: item.mtime });
            }
            Kind::File { size } => {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
                let fd = self.make(&item.path, &name, |dir| sys::open_at(dir, &name, flags, perm & 0o777))?;
                let size = *size;
                self.open = Some(Open { size, file: fd.into(), end: 0, item });
            }
            Kind::Symlink(target) => {
                self.make(&item.path, &name, |dir| sys::symlink_at(target, dir, &name))?;
                self.dress(&item, &name)?;
            }
            Kind::HardLink(first) => {
                let parent = first.parent().unwrap_or(Path::new(""));
                let first_name = first.file_name().unwrap_or_default();
                let dir = self.descend(parent).at("enter", &self.shown(parent))?;
                let from = dir.as_ref().unwrap_or(&self.root_fd);
                self.make(&item.path, &name, |to| sys::link_at(from, first_name, to, &name))?;
            }
            Kind::Node { format, rdev } => {
                self.make(&item.path, &name, |dir| sys::mknod_at(dir, &name, format | perm, *rdev))?;
                self.dress(&item, &name)?;
            }
        }
        Ok(())
    }

    fn piece(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let open = self.open.as_mut().must("pieces follow a file");
        open.end = open.end.max(offset + bytes.len() as u64);
        let outcome = open.file.write_all_at(bytes, offset);
        outcome.map_err(|error| {
            let shown = self.open.as_ref().map(|open| self.shown(&open.item.path)).unwrap_or_default();
            Failure::io(format!("cannot write {}", shown.display()), &error)
        })
    }

    fn end(&mut self) -> Result<()> {
        let open = self.open.take().must("an end follows a file");
        let Open { item, size, file, end } = open;
        let finish = || -> io::Result<()> {
            if end < size {
                file.set_len(size)?;
            }
            if self.owners {
                sys::chown(&file, item.uid, item.gid)?;
            }
            if item.perm & 0o7000 != 0 {
                sys::chmod(&file, item.perm)?;
            }
            Ok(())
        };
        finish().at("complete", &self.shown(&item.path))?;
        if !item.xattrs.is_empty() {
            let name = item.path.file_name().unwrap_or_default();
            self.attributes(&item, &sys::through(self.here(), name))?;
        }
        sys::times(&file, item.atime, item.mtime).at("set the times of", &self.shown(&item.path))
    }

    fn finish(&mut self) -> Result<()> {
        // The deepest first: setting a folder's times does not move those of the folder above.
        while let Some(late) = self.late.pop() {
            let shown = self.shown(&late.path);
            self.enter(&late.path)?;
            let (dir, name) = match late.path.file_name() {
                Some(name) => (self.here(), name),
                None => (&self.root_fd, OsStr::new(".")),
            };
            sys::chmod_at(dir, name, late.perm).at("set the mode of", &shown)?;
            sys::times_at(dir, name, late.atime, late.mtime).at("set the times of", &shown)?;
        }
        sys::syncfs(&self.root_fd).at("sync", &self.root)
    }
}

impl Place {
    /// The place itself takes over what the source's top folder has.
    fn root(&mut self, item: &Item) -> Result<()> {
        if self.owners {
            sys::chown(&self.root_fd, item.uid, item.gid).at("set the owner of", &self.root)?;
        }
        self.attributes(item, &sys::through(&self.root_fd, OsStr::new(".")))?;
        self.late.push(Late { path: PathBuf::new(), perm: item.perm, atime: item.atime, mtime: item.mtime });
        Ok(())
    }
}
