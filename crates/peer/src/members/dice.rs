//! Random choices of the gossip: which node is probed next. A small generator with a seed, so that a test can
//! repeat a run. Nothing here has to be hard to guess.

use std::convert::Infallible;

use rand_core::TryRng;

use crate::dice::{STEP, mix};

/// SplitMix64: a counter whose values are mixed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The bias is below end / 2^64.
        (self.throw() % (end.max(1) as u64)) as usize
    }

    /// A random element.
    pub fn one_of<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.below(of.len());
        of.get(at)
    }
}

impl TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.throw() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.throw())
    }

    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Infallible> {
        for chunk in to.chunks_mut(8) {
            let bytes = self.throw().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Ok(())
    }
}
