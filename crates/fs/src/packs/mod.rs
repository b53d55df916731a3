//! This node's open packs, which take all new bytes.
//!
//! ```text
//!             full mebibytes             everything else          what compaction moves
//!                   |                          |                          |
//!        a pack for each (file, page)     the shared pack          the pack of moved bytes
//!                   \__________________________|__________________________/
//!                                  full, idle or one too many
//!                                               v
//!                                    closed: no new ranges are allocated
//!                                               v      the last slot is released
//!                                       sealed ([`seal`])
//! ```
//!
//! A *slot* is a range of an open pack that was allocated to one writer. It is held until the names that
//! mention the range are committed, or the write failed. So in a closed pack without slots, the live bytes
//! are exactly those that the names refer to, and it can be judged and sealed. Ranges are allocated under a
//! short lock; bytes are written outside of it.
//!
//! A large file's writes of 1 MiB or more go to a pack that belongs to one page. So a large file becomes
//! whole blobs that can be found again, moved and deleted with it. In such a pack every byte has the offset
//! that it has in the page, so equal pages become equal blobs ([`open`]). Small writes share a pack, so small
//! files do not cost a blob each.

mod open;
pub(crate) mod seal;
pub(crate) mod seal_shared;
pub(crate) mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::size::MIB;
use base::{Ino, PackNo, time};
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex, MutexGuard};

pub(crate) use open::{OpenPack, Slot};

/// A write of at least this many bytes starts a pack for its page.
pub(crate) const OWN_PACK_MIN: u32 = MIB as u32;
/// At the end of a file of 1 MiB or more, a write of this many bytes does so too: most likely more follows.
pub(crate) const OWN_PACK_APPEND_MIN: u32 = 64 << 10;
/// At most so many packs of single pages are kept open. Each is a file descriptor and up to 4 MiB that is no
/// blob yet.
const OWN_PACKS_MAX: usize = 32;
/// A pack that nothing was added to for this long is sealed.
const IDLE: Duration = Duration::from_secs(1);
/// A pack below 1 MiB waits longer, because it would have to be merged with others later. This is the default
/// of the option.
pub(crate) const IDLE_SMALL: Duration = Duration::from_secs(5);
/// Writers wait (for a while) when so many closed packs are waiting to be sealed.
const CLOSED_MAX: usize = 48;

/// The writer of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A file's page.
    Page {
        ino: Ino,
        page: u32,
        /// Offset in the page.
        at: u32,
        /// Offset in the page at which a pack for this page would begin.
        base: u32,
        /// Whether the write may start a pack for this page.
        own: Own,
    },
    /// Compaction, and other code that moves bytes.
    Mover,
}

impl Writer {
    /// A page whose bytes are copied in order.
    pub(crate) fn whole_page(ino: Ino, page: u32, len: u32) -> Writer {
        let own = if len >= OWN_PACK_MIN { Own::Yes } else { Own::No };
        Writer::Page { ino, page, at: 0, base: 0, own }
    }
}

/// Whether a write may start a pack for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// The write is small.
    No,
    /// The write is not large, but most likely more follows: only while few such packs are open.
    IfFew,
    /// The bytes are part of a large write.
    Yes,
}

#[derive(Default)]
struct State {
    shared: Option<Arc<OpenPack>>,
    moved: Option<Arc<OpenPack>>,
    own: HashMap<(Ino, u32), Arc<OpenPack>>,
    /// Packs that take no more ranges, oldest first. They are sealed when their slots are released.
    closed: Vec<Arc<OpenPack>>,
    /// Closed packs that are being sealed.
    sealing: Vec<PackNo>,
    /// Packs that the previous run left open.
    adopted: Vec<PackNo>,
    /// Packs with damaged bytes that something refers to. They cannot become blobs.
    quarantined: Vec<PackNo>,
    /// Packs that the previous run sealed, with damaged bytes here and no sound blob in the origin.
    lost: Vec<PackNo>,
    /// The sealer was woken because there is work.
    woken: bool,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Held while a pack is created, which takes a file and a commit. Taken before `state`.
    creating: Mutex<()>,
    /// The sealer waits here.
    work: Condvar,
    /// Writers wait here while too many packs wait to be sealed.
    room: Condvar,
    /// The number of packs that are closed and not yet sealed.
    closed: AtomicU32,
    started: Instant,
    idle_small: Duration,
}

impl Shared {
    fn wake_sealer(&self) {
        let mut state = self.state.lock();
        state.woken = true;
        drop(state);
        self.work.notify_one();
    }

