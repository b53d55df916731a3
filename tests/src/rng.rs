//! Repeatable randomness: the same seed gives the same test, on every machine and for ever.

use base::dice::Dice;

/// A small generator. Not for secrets. Its streams must not change, because printed seeds depend on them.
#[derive(Clone, Debug)]
pub struct Rng(Dice);

impl Rng {
    /// Starts a stream.
    pub fn new(seed: u64) -> Rng {
        Rng(Dice::counting_from(seed ^ 0x5eed_0fc0_fefe))
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> u64 {
        self.0.roll()
    }

    /// A number below `end`, which must be greater than 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.u64() % end
    }

    /// A number from `from` to below `to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the list.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    /// A length below `end` that is often small, often a round number or next to one, and sometimes
    /// arbitrary.
    pub fn length(&mut self, end: u64) -> u64 {
        let unit = *self.pick(&[1, 512, 513, 4096, 32_768, 65_536, 131_072, 1 << 22]);
        let length = match self.below(4) {
            0 => self.below(600),
            1 => unit * self.below(20),
            2 => (unit * self.below(20)).saturating_add(self.below(3)).saturating_sub(1),
            _ => self.below(end.max(1)),
        };
        length % end.max(1)
    }

    /// Fills a buffer with bytes that no compressor or deduplicator can shorten.
    pub fn fill(&mut self, buf: &mut [u8]) {
        self.0.fill(buf);
    }

    /// New random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        self.fill(&mut buf);
        buf
    }
}
