//! Deletes blobs in the origin in the background, once nothing refers to them.
//!
//! Deletions run in batches, are retried until they succeed, and are remembered over a restart (in the
//! index). A blob that is stored again before its deletion begins is not deleted. If the deletion is in
//! flight, the store waits, so that an upload never overtakes it.
//!
//! An origin that was only slow to answer may still carry out a failed attempt. So a store also waits until
//! the last attempt is some seconds old ([`super::CacheOptions::doubt`]).
//!
//! A deletion that succeeded can have had such an attempt too. The remote origin knows of it, and waits
//! before it stores the blob.
//!
//! For the same reason, a deletion does not begin while an upload of the blob is in flight.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::time::BootTime;
use base::{BlobId, Deadline};
use blob::BlobError;
use blob::source::too_late;
use parking_lot::{Condvar, Mutex};

use super::Core;
use super::refused::Asked;

/// More deletions than this are outstanding only if the origin has not answered for long. Then no more are
/// accepted.
const MOST: usize = 1 << 16;
/// Blobs deleted by one request.
const BATCH: usize = 500;
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The origin may refuse to delete some blobs and delete others. So after a refusal there is no pause, until
/// so many in a row were refused.
const REFUSED: u32 = 24;
/// The longest time that a refused blob waits for its next attempt.
const REFUSED_MAX: Duration = Duration::from_secs(120);
/// How often to check whether a conflicting upload has ended.
const LOOK: Duration = Duration::from_millis(100);
/// How often a removal that waits for the origin looks whether an upload of the blob has ended.
const UPLOADING: Duration = Duration::from_millis(50);
/// How long closing waits for deletions in flight.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Default)]
pub(super) struct Removals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order of arrival. Some may have been cancelled.
    queue: VecDeque<BlobId>,
    /// All outstanding deletions.
    all: HashMap<BlobId, Stand>,
    working: bool,
    closed: bool,
}

/// The state of one deletion.
#[derive(Clone, Copy, Default)]
struct Stand {
    under_way: bool,
    /// When the last attempt failed.
    failed: Option<Instant>,
    /// Attempts with this blob alone that were refused, and when the next one is due.
    refused: u32,
    due: Option<Instant>,
}

impl Stand {
    /// After a failed attempt.
    fn after(self, alone_refused: bool, now: Instant) -> Stand {
        let mut stand = Stand { under_way: false, failed: Some(now), ..self };
        if alone_refused {
            stand.refused += 1;
            let wait = REFUSED_MAX.min(PAUSE.saturating_mul(1 << stand.refused.min(10)));
            stand.due = Some(now + wait + jitter(wait));
        }
        stand
    }
}

impl Removals {
    /// Whether another deletion would be accepted.
    ///
    /// # Errors
    /// `Unavailable` if not.
    pub(super) fn has_room(&self) -> Result<(), BlobError> {
        if self.state.lock().all.len() < MOST {
            return Ok(());
        }
        let what = format!("{MOST} blobs wait to be deleted in the origin already: it does not answer");
        Err(BlobError::Unavailable(what))
    }

    /// Schedules the deletion of a blob.
    pub(super) fn add(&self, core: &Arc<Core>, id: &BlobId) {
        let mut state = self.state.lock();
        if !state.all.contains_key(id) {
            state.all.insert(*id, Stand::default());
            state.queue.push_back(*id);
        }
        if !state.working && !state.closed {
            let core = Arc::clone(core);
            state.working = base::thread::spawn("covey-remove", move || core.removals.work(&core)).is_ok();
        }
    }

    /// Cancels a deletion, because the blob is wanted again. When this returns, no deletion of it is in
    /// flight or begins, and none failed within the last `doubt`. Returns whether one was outstanding.
    pub(super) fn call_off(&self, id: &BlobId, doubt: Duration) -> bool {
        let mut state = self.state.lock();
        let stand = loop {
            match state.all.get(id) {
                Some(stand) if stand.under_way => self.changed.wait(&mut state),
                stand => break stand.copied(),
            }
        };
        let Some(stand) = stand else { return false };
        state.all.remove(id);
        state.queue.retain(|other| other != id);
        drop(state);
        let until = stand.failed.map(|failed| failed + doubt);
        let left = until.map(|until| until.saturating_duration_since(base::time::monotonic()));
        left.into_iter().for_each(std::thread::sleep);
        true
    }

