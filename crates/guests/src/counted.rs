//! One guest's view of the filesystem: it counts what the guest holds, and enforces what was promised.
//!
//! Several guests share one filesystem, and each can vanish. So each has its own count of references
//! ([`Counted`]). Below it, the filesystem sees at most one reference per inode and guest. A guest that
//! forgets more than it holds takes nothing from others. When the guest is gone, its references are given
//! back.
//!
//! A guest that may not write is refused here too. Its own kernel refuses first, but a guest may lie.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use fs::Errno;
use fs::api::{
    Allocate, Answer, Attr, Caller, Coherence, DirEntry, Entry, FileKind, Filesystem, Lock, LockAnswer,
    LockOwner, LockStyle, LockWait, Locks, NewNode, Positions, ReadPlan, RenameMode, Result, Seek, SetAttr,
    Start, StatFs, Touched, Waiting, XattrMode,
};
use parking_lot::Mutex;
use stream::hello::Sharing;

use crate::locks::{GuestLocks, Numbers};

/// The number of locks for appending. Files that share one wait for each other now and then.
const APPENDERS: usize = 64;

/// Appends by all guests of a server, one at a time for each file.
pub struct Appending([Mutex<()>; APPENDERS]);

impl Default for Appending {
    fn default() -> Appending {
        Appending(std::array::from_fn(|_| Mutex::new(())))
    }
}

/// See the [module](self).
pub struct Counted {
    inner: Arc<dyn Filesystem>,
    sharing: Sharing,
    read_only: bool,
    appending: Arc<Appending>,
    held: Mutex<HashMap<Ino, u64>>,
    /// `None`: the guest's kernel decides locks alone.
    locks: Option<GuestLocks>,
}

impl Counted {
    /// A view that holds nothing yet.
    pub fn new(
        inner: Arc<dyn Filesystem>,
        sharing: Sharing,
        read_only: bool,
        appending: Arc<Appending>,
    ) -> Counted {
        Counted { inner, sharing, read_only, appending, held: Mutex::default(), locks: None }
    }

    /// Adds locks that all guests of a server respect.
    pub fn with_locks(mut self, numbers: Arc<Numbers>) -> Counted {
        self.locks = Some(GuestLocks::new(Arc::clone(&self.inner), numbers));
        self
    }

    fn locking(&self) -> Result<&GuestLocks> {
        self.locks.as_ref().ok_or(Errno::ENOSYS)
    }

    /// The guest's kernel was given a reference. The filesystem has counted it too.
    fn took(&self, ino: Ino) {
        let mut held = self.held.lock();
        match held.entry(ino) {
            Place::Occupied(mut count) => {
                *count.get_mut() += 1;
                self.inner.forget(ino, 1);
            }
            Place::Vacant(count) => {
                count.insert(1);
            }
        }
    }

    fn entry(&self, found: Result<Entry>) -> Result<Entry> {
        if let Ok(entry) = &found {
            self.took(entry.node);
        }
        found
    }

    /// The guest's kernel holds an inode from before. Returns false if the inode is gone.
    pub fn hold(&self, ino: Ino, count: u64) -> bool {
        if count == 0 || self.inner.hold_again(ino).is_err() {
            return false;
        }
        let before = self.held.lock().insert(ino, count);
        if before.is_some() {
            self.inner.forget(ino, 1);
        }
        true
    }

    /// The guest is gone.
    pub fn release(&self) {
        self.locks.iter().for_each(GuestLocks::end);
        let held = std::mem::take(&mut *self.held.lock());
        held.into_keys().for_each(|ino| self.inner.forget(ino, 1));
    }

    /// The server ends, and the guest goes on: it will hold the same in the next run. So nothing of it is
    /// given back, or files without a name would be deleted.
    pub fn leave_held(&self) {
        self.locks.iter().for_each(GuestLocks::end);
        self.held.lock().clear();
    }

    /// How many inodes the guest holds.
    pub fn held(&self) -> usize {
        self.held.lock().len()
    }

    fn may_change(&self) -> Result<()> {
        if self.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }
}

impl Drop for Counted {
    /// A request that was still being served when the guest went may have taken more.
    fn drop(&mut self) {
        self.release();
    }
}

impl Filesystem for Counted {
    fn coherence(&self) -> Coherence {
        match self.sharing {
            Sharing::Frozen => Coherence::Frozen,
            Sharing::One => Coherence::Exclusive,
            Sharing::Many => Coherence::Shared,
        }
    }

    fn would_wait(&self, request: Waiting) -> bool {
        self.inner.would_wait(request)
    }

    fn plan_read(&self, ino: Ino, offset: u64, len: u32) -> ReadPlan {
        self.inner.plan_read(ino, offset, len)
    }

