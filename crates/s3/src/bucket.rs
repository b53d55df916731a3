//! A bucket: a filesystem, and ways through it. Every inode that is found is held until the value is dropped,
//! as the kernel holds the inodes that it knows.

use std::sync::Arc;

use base::{Ino, Timestamp};
use fs::Errno;
use fs::api::{Attr, Caller, Coherence, FileKind, Filesystem, XattrMode};
use parking_lot::{Mutex, MutexGuard};

use crate::attributes;
use crate::errors::NOT_OURS;
use crate::keys::{HIDDEN, Key};
use crate::sorted::Ahead;

/// The result of a step in the filesystem.
pub type Outcome<T> = std::result::Result<T, Errno>;

/// `None` if something is not there. Any other failure says nothing about whether it is, and stays one.
pub fn there<T>(outcome: Outcome<T>) -> Outcome<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(other) => Err(other),
    }
}

/// On a volume that other nodes change too, what is half done and younger than this may be the work of one of
/// them. In nanoseconds.
const YOUNG_NS: i128 = 6 * 3_600 * 1_000_000_000;

/// Learns of every change, so that a kernel that has the filesystem mounted can forget what it cached.
pub trait Changes: Send + Sync {
    /// A name in this folder came, went, or stands for something else.
    fn name(&self, _parent: Ino, _name: &[u8]) {}

    /// The attributes or the contents of this inode changed. The gateway itself holds one reference to it.
    fn inode(&self, _ino: Ino) {}

    /// Waits until the kernel has heard of everything.
    fn settle(&self) {}
}

/// No kernel has the filesystem mounted.
pub struct NotMounted;

impl Changes for NotMounted {}

/// What a bucket is made of.
pub struct Made {
    /// The bucket's name.
    pub name: String,
    /// The filesystem with the bucket's objects.
    pub fs: Arc<dyn Filesystem>,
    /// What hears of changes.
    pub changes: Arc<dyn Changes>,
    /// Refuse all changes.
    pub read_only: bool,
    /// The owner of new files: user and group.
    pub owner: (u32, u32),
}

/// A bucket.
pub struct Bucket {
    name: String,
    fs: Arc<dyn Filesystem>,
    changes: Arc<dyn Changes>,
    read_only: bool,
    caller: Caller,
    /// Taken for the moment in which an object gets its name or loses it, so that a condition on it holds.
    /// Not while bytes are read, written or synced.
    names: Mutex<()>,
    /// Entries of a large folder that a listing will want next.
    pub(crate) ahead: Mutex<Option<Ahead>>,
}

/// An inode with one reference of the gateway.
pub struct Held {
    fs: Arc<dyn Filesystem>,
    node: Ino,
}

impl Held {
    /// The number by which the filesystem knows it.
    pub fn node(&self) -> Ino {
        self.node
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.node != Ino::ROOT {
            self.fs.forget(self.node, 1);
        }
    }
}

/// An inode that was found.
pub struct Found {
    /// The inode.
    pub held: Held,
    /// The inode's attributes when it was found.
    pub attr: Attr,
}

impl Found {
    /// The number by which the filesystem knows it.
    pub fn node(&self) -> Ino {
        self.held.node
    }
}

/// The folders on the way to a name, from the root to the one that holds the name.
pub struct Way {
    steps: Vec<(Held, Vec<u8>)>,
}

impl Way {
    /// The folder that holds the name.
    pub fn folder(&self) -> Ino {
        self.steps.last().map_or(Ino::ROOT, |(held, _)| held.node)
    }

    /// One folder further.
    pub fn then(mut self, held: Held, name: &[u8]) -> Way {
        self.steps.push((held, name.to_vec()));
        self
    }
}

impl Bucket {
    /// A bucket over a filesystem.
    pub fn new(made: Made) -> Bucket {
        let Made { name, fs, changes, read_only, owner } = made;
        let caller = Caller { uid: owner.0, gid: owner.1, pid: 0 };
        Bucket { name, fs, changes, read_only, caller, names: Mutex::new(()), ahead: Mutex::default() }
    }

