//! How long requests take: a histogram for people, and a running p99 that decides when to hedge with a second
//! GET.
//!
//! There are eight buckets for each doubling ([`base::scale`]), from 64 µs on, over a minute. The histogram
//! for people only grows. The running one is halved every 1024 requests, so that it shows the store's present
//! state. A request that was dropped because the second GET was faster counts with the time that it had taken
//! until then. Otherwise the p99 would shrink by its own use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::scale;

/// Durations below 2^6 µs are in the first bucket, those from 2^27 µs (134 s) on in the last.
const FIRST: usize = 6;
const LAST: usize = 27;
/// The number of buckets.
pub(crate) const BUCKETS: usize = (LAST - FIRST) * scale::STEPS + 1;
const HALVE_AFTER: u64 = 1024;

/// With fewer requests than this the p99 is unknown.
const KNOWN_AFTER: u64 = 50;

/// When to send a second GET while the p99 is unknown.
const UNKNOWN: Duration = Duration::from_secs(1);

/// The shortest time after which a second GET is sent.
const HEDGE_MIN: Duration = Duration::from_millis(20);

fn bucket_of(took: Duration) -> usize {
    let step = scale::step(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    (step + 1).saturating_sub(FIRST * scale::STEPS).min(BUCKETS - 1)
}

/// The first time that is too long for bucket `index`.
fn bucket_end(index: usize) -> Duration {
    Duration::from_micros(scale::end(index + FIRST * scale::STEPS - 1))
}

struct Buckets([AtomicU64; BUCKETS]);

impl Buckets {
    fn new() -> Buckets {
        Buckets(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn add(&self, took: Duration) {
        self.0[bucket_of(took)].fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

/// The time within which `part` of the counted requests finished; none if nothing was counted.
pub(crate) fn quantile(counts: &[u64; BUCKETS], part: f64) -> Option<Duration> {
    let all: u64 = counts.iter().sum();
    let rank = (all as f64 * part).ceil().max(1.0) as u64;
    scale::bucket_of_rank(counts, rank).map(bucket_end)
}

/// The times of one kind of request.
pub(crate) struct Latency {
    ever: Buckets,
    recent: Buckets,
    count: AtomicU64,
    total_us: AtomicU64,
}

impl Latency {
    pub(crate) fn new() -> Latency {
        Latency {
            ever: Buckets::new(),
            recent: Buckets::new(),
            count: AtomicU64::new(0),
            total_us: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, took: Duration) {
        self.ever.add(took);
        self.recent.add(took);
        self.total_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        if self.count.fetch_add(1, Ordering::Relaxed) % HALVE_AFTER == HALVE_AFTER - 1 {
            for bucket in &self.recent.0 {
                let half = |count: u64| Some(count / 2);
                let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, half);
            }
        }
    }

    /// After how long to send a second GET.
    pub(crate) fn hedge_after(&self) -> Duration {
        if self.count.load(Ordering::Relaxed) < KNOWN_AFTER {
            return UNKNOWN;
        }
        quantile(&self.recent.counts(), 0.99).unwrap_or(UNKNOWN).max(HEDGE_MIN)
    }

    pub(crate) fn counts(&self) -> ([u64; BUCKETS], Duration) {
        (self.ever.counts(), Duration::from_micros(self.total_us.load(Ordering::Relaxed)))
    }
}

/// At most one request in twenty may be a second one. Up to ten may be sent at once, if two hundred requests
/// before needed none. At first there is credit for one: a dozen GETs on a busy line or machine may get
/// nothing in the first second, and a dozen more would only slow them down.
pub(crate) struct Extra(AtomicU64);

impl Extra {
    const PRICE: u64 = 20;
    const MOST: u64 = 10 * Extra::PRICE;

    pub(crate) fn new() -> Extra {
        Extra(AtomicU64::new(Extra::PRICE))
    }

    /// Earns credit: a first request was sent.
    pub(crate) fn earn(&self) {
        let more = |credit: u64| Some((credit + 1).min(Extra::MOST));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether a second request may be sent. Spends the credit.
    pub(crate) fn spend(&self) -> bool {
        let less = |credit: u64| credit.checked_sub(Extra::PRICE);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn buckets_hold_what_their_ends_say() {
        for us in [0, 1, 64, 65, 1000, 20_000, 1_000_000, 60_000_000] {
            let took = Duration::from_micros(us);
            let index = bucket_of(took);
            assert!(bucket_end(index) > took, "{us}");
            assert!(index == 0 || bucket_end(index - 1) <= took, "{us}");
        }
        assert!(bucket_end(BUCKETS - 1) > Duration::from_secs(60));
    }

    #[test]
    fn the_running_p99_follows_the_store() {
        let latency = Latency::new();
        assert_eq!(latency.hedge_after(), UNKNOWN);
        (0..1000).for_each(|_| latency.add(ms(1)));
        assert_eq!(latency.hedge_after(), HEDGE_MIN);
        (0..5000).for_each(|_| latency.add(ms(100)));
        assert!((ms(90)..ms(130)).contains(&latency.hedge_after()), "{:?}", latency.hedge_after());
        (0..20_000).for_each(|_| latency.add(ms(1)));
        assert_eq!(latency.hedge_after(), HEDGE_MIN, "slow times are forgotten");
        assert!(quantile(&latency.counts().0, 0.5).unwrap() < ms(2));
    }

    #[test]
    fn one_request_in_twenty_may_be_a_second_one() {
        let extra = Extra::new();
        assert_eq!((0..50).filter(|_| extra.spend()).count(), 1);
        (0..1000).for_each(|_| extra.earn());
        assert_eq!((0..50).filter(|_| extra.spend()).count(), 10);
        let mut second = 0;
        for _ in 0..2000 {
            extra.earn();
            second += u32::from(extra.spend());
        }
        assert_eq!(second, 100);
    }
}
