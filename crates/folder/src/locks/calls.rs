//! The system calls on locks. None of them waits for other owners.

use std::os::fd::{AsRawFd, OwnedFd};

use fs::Errno;
use fs::api::{Lock, LockKind, LockOwner, LockRange, Result};

/// The error of the call that was just made. A conflict has two names.
fn last() -> Errno {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EACCES | libc::EWOULDBLOCK) => Errno::EAGAIN,
        error => Errno(error.unwrap_or(libc::EIO)),
    }
}

fn plain(lock: &Lock) -> libc::flock {
    let kind = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let LockRange { start, end } = lock.range;
    // A length of 0 reaches to the end of the file, however long it becomes.
    let len = if end >= LockRange::END { 0 } else { end - start + 1 };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start as i64,
        l_len: len as i64,
        l_pid: 0,
    }
}

/// Takes or releases a range.
pub(super) fn range(fd: &OwnedFd, lock: &Lock) -> Result<()> {
    let wanted = plain(lock);
    // SAFETY: the descriptor is open, and `wanted` is a flock that lives through the call.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) };
    if done == 0 { Ok(()) } else { Err(last()) }
}

/// The lock that keeps a range from being taken. No process is named, because guests do not see it.
pub(super) fn test(fd: &OwnedFd, lock: &Lock) -> Result<Option<Lock>> {
    let mut found = plain(lock);
    // SAFETY: the descriptor is open, and `found` is a flock that lives through the call.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut found) };
    if done != 0 {
        return Err(last());
    }
    let kind = match i32::from(found.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Read,
        _ => LockKind::Write,
    };
    let start = found.l_start as u64;
    let end = if found.l_len == 0 { LockRange::END } else { start + found.l_len as u64 - 1 };
    Ok(Some(Lock { owner: LockOwner::NOBODY, range: LockRange { start, end }, kind, pid: 0, ..*lock }))
}

/// Takes or releases the whole file. A flock that is not granted loses what its owner held.
pub(super) fn flock(fd: &OwnedFd, kind: LockKind) -> Result<()> {
    let operation = match kind {
        LockKind::Read => libc::LOCK_SH | libc::LOCK_NB,
        LockKind::Write => libc::LOCK_EX | libc::LOCK_NB,
        LockKind::Unlock => libc::LOCK_UN,
    };
    // SAFETY: the descriptor is open. The call takes numbers only.
    if unsafe { libc::flock(fd.as_raw_fd(), operation) } == 0 { Ok(()) } else { Err(last()) }
}

/// How many locks an open file has, as the kernel lists them.
pub(super) fn count(fd: &OwnedFd) -> usize {
    let list = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    list.map_or(usize::MAX, |list| list.lines().filter(|line| line.starts_with("lock:")).count())
}
