//! The requests of the guest's kernel that have no reply yet, each in a slot.
//!
//! A slot holds the whole request, so that it can be sent again after the connection broke. The server grants
//! slots and bytes. A reader thread waits here while there are none, so the kernel's queue is the only queue.
//!
//! Requests that wait for a lock have slots of their own ([`WAITS_AT`]), because the request that releases
//! the lock needs a slot too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::rooms::Kept;
use crate::request::{self, Asked};
use crate::slots::{WAITS, WAITS_AT};

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
    /// Its slot.
    pub slot: u16,
    /// Its number in the slot.
    pub seq: u64,
    /// Its header.
    pub asked: Asked,
    /// The descriptor of the device from which it came, and to which its reply goes.
    pub device: usize,
    /// All of it.
    pub request: Arc<Kept>,
    /// Where it was sent last. `None`: nowhere.
    pub sent: Option<Sent>,
    /// How often it was sent before the last time.
    pub attempt: u8,
    /// It was sent more than once.
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
    fn enter(&mut self, new: New<'_>) -> Option<(u16, u64)> {
        let slot = match new.waits {
            true => self.waits.free.pop()?,
            false if self.bytes > 0 && self.bytes + u64::from(new.cost) > self.granted => return None,
            false => self.usual.free.pop()?,
        };
        self.bytes += u64::from(new.cost);
        let (row, at) = self.row(slot);
        row.seqs[at] += 1;
        let seq = row.seqs[at];
        let entry = Entry {
            slot,
            seq,
            asked: new.asked,
            device: new.device,
            request: Arc::clone(new.request),
            sent: None,
            attempt: 0,
            resent: false,
            signalled: false,
            killed: None,
            given_up: false,
            own: new.own,
            cost: new.cost,
        };
        row.entries[at] = Some(entry);
        Some((slot, seq))
    }
}

/// A request that is to be entered.
struct New<'a> {
    asked: Asked,
    device: usize,
    request: &'a Arc<Kept>,
    cost: u32,
    own: bool,
    /// It waits for a lock.
    waits: bool,
}

/// All slots of a session.
#[derive(Default)]
pub struct Flight {
    state: Mutex<State>,
    freed: Condvar,
    /// Threads that wait for a slot.
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

impl Flight {
    /// The server grants so many slots and bytes. Slots in use stay. `locks`: requests that wait for a lock
    /// have slots of their own.
    pub fn grant(&self, slots: u16, bytes: u32, locks: bool) {
        let mut state = self.state.lock();
        state.usual.grow(slots, 0);
        state.waits.grow(if locks { WAITS } else { 0 }, WAITS_AT);
        state.granted = u64::from(bytes);
        self.freed.notify_all();
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.state.lock().usual.entries.len()
    }

