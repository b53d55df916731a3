//! A store that answers but refuses: what it refuses, since when, and when to try again.
//!
//! **Kinds are kept apart.** A refusal of the key itself, or of the clock that signs requests, concerns every
//! request. "Access denied" concerns one right: keys that may not delete (append-only keys, locked objects)
//! are no reason to refuse a read. So each [`Right`] has its own state, and one more is for refusals that
//! concern all of them.
//!
//! A wrong key is wrong the second time too, but a person or a program may renew keys during a mount. So
//! reads that would be refused fail here for a while, without a request, and one is let through now and then.
//! The pauses double. Storing and removing are paced by their callers (uploads, removals) and not held back.
//!
//! One refusal of a key is enough. "Access denied" may be about one object only, so for reads it takes
//! [`DENIALS`] in a row without any success between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Timestamp;
use parking_lot::Mutex;

use super::answers::{ACTS, Mistake, Right};
use super::engine::Failed;
use super::fault::mistake_of;

/// The first pause; each later one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Requests within this time of a trial request are let through with it, because one read may be two
/// requests.
const TOGETHER: Duration = Duration::from_millis(50);
/// This many "access denied" in a row count as a refusal of the right.
const DENIALS: u32 = 3;

/// Whether a mistake is a refusal: the store answers, and time alone does not help.
pub(crate) fn is_refusal(mistake: Mistake) -> bool {
    mistake == Mistake::Denied || concerns_all(mistake)
}

/// Whether a refusal is about the key or the clock, and not about one right.
fn concerns_all(mistake: Mistake) -> bool {
    matches!(mistake, Mistake::AccessKey | Mistake::Secret | Mistake::Expired | Mistake::Clock)
}

struct Held {
    failed: Failed,
    since: Timestamp,
    in_a_row: u32,
    pause: Duration,
    /// None: it may be about one object, and nothing is held back yet.
    until: Option<Instant>,
    /// A trial request was sent, and others may follow until then.
    open: Option<Instant>,
}

impl Held {
    /// Whether a read fails here without a request.
    fn holds(&mut self, now: Instant, renewed: &mut dyn FnMut() -> bool) -> bool {
        let Some(until) = self.until else { return false };
        if self.open.is_some_and(|open| now < open) {
            return false;
        }
        if now < until && !renewed() {
            return true;
        }
        // This request is sent. Others wait for its result, or for the next trial.
        self.until = Some(now + self.pause);
        self.open = Some(now + TOGETHER);
        false
    }
}

#[derive(Default)]
struct State {
    /// A refusal that concerns every request.
    all: Option<Held>,
    /// Refusals of one right, in the order of [`ACTS`].
    one: [Option<Held>; ACTS.len()],
}

impl State {
    fn is_empty(&self) -> bool {
        self.all.is_none() && self.one.iter().all(Option::is_none)
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Refusals {
    /// Whether `held` holds anything; every call reads it without the lock.
    any: AtomicBool,
    held: Mutex<State>,
}

impl Refusals {
    /// The refusal that a call would get, if it should not be made now. Calls `renewed` to check for new
    /// keys; if there are any, the call is made.
    pub(crate) fn meets(
        &self,
        act: Right,
        now: Instant,
        mut renewed: impl FnMut() -> bool,
    ) -> Option<Failed> {
        if act != Right::Read || !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut held = self.held.lock();
        let State { all, one } = &mut *held;
        let refused = all
            .iter_mut()
            .chain(&mut one[act as usize])
            .find_map(|held| held.holds(now, &mut renewed).then(|| held.failed.fault.clone()));
        refused.map(|fault| Failed { fault, tries: 0 })
    }

    /// Records a failed call. "Not found" and "exists" count as success; other faults than refusals say
    /// nothing.
    pub(crate) fn failed(&self, act: Right, failed: &Failed, now: Instant, today: Timestamp) {
        let mistake = mistake_of(&failed.fault);
        if failed.fault.is_missing() || failed.fault.is_taken() {
            return self.answered(act);
        }
        if !is_refusal(mistake) {
            return;
        }
        let mut state = self.held.lock();
        let place = if concerns_all(mistake) { &mut state.all } else { &mut state.one[act as usize] };
        let (since, in_a_row, pause) = match place {
            Some(held) => (held.since, held.in_a_row + 1, held.pause),
            None => (today, 1, PAUSE / 2),
        };
        let holds = act != Right::Read || mistake != Mistake::Denied || in_a_row >= DENIALS;
        let pause = if holds { PAUSE_MAX.min(pause * 2) } else { pause };
        let until = holds.then(|| now + pause);
        *place = Some(Held { failed: failed.clone(), since, in_a_row, pause, until, open: None });
        self.any.store(true, Ordering::Release);
    }

    /// Records a success: the store knows the key, and grants this right.
    pub(crate) fn answered(&self, act: Right) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.held.lock();
            (state.all, state.one[act as usize]) = (None, None);
            self.any.store(!state.is_empty(), Ordering::Release);
        }
    }

