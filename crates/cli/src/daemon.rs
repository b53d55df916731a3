//! A mount as a command, with its messages, its status line and its signals.
//!
//! ```text
//!   foreground   says that it is mounted, shows a status line (up), ends with the mount
//!   background   the same program again, in a session of its own, messages in VOLUME/covey.log. Its parent
//!                waits on a pipe until it says "ready" or what went wrong, and tells the user
//! ```
//!
//! **Signals** are blocked in all threads. One thread receives them, so no handler interrupts other code. On
//! a terminal, the first signal requests an unmount. If the mount is busy, that thread prints which processes
//! use it. The second signal detaches the mount, and the third ends the program. Without a terminal (SIGTERM
//! from a service manager) these steps follow one another automatically, so a stop always completes.

mod background;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::error::{Failure, Result};
use api::text::{bytes, count};
use base::{Deadline, lock};
use fuse::{Unmount, UnmountError};
use node::memory::Memory;
use node::opened::Source;
use node::running::{Handle, Mounted, Plan, Running};
use node::shared::promoting::handover::UnderWay;
use node::{limits, log, signals};

use crate::beside::Beside;
use crate::cmd::umount;
use crate::term::{self, Term};

use background::{News, tell};
pub use background::{Parent, in_background, with_parent};

/// Mounts, and returns when the mount has ended and the volume is closed.
pub fn run(plan: &Plan, beside: &Beside, parent: Option<Parent>, term: Term) -> Result<u8> {
    serve(plan, beside, false, parent, term)
}

/// Mounts with a status line on a terminal, and returns when the mount has ended and the volume is closed.
pub fn run_with_line(plan: &Plan, beside: &Beside, term: Term) -> Result<u8> {
    serve(plan, beside, true, None, term)
}

fn serve(plan: &Plan, beside: &Beside, status_line: bool, parent: Option<Parent>, term: Term) -> Result<u8> {
    let interactive = parent.is_none() && term::is_terminal();
    signals::block();
    limits::check(limits::For::Daemon)?;
    limits::leave_no_core();
    let bucket = beside.s3.bucket(&plan.source.name().display().to_string());
    let bound = beside.bind(&bucket)?;
    let in_background = parent.is_some();
    let mut running = Running::start(plan)?;
    let asked = start_signals(running.handle(), interactive)?;
    running.go_on()?;
    let servers = match bound.serve(&bucket, &running) {
        Ok(servers) => servers,
        Err(failure) => {
            let _ = running.handle().unmount(Unmount::Lazy);
            running.finish()?;
            return Err(failure);
        }
    };
    ready(running.mounted(), parent, term);
    wait(&running, status_line && interactive);
    drop(servers);
    while running.is_leaving() && running.replace(plan, &|| asked.load(Ordering::Acquire))? {
        // Programs use the mount, whatever else cannot be started again.
        let told = |failure: &Failure| log::error(&failure.to_string());
        let _ = running.go_on().inspect_err(told);
        let servers = beside.bind(&bucket).and_then(|bound| bound.serve(&bucket, &running)).inspect_err(told);
        wait(&running, status_line && interactive);
        drop(servers);
    }
    let promotion = match &plan.source {
        // A mount that ended while its volume was being replaced was not unmounted for a promotion.
        Source::Folder(dir) if !running.is_leaving() => UnderWay::of(dir),
        _ => None,
    };
    let end = running.finish()?;
    if !term.is_json() {
        log::line(&format!("unmounted {}; the volume is closed", end.mountpoint.display()));
    }
    if promotion.is_some_and(|promotion| promotion.wait(&|| asked.load(Ordering::Acquire))) {
        log::line("the promotion of the volume has ended; mounting again what is there");
        return Err(background::again(plan, beside, in_background));
    }
    Ok(u8::from(end.aborted))
}

