//! A store that answers but refuses: what it refuses, since when, and when to try again.
//!
//! **A refusal affects what is refused.** "Access denied" is about one object: it is archived, quarantined,
//! or encrypted with a key that may not be used. So reads of this object fail here for a while, without a
//! request, and all others are sent. A refusal of the key itself, or of the clock that signs requests,
//! concerns every request. The engine asks for the marker before it believes that, because a store may say
//! so of one object, too.
//!
//! A wrong key is wrong the second time too, but a person or a program may renew keys during a mount. So of
//! the reads that would be refused, one is let through now and then. The pauses double. Storing and removing
//! are paced by their callers (uploads, removals) and not held back. What is refused of them is only shown.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Timestamp;
use object_store::path::Path;
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
/// A refused object that nobody has asked for since is shown for this long after its pause.
const SHOWN: Duration = Duration::from_secs(60);
/// The most refused objects that are remembered.
const MOST: usize = 4096;

/// Whether a mistake is a refusal: the store answers, and time alone does not help.
pub(crate) fn is_refusal(mistake: Mistake) -> bool {
    mistake == Mistake::Denied || concerns_all(mistake)
}

/// Whether a refusal is about the key or the clock, and not about one right.
pub(crate) fn concerns_all(mistake: Mistake) -> bool {
    matches!(mistake, Mistake::AccessKey | Mistake::Secret | Mistake::Expired | Mistake::Clock)
}

/// What a refusal is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused<'a> {
    /// Every request.
    All,
    /// Requests of this kind, as far as they concern this object, if one is known.
    One(Right, Option<&'a Path>),
}

struct Held {
    failed: Failed,
    since: Timestamp,
    pause: Duration,
    until: Instant,
    /// A trial request was sent, and others may follow until then.
    open: Option<Instant>,
}

impl Held {
    /// The state after one more refusal.
    fn after(before: Option<Held>, failed: &Failed, now: Instant, today: Timestamp) -> Held {
        let (since, pause) = match before {
            Some(held) => (held.since, PAUSE_MAX.min(held.pause * 2)),
            None => (today, PAUSE),
        };
        Held { failed: failed.clone(), since, pause, until: now + pause, open: None }
    }

    /// Whether a read fails here without a request.
    fn holds(&mut self, now: Instant) -> bool {
        if self.open.is_some_and(|open| now < open) {
            return false;
        }
        if now < self.until {
            return true;
        }
        // This request is sent. Others wait for its result, or for the next trial.
        self.until = now + self.pause;
        self.open = Some(now + TOGETHER);
        false
    }
}

#[derive(Default)]
struct State {
    /// A refusal that concerns every request.
    all: Option<Held>,
    /// Objects that may not be read.
    objects: HashMap<Path, Held>,
    /// Other rights that are refused, in the order of [`ACTS`].
    rights: [Option<Held>; ACTS.len()],
}

impl State {
    fn is_empty(&self) -> bool {
        self.all.is_none() && self.objects.is_empty() && self.rights.iter().all(Option::is_none)
    }

    /// Makes room for one more object.
    fn make_room(&mut self, now: Instant) {
        if self.objects.len() < MOST {
            return;
        }
        self.objects.retain(|_, held| now < held.until + SHOWN);
        if self.objects.len() >= MOST {
            let oldest = self.objects.iter().min_by_key(|(_, held)| held.until).map(|(key, _)| key.clone());
            oldest.into_iter().for_each(|key| drop(self.objects.remove(&key)));
        }
    }
}

/// A present refusal.
pub(crate) struct Shown {
    /// The right; none: all.
    pub(crate) act: Option<Right>,
    pub(crate) failed: Failed,
    pub(crate) since: Timestamp,
    /// Of reads: how many objects are refused, and one of them.
    pub(crate) objects: Option<(usize, Path)>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Refusals {
    /// Whether `held` holds anything; every call reads it without the lock.
    any: AtomicBool,
    held: Mutex<State>,
}

impl Refusals {
    /// The refusal that a call for an object would get, if it should not be made now.
    pub(crate) fn meets(&self, act: Right, key: Option<&Path>, now: Instant) -> Option<Failed> {
        if act != Right::Read || !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut held = self.held.lock();
        let State { all, objects, .. } = &mut *held;
        let object = key.and_then(|key| objects.get_mut(key));
        let refused = all.iter_mut().chain(object).find_map(|held| held.holds(now).then_some(&held.failed));
        refused.map(|failed| Failed { fault: failed.fault.clone(), tries: 0 })
    }

    /// Whether everything was refused a moment ago.
    pub(crate) fn are_of_all(&self, now: Instant) -> bool {
        self.any.load(Ordering::Acquire) && self.held.lock().all.as_ref().is_some_and(|all| now < all.until)
    }

    /// Records a refused call. Other faults than refusals say nothing.
    pub(crate) fn failed(&self, what: Refused<'_>, failed: &Failed, now: Instant, today: Timestamp) {
        if !is_refusal(mistake_of(&failed.fault)) {
            return;
        }
        let mut state = self.held.lock();
        let after = |before| Held::after(before, failed, now, today);
        match what {
            Refused::All => state.all = Some(after(state.all.take())),
            Refused::One(Right::Read, Some(key)) => {
                state.make_room(now);
                let before = state.objects.remove(key);
                state.objects.insert(key.clone(), after(before));
            }
            Refused::One(act, _) => {
                state.rights[act as usize] = Some(after(state.rights[act as usize].take()));
            }
        }
        self.any.store(true, Ordering::Release);
    }

