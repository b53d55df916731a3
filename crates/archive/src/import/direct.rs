//! A volume as a sink: it calls the filesystem as the kernel would. The volume may be mounted at the same
//! time. Then the kernel must be told what changed ([`Changes`]).
//!
//! Other programs may see what is being made. So a file gets its name when it is complete. A kernel that
//! keeps sizes and times itself (writeback cache) would not believe later ones. Other items are closed to
//! others until they have their owner, their attributes and, last, their permissions. A folder gets them
//! after everything in it.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::answers::Skipped;
use api::error::{Failure, Result};
use base::{Ino, Must};
use fs::Errno;
use fs::api::{Caller, Entry, FileKind, Filesystem, NewNode, SetAttr, SetTime, XattrMode};

use super::seen::{Held, Paths};
use super::{Item, Kind, LeftOut, Sink, errno_failure, exists};
use crate::acl;

/// The caller is root, so that owners and device nodes are preserved.
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// What must be told of every change, if a kernel has the volume mounted.
pub trait Changes: Send {
    /// A name in this folder came, went, or stands for something else. A change of the inode that it stands
    /// for is reported after it.
    fn name(&self, _parent: Ino, _name: &[u8]) {}

    /// The attributes or the contents of this inode changed. The import itself holds one reference to it.
    fn inode(&self, _ino: Ino) {}
}

/// No kernel has the volume mounted.
pub struct NotMounted;

impl Changes for NotMounted {}

/// Where an import goes.
#[derive(Clone, Debug)]
pub struct To<'a> {
    /// The place's name for people.
    pub shown: String,
    /// The folder below its root. It is created if its parent exists.
    pub folder: &'a Path,
    /// Whether existing files are replaced.
    pub overwrite: bool,
    /// The file mode mask, for folders that the source does not list.
    pub umask: u32,
}

/// A place in a volume that this process has opened.
pub struct Direct {
    volume: Arc<dyn Filesystem>,
    changes: Box<dyn Changes>,
    shown: String,
    overwrite: bool,
    /// Folders used so far. Each holds one reference.
    folders: HashMap<PathBuf, Ino>,
    open: Option<Open>,
    /// Paths created so far. A repeated name replaces its earlier item.
    made: Paths,
    /// Folders, and whether each was created below a default ACL.
    late: Vec<(Ino, Item, bool)>,
    /// Folders of which the name now belongs to something else.
    replaced: HashSet<Ino>,
    held: Held,
    left_out: LeftOut,
    /// Permissions of folders that the source does not list.
    folder_perm: u16,
}

/// The current file. It has no name yet.
struct Open {
    item: Item,
    parent: Ino,
    ino: Ino,
    /// An earlier item of this import has its path.
    replaces_own: bool,
    /// Whether the file was created below a default ACL.
    inherits: bool,
    /// The end of the last bytes written. The rest of the file is a hole.
    end: u64,
}

impl Direct {
    /// Opens the destination, or creates it if its parent exists.
    pub fn new(volume: Arc<dyn Filesystem>, changes: Box<dyn Changes>, to: To<'_>) -> Result<Direct> {
        let folder_perm = 0o777 & !(to.umask as u16);
        let shown = to.shown;
        let failed = |errno| errno_failure(format!("cannot open {shown}"), errno);
        let mut at = Ino::ROOT;
        let parts: Vec<_> = to.folder.components().collect();
        for (index, part) in parts.iter().enumerate() {
            let name = part.as_os_str().as_bytes();
            let entry = match volume.lookup(at, name) {
                Err(Errno::ENOENT) if index + 1 == parts.len() => {
                    let made = volume.mkdir(&ROOT, at, name, folder_perm, 0);
                    changes.name(at, name);
                    changes.inode(at);
                    made
                }
                other => other,
            };
            // The folder itself stays referred to, those above it do not.
            if index > 0 {
                volume.forget(at, 1);
            }
            let attr = entry.map_err(failed)?.attr;
            if attr.kind != FileKind::Dir {
                volume.forget(attr.ino, 1);
                return Err(failed(Errno::ENOTDIR));
            }
            at = attr.ino;
        }
        let folders = HashMap::from([(PathBuf::new(), at)]);
        Ok(Direct {
            volume,
            changes,
            shown,
            overwrite: to.overwrite,
            folders,
            open: None,
            made: Paths::default(),
            late: Vec::new(),
            replaced: HashSet::new(),
            held: Held::default(),
            left_out: LeftOut::default(),
            folder_perm,
        })
    }

