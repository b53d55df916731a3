//! The gate where writers wait while more is not uploaded than the disk may hold.
//!
//! The gate is closed while more waits for the origin than the budget allows. It is also closed while
//! anything waits and the disk has less free space than its floor, because then only uploads make room. A
//! writer waits at the gate for a bounded time. If nothing was uploaded for that long, it is refused at once.
//! So an outage costs a program one wait, not one per write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::phase::{self, Phase};
use base::{Deadline, time};
use blob::{BlobError, Gate};
use parking_lot::Mutex;

use super::{Shared, Uploads};

/// The disk's free space is queried at most this often.
const LOOK: Duration = Duration::from_millis(100);
/// A wait longer than this is reported.
const WORTH_A_LINE: Duration = Duration::from_secs(1);

/// The state of the gate.
pub(super) struct Door {
    started: Instant,
    looked_ms: AtomicU64,
    /// The disk had less free space than its floor.
    low: AtomicBool,
    /// A writer had to wait, and the gate has not opened since.
    shut: AtomicBool,
    closure: Mutex<Option<Closure>>,
    waiting: AtomicU64,
    refused: AtomicU64,
}

/// The period since a writer first had to wait.
#[derive(Clone, Copy)]
struct Closure {
    since: Instant,
    said_waiting: bool,
    said_refused: bool,
}

impl Door {
    pub(super) fn new() -> Door {
        Door {
            started: time::monotonic(),
            looked_ms: AtomicU64::new(0),
            low: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            closure: Mutex::new(None),
            waiting: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Why new data is not accepted now, if so.
    fn closed(&self) -> Option<&'static str> {
        let pinned = self.pinned_bytes.load(Ordering::Acquire);
        match () {
            () if pinned == 0 => None,
            () if pinned > self.options.budget => {
                Some("that is all the room there is for them (-o cache_size)")
            }
            () if self.disk_is_low() => Some("the disk has no more room for them (-o cache_floor)"),
            () => None,
        }
    }

    fn disk_is_low(&self) -> bool {
        if self.options.floor == 0 {
            return false;
        }
        let now = time::monotonic().saturating_duration_since(self.door.started).as_millis() as u64 + 1;
        let looked = self.door.looked_ms.load(Ordering::Relaxed);
        if looked == 0 || now >= looked + LOOK.as_millis() as u64 {
            self.door.looked_ms.store(now, Ordering::Relaxed);
            let low = self.notes.space().is_ok_and(|space| space.available < self.options.floor);
            self.door.low.store(low, Ordering::Relaxed);
        }
        self.door.low.load(Ordering::Relaxed)
    }

    /// Reports that writes continue, when they do.
    pub(super) fn reopen(&self) {
        if !self.door.shut.load(Ordering::Acquire) || self.closed().is_some() {
            return;
        }
        let before = {
            let mut closure = self.door.closure.lock();
            self.door.shut.store(false, Ordering::Release);
            closure.take()
        };
        if before.is_some_and(|closure| closure.said_waiting || closure.said_refused) {
            (self.report)("writes go on: there is room again for what is not uploaded yet");
        }
    }

    fn wait_at_gate(&self) -> Result<(), BlobError> {
        let began = time::monotonic();
        let since = {
            let mut closure = self.door.closure.lock();
            self.door.shut.store(true, Ordering::Release);
            let begun = Closure { since: began, said_waiting: false, said_refused: false };
            closure.get_or_insert(begun).since
        };
        let patience = self.options.patience;
        // A write that was given up must not be done when there is room again.
        let at_most = patience.min(Deadline::current().left());
        loop {
            let Some(why) = self.closed() else { return Ok(()) };
            let now = time::monotonic();
            let mut state = self.state.lock();
            let moved = state.queue.last_success().map_or(since, |at| at.max(since));
            let still = now.saturating_duration_since(moved);
            let waited = now.saturating_duration_since(began);
            if state.stop || waited >= at_most || still >= patience {
                drop(state);
                self.door.refused.fetch_add(1, Ordering::Relaxed);
                self.say_once(why, true);
                return Err(BlobError::Full);
            }
            if waited >= WORTH_A_LINE {
                drop(state);
                self.say_once(why, false);
                state = self.state.lock();
            }
            self.moved.wait_for(&mut state, LOOK.min(at_most - waited));
        }
    }

    /// Reports once that writers wait, and once that they are refused. Repeats neither until the gate was
    /// open again.
    fn say_once(&self, why: &str, refused: bool) {
        if let Some(closure) = &mut *self.door.closure.lock() {
            let said = if refused { &mut closure.said_refused } else { &mut closure.said_waiting };
            if std::mem::replace(said, true) {
                return;
            }
        }
        let (pinned, trouble) = {
            let state = self.state.lock();
            (
                state.queue.pinned(),
                state.queue.trouble().map(|trouble| format!("; the origin: {}", trouble.why)),
            )
        };
        let what = if refused {
            format!("writes are refused (ENOSPC) after {} s without room", self.options.patience.as_secs())
        } else {
            format!("writes wait, up to {} s (-o timeout)", self.options.patience.as_secs())
        };
        let mib = pinned.bytes.div_ceil(1 << 20);
        (self.report)(&format!(
            "{what}: {} blobs ({mib} MiB) are not uploaded yet, and {why}; reads go on{}",
            pinned.blobs,
            trouble.unwrap_or_default()
        ));
    }
}

impl Gate for Uploads {
    fn is_open(&self) -> bool {
        self.shared.closed().is_none()
    }

    fn pass(&self) -> Result<(), BlobError> {
        if self.is_open() {
            self.shared.reopen();
            return Ok(());
        }
        let _phase = phase::enter(Phase::Origin);
        self.shared.door.waiting.fetch_add(1, Ordering::Relaxed);
        let passed = self.shared.wait_at_gate();
        self.shared.door.waiting.fetch_sub(1, Ordering::Relaxed);
        passed
    }
}