    fn now_ms(&self) -> u64 {
        time::monotonic().duration_since(self.started).as_millis() as u64
    }
}

/// The open packs. See the [module](self).
#[derive(Clone)]
pub(crate) struct Packs(Arc<Shared>);

impl Packs {
    /// `idle_small`: a pack below 1 MiB is sealed after this idle time.
    pub(crate) fn new(idle_small: Duration) -> Packs {
        Packs(Arc::new(Shared {
            state: Mutex::default(),
            creating: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            closed: AtomicU32::new(0),
            started: time::monotonic(),
            idle_small,
        }))
    }

    /// Allocates `len` bytes (1 to 4 MiB) of an open pack. `begin` creates a new pack and returns its number.
    /// It is called once for every 4 MiB. Meanwhile only writers that need a new pack too have to wait.
    pub(crate) fn reserve<E>(
        &self,
        writer: Writer,
        len: u32,
        begin: impl FnOnce() -> Result<PackNo, E>,
    ) -> Result<Slot, E> {
        let mut state = self.0.state.lock();
        if let Some((pack, offset)) = Self::place(&state, writer, len) {
            return Ok(self.allocate(&mut state, pack, offset, len, false));
        }
        drop(state);
        let _creating = self.0.creating.lock();
        // Another writer may have begun one while this one waited.
        let mut state = self.0.state.lock();
        if let Some((pack, offset)) = Self::place(&state, writer, len) {
            return Ok(self.allocate(&mut state, pack, offset, len, false));
        }
        let base = Self::begins_own(&state, writer);
        let no = MutexGuard::unlocked(&mut state, begin)?;
        let pack = Arc::new(OpenPack::new(no, base, 0));
        let closed = self.begin_at(&mut state, writer, base.is_some(), pack.clone());
        let offset = pack.fits(writer, len).unwrap_or(0);
        Ok(self.allocate(&mut state, pack, offset, len, closed))
    }

    /// Gives a writer a range of a pack. `closed`: another pack was closed just now.
    fn allocate(
        &self,
        state: &mut State,
        pack: Arc<OpenPack>,
        offset: u32,
        len: u32,
        mut closed: bool,
    ) -> Slot {
        pack.give(offset, len);
        pack.slots.fetch_add(1, Ordering::AcqRel);
        pack.last_ms.store(self.0.now_ms(), Ordering::Release);
        if pack.is_full() {
            closed |= self.close(state, &pack);
        }
        if closed {
            state.woken = true;
            self.0.work.notify_one();
        }
        Slot { pack, offset, len, packs: self.0.clone() }
    }

    /// The open pack that has space for this write, if any, and the offset in it.
    fn place(state: &State, writer: Writer, len: u32) -> Option<(Arc<OpenPack>, u32)> {
        let fits = |pack: &Arc<OpenPack>| pack.fits(writer, len).map(|at| (pack.clone(), at));
        match writer {
            Writer::Mover => state.moved.as_ref().and_then(fits),
            Writer::Page { ino, page, .. } => {
                let own =
                    if state.own.is_empty() { None } else { state.own.get(&(ino, page)).and_then(fits) };
                match own {
                    None if Self::begins_own(state, writer).is_none() => state.shared.as_ref().and_then(fits),
                    own => own,
                }
            }
        }
    }

    /// The offset in the page at which its own pack begins, if this write starts one.
    fn begins_own(state: &State, writer: Writer) -> Option<u32> {
        match writer {
            Writer::Page { base, own: Own::Yes, .. } => Some(base),
            Writer::Page { base, own: Own::IfFew, .. } if state.own.len() < OWN_PACKS_MAX => Some(base),
            _ => None,
        }
    }

    /// Installs a new pack and closes the one that it replaces. Returns true if a pack was closed.
    fn begin_at(&self, state: &mut State, writer: Writer, own: bool, pack: Arc<OpenPack>) -> bool {
        let before = match writer {
            Writer::Mover => state.moved.replace(pack),
            Writer::Page { ino, page, .. } if own => {
                let before = state.own.insert((ino, page), pack);
                let oldest = state.own.iter().min_by_key(|(_, p)| p.last_ms.load(Ordering::Acquire).max(1));
                match oldest {
                    Some((key, _))
                        if before.is_none() && state.own.len() > OWN_PACKS_MAX && *key != (ino, page) =>
                    {
                        let key = *key;
                        state.own.remove(&key)
                    }
                    _ => before,
                }
            }
            Writer::Page { .. } => state.shared.replace(pack),
        };
        let Some(before) = before else {
            return false;
        };
        self.push_closed(state, before);
        true
    }

