//! Garbage collection: what nothing refers to any more, and how it is deleted.
//!
//! ```text
//!   inode without a name, not held ──► reap ──► its extents' packs have fewer live bytes ("touched")
//!                                                      │
//!                      ┌──── no live byte ─────────────┴── few live bytes, or a small pack ──┐
//!                      ▼                                                                     ▼
//!               condemn (sealed)                                         compact: copy the live ranges,
//!               or forget (open)                                         update the extents; then no
//!                      ▼                                                 live byte is left
//!               flush: no crash can bring back a name that refers to it
//!                      ▼
//!               delete the blob, unless another pack is the same blob; forget the row
//! ```
//!
//! In a shared volume other nodes may refer to the same packs, so the lower half of this is another one, and
//! so is compaction: see [`shared`].
//!
//! **Stored bytes stay below twice the live bytes.** Packs that lost bytes are known in memory ([`Garbage`]).
//! While their dead bytes exceed [`START`] percent of the live ones, the emptiest packs are compacted: the
//! emptier a pack, the less is copied for the space that is freed. Above [`HARD`] percent, writers wait a
//! little before each write, so that compaction keeps up.

pub mod all;
mod compact;
mod contents;
pub(crate) mod crowd;
mod dedup;
pub(crate) mod fresh;
pub(crate) mod held;
mod leftovers;
mod reap;
pub(crate) mod reap_queue;
mod relief;
pub(crate) mod shared;
pub(crate) mod shared_orphans;
mod sweep;
pub(crate) mod sweep_state;

pub use reap_queue::Forgets;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::size::MIB;
use base::{Ino, PackNo, time};
use hashbrown::{HashMap, HashSet};
use parking_lot::{Condvar, Mutex};

/// Compaction begins when dead bytes exceed this percentage of the live ones. The lower it is, the more is
/// copied for each byte freed. At 70, the emptiest packs of a volume that is overwritten at random are about
/// one third full.
pub(crate) const START: u64 = 70;
/// From this percentage on, writers wait.
pub(crate) const HARD: u64 = 90;
/// Small volumes may have this many more dead bytes than the percentages allow.
const SLACK: u64 = 4 * MIB;
/// A sealed pack with fewer bytes than this is merged with others.
pub(crate) const SMALL: u32 = MIB as u32;
/// Small packs are merged when there are so many of them ...
pub(crate) const MERGE_COUNT: usize = 16;
/// ... or when they hold this many bytes together. Either way, fewer packs result.
pub(crate) const MERGE_BYTES: u64 = 4 * MIB;
/// At most so many partly dead packs are remembered. The others are found at the next count.
const KNOWN_MAX: usize = 512 << 10;
/// A write adds at most two extents to a page, so the extents of a crowded page are counted once in so many
/// writes.
const LOOK_EVERY: u32 = 256;
/// The longest wait of a writer before a write.
const HOLD_BACK: Duration = Duration::from_millis(50);

/// A sealed pack that is partly dead.
#[derive(Clone, Copy, Debug)]
struct Partly {
    size: u32,
    live: u32,
}

/// A page with many extents.
#[derive(Clone, Copy, Debug)]
struct Crowded {
    /// When it was last written to.
    last: Instant,
    /// How often it was written to since it became crowded.
    writes: u32,
}

#[derive(Default)]
struct State {
    /// Packs that lost live bytes and were not judged yet.
    touched: HashSet<PackNo>,
    partly: HashMap<PackNo, Partly>,
    /// Sealed packs below [`SMALL`], with their sizes.
    small: HashMap<PackNo, u32>,
    /// Packs that could not be read. Nothing is moved out of them.
    given_up: HashSet<PackNo>,
    /// Pages that have many extents since a write.
    crowded: HashMap<(Ino, u32), Crowded>,
}

/// What is known of dead bytes. See the [module](self).
pub(crate) struct Garbage {
    state: Mutex<State>,
    /// Bytes of sealed packs, including dead ones.
    stored: AtomicU64,
    packs: AtomicU64,
    /// Bytes of packs whose blob another pack has too; one of them is not counted.
    twice: AtomicU64,
    garbage: AtomicU64,
    /// All packs have been counted since the volume was opened.
    counted: AtomicBool,
    /// Writers wait here while there is too much garbage.
    less: Condvar,
    gate: Mutex<()>,
}

/// Sums over the sealed packs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) stored_bytes: u64,
    /// Of these, bytes that the origin stores only once for several packs.
    pub(crate) twice_bytes: u64,
    pub(crate) garbage_bytes: u64,
    pub(crate) packs: u64,
    pub(crate) counted: bool,
}

impl Stored {
    /// Whether dead bytes are more than this percentage of the live ones.
    pub(crate) fn exceeds(&self, percent: u64) -> bool {
        let live = self.stored_bytes.saturating_sub(self.garbage_bytes);
        self.counted && self.garbage_bytes > live / 100 * percent + SLACK
    }
}

impl Garbage {
    pub(crate) fn new() -> Garbage {
        Garbage {
            state: Mutex::default(),
            stored: AtomicU64::new(0),
            packs: AtomicU64::new(0),
            twice: AtomicU64::new(0),
            garbage: AtomicU64::new(0),
            counted: AtomicBool::new(false),
            less: Condvar::new(),
            gate: Mutex::default(),
        }
    }

    /// Records that these packs lost live bytes.
    pub(crate) fn touch(&self, packs: &[PackNo]) {
        self.state.lock().touched.extend(packs.iter().copied());
    }

