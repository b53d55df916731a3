//! The requests of the guest's kernel that have no reply yet, each in a slot.
//!
//! A slot holds the whole request, so that it can be sent again after the connection broke. The server grants
//! slots and bytes. While there are none, requests wait here in a line. The reader threads go on, because the
//! kernel tells them of signals, and a program that is killed must not wait for a slot. They pause only while
//! the line holds many bytes.
//!
//! Requests that wait for a lock have slots of their own ([`WAITS_AT`]), because the request that releases
//! the lock needs a slot too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::rooms::Kept;
use crate::request::{self, Asked};
use crate::slots::{WAITS, WAITS_AT};

/// While the requests in the line take more memory than this, readers pause.
const LINE_BYTES: usize = 32 << 20;

/// Where a request was sent: the connection, and the session that it belonged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The number of the connection. No two have the same.
    pub link: u64,
    /// The number of the session.
    pub session: u64,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The request's slot.
    pub slot: u16,
    /// The request's number in the slot.
    pub seq: u64,
    /// The request's header.
    pub asked: Asked,
    /// The descriptor of the device from which it came, and to which its reply goes.
    pub device: usize,
    /// All of it.
    pub request: Arc<Kept>,
    /// Where it was sent last. `None`: nowhere.
    pub sent: Option<Sent>,
    /// How often it was sent before the last time.
    pub attempt: u8,
    /// Whether the request was sent more than once.
    pub resent: bool,
    /// A signal reached the caller.
    pub signalled: bool,
    /// When the server was told that the caller is being killed.
    pub killed: Option<Instant>,
    /// The kernel was given an error in its place, and waits no more.
    pub given_up: bool,
    /// The kernel does not wait for a reply, and the server must get it all the same.
    pub own: bool,
    cost: u32,
}

/// A request that came from the kernel.
#[derive(Clone, Debug)]
pub struct New {
    /// The request's header.
    pub asked: Asked,
    /// The descriptor of the device from which it came, and to which its reply goes.
    pub device: usize,
    /// All of it.
    pub request: Arc<Kept>,
    /// What it costs of the bytes that the server granted.
    pub cost: u32,
    /// When it was read, if it is traced.
    pub traced: Option<Instant>,
    /// Whether the request ends locks that the server must be told of.
    pub ends_locks: bool,
    /// A signal reached the caller.
    pub signalled: bool,
}

/// Slots that follow one another.
#[derive(Default)]
struct Row {
    entries: Vec<Option<Entry>>,
    seqs: Vec<u64>,
    free: Vec<u16>,
}

impl Row {
    fn grow(&mut self, to: u16, first: u16) {
        for at in self.entries.len() as u16..to {
            self.entries.push(None);
            self.seqs.push(0);
            self.free.push(first + at);
        }
    }
}

#[derive(Default)]
struct State {
    usual: Row,
    waits: Row,
    bytes: u64,
    granted: u64,
    closed: bool,
    /// Requests are answered EIO instead of waiting for a slot.
    failing: bool,
    /// Requests that wait for a slot, and the memory that they take.
    line: VecDeque<New>,
    line_bytes: usize,
}

