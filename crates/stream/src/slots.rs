//! The server's table of slots: it makes every request happen at most once, with bounded memory.
//!
//! A session has a fixed number of slots. A request occupies a slot, with the next sequence number of that
//! slot. When the guest uses the slot again, it says by that that it has the reply before. So the server
//! keeps one reply per slot and no more, as in an NFSv4.1 session. A guest whose connection broke sends what
//! it has no reply to again, with the same numbers:
//!
//! ```text
//!   number is the next one      ──► execute it
//!   the current one, running    ──► nothing: the reply goes to the new connection
//!   the current one, replied    ──► send the kept reply; execute a READ again, whose reply is not kept
//!   a number before it          ──► nothing
//!   anything else               ──► the guest breaks the rules, and is cut off
//! ```
//!
//! A connection that is dead for the guest may hold frames that the server reads later. So each copy of a
//! request says how often the request was sent before, and a copy that is older than another that has come
//! means nothing: the guest does not listen where it was sent.
//!
//! The table also counts the bytes in flight. Requests that wait for a lock have slots of their own, from
//! [`WAITS_AT`] on, which cost no bytes. They may last for ever, and the request that releases the lock needs
//! a slot. This module does no I/O.

use crate::frame::is_older;

/// The first slot for requests that wait for a lock. No other kind of slot has such a number.
pub const WAITS_AT: u16 = 1 << 15;
/// How many of these a guest has.
pub const WAITS: u16 = 1024;

/// Why a guest is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The slot was not granted.
    #[error("it used slot {slot} of {granted}")]
    Slot {
        /// What it used.
        slot: u16,
        /// How many it has.
        granted: u16,
    },
    /// The number is beyond the next of its slot.
    #[error("slot {slot} got request {seq} after {last}")]
    Sequence {
        /// The slot.
        slot: u16,
        /// The number that came.
        seq: u64,
        /// The slot's current number.
        last: u64,
    },
    /// The slot's request before is still running.
    #[error("slot {slot} got a request while another is running in it")]
    Occupied {
        /// The slot.
        slot: u16,
    },
    /// More bytes in flight than granted.
    #[error("it has {bytes} bytes in flight and may have {granted}")]
    Bytes {
        /// What is in flight with this request.
        bytes: u64,
        /// The credit.
        granted: u32,
    },
}

/// What to do with a request that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Execute it.
    Execute,
    /// Nothing: the request is being executed.
    Running,
    /// Send this reply again.
    Resend(Vec<u8>),
    /// Nothing: the guest has sent something newer in this slot, and waits for that.
    Stale,
}

#[derive(Debug)]
enum State {
    /// Nothing ran here. The first request may have any number, because a slot may be older than a session.
    Fresh,
    Running,
    /// Replied. The reply, if it is kept.
    Done(Option<Vec<u8>>),
}

#[derive(Debug)]
struct Slot {
    seq: u64,
    /// The newest copy of it that has come.
    attempt: u8,
    state: State,
    /// Bytes that count as in flight.
    cost: u32,
}

impl Slot {
    /// Whether the guest has sent something newer here, and so does not wait for this.
    fn is_stale(&self, seq: u64, attempt: u8) -> bool {
        let has_newer = seq < self.seq || seq == self.seq && is_older(attempt, self.attempt);
        has_newer && !matches!(self.state, State::Fresh)
    }
}

/// The table of one session.
#[derive(Debug)]
pub struct Slots {
    slots: Vec<Slot>,
    /// How many of them are usual ones. The others are for requests that wait for a lock.
    usual: u16,
    bytes: u64,
    granted_bytes: u32,
}

impl Slots {
    /// A table with these credits.
    pub fn new(slots: u16, bytes: u32) -> Slots {
        Slots::with_waits(slots, 0, bytes)
    }

    /// Creates a table with these credits, and `waits` slots for requests that wait for a lock.
    pub fn with_waits(slots: u16, waits: u16, bytes: u32) -> Slots {
        let fresh = || Slot { seq: 0, attempt: 0, state: State::Fresh, cost: 0 };
        let all = usize::from(slots) + usize::from(waits);
        Slots {
            slots: std::iter::repeat_with(fresh).take(all).collect(),
            usual: slots,
            bytes: 0,
            granted_bytes: bytes,
        }
    }

