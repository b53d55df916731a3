//! Attaching as a command: it stays until the mount is gone, and unmounts on a signal.

use std::path::Path;
use std::time::Duration;

use super::{AttachError, Attached, Ended, Log, Options};

/// The environment's name for the rate of tracing.
pub const TRACE_RATE: &str = "COVEY_FUSE_TRACE_RATE";

/// The exit status of a command that a signal ended before it had mounted anything.
pub const INTERRUPTED: u8 = 130;

/// How often it looks for signals.
const LOOK: Duration = Duration::from_millis(200);

/// Blocks the signals that end the command, so that [`run`] receives them. Call it before any thread starts.
pub fn block_signals() {
    let set = signals();
    // SAFETY: the set is initialised, and no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

fn signals() -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set, and the numbers are signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

fn pending_signal() -> Option<i32> {
    let (set, none) = (signals(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: set and time live through the call, and nothing more than the number is asked for.
    let signal = unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const none) };
    (signal > 0).then_some(signal)
}

/// Attaches, and stays until the mount is gone. A signal before the mount can be used ends the attempt. After
/// that, a first signal unmounts if no program uses the mount. A second one detaches it, and the mount ends
/// with the last program. `ready` is called when the mount can be used, with what the server calls it.
///
/// # Errors
/// [`AttachError`]: nothing was mounted.
pub fn run(
    options: Options,
    mountpoint: &Path,
    log: Log,
    ready: impl FnOnce(&str),
) -> Result<Ended, AttachError> {
    let attached = Attached::attach(options, mountpoint, log, &|| pending_signal().is_some())?;
    ready(attached.name());
    let mut lazy = false;
    while !attached.wait_gone(LOOK) {
        let Some(signal) = pending_signal() else { continue };
        match attached.unmount(lazy) {
            Ok(()) => log(&format!("signal {signal}: unmounted")),
            Err(error) => {
                let path = attached.path().display();
                log(&format!("signal {signal}: {path} stays mounted ({error}); a second one detaches it"));
                lazy = true;
            }
        }
    }
    Ok(attached.finish())
}

/// What a person should know about the end of a mount. `None`: all is well.
pub fn complaint(ended: Ended) -> Option<String> {
    match ended {
        Ended::Synced => None,
        Ended::Failed(error) => {
            let error = std::io::Error::from_raw_os_error(error);
            Some(format!("the server could not make everything durable: {error}; look at its log"))
        }
        Ended::Unknown => {
            Some("no server answered at the end: what was written last may not be durable there".to_owned())
        }
    }
}
