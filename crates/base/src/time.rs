//! Timestamps, and the door to the clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment: nanoseconds since 1970-01-01 UTC, negative before it. Covers the years 1677 to 2262.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// From the two numbers the kernel uses. `nanos` below 10^9; what does not fit is cut to the nearest that does.
    pub fn from_parts(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos)))
    }

    /// Whole seconds, rounded down (also before 1970).
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// The nanoseconds beside [`Timestamp::seconds`]: 0 to 999,999,999.
    pub fn nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}

/// The time of day, for what users see (mtime and the like). It may jump; never measure with it.
pub fn now() -> Timestamp {
    let since = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp(since(after)),
        Err(before) => Timestamp(-since(before.duration())),
    }
}

/// The monotonic clock, for deadlines and measurements.
pub fn monotonic() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_also_before_1970() {
        for (seconds, nanos) in [(0, 0), (1, 999_999_999), (-1, 1), (-2_000_000_000, 5)] {
            let t = Timestamp::from_parts(seconds, nanos);
            assert_eq!((t.seconds(), t.nanos()), (seconds, nanos));
        }
    }

    #[test]
    fn what_does_not_fit_is_cut_not_wrapped() {
        assert_eq!(Timestamp::from_parts(i64::MAX, 0), Timestamp(i64::MAX));
        assert_eq!(Timestamp::from_parts(i64::MIN, 0), Timestamp(i64::MIN));
    }
}
