//! Medians, ratios, a table, and the raw samples in a file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::Result;
use crate::cells::Figure;
use crate::place::Kind;

/// One row of the table: its name and unit, and for each place the samples and the server's seconds of processor time.
struct Row {
    name: String,
    unit: &'static str,
    samples: BTreeMap<Kind, Vec<f64>>,
    cpu: BTreeMap<Kind, Vec<f64>>,
}

/// Everything measured so far, in the order of first measurement.
#[derive(Default)]
pub struct Samples {
    rows: Vec<Row>,
}

/// A finished run.
pub struct Report {
    /// The table and where it is from.
    pub markdown: String,
    raw: serde_json::Value,
    folder: String,
}

impl Samples {
    /// Adds what one cell answered once on one place.
    pub fn add(&mut self, cell: &str, kind: Kind, figures: &[Figure], cpu: f64) {
        for (figure, unit, value) in figures {
            let name = if figure.is_empty() { cell.to_owned() } else { format!("{cell}, {figure}") };
            let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
                self.rows.push(Row { name, unit, samples: BTreeMap::new(), cpu: BTreeMap::new() });
                self.rows.len() - 1
            });
            self.rows[at].samples.entry(kind).or_default().push(*value);
            self.rows[at].cpu.entry(kind).or_default().push(cpu);
        }
    }

    /// Puts it all together.
    ///
    /// # Errors
    /// The program cannot be asked its version.
    pub fn report(&self, rounds: usize, covey: &Path, transport: fuse::Transport) -> Result<Report> {
        let said = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().ok();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
            text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
        };
        let date = date(base::time::now().seconds());
        let host = said("uname", &["-n"]);
        let facts = [
            ("date", date.clone()),
            ("host", host.clone()),
            ("kernel", said("uname", &["-srm"])),
            ("cpu", cpu()),
            ("commit", said("git", &["describe", "--always", "--dirty", "--abbrev=12"])),
            ("version", said(&covey.to_string_lossy(), &["--version"])),
            ("load", fs::read_to_string("/proc/loadavg")?.trim().to_owned()),
            ("rounds", rounds.to_string()),
            ("transport", transport.to_string()),
        ];
        let mut markdown = String::new();
        for (name, value) in &facts {
            writeln!(markdown, "- {name}: {value}")?;
        }
        writeln!(markdown, "\n{}", self.table())?;
        let rows: Vec<_> = self.rows.iter().map(Row::raw).collect();
        let facts: serde_json::Map<_, _> =
            facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        Ok(Report {
            markdown,
            raw: json!({ "facts": facts, "rows": rows }),
            folder: format!("{date}-{host}"),
        })
    }

    fn table(&self) -> String {
        let mut table = String::from(
            "| work | unit | covey | ext4 | tmpfs | null FUSE | covey : ext4 | covey : tmpfs | covey : null | covey's CPU s |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for row in &self.rows {
            let value = |kind| row.median(kind).map_or("-".to_owned(), shown);
            let ratio = |kind| row.slower(kind).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            let cells = [
                row.name.clone(),
                row.unit.to_owned(),
                value(Kind::Covey),
                value(Kind::Ext4),
                value(Kind::Tmpfs),
                value(Kind::Null),
                ratio(Kind::Ext4),
                ratio(Kind::Tmpfs),
                ratio(Kind::Null),
                median(row.cpu.get(&Kind::Covey)).map_or("-".to_owned(), |cpu| format!("{cpu:.2}")),
            ];
            table.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        table.push_str("\nMedians of the rounds. A ratio says how many times longer Covey takes (below 1: Covey is faster).\n");
        table
    }
}

impl Row {
    fn median(&self, kind: Kind) -> Option<f64> {
        median(self.samples.get(&kind))
    }

    /// How many times longer Covey takes than this place.
    fn slower(&self, than: Kind) -> Option<f64> {
        let (covey, other) = (self.median(Kind::Covey)?, self.median(than)?);
        Some(if self.unit == "MiB/s" { other / covey } else { covey / other })
    }

    fn raw(&self) -> serde_json::Value {
        let by_name = |of: &BTreeMap<Kind, Vec<f64>>| -> serde_json::Map<String, serde_json::Value> {
            of.iter().map(|(kind, values)| (kind.name().to_owned(), json!(values))).collect()
        };
        json!({ "work": self.name, "unit": self.unit, "samples": by_name(&self.samples), "server_cpu_s": by_name(&self.cpu) })
    }
}

impl Report {
    /// Writes the table and the raw samples into a folder of their own; answers which.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn keep(&self, results: &Path) -> Result<PathBuf> {
        let mut folder = results.join(&self.folder);
        let mut number = 1;
        while folder.exists() {
            number += 1;
            folder = results.join(format!("{}-{number}", self.folder));
        }
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("README.md"), format!("# Basic figures\n\n{}", self.markdown))?;
        fs::write(folder.join("basic.json"), serde_json::to_string_pretty(&self.raw)? + "\n")?;
        Ok(folder)
    }
}

fn median(values: Option<&Vec<f64>>) -> Option<f64> {
    let mut values = values.filter(|values| !values.is_empty())?.clone();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    Some(if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) })
}

fn shown(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// The machine's processors: how many, and which.
fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, name)| name)
        .collect();
    format!("{} x {}", models.len(), models.first().unwrap_or(&"unknown"))
}

/// The day of a time in seconds since 1970, as 2026-11-20 (proleptic Gregorian, UTC).
fn date(seconds: i64) -> String {
    // Years that begin in March put the leap day last; 400 of them are always 146,097 days.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{of_month:02}", year + era * 400 + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_at_their_edges() {
        for (seconds, wanted) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_795_132_800, "2026-11-20"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(date(seconds), wanted);
        }
    }

    #[test]
    fn ratios_say_how_much_longer_covey_takes() {
        let mut samples = Samples::default();
        for (kind, time, rate) in
            [(Kind::Covey, 3.0, 50.0), (Kind::Ext4, 2.0, 100.0), (Kind::Covey, 5.0, 50.0)]
        {
            samples.add("a", kind, &[("", "s", time), ("b", "MiB/s", rate)], 0.0);
        }
        assert_eq!(samples.rows[0].slower(Kind::Ext4), Some(2.0));
        assert_eq!(samples.rows[1].slower(Kind::Ext4), Some(2.0));
        assert_eq!(samples.rows[1].name, "a, b");
        assert_eq!(samples.rows[0].slower(Kind::Null), None);
    }
}
