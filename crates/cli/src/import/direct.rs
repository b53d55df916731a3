//! A volume that is not mounted as a sink. It calls the filesystem as the kernel would.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::Result;
use archive::acl;
use base::{Ino, Must};
use fs::Errno;
use fs::api::{Caller, Entry, FileKind, Filesystem, NewNode, SetAttr, SetTime, XattrMode};
use node::errno::errno_failure;
use node::refused::exists;
use node::sys;

use crate::import::seen::{Held, Paths};
use crate::import::{Item, Kind, LeftOut, Sink, Skipped};

/// The caller is root, so that owners and device nodes are preserved.
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A place in a volume that this process has opened.
pub struct Direct {
    volume: Arc<dyn Filesystem>,
    shown: String,
    overwrite: bool,
    /// Folders used so far. Each holds one reference.
    folders: HashMap<PathBuf, Ino>,
    /// The current file, and whether it was created below a default ACL.
    open: Option<(Item, Ino, bool)>,
    /// Paths created so far. A repeated name replaces its earlier item.
    made: Paths,
    /// Folders, and whether each was created below a default ACL.
    late: Vec<(Ino, Item, bool)>,
    held: Held,
    left_out: LeftOut,
    /// Permissions of folders that the source does not list.
    folder_perm: u16,
}

impl Direct {
    /// Opens the folder `root` of the volume, or creates it if its parent exists. `shown` is the volume's
    /// name for people.
    pub fn new(volume: Arc<dyn Filesystem>, shown: String, root: &Path, overwrite: bool) -> Result<Direct> {
        let folder_perm = 0o777 & !(sys::umask() as u16);
        let mut at = Ino::ROOT;
        let parts: Vec<_> = root.components().collect();
        for (index, part) in parts.iter().enumerate() {
            let name = part.as_os_str().as_bytes();
            let place = || format!("cannot open {shown}:/{}", root.display());
            let entry = match volume.lookup(at, name) {
                Err(Errno::ENOENT) if index + 1 == parts.len() => {
                    volume.mkdir(&ROOT, at, name, folder_perm, 0)
                }
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
            made: Paths::default(),
            late: Vec::new(),
            held: Held::default(),
            left_out: LeftOut::default(),
            folder_perm,
        })
    }

    fn shown(&self, path: &Path) -> String {
        format!("{}/{}", self.shown.trim_end_matches('/'), path.display())
    }

    fn or_fail<T>(&self, verb: &str, path: &Path, outcome: fs::api::Result<T>) -> Result<T> {
        outcome.map_err(|errno| errno_failure(format!("cannot {verb} {}", self.shown(path)), errno))
    }

    /// The folder at a path. It and its parents are created if an archive left them out.
    fn folder(&mut self, path: &Path) -> Result<Ino> {
        let known = path.ancestors().find_map(|above| Some((above.to_owned(), *self.folders.get(above)?)));
        let (mut at, mut ino) = known.must("the place itself is known");
        let missing: Vec<_> =
            path.strip_prefix(&at).map(|rest| rest.components().collect()).unwrap_or_default();
        for name in missing {
            let name = name.as_os_str();
            at.push(name);
            ino = self.step(&at, ino, name.as_bytes())?;
        }
        Ok(ino)
    }

    /// The folder of this name in another. It is created if it is missing.
    fn step(&mut self, path: &Path, parent: Ino, name: &[u8]) -> Result<Ino> {
        let entry = match self.volume.lookup(parent, name) {
            Err(Errno::ENOENT) => self.volume.mkdir(&ROOT, parent, name, self.folder_perm, 0),
            other => other,
        };
        let entry = self.or_fail("enter", path, entry)?;
        if entry.attr.kind != FileKind::Dir {
            self.volume.forget(entry.attr.ino, 1);
            return Err(errno_failure(format!("cannot enter {}", self.shown(path)), Errno::ENOTDIR));
        }
        self.held.add_path(path)?;
        self.folders.insert(path.to_owned(), entry.attr.ino);
        Ok(entry.attr.ino)
    }

