//! A second copy of what fsync(2) synced: on the disk of one other node, until the origin has it.
//!
//! ```text
//!   commit names ranges of this node's packs ──► unsent ──► being sent ──► sent: another node has synced
//!   them ([`Named`])               ▲                         │ that node is gone └─────────────────────────┘
//!   the origin has the pack ──► nothing more is known of it; the other node drops its copy
//! ```
//!
//! One thread sends, for all callers of fsync(2) at once ([`Core::keeper`]). All copies are on one node. If
//! it fails, is full or is gone, everything goes to another one.
//!
//! - **A range counts as sent** when the other node has synced it, in the same run of its program in which it
//!   was sent. Ranges that were written in a run that has ended may not be durable there.
//! - **A range that is named never changes.** If it is named again nevertheless while it is being sent, it is
//!   sent again.
//! - **fsync(2) never returns with less.** If no node keeps the ranges, it waits for the origin.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base::{PackNo, time};
use hashbrown::HashSet;
use meta::shared::Named;
use meta::store::FreshData;
use parking_lot::{Condvar, Mutex};

use super::SessionId;

/// A node that failed to keep ranges is not asked again for this long.
const AVOID: Duration = Duration::from_secs(30);

/// Sorted ranges (first byte, end) that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    fn add(&mut self, (mut from, mut to): (u32, u32)) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|range| range.1 < from);
        let mut last = first;
        while let Some(range) = self.0.get(last).filter(|range| range.0 <= to) {
            (from, to) = (from.min(range.0), to.max(range.1));
            last += 1;
        }
        self.0.splice(first..last, [(from, to)]);
    }

    fn remove(&mut self, (from, to): (u32, u32)) {
        let cut = |range: &(u32, u32)| {
            let (before, after) = ((range.0, range.1.min(from)), (range.0.max(to), range.1));
            [before, after].into_iter().filter(|part| part.0 < part.1)
        };
        self.0 = self.0.iter().flat_map(cut).collect();
    }

    fn take_all(&mut self, from: &mut Ranges) {
        std::mem::take(&mut from.0).into_iter().for_each(|range| self.add(range));
    }

    fn has_all(&self, other: &Ranges) -> bool {
        other.0.iter().all(|(from, to)| self.0.iter().any(|range| range.0 <= *from && *to <= range.1))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().copied()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(from, to)| u64::from(to - from)).sum()
    }
}

/// The ranges of one pack that were named.
#[derive(Default)]
struct Pack {
    unsent: Ranges,
    flying: Ranges,
    sent: Ranges,
}

/// The node that has the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keeper {
    pub(crate) node: SessionId,
    /// The number of its run. None before its first answer.
    pub(crate) run: Option<u64>,
}

#[derive(Default)]
struct State {
    packs: HashMap<PackNo, Pack>,
    keeper: Option<Keeper>,
    avoid: HashMap<u32, Instant>,
    /// Packs that could not be read. Only the origin can have them.
    unreadable: HashSet<PackNo>,
    /// Packs that the keeper may drop.
    dropped: Vec<PackNo>,
    /// How often sending failed, or had no node to send to.
    failures: u64,
    why: String,
    /// There is something to send now.
    kicked: bool,
    /// There was, and no node to send it to. This is tried again.
    stalled: bool,
    stop: bool,
}

/// The state of copies. See the [module](self).
#[derive(Default)]
pub struct Keeping {
    state: Mutex<State>,
    /// The sender waits here.
    work: Condvar,
    /// Callers of fsync(2) wait here.
    done: Condvar,
}

/// Where the second copies of this node's ranges are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepingStats {
    /// The number of the node that keeps them.
    pub node: Option<u32>,
    /// Bytes that it keeps.
    pub bytes: u64,
}

/// What a caller of fsync(2) waits for: ranges by pack.
pub(crate) type Wanted = HashMap<PackNo, Ranges>;

impl Named for Keeping {
    fn named(&self, fresh: &[FreshData]) {
        let mut state = self.state.lock();
        for data in fresh {
            let range = (data.offset, data.offset.saturating_add(data.len));
            let pack = state.packs.entry(data.pack).or_default();
            pack.flying.remove(range);
            pack.sent.remove(range);
            pack.unsent.add(range);
        }
    }
}

