//! A mount that moves from one frozen tree to the next. Open files stay as they were; later lookups find the
//! new tree.
//!
//! ```text
//!   kernel's node        held by                  shows
//!   1, dir 7             paths, cwd, listings     the newest tree, always
//!   2^63 + 4  (file 9)   opened two trees ago     file 9 of that tree, until the kernel forgets the node
//!   2^63 + 8  (file 9)   looked up since          file 9 of the newest tree that changed it
//! ```
//!
//! (Here "node" means a FUSE node id.)
//!
//! **A file's node is its content.** The kernel sends no OPEN, so the daemon cannot know which files are
//! open. What a read returns is therefore decided by the node's number alone. When a new tree changes a file,
//! the old node stays with the last tree that had the old content, and the next lookup of the name gets
//! another node. Node numbers are never reused; `st_ino` is the inode's own number and stays. A folder's node
//! is its inode and shows the newest tree. Of a folder that is gone, only its attributes are left. A mount
//! may keep it instead ([`Following::keeping`]): a program or an overlay that holds it finds what was below.
//!
//! **A move takes effect at one moment.** The kernel keeps names for ever. So it must be made to forget those
//! that change, and it forgets them one after another. During that time ([`Moving`]) everything is still
//! answered from the old tree, and the kernel may not cache the answers. So before the end of the move
//! nothing new is visible, and after it no lookup finds anything old: there is no mixed state.
//!
//! This needs one rule: a node is entered here under the same lock under which a move decides which nodes are
//! held. A lookup is either counted before that (then its names are forgotten), or its answer is marked as
//! fleeting. A lookup that ends after the move starts again.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use crate::api::{
    Allocate, Answer, Attr, Caller, Coherence, DirEntry, Entry, FileKind, Filesystem, NewNode, Positions,
    ReadPlan, RenameMode, Result, Seek, SetAttr, Start, StatFs, Touched, Waiting, XattrMode,
};
use crate::errno::Errno;

/// File nodes are numbered from here on. No volume has ever allocated so many inodes.
const FILES: u64 = 1 << 63;

/// An inode that differs in the next tree, or does not exist there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The inode.
    pub ino: Ino,
    /// The next tree does not have it.
    pub gone: bool,
}

/// What the kernel refers to by a number.
struct Known {
    ino: Ino,
    is_dir: bool,
    /// The kernel's references.
    count: u64,
    /// The tree that it stays with; none for the newest.
    stays: Option<Arc<dyn Filesystem>>,
}

struct State {
    newest: Arc<dyn Filesystem>,
    /// How many trees were shown before.
    moves: u64,
    moving: bool,
    known: HashMap<u64, Known>,
    /// The node of each file that shows the newest tree.
    files: HashMap<Ino, u64>,
    /// The nodes of files that stay with an older tree, by that tree, if folders that are gone are kept.
    older: HashMap<(Older, Ino), u64>,
    /// Whether a folder that is gone shows the last tree that had it.
    keeps: bool,
    next: u64,
}

/// The address of a tree that a node stays with. The node holds the tree, so no other one has that address.
type Older = usize;

fn older(tree: &Arc<dyn Filesystem>) -> Older {
    Arc::as_ptr(tree).cast::<()>() as usize
}

/// The target of a request.
struct Place {
    fs: Arc<dyn Filesystem>,
    ino: Ino,
    moves: u64,
    /// A folder that the newest tree does not have, and of which nothing is kept.
    is_gone: bool,
    /// One that is kept.
    is_kept: bool,
}

/// The newest of several trees, and the nodes of older ones that the kernel still holds. See the
/// [module](self).
pub struct Following {
    state: Mutex<State>,
}

/// A move in progress: the kernel is being made to forget names. If it is dropped without [`Moving::finish`],
/// it is cancelled, and the old tree stays.
pub struct Moving<'a> {
    following: &'a Following,
    changed: Vec<Changed>,
    held: Vec<Ino>,
}

impl Following {
    /// Starts with this tree. It must be frozen.
    pub fn new(first: Arc<dyn Filesystem>) -> Following {
        let state = State {
            newest: first,
            moves: 0,
            moving: false,
            known: HashMap::new(),
            files: HashMap::new(),
            older: HashMap::new(),
            keeps: false,
            next: FILES,
        };
        Following { state: Mutex::new(state) }
    }

    /// Whether a folder that is gone keeps showing what was below it, for as long as somebody holds it.
    pub fn keeping(self, keeps: bool) -> Following {
        self.state.lock().keeps = keeps;
        self
    }

    /// How many trees were shown before the current one.
    pub fn moves(&self) -> u64 {
        self.state.lock().moves
    }

    /// The number of nodes that the kernel holds, and how many of them stay with an older tree.
    pub fn held(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.known.len(), state.known.values().filter(|known| known.stays.is_some()).count())
    }

    /// Begins a move to a tree in which these inodes differ. From now on the kernel may cache nothing. Before
    /// [`Moving::finish`], the caller must invalidate what the kernel has cached: every name that differs in
    /// the next tree, and every name of a [`Moving::held`] file. Only one move at a time.
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
            Some(Known { ino, stays: Some(fs), is_dir, .. }) => Ok(Place {
                fs: fs.clone(),
                ino: *ino,
                moves,
                is_gone: *is_dir && !state.keeps,
                is_kept: *is_dir && state.keeps,
            }),
            Some(known) => Ok(Place::newest(newest(), known.ino, moves)),
            // Folders of the newest tree have their own number, even if only a file handle remembers them.
            None if node.0 < FILES => Ok(Place::newest(newest(), node, moves)),
            None => Err(Errno(libc::ESTALE)),
        }
    }

    fn newest(&self) -> Arc<dyn Filesystem> {
        self.state.lock().newest.clone()
    }

    /// Enters an inode that was found in a folder, and counts it. Returns none if the folder showed the
    /// newest tree, and that is not the newest any more.
    fn enter(&self, attr: &Attr, place: &Place) -> Option<Entry> {
        let mut state = self.state.lock();
        if place.is_kept {
            return Some(state.enter_older(attr, &place.fs));
        }
        (state.moves == place.moves).then(|| state.enter(attr))
    }

    /// Adds a reference to a node by its own number. This is how the kernel finds again what a file handle
    /// refers to.
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

