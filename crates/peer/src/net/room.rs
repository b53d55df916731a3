//! How much may be on its way to this node on one connection: what its line carries in a sixth of a second.
//!
//! ```text
//!   who sends ──► his line ──► the switch's queue for this node ──► this node
//!       ▲                                                             │
//!       └── acknowledgements: behind what this node sends, then behind what he receives
//! ```
//!
//! Queues of switches hold a tenth of a second, and drop what is more. Once such a queue is full it stays so, for what comes in is as fast as what goes out: nodes
//! that form a ring then have it behind each of them, also in the way of acknowledgements, and a stream that begins needs seconds until it fills a line.
//! A sender who looks for the end of the queue by filling it costs the others their packets.
//!
//! So the receiver says how much it wants to have on its way, and who sends may begin without care ([`super::socket`]): it meets this bound, and
//! seldom the queue's.
//! A sender that is far away has as much more as its way is long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the line carries in so long may be on its way, microseconds: twice as long as queues are, for acknowledgements wait in another.
const QUEUE: u64 = 160_000;
/// A round trip that takes no longer says nothing: it may have met the queue.
const NEAR: u64 = 100_000;
/// Nor does more count of one that takes longer.
const FAR: u64 = 1_000_000;
/// Less is never asked for, bytes: who has got little yet, because others are slow, does not know what its line carries.
const LEAST: u64 = 1 << 20;
/// Nor is more: the kernel's own bound is below that, and it is no number of 31 bits.
const MOST: u64 = 1 << 30;

/// Nobody has said anything of the line.
const UNKNOWN: u64 = u64::MAX;

/// What is known of the line: bytes a second.
#[derive(Debug)]
pub(super) struct Room(AtomicU64);

impl Default for Room {
    fn default() -> Room {
        Room(AtomicU64::new(UNKNOWN))
    }
}

impl Room {
    /// The line carries so many bytes a second, or more.
    pub(super) fn carries(&self, rate: u64) {
        self.0.store(rate.min(UNKNOWN - 1), Ordering::Relaxed);
    }

    /// Bytes that may be on their way on one connection, whose round trip took so long when it was made. None: as many as the kernel likes.
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
        let (room, near, far) = (Room::default(), Duration::from_millis(70), Duration::from_millis(250));
        assert_eq!(room.bytes(near), None, "nobody has said anything");
        room.carries(0);
        assert_eq!(room.bytes(near), Some(LEAST as u32));
        room.carries(25_000_000);
        assert_eq!(room.bytes(near), Some(4_000_000));
        assert_eq!(room.bytes(far), Some(4_000_000 + 7_500_000), "more than it carries in a round trip");
        // Where all get little because one is slow, nobody is bounded by that.
        room.carries(10_000);
        assert_eq!(room.bytes(near), Some(LEAST as u32));
        room.carries(u64::MAX);
        assert_eq!(room.bytes(far), Some(MOST as u32));
    }
}
