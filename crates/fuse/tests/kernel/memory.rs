//! A filesystem in memory that can be mounted and used, with files that fail on purpose.
//!
//! Files are blocks of 4 KiB. Absent blocks are holes. A listing's position is a number that a name got when
//! it was created, so a listing stays right while names come and go. A file whose name begins with
//! `trap-panic` or `trap-stall` panics or hangs at READ. One whose name begins with `trap-race` is created by
//! another node just before it is created here.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{Ino, Timestamp};
use fs::api::{self, *};
use fs::locks::FileLocks;
use fs::{Errno, api::Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

const BLOCK: u64 = 4096;

#[derive(Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    locks: Arc<Mutex<AllLocks>>,
    /// This node. All nodes have the same state and locks.
    node: u64,
    pub shared: bool,
    /// Locks are decided here.
    pub fleet_locks: bool,
    /// A listing says which folders the kernel holds.
    tells_held: bool,
    /// Everything waits for another machine, so nothing may be called on a thread that must not wait.
    pub far: bool,
    /// While set, READ of `trap-stall` files and fsync hang.
    stalled: Mutex<bool>,
    released: Condvar,
    pub frozen: bool,
    /// `would_wait` says that changes wait.
    pub changes_wait: AtomicBool,
    /// While set, changes that wait hang too.
    pub stall_changes: AtomicBool,
    /// Calls that hung so far.
    pub hung: AtomicU64,
    pub syncs: AtomicU64,
    pub unmounts: AtomicU64,
}

/// By inode. The owner of a lock is a node and an owner there.
type AllLocks = HashMap<u64, FileLocks<(u64, LockOwner), Waiter>>;