fn ready(mounted: Mounted, parent: Option<Parent>, term: Term) {
    let place = mounted.mountpoint.display();
    match parent {
        Some(Parent(pipe)) => {
            log::line(&format!("mounted {} at {place} ({:?})", mounted.volume, mounted.mode));
            tell(pipe, &News::Ready(mounted));
        }
        None if term.is_json() => term.result(&mounted, String::new),
        None if log::is_for_programs() => {
            log::line(&format!("mounted {} at {place} ({:?})", mounted.volume, mounted.mode));
        }
        None => term.say(format_args!("Mounted {} at {place}. Ctrl-C unmounts.", mounted.volume)),
    }
}

/// Waits for the end of the mount. Shows a status line if one is wanted.
fn wait(running: &Running, status_line: bool) {
    let mut before = running.requests();
    running.wait(&mut || {
        if status_line {
            let now = running.requests();
            if let Some(short) = running.in_short() {
                term::status_line(&format!(
                    "{} files   {}   stored {}   {} requests/s   memory {}",
                    count(short.files),
                    bytes(short.bytes),
                    bytes(short.stored_bytes),
                    count(now.saturating_sub(before)),
                    bytes(Memory::now().now),
                ));
            }
            before = now;
        }
    });
    if status_line {
        term::clear_status_line();
    }
}

/// Returns whether a signal has asked the daemon to end.
fn start_signals(mount: Handle, interactive: bool) -> Result<Arc<AtomicBool>> {
    let ender = Ender { mount, asked: Arc::default() };
    let asked = ender.asked.clone();
    base::thread::spawn("covey-signals", move || match interactive {
        true => ender.ask_each_time(),
        false => ender.insist(),
    })
    .map_err(|error| Failure::io("cannot start a thread", &error))?;
    Ok(asked)
}

struct Ender {
    mount: Handle,
    asked: Arc<AtomicBool>,
}

impl Ender {
    /// Handles signals with a person at the terminal. Each Ctrl-C takes one step further.
    fn ask_each_time(&self) {
        signals::next();
        self.asked.store(true, Ordering::Release);
        log::line("unmounting ...");
        loop {
            match self.mount.unmount(Unmount::Polite) {
                Err(UnmountError::Busy(path)) => {
                    let failure = umount::busy(&path);
                    log::line(&failure.to_string().replacen("covey: ", "", 1));
                    log::line("Ctrl-C again detaches the mount now; it ends when its last user closes it");
                }
                Err(error) => log::line(&error.to_string()),
                Ok(()) => {}
            }
            signals::next();
            if self.mount.unmount(Unmount::Lazy).is_ok() {
                break;
            }
        }
        log::line("detached; it ends when its last user is gone. Ctrl-C once more ends it at once");
        signals::next();
        self.end_now();
    }

    /// Handles a signal without a terminal. The steps follow one another, so the daemon always ends.
    fn insist(&self) {
        let signal = signals::next();
        self.asked.store(true, Ordering::Release);
        log::line(&format!("signal {signal}: unmounting"));
        let busy = |done: &std::result::Result<(), UnmountError>| matches!(done, Err(UnmountError::Busy(_)));
        let patience = Deadline::after(Duration::from_secs(3));
        match lock::retry(patience, || self.mount.unmount(Unmount::Polite), busy) {
            Ok(()) => return self.wait_then_end(Duration::from_secs(120)),
            Err(UnmountError::Busy(_)) => {}
            Err(error) => log::error(&error.to_string()),
        }
        log::line("the mount was busy for 3 s: detaching it");
        let _ = self.mount.unmount(Unmount::Lazy);
        self.wait_then_end(Duration::from_secs(7));
    }

    fn wait_then_end(&self, patience: Duration) {
        let end = base::time::monotonic() + patience;
        while !self.mount.has_ended() {
            if base::time::monotonic() >= end {
                return self.end_now();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the program although processes still use the mount. Data that the kernel has handed over is made
    /// durable first.
    fn end_now(&self) {
        if self.mount.has_ended() {
            return;
        }
        log::line("ending now");
        if let Err(failure) = self.mount.flush() {
            log::error(&failure.to_string());
        }
        std::process::exit(1);
    }
}
