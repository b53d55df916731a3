//! Numbers for new inodes and packs, taken from the volume in ranges.
//!
//! A number is used once, ever. A range costs a commit; what is left of it when the volume is closed is lost, which
//! 64-bit numbers can bear.

use parking_lot::Mutex;

use crate::errno::Error;

/// A range of numbers, of which some are left.
pub(crate) struct Numbers {
    left: Mutex<(u64, u64)>,
    step: u64,
}

impl Numbers {
    /// None yet; `step` are taken at a time.
    pub(crate) fn new(step: u64) -> Numbers {
        Numbers { left: Mutex::new((0, 0)), step }
    }

    /// The next number. `more` takes a new range of as many as it is told, and answers the first.
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
