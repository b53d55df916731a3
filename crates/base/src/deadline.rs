//! A time limit on work: one moment, set once where the limit is promised, and passed to everything that is
//! done for it.
//!
//! Two steps that each have their own timeout take the sum of both. Two steps that share a [`Deadline`] do
//! not.
//!
//! A deadline is passed as a value to a function that has an argument for it. Between layers without such an
//! argument (a command opens a volume, which asks its origin) it goes with the thread: [`Deadline::scope`]
//! sets it, and the lower layer calls [`Deadline::current`]. Scopes only shorten: work inside a scope never
//! has longer than the scope.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::time::monotonic;

thread_local! {
    static CURRENT: Cell<Deadline> = const { Cell::new(Deadline::NEVER) };
}

/// The moment at which some work must end, or none. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No limit.
    pub const NEVER: Deadline = Deadline(None);

    /// Returns the deadline that is `time` from now.
    pub fn after(time: Duration) -> Deadline {
        Deadline(monotonic().checked_add(time))
    }

    /// Returns the deadline that is `time` from now. `None` is no limit.
    pub fn after_if(time: Option<Duration>) -> Deadline {
        time.map_or(Deadline::NEVER, Deadline::after)
    }

    /// The earlier of both.
    #[must_use]
    pub fn sooner(self, other: Deadline) -> Deadline {
        match (self.0, other.0) {
            (Some(one), Some(two)) => Deadline(Some(one.min(two))),
            (one, two) => Deadline(one.or(two)),
        }
    }

    /// Returns this deadline, or `time` from now if that is earlier.
    #[must_use]
    pub fn within(self, time: Duration) -> Deadline {
        self.sooner(Deadline::after(time))
    }

    /// The time that is left: zero when it is over, [`Duration::MAX`] if there is no limit.
    pub fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(monotonic()))
    }

    /// Whether it has passed.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|at| monotonic() >= at)
    }

    /// Whether there is a limit.
    pub fn is_bounded(self) -> bool {
        self.0.is_some()
    }

    /// Sleeps this long, but not past the deadline.
    pub fn sleep(self, time: Duration) {
        std::thread::sleep(time.min(self.left()));
    }

    /// The deadline of this thread's current work.
    pub fn current() -> Deadline {
        CURRENT.get()
    }

    /// Runs work under this deadline, and under the one that this thread has already.
    pub fn scope<T>(self, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.get();
        // This restores the old deadline even if the work panics, because the thread may continue with other
        // work.
        let _restore = Restore(before);
        CURRENT.set(before.sooner(self));
        work()
    }
}

struct Restore(Deadline);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_earlier_bound_holds() {
        let (soon, late) = (Deadline::after(Duration::ZERO), Deadline::after(HOUR));
        assert_eq!((soon.sooner(late), late.sooner(soon)), (soon, soon));
        assert_eq!((late.sooner(Deadline::NEVER), Deadline::NEVER.sooner(late)), (late, late));
        assert!(soon.is_over() && soon.left().is_zero());
        assert!(!late.is_over() && late.left() > HOUR / 2 && late.left() <= HOUR);
        assert!(!Deadline::NEVER.is_over() && Deadline::NEVER.left() == Duration::MAX);
        assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
        assert!(Deadline::after_if(None) == Deadline::NEVER && Deadline::after_if(Some(HOUR)).is_bounded());
    }

    #[test]
    fn a_scope_narrows_and_ends_with_its_work() {
        let late = Deadline::after(HOUR);
        assert_eq!(Deadline::current(), Deadline::NEVER);
        late.scope(|| {
            assert_eq!(Deadline::current(), late);
            Deadline::NEVER.scope(|| assert_eq!(Deadline::current(), late, "a scope does not widen"));
            Deadline::after(Duration::ZERO).scope(|| assert!(Deadline::current().is_over()));
            assert_eq!(Deadline::current(), late);
        });
        let panicked = std::panic::catch_unwind(|| late.scope(|| panic!("as work might")));
        assert!(panicked.is_err() && Deadline::current() == Deadline::NEVER);
    }
}
