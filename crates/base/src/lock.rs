//! Locks on files between the processes of a machine (flock(2)), and what else a process that was just forked
//! keeps in use.
//!
//! ```text
//!   a thread        opens, locks ───── closes ── the lock is still held ── it is free
//!   another one           forks ─┐                                       │
//!   the child                    └ has all descriptors of both ── executes its program
//! ```
//!
//! `O_CLOEXEC` closes a descriptor when a program is executed, not when the process is forked. In between,
//! for some milliseconds, the child shares the open files of its parent. So closing one ends no lock, an
//! address stays in use, and a mount is busy. Two rules follow:
//!
//! - **A lock is released by its type, not by closing.** [`FileLock`] unlocks when it is dropped. That ends
//!   the lock of the open file, also for a child that shares it.
//! - What has no such release is tried again for a moment before it fails: [`retry`]. So is the lock of a
//!   process that was killed, which unlocks nothing.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::Deadline;

/// Longer than a child takes to execute its program on a busy machine. A user hardly notices it.
const MOMENT: Duration = Duration::from_millis(200);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The end of the time in which a process that was just forked executes its program.
pub fn moment() -> Deadline {
    Deadline::current().within(MOMENT)
}

/// Repeats an attempt until its result is not one that `is_held` recognises, or the time is over. Returns the
/// last result.
pub fn retry<T>(until: Deadline, mut attempt: impl FnMut() -> T, is_held: impl Fn(&T) -> bool) -> T {
    loop {
        let result = attempt();
        if !is_held(&result) || until.is_over() {
            return result;
        }
        until.sleep(PAUSE);
    }
}

/// Binds a socket with `attempt`. An address that is in use is tried again for a [`moment`].
///
/// # Errors
/// Those of `attempt`.
pub fn bind<T>(attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    retry(moment(), attempt, |bound| bound.as_ref().is_err_and(in_use))
}

/// Unmounts. A mount that is busy is tried again for a [`moment`].
///
/// # Errors
/// The system's error.
pub fn unmount(path: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    retry(moment(), || rustix::mount::unmount(path, flags), |done| *done == Err(Errno::BUSY))
}

/// An open file that can be locked, and is unlocked when it is dropped. See the [module](self).
#[derive(Debug)]
pub struct FileLock {
    file: File,
    /// The process that took the lock. A forked one that executes no program has this value too, and must not
    /// release the lock of its parent.
    owner: Option<u32>,
}

impl FileLock {
    /// The file without a lock. Nothing else may use this open file for one.
    pub fn new(file: File) -> FileLock {
        FileLock { file, owner: None }
    }

    /// Takes the lock alone. False: another open file has it.
    ///
    /// # Errors
    /// The filesystem has no locks, or reports another error.
    pub fn try_exclusive(&mut self) -> io::Result<bool> {
        self.took(self.file.try_lock())
    }

    /// Takes the lock together with others that share it. False: another open file has it alone.
    ///
    /// # Errors
    /// As [`FileLock::try_exclusive`].
    pub fn try_shared(&mut self) -> io::Result<bool> {
        self.took(self.file.try_lock_shared())
    }

    /// Takes the lock alone, as soon as it is free. False: another open file has it all the time. A caller
    /// that fails then waits for a [`moment`] at least.
    ///
    /// # Errors
    /// As [`FileLock::try_exclusive`].
    pub fn exclusive(&mut self, until: Deadline) -> io::Result<bool> {
        retry(until, || self.try_exclusive(), |taken| matches!(taken, Ok(false)))
    }

    fn took(&mut self, tried: Result<(), TryLockError>) -> io::Result<bool> {
        match tried {
            Ok(()) => {
                self.owner = Some(std::process::id());
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Write for FileLock {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.owner == Some(std::process::id()) {
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;

    use super::*;
    use crate::trial::Forked;

    fn open(folder: &tempfile::TempDir) -> FileLock {
        let mut options = File::options();
        let path = folder.path().join("lock");
        FileLock::new(options.create(true).truncate(false).write(true).open(path).unwrap())
    }

    /// A child between fork and exec shared the open file, so a lock was held although its owner had closed
    /// the file.
    #[test]
    fn regression_a_lock_ends_although_a_forked_process_has_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = open(&folder);
        assert!(first.try_exclusive().unwrap());
        let _child = Forked::new().unwrap();
        assert!(!open(&folder).try_shared().unwrap());
        drop(first);
        let (mut second, mut third) = (open(&folder), open(&folder));
        assert!(second.try_shared().unwrap() && third.try_shared().unwrap());
        let _child = Forked::new().unwrap();
        drop(second);
        assert!(!open(&folder).try_exclusive().unwrap());
        drop(third);
        assert!(open(&folder).try_exclusive().unwrap());
    }

    /// A process that is killed unlocks nothing. Its lock ends when its last child executes a program.
    #[test]
    fn the_lock_of_a_killed_process_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let killed = File::create(folder.path().join("lock")).unwrap();
        killed.try_lock().unwrap();
        let child = Forked::new().unwrap();
        drop(killed);
        assert!(!open(&folder).exclusive(moment()).unwrap());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| open(&folder).exclusive(Deadline::after(Duration::from_secs(60))));
            drop(child);
            assert!(waits.join().unwrap().unwrap());
        });
    }

    #[test]
    fn a_forked_process_does_not_release_the_lock_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let mut lock = open(&folder);
        assert!(lock.try_exclusive().unwrap());
        // What the child of a fork without exec has.
        let of_child = FileLock { file: lock.try_clone().unwrap(), owner: Some(std::process::id() + 1) };
        drop(of_child);
        assert!(!open(&folder).try_exclusive().unwrap());
        drop(lock);
        assert!(open(&folder).try_exclusive().unwrap());
    }

    #[test]
    fn an_attempt_is_repeated_until_it_succeeds_or_the_time_is_over() {
        let attempts = Cell::new(0);
        let attempt = || attempts.replace(attempts.get() + 1);
        assert_eq!(retry(Deadline::NEVER, attempt, |result| *result < 5), 5);
        let over = Deadline::after(Duration::ZERO);
        assert_eq!(retry(over, attempt, |_| true), 6, "it is tried once in any case");
    }

    /// An address was in use although its listener was closed.
    #[test]
    fn regression_an_address_is_had_again_when_a_forked_process_has_executed_its_program() {
        let listener = bind(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let mut child = Some(Forked::new().unwrap());
        drop(listener);
        let attempt = || TcpListener::bind(address).inspect_err(|_| drop(child.take()));
        let bound = retry(Deadline::after(Duration::from_secs(60)), attempt, Result::is_err);
        assert!(bound.is_ok() && child.is_none());
    }

    /// Stops a listener and binds its address without waiting, for tests that want an address on which
    /// nothing listens.
    #[test]
    fn a_listener_that_is_stopped_leaves_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _child = Forked::new().unwrap();
        let address = crate::trial::stop(listener);
        assert!(std::net::TcpStream::connect(address).is_err());
        TcpListener::bind(address).unwrap();
    }
}
