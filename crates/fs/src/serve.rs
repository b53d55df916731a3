//! The volume as a transport sees it. Read-only mounts refuse changes here. An internal error becomes an
//! error number here and, where a person should know of it, one line in the log.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use blob::BlobError;
use blob::completion::{Arrival, Missed};
use meta::store::StoreError;

use crate::api::{
    Allocate, Answer, Attr, Caller, Coherence, DirEntry, Entry, Filesystem, Leases, Lock, LockAnswer,
    LockOwner, LockStyle, LockWait, Locks, NewNode, Part, Positions, ReadPlan, RenameMode, Result, Seek,
    SetAttr, Start, StatFs, Touched, Waiting, XattrMode,
};
use crate::errno::{Errno, Error};
use crate::ops::write::How;
use crate::volume::{Core, Volume};
use crate::why;

impl Core {
    /// The error number for a program. Damage and failures are counted, and the reason goes to the caller if
    /// it asks for it, otherwise to the log.
    pub(crate) fn answer(&self, what: &str, ino: Ino, error: Error) -> Errno {
        let errno = Errno::from(&error);
        let worth_a_line = match &error {
            Error::Store(StoreError::Full | StoreError::NoSpace(_) | StoreError::Waits)
            | Error::Blob(BlobError::Full)
            | Error::Errno(_) => false,
            // The component that refused has reported it itself, once for all reads.
            Error::Blob(BlobError::Refused(_)) => false,
            Error::Refused(refusal) => errno == Errno::EIO && *refusal == meta::plan::Refusal::Damaged,
            Error::Store(_) | Error::Blob(_) => true,
        };
        if errno == Errno::EIO {
            self.counters.io_errors.add(1);
        }
        if !why::give(&error) && worth_a_line && self.reported.count() {
            self.report(&format!("{what} of {ino:?} failed: {error}"));
        }
        errno
    }

    fn may_change(&self) -> Result<()> {
        if self.is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }
}

impl Volume {
    fn ask<T>(&self, what: &str, ino: Ino, done: std::result::Result<T, Error>) -> Result<T> {
        done.map_err(|error| self.core.answer(what, ino, error))
    }

    fn change<T>(
        &self,
        what: &str,
        ino: Ino,
        work: impl FnOnce(&Core) -> std::result::Result<T, Error>,
    ) -> Result<T> {
        self.core.may_change()?;
        self.ask(what, ino, work(&self.core))
    }
}

impl Filesystem for Volume {
    fn coherence(&self) -> Coherence {
        match &self.core.options {
            options if options.frozen => Coherence::Frozen,
            options if options.shared.is_some() => Coherence::Shared,
            _ => Coherence::Exclusive,
        }
    }

    fn would_wait(&self, request: Waiting) -> bool {
        self.core.would_wait(request)
    }

    fn is_at_hand(&self, parts: &[Part<'_>], change: bool) -> bool {
        self.core.options.shared.is_some() && parts.iter().all(|part| self.core.is_part_here(part, change))
    }

    fn leases(&self) -> Option<Arc<Leases>> {
        self.core.options.shared.as_ref()?.leases.clone()
    }

    fn plan_read(&self, ino: Ino, offset: u64, len: u32) -> ReadPlan {
        self.core.plan_read(ino, offset, len)
    }

    fn read_planned(&self, plan: &ReadPlan, buf: &mut [u8]) -> Result<usize> {
        self.ask("read", plan.ino, self.core.read_planned(plan, buf))
    }

    fn start_read(&self, plan: &ReadPlan, answer: Answer) -> Start {
        let (core, ino) = (Arc::clone(&self.core), plan.ino);
        let completion = move |arrival: Arrival<'_>| match arrival {
            Ok(bytes) => {
                let used = answer(Ok(bytes));
                if used {
                    core.counters.from_blobs.add(bytes.len());
                }
                used
            }
            Err(Missed::Read) => answer(Err(None)),
            Err(Missed::Failed(error)) => answer(Err(Some(core.answer("read", ino, error.into())))),
        };
        self.core.start_read(plan, Box::new(completion))
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.ask("lookup", parent, self.core.lookup(parent, name))
    }