impl Keeping {
    /// Where the copies are.
    pub fn stats(&self) -> KeepingStats {
        let state = self.state.lock();
        let bytes = state.packs.values().map(|pack| pack.sent.bytes()).sum();
        let node = state.keeper.filter(|_| bytes > 0).map(|keeper| keeper.node.node);
        KeepingStats { node, bytes }
    }

    /// All ranges that are named and on this node only, as far as it knows.
    pub(crate) fn wanted(&self) -> Wanted {
        let state = self.state.lock();
        let mut wanted = Wanted::new();
        for (no, pack) in &state.packs {
            let mut ranges = pack.unsent.clone();
            pack.flying.iter().for_each(|range| ranges.add(range));
            if !ranges.is_empty() {
                wanted.insert(*no, ranges);
            }
        }
        wanted
    }

    /// Whether all of this is kept, or in the origin.
    pub(crate) fn has(&self, wanted: &Wanted) -> bool {
        self.state.lock().has(wanted)
    }

    /// How often sending has failed, and why the last time.
    pub(crate) fn failures(&self) -> (u64, String) {
        let state = self.state.lock();
        (state.failures, state.why.clone())
    }

    /// Whether there is something to send, or a node with copies to look after.
    pub(crate) fn needs_a_node(&self) -> bool {
        let state = self.state.lock();
        state.kicked || state.keeper.is_some() && state.packs.values().any(|pack| !pack.sent.is_empty())
    }

    /// Notes that it is unknown which nodes there are, and why.
    pub(crate) fn cannot_choose(&self, why: String) {
        let mut state = self.state.lock();
        state.failures += u64::from(state.kicked);
        state.stall();
        state.why = why;
        self.done.notify_all();
    }

    /// Makes the sender begin.
    pub(crate) fn kick(&self) {
        self.state.lock().kicked = true;
        self.work.notify_one();
    }

    /// Waits until something has changed, at most for this time. Returns at once if all of this is kept, or
    /// if sending has failed more often than `failures`.
    pub(crate) fn wait(&self, wanted: &Wanted, failures: Option<u64>, time: Duration) {
        let mut state = self.state.lock();
        if !state.has(wanted) && failures.is_none_or(|failures| state.failures <= failures) {
            self.done.wait_for(&mut state, time);
        }
    }

    /// Waits for work, at most for this time. What had no node to be sent to is work after this time. Returns
    /// false when the volume is closed.
    pub(crate) fn next(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.kicked && !state.stop {
            self.work.wait_for(&mut state, time);
        }
        state.kicked |= std::mem::take(&mut state.stalled);
        !state.stop
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
        self.done.notify_all();
    }

    /// The packs of which anything is known.
    pub(crate) fn packs(&self) -> Vec<PackNo> {
        self.state.lock().packs.keys().copied().collect()
    }

    /// The origin has these packs, or nothing refers to them.
    pub(crate) fn forget(&self, packs: &[PackNo]) {
        let mut state = self.state.lock();
        for no in packs {
            state.unreadable.remove(no);
            if state.packs.remove(no).is_some_and(|pack| !pack.sent.is_empty()) {
                state.dropped.push(*no);
            }
        }
        self.done.notify_all();
    }

    /// The packs that were forgotten since, and the node that has copies of them.
    pub(crate) fn take_dropped(&self) -> Option<(Keeper, Vec<PackNo>)> {
        let mut state = self.state.lock();
        let dropped = std::mem::take(&mut state.dropped);
        state.keeper.filter(|_| !dropped.is_empty()).map(|keeper| (keeper, dropped))
    }

