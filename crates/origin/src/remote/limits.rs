//! The bounds of a remote origin.

use std::time::Duration;

use base::size::BLOB_MAX;

/// What a remote origin may use, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent requests.
    pub in_flight: usize,
    /// Requests per second; none: no limit.
    pub max_requests: Option<u64>,
    /// Bytes per second, both directions together; none: no limit.
    pub max_bandwidth: Option<u64>,
    /// When a read fails at the latest.
    pub read_deadline: Duration,
    /// When storing, removing or listing fails at the latest.
    pub write_deadline: Duration,
    /// Whether to hedge: a second GET is sent when the first takes long.
    pub hedge: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            in_flight: 64,
            max_requests: None,
            max_bandwidth: None,
            read_deadline: Duration::from_secs(60),
            write_deadline: Duration::from_secs(300),
            hedge: true,
        }
    }
}

/// With a limit of bytes per second, there is time for this many whole blobs that share it.
const WHOLES: f64 = 16.0;

impl Limits {
    /// The time limit of a call that moves a whole blob. `limit` is that without a limit of bytes per second.
    pub(super) fn for_whole(&self, limit: Duration) -> Duration {
        let Some(bandwidth) = self.max_bandwidth else { return limit };
        limit.max(Duration::from_secs_f64(WHOLES * f64::from(BLOB_MAX) / bandwidth.max(1) as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest bandwidth is 64 KiB a second. A full blob takes 65 seconds then, and failed after 60.
    #[test]
    fn regression_a_full_blob_is_moved_in_time_with_any_bandwidth() {
        let minute = Duration::from_secs(60);
        for bandwidth in [64 << 10, 1 << 20, 50 << 20, 1 << 30] {
            let limits = Limits { max_bandwidth: Some(bandwidth), ..Limits::default() };
            let takes = Duration::from_secs_f64(f64::from(BLOB_MAX) / bandwidth as f64);
            let limit = limits.for_whole(minute);
            assert!(limit >= 8 * takes && limit >= minute, "{limit:?} for {takes:?}");
        }
        let fast = Limits { max_bandwidth: Some(50 << 20), ..Limits::default() };
        assert_eq!([fast, Limits::default()].map(|limits| limits.for_whole(minute)), [minute; 2]);
    }
}
