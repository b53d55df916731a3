//! A volume that is not mounted as a sink: the filesystem itself is asked, as the kernel would.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Ino, Must};
use fs::Errno;
use fs::api::{Caller, Entry, FileKind, Filesystem, NewNode, SetAttr, SetTime, XattrMode};

use crate::error::{Result, errno_failure};
use crate::import::{Item, Kind, Sink, exists};

/// Who makes things: root, so that owners and device nodes arrive as they were.
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A place in a volume that this process has open.
pub struct Direct {
    volume: Arc<dyn Filesystem>,
    shown: String,
    overwrite: bool,
    /// Folders met so far; each holds one reference.
    folders: HashMap<PathBuf, Ino>,
    open: Option<(Item, Ino)>,
    late: Vec<(Ino, Item)>,
}

impl Direct {
    /// The folder `root` of the volume, made if it is not there (its parent must be). `shown` is how a person names the volume.
    pub fn new(volume: Arc<dyn Filesystem>, shown: String, root: &Path, overwrite: bool) -> Result<Direct> {
        let mut at = Ino::ROOT;
        let parts: Vec<_> = root.components().collect();
        for (index, part) in parts.iter().enumerate() {
            let name = part.as_os_str().as_bytes();
            let place = || format!("cannot open {shown}:/{}", root.display());
            let entry = match volume.lookup(at, name) {
                Err(Errno::ENOENT) if index + 1 == parts.len() => volume.mkdir(&ROOT, at, name, 0o755, 0),
                other => other,
            };
            at = entry.map_err(|errno| errno_failure(place(), errno))?.attr.ino;
        }
        let folders = HashMap::from([(PathBuf::new(), at)]);
        Ok(Direct {
            volume,
            shown: format!("{shown}:/{}", root.display()),
            overwrite,
            folders,
            open: None,
            late: Vec::new(),
        })
    }

    fn shown(&self, path: &Path) -> String {
        format!("{}/{}", self.shown.trim_end_matches('/'), path.display())
    }

    fn or_fail<T>(&self, verb: &str, path: &Path, outcome: fs::api::Result<T>) -> Result<T> {
        outcome.map_err(|errno| errno_failure(format!("cannot {verb} {}", self.shown(path)), errno))
    }

