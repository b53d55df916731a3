//! Notices requests that hold a ring entry for too long, and answers those whose replies were lost.
//!
//! A pending request is answered by its deadline ([`crate::defer`]). So if an entry holds the same request
//! for longer, there is a fault in this program. Without this check the fault would be invisible, and
//! whatever waits for the request would wait until the mount is removed by force, SIGKILL or not.
//!
//! ```text
//!   Serving    the ring thread hangs                 a line in the log
//!   Waiting    no thread will ever reply             EIO, a line in the log, counted
//!   Answered   the ring thread does not commit it    woken again, a line in the log
//!   Endless    waits for a lock, or ends locks       nothing: it has no deadline
//! ```
//!
//! A thread looks a few times per deadline. Serving a request costs nothing but the two stores by which an
//! entry says what it holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Host;
use super::entry::{Entry, Stage};
use super::ring::Mailbox;
use crate::abi::opcodes;
use crate::channel::Sink;

/// How often a look is taken, as a part of the limit, and at least and at most after which time.
const PART: u32 = 8;
const STEP_MIN: Duration = Duration::from_millis(5);
const STEP_MAX: Duration = Duration::from_secs(10);

/// A ring, as the check sees it.
pub(super) struct Watched {
    pub(super) queue: usize,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) entries: Vec<Weak<Entry>>,
}

/// The thread that looks, and the number of replies that it has missed.
pub(super) struct Check {
    lost: Arc<AtomicU64>,
    /// Dropped to end the thread.
    runs: Mutex<Option<mpsc::Sender<()>>>,
}

impl Check {
    /// Starts the thread. `None`: the system cannot start another one, and the mount works without it.
    pub(super) fn start(rings: Vec<Watched>, limit: Duration, host: &Arc<impl Host>) -> Option<Check> {
        let (runs, ends) = mpsc::channel::<()>();
        let (lost, host) = (Arc::new(AtomicU64::new(0)), Arc::downgrade(host));
        let count = Arc::clone(&lost);
        let step = (limit / PART).clamp(STEP_MIN, STEP_MAX);
        let work = move || {
            let mut ages: Vec<Ages> = rings.iter().map(|ring| Ages::new(ring.entries.len(), limit)).collect();
            while ends.recv_timeout(step) == Err(RecvTimeoutError::Timeout) {
                let Some(host) = host.upgrade() else { return };
                for (ring, ages) in rings.iter().zip(&mut ages) {
                    count.fetch_add(look(ring, ages, &*host), Ordering::Relaxed);
                }
            }
        };
        base::thread::spawn("fuse-overdue", work).ok()?;
        Some(Check { lost, runs: Mutex::new(Some(runs)) })
    }

    /// How many replies were lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.runs.lock().take();
    }
}

/// Looks at all entries of a ring. Returns how many were answered because their replies were lost.
fn look(ring: &Watched, ages: &mut Ages, host: &impl Host) -> u64 {
    let now = base::time::monotonic();
    let mut lost = 0;
    for (at, entry) in ring.entries.iter().enumerate() {
        let Some(entry) = entry.upgrade() else { continue };
        let held = entry.held().filter(|(_, stage)| *stage != Stage::Endless);
        let Some(overdue) = ages.look(at, held.map(|(unique, _)| unique), now) else { continue };
        let Some((unique, stage)) = held else { continue };
        let name = opcodes::find(entry.opcode()).map_or("a request", |line| line.name);
        let seconds = overdue.age.as_secs_f64();
        let what = match stage {
            // If the reply comes in this very moment, nothing was lost.
            Stage::Waiting if entry.reply(unique, -libc::EIO, &[]).is_err() => continue,
            Stage::Waiting => {
                lost += 1;
                format!("the reply to {name} was lost, so it was answered EIO after {seconds:.0} s")
            }
            Stage::Serving => format!("{name} has been served for {seconds:.0} s, and others wait behind it"),
            _ => {
                ring.mailbox.wake_again();
                format!("the reply to {name} has been waiting for its ring for {seconds:.0} s")
            }
        };
        if overdue.is_new || stage == Stage::Waiting {
            let queue = ring.queue;
            host.log(&format!(
                "fuse: on the ring of CPU {queue} {what}; this is a fault in Covey: report it"
            ));
        }
    }
    lost
}

/// An entry that holds the same request for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overdue {
    age: Duration,
    /// Whether this is the first look that finds the entry overdue.
    is_new: bool,
}

/// Since when each entry of a ring has held its request, as far as looks have shown.
struct Ages {
    limit: Duration,
    seen: Vec<Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    unique: u64,
    since: Option<Instant>,
    is_overdue: bool,
}

impl Ages {
    fn new(entries: usize, limit: Duration) -> Ages {
        Ages { limit, seen: vec![Seen { unique: 0, since: None, is_overdue: false }; entries] }
    }

    /// A look at one entry: which request it holds, if any.
    fn look(&mut self, at: usize, held: Option<u64>, now: Instant) -> Option<Overdue> {
        let seen = self.seen.get_mut(at)?;
        let unique = held.unwrap_or(0);
        if held.is_none() || seen.unique != unique {
            *seen = Seen { unique, since: held.map(|_| now), is_overdue: false };
            return None;
        }
        let age = now.saturating_duration_since(seen.since?);
        if age < self.limit {
            return None;
        }
        let is_new = !std::mem::replace(&mut seen.is_overdue, true);
        Some(Overdue { age, is_new })
    }
}

#[cfg(test)]
mod tests;
