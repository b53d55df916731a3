//! For tests: checks of times that a slow machine does not break.
//!
//! A busy machine adds a time to whatever a test measures, and that time does not depend on the test. So a
//! limit close to the expected time fails now and then, and a generous limit hides faults. A check that
//! multiplies all its times (delays, deadlines, limits) with a scale has neither problem: the larger the
//! scale, the smaller the share of the machine.

use std::fmt::Display;
use std::time::Duration;

/// The scales, in order. A check that succeeds at the first costs no more time than without a scale.
const SCALES: [u32; 3] = [1, 4, 16];

/// Runs a check with growing scales until it succeeds. An `Err` says what took too long. A correct program
/// succeeds at one of the scales, a wrong one at none.
///
/// # Errors
/// What took too long at each scale, if the check never succeeds.
pub fn at_some_scale(check: impl Fn(u32) -> Result<(), String>) -> Result<(), String> {
    let mut reasons = Vec::new();
    for scale in SCALES {
        match check(scale) {
            Ok(()) => return Ok(()),
            Err(why) => reasons.push(format!("at scale {scale}: {why}")),
        }
    }
    Err(reasons.join("; "))
}

/// Compares a time with its limit.
///
/// # Errors
/// If it is too long. `what` is the thing that took so long.
pub fn in_time(took: Duration, limit: Duration, what: impl Display) -> Result<(), String> {
    if took < limit { Ok(()) } else { Err(format!("{what} took {took:?} instead of less than {limit:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_passes_at_the_first_scale_that_suits_and_fails_with_every_reason() {
        let at_least = |wanted: u32| move |scale| (scale >= wanted).then_some(()).ok_or("late".to_owned());
        assert_eq!(at_some_scale(at_least(1)), Ok(()));
        assert_eq!(at_some_scale(at_least(16)), Ok(()));
        let said = "at scale 1: late; at scale 4: late; at scale 16: late";
        assert_eq!(at_some_scale(at_least(17)), Err(said.to_owned()));
    }
}
