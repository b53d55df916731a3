//! The capacity of this node's own link: the largest amount received in a second, from all sources together.
//!
//! A dozen blobs that arrive at once share the link, so each takes a dozen times as long as one. On a full
//! link one of them may stall for a second although its sender is well. If that counted as a failure, the
//! blob would be fetched from elsewhere, over the same link.
//!
//! If a node requests more than the link can deliver soon, it chooses the sources too early. All requests may
//! queue at one node while another becomes idle. A reader that needs the blobs in order then stalls for the
//! one that waits longest.

use base::size::BLOB_MAX;
use parking_lot::Mutex;

/// Bytes are counted for this long to get a rate, in microseconds.
const WINDOW: u64 = 1_000_000;

/// Prefetches in flight cover what the link delivers in this fraction of a second ...
const PREFETCHED: u64 = 2;
/// ... but at least this many blobs: one that is arriving, one behind it, and two that are being requested.
const PREFETCHES_LEAST: usize = 4;

#[derive(Debug, Default)]
struct Counted {
    since: u64,
    bytes: u64,
    /// Bytes a second: the recent maximum. Each window with less reduces it by a sixteenth.
    most: u64,
    /// Bytes a second in the last window.
    last: u64,
}

/// See the module. Times are those of the plans, in microseconds.
#[derive(Debug, Default)]
pub struct Capacity(Mutex<Counted>);

impl Capacity {
    /// Counts received bytes of blobs. Returns the link's capacity ([`Capacity::rate`]) if it was measured
    /// anew.
    pub fn came(&self, now: u64, bytes: u64) -> Option<u64> {
        let mut counted = self.0.lock();
        counted.bytes += bytes;
        let time = now.saturating_sub(counted.since);
        if time >= WINDOW {
            let rate = counted.bytes.saturating_mul(1_000_000) / time;
            let most = rate.max(counted.most - counted.most / 16);
            *counted = Counted { since: now, bytes: 0, most, last: rate };
            return Some(most);
        }
        None
    }

    /// How many blobs to prefetch at a time.
    pub fn prefetches(&self) -> usize {
        ((self.rate() / PREFETCHED / u64::from(BLOB_MAX)) as usize).max(PREFETCHES_LEAST)
    }

    /// Less than half of the capacity was used recently, so a slow sender is slow for a reason of its own.
    pub fn is_slack(&self) -> bool {
        let counted = self.0.lock();
        counted.last < counted.most / 2
    }

    /// Bytes a second. 0 before anything is known.
    pub fn rate(&self) -> u64 {
        self.0.lock().most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_of_late_counts() {
        let capacity = Capacity::default();
        assert_eq!(capacity.rate(), 0);
        // Idle time at first: that is not a rate of the link.
        capacity.came(50_000_000, 0);
        assert_eq!(capacity.came(50_500_000, 3_000_000), None);
        assert_eq!(capacity.came(51_000_000, 3_000_000), Some(6_000_000), "the new rate is returned");
        assert_eq!((capacity.rate(), capacity.is_slack()), (6_000_000, false));
        capacity.came(53_000_000, 2_000_000);
        assert_eq!((capacity.rate(), capacity.is_slack()), (5_625_000, true));
        assert_eq!(capacity.prefetches(), 4, "a narrow link should allow four prefetches");
        capacity.came(54_000_000, 48_000_000);
        assert_eq!((capacity.rate(), capacity.prefetches()), (48_000_000, 5));
    }
}
