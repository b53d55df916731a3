//! Counters and histograms of programs. Each processor has its own, so that programs need no lock.

use aya::Ebpf;
use aya::maps::{MapError, PerCpuArray};
use serde::Serialize;

use crate::WatchError;

/// Buckets of a histogram: bucket *n* counts times from 2^n nanoseconds to 2^(n+1).
pub const BUCKETS: usize = 40;

/// How often which times occurred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Histogram(pub Vec<u64>);

impl Histogram {
    /// The number of times in it.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The end of the bucket that holds this share of all times, in nanoseconds. 0 if there is none.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (self.count() as f64 * share).ceil() as u64;
        let mut below = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            below += count;
            if below > 0 && below >= rank {
                return 1_u64 << (bucket + 1);
            }
        }
        0
    }
}

/// The map of this name.
pub(crate) fn map<'o>(object: &'o Ebpf, name: &str) -> Result<&'o aya::maps::Map, WatchError> {
    object.map(name).ok_or_else(|| WatchError::NotThere(format!("the object has no map {name}")))
}

/// Each processor's value of an entry.
pub(crate) fn each_cpu<T: aya::Pod>(object: &Ebpf, name: &str, at: u32) -> Result<Vec<T>, WatchError> {
    let array: PerCpuArray<_, T> = PerCpuArray::try_from(map(object, name)?)?;
    let values = array.get(&at, 0)?;
    Ok(values.iter().copied().collect())
}

/// The sum over all processors of entry `at` of an array of numbers.
pub(crate) fn sum(object: &Ebpf, name: &str, at: u32) -> Result<u64, WatchError> {
    Ok(each_cpu::<u64>(object, name, at)?.iter().sum())
}

/// An array of [`BUCKETS`] numbers.
pub(crate) fn histogram(object: &Ebpf, name: &str) -> Result<Histogram, WatchError> {
    (0..BUCKETS as u32).map(|bucket| sum(object, name, bucket)).collect::<Result<_, _>>().map(Histogram)
}

/// Leaves out entries that were removed while the map was read.
pub(crate) fn present<T>(found: Result<T, MapError>) -> Option<Result<T, WatchError>> {
    match found {
        Err(MapError::KeyNotFound) => None,
        other => Some(other.map_err(WatchError::Map)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let mut counts = vec![0; BUCKETS];
        assert_eq!(Histogram(counts.clone()).quantile(0.5), 0);
        counts[10] = 99;
        counts[20] = 1;
        let histogram = Histogram(counts);
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.quantile(0.5), 1 << 11);
        assert_eq!(histogram.quantile(0.99), 1 << 11);
        assert_eq!(histogram.quantile(1.0), 1 << 21);
    }
}
