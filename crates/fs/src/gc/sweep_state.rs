//! The sweeper's state: what waits for the next flush, when the last one was, and the wake-up of the thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{BlobId, PackNo, time};
use hashbrown::{HashMap, HashSet};
use meta::plan::Change;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// After the origin did not answer, nothing is copied from it for this long.
const AGAIN: Duration = Duration::from_secs(60);
/// The pack that it did not give is left alone for longer: it may be the only one.
const LEFT: Duration = Duration::from_secs(600);

/// After a write has waited for room in vain, others are refused without a wait for this long.
const IN_VAIN: Duration = Duration::from_secs(10);

/// What waits for the next flush.
#[derive(Default)]
pub(super) struct Waiting {
    /// Sealed packs whose files as open packs still exist.
    pub(super) retire: Vec<PackNo>,
    /// Open packs whose rows are gone.
    pub(super) discard: Vec<PackNo>,
    /// Blobs whose packs are condemned.
    pub(super) condemned: Vec<(PackNo, BlobId, u32)>,
    pub(super) stop: bool,
}

impl Waiting {
    pub(super) fn condemned_bytes(&self) -> u64 {
        self.condemned.iter().map(|(_, _, size)| u64::from(*size)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.retire.is_empty() && self.discard.is_empty() && self.condemned.is_empty()
    }
}

/// The sweeper's state.
pub(crate) struct Sweep {
    pub(super) waiting: Mutex<Waiting>,
    wake: Condvar,
    pub(super) commit: Duration,
    pub(super) last_flush: Mutex<Instant>,
    /// The bytes that users had written at the last round.
    seen_written: AtomicU64,
    /// Packs forgotten since the content rows were last scanned.
    pub(crate) forgotten: AtomicU64,
    /// See [`Sweep::put_off`].
    put_off: Mutex<Option<Instant>>,
    /// Packs that the origin did not give, and until when they are left alone.
    left: Mutex<HashMap<PackNo, Instant>>,
    /// Packs of earlier runs with lower numbers were counted.
    pub(super) counted_to: AtomicU64,
    /// How many changes have removed something.
    removals: AtomicU64,
    /// The number of removals before a wait for room that was in vain, and when that ended.
    in_vain: Mutex<Option<(u64, Instant)>>,
    /// Held through a round: rounds run one after another, whichever thread runs them.
    pub(super) round: Mutex<()>,
}

impl Sweep {
    pub(crate) fn new(commit: Duration) -> Sweep {
        Sweep {
            waiting: Mutex::default(),
            wake: Condvar::new(),
            commit: commit.max(Duration::from_millis(10)),
            last_flush: Mutex::new(time::monotonic()),
            seen_written: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            put_off: Mutex::default(),
            left: Mutex::default(),
            counted_to: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            in_vain: Mutex::default(),
            round: Mutex::default(),
        }
    }

    pub(crate) fn retire(&self, pack: PackNo) {
        self.waiting.lock().retire.push(pack);
    }

    pub(crate) fn discard(&self, pack: PackNo) {
        self.waiting.lock().discard.push(pack);
    }

    pub(crate) fn condemned(&self, pack: PackNo, blob: BlobId, size: u32) {
        self.waiting.lock().condemned.push((pack, blob, size));
    }

    /// The condemned packs that wait for the flush.
    pub(super) fn condemned_packs(&self) -> HashSet<PackNo> {
        self.waiting.lock().condemned.iter().map(|(pack, ..)| *pack).collect()
    }

    /// While the guard is held, no round runs.
    pub(crate) fn between_rounds(&self) -> MutexGuard<'_, ()> {
        self.round.lock()
    }

    /// While the guard is held, the sealer waits at the end of the pack that it seals.
    #[cfg(test)]
    pub(crate) fn hold_up_sealer(&self) -> impl Drop + '_ {
        self.waiting.lock()
    }

    /// The origin did not answer, so nothing is copied from it for a while.
    pub(super) fn put_off(&self) {
        *self.put_off.lock() = Some(time::monotonic() + AGAIN);
    }

    /// Notes that the origin did not answer for a pack ([`Sweep::put_off`]), which is left alone for longer.
    /// Returns whether it was asked for before, and not given.
    pub(super) fn leave(&self, pack: PackNo) -> bool {
        self.put_off();
        self.left.lock().insert(pack, time::monotonic() + LEFT).is_some()
    }

    /// Whether a pack is left alone now.
    pub(super) fn is_left(&self, pack: PackNo) -> bool {
        self.left.lock().get(&pack).is_some_and(|until| time::monotonic() < *until)
    }

    /// The pack was read, or is damaged.
    pub(super) fn had(&self, pack: PackNo) {
        self.left.lock().remove(&pack);
    }

    /// Whether nothing is to be copied now, for that reason.
    pub(super) fn is_put_off(&self) -> bool {
        self.put_off.lock().is_some_and(|until| time::monotonic() < until)
    }

    #[cfg(test)]
    pub(crate) fn copy_now(&self) {
        *self.put_off.lock() = None;
        self.left.lock().clear();
    }

    /// Notes that a change was made, if it has removed something.
    pub(crate) fn note_change(&self, change: &Change) {
        if !change.orphaned.is_empty() || !change.released.is_empty() {
            self.removals.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// A write has waited for room, and there was none. `removals`: how many there had been before.
    pub(super) fn note_in_vain(&self, removals: u64) {
        *self.in_vain.lock() = Some((removals, time::monotonic()));
    }

    /// Whether that was a moment ago, and nothing was removed since.
    pub(super) fn was_in_vain(&self, removals: u64) -> bool {
        self.in_vain.lock().is_some_and(|(before, at)| before == removals && at.elapsed() < IN_VAIN)
    }

    /// Whether anything waits for a flush.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Whether the pack was sealed and its file as an open pack still exists.
    pub(super) fn is_retiring(&self, pack: PackNo) -> bool {
        self.waiting.lock().retire.contains(&pack)
    }

    /// Whether nothing was written since the last call. `written` is the total so far.
    pub(crate) fn is_write_idle(&self, written: u64) -> bool {
        self.seen_written.swap(written, Ordering::AcqRel) == written
    }

    pub(crate) fn stop(&self) {
        self.waiting.lock().stop = true;
        self.wake.notify_all();
    }

    /// Ends a wait.
    pub(crate) fn wake(&self) {
        self.wake.notify_all();
    }

    /// Waits for `time`, unless stopped.
    pub(crate) fn pause(&self, time: Duration) {
        let mut waiting = self.waiting.lock();
        if !waiting.stop {
            self.wake.wait_for(&mut waiting, time);
        }
    }
}
