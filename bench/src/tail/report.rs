//! Medians over the runs, ratios to tmpfs, tables with the targets, charts, and all raw results.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use corpus::Spec;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::Result;
use crate::tail::chart::{self, Line};
use crate::tail::readers::Seen;

/// A part of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// Everything is in the kernel's caches.
    Warm,
    /// The mount's pages are dropped; the blobs are local.
    Cold,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Warm => "warm",
            Part::Cold => "cold",
        })
    }
}

/// Times of one call in one run, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// One run of one place.
#[derive(Clone, Debug)]
struct Sample {
    open: Times,
    read: Times,
    files: u64,
    seconds: f64,
}

/// Part, size, readers, place.
type Cell = (Part, u64, usize, String);

/// Everything measured so far.
pub struct Report {
    facts: Vec<(&'static str, String)>,
    samples: BTreeMap<Cell, Vec<Sample>>,
    /// In the order of their first measurement.
    places: Vec<(Part, String)>,
    sizes: Vec<u64>,
}

/// Medians of a cell.
#[derive(Clone, Copy, Debug)]
struct Median {
    open: [f64; 2],
    read: [f64; 2],
    rate: f64,
}

/// Targets, as multiples of tmpfs's times: open p50, open p99, read p50, read p99.
const WARM_TARGETS: [f64; 4] = [1.6, 2.0, 1.2, 1.5];
/// The places that have these targets.
const MEANT: [&str; 3] = ["exclusive", "frozen", "corpus"];
/// Target: at least this many times the operations of the classic transport, with this many readers.
const COLD_TARGET: (f64, usize) = (1.4, 16);

impl Report {
    /// An empty report, with the facts known in advance.
    pub fn begin(runs: u32, covey: &Path, transport: fuse::Transport, specs: &[Spec]) -> Report {
        let corpora: Vec<String> = specs.iter().map(Spec::to_string).collect();
        let facts = vec![
            ("date", said("date", &["-u", "+%F"])),
            ("host", said("uname", &["-n"])),
            ("kernel", said("uname", &["-srm"])),
            ("cpu", cpu()),
            ("commit", said("git", &["describe", "--always", "--dirty", "--abbrev=12"])),
            ("version", said(&covey.to_string_lossy(), &["--version"])),
            ("load at the beginning", load()),
            ("runs", runs.to_string()),
            ("transport of the warm mounts", transport.to_string()),
            ("files", corpora.join(" ")),
        ];
        Report { facts, samples: BTreeMap::new(), places: Vec::new(), sizes: Vec::new() }
    }

    /// Adds one run of one place.
    pub fn add(&mut self, part: Part, spec: Spec, place: &str, readers: usize, seen: &Seen) {
        if !self.sizes.contains(&spec.size) {
            self.sizes.push(spec.size);
        }
        if !self.places.iter().any(|(of, name)| (*of, name.as_str()) == (part, place)) {
            self.places.push((part, place.to_owned()));
        }
        let sample = Sample {
            open: Times::of(&seen.open),
            read: Times::of(&seen.read),
            files: seen.files,
            seconds: seen.elapsed.as_secs_f64(),
        };
        self.samples.entry((part, spec.size, readers, place.to_owned())).or_default().push(sample);
    }

    fn median(&self, part: Part, size: u64, readers: usize, place: &str) -> Option<Median> {
        let samples = self.samples.get(&(part, size, readers, place.to_owned()))?;
        let of = |value: &dyn Fn(&Sample) -> f64| median(samples.iter().map(value).collect());
        Some(Median {
            open: [of(&|sample| sample.open.p50), of(&|sample| sample.open.p99)],
            read: [of(&|sample| sample.read.p50), of(&|sample| sample.read.p99)],
            rate: of(&|sample| sample.files as f64 / sample.seconds),
        })
    }

    fn readers(&self, part: Part, size: u64) -> Vec<usize> {
        let mut all: Vec<usize> =
            self.samples.keys().filter(|cell| (cell.0, cell.1) == (part, size)).map(|cell| cell.2).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn names(&self, part: Part) -> impl Iterator<Item = &str> {
        self.places.iter().filter(move |(of, _)| *of == part).map(|(_, name)| name.as_str())
    }

    /// The complete report as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::from("# F1: the tail of open() and read()\n\n");
        for (name, value) in &self.facts {
            let _ = writeln!(text, "- {name}: {value}");
        }
        text.push_str(
            "\nTimes are microseconds, medians over the runs of each run's percentile; `x` is how many times tmpfs's, \
             in the same runs.\nTargets: open p50 at most 1.6 x and p99 at most 2 x, read p50 at most 1.2 x and p99 at most 1.5 x.\n",
        );
        for size in &self.sizes {
            if !self.readers(Part::Warm, *size).is_empty() {
                let _ = write!(
                    text,
                    "\n## {}, files of {}\n\n{}",
                    heading(Part::Warm),
                    shown_size(*size),
                    self.warm(*size)
                );
            }
        }
        let cold = self.cold();
        if !cold.is_empty() {
            let _ = write!(text, "\n## {}\n\n{cold}", heading(Part::Cold));
        }
        text
    }

