//! The folder of images, on a mount or in a volume that this process has opened.
//!
//! Large contents come through an import. This module does the rest: it looks, renames and removes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::fs::Errno;
use ::fs::api::{Attr, Caller, FileKind, Filesystem, RenameMode, SetAttr, SetTime};
use api::error::{Context, Failure, Result};
use archive::sys::metadata;
use base::lock::{self, FileLock};
use base::{Ino, Timestamp};

use crate::claim::{Claim, Claimed};

mod walk;

pub use walk::{Look, Walk, Way, way};

/// The caller is root.
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A folder of images. Paths are below it.
pub trait Place {
    /// The bytes of a file. None if it is not there.
    ///
    /// # Errors
    /// It cannot be read, or has more than `most` bytes.
    fn read(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>>;

    /// The names in a folder. None if it is not there.
    ///
    /// # Errors
    /// It cannot be read.
    fn list(&self, path: &Path) -> Result<Vec<String>>;

    /// Whether there is anything of this name.
    ///
    /// # Errors
    /// That cannot be seen.
    fn is_there(&self, path: &Path) -> Result<bool>;

    /// Makes a folder, if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    fn make_folder(&self, path: &Path) -> Result<()>;

    /// Renames. A folder that is there already stays, and the other one too.
    ///
    /// # Errors
    /// It cannot be renamed.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file, or a folder with everything in it, if it is there.
    ///
    /// # Errors
    /// Something cannot be removed.
    fn remove(&self, path: &Path) -> Result<()>;

    /// A walk that begins at a folder. None if that is no folder, or is behind a link.
    ///
    /// # Errors
    /// It cannot be seen.
    fn walk<'a>(&'a self, top: &Path) -> Result<Option<Box<dyn Walk + 'a>>>;

    /// Makes a claim that says this. Returns false if there is one already.
    ///
    /// # Errors
    /// It cannot be made.
    fn claim(&self, path: &Path, text: &str) -> Result<bool>;

    /// What a claim says. None if it is not there.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn claimed(&self, path: &Path) -> Result<Option<Claimed>>;

    /// Moves the time of a claim.
    ///
    /// # Errors
    /// It cannot be moved.
    fn touch(&self, path: &Path, at: Timestamp) -> Result<()>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// It cannot be made so.
    fn sync(&self) -> Result<()>;
}

fn too_large(path: &Path, most: u64) -> Failure {
    Failure::new("damaged", format!("{} has more than {most} bytes", path.display()))
}

fn no_text(path: &Path) -> Failure {
    Failure::new("damaged", format!("{} holds a name that is no text", path.display()))
}

/// A folder of this machine, usually on a mount.
#[derive(Clone, Debug)]
pub struct OnMount {
    root: PathBuf,
}

impl OnMount {
    /// `root` need not exist.
    pub fn new(root: &Path) -> OnMount {
        OnMount { root: root.to_owned() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Takes the folder for an import. It is made if its parent exists, and must belong to this user alone:
    /// others could exchange names meanwhile.
    ///
    /// # Errors
    /// Another import runs here, or on another machine; or other users may write here.
    pub fn lock(&self) -> Result<Claim> {
        match fs::create_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => other.at("make", &self.root)?,
        }
        let about = self.root.symlink_metadata().at("look at", &self.root)?;
        let me = api::caller::euid();
        if !about.is_dir() || about.uid() != me || about.mode() & 0o022 != 0 {
            let why = "images are imported as root, into a folder that only root can change";
            return Err(Failure::new("not-permitted", format!("{} is not safe to use", self.root.display()))
                .why(why)
                .next("name a new folder, or: chown root FOLDER; chmod go-w FOLDER"));
        }
        let path = self.root.join(".import");
        let mut options = OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW);
        let file = options.create(true).truncate(false).write(true).open(&path).at("open", &path)?;
        let mut lock = FileLock::new(file);
        match lock.exclusive(lock::moment()).at("lock", &path)? {
            true => Claim::take(self, Some(lock)),
            false => Err(Failure::new(
                "in-use",
                format!("another import of an image into {} runs", self.root.display()),
            )
            .next("wait until it has ended, then start this one again")),
        }
    }
}

fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        other => other.map(Some),
    }
}

impl Place for OnMount {
    fn read(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
        let path = self.root.join(path);
        let Some(file) = if_there(File::open(&path)).at("open", &path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).at("read", &path)?;
        if bytes.len() as u64 > most { Err(too_large(&path, most)) } else { Ok(Some(bytes)) }
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let path = self.root.join(path);
        let Some(entries) = if_there(fs::read_dir(&path)).at("list", &path)? else { return Ok(Vec::new()) };
        entries
            .map(|entry| entry.at("list", &path)?.file_name().into_string().map_err(|_| no_text(&path)))
            .collect()
    }

    fn is_there(&self, path: &Path) -> Result<bool> {
        let path = self.root.join(path);
        Ok(if_there(path.symlink_metadata()).at("look at", &path)?.is_some())
    }

