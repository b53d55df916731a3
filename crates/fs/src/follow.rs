//! A mount that moves from one frozen tree to the next: what was open stays as it was, and what is looked up afterwards is new.
//!
//! ```text
//!   kernel's node        held by                        shows
//!   1, dir 7             paths, cwd, listings           the newest tree, always
//!   2^63 + 4  (file 9)   who opened it two trees ago    file 9 of that tree, until the kernel forgets the node
//!   2^63 + 8  (file 9)   who looked it up since         file 9 of the newest tree that changed it
//! ```
//!
//! **A file's node is its content.** The kernel is not asked to open files, so the daemon cannot know who has one open; what it reads is
//! therefore decided by the node's number alone. A node of a file that a new tree changes stays with the last tree that had it so, and
//! whoever looks the name up next gets another node. Numbers of nodes are never used twice; `st_ino` is the inode's own and stays.
//! A folder's node is its inode and shows the newest tree; of a folder that is gone there is nothing left but its attributes.
//!
//! **Moving is one moment.** The kernel keeps names for ever, so it must be made to forget those that change, and it forgets one after
//! the other. While it does ([`Moving`]), everything is still answered from the old tree, and for no time. So until the end of it
//! nothing new can be seen by anybody, and after it nothing old can be looked up: there is no state in between.
//!
//! What must hold for that: a node is entered here under the same lock under which it is decided which nodes are held. A look-up is either
//! counted before (then its names are forgotten) or told that it is fleeting. A look-up that ends after the move starts again.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use crate::api::{
    Allocate, Answer, Attr, Caller, Coherence, Coming, DirEntry, Entry, FileKind, Filesystem, NewNode,
    RenameMode, Result, Seek, SetAttr, StatFs, Touched, Waiting, XattrMode,
};
use crate::errno::Errno;

/// Numbers of files' nodes begin here; no volume has given out so many inodes.
const FILES: u64 = 1 << 63;

/// An inode that is not the same in the next tree, or not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Which.
    pub ino: Ino,
    /// The next tree does not have it.
    pub gone: bool,
}

/// What the kernel knows under a number.
struct Known {
    ino: Ino,
    is_dir: bool,
    /// References of the kernel's.
    count: u64,
    /// The tree that it stays with; none: the newest.
    stays: Option<Arc<dyn Filesystem>>,
}

struct State {
    newest: Arc<dyn Filesystem>,
    /// How many trees came before it.
    moves: u64,
    moving: bool,
    known: HashMap<u64, Known>,
    /// The node of each file that shows the newest tree.
    files: HashMap<Ino, u64>,
    next: u64,
}

/// Where a request goes.
struct Place {
    fs: Arc<dyn Filesystem>,
    ino: Ino,
    moves: u64,
    /// A folder that the newest tree does not have.
    is_gone: bool,
}

/// The newest of several trees, and what is still held of older ones. See the [module](self).
pub struct Following {
    state: Mutex<State>,
}

/// A move that has begun: names are being forgotten. Dropped without [`Moving::finish`] it is given up, and the old tree stays.
pub struct Moving<'a> {
    following: &'a Following,
    changed: Vec<Changed>,
    held: Vec<Ino>,
}

impl Following {
    /// Shows this tree for now. It must be frozen.
    pub fn new(first: Arc<dyn Filesystem>) -> Following {
        let state = State {
            newest: first,
            moves: 0,
            moving: false,
            known: HashMap::new(),
            files: HashMap::new(),
            next: FILES,
        };
        Following { state: Mutex::new(state) }
    }

    /// How many trees came before the one that is shown.
    pub fn moves(&self) -> u64 {
        self.state.lock().moves
    }