    /// The inode of a hard link's target, with a reference. None if the target does not exist.
    fn find(&mut self, path: &Path) -> Result<Option<Ino>> {
        let mut at = self.folder(Path::new(""))?;
        let mut held = None;
        for name in path.components() {
            let found = self.volume.lookup(at, name.as_os_str().as_bytes());
            if let Some(ino) = held.take() {
                self.volume.forget(ino, 1);
            }
            match found {
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
                other => at = self.or_fail("find", path, other)?.attr.ino,
            }
            held = Some(at);
        }
        Ok(held)
    }

    /// Creates an item. None if it is a hard link whose target is missing, or one that exists already.
    fn make(&mut self, item: &Item, parent: Ino, name: &[u8]) -> Result<Option<Entry>> {
        let own = !self.made.add(&item.path);
        let from = match &item.kind {
            Kind::HardLink(first) => {
                let Some(from) = self.find(first)? else {
                    let why = format!("a hard link to {}, which is not there", first.display());
                    self.left_out.add(Path::new(&self.shown(&item.path)), why);
                    return Ok(None);
                };
                if let Ok(there) = self.volume.lookup(parent, name) {
                    self.volume.forget(there.attr.ino, 1);
                    if there.attr.ino == from {
                        self.volume.forget(from, 1);
                        return Ok(None);
                    }
                }
                Some(from)
            }
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
            made = self.replace(item, (parent, name), own, &try_once)?;
        }
        if let Some(ino) = from {
            self.volume.forget(ino, 1);
        }
        self.or_fail("make", &item.path, made).map(Some)
    }

    /// An existing folder is kept. Anything else is removed, if the user asked for that or if this import
    /// created it (`own`).
    fn replace(
        &self,
        item: &Item,
        (parent, name): (Ino, &[u8]),
        own: bool,
        again: &dyn Fn() -> fs::api::Result<Entry>,
    ) -> Result<fs::api::Result<Entry>> {
        let there = self.or_fail("look at", &item.path, self.volume.lookup(parent, name))?;
        let both_folders = item.kind == Kind::Dir && there.attr.kind == FileKind::Dir;
        if both_folders {
            return Ok(Ok(there));
        }
        self.volume.forget(there.attr.ino, 1);
        let is_folder = there.attr.kind == FileKind::Dir;
        if !own && (!self.overwrite || is_folder || item.kind == Kind::Dir) {
            return Err(exists(Path::new(&self.shown(&item.path))));
        }
        let removed = if is_folder {
            self.volume.rmdir(parent, name)
        } else {
            self.volume.unlink(parent, name).map(drop)
        };
        self.or_fail("replace", &item.path, removed)?;
        Ok(again())
    }

    /// Whether a new entry of this folder inherits an ACL that the source may not have had.
    fn has_default_acl(&self, folder: Ino) -> bool {
        self.volume.getxattr(folder, acl::DEFAULT).is_ok()
    }

    fn attributes(&self, item: &Item, ino: Ino) -> Result<()> {
        for (name, value) in &item.xattrs {
            let set = self.volume.setxattr(ino, name, value, XattrMode::Set, false);
            if set == Err(Errno::EOPNOTSUPP) && name.starts_with(b"security.") {
                continue;
            }
            self.or_fail("set an attribute of", &item.path, set)?;
        }
        Ok(())
    }

    /// Keeps a folder until the end. Its attributes are set at once, so that they use no memory.
    fn keep_for_later(&mut self, ino: Ino, mut item: Item, inherits: bool) -> Result<()> {
        let is_acl = |name: &[u8]| name == acl::ACCESS || name == acl::DEFAULT;
        let acls: Vec<_> = item.xattrs.extract_if(.., |(name, _)| is_acl(name)).collect();
        self.attributes(&item, ino)?;
        item.xattrs = acls;
        self.held.add(&item)?;
        self.late.push((ino, item, inherits));
        Ok(())
    }

