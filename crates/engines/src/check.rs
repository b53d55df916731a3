//! The part of a check that is the same for all databases.

use std::time::Duration;

use meta::engine::database::{Checked, SetupError};

/// So many round trips are measured.
const PINGS: usize = 5;
/// A slower round trip is worth a warning: a commit takes at least one.
const SLOW: Duration = Duration::from_millis(10);

/// Measures round trips. `nearer` is what to use if they take long.
///
/// # Errors
/// A round trip failed.
pub(crate) fn latency(
    nearer: &str,
    mut ping: impl FnMut() -> Result<(), SetupError>,
) -> Result<Checked, SetupError> {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let begun = base::time::monotonic();
        ping()?;
        times.push(begun.elapsed());
    }
    times.sort();
    let median = times.get(PINGS / 2).copied().unwrap_or_default();
    let line = format!("a round trip takes {:.2} ms (median of {PINGS})", median.as_secs_f64() * 1e3);
    let advice = format!("every change takes at least one; use {nearer}");
    Ok(Checked::judged("latency", median <= SLOW, line, &advice))
}
