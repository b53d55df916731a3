//! Whether what several clients saw could have happened one operation after the other.
//!
//! A history is **linearizable** if each operation can be given a moment between its call and its return,
//! such that a single client doing the operations in the order of these moments would have seen the same
//! (Herlihy and Wing, 1990). The search is that of Wing and Gong with Lowe's memory of states that were
//! tried. An operation whose result is unknown (the client was killed, or got an error that says so) may have
//! happened at any later moment, or never.

use std::collections::HashSet;
use std::hash::Hash;

/// What a correct system does.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Op;
    type Seen;
    /// The state after an operation that returned this, if it could.
    fn step(&self, state: &Self::State, op: &Self::Op, seen: &Self::Seen) -> Option<Self::State>;
    /// The state after an operation whose result nobody saw.
    fn blind(&self, state: &Self::State, op: &Self::Op) -> Self::State;
}

/// One operation of a history. Times are of one clock.
#[derive(Clone, Debug)]
pub struct Event<O, S> {
    pub op: O,
    pub called: u64,
    /// When it returned, and what. None: its result is unknown.
    pub returned: Option<(u64, S)>,
}

/// More orders than this are not tried: such a history is not judged.
const ORDERS_MAX: usize = 1_000_000;

/// Checks a history of at most 128 operations. One with too many possible orders passes, and that is said.
pub fn is_linearizable<M: Model>(model: &M, first: M::State, history: &[Event<M::Op, M::Seen>]) -> bool {
    assert!(history.len() <= 128, "a history has at most 128 operations");
    let mut tried = HashSet::new();
    let mut todo = vec![(0u128, first)];
    while let Some((done, state)) = todo.pop() {
        if tried.len() > ORDERS_MAX {
            covey_tests::say(format_args!("skipped: a history has too many possible orders"));
            return true;
        }
        let open = |at: usize| done >> at & 1 == 0;
        // An operation can come next if none that is still to come returned before it was called.
        let left = (0..history.len()).filter(|at| open(*at));
        let returns = left.clone().filter_map(|at| history[at].returned.as_ref().map(|(when, _)| *when));
        let Some(earliest) = returns.min() else { return true };
        for at in left.filter(|at| history[*at].called <= earliest) {
            let event = &history[at];
            let next = match &event.returned {
                Some((_, seen)) => model.step(&state, &event.op, seen),
                None => Some(model.blind(&state, &event.op)),
            };
            let done = done | 1 << at;
            if let Some(next) = next.filter(|next| tried.insert((done, next.clone()))) {
                todo.push((done, next));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: `Some` writes, `None` reads.
    struct Register;

    impl Model for Register {
        type State = u8;
        type Op = Option<u8>;
        type Seen = u8;

        fn step(&self, state: &u8, op: &Option<u8>, seen: &u8) -> Option<u8> {
            match op {
                Some(value) => Some(*value),
                None => (state == seen).then_some(*state),
            }
        }

        fn blind(&self, state: &u8, op: &Option<u8>) -> u8 {
            op.unwrap_or(*state)
        }
    }

    fn event(op: Option<u8>, called: u64, returned: Option<(u64, u8)>) -> Event<Option<u8>, u8> {
        Event { op, called, returned }
    }

    #[test]
    fn histories_are_judged_as_in_the_textbook() {
        let (write, read) = (
            |value, a, b| event(Some(value), a, Some((b, 0))),
            |value, a, b| event(None, a, Some((b, value))),
        );
        let judge = |history: &[Event<Option<u8>, u8>]| is_linearizable(&Register, 0, history);
        assert!(judge(&[]));
        assert!(
            judge(&[write(1, 0, 9), read(0, 1, 2), read(1, 3, 4)]),
            "the write happens between the reads"
        );
        assert!(
            !judge(&[write(1, 0, 9), read(1, 1, 2), read(0, 3, 4)]),
            "a value that was seen is not unseen"
        );
        assert!(!judge(&[write(1, 0, 1), read(0, 2, 3)]), "a stale read");
        assert!(judge(&[write(1, 0, 1), write(2, 0, 1), read(1, 2, 3)]), "two writes at the same time");
        assert!(!judge(&[write(1, 0, 1), write(2, 0, 1), read(1, 2, 3), read(2, 4, 5)]));
    }

    #[test]
    fn what_has_no_result_happened_at_any_later_time_or_never() {
        let write = event(Some(1), 0, None);
        let read = |value, a, b| event(None, a, Some((b, value)));
        let judge = |history: &[Event<Option<u8>, u8>]| is_linearizable(&Register, 0, history);
        assert!(judge(&[write.clone(), read(0, 1, 2), read(0, 3, 4)]));
        assert!(judge(&[write.clone(), read(0, 1, 2), read(1, 3, 4)]));
        assert!(!judge(&[write.clone(), read(1, 1, 2), read(0, 3, 4)]));
        assert!(!judge(&[read(1, 0, 1), event(Some(1), 2, None)]), "not before it was called");
    }
}