    /// Removes the pack from where writers find it.
    fn close(&self, state: &mut State, pack: &Arc<OpenPack>) -> bool {
        let is = |other: &Arc<OpenPack>| Arc::ptr_eq(other, pack);
        if state.shared.as_ref().is_some_and(is) {
            state.shared = None;
        } else if state.moved.as_ref().is_some_and(is) {
            state.moved = None;
        } else {
            state.own.retain(|_, other| !is(other));
        }
        self.push_closed(state, pack.clone());
        true
    }

    fn push_closed(&self, state: &mut State, pack: Arc<OpenPack>) {
        pack.closed.store(true, Ordering::Release);
        state.closed.push(pack);
        self.0.closed.store(state.closed.len() as u32, Ordering::Release);
    }

    /// Waits, but not long, while too many packs wait to be sealed.
    pub(crate) fn wait_for_room(&self) {
        if self.0.closed.load(Ordering::Acquire) as usize <= CLOSED_MAX {
            return;
        }
        let mut state = self.0.state.lock();
        if state.closed.len() > CLOSED_MAX {
            self.0.room.wait_for(&mut state, Duration::from_millis(200));
        }
    }

    /// Closes the packs that were idle for long enough, or every pack if `all`.
    fn close_idle(&self, state: &mut State, all: bool) {
        let now = self.0.now_ms();
        let old = |pack: &Arc<OpenPack>| {
            let idle = now.saturating_sub(pack.last_ms.load(Ordering::Acquire));
            let small = u64::from(pack.given.load(Ordering::Acquire)) < MIB;
            all || u128::from(idle) >= if small { self.0.idle_small } else { IDLE }.as_millis()
        };
        let mut out: Vec<Arc<OpenPack>> = Vec::new();
        out.extend(state.shared.take_if(|pack| old(pack)));
        out.extend(state.moved.take_if(|pack| old(pack)));
        state.own.retain(|_, pack| {
            let keep = !old(pack);
            if !keep {
                out.push(pack.clone());
            }
            keep
        });
        out.into_iter().for_each(|pack| self.push_closed(state, pack));
    }

    /// Closes the pack of this page, if there is one: nothing that it holds of the page is needed any more.
    pub(crate) fn close_own(&self, ino: Ino, page: u32) {
        let mut state = self.0.state.lock();
        if let Some(pack) = state.own.remove(&(ino, page)) {
            self.push_closed(&mut state, pack);
            state.woken = true;
            self.0.work.notify_one();
        }
    }

    /// Closes every open pack, so that all are sealed soon.
    pub(crate) fn close_all(&self) {
        let mut state = self.0.state.lock();
        self.close_idle(&mut state, true);
        state.woken = true;
        self.0.work.notify_one();
    }

    /// Waits for a closed pack without slots, and takes it. None after `timeout` or when stopped.
    fn next_to_seal(&self, timeout: Duration) -> Option<Arc<OpenPack>> {
        let mut state = self.0.state.lock();
        for waited in [false, true] {
            self.close_idle(&mut state, false);
            let ready = |pack: &Arc<OpenPack>| pack.slots.load(Ordering::Acquire) == 0;
            if let Some(at) = state.closed.iter().position(ready) {
                let pack = state.closed.remove(at);
                state.sealing.push(pack.no);
                self.0.closed.store(state.closed.len() as u32, Ordering::Release);
                return Some(pack);
            }
            if waited || state.stop {
                break;
            }
            if !state.woken {
                self.0.work.wait_for(&mut state, timeout);
            }
            state.woken = false;
        }
        None
    }

    /// Ends the sealing of a pack that [`Packs::next_to_seal`] returned. With `again`, it goes back and is
    /// sealed later.
    fn sealed(&self, pack: Arc<OpenPack>, again: bool) {
        let mut state = self.0.state.lock();
        state.sealing.retain(|no| *no != pack.no);
        if again {
            self.push_closed(&mut state, pack);
        }
        drop(state);
        self.0.room.notify_all();
    }

    /// Takes over a pack that the previous run left open. It is sealed when possible.
    pub(crate) fn adopt(&self, no: PackNo, len: u32) {
        let pack = Arc::new(OpenPack::new(no, None, len));
        let mut state = self.0.state.lock();
        state.adopted.push(no);
        self.push_closed(&mut state, pack);
    }

    /// Whether the pack was left open by the previous run, so that this run seals it, if at all.
    pub(crate) fn was_adopted(&self, no: PackNo) -> bool {
        self.0.state.lock().adopted.contains(&no)
    }

