//! What the server measured for a traced request: the payload of a TIMES frame.
//!
//! ```text
//!   0   the request was here      u64   nanoseconds since 1970, by the server's clock
//!   8   the reply was sent        u64   the same
//!  16   time at the server        u64   nanoseconds, by its monotonic clock
//!  24   time in the filesystem    u64   a part of it
//! ```

use crate::frame::Take;

/// Length of the payload, in bytes.
pub const LEN: usize = 32;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When the request had arrived, in nanoseconds since 1970 by the server's clock.
    pub arrived: u64,
    /// When the reply was about to be sent, by the same clock.
    pub left: u64,
    /// The time between the two, by the monotonic clock, in nanoseconds.
    pub server: u64,
    /// The part of it that was spent in the filesystem, in nanoseconds.
    pub filesystem: u64,
}

impl Times {
    /// The payload.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let numbers = [self.arrived, self.left, self.server, self.filesystem];
        for (place, number) in out.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// Reads a payload. `None` if its length is wrong.
    pub fn decode(payload: &[u8]) -> Option<Times> {
        let mut take = Take(payload);
        let times =
            Times { arrived: take.u64()?, left: take.u64()?, server: take.u64()?, filesystem: take.u64()? };
        take.0.is_empty().then_some(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_and_other_lengths_are_refused() {
        let times = Times { arrived: 1, left: u64::MAX, server: 3, filesystem: 4 };
        let bytes = times.encode();
        assert_eq!(Times::decode(&bytes), Some(times));
        assert_eq!(Times::decode(&bytes[1..]), None);
        assert_eq!(Times::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