    /// Records that a write left these pages with many extents. Returns those that may now have far too many.
    pub(crate) fn crowd(&self, pages: &[(Ino, u32)]) -> Vec<(Ino, u32)> {
        let now = time::monotonic();
        let mut due = Vec::new();
        let mut state = self.state.lock();
        for page in pages {
            let crowded = state.crowded.entry(*page).or_insert(Crowded { last: now, writes: 0 });
            crowded.last = now;
            crowded.writes += 1;
            if crowded.writes.is_multiple_of(LOOK_EVERY) {
                due.push(*page);
            }
        }
        due
    }

    pub(crate) fn totals(&self) -> Stored {
        Stored {
            stored_bytes: self.stored.load(Ordering::Acquire),
            twice_bytes: self.twice.load(Ordering::Acquire),
            garbage_bytes: self.garbage.load(Ordering::Acquire),
            packs: self.packs.load(Ordering::Acquire),
            counted: self.counted.load(Ordering::Acquire),
        }
    }

    /// Records a pack that was sealed (or found sealed).
    pub(crate) fn sealed(&self, pack: PackNo, size: u32, live: u64) {
        self.stored.fetch_add(u64::from(size), Ordering::AcqRel);
        self.packs.fetch_add(1, Ordering::AcqRel);
        if size < SMALL {
            self.state.lock().small.insert(pack, size);
        }
        self.seen(pack, size, live);
    }

    /// Records how many live bytes a sealed pack has now.
    pub(crate) fn seen(&self, pack: PackNo, size: u32, live: u64) {
        let live = live.min(u64::from(size)) as u32;
        let mut state = self.state.lock();
        let before = state.partly.remove(&pack).map_or(0, |p| u64::from(p.size - p.live));
        let mut dead = 0;
        if live < size && state.partly.len() < KNOWN_MAX {
            state.partly.insert(pack, Partly { size, live });
            dead = u64::from(size - live);
        }
        self.garbage.fetch_add(dead, Ordering::AcqRel);
        self.garbage.fetch_sub(before, Ordering::AcqRel);
    }

    /// Records that a pack's bytes cannot be read. It stays as it is.
    pub(crate) fn give_up(&self, pack: PackNo) {
        let mut state = self.state.lock();
        state.small.remove(&pack);
        state.given_up.insert(pack);
    }

    /// Records that a sealed pack was deleted.
    pub(crate) fn gone(&self, pack: PackNo, size: u32) {
        self.seen(pack, size, u64::from(size));
        self.state.lock().small.remove(&pack);
        self.stored.fetch_sub(u64::from(size), Ordering::AcqRel);
        self.packs.fetch_sub(1, Ordering::AcqRel);
        if !self.totals().exceeds(HARD) {
            self.less.notify_all();
        }
    }

    /// Records that a pack has the same blob as another (`is`), or had it and was deleted.
    pub(crate) fn twice(&self, size: u32, is: bool) {
        if is {
            self.twice.fetch_add(u64::from(size), Ordering::AcqRel);
        } else {
            let less = |sum: u64| Some(sum.saturating_sub(u64::from(size)));
            let _ = self.twice.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }

    /// Records that all packs were counted.
    pub(crate) fn all_counted(&self) {
        self.counted.store(true, Ordering::Release);
    }

    /// Whether packs lost bytes and were not judged since then.
    pub(crate) fn has_touched(&self) -> bool {
        !self.state.lock().touched.is_empty()
    }

    pub(crate) fn take_touched(&self) -> Vec<PackNo> {
        self.state.lock().touched.drain().collect()
    }

    /// Delays a writer while there is far too much garbage. `wake` wakes the sweeper.
    pub(crate) fn hold_back(&self, wake: impl FnOnce()) {
        if self.totals().exceeds(HARD) {
            wake();
            let mut gate = self.gate.lock();
            self.less.wait_for(&mut gate, HOLD_BACK);
        }
    }

    /// The partly dead packs with the smallest share of live bytes: at most `count`, and none with more than
    /// `percent` live.
    pub(crate) fn emptiest(&self, count: usize, percent: u32) -> Vec<PackNo> {
        let state = self.state.lock();
        let share = |p: &Partly| u64::from(p.live) * 1000 / u64::from(p.size.max(1));
        let mut found: Vec<(u64, PackNo)> = state
            .partly
            .iter()
            .map(|(pack, partly)| (share(partly), *pack))
            .filter(|(share, pack)| *share < u64::from(percent) * 10 && !state.given_up.contains(pack))
            .collect();
        if found.len() > count {
            found.select_nth_unstable(count);
            found.truncate(count);
        }
        found.sort_unstable();
        found.into_iter().map(|(_, pack)| pack).collect()
    }

    /// Small packs that are worth merging now, oldest first.
    pub(crate) fn to_merge(&self) -> Vec<PackNo> {
        let state = self.state.lock();
        let total: u64 = state.small.values().map(|size| u64::from(*size)).sum();
        if state.small.len() < 2 || (state.small.len() < MERGE_COUNT && total < MERGE_BYTES) {
            return Vec::new();
        }
        let mut packs: Vec<PackNo> = state.small.keys().copied().collect();
        packs.sort_unstable();
        packs.truncate(256);
        packs
    }

    /// Takes crowded pages that were not written to for `quiet`, at most `count`.
    pub(crate) fn take_crowded(&self, quiet: Duration, count: usize) -> Vec<(Ino, u32)> {
        let mut state = self.state.lock();
        let now = time::monotonic();
        let old = |page: &Crowded| now.saturating_duration_since(page.last) >= quiet;
        let pages: Vec<(Ino, u32)> =
            state.crowded.iter().filter(|(_, page)| old(page)).take(count).map(|(page, _)| *page).collect();
        for page in &pages {
            state.crowded.remove(page);
        }
        pages
    }
}