    /// Nodes that the kernel holds, and how many of them stay with an older tree.
    pub fn held(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.known.len(), state.known.values().filter(|known| known.stays.is_some()).count())
    }

    /// Begins to move to a tree in which these inodes are others. From now on nothing is to be kept by the kernel; what it keeps already
    /// must be taken from it before [`Moving::finish`]: every name that is another in the next tree, and every name of a [`Moving::held`]
    /// file. One at a time.
    pub fn begin(&self, changed: Vec<Changed>) -> Moving<'_> {
        let mut state = self.state.lock();
        state.moving = true;
        let held = changed.iter().map(|one| one.ino).filter(|ino| state.files.contains_key(ino)).collect();
        drop(state);
        Moving { following: self, changed, held }
    }

    fn place(&self, node: Ino) -> Result<Place> {
        let state = self.state.lock();
        let (moves, newest) = (state.moves, || state.newest.clone());
        match state.known.get(&node.0) {
            Some(Known { ino, stays: Some(fs), is_dir, .. }) => {
                Ok(Place { fs: fs.clone(), ino: *ino, moves, is_gone: *is_dir })
            }
            Some(known) => Ok(Place { fs: newest(), ino: known.ino, moves, is_gone: false }),
            // Folders of the newest tree go by their own number, also when only a file handle remembers them.
            None if node.0 < FILES => Ok(Place { fs: newest(), ino: node, moves, is_gone: false }),
            None => Err(Errno(libc::ESTALE)),
        }
    }

    fn newest(&self) -> Arc<dyn Filesystem> {
        self.state.lock().newest.clone()
    }

    /// Enters an inode of the newest tree and counts it. None: it is of a tree that is not the newest any more.
    fn enter(&self, attr: &Attr, moves: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        (state.moves == moves).then(|| state.enter(attr))
    }

    /// One more reference to a node, by its own number: how the kernel brings back what a file handle remembers.
    fn again(&self, node: Ino) -> Result<Entry> {
        let place = self.place(node)?;
        let attr = self.getattr(node)?;
        let mut state = self.state.lock();
        let (fleeting, moves) = (state.moving, state.moves);
        match state.known.get_mut(&node.0) {
            Some(known) => {
                known.count += 1;
                Ok(Entry { node, fleeting, ..Entry::of(attr) })
            }
            None if moves == place.moves => Ok(state.enter(&attr)),
            None => Err(Errno(libc::ESTALE)),
        }
    }
}

impl State {
    fn enter(&mut self, attr: &Attr) -> Entry {
        let is_dir = attr.kind == FileKind::Dir;
        let node = match self.files.get(&attr.ino) {
            _ if is_dir => attr.ino.0,
            Some(node) => *node,
            None => {
                let node = self.next;
                self.next += 1;
                self.files.insert(attr.ino, node);
                node
            }
        };
        let new = || Known { ino: attr.ino, is_dir, count: 0, stays: None };
        self.known.entry(node).or_insert_with(new).count += 1;
        Entry { node: Ino(node), fleeting: self.moving, ..Entry::of(*attr) }
    }

    fn forget(&mut self, node: u64, count: u64) -> Option<Known> {
        let known = self.known.get_mut(&node)?;
        known.count = known.count.saturating_sub(count);
        if known.count > 0 {
            return None;
        }
        let known = self.known.remove(&node)?;
        if self.files.get(&known.ino) == Some(&node) {
            self.files.remove(&known.ino);
        }
        if self.known.capacity() > 1024 && self.known.len() < self.known.capacity() / 4 {
            let keep = self.known.len() * 2;
            self.known.shrink_to(keep);
            self.files.shrink_to(keep);
        }
        Some(known)
    }

    /// From now on nodes of these inodes show what they showed.
    fn pin(&mut self, changed: &[Changed], old: &Arc<dyn Filesystem>) {
        for &Changed { ino, gone } in changed {
            if let Some(node) = self.files.remove(&ino)
                && let Some(known) = self.known.get_mut(&node)
            {
                known.stays = Some(old.clone());
            }
            if let Some(known) = self.known.get_mut(&ino.0).filter(|known| known.is_dir) {
                // One that was gone before may be back.
                let before = known.stays.take();
                known.stays = gone.then(|| before.unwrap_or_else(|| old.clone()));
            }
        }
    }
}

impl Moving<'_> {
    /// Files of which the kernel holds a node that shows the old tree.
    pub fn held(&self) -> &[Ino] {
        &self.held
    }

    /// Everything that changes has been taken from the kernel: shows the next tree.
    pub fn finish(self, next: Arc<dyn Filesystem>) {
        let mut state = self.following.state.lock();
        let old = std::mem::replace(&mut state.newest, next);
        state.moves += 1;
        state.moving = false;
        state.pin(&self.changed, &old);
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.following.state.lock().moving = false;
    }
}