    /// The present refusals: the right (none: all), the fault, and since when.
    pub(crate) fn now(&self) -> Vec<(Option<Right>, Failed, Timestamp)> {
        let state = self.held.lock();
        let one = ACTS.iter().zip(&state.one).map(|((act, _), held)| (Some(*act), held));
        let all = std::iter::once((None, &state.all)).chain(one);
        let shown =
            all.filter_map(|(act, held)| Some((act, held.as_ref().filter(|held| held.until.is_some())?)));
        shown.map(|(act, held)| (act, held.failed.clone(), held.since)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::{Head, read_refusal};
    use super::*;

    fn refused(status: u16, code: &str) -> Failed {
        let body = format!("<Error><Code>{code}</Code></Error>");
        Failed { fault: read_refusal(status, "h", &Head::default(), &body, str::to_owned), tries: 1 }
    }

    #[test]
    fn reads_are_held_back_for_pauses_that_double_and_have_an_end() {
        let (refusals, start, today) = (Refusals::default(), base::time::monotonic(), base::time::now());
        let meets = |act, at| refusals.meets(act, start + at, || false).is_some();
        assert!(!meets(Right::Read, Duration::ZERO));
        let key = refused(403, "InvalidAccessKeyId");
        let mut at = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            refusals.failed(Right::Read, &key, start + at, today);
            let begin = at;
            while meets(Right::Read, at) {
                at += Duration::from_millis(250);
            }
            pauses.push((at - begin).as_secs());
            assert!(!meets(Right::Read, at), "two requests may be one read");
            assert!(meets(Right::Read, at + TOGETHER), "the rest waits for what becomes of it");
            assert!(!meets(Right::Write, at) && !meets(Right::Remove, at), "they have a pace of their own");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(refusals.now().len(), 1);
        assert!(refusals.meets(Right::Read, start + at, || true).is_none(), "other keys are tried at once");
        refusals.answered(Right::Read);
        assert!(!meets(Right::Read, at) && refusals.now().is_empty());
    }

    #[test]
    fn one_denied_object_holds_back_no_other() {
        let (refusals, now, today) = (Refusals::default(), base::time::monotonic(), base::time::now());
        let denied = refused(403, "AccessDenied");
        let held = |refusals: &Refusals| refusals.meets(Right::Read, now, || false).is_some();
        let failed = |failed: &Failed| refusals.failed(Right::Read, failed, now, today);
        for _ in 0..5 {
            failed(&denied);
            failed(&denied);
            assert!(!held(&refusals));
            failed(&refused(404, "NoSuchKey"));
        }
        (0..3).for_each(|_| failed(&denied));
        assert!(held(&refusals));
        failed(&refused(503, "SlowDown"));
        assert!(held(&refusals), "a busy store says nothing of the key");
    }

    /// Keys without the right to delete: after three refused DELETEs, reads were refused without a request.
    #[test]
    fn regression_what_may_not_be_deleted_can_be_read() {
        let (refusals, now, today) = (Refusals::default(), base::time::monotonic(), base::time::now());
        let held = || refusals.meets(Right::Read, now, || false).is_some();
        let shown = || refusals.now().iter().map(|(act, ..)| *act).collect::<Vec<_>>();
        for act in [Right::Remove, Right::Write, Right::List] {
            (0..5).for_each(|_| refusals.failed(act, &refused(403, "AccessDenied"), now, today));
            assert!(!held(), "{act:?}");
        }
        assert_eq!(shown(), [Some(Right::Write), Some(Right::Remove), Some(Right::List)]);
        refusals.answered(Right::Read);
        assert_eq!(shown().len(), 3, "a read that is served says nothing of deletes");
        refusals.answered(Right::Remove);
        assert_eq!(shown(), [Some(Right::Write), Some(Right::List)]);
        // An unknown key is unknown for reads too, whichever request found it first.
        refusals.failed(Right::Remove, &refused(403, "InvalidAccessKeyId"), now, today);
        assert!(held() && shown()[0].is_none());
        refusals.answered(Right::Write);
        assert!(!held());
        assert_eq!(shown(), [Some(Right::List)]);
    }
}
