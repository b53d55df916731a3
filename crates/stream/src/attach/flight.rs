//! The requests of the guest's kernel that have no reply yet, each in a slot.
//!
//! A slot holds the whole request, so that it can be sent again after the connection broke. The server grants
//! slots and bytes. A reader thread waits here while there are none, so the kernel's queue is the only queue.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::rooms::Kept;
use crate::request::Asked;

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
    /// It was sent more than once.
    pub resent: bool,
    /// A signal reached the caller.
    pub signalled: bool,
    /// When the server was told that the caller is being killed.
    pub killed: Option<Instant>,
    /// The kernel was given an error in its place, and waits no more.
    pub given_up: bool,
    cost: u32,
}

#[derive(Default)]
struct State {
    entries: Vec<Option<Entry>>,
    seqs: Vec<u64>,
    free: Vec<u16>,
    bytes: u64,
    granted: u64,
    closed: bool,
    /// Requests are answered EIO instead of waiting for a slot.
    failing: bool,
}

impl State {
    fn enter(&mut self, asked: Asked, device: usize, request: &Arc<Kept>, cost: u32) -> Option<(u16, u64)> {
        if self.bytes > 0 && self.bytes + u64::from(cost) > self.granted {
            return None;
        }
        let slot = self.free.pop()?;
        let at = usize::from(slot);
        self.seqs[at] += 1;
        self.bytes += u64::from(cost);
        let (seq, request) = (self.seqs[at], Arc::clone(request));
        let entry = Entry {
            slot,
            seq,
            asked,
            device,
            request,
            sent: None,
            resent: false,
            signalled: false,
            killed: None,
            given_up: false,
            cost,
        };
        self.entries[at] = Some(entry);
        Some((slot, seq))
    }
}

/// All slots of a session.
#[derive(Default)]
pub struct Flight {
    state: Mutex<State>,
    freed: Condvar,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// The server is away for too long.
    Failing,
    /// The mount has ended.
    Closed,
}

impl Flight {
    /// The server grants so many slots and bytes. Slots in use stay.
    pub fn grant(&self, slots: u16, bytes: u32) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let had = state.entries.len();
        for slot in had..usize::from(slots) {
            state.entries.push(None);
            state.seqs.push(0);
            state.free.push(slot as u16);
        }
        state.granted = u64::from(bytes);
        self.freed.notify_all();
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Enters a request. Waits for a slot and for bytes.
    ///
    /// # Errors
    /// [`NoSlot`].
    pub fn enter(
        &self,
        asked: Asked,
        device: usize,
        request: Arc<Kept>,
        cost: u32,
    ) -> Result<(u16, u64), NoSlot> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(NoSlot::Closed);
            }
            if state.failing {
                return Err(NoSlot::Failing);
            }
            if let Some(entered) = state.enter(asked, device, &request, cost) {
                return Ok(entered);
            }
            self.freed.wait(&mut state);
        }
    }

    /// The same without waiting. `None` if there is no slot.
    pub fn try_enter(&self, asked: Asked, request: Arc<Kept>, cost: u32) -> Option<(u16, u64)> {
        let mut state = self.state.lock();
        if state.closed || state.failing { None } else { state.enter(asked, 0, &request, cost) }
    }

    /// The request in a slot, if it is still this one.
    pub fn get(&self, slot: u16, seq: u64) -> Option<Entry> {
        let state = self.state.lock();
        state.entries.get(usize::from(slot))?.as_ref().filter(|entry| entry.seq == seq).cloned()
    }

    /// Whether a slot has had a request of this number, now or before.
    pub fn knows(&self, slot: u16, seq: u64) -> bool {
        self.state.lock().seqs.get(usize::from(slot)).is_some_and(|last| seq <= *last)
    }

    /// Changes a request in flight. Returns false if it is over.
    pub fn change(&self, slot: u16, seq: u64, change: impl FnOnce(&mut Entry)) -> bool {
        let mut state = self.state.lock();
        let entry = state.entries.get_mut(usize::from(slot)).and_then(Option::as_mut);
        entry.filter(|entry| entry.seq == seq).map(change).is_some()
    }

    /// Ends a request. Returns it if this call ended it.
    pub fn end(&self, slot: u16, seq: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        let place = state.entries.get_mut(usize::from(slot))?;
        let entry = place.take_if(|entry| entry.seq == seq)?;
        state.bytes -= u64::from(entry.cost);
        state.free.push(slot);
        self.freed.notify_all();
        Some(entry)
    }

    /// All requests in flight.
    pub fn all(&self) -> Vec<Entry> {
        self.state.lock().entries.iter().flatten().cloned().collect()
    }

    /// The request with this number of the kernel.
    pub fn by_unique(&self, unique: u64) -> Option<Entry> {
        let state = self.state.lock();
        state.entries.iter().flatten().find(|entry| entry.asked.unique == unique).cloned()
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
        flight.enter(asked, 0, Arc::new(vec![0; 8].into()), cost)
    }

    #[test]
    fn slots_and_bytes_are_waited_for() {
        let flight = Arc::new(Flight::default());
        flight.grant(2, 100);
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

    #[test]
    fn a_slot_counts_its_requests() {
        let flight = Flight::default();
        flight.grant(1, 10);
        for seq in 1..5 {
            assert_eq!(enter(&flight, seq, 1), Ok((0, seq)));
            flight.end(0, seq);
        }
        assert_eq!(enter(&flight, 9, 1000), Ok((0, 5)), "alone, a request may be of any size");
    }
}