    /// The table beside tmpfs.
    fn warm(&self, size: u64) -> String {
        let part = Part::Warm;
        let mut table = String::from(
            "| place | readers | open p50 | x | open p99 | x | less tmpfs | read p50 | x | read p99 | x | less tmpfs | files/s | target |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
        );
        for name in self.names(part) {
            for readers in self.readers(part, size) {
                let (Some(own), Some(tmpfs)) =
                    (self.median(part, size, readers, name), self.median(part, size, readers, "tmpfs"))
                else {
                    continue;
                };
                let times = own.ratios(&tmpfs);
                let mut cells = vec![name.to_owned(), readers.to_string()];
                for (call, base, ratios) in
                    [(own.open, tmpfs.open, &times[..2]), (own.read, tmpfs.read, &times[2..])]
                {
                    cells.extend([shown(call[0]), format!("{:.2}", ratios[0])]);
                    cells.extend([shown(call[1]), format!("{:.2}", ratios[1])]);
                    cells.push(format!("{:+.1}", call[1] - base[1]));
                }
                cells.push(format!("{:.0}", own.rate));
                cells.push(if MEANT.contains(&name) { verdict(times) } else { "-".into() });
                let _ = writeln!(table, "| {} |", cells.join(" | "));
            }
        }
        table
    }

    fn cold(&self) -> String {
        let mut table = String::new();
        for size in &self.sizes {
            for readers in self.readers(Part::Cold, *size) {
                let of = |place| self.median(Part::Cold, *size, readers, place);
                let (Some(classic), Some(uring)) = (of("classic"), of("uring")) else { continue };
                let ratio = uring.rate / classic.rate;
                let target = if readers == COLD_TARGET.1 { met(ratio >= COLD_TARGET.0) } else { "-" };
                let _ = writeln!(
                    table,
                    "| {} | {readers} | {:.0} | {:.0} | {ratio:.2} | {} | {} | {} | {} | {target} |",
                    shown_size(*size),
                    classic.rate,
                    uring.rate,
                    shown(classic.read[0]),
                    shown(uring.read[0]),
                    shown(classic.read[1]),
                    shown(uring.read[1]),
                );
            }
        }
        if table.is_empty() {
            return table;
        }
        "Target: over io_uring at least 1.4 x the files per second of the classic transport, at 16 readers.\n\n\
         | size | readers | classic files/s | uring files/s | x | classic read p50 | uring | classic read p99 | uring | target |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n"
            .to_owned()
            + &table
    }

    fn charts(&self) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for part in [Part::Warm, Part::Cold] {
            for size in self.sizes.iter().filter(|size| !self.readers(part, **size).is_empty()) {
                let lines = |of: fn(&Median) -> f64| -> Vec<Line> {
                    let points = |name: &str| {
                        let all = self.readers(part, *size).into_iter();
                        all.filter_map(|readers| {
                            Some((readers as f64, of(&self.median(part, *size, readers, name)?)))
                        })
                        .collect()
                    };
                    self.names(part).map(|name| (name.to_owned(), points(name))).collect()
                };
                let panels = [("open(), p99", lines(|m| m.open[1])), ("read(), p99", lines(|m| m.read[1]))];
                let title = format!("{}, files of {}", heading(part), shown_size(*size));
                let file = format!("tail-{part}-{}.svg", shown_size(*size).replace(' ', ""));
                all.push((file, chart::draw(&title, &panels)?));
            }
        }
        Ok(all)
    }

    fn raw(&self) -> Value {
        let facts: serde_json::Map<_, _> =
            self.facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let rows: Vec<Value> = self
            .samples
            .iter()
            .map(|((part, size, readers, place), samples)| {
                let runs: Vec<Value> = samples.iter().map(Sample::raw).collect();
                json!({ "part": part.to_string(), "size": size, "readers": readers, "place": place, "runs": runs })
            })
            .collect();
        json!({ "figure": "tail", "unit": "us", "facts": facts, "rows": rows })
    }

    /// Writes the tables, the charts and every run into the folder of this day and host. Returns the folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn keep(&self, results: &Path) -> Result<PathBuf> {
        let fact =
            |wanted: &str| self.facts.iter().find(|(name, _)| *name == wanted).map_or("", |(_, value)| value);
        let name = format!("{}-{}", fact("date"), fact("host"));
        let mut folder = results.join(&name);
        // Another figure of the same day goes into the same folder. An earlier run of this one is kept.
        for number in 2.. {
            if !folder.join("tail.json").exists() {
                break;
            }
            folder = results.join(format!("{name}-{number}"));
        }
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let raw = serde_json::to_string_pretty(&self.raw())? + "\n";
        fs::write(folder.join("tail.json"), raw).map_err(failed)?;
        let mut text = self.markdown();
        for (file, svg) in self.charts()? {
            let _ = write!(text, "\n![{file}]({file})\n");
            fs::write(folder.join(&file), svg).map_err(failed)?;
        }
        fs::write(folder.join("tail.md"), text).map_err(failed)?;
        Ok(folder)
    }
}