    /// The folder at a path, made with those above it where an archive left it out.
    fn folder(&mut self, path: &Path) -> Result<Ino> {
        if let Some(&ino) = self.folders.get(path) {
            return Ok(ino);
        }
        let parent = self.folder(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        let entry = match self.volume.lookup(parent, name) {
            Err(Errno::ENOENT) => self.volume.mkdir(&ROOT, parent, name, 0o755, 0),
            other => other,
        };
        let entry = self.or_fail("enter", path, entry)?;
        if entry.attr.kind != FileKind::Dir {
            self.volume.forget(entry.attr.ino, 1);
            return Err(errno_failure(format!("cannot enter {}", self.shown(path)), Errno::ENOTDIR));
        }
        self.folders.insert(path.to_owned(), entry.attr.ino);
        Ok(entry.attr.ino)
    }

    /// The number of what an earlier item made.
    fn find(&mut self, path: &Path) -> Result<Entry> {
        let parent = self.folder(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        let found = self.volume.lookup(parent, name);
        self.or_fail("find", path, found)
    }

    fn make(&mut self, item: &Item, parent: Ino, name: &[u8]) -> Result<Entry> {
        let from = match &item.kind {
            Kind::HardLink(first) => Some(self.find(first)?.attr.ino),
            _ => None,
        };
        let perm = item.perm as u16;
        let try_once = || match &item.kind {
            Kind::Dir => self.volume.mkdir(&ROOT, parent, name, perm, 0),
            Kind::Symlink(target) => self.volume.symlink(&ROOT, parent, name, target.as_bytes()),
            Kind::HardLink(_) => self.volume.link(from.must("set above for hard links"), parent, name),
            Kind::File { .. } => self.volume.mknod(&ROOT, parent, name, &node(FileKind::File, perm, 0)),
            Kind::Node { format, rdev } => {
                let kind = FileKind::from_mode(*format).ok_or(Errno::EINVAL)?;
                self.volume.mknod(&ROOT, parent, name, &node(kind, perm, kernel_device(*rdev)))
            }
        };
        let mut made = try_once();
        if matches!(made, Err(Errno::EEXIST)) {
            made = self.replace(item, parent, name, &try_once)?;
        }
        if let Some(ino) = from {
            self.volume.forget(ino, 1);
        }
        self.or_fail("make", &item.path, made)
    }

    /// A folder that is there is taken as it is; anything else goes, if that was asked for.
    fn replace(
        &self,
        item: &Item,
        parent: Ino,
        name: &[u8],
        again: &dyn Fn() -> fs::api::Result<Entry>,
    ) -> Result<fs::api::Result<Entry>> {
        let there = self.or_fail("look at", &item.path, self.volume.lookup(parent, name))?;
        let both_folders = item.kind == Kind::Dir && there.attr.kind == FileKind::Dir;
        if both_folders {
            return Ok(Ok(there));
        }
        self.volume.forget(there.attr.ino, 1);
        if !self.overwrite || there.attr.kind == FileKind::Dir || item.kind == Kind::Dir {
            return Err(exists(Path::new(&self.shown(&item.path))));
        }
        self.or_fail("replace", &item.path, self.volume.unlink(parent, name))?;
        Ok(again())
    }

    /// Owner, permissions, times, attributes: the last thing done to an inode, so that its times stay.
    fn dress(&self, item: &Item, ino: Ino, size: Option<u64>) -> Result<()> {
        for (name, value) in &item.xattrs {
            let set = self.volume.setxattr(ino, name, value, XattrMode::Set, false);
            if set == Err(Errno::EOPNOTSUPP) && name.starts_with(b"security.") {
                continue;
            }
            self.or_fail("set an attribute of", &item.path, set)?;
        }
        let set = SetAttr {
            perm: (!matches!(item.kind, Kind::Symlink(_))).then_some(item.perm as u16),
            uid: Some(item.uid),
            gid: Some(item.gid),
            size,
            atime: Some(SetTime::To(item.atime)),
            mtime: Some(SetTime::To(item.mtime)),
            ..SetAttr::default()
        };
        self.or_fail("set the attributes of", &item.path, self.volume.setattr(&ROOT, ino, &set)).map(drop)
    }
}

impl Sink for Direct {
    fn item(&mut self, item: Item) -> Result<()> {
        let Some(name) = item.path.file_name().map(|name| name.as_bytes().to_vec()) else {
            let root = self.folder(Path::new(""))?;
            self.late.push((root, item));
            return Ok(());
        };
        let parent = self.folder(item.path.parent().unwrap_or(Path::new("")))?;
        let ino = self.make(&item, parent, &name)?.attr.ino;
        match item.kind {
            Kind::Dir => {
                if self.folders.insert(item.path.clone(), ino).is_some() {
                    self.volume.forget(ino, 1);
                }
                self.late.push((ino, item));
            }
            Kind::File { .. } => self.open = Some((item, ino)),
            Kind::HardLink(_) => self.volume.forget(ino, 1),
            Kind::Symlink(_) | Kind::Node { .. } => {
                self.dress(&item, ino, None)?;
                self.volume.forget(ino, 1);
            }
        }
        Ok(())
    }

    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        let (item, ino) = self.open.as_ref().must("pieces follow a file");
        self.or_fail("write", &item.path, self.volume.write(*ino, offset, &bytes, None, false).map(drop))
    }

    fn end(&mut self) -> Result<()> {
        let (item, ino) = self.open.take().must("an end follows a file");
        let size = match item.kind {
            Kind::File { size } => Some(size),
            _ => None,
        };
        let attr = self.or_fail("complete", &item.path, self.volume.getattr(ino))?;
        // A hole at the end; a file that grew while it was read keeps what was read.
        self.dress(&item, ino, size.filter(|&size| size > attr.size))?;
        self.volume.forget(ino, 1);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        for (ino, item) in std::mem::take(&mut self.late).into_iter().rev() {
            self.dress(&item, ino, None)?;
        }
        for (path, ino) in std::mem::take(&mut self.folders) {
            if !path.as_os_str().is_empty() {
                self.volume.forget(ino, 1);
            }
        }
        self.or_fail("sync", Path::new(""), self.volume.sync())
    }
}

fn node(kind: FileKind, perm: u16, rdev: u32) -> NewNode {
    NewNode { kind, perm, umask: 0, rdev }
}

/// A device number as the kernel packs it into 32 bits.
fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}