impl Place {
    fn newest(fs: Arc<dyn Filesystem>, ino: Ino, moves: u64) -> Place {
        Place { fs, ino, moves, is_gone: false, is_kept: false }
    }
}

impl State {
    fn enter(&mut self, attr: &Attr) -> Entry {
        let is_dir = attr.kind == FileKind::Dir;
        let node = match self.files.get(&attr.ino) {
            _ if is_dir => attr.ino.0,
            Some(node) => *node,
            None => {
                let node = self.take();
                self.files.insert(attr.ino, node);
                node
            }
        };
        self.count(node, attr, None)
    }

    /// Enters an inode below a folder that is gone, and that shows this tree.
    fn enter_older(&mut self, attr: &Attr, tree: &Arc<dyn Filesystem>) -> Entry {
        let key = (older(tree), attr.ino);
        let node = match self.older.get(&key) {
            _ if attr.kind == FileKind::Dir => attr.ino.0,
            Some(node) => *node,
            None => {
                let node = self.take();
                self.older.insert(key, node);
                node
            }
        };
        self.count(node, attr, Some(tree))
    }

    fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Counts a reference to a node. `tree`: what it stays with, if it is new.
    fn count(&mut self, node: u64, attr: &Attr, tree: Option<&Arc<dyn Filesystem>>) -> Entry {
        let is_dir = attr.kind == FileKind::Dir;
        let new = || Known { ino: attr.ino, is_dir, count: 0, stays: tree.cloned() };
        let known = self.known.entry(node).or_insert_with(new);
        if is_dir && tree.is_none() {
            // It was found in the newest tree, by whatever way it was known before.
            known.stays = None;
        }
        let held = is_dir && known.count > 0;
        known.count += 1;
        Entry { node: Ino(node), fleeting: self.moving, held, ..Entry::of(*attr) }
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
        if let Some(tree) = &known.stays {
            let key = (older(tree), known.ino);
            if self.older.get(&key) == Some(&node) {
                self.older.remove(&key);
            }
        }
        if self.known.capacity() > 1024 && self.known.len() < self.known.capacity() / 4 {
            let keep = self.known.len() * 2;
            self.known.shrink_to(keep);
            self.files.shrink_to(keep);
            self.older.shrink_to(keep);
        }
        Some(known)
    }

    /// Makes the nodes of these inodes keep showing the old tree.
    fn pin(&mut self, changed: &[Changed], old: &Arc<dyn Filesystem>) {
        for &Changed { ino, gone } in changed {
            if let Some(node) = self.files.remove(&ino)
                && let Some(known) = self.known.get_mut(&node)
            {
                known.stays = Some(old.clone());
                if self.keeps {
                    self.older.insert((older(old), ino), node);
                }
            }
            if let Some(known) = self.known.get_mut(&ino.0).filter(|known| known.is_dir) {
                // A folder that was gone before may exist again.
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

    /// Shows the next tree. Everything that changed must have been invalidated in the kernel.
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
    /// Runs `work` on the inode and the tree that a node refers to.
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
            Waiting::Read { ino, offset, len } => self.plan_read(ino, offset, len).waits,
            other => self.newest().would_wait(other),
        }
    }

    fn plan_read(&self, ino: Ino, offset: u64, len: u32) -> ReadPlan {
        let Ok(place) = self.place(ino) else { return ReadPlan::without_names(ino, offset, len, false) };
        let plan = place.fs.plan_read(place.ino, offset, len);
        // A newer tree may be mounted by the time of the read. These names hold in this one.
        ReadPlan { tree: Some(place.fs), ..plan }
    }

    fn read_planned(&self, plan: &ReadPlan, buf: &mut [u8]) -> Result<usize> {
        match &plan.tree {
            Some(tree) => tree.read_planned(plan, buf),
            None => self.read(plan.ino, plan.offset, buf),
        }
    }

    fn start_read(&self, plan: &ReadPlan, answer: Answer) -> Start {
        plan.tree.as_ref().map_or(Start::Read, |tree| tree.start_read(plan, answer))
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
            // The tree's own count is not needed: none of its inodes is ever without a name.
            place.fs.forget(found.attr.ino, 1);
            if let Some(entry) = self.enter(&found.attr, &place) {
                return Ok(entry);
            }
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        // Dropped outside the lock, because it may drop the last reference to a tree.
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

    fn positions(&self) -> Positions {
        Positions::Hashes
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
            let entry = found.and_then(|found| self.enter(&found.attr, &place));
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

    fn statfs(&self, _: Ino) -> Result<StatFs> {
        self.newest().statfs(Ino::ROOT)
    }

    fn unmounted(&self) {
        let mut state = self.state();
        let known = std::mem::take(&mut state.known);
        state.files.clear();
        state.older.clear();
        let newest = state.newest.clone();
        drop(state);
        drop(known);
        newest.unmounted();
    }

    // A published tree is read-only.

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