impl State {
    /// The row of a slot, and the place in it.
    fn row(&mut self, slot: u16) -> (&mut Row, usize) {
        match slot.checked_sub(WAITS_AT) {
            Some(at) => (&mut self.waits, at.into()),
            None => (&mut self.usual, slot.into()),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        self.usual.entries.iter().chain(&self.waits.entries).flatten()
    }

    /// Enters a request in a free slot.
    fn enter(&mut self, new: &New, own: bool, waits: bool) -> Option<(u16, u64)> {
        let cost = if waits { 0 } else { new.cost };
        let slot = match waits {
            true => self.waits.free.pop()?,
            false if self.bytes > 0 && self.bytes + u64::from(cost) > self.granted => return None,
            false => self.usual.free.pop()?,
        };
        self.bytes += u64::from(cost);
        let (row, at) = self.row(slot);
        row.seqs[at] += 1;
        let seq = row.seqs[at];
        let entry = Entry {
            slot,
            seq,
            asked: new.asked,
            device: new.device,
            request: Arc::clone(&new.request),
            sent: None,
            attempt: 0,
            resent: false,
            signalled: new.signalled,
            killed: None,
            given_up: false,
            own,
            cost,
        };
        row.entries[at] = Some(entry);
        Some((slot, seq))
    }

    /// Why no request may enter.
    fn refuses(&self) -> Option<NoSlot> {
        match (self.closed, self.failing) {
            (true, _) => Some(NoSlot::Closed),
            (_, true) => Some(NoSlot::Failing),
            _ => None,
        }
    }

    fn take_from_line(&mut self, at: usize) -> Option<New> {
        let new = self.line.remove(at)?;
        self.line_bytes -= new.request.weight();
        Some(new)
    }
}

/// All slots of a session.
#[derive(Default)]
pub struct Flight {
    state: Mutex<State>,
    /// The line has become shorter, or is over.
    shorter: Condvar,
    /// The length of the line.
    waiting: AtomicUsize,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// The server is away for too long.
    Failing,
    /// The mount has ended.
    Closed,
    /// Too many requests wait for a lock.
    Locks,
}

/// The slot and the number of a request that was entered, or why there is no slot.
pub type Entered = Result<(u16, u64), NoSlot>;

impl Flight {
    /// The server grants so many slots and bytes. Slots in use stay. `locks`: requests that wait for a lock
    /// have slots of their own.
    pub fn grant(&self, slots: u16, bytes: u32, locks: bool) {
        let mut state = self.state.lock();
        state.usual.grow(slots, 0);
        state.waits.grow(if locks { WAITS } else { 0 }, WAITS_AT);
        state.granted = u64::from(bytes);
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.state.lock().usual.entries.len()
    }

    /// Enters a request. `None`: there is no slot, or there are not enough bytes, and it waits in the line. A
    /// request that waits for a lock does not wait in the line, and costs nothing.
    ///
    /// # Errors
    /// [`NoSlot`].
    pub fn enter(&self, new: New) -> Result<Option<(u16, u64)>, NoSlot> {
        let mut state = self.state.lock();
        if let Some(why) = state.refuses() {
            return Err(why);
        }
        if !state.waits.entries.is_empty() && request::waits_for_lock(&new.asked, &new.request) {
            return state.enter(&new, false, true).map(Some).ok_or(NoSlot::Locks);
        }
        if state.line.is_empty()
            && let Some(entered) = state.enter(&new, false, false)
        {
            return Ok(Some(entered));
        }
        state.line_bytes += new.request.weight();
        state.line.push_back(new);
        self.waiting.store(state.line.len(), Ordering::Relaxed);
        Ok(None)
    }

    /// The next request of the line that may enter a slot, and that slot. If requests are refused: one that
    /// must be refused, and why.
    pub fn next(&self) -> Option<(New, Entered)> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let first = state.line.front()?.clone();
        let entered = match state.refuses() {
            Some(why) => Err(why),
            None => Ok(state.enter(&first, false, false)?),
        };
        state.take_from_line(0);
        self.waiting.store(state.line.len(), Ordering::Relaxed);
        self.shorter.notify_all();
        Some((first, entered))
    }

    /// A signal reached the caller of a request in the line. Returns false if it is not there.
    pub fn signal_in_line(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        let mine = state.line.iter_mut().find(|new| new.asked.unique == unique);
        mine.map(|new| new.signalled = true).is_some()
    }

