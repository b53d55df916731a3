//! Pseudo-random numbers from a seed. The state machines choose at random among equals, and the same seed
//! makes the same choices.
//!
//! The generator is splitmix64: a counter whose values are mixed. It is good enough to spread load. No secret
//! depends on it.

/// A sequence of numbers that is determined by its seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

/// The increment of the counter.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One round of mixing: every bit of the result depends on every bit of `x`, and no two `x` give the same.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Dice {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(mix(seed ^ STEP))
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.roll()) * bound as u128) >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }
}