    fn read_planned(&self, plan: &ReadPlan, buf: &mut [u8]) -> Result<usize> {
        self.inner.read_planned(plan, buf)
    }

    fn start_read(&self, plan: &ReadPlan, answer: Answer) -> Start {
        self.inner.start_read(plan, answer)
    }

    fn fleeting(&self) -> bool {
        self.inner.fleeting()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.entry(self.inner.lookup(parent, name))
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut held = self.held.lock();
        if let Place::Occupied(mut has) = held.entry(ino) {
            let left = has.get().saturating_sub(count);
            if left > 0 {
                *has.get_mut() = left;
            } else {
                has.remove();
                self.inner.forget(ino, 1);
            }
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.inner.getattr(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.may_change()?;
        self.inner.setattr(caller, ino, set)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(ino)
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry> {
        self.may_change()?;
        self.entry(self.inner.mknod(caller, parent, name, node))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry> {
        self.may_change()?;
        self.entry(self.inner.mkdir(caller, parent, name, perm, umask))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.may_change()?;
        self.entry(self.inner.symlink(caller, parent, name, target))
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry> {
        self.may_change()?;
        self.entry(self.inner.tmpfile(caller, parent, perm, umask))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.may_change()?;
        self.entry(self.inner.link(ino, parent, name))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Touched> {
        self.may_change()?;
        self.inner.unlink(parent, name)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.may_change()?;
        self.inner.rmdir(parent, name)
    }

    fn rename(&self, parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched> {
        self.may_change()?;
        self.inner.rename(parent, name, to, to_name, mode)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.inner.read(ino, offset, buf)
    }

    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        unprivileged: Option<&Caller>,
        cached: bool,
    ) -> Result<bool> {
        self.may_change()?;
        self.inner.write(ino, offset, data, unprivileged, cached)
    }

    fn append(&self, ino: Ino, data: &[u8], unprivileged: Option<&Caller>) -> Result<bool> {
        self.may_change()?;
        // Many filesystems find the end and write in two steps, because one kernel orders appends for them.
        let _turn = self.appending.0[(ino.0 % APPENDERS as u64) as usize].lock();
        self.inner.append(ino, data, unprivileged)
    }

    fn drop_privileges(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        self.may_change()?;
        self.inner.drop_privileges(caller, ino)
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.may_change()?;
        self.inner.allocate(ino, offset, len, how)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.inner.seek(ino, offset, what)
    }

    fn copy_range(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> {
        self.may_change()?;
        self.inner.copy_range(from, from_offset, to, to_offset, len)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.inner.fsync(ino, data_only)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn positions(&self) -> Positions {
        self.inner.positions()
    }

    fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.readdir(ino, position, each)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut taken = Vec::new();
        let listed = self.inner.readdir_plus(ino, position, &mut |line, found| {
            let dots = line.name == b"." || line.name == b"..";
            // What others hold is not what this guest's kernel holds.
            let is_held = |node| line.kind == FileKind::Dir && self.held.lock().contains_key(&node);
            let found = found.map(|found| Entry { held: is_held(found.node), ..*found });
            let flow = each(line, found.as_ref());
            if let (ControlFlow::Continue(()), Some(found), false) = (flow, found, dots) {
                taken.push(found.node);
            }
            flow
        });
        taken.into_iter().for_each(|node| self.took(node));
        listed
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.getxattr(ino, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()> {
        self.may_change()?;
        self.inner.setxattr(ino, name, value, mode, kill_sgid)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.listxattr(ino)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.may_change()?;
        self.inner.removexattr(ino, name)
    }

    fn statfs(&self, ino: Ino) -> Result<StatFs> {
        self.inner.statfs(ino)
    }

    fn locks(&self) -> Locks {
        if self.locks.is_some() { Locks::Fleet } else { Locks::Local }
    }

    fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>> {
        self.locking()?.test(ino, lock)
    }

    fn set_lock(&self, ino: Ino, lock: &Lock) -> Result<()> {
        self.locking()?.set(ino, lock)
    }

    fn wait_lock(&self, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        match self.locking() {
            Ok(locks) => locks.wait(ino, lock, wait, answer),
            Err(error) => answer(Err(error)),
        }
    }

    fn cancel_lock(&self, wait: LockWait) {
        self.locks.iter().for_each(|locks| locks.cancel(wait));
    }

    fn release_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<()> {
        self.locking()?.release(ino, owner, style)
    }

    fn lock_session(&self) -> Option<u64> {
        self.locks.as_ref().and_then(|_| self.inner.lock_session())
    }

    fn has_lost_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<bool> {
        self.locks.as_ref().map_or(Ok(false), |locks| locks.has_lost(ino, owner, style))
    }
}

#[cfg(test)]
mod tests;