    /// The callers of requests in the line that had a signal: the number of the request, and the process.
    pub fn signalled_in_line(&self) -> Vec<(u64, u32)> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let state = self.state.lock();
        let signalled = state.line.iter().filter(|new| new.signalled);
        signalled.map(|new| (new.asked.unique, new.asked.pid)).collect()
    }

    /// Takes a request out of the line.
    pub fn leave_line(&self, unique: u64) -> Option<New> {
        let mut state = self.state.lock();
        let at = state.line.iter().position(|new| new.asked.unique == unique)?;
        let new = state.take_from_line(at);
        self.waiting.store(state.line.len(), Ordering::Relaxed);
        self.shorter.notify_all();
        new
    }

    /// Waits while the line holds many bytes, but no longer than `time`. Returns whether it does.
    pub fn is_crowded(&self, time: Duration) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut state = self.state.lock();
        if state.line_bytes > LINE_BYTES {
            self.shorter.wait_for(&mut state, time);
        }
        state.line_bytes > LINE_BYTES
    }

    /// Enters a message of the relay's own, also while no server answers. `None` if there is no slot.
    pub fn enter_own(&self, asked: Asked, request: &Arc<Kept>) -> Option<(u16, u64)> {
        let mut state = self.state.lock();
        let (cost, request) = (request.len() as u32, Arc::clone(request));
        let (traced, ends_locks, signalled) = (None, false, false);
        let new = New { asked, device: 0, request, cost, traced, ends_locks, signalled };
        if state.closed { None } else { state.enter(&new, true, false) }
    }

    /// The request in a slot, if it is still this one.
    pub fn get(&self, slot: u16, seq: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        let (row, at) = state.row(slot);
        row.entries.get(at)?.as_ref().filter(|entry| entry.seq == seq).cloned()
    }

    /// Whether a slot has had a request of this number, now or before.
    pub fn knows(&self, slot: u16, seq: u64) -> bool {
        let mut state = self.state.lock();
        let (row, at) = state.row(slot);
        row.seqs.get(at).is_some_and(|last| seq <= *last)
    }

    /// Changes a request in flight. Returns false if it is over. After [`Flight::withdraw`] another one may
    /// have its slot and its number.
    pub fn change(&self, slot: u16, seq: u64, change: impl FnOnce(&mut Entry)) -> bool {
        let mut state = self.state.lock();
        let (row, at) = state.row(slot);
        let entry = row.entries.get_mut(at).and_then(Option::as_mut);
        entry.filter(|entry| entry.seq == seq).map(change).is_some()
    }

    /// Ends a request. Returns it if this call ended it.
    pub fn end(&self, slot: u16, seq: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        let (row, at) = state.row(slot);
        let entry = row.entries.get_mut(at)?.take_if(|entry| entry.seq == seq)?;
        row.free.push(slot);
        state.bytes -= u64::from(entry.cost);
        Some(entry)
    }

    /// Ends a request that was never sent: its number is used again, because the server waits for it. Returns
    /// false if it was sent. `unique`: its number of the kernel, because the slot and the number may be those
    /// of another one by now.
    pub fn withdraw(&self, slot: u16, seq: u64, unique: u64) -> bool {
        let mut state = self.state.lock();
        let (row, at) = state.row(slot);
        let place = row.entries.get_mut(at);
        let unsent =
            |entry: &mut Entry| entry.seq == seq && entry.asked.unique == unique && entry.sent.is_none();
        let Some(entry) = place.and_then(|place| place.take_if(unsent)) else { return false };
        row.seqs[at] -= 1;
        row.free.push(slot);
        state.bytes -= u64::from(entry.cost);
        true
    }

    /// All requests in flight.
    pub fn all(&self) -> Vec<Entry> {
        self.state.lock().all().cloned().collect()
    }

    /// How many requests are in flight, how many of these wait for a lock, and how many wait for a slot.
    pub fn figures(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        let locks = state.waits.entries.iter().flatten().count();
        (state.all().count(), locks, self.waiting.load(Ordering::Relaxed))
    }

    /// The request with this number of the kernel.
    pub fn by_unique(&self, unique: u64) -> Option<Entry> {
        self.state.lock().all().find(|entry| !entry.own && entry.asked.unique == unique).cloned()
    }

    /// From now on requests are refused, or no longer.
    pub fn set_failing(&self, failing: bool) {
        self.state.lock().failing = failing;
        self.shorter.notify_all();
    }

    /// The mount has ended.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.shorter.notify_all();
    }
}

#[cfg(test)]
mod tests;
