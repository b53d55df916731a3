//! Locks of guests on the files of this machine, so that its own programs respect them and are respected.
//!
//! ```text
//!   owner and file ─► an open file of its own ─► F_OFD_SETLK, flock(2)
//! ```
//!
//! An OFD lock and a flock belong to an open file. So each owner has an open file of its own for each file
//! that it locks, which is closed when the owner ends. The kernel decides what excludes what, also with POSIX
//! locks of this machine's programs, and with other machines if the folder is on a network filesystem.
//!
//! Files that are open for locks have a bound. Beyond it, a lock of an owner that has none of this file
//! fails with ENOLCK.
//!
//! **Requests that wait** hold no thread: one thread tries them again, at once when an owner here releases
//! something on the file, and else after 5 ms, then twice as long each time, up to 250 ms.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use base::Ino;
use fs::Errno;
use fs::api::{Lock, LockAnswer, LockKind, LockOwner, LockRange, LockStyle, LockWait, Result};
use fs::locks::row::LOCKS_MAX;
use parking_lot::{Condvar, Mutex};
use rustix::fs::OFlags;

use crate::nodes::Node;
use crate::pins::share;
use crate::reopen;

mod calls;

/// How soon a request is tried again, at first and at last.
const FIRST: Duration = Duration::from_millis(5);
const LAST: Duration = Duration::from_millis(250);

type Key = (Ino, LockOwner, LockStyle);

/// The open file of an owner.
struct Owner {
    fd: OwnedFd,
    state: Mutex<OwnerState>,
}

#[derive(Default)]
struct OwnerState {
    /// Whether the owner has ended: nothing may be locked any more.
    gone: bool,
    /// Calls since its locks were counted.
    calls: usize,
}

impl Owner {
    /// Opens a file for an owner's locks. Linux asks for a file that can be written to only if a range is to
    /// be locked exclusively.
    fn open(node: &Node, lock: &Lock) -> Result<Owner> {
        let inode = node.fd()?;
        let read = || reopen(&inode, OFlags::RDONLY | OFlags::NONBLOCK);
        let fd = match lock.style {
            LockStyle::Flock => read(),
            LockStyle::Range => reopen(&inode, OFlags::RDWR | OFlags::NONBLOCK).or_else(|_| read()),
        };
        Ok(Owner { fd: fd?, state: Mutex::default() })
    }

    /// Takes or releases a lock, without waiting for others.
    fn set(&self, lock: &Lock) -> Result<()> {
        let mut state = self.state.lock();
        if state.gone {
            return Err(Errno::EIO);
        }
        if lock.style == LockStyle::Flock {
            return calls::flock(&self.fd, lock.kind);
        }
        // Each call adds two locks at most: it divides one.
        state.calls += 1;
        if state.calls > LOCKS_MAX / 2 {
            state.calls = calls::count(&self.fd).div_ceil(2);
            let ends_all = lock.kind == LockKind::Unlock && lock.range == LockRange::ALL;
            if state.calls >= LOCKS_MAX / 2 && !ends_all {
                return Err(Errno::ENOLCK);
            }
        }
        calls::range(&self.fd, lock)
    }

    /// Releases everything, for ever.
    fn end(&self, style: LockStyle) {
        let mut state = self.state.lock();
        state.gone = true;
        // Another thread may keep the file open for a moment, and so may a process that was just forked.
        let (owner, range, kind) = (LockOwner::NOBODY, LockRange::ALL, LockKind::Unlock);
        let _ = match style {
            LockStyle::Flock => calls::flock(&self.fd, kind),
            LockStyle::Range => calls::range(&self.fd, &Lock { owner, style, range, kind, pid: 0 }),
        };
    }
}

struct Waiter {
    ino: Ino,
    owner: Arc<Owner>,
    lock: Lock,
    wait: LockWait,
    answer: LockAnswer,
    /// The thread is trying it.
    tried: bool,
    /// Whether the request was withdrawn meanwhile. That counts only if it is not granted.
    cancelled: bool,
}

#[derive(Default)]
struct State {
    owners: HashMap<Key, Arc<Owner>>,
    /// In the order in which they came.
    waiters: Vec<Waiter>,
    /// The thread runs.
    thread: bool,
    /// Something was released, or a request came: the thread looks now.
    hurry: bool,
    stopped: bool,
}

impl State {
    /// Removes requests that the thread is not trying. The others are withdrawn if they are not granted.
    fn withdraw(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Vec<LockAnswer> {
        self.waiters.iter_mut().filter(|waiter| is_it(waiter)).for_each(|waiter| waiter.cancelled = true);
        let over = self.waiters.extract_if(.., |waiter| waiter.cancelled && !waiter.tried);
        over.map(|waiter| waiter.answer).collect()
    }
}

/// All locks that are held and waited for. No lock of this program is held during a system call, except that
/// of the owner. No answer is called while one is held.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Locks(Arc<Shared>);

impl Locks {
    fn owner(&self, ino: Ino, node: &Node, lock: &Lock) -> Result<Arc<Owner>> {
        let key = (ino, lock.owner, lock.style);
        if let Some(owner) = self.0.state.lock().owners.get(&key) {
            return Ok(Arc::clone(owner));
        }
        // Two calls of one owner may both open it. The second file is closed again, without locks.
        let new = Arc::new(Owner::open(node, lock)?);
        let mut state = self.0.state.lock();
        if !state.owners.contains_key(&key) && state.owners.len() >= share() {
            return Err(Errno::ENOLCK);
        }
        Ok(Arc::clone(state.owners.entry(key).or_insert(new)))
    }

