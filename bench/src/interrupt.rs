//! Ctrl-C ends a run after the current cell, so that nothing stays mounted. A second Ctrl-C ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Result;

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
    // SAFETY: signal(2) may be called from a handler, and SIG_DFL is always a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Installs the signal handlers. Programs that are started afterwards have the default ones.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler: extern "C" fn(libc::c_int) = note;
        // SAFETY: `note` lives as long as the program, and does only what a signal handler may do.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
}

/// Continues unless the run was asked to end.
///
/// # Errors
/// The run was asked to end.
pub fn check() -> Result<()> {
    if ASKED.load(Ordering::Relaxed) {
        return Err("interrupted: nothing is kept of this figure".into());
    }
    Ok(())
}
