//! `covey stats`: prints a line of statistics every second.

use std::path::PathBuf;
use std::time::Duration;

use api::control::Request;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use api::watch::{Hits, StatsLine, Wish};
use node::control;
use serde_json::Value;

use crate::guest_status;
use crate::looking::{ear_of, parse_time, stop_by_signal};
use crate::term::Term;

/// Shows what a mount does, a line a second: operations, bytes, where reads came from, latency
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey stats /mnt/covey\n  covey stats /mnt/covey --interval 10s --count 6\n  \
    covey stats /mnt/covey --json             a JSON object per line, until Ctrl-C\n\n\
    All figures are of the interval, operations and bytes per second. From names, cache (this node's disk) and origin come\n\
    the bytes of reads; what the kernel answers from its own memory is not seen. p50 and p99 are the daemon's time.\n\n\
    On a mount of covey attach it shows requests, bytes, and what waits; covey trace shows where their time goes."
)]
pub struct Args {
    /// A path on a mount, or the volume that is mounted
    path: PathBuf,
    /// How long a line stands for: 1s, 500ms
    #[arg(long, short = 'i', value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,
    /// End after so many lines [default: at Ctrl-C]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The head is repeated after so many lines.
const HEAD_EVERY: u64 = 20;

/// Converts `--interval` to milliseconds and checks its range.
pub fn interval_ms(interval: Duration) -> Result<u64> {
    let ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    if (100..=3_600_000).contains(&ms) {
        return Ok(ms);
    }
    Err(Failure::usage("the interval is out of range").next("choose one from 100ms to 60m"))
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let interval_ms = interval_ms(args.interval)?;
    if guest_status::of(&args.path).is_some() {
        return guest_status::stats(&args.path, args.interval, args.count, term);
    }
    let address = ear_of(&args.path, "stats")?;
    node::signals::block();
    let asked = control::begin(&address, &Request::Watch { wish: Wish::Stats { interval_ms } })?;
    let enough = asked.stopper()?;
    stop_by_signal(vec![asked.stopper()?], None)?;
    let mut shown = 0;
    let mut each = |value: Value| {
        let Ok(line) = serde_json::from_value::<StatsLine>(value) else { return };
        if args.count.is_some_and(|count| shown >= count) {
            return;
        }
        if shown % HEAD_EVERY == 0 {
            term.line(None::<&()>, head);
        }
        term.line(Some(&line), || text(&line));
        shown += 1;
        if args.count == Some(shown) {
            enough.stop();
        }
    };
    asked.hear::<Value>(&mut |_| (), &mut each)?;
    Ok(0)
}

const KINDS: [&str; 9] = ["read", "write", "lookup", "attr", "list", "make", "remove", "sync", "other"];

fn head() -> String {
    let kinds: String = KINDS.iter().map(|kind| format!("{kind:>8}")).collect();
    format!(
        "{kinds} |{:>11}{:>11} |{:>11}{:>11}{:>11} |{:>9}{:>9}{:>6}",
        "read/s", "written/s", "names/s", "cache/s", "origin/s", "p50 us", "p99 us", "wait"
    )
}

fn text(line: &StatsLine) -> String {
    let per_second = |n: u64| (n as f64 / line.seconds.max(0.001)).round() as u64;
    let kinds: String = KINDS
        .iter()
        .map(|kind| format!("{:>8}", count(per_second(line.kinds.get(*kind).copied().unwrap_or(0)))))
        .collect();
    let rate = |n: u64| bytes(per_second(n));
    let from = |source: &str| rate(line.sources.get(source).copied().unwrap_or(Hits::default()).bytes);
    format!(
        "{kinds} |{:>11}{:>11} |{:>11}{:>11}{:>11} |{:>9.1}{:>9.1}{:>6}",
        rate(line.read_bytes),
        rate(line.written_bytes),
        from("names"),
        from("cache"),
        from("origin"),
        line.p50_ns as f64 / 1e3,
        line.p99_ns as f64 / 1e3,
        line.waiting
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_under_their_heads() {
        let line = StatsLine {
            seconds: 2.0,
            kinds: [("read".to_owned(), 2_000)].into(),
            read_bytes: 8 << 20,
            p50_ns: 12_300,
            ..StatsLine::default()
        };
        let shown = text(&line);
        assert_eq!(shown.len(), head().len());
        assert!(shown.contains("1,000") && shown.contains("4.0 MiB") && shown.contains("12.3"), "{shown}");
        assert!(interval_ms(Duration::from_millis(99)).is_err());
    }
}
