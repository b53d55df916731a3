//! The signals that end a command. They are blocked early and then taken at a place that can clean up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::log;

/// The signals.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signals as a set.
fn all() -> libc::sigset_t {
    // SAFETY: sigemptyset fills the set before it is read. All zeros are a valid value of the type.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in ENDING {
        // SAFETY: `set` is a live set, and the number is a valid signal.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Blocks the signals, so that they do not end the command at once. [`next`] receives them. Threads started
/// later inherit this.
pub fn block() {
    // SAFETY: the set is live, and the old mask is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all(), std::ptr::null_mut()) };
}

/// Whether a signal is pending. While a mount is being prepared, nothing takes signals.
pub fn is_waiting() -> bool {
    // SAFETY: all zeros are a valid value of the type, and sigpending(2) fills a live set.
    let waiting = unsafe {
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        if libc::sigpending(&mut waiting) != 0 {
            return false;
        }
        waiting
    };
    // SAFETY: the set was filled above, and the numbers are valid signals.
    ENDING.iter().any(|signal| unsafe { libc::sigismember(&waiting, *signal) } == 1)
}

/// Waits for one of the blocked signals.
pub fn next() -> i32 {
    let mut signal = 0;
    // SAFETY: both are live values, and the signals are blocked in every thread.
    while unsafe { libc::sigwait(&all(), &mut signal) } != 0 {}
    signal
}

/// Waits like [`next`], but at most this long. False if no signal came.
pub fn next_within(at_most: Option<Duration>) -> bool {
    let Some(at_most) = at_most else {
        next();
        return true;
    };
    take(at_most).is_some()
}

/// Runs `work`, during which a signal ends the program at once, with status 130. This is for opening what a
/// daemon mounts or serves: a store or a database that does not answer can make that long, and ending there
/// leaves no more than a kill does. Signals must be blocked. Later ones are for [`next`] again.
pub fn ending<T>(does: &str, work: impl FnOnce() -> T) -> T {
    /// How long a thread without work stays.
    const LOOK: Duration = Duration::from_millis(50);
    let done = Arc::new(AtomicBool::new(false));
    let (over, does) = (done.clone(), does.to_owned());
    let watch = move || {
        while !over.load(Ordering::Acquire) {
            let Some(signal) = take(LOOK) else { continue };
            if over.load(Ordering::Acquire) {
                // It came too late for this thread.
                let again = rustix::process::Signal::from_named_raw(signal);
                let _ = again.map(|signal| rustix::process::kill_process(rustix::process::getpid(), signal));
                return;
            }
            log::line(&format!("signal {signal} while {does}: ended, and nothing is mounted or served"));
            std::process::exit(130);
        }
    };
    // Without the thread, signals wait until the work is done.
    let _ = base::thread::spawn("covey-signals", watch);
    let out = work();
    done.store(true, Ordering::Release);
    out
}

/// The next signal. None if none came in this time.
fn take(at_most: Duration) -> Option<i32> {
    let time = libc::timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(at_most.subsec_nanos()),
    };
    // SAFETY: both are live values, and information about the signal is not requested.
    let signal = unsafe { libc::sigtimedwait(&all(), std::ptr::null_mut(), &time) };
    (signal > 0).then_some(signal)
}
