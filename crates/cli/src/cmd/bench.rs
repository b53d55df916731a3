//! `covey bench`: the speed of a mount, compared with a plain folder of the same machine in the same run.
//!
//! Absolute figures say more about the machine than about Covey. So the verdict rests on a ratio: the time of
//! a step on the mount divided by its time in the plain folder. The two alternate, and the median of several
//! rounds counts. Colour is never the only sign: every verdict is also a word.

mod work;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use api::text::{Lines, bytes, count, shown};
use base::size::{GIB, KIB, MIB};
use node::mounts;
use serde::Serialize;

use crate::cmd::doctor::free_room;
use crate::table::Table;
use crate::term::Term;
use work::{Amount, STEPS, Scratch, Step, Unit};

/// Measures a mount against a plain folder of the same machine
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey bench                       the only mount, beside the folder its volume is in\n  \
    covey bench /mnt/covey --quick\n  covey bench /mnt/covey --beside /srv/scratch --size 1G\n  covey bench --json > bench.json\n\n\
    It writes to a folder of its own in both places and removes it, also on Ctrl-C.\n\
    Exit status: 0 measured (whatever the verdicts), 1 could not."
)]
pub struct Args {
    /// A folder on a mount [default: the only mount]
    mount: Option<PathBuf>,
    /// The plain folder to compare with [default: beside the volume; of a volume in memory /dev/shm]
    #[arg(long, value_name = "DIR")]
    beside: Option<PathBuf>,
    /// Size of the large file, such as 512M or 2G [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// A few seconds in place of half a minute: one round, fewer files, 32 MiB
    #[arg(long)]
    quick: bool,
}

/// Parses a size: `4096`, `512M`, `2GiB`. The minimum is one mebibyte. The result is rounded down to whole
/// mebibytes.
fn size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 1,
        "K" => KIB,
        "M" => MIB,
        "G" => GIB,
        _ => return Err("write it like 512M or 2G".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "write it like 512M or 2G".to_owned())?;
    let size = number.checked_mul(unit).ok_or("that is more than there is")?;
    if size < MIB { Err("at least 1M".to_owned()) } else { Ok(size / MIB * MIB) }
}

/// The result of one step.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    /// `files` or `bytes`, per second.
    unit: &'static str,
    mount_per_second: f64,
    beside_per_second: f64,
    /// The time on the mount divided by the time in the plain folder: the median over the rounds.
    ratio: f64,
    good_to: f64,
    fair_to: f64,
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Good,
    Fair,
    Slow,
}

impl Verdict {
    fn of(ratio: f64, step: &Step) -> Verdict {
        match ratio {
            _ if ratio <= step.limits.good => Verdict::Good,
            _ if ratio <= step.limits.fair => Verdict::Fair,
            _ => Verdict::Slow,
        }
    }

    /// The word of each verdict, and the code of its colour.
    const SHOWN: [(Verdict, &str, u8); 3] =
        [(Verdict::Good, "good", 32), (Verdict::Fair, "fair", 33), (Verdict::Slow, "SLOW", 31)];

    fn word(self) -> String {
        Verdict::SHOWN
            .iter()
            .find(|(verdict, ..)| *verdict == self)
            .map_or("", |(_, word, _)| word)
            .to_owned()
    }
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(with = "api::raw_path")]
    mount: PathBuf,
    #[serde(with = "api::raw_path")]
    beside: PathBuf,
    small_files: u64,
    large_file_bytes: u64,
    readers: usize,
    rounds: usize,
    results: Vec<Row>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (files, size, rounds) = if args.quick { (200, 32 * MIB, 1) } else { (1000, 256 * MIB, 3) };
    let amount = Amount { files, size: args.size.unwrap_or(size), readers: cores.max(2) };
    let mount = the_folder(args.mount.as_deref())?;
    let beside = match &args.beside {
        Some(folder) => mounts::absolute(folder)?,
        None => default_beside(&mount)?,
    };
    if mounts::covey_of(&beside)?.is_some() {
        return Err(Failure::usage(format!("{} is on a mount of Covey's too", beside.display()))
            .next("name a plain folder of this machine's disk: --beside DIR"));
    }
    for folder in [&mount, &beside] {
        has_room(folder, amount.room())?;
    }
    work::catch_signals()?;
    let times = measure(&mount, &beside, &amount, rounds, term)?;
    let results = STEPS.iter().zip(&times).map(|(step, times)| row(step, &amount, times)).collect();
    let (small_files, large_file_bytes, readers) = (amount.files, amount.size, amount.readers);
    let report = Report { mount, beside, small_files, large_file_bytes, readers, rounds, results };
    let colours =
        std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    term.result_as_is(&report, || {
        let text = text(&report);
        let plain = shown(&text, Lines::Many);
        if colours { coloured(&plain) } else { plain.into_owned() }
    });
    Ok(0)
}