struct Waiter {
    node: u64,
    wait: LockWait,
    answer: LockAnswer,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Trap {
    None,
    Panic,
    Stall,
}

struct Node {
    attr: Attr,
    lookups: u64,
    trap: Trap,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    body: Body,
}

enum Body {
    File(BTreeMap<u64, Box<[u8]>>),
    Dir { names: BTreeMap<Vec<u8>, (u64, u64)>, order: BTreeMap<u64, Vec<u8>>, next: u64, parent: u64 },
    Link(Vec<u8>),
    Other,
}

fn now() -> Timestamp {
    base::time::now()
}

/// A modification time that the file never had. The clock alone moves only with the tick.
fn stamp(attr: &mut Attr) {
    let time = now().max(Timestamp(attr.mtime.0 + 1));
    (attr.mtime, attr.ctime) = (time, time);
}

impl State {
    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino.0).ok_or(Errno::ESTALE)
    }

    fn child(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        match &self.node(parent)?.body {
            Body::Dir { names, .. } => names.get(name).map(|&(ino, _)| Ino(ino)).ok_or(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn name(&mut self, parent: Ino, name: &[u8], child: Ino) -> Result<()> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let dir = self.node(parent)?;
        let Body::Dir { names, order, next, .. } = &mut dir.body else {
            return Err(Errno::ENOTDIR);
        };
        if names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        *next += 1;
        names.insert(name.to_vec(), (child.0, *next));
        order.insert(*next, name.to_vec());
        let time = now();
        (dir.attr.mtime, dir.attr.ctime) = (time, time);
        Ok(())
    }

    fn unname(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let dir = self.node(parent)?;
        let Body::Dir { names, order, .. } = &mut dir.body else {
            return Err(Errno::ENOTDIR);
        };
        let (child, position) = names.remove(name).ok_or(Errno::ENOENT)?;
        order.remove(&position);
        let time = now();
        (dir.attr.mtime, dir.attr.ctime) = (time, time);
        Ok(Ino(child))
    }

    /// Removes one name. If it was the last and the kernel has forgotten the inode, removes the inode.
    fn drop_name(&mut self, ino: Ino) {
        let Ok(node) = self.node(ino) else { return };
        node.attr.ctime = now();
        node.attr.nlink -= if node.attr.kind == FileKind::Dir { 2 } else { 1 };
        self.collect(ino);
    }

    fn collect(&mut self, ino: Ino) {
        if self.nodes.get(&ino.0).is_some_and(|node| node.attr.nlink == 0 && node.lookups == 0) {
            self.nodes.remove(&ino.0);
        }
    }

    fn make(
        &mut self,
        caller: &Caller,
        parent: Ino,
        name: Option<&[u8]>,
        mut attr: Attr,
        body: Body,
    ) -> Result<Entry> {
        let above = self.node(parent)?.attr;
        (attr.uid, attr.gid) = (caller.uid, caller.gid);
        if u32::from(above.perm) & libc::S_ISGID != 0 {
            attr.gid = above.gid;
            if attr.kind == FileKind::Dir {
                attr.perm |= libc::S_ISGID as u16;
            }
        }
        self.next += 1;
        attr.ino = Ino(self.next);
        if let Some(name) = name {
            self.name(parent, name, attr.ino)?;
        }
        if attr.kind == FileKind::Dir {
            self.node(parent)?.attr.nlink += 1;
        }
        let trap = match name {
            Some(name) if name.starts_with(b"trap-panic") => Trap::Panic,
            Some(name) if name.starts_with(b"trap-stall") => Trap::Stall,
            _ => Trap::None,
        };
        self.nodes.insert(self.next, Node { attr, lookups: 1, trap, xattrs: BTreeMap::new(), body });
        Ok(Entry::of(attr))
    }
}

fn blank(kind: FileKind, perm: u16) -> Attr {
    let time = now();
    Attr {
        ino: Ino(0),
        kind,
        perm,
        nlink: if kind == FileKind::Dir { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: 0,
    }
}

fn empty_dir(parent: u64) -> Body {
    Body::Dir { names: BTreeMap::new(), order: BTreeMap::new(), next: 2, parent }
}

fn is_empty(body: &Body) -> bool {
    !matches!(body, Body::Dir { names, .. } if !names.is_empty())
}

impl Node {
    fn blocks(&mut self) -> Result<&mut BTreeMap<u64, Box<[u8]>>> {
        match &mut self.body {
            Body::File(blocks) => Ok(blocks),
            Body::Dir { .. } => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = (self.attr.size.saturating_sub(offset)).min(buf.len() as u64) as usize;
        let blocks = self.blocks()?;
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let within = (at % BLOCK) as usize;
            let step = (BLOCK as usize - within).min(count - done);
            match blocks.get(&(at / BLOCK)) {
                Some(block) => buf[done..done + step].copy_from_slice(&block[within..within + step]),
                None => buf[done..done + step].fill(0),
            }
            done += step;
        }
        Ok(count)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let blocks = self.blocks()?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK) as usize;
            let step = (BLOCK as usize - within).min(data.len() - done);
            let block = blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize].into());
            block[within..within + step].copy_from_slice(&data[done..done + step]);
            done += step;
        }
        self.attr.size = self.attr.size.max(offset + data.len() as u64);
        self.attr.blocks = self.blocks()?.len() as u64 * 8;
        Ok(())
    }

    /// Zeros the range from `offset` on. Whole blocks become holes.
    fn clear(&mut self, offset: u64, end: u64) -> Result<()> {
        let blocks = self.blocks()?;
        let touched: Vec<u64> =
            blocks.range(offset / BLOCK..end.div_ceil(BLOCK)).map(|(&at, _)| at).collect();
        for at in touched {
            let (from, to) = (offset.max(at * BLOCK) - at * BLOCK, end.min((at + 1) * BLOCK) - at * BLOCK);
            if to - from == BLOCK {
                blocks.remove(&at);
            } else if let Some(block) = blocks.get_mut(&at) {
                block[from as usize..to as usize].fill(0);
            }
        }
        self.attr.blocks = self.blocks()?.len() as u64 * 8;
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        if size < self.attr.size {
            self.clear(size, self.attr.size.next_multiple_of(BLOCK))?;
        }
        self.attr.size = size;
        Ok(())
    }
}

impl Memory {
    pub fn new() -> Memory {
        let memory = Memory::default();
        {
            let mut state = memory.state.lock();
            let attr = Attr { ino: Ino::ROOT, ..blank(FileKind::Dir, 0o777) };
            let root =
                Node { attr, lookups: 1, trap: Trap::None, xattrs: BTreeMap::new(), body: empty_dir(1) };
            state.nodes.insert(1, root);
            state.next = 1;
        }
        memory
    }