    /// Which node is to be asked now: the one that has copies, or the first that has not failed lately. If
    /// the former is not among these any more, everything is to be sent again.
    pub(crate) fn choose(&self, nodes: &[SessionId]) -> Option<Keeper> {
        let now = time::monotonic();
        let mut state = self.state.lock();
        state.avoid.retain(|_, until| *until > now);
        if let Some(keeper) = state.keeper {
            // A node that has joined again without a restart still has its copies; its run says so.
            if let Some(node) = nodes.iter().find(|node| node.node == keeper.node.node) {
                return Some(Keeper { node: *node, ..keeper });
            }
            state.put_back();
        }
        let node = nodes.iter().find(|node| !state.avoid.contains_key(&node.node)).copied();
        let keeper = node.map(|node| Keeper { node, run: None });
        state.keeper = keeper;
        if keeper.is_none() {
            let why =
                if nodes.is_empty() { "no other node has the volume mounted" } else { "each has failed" };
            // What failed before says more.
            if nodes.is_empty() || state.why.is_empty() {
                why.clone_into(&mut state.why);
            }
            state.failures += 1;
            state.stall();
            self.done.notify_all();
        }
        keeper
    }

    /// Takes what is to be sent, if a caller waits for it.
    pub(crate) fn take(&self) -> Vec<(PackNo, Ranges)> {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.kicked) {
            return Vec::new();
        }
        let State { packs, unreadable, .. } = &mut *state;
        let mut taken = Vec::new();
        for (no, pack) in
            packs.iter_mut().filter(|(no, pack)| !pack.unsent.is_empty() && !unreadable.contains(*no))
        {
            let Pack { unsent, flying, .. } = pack;
            flying.take_all(unsent);
            taken.push((*no, flying.clone()));
        }
        taken.sort_unstable_by_key(|(no, _)| *no);
        taken
    }

    /// A pack cannot be read now. It is left to the origin.
    pub(crate) fn cannot_read(&self, no: PackNo, why: String) {
        let mut state = self.state.lock();
        state.unreadable.insert(no);
        state.failures += 1;
        state.why = why;
        if let Some(pack) = state.packs.get_mut(&no) {
            let Pack { unsent, flying, .. } = pack;
            unsent.take_all(flying);
        }
        self.done.notify_all();
    }

    /// What was taken is synced at the keeper, in its run of this number.
    pub(crate) fn sent(&self, keeper: Keeper, run: u64) {
        let mut state = self.state.lock();
        if state.keeper.is_some_and(|known| known.node.node == keeper.node.node) {
            state.keeper = Some(Keeper { run: Some(run), ..keeper });
            for pack in state.packs.values_mut() {
                let Pack { flying, sent, .. } = pack;
                sent.take_all(flying);
            }
            state.why.clear();
        }
        self.done.notify_all();
    }

    /// The keeper failed. Everything goes to another one.
    pub(crate) fn failed(&self, keeper: Keeper, why: String) {
        let mut state = self.state.lock();
        state.avoid.insert(keeper.node.node, time::monotonic() + AVOID);
        state.failures += 1;
        state.why = why;
        state.put_back();
        self.done.notify_all();
    }

    /// The keeper was started anew since it had the copies. It is sent everything again.
    pub(crate) fn restarted(&self) {
        let mut state = self.state.lock();
        let node = state.keeper.map(|keeper| keeper.node);
        state.put_back();
        state.keeper = node.map(|node| Keeper { node, run: None });
    }
}

impl State {
    fn has(&self, wanted: &Wanted) -> bool {
        let is_kept = |(no, ranges): (&PackNo, &Ranges)| {
            self.packs.get(no).is_none_or(|pack| pack.sent.has_all(ranges))
        };
        wanted.iter().all(is_kept)
    }

    /// There is no node to send to.
    fn stall(&mut self) {
        let is_left = self.packs.values().any(|pack| !pack.unsent.is_empty());
        self.stalled |= std::mem::take(&mut self.kicked) && is_left;
    }

    /// Nothing counts as sent, and all of it is to be sent.
    fn put_back(&mut self) {
        self.keeper = None;
        // It finds out by itself that the origin has them.
        self.dropped.clear();
        for pack in self.packs.values_mut() {
            let Pack { unsent, flying, sent } = pack;
            unsent.take_all(flying);
            unsent.take_all(sent);
            self.kicked |= !unsent.is_empty();
        }
    }
}

#[cfg(test)]
mod tests;
