//! A path of this machine as a sink. It uses system calls relative to open folders, and never follows a
//! symbolic link.
//!
//! After creation an item is addressed only by its descriptor. A user who can change the destination could
//! exchange names in the meantime ([`crate::sys::metadata`]). Folders belong to this user and are closed to
//! others until everything in them exists ([`late`]).
//!
//! Each call on a mount waits for the daemon. So files of one piece are passed to a few [`workers`]. Folders,
//! links and large files are created here, in order. A hard link waits until everything before it exists.

mod late;
mod rules;
#[cfg(test)]
mod tests;
mod workers;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::answers::Skipped;
use api::caller;
use api::error::{Context, Failure, Result};
use base::Must;
use parking_lot::Mutex;

use super::seen::Paths;
use super::{Item, Kind, Sink, exists};
use crate::PIECE;
use crate::acl::{ACCESS, DEFAULT};
use crate::sys;
use crate::sys::metadata;

use late::Late;
use rules::{Dir, Made, Replace, Rules};
use workers::{Job, Workers};

const FOLDER: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH;

/// A destination on a mount.
pub struct Place {
    rules: Arc<Rules>,
    root: Arc<Dir>,
    /// The folder used last, and its open descriptor.
    folder: (PathBuf, Arc<Dir>),
    open: Option<Open>,
    /// Paths created so far. A repeated name replaces its earlier item.
    made: Paths,
    late: Late,
    workers: Workers,
}

/// The current file.
enum Open {
    /// Not created yet. It may be small enough for a worker.
    Waiting(Item, Replace, Vec<(u64, Vec<u8>)>),
    /// Created and being written.
    Made(Made),
}

