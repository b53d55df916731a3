//! Finds a short sequence of steps that still fails, so that a report lists five operations and not five
//! thousand.

use std::time::{Duration, Instant};

/// Removes steps while the rest still fails, for at most `budget`. `fails` returns why a sequence fails, if
/// it does. Returns the shortest failing sequence found and its reason.
pub fn shrink<T: Clone>(
    steps: &[T],
    reason: String,
    budget: Duration,
    mut fails: impl FnMut(&[T]) -> Option<String>,
) -> (Vec<T>, String) {
    let end = Instant::now() + budget;
    let (mut best, mut why) = (steps.to_vec(), reason);
    let mut chunk = best.len().div_ceil(2);
    while chunk >= 1 {
        let mut at = 0;
        let mut removed = false;
        while at < best.len() && Instant::now() < end {
            let mut shorter = best[..at].to_vec();
            shorter.extend_from_slice(&best[(at + chunk).min(best.len())..]);
            match fails(&shorter) {
                Some(reason) if !shorter.is_empty() => (best, why, removed) = (shorter, reason, true),
                _ => at += chunk,
            }
        }
        if Instant::now() >= end || (chunk == 1 && !removed) {
            break;
        }
        chunk = if chunk == 1 { 1 } else { chunk.div_ceil(2) };
    }
    (best, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_steps_that_matter_are_found() {
        let steps: Vec<u32> = (0..1000).collect();
        let fails = |s: &[u32]| (s.contains(&17) && s.contains(&801)).then(|| "both".to_owned());
        let (short, why) = shrink(&steps, "long".to_owned(), Duration::from_secs(5), fails);
        assert_eq!((short, why.as_str()), (vec![17, 801], "both"));
    }
}