/// The folder on the mount to work in.
fn the_folder(asked: Option<&Path>) -> Result<PathBuf> {
    let none = |what: String| {
        Failure::new("not-mounted", what)
            .next("covey df lists what is mounted; covey up MOUNTPOINT starts from nothing")
    };
    if let Some(path) = asked {
        let mount = mounts::covey_of(path)?;
        mount.ok_or_else(|| none(format!("{} is on no mount of Covey's", path.display())))?;
        return mounts::absolute(path);
    }
    let mut mounts = node::trust::mounts();
    match (mounts.pop(), mounts.is_empty()) {
        (None, _) => Err(none("no volume is mounted".to_owned())),
        (Some(mount), true) => Ok(mount.path),
        (Some(_), false) => {
            Err(Failure::usage("several volumes are mounted").next("name one: covey bench MOUNTPOINT"))
        }
    }
}

/// The default folder to compare with. It is the one that contains the volume, so it is on the same disk. A
/// volume in memory is compared with memory.
fn default_beside(folder: &Path) -> Result<PathBuf> {
    let volume = mounts::covey_of(folder)?.and_then(|mount| mounts::volume_of(&mount));
    let memory =
        || Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir);
    Ok(volume.and_then(|volume| volume.parent().map(Path::to_owned)).unwrap_or_else(memory))
}

fn has_room(folder: &Path, needed: u64) -> Result<()> {
    let free = free_room(folder);
    if free.is_some_and(|free| free < needed) {
        let what = format!("only {} are free in {}", bytes(free.unwrap_or(0)), folder.display());
        return Err(Failure::new("disk-full", what)
            .why(format!("the bench needs {} for a moment", bytes(needed)))
            .next("free some room, or give it less to do: --quick, --size 8M"));
    }
    Ok(())
}

