//! Locks of a volume that only one machine mounts, if they reach the filesystem: because guests exclude one
//! another, or so that they can be handed over when the volume becomes a shared one ([`crate::handover`]).

use base::Ino;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::row::LOCKS_MAX;
use super::{FileLocks, Lock, LockAnswer, LockOwner, LockStyle, LockWait};
use crate::errno::Errno;

struct Waiter {
    lock: Lock,
    wait: LockWait,
    answer: LockAnswer,
}

/// A request that waits for a lock, taken out of the table.
pub(crate) struct Waiting {
    pub(crate) ino: Ino,
    pub(crate) lock: Lock,
    pub(crate) wait: LockWait,
    pub(crate) answer: LockAnswer,
}

type Table = FileLocks<LockOwner, Waiter>;

/// The locks on all files. No answer is called while the table is locked.
#[derive(Default)]
pub(crate) struct OwnLocks(Mutex<HashMap<Ino, Table>>);

impl OwnLocks {
    /// Changes the locks of a file, and grants what can be granted then.
    fn with<T>(&self, ino: Ino, work: impl FnOnce(&mut Table) -> T) -> T {
        let mut files = self.0.lock();
        let file = files.entry(ino).or_default();
        let done = work(file);
        let granted = file.wake();
        if file.is_empty() {
            files.remove(&ino);
        }
        drop(files);
        granted.into_iter().for_each(|waiter| (waiter.answer)(Ok(())));
        done
    }

    pub(crate) fn test(&self, ino: Ino, lock: &Lock) -> Option<Lock> {
        self.0.lock().get(&ino)?.of(lock.style).conflict(lock).copied()
    }

    pub(crate) fn set(&self, ino: Ino, lock: &Lock) -> Result<(), Errno> {
        self.with(
            ino,
            |file| if file.has_room_for(lock, LOCKS_MAX) { file.set(lock) } else { Err(Errno::ENOLCK) },
        )
    }

    pub(crate) fn wait(&self, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        if !self.with(ino, |file| file.has_room_for(lock, LOCKS_MAX)) {
            return answer(Err(Errno::ENOLCK));
        }
        let at_once = self.with(ino, |file| file.wait(lock, Waiter { lock: *lock, wait, answer }));
        at_once.into_iter().for_each(|waiter| (waiter.answer)(Ok(())));
    }

    pub(crate) fn cancel(&self, wait: LockWait) {
        let mut files = self.0.lock();
        let found = files.values_mut().find_map(|file| file.cancel(|waiter| waiter.wait == wait));
        files.retain(|_, file| !file.is_empty());
        drop(files);
        found.into_iter().for_each(|waiter| (waiter.answer)(Err(Errno::EINTR)));
    }

    pub(crate) fn release(&self, ino: Ino, owner: LockOwner, style: LockStyle) {
        let over = self.with(ino, |file| {
            file.release(style, |of| of == owner);
            file.abandon(|of| of == owner)
        });
        over.into_iter().for_each(|waiter| (waiter.answer)(Err(Errno::EINTR)));
    }

    /// Takes all locks and all requests that wait, in the order in which they came for each file.
    pub(crate) fn take(&self) -> (Vec<(Ino, Lock)>, Vec<Waiting>) {
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for (ino, mut file) in self.0.lock().drain() {
            for style in [LockStyle::Range, LockStyle::Flock] {
                held.extend(file.of(style).iter().map(|lock| (ino, *lock)));
            }
            let all = file.abandon(|_| true).into_iter();
            waiting.extend(all.map(|Waiter { lock, wait, answer }| Waiting { ino, lock, wait, answer }));
        }
        (held, waiting)
    }
}