    fn make_folder(&self, path: &Path) -> Result<()> {
        let path = self.root.join(path);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other.at("make", &path),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        match fs::rename(self.root.join(from), self.root.join(to)) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other.at("rename", &self.root.join(from)),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let path = self.root.join(path);
        let Some(about) = if_there(path.symlink_metadata()).at("look at", &path)? else { return Ok(()) };
        let removed = if about.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if_there(removed).at("remove", &path).map(drop)
    }

    fn walk<'a>(&'a self, top: &Path) -> Result<Option<Box<dyn Walk + 'a>>> {
        Ok(walk::OnMount::from(&self.root, top)?.map(|walk| Box::new(walk) as _))
    }

    fn claim(&self, path: &Path, text: &str) -> Result<bool> {
        let path = self.root.join(path);
        match std::os::unix::fs::symlink(text, &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            other => other.at("make", &path).map(|()| true),
        }
    }

    fn claimed(&self, path: &Path) -> Result<Option<Claimed>> {
        let path = self.root.join(path);
        let Some(about) = if_there(path.symlink_metadata()).at("look at", &path)? else { return Ok(None) };
        let nanos = u32::try_from(about.mtime_nsec()).unwrap_or(0);
        let at = Timestamp::from_parts(about.mtime(), nanos);
        // What is no link is a claim all the same.
        let text = if about.is_symlink() { if_there(fs::read_link(&path)) } else { Ok(Some(PathBuf::new())) };
        let text = text.at("read", &path)?;
        Ok(text.map(|text| Claimed { text: text.to_string_lossy().into_owned(), at }))
    }

    fn touch(&self, path: &Path, at: Timestamp) -> Result<()> {
        let path = self.root.join(path);
        let mut options = OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_PATH | libc::O_NOFOLLOW);
        let link = options.read(true).open(&path).at("open", &path)?;
        metadata::set_times(&link, at, at).at("change the times of", &path)
    }

    fn sync(&self) -> Result<()> {
        let folder = File::open(&self.root).at("open", &self.root)?;
        archive::sys::syncfs(&folder).at("sync", &self.root)
    }
}

/// A folder of a volume or a tree that this process has opened.
#[derive(Clone)]
pub struct InVolume {
    volume: Arc<dyn Filesystem>,
    root: PathBuf,
}

impl InVolume {
    /// `root` is a path below the volume's root. It need not exist.
    pub fn new(volume: Arc<dyn Filesystem>, root: &Path) -> InVolume {
        InVolume { volume, root: root.to_owned() }
    }

    /// Takes the folder for an import. It is made if it is not there. Other nodes of a shared volume may have
    /// the volume open too.
    ///
    /// # Errors
    /// Another import runs there.
    pub fn lock(&self) -> Result<Claim> {
        let mut at = Ino::ROOT;
        for name in self.root.iter() {
            let name = name.as_bytes();
            let found = self.volume.lookup(at, name).or_else(|errno| match errno {
                Errno::ENOENT => self.volume.mkdir(&ROOT, at, name, 0o755, 0),
                other => Err(other),
            });
            self.forget(at);
            at = found.map_err(|errno| self.failed("make", Path::new(""), errno))?.attr.ino;
        }
        self.forget(at);
        Claim::take(self, None)
    }

    fn failed(&self, verb: &str, path: &Path, errno: Errno) -> Failure {
        let shown = self.root.join(path);
        Failure::io(format!("cannot {verb} /{}", shown.display()), &io::Error::from_raw_os_error(errno.0))
    }

    /// The inode at a path, with a reference unless it is the root. None if it is not there.
    fn find(&self, path: &Path) -> Result<Option<Attr>> {
        let mut at = self.volume.getattr(Ino::ROOT).map_err(|errno| self.failed("look at", path, errno))?;
        for name in self.root.join(path).components() {
            let found = self.volume.lookup(at.ino, name.as_os_str().as_bytes());
            self.forget(at.ino);
            match found {
                Ok(entry) => at = entry.attr,
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
                Err(errno) => return Err(self.failed("look at", path, errno)),
            }
        }
        Ok(Some(at))
    }

    fn forget(&self, ino: Ino) {
        if ino != Ino::ROOT {
            self.volume.forget(ino, 1);
        }
    }

