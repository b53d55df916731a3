//! Random choices of the gossip: which node is probed next. A small generator with a seed, so that a test can
//! repeat a run. Nothing here has to be hard to guess.

use std::convert::Infallible;

use base::dice;
use rand_core::TryRng;

/// The generator in the form that foca needs.
#[derive(Clone, Debug)]
pub struct Dice(dice::Dice);

impl Dice {
    /// Returns a generator. Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Dice {
        Dice(dice::Dice::counting_from(seed))
    }

    /// The next number.
    pub fn throw(&mut self) -> u64 {
        self.0.roll()
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
        self.0.fill(to);
        Ok(())
    }
}
