//! The command's side of watching a daemon. The command sends a request, prints the results, and ends cleanly
//! on Ctrl-C or after a time.
//!
//! A thread receives SIGINT, SIGTERM and SIGHUP and tells the daemon to stop. The daemon then sends its
//! summary, and the command ends as if it had finished normally. A second signal ends the command at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::control::{ControlAddress, Request, Stopper};
use api::error::{Failure, Result};
use api::watch::Wish;
use node::control;
use node::signals;
use serde::de::DeserializeOwned;

use crate::target::{Target, resolve_volume};

/// After a signal, a daemon that says nothing for so long is given up. One that works on its summary says so
/// every second.
const SILENCE: Duration = Duration::from_secs(10);

/// The control socket of the daemon that serves a path. A volume that is not mounted has none.
pub fn ear_of(path: &Path, does: &str) -> Result<ControlAddress> {
    match resolve_volume(path)? {
        Target::Mounted(place) => Ok(place.address()),
        Target::Closed { dir, .. } => {
            let volume = dir.path().display();
            Err(Failure::new("not-mounted", format!("{volume} is not mounted: there is nothing to look at"))
                .next(format!("mount it: covey mount -d {volume} MOUNTPOINT"))
                .next(format!("then: covey {does} MOUNTPOINT")))
        }
    }
}

/// Watches one mount until Ctrl-C, or for a time. Returns the daemon's summary.
pub fn look_on<N: DeserializeOwned, T: DeserializeOwned>(
    address: &ControlAddress,
    wish: Wish,
    at_most: Option<Duration>,
    each: &mut dyn FnMut(N),
) -> Result<T> {
    look_on_leaving(address, wish, at_most, None, each)
}

/// Watches one mount for a command that makes a file, as [`look_on`]. If the command is ended early, it
/// removes the file.
pub fn look_on_leaving<N: DeserializeOwned, T: DeserializeOwned>(
    address: &ControlAddress,
    wish: Wish,
    at_most: Option<Duration>,
    file: Option<PathBuf>,
    each: &mut dyn FnMut(N),
) -> Result<T> {
    signals::block();
    let asked = control::begin(address, &Request::Watch { wish })?;
    let heard = Arc::new(AtomicU64::new(0));
    stop(vec![asked.stopper()?], at_most, Ending { heard: heard.clone(), file })?;
    asked.hear(&mut |_| (), &mut |value| {
        heard.fetch_add(1, Ordering::Relaxed);
        if let Ok(note) = serde_json::from_value(value) {
            each(note);
        }
    })
}

/// Stops all watches when a signal arrives or the time is over. A second signal ends the program.
pub fn stop_by_signal(stoppers: Vec<Stopper>, at_most: Option<Duration>) -> Result<()> {
    stop(stoppers, at_most, Ending::default())
}

/// What counts after a signal.
#[derive(Default)]
struct Ending {
    /// How many notes have come.
    heard: Arc<AtomicU64>,
    /// What is removed if the program is ended.
    file: Option<PathBuf>,
}

impl Ending {
    /// Waits for another signal, or until no note has come for so long.
    fn wait(&self, silence: Duration, signal_within: impl Fn(Duration) -> bool) {
        loop {
            let before = self.heard.load(Ordering::Relaxed);
            if signal_within(silence) || self.heard.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

fn stop(stoppers: Vec<Stopper>, at_most: Option<Duration>, ending: Ending) -> Result<()> {
    let spawned = base::thread::spawn("covey-signals", move || {
        let signalled = signals::next_within(at_most);
        stoppers.iter().for_each(Stopper::stop);
        // A second signal ends the program at once. So does a daemon that no longer answers.
        match signalled {
            true => ending.wait(SILENCE, |limit| signals::next_within(Some(limit))),
            false => _ = signals::next_within(None),
        }
        if let Some(file) = &ending.file {
            let _ = std::fs::remove_file(file);
        }
        std::process::exit(130);
    });
    spawned.map(drop).map_err(|error| Failure::io("cannot start a thread", &error))
}

/// Parses a time of the command line: `10ms`, `250us`, `5s`, `2m`. A bare number is in seconds.
///
/// # Errors
/// The text cannot be parsed. The message lists the valid forms.
pub fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(format!("{unit} is no unit of time: use us, ms, s or m")),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * scale);
    let fits = seconds.filter(|seconds| seconds.is_finite() && (0.0..=1e9).contains(seconds));
    fits.map(Duration::from_secs_f64).ok_or_else(|| "write a time as 10ms, 250us or 5s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let ns = |text| parse_time(text).map(|time| time.as_nanos());
        assert_eq!(
            [ns("10ms"), ns("250us"), ns("5s"), ns("1.5"), ns("2m"), ns("0")],
            [Ok(10_000_000), Ok(250_000), Ok(5_000_000_000), Ok(1_500_000_000), Ok(120_000_000_000), Ok(0)]
        );
        for bad in ["", "ms", "-1s", "1h", "NaNs", "inf", "1e300"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    /// A recording was thrown away ten seconds after Ctrl-C, while the daemon still sent it.
    #[test]
    fn regression_a_daemon_that_still_sends_is_waited_for() {
        let ending = Ending::default();
        let waits = std::cell::Cell::new(0);
        // A note comes in each of the first three waits.
        ending.wait(SILENCE, |limit| {
            assert_eq!(limit, SILENCE);
            waits.set(waits.get() + 1);
            if waits.get() <= 3 {
                ending.heard.fetch_add(1, Ordering::Relaxed);
            }
            false
        });
        assert_eq!(waits.get(), 4);
        // A second signal ends it at once.
        ending.wait(SILENCE, |_| {
            ending.heard.fetch_add(1, Ordering::Relaxed);
            waits.set(waits.get() + 1);
            true
        });
        assert_eq!(waits.get(), 5);
    }
}
