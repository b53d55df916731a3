//! For tests: checks that neither a slow machine nor a fork breaks.
//!
//! A busy machine adds a time to whatever a test measures, and that time does not depend on the test. So a
//! limit close to the expected time fails now and then, and a generous limit hides faults. A check that
//! multiplies all its times (delays, deadlines, limits) with a scale has neither problem: the larger the
//! scale, the smaller the share of the machine.
//!
//! Tests run in threads of one process, and some of them start programs. A process that one of them has just
//! forked shares the open files of all others (see [`crate::lock`]). [`Forked`] is such a process that stays,
//! and [`stop`] and [`unmount`] do without what it shares.

use std::fmt::Display;
use std::io::{self, PipeWriter, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use crate::{Deadline, Must, lock};

/// The scales, in order. A check that succeeds at the first costs no more time than without a scale.
const SCALES: [u32; 3] = [1, 4, 16];

/// Runs a check with growing scales until it succeeds. An `Err` says what took too long. A correct program
/// succeeds at one of the scales, a wrong one at none.
///
/// # Errors
/// What took too long at each scale, if the check never succeeds.
pub fn at_some_scale(check: impl Fn(u32) -> Result<(), String>) -> Result<(), String> {
    let mut reasons = Vec::new();
    for scale in SCALES {
        match check(scale) {
            Ok(()) => return Ok(()),
            Err(why) => reasons.push(format!("at scale {scale}: {why}")),
        }
    }
    Err(reasons.join("; "))
}

/// Compares a time with its limit.
///
/// # Errors
/// If it is too long. `what` is the thing that took so long.
pub fn in_time(took: Duration, limit: Duration, what: impl Display) -> Result<(), String> {
    if took < limit { Ok(()) } else { Err(format!("{what} took {took:?} instead of less than {limit:?}")) }
}

/// A process that was forked and does not execute a program as long as this lives. It has copies of all
/// descriptors that were open then.
#[derive(Debug)]
pub struct Forked {
    child: libc::pid_t,
    /// The child ends when something is written here, or when this process ends.
    end: PipeWriter,
}

impl Forked {
    /// Forks.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Forked> {
        let (wait, end) = io::pipe()?;
        // SAFETY: the child makes only system calls that are async-signal-safe.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: both descriptors are open, and the byte lives through the call. _exit runs nothing of
            // the parent.
            unsafe {
                libc::close(end.as_raw_fd());
                libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        Ok(Forked { child, end })
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        let _ = self.end.write_all(b"x");
        // SAFETY: the child is ours and not yet reaped. No status is stored.
        unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
    }
}

/// Stops listening, also for a forked process that shares the socket. Returns the address, on which nothing
/// listens now.
pub fn stop(listener: TcpListener) -> SocketAddr {
    // SAFETY: the descriptor is open. The call takes numbers only.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    listener.local_addr().must("a listener has an address")
}

/// Unmounts, as soon as no forked process shares a file of the mount.
///
/// # Errors
/// The system's error, such as `EBUSY` after a minute.
pub fn unmount(path: &Path) -> io::Result<()> {
    let attempt = || lock::unmount(path, rustix::mount::UnmountFlags::empty());
    let busy = |done: &rustix::io::Result<()>| *done == Err(rustix::io::Errno::BUSY);
    Ok(lock::retry(Deadline::after(Duration::from_secs(60)), attempt, busy)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_passes_at_the_first_scale_that_suits_and_fails_with_every_reason() {
        let at_least = |wanted: u32| move |scale| (scale >= wanted).then_some(()).ok_or("late".to_owned());
        assert_eq!(at_some_scale(at_least(1)), Ok(()));
        assert_eq!(at_some_scale(at_least(16)), Ok(()));
        let said = "at scale 1: late; at scale 4: late; at scale 16: late";
        assert_eq!(at_some_scale(at_least(17)), Err(said.to_owned()));
    }
}
