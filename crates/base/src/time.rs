//! Timestamps, and the door to the clocks.

use std::time::{Duration, Instant};

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

/// [`now`] moves at least this often: the slowest tick that kernels are built with, 100 Hz.
pub const TICK_MAX: Duration = Duration::from_millis(10);

/// The time of day, for what users see (mtime and the like). It may jump; never measure with it.
///
/// It moves with the clock's tick, some milliseconds apart: the kernel stamps inodes by that clock, also those of FUSE whose times it
/// keeps itself, and with a finer one here what was done later would often bear the earlier time. (At times the kernel runs ahead of its tick.)
pub fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp::from_parts(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The monotonic clock, for deadlines and measurements.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The monotonic clock as a number of nanoseconds: the kernel's CLOCK_MONOTONIC, by which it can stamp its own traces too.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// A moment on the clock that also goes on while the machine sleeps (CLOCK_BOOTTIME). Promises with a deadline that another machine relies on
/// are measured with it: the monotonic clock stands still during a suspend, and would let a promise of yesterday count as fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// Later than every other.
    pub const NEVER: BootTime = BootTime(Duration::MAX);

    /// So much later.
    #[must_use]
    pub fn plus(self, time: Duration) -> BootTime {
        BootTime(self.0.saturating_add(time))
    }

    /// How long it is from `earlier` to this; nothing if that is later.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The moment now, on the clock that goes on while the machine sleeps.
pub fn boot() -> BootTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    BootTime(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_since_boot_goes_on_and_has_an_end() {
        let before = boot();
        assert!(boot() >= before && before.plus(Duration::from_secs(1)).since(before).as_secs() == 1);
        assert!(
            BootTime::NEVER.plus(Duration::MAX) == BootTime::NEVER && before.since(BootTime::NEVER).is_zero()
        );
    }

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
