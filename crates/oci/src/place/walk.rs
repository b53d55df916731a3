//! Walks below a folder of images. A step costs the same at any depth, and no link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ::fs::Errno;
use ::fs::api::{FileKind, Filesystem, SetAttr, SetTime};
use api::error::{Context, Failure, Result};
use archive::sys::{self, metadata};
use base::{Ino, Timestamp};

use super::{Place, ROOT};
use crate::layer::OPAQUE;

/// Owner, mode and times of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Permission bits (07777).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
}

/// What has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing: a lower layer decides.
    Nothing,
    /// A folder.
    Folder,
    /// Something else, for example a whiteout. It hides what is lower.
    Other,
}

/// A position: it is always at a folder.
pub trait Walk {
    /// Goes to what has this name, if that is a folder.
    ///
    /// # Errors
    /// It cannot be seen.
    fn down(&mut self, name: &OsStr) -> Result<Way>;

    /// Goes back to the folder above, after [`Walk::down`].
    ///
    /// # Errors
    /// It cannot be opened.
    fn up(&mut self) -> Result<()>;

    /// How this folder looks.
    ///
    /// # Errors
    /// It cannot be seen.
    fn look(&self) -> Result<Look>;

    /// Whether this folder hides what lower layers have in it.
    ///
    /// # Errors
    /// It cannot be seen.
    fn is_opaque(&self) -> Result<bool>;

    /// Gives this folder owner, mode and times.
    ///
    /// # Errors
    /// It cannot be changed.
    fn dress(&self, look: Look) -> Result<()>;
}

/// What has a path.
///
/// # Errors
/// It cannot be seen.
pub fn way(place: &dyn Place, path: &Path) -> Result<Way> {
    let Some(mut walk) = place.walk(Path::new(""))? else { return Ok(Way::Nothing) };
    descend(&mut *walk, path)
}

fn descend(walk: &mut dyn Walk, path: &Path) -> Result<Way> {
    for name in path {
        match walk.down(name)? {
            Way::Folder => {}
            other => return Ok(other),
        }
    }
    Ok(Way::Folder)
}

/// A walk on a mount.
pub(super) struct OnMount {
    at: File,
    /// Where that is, for people.
    path: PathBuf,
}

impl OnMount {
    /// A walk from a folder below `root`. None if it is no folder.
    pub(super) fn from(root: &Path, top: &Path) -> Result<Option<OnMount>> {
        let opened = sys::open_folder(root);
        let at = match opened {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            other => File::from(other.at("open", root)?),
        };
        let mut walk = OnMount { at, path: root.to_owned() };
        Ok((descend(&mut walk, top)? == Way::Folder).then_some(walk))
    }
}

impl Walk for OnMount {
    fn down(&mut self, name: &OsStr) -> Result<Way> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY;
        match sys::open_at(&self.at, name, flags, 0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Way::Nothing),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => Ok(Way::Other),
            opened => {
                self.path.push(name);
                self.at = opened.at("open", &self.path)?.into();
                Ok(Way::Folder)
            }
        }
    }

    fn up(&mut self) -> Result<()> {
        self.path.pop();
        self.at = sys::open_above(&self.at).at("open", &self.path)?.into();
        Ok(())
    }

    fn look(&self) -> Result<Look> {
        let about = self.at.metadata().at("look at", &self.path)?;
        let time = |seconds, nanos| Timestamp::from_parts(seconds, u32::try_from(nanos).unwrap_or(0));
        Ok(Look {
            perm: about.mode() & 0o7777,
            uid: about.uid(),
            gid: about.gid(),
            atime: time(about.atime(), about.atime_nsec()),
            mtime: time(about.mtime(), about.mtime_nsec()),
        })
    }

    fn is_opaque(&self) -> Result<bool> {
        let value = metadata::xattr(&self.at, OPAQUE).at("look at", &self.path)?;
        Ok(value.as_deref() == Some(b"y"))
    }

    fn dress(&self, look: Look) -> Result<()> {
        metadata::set_owner(&self.at, look.uid, look.gid).at("change the owner of", &self.path)?;
        metadata::set_mode(&self.at, look.perm).at("change the mode of", &self.path)?;
        metadata::set_times(&self.at, look.atime, look.mtime).at("change the times of", &self.path)
    }
}

/// A walk in a volume. It holds a reference to each folder on the way.
pub(super) struct InVolume<'a> {
    place: &'a super::InVolume,
    way: Vec<Ino>,
    path: PathBuf,
}

impl<'a> InVolume<'a> {
    /// A walk from a folder below the place. None if it is no folder.
    pub(super) fn from(place: &'a super::InVolume, top: &Path) -> Result<Option<InVolume<'a>>> {
        let mut walk = InVolume { place, way: Vec::new(), path: PathBuf::new() };
        for path in [&place.root, top] {
            if descend(&mut walk, path)? != Way::Folder {
                return Ok(None);
            }
        }
        Ok(Some(walk))
    }

    fn at(&self) -> Ino {
        self.way.last().copied().unwrap_or(Ino::ROOT)
    }

    fn volume(&self) -> &dyn Filesystem {
        &*self.place.volume
    }

    fn failed(&self, verb: &str, errno: Errno) -> Failure {
        let shown = self.path.display();
        Failure::io(format!("cannot {verb} /{shown}"), &std::io::Error::from_raw_os_error(errno.0))
    }
}

impl Walk for InVolume<'_> {
    fn down(&mut self, name: &OsStr) -> Result<Way> {
        let entry = match self.volume().lookup(self.at(), name.as_bytes()) {
            Err(Errno::ENOENT) => return Ok(Way::Nothing),
            other => other.map_err(|errno| self.failed("look in", errno))?,
        };
        if entry.attr.kind != FileKind::Dir {
            self.place.forget(entry.attr.ino);
            return Ok(Way::Other);
        }
        self.way.push(entry.attr.ino);
        self.path.push(name);
        Ok(Way::Folder)
    }

    fn up(&mut self) -> Result<()> {
        if let Some(ino) = self.way.pop() {
            self.place.forget(ino);
        }
        self.path.pop();
        Ok(())
    }

    fn look(&self) -> Result<Look> {
        let attr = self.volume().getattr(self.at()).map_err(|errno| self.failed("look at", errno))?;
        let (perm, uid, gid) = (u32::from(attr.perm), attr.uid, attr.gid);
        Ok(Look { perm, uid, gid, atime: attr.atime, mtime: attr.mtime })
    }

    fn is_opaque(&self) -> Result<bool> {
        match self.volume().getxattr(self.at(), OPAQUE) {
            Ok(value) => Ok(value == b"y"),
            Err(Errno::ENODATA) => Ok(false),
            Err(errno) => Err(self.failed("look at", errno)),
        }
    }

    fn dress(&self, look: Look) -> Result<()> {
        let set = SetAttr {
            perm: Some(look.perm as u16),
            uid: Some(look.uid),
            gid: Some(look.gid),
            atime: Some(SetTime::To(look.atime)),
            mtime: Some(SetTime::To(look.mtime)),
            ..SetAttr::default()
        };
        let done = self.volume().setattr(&ROOT, self.at(), &set);
        done.map(drop).map_err(|errno| self.failed("change", errno))
    }
}

impl Drop for InVolume<'_> {
    fn drop(&mut self) {
        for ino in std::mem::take(&mut self.way) {
            self.place.forget(ino);
        }
    }
}
