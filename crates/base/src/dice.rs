//! Pseudo-random numbers from a seed. State machines choose at random among equals, and the same seed makes
//! the same choices. Tests repeat a run by its seed.
//!
//! The generator is splitmix64: a counter whose values are mixed. It is good enough to spread load. No secret
//! depends on it. Its sequences never change, because printed seeds and simulations rely on them.

/// A sequence of numbers that is determined by its seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

/// The increment of the counter.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One round of mixing: every bit of the result depends on every bit of `x`, and no two `x` give the same.
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Dice {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(mix(seed ^ STEP))
    }

    /// The sequence whose counter begins here, unmixed.
    pub fn counting_from(counter: u64) -> Dice {
        Dice(counter)
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

    /// Fills a buffer.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let bytes = self.roll().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequences_are_those_of_splitmix64() {
        let mut dice = Dice::counting_from(0);
        assert_eq!([dice.roll(), dice.roll()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut bytes = [0; 11];
        Dice::counting_from(0).fill(&mut bytes);
        assert_eq!(bytes[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
        assert_eq!(bytes[8..], 0x6e78_9e6a_a1b9_65f4_u64.to_le_bytes()[..3]);
        assert_eq!(Dice::new(7).roll(), Dice::counting_from(mix(7 ^ STEP)).roll());
        assert!((0..100).all(|seed| Dice::new(seed).below(3) < 3 && Dice::new(seed).unit() < 1.0));
        assert_eq!(Dice::new(1).below(0), 0);
    }
}
