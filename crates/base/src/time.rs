//! Timestamps, and access to the clocks.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW};

/// A moment: nanoseconds since 1970-01-01 UTC, negative before it. It can hold every time of a file: 64 bits
/// of seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i128);

impl Timestamp {
    /// From the two numbers that the kernel uses. `nanos` is below 10^9.
    pub fn from_parts(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
    }

    /// From nanoseconds in 64 bits, as clocks return them.
    pub fn from_nanos(nanos: i64) -> Timestamp {
        Timestamp(i128::from(nanos))
    }

    /// Nanoseconds since 1970 in 64 bits: exact for the years 1678 to 2261, otherwise the nearest value that
    /// fits.
    pub fn as_nanos(self) -> i64 {
        self.0.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Whole seconds, rounded down (also before 1970).
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// The nanoseconds beside [`Timestamp::seconds`]: 0 to 999,999,999.
    pub fn nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}

/// [`now`] moves at least this often: the slowest tick that kernels are built with, 100 Hz.
pub const TICK_MAX: Duration = Duration::from_millis(10);

/// The time of day, for what users see (mtime and the like). It may jump. Never measure with it.
///
/// This is the clock by which the kernel stamps inodes, including FUSE inodes whose times it keeps itself.
/// With any other clock, a later change made here would often get an earlier time. The kernel's clock moves
/// with the tick, at intervals of some milliseconds. Since Linux 6.13 it also moves in between: it is never
/// behind a fine-grained time that the kernel has given to any file because a program had read its times. No
/// clock that programs can read shows this. So the kernel is made to stamp an inode of ours, a pipe's, which
/// takes two system calls. (A pipe's times are not fine-grained, so this moves no clock for others. The times
/// of a file in memory are fine-grained, and would.)
pub fn now() -> Timestamp {
    stamped().unwrap_or_else(tick)
}

/// The kernel's stamp. `None` if a sandbox refuses it.
fn stamped() -> Option<Timestamp> {
    static PIPE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let make = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok().map(|(read, _)| read);
    let pipe = PIPE.get_or_init(make).as_ref()?;
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    rustix::fs::futimens(pipe, &Timestamps { last_access: now, last_modification: now }).ok()?;
    let stamp = rustix::fs::fstat(pipe).ok()?;
    Some(Timestamp::from_parts(stamp.st_ctime, u32::try_from(stamp.st_ctime_nsec).ok()?))
}

/// The time of day by the kernel's tick, without a system call. The kernel stamps with it before Linux 6.13.
/// It is at most a tick behind [`now`]. Use it for a time that another clock's time will replace.
pub fn tick() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp::from_parts(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The time of day in nanoseconds since 1970, as exact as the machine has it. Use it only to compare moments
/// on two machines, as a trace does.
pub fn wall_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// The monotonic clock, for deadlines and measurements.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The monotonic clock as a number of nanoseconds: the kernel's CLOCK_MONOTONIC. The kernel can stamp its own
/// traces with it too.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// A moment on the clock that also runs while the machine sleeps (CLOCK_BOOTTIME). Promises with a deadline
/// on which another machine relies are measured with it. The monotonic clock stops during a suspend, so a
/// promise of yesterday would count as fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// Later than every other moment.
    pub const NEVER: BootTime = BootTime(Duration::MAX);

    /// Returns the moment that is `time` later.
    #[must_use]
    pub fn plus(self, time: Duration) -> BootTime {
        BootTime(self.0.saturating_add(time))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The current moment on the clock that also runs while the machine sleeps.
pub fn boot() -> BootTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    BootTime(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
}

/// Notices that the machine was asleep: then [`boot`] goes on, and [`monotonic`] does not.
#[derive(Debug)]
pub struct Sleeps {
    running: Instant,
    boot: BootTime,
    /// How long the machine has slept, as far as it was told.
    told: Duration,
}

impl Sleeps {
    /// A shorter sleep is told with the next one.
    const LEAST: Duration = Duration::from_millis(50);

    /// From now on.
    pub fn from_now() -> Sleeps {
        // In this order, and in the other one below: what passes in between must not count as a sleep.
        Sleeps { running: monotonic(), boot: boot(), told: Duration::ZERO }
    }

    /// Whether the machine was asleep since this was asked last.
    pub fn happened(&mut self) -> bool {
        let now = boot();
        self.happened_by(now, monotonic())
    }

    fn happened_by(&mut self, boot: BootTime, running: Instant) -> bool {
        let awake = running.saturating_duration_since(self.running);
        let slept = boot.since(self.boot).saturating_sub(awake);
        let happened = slept.saturating_sub(self.told) >= Sleeps::LEAST;
        if happened {
            self.told = slept;
        }
        happened
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Must;

    #[test]
    fn the_clock_since_boot_goes_on_and_has_an_end() {
        let before = boot();
        assert!(boot() >= before && before.plus(Duration::from_secs(1)).since(before).as_secs() == 1);
        assert!(
            BootTime::NEVER.plus(Duration::MAX) == BootTime::NEVER && before.since(BootTime::NEVER).is_zero()
        );
    }

    #[test]
    fn a_sleep_is_noticed_once() {
        let (mut sleeps, second) = (Sleeps::from_now(), Duration::from_secs(1));
        assert!(!sleeps.happened());
        let (boot, running) = (sleeps.boot, sleeps.running);
        assert!(!sleeps.happened_by(boot.plus(60 * second), running + 60 * second), "nothing slept");
        assert!(sleeps.happened_by(boot.plus(62 * second), running + 61 * second));
        assert!(!sleeps.happened_by(boot.plus(63 * second), running + 62 * second), "it was told");
        assert!(sleeps.happened_by(boot.plus(99 * second), running + 62 * second));
    }

    #[test]
    fn parts_come_back_also_before_1970() {
        for (seconds, nanos) in [(0, 0), (1, 999_999_999), (-1, 1), (-2_000_000_000, 5)] {
            let t = Timestamp::from_parts(seconds, nanos);
            assert_eq!((t.seconds(), t.nanos()), (seconds, nanos));
        }
    }

    /// Times before 1677 and after 2262 were clamped to these years, because 64 bits of nanoseconds hold no
    /// more.
    #[test]
    fn regression_all_seconds_of_the_kernel_come_back() {
        for seconds in [i64::MIN, -62_135_596_800, 13_569_465_600, 253_402_300_799, i64::MAX] {
            let t = Timestamp::from_parts(seconds, 999_999_999);
            assert_eq!((t.seconds(), t.nanos()), (seconds, 999_999_999));
        }
        assert_eq!(Timestamp::from_parts(i64::MAX, 0).as_nanos(), i64::MAX);
        assert_eq!(Timestamp::from_parts(i64::MIN, 0).as_nanos(), i64::MIN);
    }

    /// While programs read times, the kernel stamps files ahead of the tick. A stamp made here afterwards is
    /// never earlier.
    #[test]
    fn regression_now_is_never_behind_a_file_that_was_stamped_before() {
        let file = tempfile();
        let now_times = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        for _ in 0..200 {
            // Read its times, change them, read again: a kernel with fine-grained times then gives one.
            rustix::fs::fstat(&file).must("a file of ours answers");
            let times = Timestamps { last_access: now_times, last_modification: now_times };
            rustix::fs::futimens(&file, &times).must("a file of ours takes the time");
            let stat = rustix::fs::fstat(&file).must("a file of ours answers");
            let before = Timestamp::from_parts(stat.st_ctime, stat.st_ctime_nsec as u32);
            assert!(now() >= before, "{:?} after {before:?}", now());
        }
    }

    fn tempfile() -> OwnedFd {
        rustix::fs::memfd_create("covey-test", rustix::fs::MemfdFlags::CLOEXEC).must("memory for a file")
    }
}
