//! The signals that end a command: they are blocked early, so that they are taken where there is something to put in order.

use std::time::Duration;

/// Which they are.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The same as a set.
fn ending() -> libc::sigset_t {
    // SAFETY: sigemptyset fills the set before it is read; all zeros is a value of the type.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in ENDING {
        // SAFETY: `set` is a living set and the number is a signal's.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Keeps them from ending the command at once: [`next`] gets them. Threads started later inherit this.
pub fn block() {
    // SAFETY: the set is living; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &ending(), std::ptr::null_mut()) };
}

/// Whether one waits to be taken: while a mount is being prepared nobody takes any.
pub fn is_waiting() -> bool {
    // SAFETY: all zeros is a value of the type, and sigpending(2) fills a living set.
    let waiting = unsafe {
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        if libc::sigpending(&mut waiting) != 0 {
            return false;
        }
        waiting
    };
    // SAFETY: the set was filled above, and the numbers are signals'.
    ENDING.iter().any(|signal| unsafe { libc::sigismember(&waiting, *signal) } == 1)
}

/// Waits for one of those that were blocked.
pub fn next() -> i32 {
    let mut signal = 0;
    // SAFETY: both are living values; the signals are blocked in every thread.
    while unsafe { libc::sigwait(&ending(), &mut signal) } != 0 {}
    signal
}

/// The same for at most so long. False when none came.
pub fn next_within(at_most: Option<Duration>) -> bool {
    let Some(at_most) = at_most else {
        next();
        return true;
    };
    let time = libc::timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(at_most.subsec_nanos()),
    };
    // SAFETY: both are living values; what kind of signal it was is not asked for.
    unsafe { libc::sigtimedwait(&ending(), std::ptr::null_mut(), &time) >= 0 }
}