impl Following {
    /// Runs something on the inode and the tree that a node stands for.
    fn on<T>(&self, node: Ino, work: impl FnOnce(&dyn Filesystem, Ino) -> Result<T>) -> Result<T> {
        let place = self.place(node)?;
        work(&*place.fs, place.ino)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Filesystem for Following {
    fn coherence(&self) -> Coherence {
        Coherence::Frozen
    }

    fn would_wait(&self, request: Waiting) -> bool {
        match request {
            Waiting::Read { ino, offset, len } => self
                .place(ino)
                .is_ok_and(|place| place.fs.would_wait(Waiting::Read { ino: place.ino, offset, len })),
            other => self.newest().would_wait(other),
        }
    }

    fn coming(&self, ino: Ino, offset: u64, len: u32, then: Answer) -> Coming {
        self.place(ino).map_or(Coming::No, |place| place.fs.coming(place.ino, offset, len, then))
    }

    fn fleeting(&self) -> bool {
        self.state().moving
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if name == b"." {
            return self.again(parent);
        }
        loop {
            let place = self.place(parent)?;
            if place.is_gone {
                return Err(Errno::ENOENT);
            }
            let found = place.fs.lookup(place.ino, name)?;
            // The tree's own counts are not needed: nothing in it is ever without a name.
            place.fs.forget(found.attr.ino, 1);
            if let Some(entry) = self.enter(&found.attr, place.moves) {
                return Ok(entry);
            }
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        // A tree that ends with its last node ends without the lock.
        let gone = self.state().forget(ino.0, count);
        drop(gone);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let place = self.place(ino)?;
        let mut attr = place.fs.getattr(place.ino)?;
        if place.is_gone {
            attr.nlink = 0;
        }
        Ok(attr)
    }

    fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let place = self.place(ino)?;
        if place.is_gone { Ok(()) } else { place.fs.readdir(place.ino, position, each) }
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<()> {
        let place = self.place(ino)?;
        if place.is_gone {
            return Ok(());
        }
        let mut taken = Vec::new();
        let listed = place.fs.readdir_plus(place.ino, position, &mut |line, found| {
            let child = line.ino;
            let entry = found.and_then(|found| self.enter(&found.attr, place.moves));
            let verdict = each(line, entry.as_ref());
            match entry {
                Some(entry) if verdict.is_break() => self.forget(entry.node, 1),
                _ => {}
            }
            if verdict.is_continue() && found.is_some() {
                taken.push(child);
            }
            verdict
        });
        taken.iter().for_each(|child| place.fs.forget(*child, 1));
        listed
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.on(ino, |fs, ino| fs.readlink(ino))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.on(ino, |fs, ino| fs.read(ino, offset, buf))
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.on(ino, |fs, ino| fs.seek(ino, offset, what))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.on(ino, |fs, ino| fs.getxattr(ino, name))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.on(ino, |fs, ino| fs.listxattr(ino))
    }

    fn fsync(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        self.newest().statfs()
    }

    fn unmounted(&self) {
        let mut state = self.state();
        let known = std::mem::take(&mut state.known);
        state.files.clear();
        let newest = state.newest.clone();
        drop(state);
        drop(known);
        newest.unmounted();
    }

    // A tree that was published cannot be changed by who looks at it.

    fn setattr(&self, _: &Caller, _: Ino, _: &SetAttr) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn mknod(&self, _: &Caller, _: Ino, _: &[u8], _: &NewNode) -> Result<Entry> {
        Err(Errno::EROFS)
    }

    fn mkdir(&self, _: &Caller, _: Ino, _: &[u8], _: u16, _: u16) -> Result<Entry> {
        Err(Errno::EROFS)
    }

    fn symlink(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8]) -> Result<Entry> {
        Err(Errno::EROFS)
    }

    fn link(&self, _: Ino, _: Ino, _: &[u8]) -> Result<Entry> {
        Err(Errno::EROFS)
    }

    fn unlink(&self, _: Ino, _: &[u8]) -> Result<Touched> {
        Err(Errno::EROFS)
    }

    fn rmdir(&self, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn rename(&self, _: Ino, _: &[u8], _: Ino, _: &[u8], _: RenameMode) -> Result<Touched> {
        Err(Errno::EROFS)
    }

    fn write(&self, _: Ino, _: u64, _: &[u8], _: Option<&Caller>, _: bool) -> Result<bool> {
        Err(Errno::EROFS)
    }

    fn allocate(&self, _: Ino, _: u64, _: u64, _: Allocate) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn copy_range(&self, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<u64> {
        Err(Errno::EROFS)
    }

    fn setxattr(&self, _: Ino, _: &[u8], _: &[u8], _: XattrMode, _: bool) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn removexattr(&self, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }
}