    pub(crate) fn test(&self, ino: Ino, node: &Node, lock: &Lock) -> Result<Option<Lock>> {
        // There is no such question about a flock.
        if lock.style == LockStyle::Flock {
            return Err(Errno::EINVAL);
        }
        let known = self.0.state.lock().owners.get(&(ino, lock.owner, lock.style)).cloned();
        let owner = known.map_or_else(|| Owner::open(node, lock).map(Arc::new), Ok)?;
        calls::test(&owner.fd, lock)
    }

    pub(crate) fn set(&self, ino: Ino, node: &Node, lock: &Lock) -> Result<()> {
        let done = self.owner(ino, node, lock)?.set(lock);
        // A flock that is not granted may have given up what its owner held.
        if lock.kind != LockKind::Write || done.is_err() {
            self.0.hurry();
        }
        done
    }

    pub(crate) fn wait(&self, ino: Ino, node: &Node, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        let owner = match self.owner(ino, node, lock) {
            Ok(owner) => owner,
            Err(error) => return answer(Err(error)),
        };
        let done = owner.set(lock);
        if done != Err(Errno::EAGAIN) {
            return answer(done);
        }
        let mut state = self.0.state.lock();
        if !state.thread {
            let shared = Arc::clone(&self.0);
            state.thread = base::thread::spawn("folder-locks", move || shared.run()).is_ok();
        }
        if !state.thread {
            drop(state);
            return answer(Err(Errno::ENOLCK));
        }
        let (tried, cancelled) = (false, false);
        state.waiters.push(Waiter { ino, owner, lock: *lock, wait, answer, tried, cancelled });
        drop(state);
        self.0.hurry();
    }

    pub(crate) fn cancel(&self, wait: LockWait) {
        let over = self.0.state.lock().withdraw(|waiter| waiter.wait == wait);
        over.into_iter().for_each(|answer| answer(Err(Errno::EINTR)));
    }

    pub(crate) fn release(&self, ino: Ino, owner: LockOwner, style: LockStyle) {
        let (gone, over) = {
            let mut state = self.0.state.lock();
            let is_it =
                |waiter: &Waiter| (waiter.ino, waiter.lock.owner, waiter.lock.style) == (ino, owner, style);
            (state.owners.remove(&(ino, owner, style)), state.withdraw(is_it))
        };
        over.into_iter().for_each(|answer| answer(Err(Errno::EINTR)));
        if let Some(owner) = gone {
            owner.end(style);
            self.0.hurry();
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        let (owners, over) = {
            let mut state = self.0.state.lock();
            state.stopped = true;
            (std::mem::take(&mut state.owners), state.withdraw(|_| true))
        };
        owners.iter().for_each(|((_, _, style), owner)| owner.end(*style));
        over.into_iter().for_each(|answer| answer(Err(Errno::EIO)));
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn hurry(&self) {
        let mut state = self.state.lock();
        if !state.waiters.is_empty() {
            state.hurry = true;
            self.changed.notify_all();
        }
    }

    /// The body of the thread.
    fn run(&self) {
        let mut pause = FIRST;
        let mut state = self.state.lock();
        while !state.stopped {
            if state.waiters.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            if !state.hurry {
                self.changed.wait_for(&mut state, pause);
                pause = (pause * 2).min(LAST);
            }
            if std::mem::take(&mut state.hurry) {
                pause = FIRST;
            }
            let waits: Vec<LockWait> = state.waiters.iter().map(|waiter| waiter.wait).collect();
            parking_lot::MutexGuard::unlocked(&mut state, || {
                for wait in waits {
                    if self.try_again(wait) {
                        pause = FIRST;
                    }
                }
            });
        }
    }

    /// Tries a request. Returns whether it is over.
    fn try_again(&self, wait: LockWait) -> bool {
        let (owner, lock) = {
            let mut state = self.state.lock();
            let Some(waiter) = state.waiters.iter_mut().find(|waiter| waiter.wait == wait) else {
                return false;
            };
            waiter.tried = true;
            (Arc::clone(&waiter.owner), waiter.lock)
        };
        let done = owner.set(&lock);
        let mut state = self.state.lock();
        let Some(at) = state.waiters.iter().position(|waiter| waiter.wait == wait) else { return false };
        state.waiters[at].tried = false;
        let result = match done {
            Err(Errno::EAGAIN) if state.waiters[at].cancelled => Err(Errno::EINTR),
            Err(Errno::EAGAIN) => return false,
            done => done,
        };
        let waiter = state.waiters.remove(at);
        drop(state);
        (waiter.answer)(result);
        true
    }
}

#[cfg(test)]
mod tests;