    /// Where a slot is among all of them. `None`: it was not granted.
    pub fn place(&self, slot: u16) -> Option<usize> {
        let at = match slot.checked_sub(WAITS_AT) {
            Some(at) => usize::from(self.usual) + usize::from(at),
            None => usize::from(slot),
        };
        let granted = if slot < WAITS_AT { self.usual.into() } else { self.slots.len() };
        (at < granted).then_some(at)
    }

    /// How many there are, of both kinds.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn slot(&mut self, slot: u16) -> Result<&mut Slot, Broken> {
        let refused = Broken::Slot { slot, granted: self.usual };
        let at = self.place(slot).ok_or(refused)?;
        self.slots.get_mut(at).ok_or(refused)
    }

    /// A request arrived. `attempt`: how often it was sent before. `cost`: its bytes, and those it asks for.
    ///
    /// # Errors
    /// [`Broken`]: the guest exceeds its credits or forges numbers.
    pub fn arrive(&mut self, slot: u16, seq: u64, attempt: u8, cost: u32) -> Result<Arrival, Broken> {
        let (bytes, granted) = (self.bytes + u64::from(cost), self.granted_bytes);
        let place = self.slot(slot)?;
        let last = place.seq;
        let is_next = last.checked_add(1) == Some(seq);
        if place.is_stale(seq, attempt) {
            return Ok(Arrival::Stale);
        }
        if seq == last {
            place.attempt = attempt;
        }
        match &mut place.state {
            State::Running if seq == last => return Ok(Arrival::Running),
            State::Running if is_next => return Err(Broken::Occupied { slot }),
            State::Done(Some(kept)) if seq == last => return Ok(Arrival::Resend(kept.clone())),
            // Its reply was not kept: nothing changes if it runs again.
            State::Done(None) if seq == last => {}
            State::Done(_) if is_next => {}
            State::Fresh => {}
            _ => return Err(Broken::Sequence { slot, seq, last }),
        }
        let before = u64::from(place.cost);
        if bytes - before > u64::from(granted) {
            return Err(Broken::Bytes { bytes: bytes - before, granted });
        }
        (place.seq, place.attempt, place.state, place.cost) = (seq, attempt, State::Running, cost);
        self.bytes = bytes - before;
        Ok(Arrival::Execute)
    }

    /// The guest gives a request up. If it has not arrived, it counts as executed from now on, with `refused`
    /// as its reply.
    ///
    /// # Errors
    /// As [`Slots::arrive`].
    pub fn cancel(&mut self, slot: u16, seq: u64, attempt: u8, refused: &[u8]) -> Result<Arrival, Broken> {
        let place = self.slot(slot)?;
        if let State::Done(None) = place.state
            && place.seq == seq
            && !place.is_stale(seq, attempt)
        {
            place.attempt = attempt;
            return Ok(Arrival::Resend(refused.to_vec()));
        }
        match self.arrive(slot, seq, attempt, 0)? {
            Arrival::Execute => {
                self.done(slot, seq, Some(refused.to_vec()));
                Ok(Arrival::Resend(refused.to_vec()))
            }
            other => Ok(other),
        }
    }

    /// A request was executed. `kept`: the reply, unless it may be executed again. Returns false if the slot
    /// does not wait for it.
    pub fn done(&mut self, slot: u16, seq: u64, kept: Option<Vec<u8>>) -> bool {
        let Ok(place) = self.slot(slot) else { return false };
        if place.seq != seq || !matches!(place.state, State::Running) {
            return false;
        }
        place.state = State::Done(kept);
        let cost = std::mem::take(&mut place.cost);
        self.bytes -= u64::from(cost);
        true
    }

    /// Whether this request is being executed.
    pub fn is_running(&self, slot: u16, seq: u64) -> bool {
        let place = self.place(slot).and_then(|at| self.slots.get(at));
        place.is_some_and(|place| place.seq == seq && matches!(place.state, State::Running))
    }

    /// The number of requests that are being executed, without those that wait for a lock.
    pub fn running(&self) -> usize {
        let usual = self.slots.iter().take(self.usual.into());
        usual.filter(|slot| matches!(slot.state, State::Running)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn credits_and_numbers_are_enforced() {
        let mut slots = Slots::new(2, 100);
        assert_eq!(slots.arrive(2, 1, 0, 1), Err(Broken::Slot { slot: 2, granted: 2 }));
        assert_eq!(slots.arrive(0, 5, 0, 60), Ok(Arrival::Execute));
        assert_eq!(slots.arrive(1, 1, 0, 41), Err(Broken::Bytes { bytes: 101, granted: 100 }));
        assert_eq!(slots.arrive(0, 6, 0, 1), Err(Broken::Occupied { slot: 0 }));
        for seq in [7, u64::MAX] {
            assert_eq!(slots.arrive(0, seq, 0, 1), Err(Broken::Sequence { slot: 0, seq, last: 5 }));
        }
        assert!(slots.done(0, 5, Some(b"reply".to_vec())) && !slots.done(0, 5, None));
        assert_eq!(slots.arrive(1, 1, 0, 100), Ok(Arrival::Execute), "the bytes came back");
        assert_eq!(slots.arrive(0, 5, 0, 1), Ok(Arrival::Resend(b"reply".to_vec())));
        assert_eq!(slots.arrive(0, 4, 0, 1), Ok(Arrival::Stale));
    }

    #[test]
    fn what_was_given_up_before_it_came_never_runs() {
        let mut slots = Slots::new(1, 100);
        assert_eq!(slots.arrive(0, 1, 0, 1), Ok(Arrival::Execute));
        assert_eq!(slots.cancel(0, 1, 0, b"no"), Ok(Arrival::Running));
        assert!(slots.done(0, 1, Some(b"yes".to_vec())));
        assert_eq!(slots.cancel(0, 1, 0, b"no"), Ok(Arrival::Resend(b"yes".to_vec())));
        assert_eq!(slots.cancel(0, 2, 0, b"no"), Ok(Arrival::Resend(b"no".to_vec())));
        assert_eq!(slots.arrive(0, 2, 0, 1), Ok(Arrival::Resend(b"no".to_vec())));
        assert_eq!(slots.arrive(0, 3, 0, 1), Ok(Arrival::Execute));
    }

    /// A copy on a connection that is dead for the guest took the reply, or occupied the slot.
    #[test]
    fn regression_an_older_copy_means_nothing() {
        let mut slots = Slots::new(1, 100);
        assert_eq!(slots.arrive(0, 1, 2, 1), Ok(Arrival::Execute));
        assert_eq!(slots.arrive(0, 1, 1, 1), Ok(Arrival::Stale));
        assert_eq!(slots.cancel(0, 1, 1, b"no"), Ok(Arrival::Stale));
        assert_eq!(slots.arrive(0, 1, 3, 1), Ok(Arrival::Running));
        assert!(slots.done(0, 1, None));
        assert_eq!(slots.arrive(0, 1, 2, 1), Ok(Arrival::Stale), "its reply is not kept");
        assert_eq!(slots.cancel(0, 1, 4, b"no"), Ok(Arrival::Resend(b"no".to_vec())));
        assert_eq!(slots.arrive(0, 1, 3, 1), Ok(Arrival::Stale));
        assert_eq!(slots.arrive(0, 2, 0, 1), Ok(Arrival::Execute), "each request counts its own copies");
        assert_eq!(slots.arrive(0, 1, 5, 1), Ok(Arrival::Stale));
        // The number on the wire begins again.
        for attempt in 1..300_u32 {
            assert_eq!(slots.arrive(0, 2, (attempt % 128) as u8, 1), Ok(Arrival::Running));
        }
    }

    #[test]
    fn requests_that_wait_for_a_lock_have_slots_of_their_own() {
        let mut slots = Slots::with_waits(1, 2, 10);
        assert_eq!(slots.arrive(0, 1, 0, 10), Ok(Arrival::Execute));
        for slot in [WAITS_AT, WAITS_AT + 1] {
            assert_eq!(slots.arrive(slot, 1, 0, 0), Ok(Arrival::Execute));
            assert!(slots.is_running(slot, 1));
        }
        for slot in [1, WAITS_AT - 1, WAITS_AT + 2, u16::MAX] {
            assert_eq!(slots.arrive(slot, 1, 0, 0), Err(Broken::Slot { slot, granted: 1 }));
        }
        assert_eq!((slots.running(), slots.len(), slots.place(WAITS_AT + 1)), (1, 3, Some(2)));
        assert_eq!(
            Slots::new(1, 10).arrive(WAITS_AT, 1, 0, 0),
            Err(Broken::Slot { slot: WAITS_AT, granted: 1 })
        );
    }

    /// What happens between a guest and a server.
    #[derive(Clone, Debug)]
    enum Step {
        Send {
            slot: u16,
        },
        /// The server reads one of the frames that wait on any connection, dead ones included.
        Read {
            which: usize,
        },
        /// The server executes and replies; the reply arrives, or is lost with its connection.
        Finish {
            slot: u16,
            arrives: bool,
        },
        /// The connection breaks: all that has no reply is sent again.
        Break,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0_u16..4).prop_map(|slot| Step::Send { slot }),
            8 => any::<usize>().prop_map(|which| Step::Read { which }),
            4 => (0_u16..4, any::<bool>()).prop_map(|(slot, arrives)| Step::Finish { slot, arrives }),
            1 => Just(Step::Break),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// A copy of a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Copy {
        slot: u16,
        seq: u64,
        attempt: u8,
    }

    /// A guest with four slots, its server, and what is between them.
    struct Play {
        slots: Slots,
        /// What the guest sent last in each slot.
        newest: [Copy; 4],
        waiting: [bool; 4],
        unread: Vec<Copy>,
        /// The copy to whose connection the reply goes.
        route: [Copy; 4],
        executed: HashMap<(u16, u64), u32>,
    }

    impl Play {
        /// The replies of slot 0 are not kept, as those of READ.
        fn keeps(slot: u16) -> bool {
            slot > 0
        }

        fn read(&mut self, copy: Copy) -> Result<(), TestCaseError> {
            let at = usize::from(copy.slot);
            let is_newest = copy == self.newest[at];
            match self.slots.arrive(copy.slot, copy.seq, copy.attempt, 10) {
                Ok(Arrival::Execute) => {
                    let times = self.executed.entry((copy.slot, copy.seq)).or_default();
                    *times += 1;
                    prop_assert!(*times == 1 || !Play::keeps(copy.slot));
                    self.route[at] = copy;
                }
                Ok(Arrival::Running) => self.route[at] = copy,
                Ok(Arrival::Resend(reply)) => {
                    prop_assert_eq!(reply, copy.seq.to_le_bytes().to_vec());
                    self.waiting[at] &= !is_newest;
                }
                Ok(Arrival::Stale) => prop_assert!(!is_newest, "{:?}", copy),
                Err(broken) => prop_assert!(false, "{}", broken),
            }
            Ok(())
        }

        fn finish(&mut self, slot: u16, arrives: bool) -> Result<(), TestCaseError> {
            let at = usize::from(slot);
            let (route, newest) = (self.route[at], self.newest[at]);
            let kept = Play::keeps(slot).then(|| route.seq.to_le_bytes().to_vec());
            if !self.slots.done(slot, route.seq, kept) {
                return Ok(());
            }
            if route == newest {
                self.waiting[at] &= !arrives;
                if !arrives {
                    self.reconnect();
                }
            } else {
                let comes = self.unread.contains(&newest);
                prop_assert!(comes || !self.waiting[at], "nothing will bring the reply of {:?}", newest);
            }
            Ok(())
        }

        fn reconnect(&mut self) {
            for at in (0..4).filter(|at| self.waiting[*at]) {
                self.newest[at].attempt = (self.newest[at].attempt + 1) % 128;
                self.unread.push(self.newest[at]);
            }
        }
    }

    proptest! {
        /// Whatever is lost, sent again and read late, no change is executed twice, each gets the reply of
        /// its own execution, nothing waits for ever, and an honest guest breaks no rule.
        #[test]
        fn every_request_is_executed_once(steps in steps()) {
            let mut play = Play {
                slots: Slots::new(4, 1000),
                newest: std::array::from_fn(|slot| Copy { slot: slot as u16, ..Copy::default() }),
                waiting: [false; 4],
                unread: Vec::new(),
                route: [Copy::default(); 4],
                executed: HashMap::new(),
            };
            for step in steps {
                match step {
                    Step::Send { slot } => {
                        let at = usize::from(slot);
                        if !play.waiting[at] {
                            play.newest[at] = Copy { slot, seq: play.newest[at].seq + 1, attempt: 0 };
                            play.waiting[at] = true;
                            play.unread.push(play.newest[at]);
                        }
                    }
                    Step::Read { which } if !play.unread.is_empty() => {
                        let copy = play.unread.remove(which % play.unread.len());
                        play.read(copy)?;
                    }
                    Step::Read { .. } => {}
                    Step::Finish { slot, arrives } => play.finish(slot, arrives)?,
                    Step::Break => play.reconnect(),
                }
            }
        }
    }
}
