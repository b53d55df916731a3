//! What this node's own line carries: the most that came in a second, from all together.
//!
//! A dozen blobs that come at once share the line, so each takes a dozen times as long as one. On a line that is full, one of them may stand still for
//! a second although its sender is well; whoever takes that for a defect fetches it from elsewhere, over the same line.
//!
//! And whoever asks for more than the line will bring soon has chosen too early whom to ask: all of it waits behind others at one node while another has become
//! idle, and a reader, who wants them in order, stands still for the one that waits longest.

use base::size::BLOB_MAX;
use parking_lot::Mutex;

/// Bytes are counted for so long before it is a rate, microseconds.
const WINDOW: u64 = 1_000_000;

/// What is fetched ahead is what the line brings in such a part of a second ...
const AHEAD: u64 = 2;
/// ... but at least so many blobs: one that comes, one behind it, and two that are being asked for.
const AHEAD_LEAST: usize = 4;

#[derive(Debug, Default)]
struct Counted {
    since: u64,
    bytes: u64,
    /// Bytes a second: the most of late. Each window that brought less takes a sixteenth.
    most: u64,
    /// Bytes a second of the last window.
    last: u64,
}

/// See the module. Times are the plans', in microseconds.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<Counted>);

impl Line {
    /// So many bytes of blobs came. What the line carries ([`Line::rate`]), if that is known anew.
    pub(super) fn came(&self, now: u64, bytes: u64) -> Option<u64> {
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

    /// So many blobs at a time are fetched ahead.
    pub(super) fn ahead(&self) -> usize {
        ((self.rate() / AHEAD / u64::from(BLOB_MAX)) as usize).max(AHEAD_LEAST)
    }

    /// Less than half of what it carries came of late: who sends slowly is slow himself.
    pub(super) fn is_slack(&self) -> bool {
        let counted = self.0.lock();
        counted.last < counted.most / 2
    }

    /// Bytes a second; 0 before anything is known.
    pub(super) fn rate(&self) -> u64 {
        self.0.lock().most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_of_late_counts() {
        let line = Line::default();
        assert_eq!(line.rate(), 0);
        // Idle at first: that is no rate of a line.
        line.came(50_000_000, 0);
        assert_eq!(line.came(50_500_000, 3_000_000), None);
        assert_eq!(line.came(51_000_000, 3_000_000), Some(6_000_000), "whoever wants to know is told");
        assert_eq!((line.rate(), line.is_slack()), (6_000_000, false));
        line.came(53_000_000, 2_000_000);
        assert_eq!((line.rate(), line.is_slack()), (5_625_000, true));
        assert_eq!(line.ahead(), 4, "it is a narrow line");
        line.came(54_000_000, 48_000_000);
        assert_eq!((line.rate(), line.ahead()), (48_000_000, 5));
    }
}
