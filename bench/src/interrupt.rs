//! Ctrl-C ends a run after the cell under way, so that nothing stays mounted. A second one ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Result;

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
    // SAFETY: signal(2) may be called from a handler, and SIG_DFL is always a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Takes the signals from now on. Programs that are started have their usual meaning.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler: extern "C" fn(libc::c_int) = note;
        // SAFETY: `note` lives as long as the program, and does nothing that a handler may not do.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
}

/// Goes on unless the run was asked to end.
///
/// # Errors
/// It was.
pub fn check() -> Result<()> {
    if ASKED.load(Ordering::Relaxed) {
        return Err("interrupted: nothing is kept of this figure".into());
    }
    Ok(())
}