    /// Returns the bucket's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bucket's filesystem.
    pub fn fs(&self) -> &Arc<dyn Filesystem> {
        &self.fs
    }

    /// The user and group of new files.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// What hears of changes.
    pub fn changes(&self) -> &dyn Changes {
        &*self.changes
    }

    /// When it was made, as far as is known.
    pub fn created(&self) -> Timestamp {
        self.fs.getattr(Ino::ROOT).map_or(Timestamp(0), |attr| attr.btime)
    }

    /// Refuses changes of a read-only bucket.
    pub fn writable(&self) -> Outcome<()> {
        if self.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Whether other nodes change the filesystem too. [`Bucket::lock`] does not keep them away.
    pub fn is_shared(&self) -> bool {
        self.fs.coherence() == Coherence::Shared
    }

    /// Whether something half done with these attributes may be the work of another node.
    pub fn may_be_in_use(&self, attr: &Attr) -> bool {
        self.is_shared() && attr.ctime.0 + YOUNG_NS > base::time::now().0
    }

    /// Keeps other requests from giving or taking names until the value is dropped.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.names.lock()
    }

    /// Holds an inode that an operation returned with a reference.
    pub fn hold(&self, node: Ino) -> Held {
        Held { fs: self.fs.clone(), node }
    }

    /// Finds a name.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Outcome<Found> {
        let entry = self.fs.lookup(parent, name)?;
        Ok(Found { held: self.hold(entry.node), attr: entry.attr })
    }

    /// Finds an object: a regular file, or a folder that a client made as an object.
    pub fn find(&self, key: &Key) -> Outcome<Found> {
        let way = self.way(key)?;
        let found = self.lookup(way.folder(), key.name()).map_err(missing)?;
        let is_object = match (found.attr.kind, key.is_folder()) {
            (FileKind::File, false) => true,
            (FileKind::Dir, true) => self.has(found.node(), attributes::FOLDER)?,
            _ => false,
        };
        if is_object { Ok(found) } else { Err(Errno::ENOENT) }
    }

    /// The existing folders on the way to a key. ENOENT if one is missing or is no folder.
    pub fn way(&self, key: &Key) -> Outcome<Way> {
        let mut way = Way { steps: Vec::new() };
        for name in key.above() {
            let found = self.lookup(way.folder(), name).map_err(missing)?;
            if found.attr.kind != FileKind::Dir {
                return Err(Errno::ENOENT);
            }
            way.steps.push((found.held, name.to_vec()));
        }
        Ok(way)
    }

    /// The folders on the way to a key. Missing ones are made, and marked as made by the gateway.
    pub fn make_way(&self, key: &Key) -> Outcome<Way> {
        let mut way = Way { steps: Vec::new() };
        for name in key.above() {
            match self.folder(way.folder(), name, true) {
                Ok(held) => way.steps.push((held, name.to_vec())),
                Err(errno) => {
                    self.prune(way);
                    return Err(errno);
                }
            }
        }
        Ok(way)
    }

    /// The folder of this name, which is made if it is missing. `marked`: it may be removed when it is empty.
    pub fn folder(&self, parent: Ino, name: &[u8], marked: bool) -> Outcome<Held> {
        match self.lookup(parent, name) {
            Ok(found) if found.attr.kind == FileKind::Dir => Ok(found.held),
            Ok(_) => Err(Errno::ENOTDIR),
            Err(Errno::ENOENT) => {
                let perm = if marked { 0o755 } else { 0o700 };
                let made = match self.fs.mkdir(&self.caller, parent, name, perm, 0) {
                    // Another request has made it since.
                    Err(Errno::EEXIST) => return self.made_by_another(parent, name),
                    made => made?,
                };
                let held = self.hold(made.node);
                if marked {
                    self.set(held.node, attributes::MADE, b"1")?;
                }
                self.changed(parent, name);
                Ok(held)
            }
            Err(other) => Err(other),
        }
    }

    fn made_by_another(&self, parent: Ino, name: &[u8]) -> Outcome<Held> {
        let found = self.lookup(parent, name)?;
        if found.attr.kind == FileKind::Dir { Ok(found.held) } else { Err(Errno::ENOTDIR) }
    }

    /// Removes the folders at the end of a way as long as they are empty, were made by the gateway, and are
    /// not objects themselves.
    pub fn prune(&self, mut way: Way) {
        while let Some((held, name)) = way.steps.pop() {
            // One that cannot be read stays.
            let mine = self.has(held.node, attributes::MADE) == Ok(true)
                && self.has(held.node, attributes::FOLDER) == Ok(false);
            if !mine || self.fs.rmdir(way.folder(), &name).is_err() {
                break;
            }
            self.changed(way.folder(), &name);
        }
    }

    /// A folder that holds what is incomplete. It is made if it is missing.
    ///
    /// At the top of a mount, other users may be able to make folders too. In one of theirs they could read
    /// what clients send, and exchange it. So each folder on the way must be this gateway's, and closed.
    pub fn hidden(&self, name: &[u8]) -> Outcome<Held> {
        let top = self.own_folder(Ino::ROOT, HIDDEN.as_bytes())?;
        self.own_folder(top.node, name)
    }

    /// Returns a folder that holds what is incomplete, if it is there.
    pub fn hidden_if_there(&self, name: &[u8]) -> Outcome<Option<Held>> {
        let mut at = self.hold(Ino::ROOT);
        for name in [HIDDEN.as_bytes(), name] {
            let Some(found) = there(self.lookup(at.node, name))? else { return Ok(None) };
            at = self.ours(found)?.held;
        }
        Ok(Some(at))
    }

    /// A folder of this gateway, which is made if it is missing.
    pub fn own_folder(&self, parent: Ino, name: &[u8]) -> Outcome<Held> {
        match self.folder(parent, name, false) {
            Ok(_) => {}
            Err(Errno::ENOTDIR) => return Err(NOT_OURS),
            Err(other) => return Err(other),
        }
        // Looked up again: another user may have made it meanwhile.
        self.lookup(parent, name).and_then(|found| self.ours(found)).map(|found| found.held)
    }

    /// Refuses a folder that is somebody else's, or that others may use.
    pub fn ours(&self, found: Found) -> Outcome<Found> {
        let Attr { kind, uid, perm, .. } = found.attr;
        let is_ours = kind == FileKind::Dir && [0, self.caller.uid].contains(&uid) && perm & 0o077 == 0;
        if is_ours { Ok(found) } else { Err(NOT_OURS) }
    }

    /// A name in this folder changed, and with it the folder's times.
    pub fn changed(&self, parent: Ino, name: &[u8]) {
        self.changes.name(parent, name);
        self.changes.inode(parent);
    }

    /// Whether an inode has an attribute.
    pub fn has(&self, node: Ino, name: &str) -> Outcome<bool> {
        Ok(self.bytes_of(node, name)?.is_some())
    }

    /// An attribute's text. `None` if there is none, or if it is no text.
    pub fn get(&self, node: Ino, name: &str) -> Outcome<Option<String>> {
        Ok(self.bytes_of(node, name)?.and_then(|value| String::from_utf8(value).ok()))
    }

    /// An attribute. Only an answer that there is none means `None`: a failure says nothing about it.
    fn bytes_of(&self, node: Ino, name: &str) -> Outcome<Option<Vec<u8>>> {
        match self.fs.getxattr(node, name.as_bytes()) {
            Ok(value) => Ok(Some(value)),
            // There is none, or this filesystem has no attributes.
            Err(Errno::ENODATA | Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Sets an attribute.
    pub fn set(&self, node: Ino, name: &str, value: &[u8]) -> Outcome<()> {
        self.fs.setxattr(node, name.as_bytes(), value, XattrMode::Set, false)
    }

    /// Removes an attribute that may be missing.
    pub fn unset(&self, node: Ino, name: &str) -> Outcome<()> {
        match self.fs.removexattr(node, name.as_bytes()) {
            Err(Errno::ENODATA) => Ok(()),
            other => other,
        }
    }
}

/// A part of a key that is no folder hides the key as well as a missing one.
fn missing(errno: Errno) -> Errno {
    match errno {
        Errno::ENOTDIR | Errno::ENAMETOOLONG => Errno::ENOENT,
        other => other,
    }
}
