//! A store that answers and will not serve us: what it said, since when, and when it is worth asking again.
//!
//! A wrong key is wrong the second time too, but keys are renewed while a mount goes on, by a person or by whoever writes their file. So
//! reads that would be refused are answered here for a while, without a request, and one is let through now and then; the pauses
//! double. What stores and removes has a pace of its own above (uploads, removals) and is not held.
//!
//! One refusal of a key is enough. "Access denied" may be about one object only, so it takes [`DENIALS`] in a row without any answer between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Timestamp;
use parking_lot::Mutex;

use super::Mistake;
use super::engine::{Failed, What};
use super::fault::mistake_of;

/// The first pause; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Who goes to see takes those along who come within this: one read is two requests at times.
const TOGETHER: Duration = Duration::from_millis(50);
/// So many "access denied" in a row are a refusal of the key.
const DENIALS: u32 = 3;

/// Whether a mistake is a refusal: the store is there, and time alone does not help.
pub(crate) fn is_refusal(mistake: Mistake) -> bool {
    matches!(
        mistake,
        Mistake::AccessKey | Mistake::Secret | Mistake::Expired | Mistake::Denied | Mistake::Clock
    )
}

struct Held {
    failed: Failed,
    since: Timestamp,
    in_a_row: u32,
    pause: Duration,
    /// None: nothing is held back yet.
    until: Option<Instant>,
    /// Somebody went to see, and others may follow until then.
    open: Option<Instant>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Refusals {
    /// Whether `held` is something: looked at without the lock by every call.
    any: AtomicBool,
    held: Mutex<Option<Held>>,
}

impl Refusals {
    /// The refusal that a call would meet, if it should not be made now. `renewed` is asked whether there are other keys by now; then it is made.
    pub(crate) fn meets(&self, what: What, now: Instant, renewed: impl FnOnce() -> bool) -> Option<Failed> {
        if !self.any.load(Ordering::Acquire) || !matches!(what, What::Small | What::Large) {
            return None;
        }
        let mut held = self.held.lock();
        let held = held.as_mut()?;
        let open = held.until.is_none() || held.open.is_some_and(|open| now < open);
        if open {
            return None;
        }
        if held.until.is_none_or(|until| now >= until) || renewed() {
            // This one goes; others wait for what becomes of it, or for the next turn.
            held.until = Some(now + held.pause);
            held.open = Some(now + TOGETHER);
            return None;
        }
        Some(Failed { fault: held.failed.fault.clone(), tries: 0 })
    }

    /// A call came to nothing. Anything but a refusal is an answer, or says nothing.
    pub(crate) fn failed(&self, failed: &Failed, now: Instant, today: Timestamp) {
        let mistake = mistake_of(&failed.fault);
        if failed.fault.is_missing() || failed.fault.is_taken() {
            return self.answered();
        }
        if !is_refusal(mistake) {
            return;
        }
        let mut all = self.held.lock();
        let (since, in_a_row, pause) = match &*all {
            Some(held) => (held.since, held.in_a_row + 1, held.pause),
            None => (today, 1, PAUSE / 2),
        };
        let holds = mistake != Mistake::Denied || in_a_row >= DENIALS;
        let pause = if holds { PAUSE_MAX.min(pause * 2) } else { pause };
        let until = holds.then(|| now + pause);
        *all = Some(Held { failed: failed.clone(), since, in_a_row, pause, until, open: None });
        self.any.store(true, Ordering::Release);
    }

    /// The store served a call.
    pub(crate) fn answered(&self) {
        if self.any.swap(false, Ordering::AcqRel) {
            *self.held.lock() = None;
        }
    }

    /// What is refused, and since when, while that goes on.
    pub(crate) fn now(&self) -> Option<(Failed, Timestamp)> {
        let held = self.held.lock();
        held.as_ref().filter(|held| held.until.is_some()).map(|held| (held.failed.clone(), held.since))
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
        let meets = |what, at| refusals.meets(what, start + at, || false).is_some();
        assert!(!meets(What::Small, Duration::ZERO));
        let key = refused(403, "InvalidAccessKeyId");
        let mut at = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            refusals.failed(&key, start + at, today);
            let begin = at;
            while meets(What::Large, at) {
                at += Duration::from_millis(250);
            }
            pauses.push((at - begin).as_secs());
            assert!(!meets(What::Small, at), "two requests may be one read");
            assert!(meets(What::Small, at + TOGETHER), "the rest waits for what becomes of it");
            assert!(!meets(What::Store, at) && !meets(What::Other, at), "they have a pace of their own");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(refusals.now().is_some());
        assert!(refusals.meets(What::Small, start + at, || true).is_none(), "other keys are tried at once");
        refusals.answered();
        assert!(!meets(What::Small, at) && refusals.now().is_none());
    }

    #[test]
    fn one_denied_object_holds_back_no_other() {
        let (refusals, now, today) = (Refusals::default(), base::time::monotonic(), base::time::now());
        let denied = refused(403, "AccessDenied");
        let held = |refusals: &Refusals| refusals.meets(What::Small, now, || false).is_some();
        for _ in 0..5 {
            refusals.failed(&denied, now, today);
            refusals.failed(&denied, now, today);
            assert!(!held(&refusals));
            refusals.failed(&refused(404, "NoSuchKey"), now, today);
        }
        (0..3).for_each(|_| refusals.failed(&denied, now, today));
        assert!(held(&refusals));
        refusals.failed(&refused(503, "SlowDown"), now, today);
        assert!(held(&refusals), "a busy store says nothing of the key");
    }
}
