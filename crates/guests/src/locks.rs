//! The locks of one guest, in a filesystem that all guests lock.
//!
//! ```text
//!   guest 1: owner 1 ──► 17 ┐
//!   guest 2: owner 1 ──► 18 ├──► Filesystem: one table for all guests
//!   guest 1: owner 2 ──► 19 ┘
//! ```
//!
//! Each guest's kernel numbers its owners and its waiting requests from 1 on. The filesystem sees numbers
//! that no two guests have in common. What a guest holds is known here, so that it ends with the guest: a
//! call that is under way when the guest or its owner ends undoes itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Ino;
use fs::Errno;
use fs::api::{Filesystem, Lock, LockAnswer, LockOwner, LockStyle, LockWait, Result, Waiting};
use parking_lot::Mutex;

/// The most pairs of an owner and a file of one guest. A further one gets ENOLCK.
pub const OWNERS_MOST: usize = 4096;

/// Numbers for the owners and waiting requests of all guests of a server.
#[derive(Debug, Default)]
pub struct Numbers(AtomicU64);

impl Numbers {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

type Key = (Ino, LockOwner, LockStyle);

#[derive(Default)]
struct State {
    /// The owners that may hold locks, and their numbers in the filesystem.
    owners: HashMap<Key, LockOwner>,
    /// The requests that wait.
    waits: HashMap<LockWait, LockWait>,
    gone: bool,
}

/// See the [module](self).
pub struct GuestLocks {
    fs: Arc<dyn Filesystem>,
    numbers: Arc<Numbers>,
    state: Arc<Mutex<State>>,
}

impl GuestLocks {
    /// A guest without locks.
    pub fn new(fs: Arc<dyn Filesystem>, numbers: Arc<Numbers>) -> GuestLocks {
        GuestLocks { fs, numbers, state: Arc::default() }
    }

    /// The owner's number in the filesystem, which may hold locks from now on.
    fn owner(&self, ino: Ino, lock: &Lock) -> Result<LockOwner> {
        let mut state = self.state.lock();
        if state.gone {
            return Err(Errno::EIO);
        }
        let key = (ino, lock.owner, lock.style);
        if let Some(owner) = state.owners.get(&key) {
            return Ok(*owner);
        }
        if state.owners.len() >= OWNERS_MOST {
            return Err(Errno::ENOLCK);
        }
        let owner = LockOwner(self.numbers.next());
        state.owners.insert(key, owner);
        Ok(owner)
    }

    /// A call on an owner's locks is over. If the owner or the guest has ended meanwhile, it must hold
    /// nothing.
    fn called(&self, ino: Ino, lock: &Lock, owner: LockOwner) -> Result<()> {
        let (gone, has) = {
            let state = self.state.lock();
            (state.gone, state.owners.get(&(ino, lock.owner, lock.style)) == Some(&owner))
        };
        if !has {
            let _ = self.fs.release_locks(ino, owner, lock.style);
        }
        if gone { Err(Errno::EIO) } else { Ok(()) }
    }

    /// As [`Filesystem::has_lost_locks`].
    ///
    /// # Errors
    /// As there.
    pub fn has_lost(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<bool> {
        let known = self.state.lock().owners.get(&(ino, owner, style)).copied();
        known.map_or(Ok(false), |owner| self.fs.has_lost_locks(ino, owner, style))
    }

    /// As [`Filesystem::test_lock`]. Processes of other guests have no number here.
    ///
    /// # Errors
    /// As there.
    pub fn test(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>> {
        let key = (ino, lock.owner, lock.style);
        let owner = self.state.lock().owners.get(&key).copied().unwrap_or(LockOwner::NOBODY);
        let found = self.fs.test_lock(ino, &lock.owned_by(owner))?;
        Ok(found.map(|held| {
            let mine = self.state.lock().owners.values().any(|owner| *owner == held.owner);
            Lock { pid: if mine { held.pid } else { 0 }, ..held }
        }))
    }

    /// As [`Filesystem::set_lock`].
    ///
    /// # Errors
    /// As there; `ENOLCK` if the guest has too many owners of locks.
    pub fn set(&self, ino: Ino, lock: &Lock) -> Result<()> {
        let owner = self.owner(ino, lock)?;
        let done = self.fs.set_lock(ino, &lock.owned_by(owner));
        self.called(ino, lock, owner).and(done)
    }

    /// As [`Filesystem::wait_lock`].
    pub fn wait(&self, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        let owner = match self.owner(ino, lock) {
            Ok(owner) => owner,
            Err(error) => return answer(Err(error)),
        };
        let number = LockWait(self.numbers.next());
        self.state.lock().waits.insert(wait, number);
        let state = Arc::clone(&self.state);
        let answer = move |result| {
            state.lock().waits.remove(&wait);
            answer(result);
        };
        self.fs.wait_lock(ino, &lock.owned_by(owner), number, Box::new(answer));
        // It releases the lock, and withdraws the request.
        let _ = self.called(ino, lock, owner);
    }

    /// As [`Filesystem::cancel_lock`].
    pub fn cancel(&self, wait: LockWait) {
        let number = self.state.lock().waits.get(&wait).copied();
        number.into_iter().for_each(|number| self.fs.cancel_lock(number));
    }

    /// As [`Filesystem::release_locks`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<()> {
        let number = self.state.lock().owners.remove(&(ino, owner, style));
        number.map_or(Ok(()), |number| self.fs.release_locks(ino, number, style))
    }

    /// The guest is gone: so are its locks, and the requests that wait for one.
    pub fn end(&self) {
        let owners = {
            let mut state = self.state.lock();
            state.gone = true;
            std::mem::take(&mut state.owners)
        };
        if owners.is_empty() {
            return;
        }
        let fs = Arc::clone(&self.fs);
        let release = move || {
            for ((ino, _, style), owner) in owners {
                // What cannot be released now is released by the filesystem as soon as it can.
                let _ = fs.release_locks(ino, owner, style);
            }
        };
        // A database may be slow, and other guests are looked after by this thread.
        if !self.fs.would_wait(Waiting::Lock) {
            return release();
        }
        let release = Arc::new(Mutex::new(Some(release)));
        let mine = Arc::clone(&release);
        let run = move || mine.lock().take().into_iter().for_each(|release| release());
        if base::thread::spawn("guest-unlock", run).is_err() {
            release.lock().take().into_iter().for_each(|release| release());
        }
    }

    /// How many owners may hold locks.
    pub fn owners(&self) -> usize {
        self.state.lock().owners.len()
    }
}

#[cfg(test)]
mod tests;
