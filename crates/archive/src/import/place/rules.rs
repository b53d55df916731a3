//! Common state of everything that is created in a [`super::Place`], and the creation of one item: by
//! descriptor, never twice by name.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use api::error::{Context, Failure, Result, plain};
use parking_lot::Mutex;

use crate::acl::{ACCESS, DEFAULT};
use crate::import::{Item, Kind, LeftOut, exists};
use crate::sys;
use crate::sys::metadata::{self, Seen};

/// How a name is opened to examine it, and then to change that item and nothing else.
const ITSELF: i32 = libc::O_PATH | libc::O_NOFOLLOW;

/// Common state of everything that is created.
pub(super) struct Rules {
    pub root: PathBuf,
    pub overwrite: bool,
    /// Whether owners are set. Only root can set them.
    pub owners: bool,
    /// The user of this process. It owns what was just created.
    pub me: u32,
    /// The items that were not preserved exactly.
    pub left_out: Mutex<LeftOut>,
}

/// An open folder in which items are created.
pub(super) struct Dir {
    pub fd: OwnedFd,
    /// Whether the folder has a default ACL. New entries inherit an ACL that the source may not have had.
    pub has_default_acl: bool,
}

/// A file that is open for writing.
pub(super) struct Made {
    item: Item,
    file: File,
    /// The end of the last bytes written. The rest of the file is a hole.
    end: u64,
    /// Whether the file may have an ACL that the source did not have.
    inherits: bool,
}

/// Whether an existing name may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replace {
    /// If the user asked for it.
    IfAsked,
    /// Yes, because an earlier member of the same name created it.
    OwnEarlier,
}

impl Rules {
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    pub(super) fn note(&self, path: &Path, why: impl Into<String>) {
        self.left_out.lock().add(&self.shown(path), why);
    }

