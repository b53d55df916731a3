//! Whether what several clients saw could have happened one operation after the other.
//!
//! A history is **linearizable** if each operation can be given a moment between its call and its return,
//! such that a single client doing the operations in the order of these moments would have seen the same
//! (Herlihy and Wing, 1990). The search is that of Wing and Gong with Lowe's memory of states that were
//! tried. An operation whose result is unknown (the client was killed, or got an error that says so) may have
//! happened at any later moment, or never.

use std::collections::HashMap;
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

/// More states than this are not looked at: such a history is not judged.
const STATES_MAX: usize = 2_000_000;

/// Checks a history of at most 128 operations. One with too many possible orders passes, and that is said.
pub fn is_linearizable<M: Model>(model: &M, first: M::State, history: &[Event<M::Op, M::Seen>]) -> bool {
    assert!(history.len() <= 128, "a history has at most 128 operations");
    let returned = |at: usize| history[at].returned.as_ref().map(|(when, _)| *when);
    let unknown = (0..history.len()).filter(|at| returned(*at).is_none()).fold(0, |set, at| set | 1 << at);
    let mut tried = Tried { unknown, sets: HashMap::new() };
    let mut todo = vec![(0u128, first)];
    for _ in 0..STATES_MAX {
        let Some((done, state)) = todo.pop() else { return false };
        // An operation can come next if none that is still to come returned before it was called.
        let left: Vec<usize> = (0..history.len()).filter(|at| done >> at & 1 == 0).collect();
        let Some(earliest) = left.iter().filter_map(|at| returned(*at)).min() else { return true };
        let mut next: Vec<usize> = left.into_iter().filter(|at| history[*at].called <= earliest).collect();
        // The last one is tried first. So it is the one that returned first, and what nobody saw is tried
        // only when it has to have happened.
        next.sort_by_key(|at| std::cmp::Reverse(returned(*at).unwrap_or(u64::MAX)));
        for at in next {
            let event = &history[at];
            let after = match &event.returned {
                Some((_, seen)) => model.step(&state, &event.op, seen),
                // What changes nothing may as well happen later, or never.
                None => Some(model.blind(&state, &event.op)).filter(|after| *after != state),
            };
            let done = done | 1 << at;
            if let Some(after) = after.filter(|after| tried.is_new(done, after)) {
                todo.push((done, after));
            }
        }
    }
    crate::say(format_args!("skipped: a history has too many possible orders"));
    true
}

/// What was tried: states, with the operations that are done.
struct Tried<S> {
    /// The operations whose result is unknown.
    unknown: u128,
    /// By the others that are done, and the state: sets of unknown ones that are done. None holds another.
    sets: HashMap<(u128, S), Vec<u128>>,
}

impl<S: Clone + Eq + Hash> Tried<S> {
    /// Notes a state. It is not new if it was tried with fewer unknown operations done: whatever can follow
    /// here can follow there, because an unknown operation need not happen.
    fn is_new(&mut self, done: u128, state: &S) -> bool {
        let unknown = done & self.unknown;
        let sets = self.sets.entry((done & !self.unknown, state.clone())).or_default();
        if sets.iter().any(|fewer| fewer & !unknown == 0) {
            return false;
        }
        sets.retain(|more| unknown & !more != 0);
        sets.push(unknown);
        true
    }
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
    fn many_results_that_nobody_saw_are_judged() {
        let judge = |last| {
            let mut history: Vec<_> = (1..60).map(|value| event(Some(value), 0, None)).collect();
            history.extend((1..60).map(|value| event(None, value.into(), Some((value.into(), value)))));
            history.push(event(None, 100, Some((101, last))));
            is_linearizable(&Register, 0, &history)
        };
        assert!(judge(59), "each write happens just before it is read");
        assert!(!judge(1), "the write of 1 happened, and happens no more");
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
