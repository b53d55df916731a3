//! Histograms of durations, with eight buckets for every doubling ([`base::scale`]). So a percentile is
//! within 7 % of the truth.
//!
//! ```text
//!   bucket 0        1 ... 8            9 ... 16           ...    one above all
//!          < 128 ns   128 ... 255 ns     256 ... 511 ns          from 137 s on
//! ```

use base::scale;

/// Durations below this many nanoseconds share the first bucket: 2^7.
const FIRST: usize = 7;
/// Durations from 2^37 ns (137 s) on share the last bucket.
const LAST: usize = 37;

/// How many buckets there are.
pub const BUCKETS: usize = (LAST - FIRST) * scale::STEPS + 2;

/// The bucket of a duration.
pub fn bucket(ns: u64) -> usize {
    if ns < 1 << FIRST {
        return 0;
    }
    (scale::step(ns) - FIRST * scale::STEPS + 1).min(BUCKETS - 1)
}

/// The first duration that is too long for a bucket, in nanoseconds.
pub fn end_of(bucket: usize) -> u64 {
    if bucket >= BUCKETS - 1 {
        return u64::MAX;
    }
    scale::end(bucket + FIRST * scale::STEPS - 1)
}

/// Counts by bucket, of one thread or of several together.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    max: u64,
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), max: 0, sum: 0 }
    }
}

impl Histogram {
    /// Adds one duration.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.max = self.max.max(ns);
        self.sum = self.sum.saturating_add(ns);
    }

    /// Adds `count` durations that were counted elsewhere in this bucket.
    pub fn add_bucket(&mut self, bucket: usize, count: u64) {
        if let Some(here) = self.counts.get_mut(bucket) {
            *here += count;
        }
    }

    /// Adds a sum of durations that were counted elsewhere.
    pub fn add_sum(&mut self, ns: u64) {
        self.sum = self.sum.saturating_add(ns);
    }

    /// Adds all of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(here, there)| *here += there);
        self.max = self.max.max(other.max);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The durations added since `before`, an earlier state of this histogram. Their longest is not known.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut newer = self.clone();
        newer
            .counts
            .iter_mut()
            .zip(before.counts.iter())
            .for_each(|(now, then)| *now = now.saturating_sub(*then));
        newer.sum = self.sum.saturating_sub(before.sum);
        newer.max = 0;
        newer
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many are certainly below `ns`, which is the end of a bucket.
    pub fn below(&self, ns: u64) -> u64 {
        self.counts
            .iter()
            .enumerate()
            .take_while(|(bucket, _)| end_of(*bucket) <= ns)
            .map(|(_, count)| count)
            .sum()
    }

    /// The sum of all durations, in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The longest duration that was added with [`Histogram::add`].
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The duration that a share of all (0.5: the median) does not exceed. It is the middle of its bucket, or
    /// the longest duration itself. 0 if there is none.
    pub fn quantile(&self, share: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count);
        if rank == count && self.max > 0 {
            return self.max;
        }
        let bucket = scale::bucket_of_rank(&self.counts[..], rank).unwrap_or(BUCKETS - 1);
        let begin = if bucket == 0 { 0 } else { end_of(bucket - 1) };
        let middle = if bucket == BUCKETS - 1 { begin } else { begin.midpoint(end_of(bucket)) };
        if self.max > 0 { middle.min(self.max) } else { middle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another_without_gap() {
        let mut before = 0;
        for bucket_no in 0..BUCKETS - 1 {
            let end = end_of(bucket_no);
            assert!(end > before);
            assert_eq!((bucket(before), bucket(end - 1)), (bucket_no, bucket_no), "{before}..{end}");
            assert!((end - before) as f64 <= before.max(128) as f64 / 8.0 + 128.0);
            before = end;
        }
        assert_eq!((before, bucket(before), bucket(u64::MAX)), (1 << LAST, BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_near_the_truth() {
        let mut hist = Histogram::default();
        assert_eq!(hist.quantile(0.5), 0);
        (1..=10_000_u64).for_each(|micros| hist.add(micros * 1_000));
        for (share, truth) in [(0.5, 5e6), (0.9, 9e6), (0.99, 9.9e6), (0.0001, 1e3)] {
            let found = hist.quantile(share) as f64;
            assert!((found / truth - 1.0).abs() < 0.07, "{share}: {found} for {truth}");
        }
        assert_eq!((hist.max(), hist.count(), hist.sum()), (10_000_000, 10_000, 50_005_000_000));
        assert!(hist.quantile(1.0) <= hist.max());
    }

    #[test]
    fn since_is_the_difference_of_two_states() {
        let mut hist = Histogram::default();
        hist.add(1_000);
        let before = hist.clone();
        hist.add(1 << 20);
        hist.add(1 << 20);
        let newer = hist.since(&before);
        assert_eq!((newer.count(), newer.sum()), (2, 2 << 20));
        assert_eq!((newer.below(1 << 20), newer.below(1 << 21)), (0, 2));
        let mut both = before;
        both.merge(&newer);
        assert_eq!((both.count(), both.sum()), (3, hist.sum()));
    }
}