    /// Creates a name with `make`. An existing one is removed first, if `replace` allows it.
    pub(super) fn make<T>(
        &self,
        dir: &Dir,
        path: &Path,
        name: &OsStr,
        replace: Replace,
        make: impl Fn(&OwnedFd) -> io::Result<T>,
    ) -> Result<T> {
        let shown = || self.shown(path);
        match make(&dir.fd) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !self.overwrite && replace == Replace::IfAsked {
                    return Err(exists(&shown()));
                }
                let removed = match sys::unlink_at(&dir.fd, name) {
                    // A member can replace an earlier one that was an empty folder.
                    Err(error)
                        if error.raw_os_error() == Some(libc::EISDIR) && replace == Replace::OwnEarlier =>
                    {
                        sys::rmdir_at(&dir.fd, name)
                    }
                    other => other,
                };
                removed.at("replace", &shown())?;
                make(&dir.fd).at("make", &shown())
            }
            other => other.at("make", &shown()),
        }
    }

    /// Creates a file and opens it.
    pub(super) fn create(&self, dir: &Dir, item: Item, replace: Replace) -> Result<Made> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let name = item.path.file_name().unwrap_or_default();
        // An ACL can exclude users whom the group bits admit.
        let first = if item.xattrs.iter().any(|(name, _)| name == ACCESS) { 0o700 } else { 0o777 };
        let mode = item.perm & first;
        let fd = self.make(dir, &item.path, name, replace, |dir| sys::open_at(dir, name, flags, mode))?;
        Ok(Made { item, file: fd.into(), end: 0, inherits: dir.has_default_acl })
    }

    pub(super) fn write(&self, made: &mut Made, offset: u64, bytes: &[u8]) -> Result<()> {
        made.end = made.end.max(offset + bytes.len() as u64);
        made.file.write_all_at(bytes, offset).at("write", &self.shown(&made.item.path))
    }

    /// Sets size, owner, attributes, mode and, last, times of a file.
    pub(super) fn complete(&self, made: Made) -> Result<()> {
        let Made { item, file, end, inherits } = made;
        let Kind::File { size } = item.kind else { return Ok(()) };
        let grow = || if end < size { file.set_len(size) } else { Ok(()) };
        grow().at("complete", &self.shown(&item.path))?;
        self.dress(&item, &file, inherits)
    }

    /// Removes a file that is not complete, if its name still stands for it.
    pub(super) fn remove(&self, dir: &Dir, made: Made) -> Result<()> {
        let shown = self.shown(&made.item.path);
        let name = made.item.path.file_name().unwrap_or_default();
        let look = |file: &dyn AsFd| metadata::look(&file.as_fd()).map(|seen| seen.id);
        let is_it = sys::open_at(&dir.fd, name, ITSELF, 0)
            .is_ok_and(|there| matches!((look(&there), look(&made.file)), (Ok(a), Ok(b)) if a == b));
        if is_it { sys::unlink_at(&dir.fd, name).at("remove", &shown) } else { Ok(()) }
    }

    /// Opens by name what was just created, to set its attributes. Another user may have replaced it in the
    /// meantime, so it is checked.
    pub(super) fn reopen(&self, dir: &Dir, item: &Item, name: &OsStr, format: u32) -> Result<OwnedFd> {
        let open = || -> io::Result<_> {
            let fd = sys::open_at(&dir.fd, name, ITSELF, 0)?;
            let seen = metadata::look(&fd)?;
            Ok((fd, seen))
        };
        let (fd, seen) = open().at("open", &self.shown(&item.path))?;
        let is_mine = !self.owners || seen.uid == self.me;
        let is_it = seen.format() == format && is_mine && (format == libc::S_IFDIR || seen.is_single);
        if is_it { Ok(fd) } else { Err(exchanged(&self.shown(&item.path))) }
    }

    /// Sets owner, permissions, attributes and times, in this order. A change of owner clears set-id bits and
    /// capabilities, so it comes first. ACLs come after the permissions because they are more precise. The
    /// group bits beside an ACL are either its mask or its group entry, depending on the program that wrote
    /// the archive.
    pub(super) fn dress(&self, item: &Item, file: &impl AsFd, inherits: bool) -> Result<()> {
        let shown = || self.shown(&item.path);
        // The kernel answers this from memory. A change would go to the daemon.
        let now = metadata::look(file).at("look at", &shown())?;
        if self.owners && (now.uid, now.gid) != (item.uid, item.gid) {
            metadata::set_owner(file, item.uid, item.gid).at("set the owner of", &shown())?;
        }
        let has = |acl: &[u8]| item.xattrs.iter().any(|(name, _)| name == acl);
        for acl in [ACCESS, DEFAULT].into_iter().filter(|_| inherits) {
            if !has(acl) && (acl == ACCESS || item.kind == Kind::Dir) {
                metadata::remove_xattr(file, acl).at("remove the inherited ACL of", &shown())?;
            }
        }
        let perm = self.permissions(item, now) & if has(ACCESS) { 0o7700 } else { 0o7777 };
        let is_as_made = now.mode & 0o7777 == perm && perm & 0o7000 == 0 && !inherits;
        if !matches!(item.kind, Kind::Symlink(_)) && !is_as_made {
            metadata::set_mode(file, perm).at("set the mode of", &shown())?;
        }
        self.attributes(item, file)?;
        metadata::set_times(file, item.atime, item.mtime).at("set the times of", &shown())
    }

    /// The permissions to set. If the user cannot set a file's owner, the file must not become a set-id
    /// program of that user.
    fn permissions(&self, item: &Item, now: Seen) -> u32 {
        let mut perm = item.perm & 0o7777;
        if !self.owners && item.kind != Kind::Dir {
            if now.uid != item.uid {
                perm &= !libc::S_ISUID;
            }
            if now.gid != item.gid {
                perm &= !libc::S_ISGID;
            }
        }
        perm
    }

    /// Sets the extended attributes. An ordinary user cannot set those that only root can. Attributes that
    /// the filesystem does not support are noted.
    pub(super) fn attributes(&self, item: &Item, file: &impl AsFd) -> Result<()> {
        for (name, value) in &item.xattrs {
            match metadata::set_xattr(file, name, value) {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && !self.owners => {}
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    // Unsupported labels of a security module are not reported.
                    if !name.starts_with(b"security.") {
                        let name = String::from_utf8_lossy(name);
                        self.note(&item.path, format!("its attribute {name}: {}", plain(&error)));
                    }
                }
                other => other.or_fail(|| {
                    let name = String::from_utf8_lossy(name);
                    format!("cannot set the attribute {name} of {}", self.shown(&item.path).display())
                })?,
            }
        }
        Ok(())
    }
}

/// The failure for an item that somebody has replaced.
pub(super) fn exchanged(path: &Path) -> Failure {
    Failure::new("changed", format!("{} is not what was made there", path.display()))
        .why("somebody else changes the destination meanwhile")
        .next("name a place that only you can change, and start again")
}
