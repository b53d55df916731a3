//! How much may be in flight to this node on one connection: what its link carries in a sixth of a second.
//!
//! ```text
//!   sender ──► its link ──► the switch's queue for this node ──► this node
//!     ▲                                                              │
//!     └── acknowledgements: behind what this node sends, then behind what the sender receives
//! ```
//!
//! The queues of switches hold a tenth of a second, and drop what is more. A full queue stays full, because
//! data arrives as fast as it leaves. Nodes that form a ring then have such a queue behind each of them,
//! which also delays acknowledgements. A new stream needs seconds until it fills a link. A sender that probes
//! a queue's size by filling it makes others lose packets.
//!
//! So the receiver bounds how much is in flight to it, and the sender can begin fast ([`super::socket`]): it
//! reaches this bound, and seldom the queue's. A distant sender gets more, in proportion to its round trip.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the link carries in this time may be in flight, in microseconds. It is twice as long as queues are,
/// because acknowledgements wait in another one.
const QUEUE: u64 = 160_000;
/// A round trip up to this time says nothing about distance: it may have waited in the queue.
const NEAR: u64 = 100_000;
/// Upper bound on the time of a longer round trip that counts.
const FAR: u64 = 1_000_000;
/// The smallest window, in bytes. A node that has received little, because others are slow, does not know
/// what its link carries.
const LEAST: u64 = 1 << 20;
/// The largest window. The kernel's own bound is lower, and larger numbers exceed 31 bits.
const MOST: u64 = 1 << 30;

/// Nothing is known about the link.
const UNKNOWN: u64 = u64::MAX;

/// The known capacity of the link, in bytes a second.
#[derive(Debug)]
pub(super) struct ReceiveWindow(AtomicU64);

impl Default for ReceiveWindow {
    fn default() -> ReceiveWindow {
        ReceiveWindow(AtomicU64::new(UNKNOWN))
    }
}

impl ReceiveWindow {
    /// The link carries this many bytes a second, or more.
    pub(super) fn carries(&self, rate: u64) {
        self.0.store(rate.min(UNKNOWN - 1), Ordering::Relaxed);
    }

    /// The bytes that may be in flight on a connection with this round trip. None: the kernel decides.
    pub(super) fn bytes(&self, trip: Duration) -> Option<u32> {
        let rate = self.0.load(Ordering::Relaxed);
        let far = u64::try_from(trip.as_micros()).unwrap_or(NEAR).saturating_sub(NEAR).min(FAR);
        let bytes = rate.saturating_mul(QUEUE + 2 * far) / 1_000_000;
        (rate != UNKNOWN).then_some(bytes.clamp(LEAST, MOST) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_line_carries_and_more_where_the_way_is_long() {
        let (window, near, far) =
            (ReceiveWindow::default(), Duration::from_millis(70), Duration::from_millis(250));
        assert_eq!(window.bytes(near), None, "nothing is known");
        window.carries(0);
        assert_eq!(window.bytes(near), Some(LEAST as u32));
        window.carries(25_000_000);
        assert_eq!(window.bytes(near), Some(4_000_000));
        assert_eq!(
            window.bytes(far),
            Some(4_000_000 + 7_500_000),
            "the window should exceed the bytes of one round trip"
        );
        // If all get little because one node is slow, that bounds none of them.
        window.carries(10_000);
        assert_eq!(window.bytes(near), Some(LEAST as u32));
        window.carries(u64::MAX);
        assert_eq!(window.bytes(far), Some(MOST as u32));
    }
}
