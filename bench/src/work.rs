//! Small helpers of the measurements: new random bytes, sorted times, programs that must succeed, workers
//! that start together.

use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use base::dice::Dice;
use base::time::monotonic;

use crate::Result;

/// Bytes that cannot be compressed or deduplicated. They are fast to generate, so that this does not distort
/// the measurement.
pub struct Fresh(Dice);

impl Fresh {
    /// Starts from the kernel's randomness: no two runs write the same bytes.
    pub fn new() -> Fresh {
        Fresh(Dice::counting_from(base::random::u64()))
    }

    /// Fills a buffer.
    pub fn fill(&mut self, buf: &mut [u8]) {
        self.0.fill(buf);
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.roll() % end.max(1)
    }
}

/// The percentile of the times for this share, in microseconds. Sorts them.
pub fn micros_at(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    times.get(((times.len() as f64 * share) as usize).min(last)).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

/// Runs workers that start together, each with the input prepared for its number. Returns the time from the
/// first one's start to the last one's end. The workers take these times themselves, because the waiting
/// thread may be woken late.
///
/// # Errors
/// A worker failed.
pub fn together<T>(
    workers: u64,
    prepare: impl Fn(u64) -> T + Clone + Send + 'static,
    work: impl Fn(T) -> Result<()> + Clone + Send + 'static,
) -> Result<Duration> {
    let gate = Arc::new(Barrier::new(workers as usize));
    let mut threads = Vec::new();
    for worker in 0..workers {
        let (gate, prepare, work) = (Arc::clone(&gate), prepare.clone(), work.clone());
        threads.push(base::thread::spawn("bench-worker", move || -> Result<(Instant, Instant)> {
            let prepared = prepare(worker);
            gate.wait();
            let begun = monotonic();
            work(prepared)?;
            Ok((begun, monotonic()))
        })?);
    }
    let mut span: Option<(Instant, Instant)> = None;
    for thread in threads {
        let (begun, ended) = thread.join().map_err(|_| "a worker panicked")??;
        span = Some(span.map_or((begun, ended), |(first, last)| (first.min(begun), last.max(ended))));
    }
    Ok(span.map_or(Duration::ZERO, |(first, last)| last.duration_since(first)))
}

/// Runs a program that must succeed; its output is shown only if it does not.
///
/// # Errors
/// It cannot be started, or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let mut times: Vec<Duration> = (1..=100).rev().map(Duration::from_micros).collect();
        assert!((micros_at(&mut times, 0.5) - 51.0).abs() < 0.01);
        assert!((micros_at(&mut times, 0.99) - 100.0).abs() < 0.01);
        assert!(micros_at(&mut [], 0.5).abs() < 0.01);
    }

    /// The clock was once read by the thread that starts the workers, after it was woken. On a busy machine
    /// some workers were done by then, and lookups came out at ten million per second.
    #[test]
    fn regression_the_time_of_workers_begins_with_the_first() {
        let nap = Duration::from_millis(20);
        for workers in [1, 32] {
            let sleep = move |mine: u64| {
                std::thread::sleep(nap);
                if mine < 32 { Ok(()) } else { Err("a number too many".into()) }
            };
            let spent = together(workers, |worker| worker, sleep).unwrap();
            assert!(spent >= nap, "{spent:?}");
            assert!(together(workers, |worker| worker + 32, sleep).is_err());
        }
    }

    #[test]
    fn fresh_bytes_differ() {
        let [mut a, mut b] = [[0; 64]; 2];
        Fresh::new().fill(&mut a);
        Fresh::new().fill(&mut b);
        assert_ne!(a, b);
    }
}