    /// The destination's inode.
    pub fn root(&self) -> Ino {
        self.folders.get(Path::new("")).copied().must("the place itself is known")
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
            Err(Errno::ENOENT) => {
                let made = self.volume.mkdir(&ROOT, parent, name, self.folder_perm, 0);
                self.changed(parent, name);
                made
            }
            other => other,
        };
        let entry = self.or_fail("enter", path, entry)?;
        if entry.attr.kind != FileKind::Dir {
            self.volume.forget(entry.attr.ino, 1);
            return Err(errno_failure(format!("cannot enter {}", self.shown(path)), Errno::ENOTDIR));
        }
        self.folders.insert(path.to_owned(), entry.attr.ino);
        self.held.add_path(path)?;
        Ok(entry.attr.ino)
    }

    /// A name of this folder changed, and with it the folder's times.
    fn changed(&self, parent: Ino, name: &[u8]) {
        self.changes.name(parent, name);
        self.changes.inode(parent);
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

    /// Creates an item that is no file. None if it is a hard link whose target is missing, or one that exists
    /// already.
    fn make(&mut self, item: &Item, parent: Ino, name: &[u8], own: bool) -> Result<Option<Entry>> {
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
        let made = self.place(item, parent, name, own, &|| match &item.kind {
            Kind::Dir => self.volume.mkdir(&ROOT, parent, name, 0o700, 0),
            Kind::Symlink(target) => self.volume.symlink(&ROOT, parent, name, target.as_bytes()),
            Kind::HardLink(_) => self.volume.link(from.must("set above for hard links"), parent, name),
            Kind::File { .. } => Err(Errno::EINVAL),
            Kind::Node { format, rdev } => {
                let kind = FileKind::from_mode(*format).ok_or(Errno::EINVAL)?;
                // Without set-id bits: until it has its owner, it belongs to root.
                let (perm, rdev) = ((item.perm & 0o700) as u16, kernel_device(*rdev));
                self.volume.mknod(&ROOT, parent, name, &NewNode { kind, perm, umask: 0, rdev })
            }
        });
        if let Some(ino) = from {
            self.volume.forget(ino, 1);
        }
        made.map(Some)
    }

    /// Creates a name. What has it already is kept or replaced.
    fn place(
        &self,
        item: &Item,
        parent: Ino,
        name: &[u8],
        own: bool,
        make: &dyn Fn() -> fs::api::Result<Entry>,
    ) -> Result<Entry> {
        let made = match make() {
            Err(Errno::EEXIST) => self.replace(item, parent, name, own, make)?,
            made => made,
        };
        self.changed(parent, name);
        self.or_fail("make", &item.path, made)
    }

    /// Creates a file without a name, to which bytes are then written.
    fn begin(&mut self, item: Item, parent: Ino, name: &[u8], own: bool, inherits: bool) -> Result<()> {
        if !own
            && !self.overwrite
            && let Ok(there) = self.volume.lookup(parent, name)
        {
            self.volume.forget(there.attr.ino, 1);
            return Err(exists(Path::new(&self.shown(&item.path))));
        }
        let made = self.volume.tmpfile(&ROOT, parent, 0o600, 0);
        let ino = self.or_fail("make", &item.path, made)?.attr.ino;
        self.open = Some(Open { item, parent, ino, replaces_own: own, inherits, end: 0 });
        Ok(())
    }

    /// An existing folder is kept. Anything else is removed, if the user asked for that or if this import
    /// created it (`own`).
    fn replace(
        &self,
        item: &Item,
        parent: Ino,
        name: &[u8],
        own: bool,
        again: &dyn Fn() -> fs::api::Result<Entry>,
    ) -> Result<fs::api::Result<Entry>> {
        let there = self.or_fail("look at", &item.path, self.volume.lookup(parent, name))?;
        let both_folders = item.kind == Kind::Dir && there.attr.kind == FileKind::Dir;
        if both_folders {
            return Ok(Ok(there));
        }
        let is_folder = there.attr.kind == FileKind::Dir;
        let was = there.attr.ino;
        if !own && (!self.overwrite || is_folder || item.kind == Kind::Dir) {
            self.volume.forget(was, 1);
            return Err(exists(Path::new(&self.shown(&item.path))));
        }
        let removed = if is_folder {
            self.volume.rmdir(parent, name)
        } else {
            self.volume.unlink(parent, name).map(drop)
        };
        // Another name of it may remain.
        self.changes.inode(was);
        self.volume.forget(was, 1);
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
        let owner = SetAttr { uid: Some(item.uid), gid: Some(item.gid), perm, size, ..SetAttr::default() };
        let times = |set| SetAttr {
            atime: Some(SetTime::To(item.atime)),
            mtime: Some(SetTime::To(item.mtime)),
            ..set
        };
        if item.xattrs.is_empty() {
            set(&times(owner))?;
        } else {
            set(&owner)?;
            self.attributes(item, ino)?;
            set(&times(SetAttr::default()))?;
        }
        Ok(())
    }

    /// Sets owners, permissions and times of folders. If several members have one name, the last counts. The
    /// first failure is returned after all folders had their turn.
    fn dress_folders(&mut self) -> Result<()> {
        let mut done = std::mem::take(&mut self.replaced);
        let mut outcome = Ok(());
        for (ino, item, inherits) in std::mem::take(&mut self.late).into_iter().rev() {
            if done.insert(ino) {
                outcome = outcome.and(self.dress(&item, ino, None, inherits));
                let above = item.path.parent().and_then(|above| self.folders.get(above));
                if let (Some(above), Some(name)) = (above, item.path.file_name()) {
                    self.changes.name(*above, name.as_bytes());
                }
                self.changes.inode(ino);
            }
        }
        for (_, ino) in std::mem::take(&mut self.folders) {
            if ino != Ino::ROOT {
                self.volume.forget(ino, 1);
            }
        }
        outcome
    }
}