    /// Quarantines a damaged pack until the volume is opened again.
    fn quarantine(&self, no: PackNo) {
        self.0.state.lock().quarantined.push(no);
    }

    /// Whether the pack is quarantined.
    pub(crate) fn is_quarantined(&self, no: PackNo) -> bool {
        self.0.state.lock().quarantined.contains(&no)
    }

    /// Records that neither this node nor the origin has all of a pack that the previous run sealed. What can
    /// be read of it is read from its file as an open pack.
    pub(crate) fn lose(&self, no: PackNo) {
        self.0.state.lock().lost.push(no);
    }

    /// Whether the pack was passed to [`Packs::lose`].
    pub(crate) fn is_lost(&self, no: PackNo) -> bool {
        self.0.state.lock().lost.contains(&no)
    }

    /// Whether the pack is quarantined or lost.
    pub(crate) fn is_damaged(&self, no: PackNo) -> bool {
        let state = self.0.state.lock();
        state.quarantined.contains(&no) || state.lost.contains(&no)
    }

    /// Forgets a damaged pack, which was deleted.
    pub(crate) fn forget_damage(&self, no: PackNo) {
        let mut state = self.0.state.lock();
        state.quarantined.retain(|other| *other != no);
        state.lost.retain(|other| *other != no);
    }

    /// One of the quarantined packs.
    pub(crate) fn any_quarantined(&self) -> Option<PackNo> {
        self.0.state.lock().quarantined.first().copied()
    }

    /// Whether the pack holds exactly its first `len` bytes, or is being sealed.
    pub(crate) fn is_all_of(&self, no: PackNo, len: u32) -> bool {
        let state = self.0.state.lock();
        let packs = state.shared.iter().chain(&state.moved).chain(state.own.values()).chain(&state.closed);
        let mut found = packs.filter(|pack| pack.no == no);
        found.next().map_or_else(|| state.sealing.contains(&no), |pack| pack.len() == len)
    }

    /// Whether the pack is open, closed or being sealed.
    pub(crate) fn has(&self, no: PackNo) -> bool {
        let state = self.0.state.lock();
        let is = |pack: &Arc<OpenPack>| pack.no == no;
        state.shared.iter().any(is)
            || state.moved.iter().any(is)
            || state.own.values().any(is)
            || state.closed.iter().any(is)
            || state.sealing.contains(&no)
    }

    /// Whether the pack is being sealed.
    pub(crate) fn is_sealing(&self, no: PackNo) -> bool {
        self.0.state.lock().sealing.contains(&no)
    }

    /// The number of packs that are open or closed but not sealed, and the bytes they hold.
    pub(crate) fn open_count(&self) -> (u64, u64) {
        let state = self.0.state.lock();
        let all = state.shared.iter().chain(&state.moved).chain(state.own.values()).chain(&state.closed);
        all.fold((state.sealing.len() as u64, 0), |(n, bytes), pack| (n + 1, bytes + u64::from(pack.len())))
    }

    /// Closes every open pack. Returns all packs that are not sealed yet, including those closed earlier.
    pub(crate) fn close_and_name(&self) -> Vec<PackNo> {
        let mut state = self.0.state.lock();
        self.close_idle(&mut state, true);
        state.woken = true;
        self.0.work.notify_one();
        state.closed.iter().map(|pack| pack.no).chain(state.sealing.iter().copied()).collect()
    }

    /// Waits until all these packs are sealed. Returns false when `until` passes first.
    pub(crate) fn wait_sealed(&self, packs: &[PackNo], until: Instant) -> bool {
        let mut state = self.0.state.lock();
        loop {
            let left =
                |no: &PackNo| state.sealing.contains(no) || state.closed.iter().any(|pack| pack.no == *no);
            if !packs.iter().any(left) {
                return true;
            }
            if state.stop || self.0.room.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
    }

    /// Whether every closed pack is sealed.
    pub(crate) fn all_closed_sealed(&self) -> bool {
        let state = self.0.state.lock();
        state.sealing.is_empty() && state.closed.is_empty()
    }

    /// Whether no pack is open at all.
    #[cfg(test)]
    pub(crate) fn all_sealed(&self) -> bool {
        let state = self.0.state.lock();
        let none = state.shared.is_none() && state.moved.is_none() && state.own.is_empty();
        none && state.sealing.is_empty() && state.closed.is_empty()
    }

    /// Makes the sealer end.
    pub(crate) fn stop(&self) {
        self.0.state.lock().stop = true;
        self.0.work.notify_all();
        self.0.room.notify_all();
    }
}
