//! The load on the store: requests in flight, requests per second, bytes per second.
//!
//! **A budget is a first-come-first-served queue.** A sender takes the next free moment and waits for it. So
//! it is fair, and no waiter holds a lock. A large body takes a moment for each piece that it moves, and a
//! small one for its only piece. So a small read waits behind one piece of each large body, not behind whole
//! bodies.
//!
//! A few of the slots in flight are for small reads only, so that 64 whole blobs in flight do not keep a
//! small read from starting.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Unused budget is kept for this long: a short burst after a pause is not delayed.
const BURST: Duration = Duration::from_millis(250);

/// One in this many slots in flight is for small reads only.
const SMALL_PART: usize = 8;

/// A limit of units per second.
pub(crate) struct Budget {
    per_second: f64,
    next: Mutex<Option<Instant>>,
}

impl Budget {
    pub(crate) fn new(per_second: u64) -> Budget {
        Budget { per_second: per_second.max(1) as f64, next: Mutex::new(None) }
    }

    /// Takes `units` and returns how long to wait before sending them.
    fn take_at(&self, units: u64, now: Instant) -> Duration {
        let mut next = self.next.lock();
        let oldest = now.checked_sub(BURST).unwrap_or(now);
        let begin = next.map_or(oldest, |next| next.max(oldest));
        let cost = Duration::from_secs_f64(units as f64 / self.per_second);
        *next = Some(begin + cost);
        begin.saturating_duration_since(now)
    }

    /// Waits until `units` may be sent.
    pub(crate) async fn take(&self, units: u64) {
        let wait = self.take_at(units, base::time::monotonic());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

/// Whether a request moves few bytes and is waited for, or many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Large,
}

/// The three bounds together.
pub(crate) struct Pace {
    all: Semaphore,
    large: Semaphore,
    requests: Option<Budget>,
    bytes: Option<Budget>,
}

/// A slot in flight, returned when dropped.
pub(crate) struct Place<'a> {
    _all: SemaphorePermit<'a>,
    _large: Option<SemaphorePermit<'a>>,
}

impl Pace {
    pub(crate) fn new(in_flight: usize, requests: Option<u64>, bytes: Option<u64>) -> Pace {
        let in_flight = in_flight.max(2);
        let for_small = (in_flight / SMALL_PART).max(1);
        Pace {
            all: Semaphore::new(in_flight),
            large: Semaphore::new(in_flight - for_small),
            requests: requests.map(Budget::new),
            bytes: bytes.map(Budget::new),
        }
    }

    /// Waits for a slot and for the budget of requests. None only if the semaphores were closed, which never
    /// happens.
    pub(crate) async fn enter(&self, size: Size) -> Option<Place<'_>> {
        let large = match size {
            Size::Large => Some(self.large.acquire().await.ok()?),
            Size::Small => None,
        };
        let all = self.all.acquire().await.ok()?;
        if let Some(requests) = &self.requests {
            requests.take(1).await;
        }
        Some(Place { _all: all, _large: large })
    }

    /// A slot without waiting, for an optional request. It still counts as a request.
    pub(crate) fn try_enter(&self, size: Size) -> Option<Place<'_>> {
        let large = match size {
            Size::Large => Some(self.large.try_acquire().ok()?),
            Size::Small => None,
        };
        let all = self.all.try_acquire().ok()?;
        if let Some(requests) = &self.requests
            && !requests.take_at(1, base::time::monotonic()).is_zero()
        {
            return None;
        }
        Some(Place { _all: all, _large: large })
    }

    /// To be called for each piece of a body that arrived or is about to be sent.
    pub(crate) async fn bytes(&self, bytes: u64) {
        if let Some(budget) = &self.bytes {
            budget.take(bytes).await;
        }
    }

    pub(crate) fn limits_bytes(&self) -> bool {
        self.bytes.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_kept_over_time_and_gives_a_short_burst() {
        let budget = Budget::new(1000);
        let start = base::time::monotonic();
        let mut now = start;
        for _ in 0..2000 {
            now += budget.take_at(1, now);
        }
        let spent = (now - start).as_secs_f64();
        assert!((1.7..=2.0).contains(&spent), "2000 units at 1000 in a second took {spent}");
        let later = now + Duration::from_secs(100);
        assert_eq!(budget.take_at(200, later), Duration::ZERO);
        assert_eq!(budget.take_at(100, later), Duration::ZERO);
        assert!(budget.take_at(1, later) > Duration::ZERO, "a long pause is not saved up");
    }

    #[test]
    fn large_bodies_leave_places_for_small_reads() {
        let pace = Pace::new(8, None, None);
        let large: Vec<_> = std::iter::from_fn(|| pace.try_enter(Size::Large)).collect();
        assert_eq!(large.len(), 7);
        let small = pace.try_enter(Size::Small);
        assert!(small.is_some() && pace.try_enter(Size::Small).is_none());
        drop(large);
        assert!(pace.try_enter(Size::Large).is_some());
    }

    #[test]
    fn a_small_read_waits_for_pieces_and_not_for_bodies() {
        let budget = Budget::new(1 << 20);
        let now = base::time::monotonic();
        budget.take_at(256 << 10, now);
        for _ in 0..16 {
            budget.take_at(64 << 10, now);
        }
        let wait = budget.take_at(4096, now).as_secs_f64();
        assert!((0.9..=1.1).contains(&wait), "one piece of each of 16 bodies, not 64 MiB: {wait} s");
    }
}
