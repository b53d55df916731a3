//! Numbers for new inodes and packs, allocated from the volume in ranges.
//!
//! A number is never used twice. A range costs one commit. The unused rest of a range is lost when the volume
//! is closed; 64-bit numbers are plenty for that.

use parking_lot::Mutex;

use crate::errno::Error;

/// A range of numbers that is partly used.
pub(crate) struct Numbers {
    left: Mutex<(u64, u64)>,
    step: u64,
}

impl Numbers {
    /// An empty range. Later ranges have `step` numbers.
    pub(crate) fn new(step: u64) -> Numbers {
        Numbers { left: Mutex::new((0, 0)), step }
    }

    /// The next number. `more` allocates a new range of the given length and returns its first number.
    pub(crate) fn take(&self, more: impl FnOnce(u64) -> Result<u64, Error>) -> Result<u64, Error> {
        let mut left = self.left.lock();
        if left.0 == left.1 {
            let first = more(self.step)?;
            *left = (first, first + self.step);
        }
        left.0 += 1;
        Ok(left.0 - 1)
    }
}