    pub(super) fn has(&self, id: &BlobId) -> bool {
        self.state.lock().all.contains_key(id)
    }

    /// All blobs whose deletion is outstanding or in flight.
    pub(super) fn all(&self) -> HashSet<BlobId> {
        self.state.lock().all.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().all.len()
    }

    /// Stops deletions. When this returns, none is in flight, unless the origin takes very long to answer.
    pub(super) fn close(&self) {
        // A command with a deadline of its own waits no longer than that.
        let deadline = Deadline::current().within(PATIENCE);
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        while state.working && !self.changed.wait_for(&mut state, deadline.left()).timed_out() {}
    }

    /// The thread's loop. It ends when nothing is left.
    fn work(&self, core: &Core) {
        let mut pause = PAUSE;
        let mut most = BATCH;
        let mut in_a_row = 0;
        while let Some(batch) = self.next(core, most) {
            let allowed = core.may_delete.as_ref().map_or(Ok(()), |ask| ask());
            // No deadline here: an origin that must verify its owner first sets its own.
            let remove = |()| core.remote.remove_many(&batch, BootTime::NEVER);
            let done = allowed.map_err(BlobError::Unavailable).and_then(remove);
            // A slow origin may manage only a smaller batch within that time.
            most = if done.is_ok() { BATCH.min(most * 2) } else { (batch.len() / 2).max(1) };
            core.refused.came(Asked::Deletes, &core.health, &done);
            if done.is_ok() {
                core.ledger.deleted(&batch);
            }
            let refused = matches!(done, Err(BlobError::Refused(_)));
            in_a_row = if refused { in_a_row + 1 } else { 0 };
            let (alone, now) = (refused && batch.len() == 1, base::time::monotonic());
            let mut state = self.state.lock();
            for id in batch {
                if done.is_ok() {
                    state.all.remove(&id);
                } else {
                    let before = state.all.get(&id).copied().unwrap_or_default();
                    state.all.insert(id, before.after(alone, now));
                    state.queue.push_back(id);
                }
            }
            self.changed.notify_all();
            if done.is_err() {
                core.counters.removals_failed.add(1);
            }
            if done.is_err() && !(1..REFUSED).contains(&in_a_row) {
                let until = base::time::monotonic() + pause + jitter(pause);
                while !state.closed && !self.changed.wait_until(&mut state, until).timed_out() {}
                pause = PAUSE_MAX.min(pause * 2);
            } else if done.is_ok() {
                pause = PAUSE;
            }
        }
    }

    fn next(&self, core: &Core, most: usize) -> Option<Vec<BlobId>> {
        let mut state = self.state.lock();
        while !state.closed && !state.all.is_empty() {
            let (mut batch, now) = (Vec::new(), base::time::monotonic());
            for _ in 0..state.queue.len() {
                let Some(id) = state.queue.pop_front() else { break };
                let waits = state.all.get(&id).is_some_and(|stand| stand.due.is_some_and(|due| now < due));
                if waits || batch.len() == most || core.pending.is_pending(&id) {
                    state.queue.push_back(id);
                } else {
                    batch.push(id);
                }
            }
            if !batch.is_empty() {
                for id in &batch {
                    state.all.entry(*id).or_default().under_way = true;
                }
                return Some(batch);
            }
            self.changed.wait_for(&mut state, LOOK);
        }
        state.working = false;
        self.changed.notify_all();
        None
    }
}

impl Core {
    /// Removes blobs here and in the origin before it returns, and remembers nothing of it.
    pub(super) fn remove_now(self: &Arc<Core>, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        for id in ids {
            let _turn = self.turn(id);
            self.pending.forget(id)?;
            self.disk_store.remove(id)?;
            self.ledger.remove(id);
            self.evicted(id);
            let gone = self.memory.lock().forget(id);
            drop(gone);
        }
        // An upload in flight must not overtake the removal.
        while ids.iter().any(|id| self.pending.is_pending(id)) {
            if base::time::boot() >= until || self.closed.wait(UPLOADING) {
                return Err(too_late());
            }
        }
        self.remote.remove_many(ids, until)
    }
}

/// A random extra of up to a quarter, so that nodes that met the same outage do not all return at the same
/// moment.
fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(base::random::u64() as f64 / u64::MAX as f64 / 4.0)
}