    /// A filesystem that other nodes change too. Locks are decided here, and everything waits.
    pub fn shared() -> Memory {
        Memory { shared: true, fleet_locks: true, far: true, ..Memory::new() }
    }

    /// The same filesystem on another node.
    pub fn another_node(&self) -> Memory {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let (state, locks) = (Arc::clone(&self.state), Arc::clone(&self.locks));
        let node = LAST.fetch_add(1, Ordering::SeqCst) + 1;
        let Memory { shared, fleet_locks, far, .. } = *self;
        Memory { state, locks, node, shared, fleet_locks, far, ..Memory::default() }
    }

    /// A filesystem whose listings say which folders the kernel holds, if that is wanted.
    pub fn that_tells_held(tells_held: bool) -> Memory {
        Memory { tells_held, ..Memory::new() }
    }

    pub fn frozen() -> Memory {
        Memory { frozen: true, ..Memory::new() }
    }

    /// Adds a file behind the kernel's back, as another node of a fleet would.
    pub fn plant(&self, name: &[u8], data: &[u8]) -> Ino {
        let mut state = self.state.lock();
        let caller = Caller::default();
        let body = Body::File(BTreeMap::new());
        let entry = state.make(&caller, Ino::ROOT, Some(name), blank(FileKind::File, 0o644), body).unwrap();
        let node = state.node(entry.attr.ino).unwrap();
        node.lookups = 0;
        node.write(0, data).unwrap();
        entry.attr.ino
    }

    /// Overwrites a file behind the kernel's back.
    pub fn overwrite(&self, ino: Ino, data: &[u8]) {
        self.state.lock().node(ino).unwrap().write(0, data).unwrap();
    }

    /// Replaces the contents of a file behind the kernel's back, as another node would.
    pub fn replace(&self, ino: Ino, data: &[u8]) {
        let mut state = self.state.lock();
        let node = state.node(ino).unwrap();
        node.truncate(0).unwrap();
        node.write(0, data).unwrap();
        stamp(&mut node.attr);
    }

    /// The contents of a file, as another node sees them.
    pub fn contents(&self, ino: Ino) -> Vec<u8> {
        let mut state = self.state.lock();
        let node = state.node(ino).unwrap();
        let mut data = vec![0; node.attr.size as usize];
        node.read(0, &mut data).unwrap();
        data
    }

    /// The locks that are held on all files.
    pub fn held_locks(&self) -> usize {
        let held = |file: &FileLocks<_, _>| {
            [LockStyle::Range, LockStyle::Flock]
                .map(|style| file.of(style).iter().count())
                .iter()
                .sum::<usize>()
        };
        self.locks.lock().values().map(held).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        assert!(!self.far || base::thread::may_wait(), "called on a thread that must not wait");
        self.state.lock()
    }

    /// Works on the locks of one file, and completes what can be granted afterwards.
    fn with_locks<T>(&self, ino: Ino, work: impl FnOnce(&mut FileLocks<(u64, LockOwner), Waiter>) -> T) -> T {
        assert!(!self.far || base::thread::may_wait(), "called on a thread that must not wait");
        let mut all = self.locks.lock();
        let file = all.entry(ino.0).or_default();
        let done = work(file);
        let granted = file.wake();
        if file.is_empty() {
            all.remove(&ino.0);
        }
        drop(all);
        granted.into_iter().for_each(|waiter| (waiter.answer)(Ok(())));
        done
    }

    /// The number of inodes, and how many of them have no name.
    pub fn inodes(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.nodes.len(), state.nodes.values().filter(|node| node.attr.nlink == 0).count())
    }

    pub fn lookups(&self, ino: Ino) -> u64 {
        self.state.lock().nodes.get(&ino.0).map_or(0, |node| node.lookups)
    }

    pub fn stall(&self, stalled: bool) {
        *self.stalled.lock() = stalled;
        self.released.notify_all();
    }

    fn hang(&self) {
        let mut stalled = self.stalled.lock();
        self.hung.fetch_add(1, Ordering::SeqCst);
        while *stalled {
            self.released.wait(&mut stalled);
        }
    }

    fn change(&self) -> MutexGuard<'_, State> {
        if self.stall_changes.load(Ordering::SeqCst) {
            self.hang();
        }
        self.state()
    }
}