impl Sink for Direct {
    fn item(&mut self, item: Item) -> Result<()> {
        if self.open.is_some() {
            return Err(unexpected());
        }
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
            self.replaced.insert(was);
            self.volume.forget(was, 1);
        }
        let own = !self.made.add(&item.path);
        if matches!(item.kind, Kind::File { .. }) {
            return self.begin(item, parent, &name, own, inherits);
        }
        let Some(made) = self.make(&item, parent, &name, own)? else { return Ok(()) };
        let ino = made.attr.ino;
        match item.kind {
            Kind::Dir => {
                if self.folders.insert(item.path.clone(), ino).is_some() {
                    self.volume.forget(ino, 1);
                }
                self.keep_for_later(ino, item, inherits)?;
            }
            Kind::HardLink(_) => {
                self.changes.inode(ino);
                self.volume.forget(ino, 1);
            }
            _ => {
                let dressed = self.dress(&item, ino, None, inherits);
                self.changes.name(parent, &name);
                self.changes.inode(ino);
                self.volume.forget(ino, 1);
                dressed?;
            }
        }
        Ok(())
    }

    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        let mut open = self.open.take().ok_or_else(unexpected)?;
        let written = self.volume.write(open.ino, offset, &bytes, None, false).map(drop);
        open.end = open.end.max(offset.saturating_add(bytes.len() as u64));
        let outcome = self.or_fail("write", &open.item.path, written);
        self.open = Some(open);
        outcome
    }

    fn end(&mut self) -> Result<()> {
        let Open { item, parent, ino, replaces_own, inherits, end } =
            self.open.take().ok_or_else(unexpected)?;
        let size = match item.kind {
            Kind::File { size } => Some(size),
            _ => None,
        };
        // Sets the size if the file ends with a hole. A file that grew while it was read keeps what was read.
        let outcome = self.dress(&item, ino, size.filter(|&size| size > end), inherits).and_then(|()| {
            let name = item.path.file_name().unwrap_or_default().as_bytes();
            let make = || self.volume.link(ino, parent, name);
            self.place(&item, parent, name, replaces_own, &make)?;
            self.volume.forget(ino, 1);
            Ok(())
        });
        self.volume.forget(ino, 1);
        outcome
    }

    fn abandon(&mut self) -> Result<()> {
        let Open { ino, .. } = self.open.take().ok_or_else(unexpected)?;
        // It has no name, so nothing remains of it.
        self.volume.forget(ino, 1);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.dress_folders()?;
        self.or_fail("sync", Path::new(""), self.volume.sync())
    }

    fn stop(&mut self) -> Result<()> {
        // It has no name, so nothing remains of it.
        if let Some(Open { ino, .. }) = self.open.take() {
            self.volume.forget(ino, 1);
        }
        self.finish()
    }

    fn left_out(&mut self) -> Vec<Skipped> {
        self.left_out.take()
    }
}

/// Bytes came without a file, which no source does.
fn unexpected() -> Failure {
    Failure::new("damaged", "bytes came that belong to no file")
}

/// Packs a device number into 32 bits, as the kernel does.
fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}