    /// Enters a request. Waits for a slot and for bytes. A request that waits for a lock does not wait here,
    /// and costs nothing.
    ///
    /// # Errors
    /// [`NoSlot`].
    pub fn enter(
        &self,
        asked: Asked,
        device: usize,
        request: &Arc<Kept>,
        cost: u32,
    ) -> Result<(u16, u64), NoSlot> {
        let mut state = self.state.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let entered = loop {
            if state.closed {
                break Err(NoSlot::Closed);
            }
            if state.failing {
                break Err(NoSlot::Failing);
            }
            let waits = !state.waits.entries.is_empty() && request::waits_for_lock(&asked, request);
            let cost = if waits { 0 } else { cost };
            match state.enter(New { asked, device, request, cost, own: false, waits }) {
                Some(entered) => break Ok(entered),
                None if waits => break Err(NoSlot::Locks),
                None => self.freed.wait(&mut state),
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        entered
    }

    /// Enters a message of the relay's own, also while no server answers. `None` if there is no slot.
    pub fn enter_own(&self, asked: Asked, request: &Arc<Kept>) -> Option<(u16, u64)> {
        let mut state = self.state.lock();
        let (cost, own, waits) = (request.len() as u32, true, false);
        if state.closed { None } else { state.enter(New { asked, device: 0, request, cost, own, waits }) }
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

    /// Changes a request in flight. Returns false if it is over.
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
        self.freed.notify_all();
        Some(entry)
    }

    /// Ends a request that was never sent: its number is used again, because the server waits for it. Returns
    /// false if it was sent.
    pub fn withdraw(&self, slot: u16, seq: u64) -> bool {
        let mut state = self.state.lock();
        let (row, at) = state.row(slot);
        let place = row.entries.get_mut(at);
        let unsent = |entry: &mut Entry| entry.seq == seq && entry.sent.is_none();
        let Some(entry) = place.and_then(|place| place.take_if(unsent)) else { return false };
        row.seqs[at] -= 1;
        row.free.push(slot);
        state.bytes -= u64::from(entry.cost);
        self.freed.notify_all();
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
        self.freed.notify_all();
    }

    /// The mount has ended.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(flight: &Flight, unique: u64, cost: u32) -> Result<(u16, u64), NoSlot> {
        let asked = Asked { opcode: 1, unique, node: 1, pid: 1 };
        flight.enter(asked, 0, &Arc::new(vec![0; 8].into()), cost)
    }

    #[test]
    fn slots_and_bytes_are_waited_for() {
        let flight = Arc::new(Flight::default());
        flight.grant(2, 100, false);
        let first = enter(&flight, 1, 60).unwrap();
        let other = Arc::clone(&flight);
        let waiter = base::thread::spawn("test", move || enter(&other, 2, 60)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished() && flight.by_unique(2).is_none());
        assert!(flight.end(first.0, first.1).is_some() && flight.end(first.0, first.1).is_none());
        let second = waiter.join().unwrap().unwrap();
        assert!(flight.get(second.0, second.1).is_some() && flight.knows(first.0, first.1));
        assert!(!flight.knows(first.0, 99) && flight.all().len() == 1);
        flight.set_failing(true);
        assert_eq!(enter(&flight, 3, 1), Err(NoSlot::Failing));
        flight.set_failing(false);
        flight.close();
        assert_eq!(enter(&flight, 3, 1), Err(NoSlot::Closed));
    }

    /// A request that no server had seen was given up, and its number was skipped. The server cut the guest
    /// off when the next one came, again and again.
    #[test]
    fn regression_a_request_that_was_never_sent_takes_no_number() {
        let flight = Flight::default();
        flight.grant(1, 10, false);
        assert_eq!(enter(&flight, 1, 1), Ok((0, 1)));
        assert!(flight.withdraw(0, 1) && !flight.withdraw(0, 1) && !flight.knows(0, 1));
        assert_eq!(enter(&flight, 2, 1), Ok((0, 1)));
        flight.change(0, 1, |entry| entry.sent = Some(Sent { link: 1, session: 1 }));
        assert!(!flight.withdraw(0, 1) && flight.end(0, 1).is_some());
        assert_eq!(enter(&flight, 3, 1), Ok((0, 2)));
    }

    #[test]
    fn a_slot_counts_its_requests() {
        let flight = Flight::default();
        flight.grant(1, 10, false);
        for seq in 1..5 {
            assert_eq!(enter(&flight, seq, 1), Ok((0, seq)));
            flight.end(0, seq);
        }
        assert_eq!(enter(&flight, 9, 1000), Ok((0, 5)), "alone, a request may be of any size");
    }

    /// Requests that wait for a lock take no slot from those that release it.
    #[test]
    fn a_full_row_of_lock_requests_holds_nothing_up() {
        let flight = Flight::default();
        flight.grant(1, 10, true);
        let wait = |unique| {
            let asked = Asked { opcode: request::op::SETLKW, unique, node: 1, pid: 1 };
            let mut request = vec![0; request::IN_HEADER + 48];
            request[request::IN_HEADER + 32] = libc::F_WRLCK as u8;
            flight.enter(asked, 0, &Arc::new(request.into()), 90)
        };
        assert_eq!(wait(1).map(|(slot, _)| slot >= WAITS_AT), Ok(true));
        (1..WAITS).for_each(|unique| assert!(wait(unique.into()).is_ok()));
        assert_eq!(wait(9), Err(NoSlot::Locks));
        assert_eq!(enter(&flight, 10_000, 10), Ok((0, 1)));
        assert_eq!(flight.figures(), (usize::from(WAITS) + 1, WAITS.into(), 0));
        let first = flight.by_unique(1).unwrap();
        assert!(flight.end(first.slot, first.seq).is_some() && wait(9).is_ok());
    }
}