    /// Sets owner, permissions, attributes and times, in this order. A change of owner clears set-id bits and
    /// capabilities, so it comes first. ACLs come after the permissions because they are more precise. The
    /// group bits beside an ACL are either its mask or its group entry, depending on the program that wrote
    /// the archive.
    fn dress(&self, item: &Item, ino: Ino, size: Option<u64>, inherits: bool) -> Result<()> {
        let set = |what: &SetAttr| {
            self.or_fail("set the attributes of", &item.path, self.volume.setattr(&ROOT, ino, what)).map(drop)
        };
        for acl in [acl::ACCESS, acl::DEFAULT].into_iter().filter(|_| inherits) {
            match self.volume.removexattr(ino, acl) {
                Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
                other => self.or_fail("remove the inherited ACL of", &item.path, other)?,
            }
        }
        let perm = (!matches!(item.kind, Kind::Symlink(_))).then_some(item.perm as u16);
        set(&SetAttr { uid: Some(item.uid), gid: Some(item.gid), perm, size, ..SetAttr::default() })?;
        self.attributes(item, ino)?;
        set(&SetAttr {
            atime: Some(SetTime::To(item.atime)),
            mtime: Some(SetTime::To(item.mtime)),
            ..SetAttr::default()
        })
    }
}

impl Sink for Direct {
    fn item(&mut self, item: Item) -> Result<()> {
        let Some(name) = item.path.file_name().map(|name| name.as_bytes().to_vec()) else {
            let root = self.folder(Path::new(""))?;
            return self.keep_for_later(root, item, false);
        };
        let parent = self.folder(item.path.parent().unwrap_or(Path::new("")))?;
        let inherits = self.has_default_acl(parent);
        let is_new = |there: fs::api::Result<Entry>| match there {
            Ok(there) => {
                self.volume.forget(there.attr.ino, 1);
                false
            }
            Err(_) => true,
        };
        // An existing folder keeps its ACL.
        let inherits = inherits && (item.kind != Kind::Dir || is_new(self.volume.lookup(parent, &name)));
        if item.kind != Kind::Dir
            && let Some(was) = self.folders.remove(&item.path)
        {
            // An earlier member created a folder of this name.
            self.late.retain(|(ino, ..)| *ino != was);
            self.volume.forget(was, 1);
        }
        let Some(made) = self.make(&item, parent, &name)? else { return Ok(()) };
        let ino = made.attr.ino;
        match item.kind {
            Kind::Dir => {
                if self.folders.insert(item.path.clone(), ino).is_some() {
                    self.volume.forget(ino, 1);
                }
                self.keep_for_later(ino, item, inherits)?;
            }
            Kind::File { .. } => self.open = Some((item, ino, inherits)),
            Kind::HardLink(_) => self.volume.forget(ino, 1),
            Kind::Symlink(_) | Kind::Node { .. } => {
                self.dress(&item, ino, None, inherits)?;
                self.volume.forget(ino, 1);
            }
        }
        Ok(())
    }

    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        let (item, ino, _) = self.open.as_ref().must("pieces follow a file");
        self.or_fail("write", &item.path, self.volume.write(*ino, offset, &bytes, None, false).map(drop))
    }

    fn end(&mut self) -> Result<()> {
        let (item, ino, inherits) = self.open.take().must("an end follows a file");
        let size = match item.kind {
            Kind::File { size } => Some(size),
            _ => None,
        };
        let attr = self.or_fail("complete", &item.path, self.volume.getattr(ino))?;
        // Sets the size if the file ends with a hole. A file that grew while it was read keeps what was read.
        self.dress(&item, ino, size.filter(|&size| size > attr.size), inherits)?;
        self.volume.forget(ino, 1);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        // If several members have one name, the last counts.
        let mut done = HashSet::new();
        for (ino, item, inherits) in std::mem::take(&mut self.late).into_iter().rev() {
            if done.insert(ino) {
                self.dress(&item, ino, None, inherits)?;
            }
        }
        for (path, ino) in std::mem::take(&mut self.folders) {
            if !path.as_os_str().is_empty() {
                self.volume.forget(ino, 1);
            }
        }
        self.or_fail("sync", Path::new(""), self.volume.sync())
    }

    fn left_out(&mut self) -> Vec<Skipped> {
        self.left_out.take()
    }
}

fn node(kind: FileKind, perm: u16, rdev: u32) -> NewNode {
    NewNode { kind, perm, umask: 0, rdev }
}

/// Packs a device number into 32 bits, as the kernel does.
fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}