impl Filesystem for Memory {
    fn coherence(&self) -> Coherence {
        match (self.frozen, self.shared) {
            (true, _) => Coherence::Frozen,
            (_, true) => Coherence::Shared,
            _ => Coherence::Exclusive,
        }
    }

    fn would_wait(&self, request: Waiting) -> bool {
        match request {
            _ if self.far => true,
            Waiting::Read { ino, .. } => {
                self.state.lock().node(ino).is_ok_and(|node| node.trap == Trap::Stall)
            }
            Waiting::Sync => true,
            Waiting::Write => false,
            Waiting::Lock => false,
            Waiting::Change => self.changes_wait.load(Ordering::SeqCst),
            Waiting::Look => false,
        }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut state = self.state();
        let child = match name {
            b"." => parent,
            _ => state.child(parent, name)?,
        };
        let node = state.node(child)?;
        node.lookups += 1;
        Ok(Entry::of(node.attr))
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state.lock();
        if let Ok(node) = state.node(ino) {
            node.lookups =
                node.lookups.checked_sub(count).expect("the kernel gives back no more than it took");
        }
        state.collect(ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.state().node(ino).map(|node| node.attr)
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut state = self.change();
        let node = state.node(ino)?;
        let time = now().max(Timestamp(node.attr.mtime.0 + i128::from(set.size.is_some())));
        if let Some(size) = set.size {
            node.truncate(size)?;
        }
        let pick = |new: Option<SetTime>, old| match new {
            Some(SetTime::Now) => time,
            Some(SetTime::To(moment)) => moment,
            None => old,
        };
        let attr = &mut node.attr;
        attr.perm = set.perm.unwrap_or(attr.perm);
        if set.kill_suid_sgid {
            attr.perm &= !0o4000;
            if attr.perm & 0o010 != 0 {
                attr.perm &= !0o2000;
            }
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.mtime =
            if set.size.is_some() && set.mtime.is_none() { time } else { pick(set.mtime, attr.mtime) };
        attr.atime = pick(set.atime, attr.atime);
        attr.ctime = set.ctime.unwrap_or(time);
        Ok(*attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.state().node(ino)?.body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry> {
        let attr = Attr { rdev: node.rdev, ..blank(node.kind, node.perm & !node.umask) };
        let body = if node.kind == FileKind::File { Body::File(BTreeMap::new()) } else { Body::Other };
        if name.starts_with(b"trap-race") {
            let mut state = self.state();
            let theirs = (blank(FileKind::File, 0o600), Body::File(BTreeMap::new()));
            let made = state.make(&Caller::default(), parent, Some(name), theirs.0, theirs.1)?;
            let node = state.node(made.attr.ino)?;
            node.lookups = 0;
            node.write(0, b"of another node")?;
        }
        self.change().make(caller, parent, Some(name), attr, body)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry> {
        let attr = blank(FileKind::Dir, perm & !umask);
        self.change().make(caller, parent, Some(name), attr, empty_dir(parent.0))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let attr = Attr { size: target.len() as u64, ..blank(FileKind::Symlink, 0o777) };
        self.change().make(caller, parent, Some(name), attr, Body::Link(target.to_vec()))
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry> {
        let attr = Attr { nlink: 0, ..blank(FileKind::File, perm & !umask) };
        self.change().make(caller, parent, None, attr, Body::File(BTreeMap::new()))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        let mut state = self.change();
        state.name(parent, name, ino)?;
        let node = state.node(ino)?;
        node.attr.nlink += 1;
        node.attr.ctime = now();
        node.lookups += 1;
        Ok(Entry::of(node.attr))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Touched> {
        let mut state = self.change();
        let child = state.child(parent, name)?;
        if state.node(child)?.attr.kind == FileKind::Dir {
            return Err(Errno::EISDIR);
        }
        state.unname(parent, name)?;
        state.drop_name(child);
        Ok(Touched::one(child))
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.change();
        let child = state.child(parent, name)?;
        if !is_empty(&state.node(child)?.body) {
            return Err(Errno::ENOTEMPTY);
        }
        state.unname(parent, name)?;
        state.node(parent)?.attr.nlink -= 1;
        state.drop_name(child);
        Ok(())
    }

    fn rename(&self, parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched> {
        let mut state = self.change();
        let moved = state.child(parent, name)?;
        let there = state.child(to, to_name).ok();
        if there == Some(moved) {
            return Ok(Touched::default());
        }
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Replace, Some(there)) if !is_empty(&state.node(there)?.body) => {
                return Err(Errno::ENOTEMPTY);
            }
            _ => {}
        }
        state.unname(parent, name)?;
        if let Some(there) = there {
            state.unname(to, to_name)?;
            if mode == RenameMode::Exchange {
                state.name(parent, name, there)?;
                state.rehome(there, to, parent)?;
            } else {
                if state.node(there)?.attr.kind == FileKind::Dir {
                    state.node(to)?.attr.nlink -= 1;
                }
                state.drop_name(there);
            }
        }
        state.name(to, to_name, moved)?;
        state.rehome(moved, parent, to)?;
        Ok(Touched([Some(moved), there]))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let trap = self.state().node(ino)?.trap;
        match trap {
            Trap::Panic => panic!("fell into the trap"),
            Trap::Stall => self.hang(),
            Trap::None => {}
        }
        self.state().node(ino)?.read(offset, buf)
    }

    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        unprivileged: Option<&Caller>,
        cached: bool,
    ) -> Result<bool> {
        let mut state = self.state();
        let node = state.node(ino)?;
        node.write(offset, data)?;
        let before = node.attr.perm;
        if unprivileged.is_some() {
            node.attr.perm &= !0o6000;
        }
        let changed = node.attr.perm != before;
        if !cached || self.shared {
            stamp(&mut node.attr);
        }
        Ok(changed)
    }

    fn append(&self, ino: Ino, data: &[u8], unprivileged: Option<&Caller>) -> Result<bool> {
        let mut state = self.state();
        let node = state.node(ino)?;
        node.write(node.attr.size, data)?;
        if unprivileged.is_some() {
            node.attr.perm &= !0o6000;
        }
        stamp(&mut node.attr);
        Ok(false)
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let mut state = self.change();
        let node = state.node(ino)?;
        let end = offset + len;
        match how {
            Allocate::PunchHole => node.clear(offset, end)?,
            Allocate::Zero { .. } => node.clear(offset, end)?,
            Allocate::Reserve { .. } => {}
        }
        if matches!(how, Allocate::Reserve { keep_size: false } | Allocate::Zero { keep_size: false }) {
            node.attr.size = node.attr.size.max(end);
        }
        Ok(())
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let mut state = self.state();
        let node = state.node(ino)?;
        let size = node.attr.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let blocks = node.blocks()?;
        match what {
            Seek::Data => {
                let (&at, _) = blocks.range(offset / BLOCK..).next().ok_or(Errno::ENXIO)?;
                Ok((at * BLOCK).max(offset))
            }
            Seek::Hole => {
                let hole = (offset / BLOCK..).find(|at| !blocks.contains_key(at)).unwrap_or(u64::MAX / BLOCK);
                Ok((hole * BLOCK).max(offset).min(size))
            }
        }
    }

    fn copy_range(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> {
        let mut state = self.change();
        let mut data = vec![0; len.min(1 << 26) as usize];
        let count = state.node(from)?.read(from_offset, &mut data)?;
        state.node(to)?.write(to_offset, &data[..count])?;
        Ok(count as u64)
    }

    fn fsync(&self, _: Ino, _: bool) -> Result<()> {
        self.hang();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        for (name, child, next) in self.list(ino, position)? {
            let kind = self.getattr(child).map_or(FileKind::File, |attr| attr.kind);
            if each(DirEntry { name: &name, ino: child, kind, next }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<()> {
        for (name, child, next) in self.list(ino, position)? {
            let Ok(attr) = self.getattr(child) else { continue };
            let line = DirEntry { name: &name, ino: child, kind: attr.kind, next };
            let dots = matches!(&name[..], b"." | b"..");
            let held = self.tells_held && attr.kind == FileKind::Dir && self.lookups(child) > 0;
            let found = Entry { held, ..Entry::of(attr) };
            if each(line, (!dots).then_some(&found)).is_break() {
                break;
            }
            if !dots {
                self.state().node(child)?.lookups += 1;
            }
        }
        Ok(())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.state().node(ino)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, _: bool) -> Result<()> {
        let mut state = self.change();
        let xattrs = &mut state.node(ino)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(Errno::EEXIST),
            (XattrMode::Replace, false) => Err(Errno::ENODATA),
            _ => {
                xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut state = self.state();
        let names = state.node(ino)?.xattrs.keys();
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change().node(ino)?.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA)
    }

    fn statfs(&self, _: Ino) -> api::Result<StatFs> {
        Ok(StatFs { total: 1 << 30, free: 1 << 29, available: 1 << 28, inodes: 7, inodes_free: 93 })
    }

    fn locks(&self) -> Locks {
        if self.fleet_locks { Locks::Fleet } else { Locks::Local }
    }

    fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>> {
        let wanted = lock.owned_by((self.node, lock.owner));
        let held = self.with_locks(ino, |file| file.of(lock.style).conflict(&wanted).copied());
        Ok(held.map(|held| {
            let pid = if held.owner.0 == self.node { held.pid } else { 0 };
            Lock { pid, ..held.owned_by(held.owner.1) }
        }))
    }

    fn set_lock(&self, ino: Ino, lock: &Lock) -> Result<()> {
        self.with_locks(ino, |file| file.set(&lock.owned_by((self.node, lock.owner))))
    }

    fn wait_lock(&self, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        let waiter = Waiter { node: self.node, wait, answer };
        let wanted = lock.owned_by((self.node, lock.owner));
        if let Some(waiter) = self.with_locks(ino, |file| file.wait(&wanted, waiter)) {
            (waiter.answer)(Ok(()));
        }
    }

    fn cancel_lock(&self, wait: LockWait) {
        let is_it = |waiter: &Waiter| waiter.node == self.node && waiter.wait == wait;
        let cancelled = self.locks.lock().values_mut().find_map(|file| file.cancel(is_it));
        if let Some(waiter) = cancelled {
            (waiter.answer)(Err(Errno::EINTR));
        }
    }

    fn release_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<()> {
        self.with_locks(ino, |file| file.release(style, |held| held == (self.node, owner)));
        Ok(())
    }

    fn unmounted(&self) {
        self.unmounts.fetch_add(1, Ordering::SeqCst);
        let files: Vec<u64> = self.locks.lock().keys().copied().collect();
        for ino in files {
            for style in [LockStyle::Range, LockStyle::Flock] {
                self.with_locks(Ino(ino), |file| file.release(style, |held| held.0 == self.node));
            }
        }
        if self.shared {
            return;
        }
        for node in self.state().nodes.values_mut() {
            node.lookups = 0;
        }
    }
}

impl State {
    /// A directory that moved counts as a name of its new parent.
    fn rehome(&mut self, moved: Ino, from: Ino, to: Ino) -> Result<()> {
        let node = self.node(moved)?;
        node.attr.ctime = now();
        let Body::Dir { parent, .. } = &mut node.body else {
            return Ok(());
        };
        *parent = to.0;
        self.node(from)?.attr.nlink -= 1;
        self.node(to)?.attr.nlink += 1;
        Ok(())
    }
}

impl Memory {
    /// At most 500 entries from `position` on: name, inode, and the position after it.
    fn list(&self, ino: Ino, position: u64) -> Result<Vec<(Vec<u8>, Ino, u64)>> {
        let mut state = self.state();
        let Body::Dir { names, order, parent, .. } = &state.node(ino)?.body else {
            return Err(Errno::ENOTDIR);
        };
        let dots = [(b".".to_vec(), ino, 1), (b"..".to_vec(), Ino(*parent), 2)];
        let dots = dots.into_iter().filter(|&(_, _, next)| next > position);
        let rest = order.range(position + 1..).map(|(&at, name)| (name.clone(), Ino(names[name].0), at));
        Ok(dots.chain(rest).take(500).collect())
    }
}