    /// Records a success, also "not found": the store knows the key, and grants this for the object.
    pub(crate) fn answered(&self, act: Right, key: Option<&Path>) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.held.lock();
            state.all = None;
            state.rights[act as usize] = None;
            key.into_iter().for_each(|key| drop(state.objects.remove(key)));
            self.any.store(!state.is_empty(), Ordering::Release);
        }
    }

    /// Forgets all refusals: there are other keys.
    pub(crate) fn renewed(&self) {
        *self.held.lock() = State::default();
        self.any.store(false, Ordering::Release);
    }

    /// The present refusals.
    pub(crate) fn now(&self, now: Instant) -> Vec<Shown> {
        let state = self.held.lock();
        let shown = |act, held: &Held, objects| Shown {
            act,
            failed: held.failed.clone(),
            since: held.since,
            objects,
        };
        let mut all: Vec<Shown> = state.all.iter().map(|held| shown(None, held, None)).collect();
        let refused = || state.objects.iter().filter(|(_, held)| now < held.until + SHOWN);
        if let Some((key, held)) = refused().min_by_key(|(_, held)| held.since) {
            all.push(shown(Some(Right::Read), held, Some((refused().count(), key.clone()))));
        }
        let rights = ACTS.iter().zip(&state.rights);
        all.extend(rights.filter_map(|((act, _), held)| Some(shown(Some(*act), held.as_ref()?, None))));
        all
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

    fn key(n: usize) -> Path {
        Path::from(format!("blobs/{n}"))
    }

    #[test]
    fn reads_are_held_back_for_pauses_that_double_and_have_an_end() {
        let (start, today) = (base::time::monotonic(), base::time::now());
        let (one, unknown) = (key(1), refused(403, "InvalidAccessKeyId"));
        for what in [Refused::All, Refused::One(Right::Read, Some(&one))] {
            let refusals = Refusals::default();
            let meets = |act, at| refusals.meets(act, Some(&one), start + at).is_some();
            assert!(!meets(Right::Read, Duration::ZERO));
            let mut at = Duration::ZERO;
            let mut pauses = Vec::new();
            for _ in 0..8 {
                refusals.failed(what, &unknown, start + at, today);
                let begin = at;
                while meets(Right::Read, at) {
                    at += Duration::from_millis(250);
                }
                pauses.push((at - begin).as_secs());
                assert!(!meets(Right::Read, at), "two requests may be one read");
                assert!(meets(Right::Read, at + TOGETHER), "the rest waits for what becomes of it");
                assert!(!meets(Right::Write, at) && !meets(Right::Remove, at), "they have their own pace");
            }
            assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
            let other = refusals.meets(Right::Read, Some(&key(2)), start + at + TOGETHER);
            assert_eq!(other.is_some(), matches!(what, Refused::All));
            assert_eq!(refusals.now(start + at).len(), 1);
            refusals.answered(Right::Read, Some(&one));
            assert!(!meets(Right::Read, at) && refusals.now(start + at).is_empty());
            refusals.failed(what, &unknown, start + at, today);
            refusals.renewed();
            assert!(!meets(Right::Read, at), "other keys are tried at once");
        }
    }

    /// After three refused objects in a row, all reads were refused without a request.
    #[test]
    fn regression_refused_objects_hold_back_no_other() {
        let (refusals, now, today) = (Refusals::default(), base::time::monotonic(), base::time::now());
        let held = |n| refusals.meets(Right::Read, Some(&key(n)), now).is_some();
        let denied = refused(403, "AccessDenied");
        for n in 0..2 * MOST {
            refusals.failed(Refused::One(Right::Read, Some(&key(n))), &denied, now, today);
            assert!(held(n) && !held(n + 1));
        }
        let shown = refusals.now(now);
        assert_eq!((shown.len(), shown[0].objects.as_ref().unwrap().0), (1, MOST), "memory is bounded");
        let busy = refused(503, "SlowDown");
        refusals.failed(Refused::One(Right::Read, Some(&key(2 * MOST))), &busy, now, today);
        assert!(!held(2 * MOST), "a busy store refuses nothing");
        refusals.answered(Right::Read, Some(&key(7)));
        assert!(held(2 * MOST - 1), "another object that is served says nothing of this one");
        let later = now + PAUSE + SHOWN;
        assert!(refusals.now(later).is_empty(), "nobody has asked for any of them since");
    }

    /// Keys without the right to delete: after three refused DELETEs, reads were refused without a request.
    #[test]
    fn regression_what_may_not_be_deleted_can_be_read() {
        let (refusals, now, today) = (Refusals::default(), base::time::monotonic(), base::time::now());
        let held = || refusals.meets(Right::Read, Some(&key(1)), now).is_some();
        let shown = || refusals.now(now).iter().map(|shown| shown.act).collect::<Vec<_>>();
        for act in [Right::Remove, Right::Write, Right::List] {
            let (one, denied) = (key(1), refused(403, "AccessDenied"));
            let what = Refused::One(act, Some(&one));
            (0..5).for_each(|_| refusals.failed(what, &denied, now, today));
            assert!(!held(), "{act:?}");
        }
        assert_eq!(shown(), [Some(Right::Write), Some(Right::Remove), Some(Right::List)]);
        refusals.answered(Right::Read, Some(&key(1)));
        assert_eq!(shown().len(), 3, "a read that is served says nothing of deletes");
        refusals.answered(Right::Remove, None);
        assert_eq!(shown(), [Some(Right::Write), Some(Right::List)]);
        // An unknown key is unknown for reads too, whichever request found it first.
        refusals.failed(Refused::All, &refused(403, "InvalidAccessKeyId"), now, today);
        assert!(held() && shown()[0].is_none());
        refusals.answered(Right::Write, None);
        assert!(!held());
        assert_eq!(shown(), [Some(Right::List)]);
    }
}