impl Times {
    fn of(histogram: &Histogram<u32>) -> Times {
        let at = |share| histogram.value_at_quantile(share) as f64 / 1e3;
        Times {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e3,
        }
    }

    fn raw(self) -> Value {
        json!({ "p50": self.p50, "p90": self.p90, "p99": self.p99, "p999": self.p999, "max": self.max })
    }
}

impl Sample {
    fn raw(&self) -> Value {
        let (open, read) = (self.open.raw(), self.read.raw());
        json!({ "files": self.files, "seconds": self.seconds, "open": open, "read": read })
    }
}

impl Median {
    /// How many times the other's: open p50, open p99, read p50, read p99.
    fn ratios(&self, other: &Median) -> [f64; 4] {
        [
            self.open[0] / other.open[0],
            self.open[1] / other.open[1],
            self.read[0] / other.read[0],
            self.read[1] / other.read[1],
        ]
    }
}

fn verdict(times: [f64; 4]) -> String {
    let names = ["open p50", "open p99", "read p50", "read p99"];
    let missed: Vec<&str> = times
        .iter()
        .zip(WARM_TARGETS)
        .zip(names)
        .filter(|((is, most), _)| is.is_nan() || *is > most)
        .map(|(_, name)| name)
        .collect();
    if missed.is_empty() { met(true).to_owned() } else { format!("{}: {}", met(false), missed.join(", ")) }
}

fn met(is: bool) -> &'static str {
    if is { "met" } else { "not met" }
}

fn heading(part: Part) -> &'static str {
    match part {
        Part::Warm => "Warm: every file opened and read before",
        Part::Cold => "Cold page cache, blobs on this machine",
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

fn shown(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn shown_size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

fn load() -> String {
    fs::read_to_string("/proc/loadavg").map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = || text.lines().filter_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{} x {}", names().count(), names().next().map_or("unknown", |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(open: u64, read: u64, millis: u64) -> Seen {
        let mut times =
            [open, read].map(|_| Histogram::<u32>::new_with_bounds(1, 60_000_000_000, 3).unwrap());
        times[0].record_n(open, 100).unwrap();
        times[1].record_n(read, 100).unwrap();
        let [open, read] = times;
        Seen { open, read, files: 100, elapsed: std::time::Duration::from_millis(millis) }
    }

    fn report() -> Report {
        let spec = Spec::new(1, 10, 4096).unwrap();
        let mut report = Report::begin(3, Path::new("/nowhere"), fuse::Transport::Classic, &[spec]);
        for factor in [1, 3, 2] {
            report.add(Part::Warm, spec, "tmpfs", 4, &seen(1_000 * factor, 1_000 * factor, 1));
            report.add(Part::Warm, spec, "exclusive", 4, &seen(1_500 * factor, 1_100 * factor, 1));
            report.add(Part::Warm, spec, "frozen", 4, &seen(2_100 * factor, 1_100 * factor, 1));
            report.add(Part::Cold, spec, "classic", 16, &seen(1, 2_000, 20));
            report.add(Part::Cold, spec, "uring", 16, &seen(1, 1_000, 10));
        }
        report
    }

    #[test]
    fn medians_of_percentiles_are_held_against_tmpfs() {
        let text = report().markdown();
        let row =
            |place: &str| text.lines().find(|line| line.starts_with(&format!("| {place} | 4 "))).unwrap();
        assert!(row("tmpfs").starts_with("| tmpfs | 4 | 2.00 | 1.00 | 2.00 | 1.00 | +0.0 |"), "{text}");
        assert!(
            row("exclusive").starts_with("| exclusive | 4 | 3.00 | 1.50 | 3.00 | 1.50 | +1.0 |"),
            "{text}"
        );
        assert!(row("exclusive").ends_with("| met |"), "{text}");
        assert!(row("frozen").ends_with("| not met: open p50, open p99 |"), "{text}");
        assert!(
            text.contains("| 4 KiB | 16 | 5000 | 10000 | 2.00 | 2.00 | 1.00 | 2.00 | 1.00 | met |"),
            "{text}"
        );
    }

    #[test]
    fn results_of_one_day_lie_side_by_side() {
        let (temp, report) = (tempfile::tempdir().unwrap(), report());
        let first = report.keep(temp.path()).unwrap();
        let second = report.keep(temp.path()).unwrap();
        assert_ne!(first, second);
        for file in ["tail.json", "tail.md", "tail-warm-4KiB.svg", "tail-cold-4KiB.svg"] {
            assert!(first.join(file).exists() && second.join(file).exists(), "{file}");
        }
        let raw: Value = serde_json::from_slice(&fs::read(first.join("tail.json")).unwrap()).unwrap();
        assert_eq!(raw["rows"].as_array().unwrap().len(), 5);
        assert_eq!(raw["rows"][0]["runs"].as_array().unwrap().len(), 3, "every run is kept");
    }
}