impl Place {
    /// Opens the folder `root`, or creates it if its parent exists.
    pub fn new(root: &Path, overwrite: bool) -> Result<Place> {
        // Without a trailing slash, which would follow a link.
        let root: &Path = &root.components().collect::<PathBuf>();
        let made = fs::create_dir(root);
        let made = match made {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Failure::io(format!("cannot make {}", root.display()), &error)),
        };
        let me = caller::euid();
        let fd = open_root(root, made, me)?;
        let rules = Arc::new(Rules {
            root: root.to_owned(),
            overwrite,
            owners: me == 0,
            me,
            left_out: Mutex::default(),
        });
        let root = Arc::new(dir(fd).at("open", root)?);
        Ok(Place {
            workers: Workers::start(rules.clone())?,
            rules,
            folder: (PathBuf::new(), root.clone()),
            root,
            open: None,
            made: Paths::default(),
            late: Late::default(),
        })
    }

    /// Whether the destination is empty.
    pub fn is_empty(&self) -> Result<bool> {
        let path = format!("/proc/self/fd/{}", self.root.fd.as_raw_fd());
        Ok(fs::read_dir(path).at("read", &self.rules.root)?.next().is_none())
    }

    /// Opens a folder below the root. With `make`, missing folders are created, since archives can omit
    /// folders.
    fn descend(&self, path: &Path, make: bool) -> io::Result<Arc<Dir>> {
        if path.as_os_str().is_empty() {
            return Ok(self.root.clone());
        }
        // From the folder used last, if the way leads through it.
        let (mut at, rest) = match path.strip_prefix(&self.folder.0) {
            Ok(rest) => (self.folder.1.fd.try_clone()?, rest),
            Err(_) => (self.root.fd.try_clone()?, path),
        };
        for name in rest.components() {
            let name = name.as_os_str();
            at = match sys::open_at(&at, name, FOLDER, 0) {
                Err(error) if make && error.kind() == io::ErrorKind::NotFound => {
                    sys::mkdir_at(&at, name, 0o777)?;
                    sys::open_at(&at, name, FOLDER, 0)?
                }
                other => other?,
            };
        }
        Ok(Arc::new(dir(at)?))
    }

    /// Makes the parent folder of `path` the current one.
    fn enter(&mut self, path: &Path) -> Result<Arc<Dir>> {
        let folder = path.parent().unwrap_or(Path::new(""));
        if self.folder.0 != folder {
            let dir = self.descend(folder, true).at("enter", &self.rules.shown(folder))?;
            self.folder = (folder.to_owned(), dir);
        }
        Ok(self.folder.1.clone())
    }

    fn make_folder(&mut self, dir: &Dir, item: Item, name: &OsStr, replace: Replace) -> Result<()> {
        let shown = self.rules.shown(&item.path);
        // Other users get no access before everything in the folder exists.
        let (fd, made) = match sys::mkdir_at(&dir.fd, name, 0o700) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match sys::open_at(&dir.fd, name, FOLDER, 0) {
                    // An earlier member of this name was no folder.
                    Err(_) if replace == Replace::OwnEarlier => {
                        self.rules
                            .make(dir, &item.path, name, replace, |dir| sys::mkdir_at(dir, name, 0o700))?;
                        (self.rules.reopen(dir, &item, name, libc::S_IFDIR)?, true)
                    }
                    // Only a folder can be there already. A link to a folder does not count.
                    other => (other.map_err(|_| exists(&shown))?, false),
                }
            }
            other => {
                other.at("make", &shown)?;
                (self.rules.reopen(dir, &item, name, libc::S_IFDIR)?, true)
            }
        };
        let id = metadata::look(&fd).at("look at", &shown)?.id;
        self.keep_for_later(item, &fd, id, made && dir.has_default_acl)
    }

    /// Attributes are set at once, so that they use no memory. ACLs are kept for the end.
    fn keep_for_later(&mut self, mut item: Item, fd: &OwnedFd, id: (u64, u64), inherits: bool) -> Result<()> {
        let acls: Vec<_> =
            item.xattrs.extract_if(.., |(name, _)| name == ACCESS || name == DEFAULT).collect();
        self.rules.attributes(&item, fd)?;
        item.xattrs = acls;
        self.late.add(item, id, inherits)
    }

    /// Creates an item that is no folder and has no bytes, and sets its attributes.
    fn make_node(&mut self, dir: &Dir, item: &Item, name: &OsStr, replace: Replace) -> Result<()> {
        let format = match &item.kind {
            Kind::Symlink(target) => {
                self.rules.make(dir, &item.path, name, replace, |dir| sys::symlink_at(target, dir, name))?;
                libc::S_IFLNK
            }
            Kind::Node { format, rdev } => {
                let mode = format | item.perm & 0o700;
                self.rules
                    .make(dir, &item.path, name, replace, |dir| sys::mknod_at(dir, name, mode, *rdev))?;
                *format
            }
            _ => return Ok(()),
        };
        let fd = self.rules.reopen(dir, item, name, format)?;
        self.rules.dress(item, &fd, dir.has_default_acl && format != libc::S_IFLNK)
    }

    fn link(&mut self, dir: &Dir, item: &Item, name: &OsStr, first: &Path, replace: Replace) -> Result<()> {
        // A worker may still be creating its target.
        self.workers.settle()?;
        let parent = first.parent().unwrap_or(Path::new(""));
        let first_name = first.file_name().unwrap_or_default();
        let looked_up = || -> io::Result<_> {
            let from = self.descend(parent, false)?;
            let there = sys::open_at(&from.fd, first_name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
            Ok((metadata::look(&there)?.id, from))
        };
        let (id, from) = match looked_up() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let why = format!("a hard link to {}, which is not there", first.display());
                self.rules.note(&item.path, why);
                return Ok(());
            }
            other => other.at("open", &self.rules.shown(first))?,
        };
        // This is a link to itself, or one that exists already.
        if let Ok(there) = sys::open_at(&dir.fd, name, libc::O_PATH | libc::O_NOFOLLOW, 0)
            && metadata::look(&there).is_ok_and(|seen| seen.id == id)
        {
            return Ok(());
        }
        self.rules.make(dir, &item.path, name, replace, |to| sys::link_at(&from.fd, first_name, to, name))
    }

    /// Whether an earlier item has this path. If so, that item is complete when this returns.
    fn note_path(&mut self, item: &Item) -> Result<Replace> {
        if self.made.add(&item.path) {
            return Ok(Replace::IfAsked);
        }
        self.workers.settle()?;
        if item.kind != Kind::Dir {
            // The earlier item may have been a folder.
            self.late.forget(&item.path)?;
            if self.folder.0 == item.path {
                self.folder = (PathBuf::new(), self.root.clone());
            }
        }
        Ok(Replace::OwnEarlier)
    }
}

