//! How long recent fetches took. Hedges and leases are based on it.
//!
//! A window counts durations in buckets, eight for each doubling, so a quantile is at most 9 % too high. When
//! it has counted [`FULL`] durations it halves all counts. So old values fade, nothing is allocated, and an
//! idle window keeps what it knows.

use std::time::Duration;

use base::scale;

/// Where a fetch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// A node that had it.
    Peer,
    /// A node that was itself fetching it.
    Stream,
    /// The zone's depot.
    Depot,
    /// The origin.
    Origin,
}

/// The scale ends at 2^32 microseconds, more than an hour.
const BUCKETS: usize = 32 * scale::STEPS;
/// At this total all counts are halved.
const FULL: u32 = 2_048;
/// With fewer samples than this, a p99 is only the longest that was seen. It may raise the assumed value and
/// not lower it.
const ENOUGH: u32 = 128;

/// Recent durations of one kind.
#[derive(Clone, Debug)]
pub struct Window {
    counts: Box<[u16; BUCKETS]>,
    total: u32,
    assumed: Duration,
}

impl Window {
    /// An empty window. While little is known, every quantile is at least `assumed`.
    pub fn new(assumed: Duration) -> Window {
        Window { counts: Box::new([0; BUCKETS]), total: 0, assumed }
    }

    /// Counts one duration.
    pub fn record(&mut self, took: Duration) {
        if let Some(count) = self.counts.get_mut(bucket(took)) {
            *count += 1;
            self.total += 1;
        }
        if self.total >= FULL {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
    }

    /// The duration that `per_mille` of a thousand did not exceed.
    pub fn quantile(&self, per_mille: u32) -> Duration {
        if self.total < ENOUGH {
            let longest = self.counts.iter().rposition(|count| *count > 0).map(end_of);
            return longest.map_or(self.assumed, |longest| longest.max(self.assumed));
        }
        let rank = (u64::from(self.total) * u64::from(per_mille)).div_ceil(1_000);
        end_of(scale::bucket_of_rank(&self.counts[..], rank).unwrap_or(BUCKETS - 1))
    }

    /// Like [`Window::p99`], but at least `least` while little is known.
    pub fn p99_or(&self, least: Duration) -> Duration {
        if self.total < ENOUGH { self.p99().max(least) } else { self.p99() }
    }

    /// The median.
    pub fn p50(&self) -> Duration {
        self.quantile(500)
    }

    /// The duration that one in a hundred exceeds.
    pub fn p99(&self) -> Duration {
        self.quantile(990)
    }
}

fn bucket(took: Duration) -> usize {
    scale::step(u64::from(u32::try_from(took.as_micros()).unwrap_or(u32::MAX)))
}

/// The upper end of a bucket.
fn end_of(bucket: usize) -> Duration {
    Duration::from_micros(scale::end(bucket))
}

/// The windows of all tiers.
#[derive(Clone, Debug)]
pub struct Latencies {
    peer: Window,
    stream: Window,
    depot: Window,
    origin: Window,
    answers: Window,
}

impl Default for Latencies {
    /// The values assumed before anything is known. They are slow, so that no node hedges out of ignorance.
    fn default() -> Latencies {
        let window = |millis| Window::new(Duration::from_millis(millis));
        Latencies {
            peer: window(250),
            stream: window(400),
            depot: window(500),
            origin: window(1_000),
            // What answers take in the first second of a crowd, when all connections of all nodes begin at
            // once over links that nobody has measured. A requester that then asks the next tracker gets a
            // second lease.
            answers: window(200),
        }
    }
}

impl Latencies {
    /// A fetch of a whole blob took this long, from the request to the last byte.
    pub fn record(&mut self, tier: Tier, took: Duration) {
        match tier {
            Tier::Peer => self.peer.record(took),
            Tier::Stream => self.stream.record(took),
            Tier::Depot => self.depot.record(took),
            Tier::Origin => self.origin.record(took),
        }
    }

    /// A tracker's answer took this long.
    pub fn answered(&mut self, took: Duration) {
        self.answers.record(took);
    }

    /// The window of trackers' answers.
    pub fn answers(&self) -> &Window {
        &self.answers
    }

    /// The window of a tier.
    pub fn of(&self, tier: Tier) -> &Window {
        match tier {
            Tier::Peer => &self.peer,
            Tier::Stream => &self.stream,
            Tier::Depot => &self.depot,
            Tier::Origin => &self.origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_an_eighth() {
        let mut window = Window::new(Duration::from_secs(9));
        assert_eq!(window.p99(), Duration::from_secs(9));
        (0..4).for_each(|_| window.record(Duration::from_millis(1_000)));
        assert_eq!(window.p99(), Duration::from_secs(9), "few do not lower it");
        assert_eq!(window.p99_or(Duration::from_secs(20)), Duration::from_secs(20));
        window.record(Duration::from_secs(10));
        let few = window.p99().as_millis();
        assert!((10_000..=11_250).contains(&few), "{few}");
        (0..FULL).for_each(|_| window.record(Duration::from_millis(500)));
        assert!(
            window.p99_or(Duration::from_secs(20)) < Duration::from_secs(1),
            "and not when much is known"
        );
        let mut window = Window::new(Duration::from_secs(9));
        for millis in 1..=1_000 {
            window.record(Duration::from_millis(millis));
        }
        for (got, want) in [(window.p50(), 500.0), (window.p99(), 990.0)] {
            let got = got.as_secs_f64() * 1e3;
            assert!((1.0..1.126).contains(&(got / want)), "{got} for {want}");
        }
    }

    #[test]
    fn what_was_long_ago_fades_and_no_duration_is_too_long() {
        let mut window = Window::new(Duration::ZERO);
        (0..5_000).for_each(|_| window.record(Duration::from_secs(1)));
        (0..20_000).for_each(|_| window.record(Duration::from_millis(1)));
        assert!(window.p99() < Duration::from_millis(2), "{:?}", window.p99());
        window.record(Duration::MAX);
        window.record(Duration::ZERO);
        assert!(window.total <= FULL);
        assert!(end_of(bucket(Duration::MAX)) > Duration::from_secs(4_000));
    }
}