/// The times of each step in all rounds, on the mount and in the plain folder.
fn measure(
    mount: &Path,
    beside: &Path,
    amount: &Amount,
    rounds: usize,
    term: Term,
) -> Result<Vec<Vec<[f64; 2]>>> {
    let places = [Scratch::new(mount)?, Scratch::new(beside)?];
    let mut times = vec![Vec::new(); STEPS.len()];
    let mut progress = term.progress("measuring");
    progress.total((rounds * STEPS.len()) as u64);
    for round in 0..rounds {
        for (number, step) in STEPS.iter().enumerate() {
            progress.set((round * STEPS.len() + number) as u64, |_| step.what.to_owned());
            // The order alternates, so that effects of the first place on the second cancel out.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            let mut took = [0.0; 2];
            for place in order {
                took[place] = places[place].measure(step, amount)?;
            }
            times[number].push(took);
        }
        places.iter().try_for_each(Scratch::clear)?;
    }
    progress.done();
    Ok(times)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn row(step: &'static Step, amount: &Amount, times: &[[f64; 2]]) -> Row {
    const SHORTEST: f64 = 1e-9;
    let per_second = |place: usize| {
        step.unit.amount(amount) as f64 / median(times.iter().map(|took| took[place])).max(SHORTEST)
    };
    let ratio = median(times.iter().map(|[mount, beside]| mount / beside.max(SHORTEST)));
    let verdict = Verdict::of(ratio, step);
    Row {
        what: step.word,
        unit: if step.unit == Unit::Bytes { "bytes" } else { "files" },
        mount_per_second: per_second(0),
        beside_per_second: per_second(1),
        ratio,
        good_to: step.limits.good,
        fair_to: step.limits.fair,
        verdict,
        advice: (verdict == Verdict::Slow).then_some(step.advice),
    }
}

/// Colours the verdict at the end of each line.
fn coloured(text: &str) -> String {
    let line = |line: &str| {
        let found =
            Verdict::SHOWN.iter().find_map(|(_, word, code)| Some((line.strip_suffix(word)?, word, code)));
        found.map_or_else(
            || line.to_owned(),
            |(before, word, code)| format!("{before}\x1b[{code}m{word}\x1b[0m"),
        )
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["", "mount ", "beside ", "time, x ", "good to ", "verdict"]);
    for (row, step) in report.results.iter().zip(STEPS) {
        let rate = |per_second: f64| match step.unit {
            Unit::Bytes => format!("{}/s", bytes(per_second as u64)),
            _ => format!("{} files/s", count(per_second as u64)),
        };
        table.row(vec![
            step.what.to_owned(),
            rate(row.mount_per_second),
            rate(row.beside_per_second),
            format!("{:.2}", row.ratio),
            format!("{:.1}", row.good_to),
            row.verdict.word(),
        ]);
    }
    let mut text = format!(
        "{} beside {}: {} files of 4 KiB, one of {}, {} readers, {} round{}\n\n{}",
        report.mount.display(),
        report.beside.display(),
        count(report.small_files),
        bytes(report.large_file_bytes),
        report.readers,
        report.rounds,
        if report.rounds == 1 { "" } else { "s" },
        table.text()
    );
    for (number, row) in report.results.iter().enumerate() {
        let said = report.results[..number].iter().any(|before| before.advice == row.advice);
        if let Some(advice) = row.advice.filter(|_| !said) {
            text.push_str(&format!("\nslow: {advice}"));
        }
    }
    if report.rounds == 1 {
        text.push_str("\nOne round is a rough figure; without --quick it is the median of three.");
    }
    text + "\ncovey doctor looks at what on this machine makes mounts slower than they could be.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(size("512M"), Ok(512 * MIB));
        assert_eq!([size("2G"), size("2gib"), size("2GB")], [Ok(2 * GIB), Ok(2 * GIB), Ok(2 * GIB)]);
        assert_eq!(size("1500k"), Ok(MIB), "whole mebibytes");
        for bad in ["", "M", "-1M", "10X", "1", "99999999999G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_verdict_follows_from_the_median_of_the_ratios() {
        let amount = Amount { files: 100, size: MIB, readers: 2 };
        let step = &STEPS[2];
        let of = |ratio: f64| row(step, &amount, &[[ratio, 1.0], [ratio * 50.0, 1.0], [0.0, 1.0]]).verdict;
        assert_eq!(
            [of(step.limits.good), of(step.limits.fair), of(step.limits.fair * 1.1)],
            [Verdict::Good, Verdict::Fair, Verdict::Slow]
        );
        assert_eq!(row(step, &amount, &[[0.5, 1.0]]).mount_per_second, 200.0);
    }

    #[test]
    fn a_colour_never_is_the_only_sign() {
        for verdict in [Verdict::Good, Verdict::Fair, Verdict::Slow] {
            let plain = verdict.word();
            assert!(plain.is_ascii() && plain.len() == 4);
            let text = coloured(&format!("a {plain}\nb {plain} c"));
            assert!(text.starts_with("a \x1b[3") && text.ends_with(&format!("b {plain} c")), "{text}");
        }
    }

    #[test]
    fn expectations_are_in_order() {
        for step in STEPS {
            assert!(1.0 < step.limits.good && step.limits.good < step.limits.fair, "{}", step.what);
        }
    }
}