/// Opens the destination itself. Root follows a symbolic link there only if the link belongs to root.
fn open_root(root: &Path, made: bool, me: u32) -> Result<OwnedFd> {
    let open = |flags: i32| {
        let flags =
            rustix::fs::OFlags::from_bits_retain((flags | libc::O_DIRECTORY | libc::O_CLOEXEC) as u32);
        rustix::fs::open(root, flags, rustix::fs::Mode::empty()).map_err(io::Error::from)
    };
    let error = match open(libc::O_NOFOLLOW) {
        Err(error) if !made => error,
        other => return other.at("open", root),
    };
    let link = root.symlink_metadata().at("open", root)?;
    if !link.is_symlink() {
        return Err(Failure::io(format!("cannot open {}", root.display()), &error));
    }
    if me == 0 && link.uid() != 0 {
        return Err(Failure::new(
            "not-permitted",
            format!("{} is a symbolic link of user {}", root.display(), link.uid()),
        )
        .why("root does not follow another user's link to the place that it writes to")
        .next("name the folder that it leads to"));
    }
    open(0).at("open", root)
}

fn dir(fd: OwnedFd) -> io::Result<Dir> {
    let has_default_acl = metadata::xattr(&fd, DEFAULT)?.is_some();
    Ok(Dir { fd, has_default_acl })
}

impl Sink for Place {
    fn item(&mut self, item: Item) -> Result<()> {
        let Some(name) = item.path.file_name().map(OsString::from) else {
            // The destination itself gets the attributes of the source's top folder.
            let id = metadata::look(&self.root.fd).at("look at", &self.rules.root)?.id;
            let root = self.root.clone();
            return self.keep_for_later(item, &root.fd, id, false);
        };
        let dir = self.enter(&item.path)?;
        let replace = self.note_path(&item)?;
        match &item.kind {
            Kind::Dir => self.make_folder(&dir, item, &name, replace),
            Kind::File { .. } => {
                self.open = Some(Open::Waiting(item, replace, Vec::new()));
                Ok(())
            }
            Kind::HardLink(first) => self.link(&dir, &item, &name, first, replace),
            Kind::Symlink(_) | Kind::Node { .. } => self.make_node(&dir, &item, &name, replace),
        }
    }

    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        let mut made = match self.open.take().must("pieces follow a file") {
            Open::Waiting(item, replace, mut pieces) => {
                if bytes.len() < PIECE && pieces.is_empty() {
                    pieces.push((offset, bytes));
                    self.open = Some(Open::Waiting(item, replace, pieces));
                    return Ok(());
                }
                let mut made = self.rules.create(&self.folder.1, item, replace)?;
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
            Open::Waiting(item, replace, pieces) => {
                self.workers.send(Job { dir: self.folder.1.clone(), item, replace, pieces })
            }
            Open::Made(made) => self.rules.complete(made),
        }
    }

    fn abandon(&mut self) -> Result<()> {
        match self.open.take().must("a file is open") {
            Open::Waiting(..) => Ok(()),
            Open::Made(made) => self.rules.remove(&self.folder.1, made),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.workers.settle()?;
        let late = std::mem::take(&mut self.late);
        late.finish(&self.rules, &self.root)?;
        sys::syncfs(&self.root.fd).at("sync", &self.rules.root)
    }

    fn stop(&mut self) -> Result<()> {
        let removed = match self.open.take() {
            Some(Open::Made(made)) => self.rules.remove(&self.folder.1, made),
            _ => Ok(()),
        };
        removed.and(self.finish())
    }

    fn left_out(&mut self) -> Vec<Skipped> {
        self.rules.left_out.lock().take()
    }
}