    /// Runs `work` with the folder that holds a path, and the path's name.
    fn at<T>(
        &self,
        verb: &str,
        path: &Path,
        work: impl FnOnce(Ino, &[u8]) -> ::fs::api::Result<T>,
    ) -> Result<T> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let Some(folder) = self.find(parent)? else { return Err(self.failed(verb, path, Errno::ENOENT)) };
        let name = path.file_name().unwrap_or_default().as_bytes();
        let done = work(folder.ino, name);
        self.forget(folder.ino);
        done.map_err(|errno| self.failed(verb, path, errno))
    }

    fn names(&self, folder: Ino) -> ::fs::api::Result<Vec<(Vec<u8>, FileKind)>> {
        let mut names = Vec::new();
        self.volume.readdir(folder, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push((entry.name.to_vec(), entry.kind));
            }
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    /// Removes everything in a folder. Folders wait on a list, however deep they are.
    fn empty(&self, top: Ino) -> ::fs::api::Result<()> {
        let mut open = vec![(top, self.unlink_files(top)?)];
        while let Some((folder, names)) = open.last_mut() {
            let folder = *folder;
            if let Some(name) = names.last() {
                let below = self.volume.lookup(folder, name)?.attr.ino;
                open.push((below, self.unlink_files(below)?));
                continue;
            }
            open.pop();
            if let Some((parent, names)) = open.last_mut() {
                self.forget(folder);
                let name = names.pop().unwrap_or_default();
                self.volume.rmdir(*parent, &name)?;
            }
        }
        Ok(())
    }

    /// Removes the files of a folder, and returns the names of its folders.
    fn unlink_files(&self, folder: Ino) -> ::fs::api::Result<Vec<Vec<u8>>> {
        let mut folders = Vec::new();
        for (name, kind) in self.names(folder)? {
            if kind == FileKind::Dir {
                folders.push(name);
            } else {
                self.volume.unlink(folder, &name)?;
            }
        }
        Ok(folders)
    }
}

impl Place for InVolume {
    fn read(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
        let Some(attr) = self.find(path)? else { return Ok(None) };
        let mut bytes = vec![0; attr.size.min(most + 1) as usize];
        let read = match attr.kind {
            FileKind::File => self.volume.read(attr.ino, 0, &mut bytes),
            _ => Err(Errno::EISDIR),
        };
        self.forget(attr.ino);
        bytes.truncate(read.map_err(|errno| self.failed("read", path, errno))?);
        if bytes.len() as u64 > most { Err(too_large(path, most)) } else { Ok(Some(bytes)) }
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let Some(attr) = self.find(path)? else { return Ok(Vec::new()) };
        let names = self.names(attr.ino);
        self.forget(attr.ino);
        let names = names.map_err(|errno| self.failed("list", path, errno))?;
        names.into_iter().map(|(name, _)| String::from_utf8(name).map_err(|_| no_text(path))).collect()
    }

    fn is_there(&self, path: &Path) -> Result<bool> {
        let found = self.find(path)?;
        if let Some(attr) = &found {
            self.forget(attr.ino);
        }
        Ok(found.is_some())
    }

    fn make_folder(&self, path: &Path) -> Result<()> {
        self.at("make", path, |folder, name| match self.volume.mkdir(&ROOT, folder, name, 0o755, 0) {
            Err(Errno::EEXIST) => Ok(()),
            made => made.map(|entry| self.volume.forget(entry.attr.ino, 1)),
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.at("rename", from, |folder, name| {
            Ok(self.at("rename", to, |to_folder, to_name| {
                match self.volume.rename(folder, name, to_folder, to_name, RenameMode::Replace) {
                    Err(Errno::ENOTEMPTY) => Ok(()),
                    other => other.map(drop),
                }
            }))
        })?
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let Some(attr) = self.find(path)? else { return Ok(()) };
        let is_folder = attr.kind == FileKind::Dir;
        let emptied = if is_folder { self.empty(attr.ino) } else { Ok(()) };
        self.forget(attr.ino);
        emptied.map_err(|errno| self.failed("remove", path, errno))?;
        self.at("remove", path, |folder, name| match is_folder {
            true => self.volume.rmdir(folder, name),
            false => self.volume.unlink(folder, name).map(drop),
        })
    }

    fn walk<'a>(&'a self, top: &Path) -> Result<Option<Box<dyn Walk + 'a>>> {
        Ok(walk::InVolume::from(self, top)?.map(|walk| Box::new(walk) as _))
    }

    fn claim(&self, path: &Path, text: &str) -> Result<bool> {
        self.at("make", path, |folder, name| {
            match self.volume.symlink(&ROOT, folder, name, text.as_bytes()) {
                Err(Errno::EEXIST) => Ok(false),
                made => made.map(|entry| self.volume.forget(entry.attr.ino, 1)).map(|()| true),
            }
        })
    }

    fn claimed(&self, path: &Path) -> Result<Option<Claimed>> {
        let Some(attr) = self.find(path)? else { return Ok(None) };
        let text = match attr.kind {
            FileKind::Symlink => self.volume.readlink(attr.ino),
            _ => Ok(Vec::new()),
        };
        self.forget(attr.ino);
        match text {
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(errno) => Err(self.failed("read", path, errno)),
            Ok(text) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                Ok(Some(Claimed { text, at: attr.mtime }))
            }
        }
    }

    fn touch(&self, path: &Path, at: Timestamp) -> Result<()> {
        let Some(attr) = self.find(path)? else { return Err(self.failed("change", path, Errno::ENOENT)) };
        let (atime, mtime) = (Some(SetTime::To(at)), Some(SetTime::To(at)));
        let done = self.volume.setattr(&ROOT, attr.ino, &SetAttr { atime, mtime, ..SetAttr::default() });
        self.forget(attr.ino);
        done.map(drop).map_err(|errno| self.failed("change", path, errno))
    }

    fn sync(&self) -> Result<()> {
        self.volume.sync().map_err(|errno| self.failed("sync", Path::new(""), errno))
    }
}
