//! The scale of all histograms of durations: eight steps of equal width for each doubling. So a value is
//! known to within an eighth, and finding a step takes a few integer operations.

/// Steps for each doubling.
pub const STEPS: usize = 8;

/// The step of a value. 0 counts as 1.
#[inline]
pub fn step(value: u64) -> usize {
    let value = value.max(1);
    let doubling = value.ilog2();
    let within = (u128::from(value) << 3 >> doubling) as usize - STEPS;
    doubling as usize * STEPS + within
}

/// The end of a step: the first value that is too large for it. Below 8 it is rounded down.
#[inline]
pub fn end(step: usize) -> u64 {
    let (doubling, within) = (step / STEPS, step % STEPS);
    let end = ((STEPS + within + 1) as u128) << doubling >> 3;
    u64::try_from(end).unwrap_or(u64::MAX)
}

/// The bucket of the value of this rank, counted from 1, if the buckets hold so many.
pub fn bucket_of_rank<C: Copy + Into<u64>>(counts: &[C], rank: u64) -> Option<usize> {
    let mut seen = 0;
    counts.iter().position(|count| {
        seen += (*count).into();
        rank > 0 && seen >= rank
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_one_another_without_gap() {
        for value in [0, 1, 2, 7, 8, 9, 127, 128, 1_000_000, u64::from(u32::MAX), u64::MAX / 2] {
            let step = step(value);
            assert!(end(step) > value || value < 8, "{value}");
            assert!(step == 0 || end(step - 1) <= value.max(1), "{value}");
        }
        assert!((8 * STEPS..40 * STEPS).all(|number| step(end(number)) == number + 1));
        assert!((3 * STEPS..63 * STEPS).all(|number| end(number) > end(number - 1)));
        assert_eq!((step(u64::MAX), end(step(u64::MAX))), (64 * STEPS - 1, u64::MAX));
    }

    #[test]
    fn a_rank_is_found_in_its_bucket() {
        let counts = [0_u16, 2, 0, 1];
        let found: Vec<_> = (0..=4).map(|rank| bucket_of_rank(&counts, rank)).collect();
        assert_eq!(found, [None, Some(1), Some(1), Some(3), None]);
    }
}