    fn hold_again(&self, ino: Ino) -> Result<()> {
        self.ask("lookup", ino, self.core.hold_again(ino))
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.core.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.ask("getattr", ino, self.core.getattr(ino))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change("setattr", ino, |core| core.setattr(caller, ino, set))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.ask("readlink", ino, self.core.readlink(ino))
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry> {
        self.change("mknod", parent, |core| core.mknod(caller, parent, name, node))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry> {
        self.change("mkdir", parent, |core| core.mkdir(caller, parent, name, perm, umask))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.change("symlink", parent, |core| core.symlink(caller, parent, name, target))
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry> {
        self.change("tmpfile", parent, |core| core.tmpfile(caller, parent, perm, umask))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.change("link", ino, |core| core.link(ino, parent, name))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Touched> {
        let done = self.change("unlink", parent, |core| core.unlink(parent, name));
        self.core.reaper.hold_back();
        done
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.change("rmdir", parent, |core| core.rmdir(parent, name))
    }

    fn rename(&self, parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched> {
        self.change("rename", parent, |core| core.rename(parent, name, to, to_name, mode))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.ask("read", ino, self.core.read(ino, offset, buf))
    }

    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        unprivileged: Option<&Caller>,
        cached: bool,
    ) -> Result<bool> {
        // The kernel of a shared mount keeps no size and no times.
        let cached = cached && !self.core.is_shared();
        let how = How { unprivileged: unprivileged.copied(), cached };
        let done = self.change("write", ino, |core| core.write(ino, offset, data, how));
        done.map_err(|errno| match errno {
            // Of the errors that the kernel keeps for close(2), it tells only this one from EIO.
            Errno::EDQUOT if cached => Errno::ENOSPC,
            errno => errno,
        })
    }

    fn append(&self, ino: Ino, data: &[u8], unprivileged: Option<&Caller>) -> Result<bool> {
        let how = How { unprivileged: unprivileged.copied(), cached: false };
        self.change("write", ino, |core| core.append(ino, data, how))
    }

    fn drop_privileges(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        self.change("write", ino, |core| core.drop_privileges(*caller, ino))
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.change("allocate", ino, |core| core.allocate(ino, offset, len, how))
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.ask("seek", ino, self.core.seek(ino, offset, what))
    }

    fn copy_range(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> {
        self.change("copy", from, |core| core.copy_range(from, from_offset, to, to_offset, len))
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        self.ask("fsync", ino, self.core.fsync(ino))
    }

    fn sync(&self) -> Result<()> {
        self.ask("sync", Ino::ROOT, self.core.sync())
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
        self.ask("readdir", ino, self.core.readdir(ino, position, each))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.ask("readdir", ino, self.core.readdir_plus(ino, position, each))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.ask("getxattr", ino, self.core.getxattr(ino, name))
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()> {
        self.change("setxattr", ino, |core| core.setxattr(ino, name, value, mode, kill_sgid))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.ask("listxattr", ino, self.core.listxattr(ino))
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change("removexattr", ino, |core| core.removexattr(ino, name))
    }

    fn statfs(&self, ino: Ino) -> Result<StatFs> {
        self.ask("statfs", ino, self.core.statfs(ino))
    }

    fn locks(&self) -> Locks {
        let own = if self.core.own_locks.is_some() { Locks::Fleet } else { Locks::Local };
        self.core.options.shared.as_ref().map_or(own, |sharing| sharing.locks)
    }

    fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>> {
        match &self.core.own_locks {
            Some(locks) => Ok(locks.test(ino, lock)),
            None => self.ask("lock", ino, self.core.test_lock(ino, lock)),
        }
    }

    fn set_lock(&self, ino: Ino, lock: &Lock) -> Result<()> {
        match &self.core.own_locks {
            Some(locks) => locks.set(ino, lock),
            None => self.ask("lock", ino, self.core.set_lock(ino, lock)),
        }
    }

    fn wait_lock(&self, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        match &self.core.own_locks {
            Some(locks) => locks.wait(ino, lock, wait, answer),
            None => self.core.wait_lock(ino, lock, wait, answer),
        }
    }

    fn cancel_lock(&self, wait: LockWait) {
        match &self.core.own_locks {
            Some(locks) => locks.cancel(wait),
            None => self.core.fleet_locks.queue.cancel(wait),
        }
    }

    fn release_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<()> {
        match &self.core.own_locks {
            Some(locks) => {
                locks.release(ino, owner, style);
                Ok(())
            }
            None => self.ask("lock", ino, self.core.release_locks(ino, owner, style)),
        }
    }

    fn lock_session(&self) -> Option<u64> {
        self.core.lock_session()
    }

    fn has_lost_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<bool> {
        self.core.has_lost_locks(ino, owner, style)
    }

    fn unmounted(&self) {
        self.core.release_all_locks();
        self.core.let_all_go();
    }
}
