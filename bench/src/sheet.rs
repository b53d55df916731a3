//! A table: samples by row and place, medians, ratios against targets, FUSE requests per operation; and how
//! all that is written to files.
//!
//! `bench/results/DATE-HOST/` has for each figure `FIGURE.json` (every sample), `FIGURE.md` (the table) and
//! charts. Saved results are never overwritten: a second run on one day has a folder of its own,
//! `DATE-HOST-2`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::Result;
use crate::chart::{self, Bars, Lines};
use crate::machine::{Facts, host, today};
use crate::run::{Figure, PerOperation};

/// Values by place.
type ByPlace = BTreeMap<String, Vec<f64>>;

/// One row: its cell, its full name, its unit and its samples.
struct Row {
    cell: String,
    name: String,
    unit: &'static str,
    samples: ByPlace,
}

/// The target of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At most this: for times and memory.
    AtMost(f64),
    /// At least this: for rates.
    AtLeast(f64),
    /// No target: the ratio is only shown.
    Shown,
}

/// A target for two places in one row.
struct Target {
    row: String,
    of: String,
    against: String,
    bound: Bound,
}

/// A table. See the module.
pub struct Sheet {
    figure: &'static str,
    title: &'static str,
    facts: Facts,
    columns: Vec<String>,
    rows: Vec<Row>,
    /// Processor time of the place's server in seconds, by cell.
    cpu: BTreeMap<String, ByPlace>,
    /// FUSE requests per operation, by cell, place and kind.
    requests: BTreeMap<String, BTreeMap<String, BTreeMap<String, Vec<f64>>>>,
    targets: Vec<Target>,
    notes: Vec<String>,
    gave_up: Vec<(String, String)>,
    charts: Vec<Chart>,
}

enum Chart {
    Ratios { of: String, against: Vec<String> },
    Lines { name: String, lines: Lines },
}

impl Sheet {
    /// An empty table.
    pub fn new(figure: &'static str, title: &'static str, facts: Facts) -> Sheet {
        Sheet {
            figure,
            title,
            facts,
            columns: Vec::new(),
            rows: Vec::new(),
            cpu: BTreeMap::new(),
            requests: BTreeMap::new(),
            targets: Vec::new(),
            notes: Vec::new(),
            gave_up: Vec::new(),
            charts: Vec::new(),
        }
    }

    /// Adds columns in this order. Existing columns keep their places.
    pub fn columns(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            if !self.columns.contains(&name) {
                self.columns.push(name);
            }
        }
    }

    /// Adds the figures of one cell on one place, and the processor time that the place's server used for it.
    pub fn add(&mut self, cell: &str, place: &str, figures: &[Figure], cpu: f64) {
        for (figure, unit, value) in figures {
            let name = if figure.is_empty() { cell.to_owned() } else { format!("{cell}, {figure}") };
            let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
                self.rows.push(Row { cell: cell.to_owned(), name, unit, samples: BTreeMap::new() });
                self.rows.len() - 1
            });
            self.rows[at].samples.entry(place.to_owned()).or_default().push(*value);
        }
        self.cpu.entry(cell.to_owned()).or_default().entry(place.to_owned()).or_default().push(cpu);
    }

    /// Adds the FUSE requests per operation.
    pub fn add_requests(&mut self, cell: &str, place: &str, requests: PerOperation) {
        let by_place = self.requests.entry(cell.to_owned()).or_default();
        let by_kind = by_place.entry(place.to_owned()).or_default();
        for (kind, count) in requests {
            by_kind.entry(kind).or_default().push(count);
        }
    }

    /// Replaces a fact that the run's options set.
    pub fn fact(&mut self, name: &'static str, value: &str) {
        self.facts.retain(|(fact, _)| *fact != name);
        self.facts.push((name, value.to_owned()));
    }

    /// Notes that a place failed in a cell. It is not tried again.
    pub fn give_up(&mut self, cell: &str, place: &str, why: &str) {
        self.notes.push(format!("{place} failed at \"{cell}\": {}", why.trim()));
        self.gave_up.push((cell.to_owned(), place.to_owned()));
    }

    /// Whether the place failed in the cell.
    pub fn gave_up(&self, cell: &str, place: &str) -> bool {
        self.gave_up.iter().any(|(c, p)| c == cell && p == place)
    }

    /// Adds a line below the table.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// Adds a ratio to show with its target.
    pub fn target(&mut self, row: impl Into<String>, of: &str, against: &str, bound: Bound) {
        let (of, against) = (of.to_owned(), against.to_owned());
        self.targets.push(Target { row: row.into(), of, against, bound });
    }

    /// Adds a chart of all rows: how many times longer `of` takes than each of the others.
    pub fn chart_ratios(&mut self, of: &str, against: &[&str]) {
        let against = against.iter().map(|name| (*name).to_owned()).collect();
        self.charts.push(Chart::Ratios { of: of.to_owned(), against });
    }

    /// Adds a chart of lines, in a file named after the figure and `name`.
    pub fn chart_lines(&mut self, name: &str, lines: Lines) {
        self.charts.push(Chart::Lines { name: name.to_owned(), lines });
    }

    /// The median of a row on a place.
    pub fn median(&self, row: &str, place: &str) -> Option<f64> {
        self.rows.iter().find(|candidate| candidate.name == row)?.median(place)
    }

    /// Records the machine's load at the end.
    pub fn close(&mut self, load: String) {
        self.facts.push(("load at end", load));
    }

    /// The complete table as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        for (name, value) in &self.facts {
            let _ = writeln!(text, "- {name}: {value}");
        }
        text.push('\n');
        text.push_str(&self.table());
        text.push_str(&self.target_table());
        text.push_str(&self.requests_table());
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }

    /// The head and the rows of the table: medians.
    pub fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut head = vec!["work".to_owned(), "unit".to_owned()];
        head.extend(self.columns.iter().cloned());
        let mut lines = Vec::new();
        for row in &self.rows {
            let mut line = vec![row.name.clone(), row.unit.to_owned()];
            line.extend(self.columns.iter().map(|name| row.median(name).map_or("-".to_owned(), shown)));
            lines.push(line);
        }
        (head, lines)
    }

    fn table(&self) -> String {
        let (head, lines) = self.cells();
        table(&head, &lines) + "\nMedians of the rounds.\n\n"
    }

    fn target_table(&self) -> String {
        if self.targets.is_empty() {
            return String::new();
        }
        let head = ["work", "of", "against", "ratio", "target", "verdict"].map(str::to_owned);
        let lines: Vec<Vec<String>> = self
            .targets
            .iter()
            .map(|target| {
                let ratio = self.ratio(&target.row, &target.of, &target.against);
                let (wanted, verdict) = target.bound.judge(ratio);
                let ratio = ratio.map_or("-".to_owned(), shown);
                vec![target.row.clone(), target.of.clone(), target.against.clone(), ratio, wanted, verdict]
            })
            .collect();
        format!("## Targets\n\n{}\n", table(&head, &lines))
    }

    fn requests_table(&self) -> String {
        if self.requests.is_empty() {
            return String::new();
        }
        let head = ["work", "place", "requests for one", "by kind"].map(str::to_owned);
        let mut lines = Vec::new();
        let mut seen = Vec::new();
        for cell in self.rows.iter().map(|row| &row.cell) {
            if seen.contains(&cell) {
                continue;
            }
            seen.push(cell);
            for (place, kinds) in self.requests.get(cell).into_iter().flatten() {
                let medians: Vec<(&String, f64)> = kinds
                    .iter()
                    .filter_map(|(kind, values)| Some((kind, median(values)?)))
                    .filter(|(_, value)| *value >= 0.005)
                    .collect();
                let total = medians.iter().fold(0.0, |total, (_, value)| total + value);
                let kinds: Vec<String> =
                    medians.iter().map(|(kind, value)| format!("{kind} {value:.2}")).collect();
                lines.push(vec![cell.clone(), place.clone(), format!("{total:.2}"), kinds.join(", ")]);
            }
        }
        format!("## FUSE requests for one operation\n\n{}\n", table(&head, &lines))
    }

    fn ratio(&self, row: &str, of: &str, against: &str) -> Option<f64> {
        let row = self.rows.iter().find(|candidate| candidate.name == row)?;
        let (of, against) = (row.median(of)?, row.median(against)?);
        (against > 0.0).then(|| of / against)
    }

    /// Every sample, as JSON.
    pub fn raw(&self) -> Value {
        let facts: Map<String, Value> =
            self.facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| json!({ "work": row.name, "unit": row.unit, "samples": row.samples }))
            .collect();
        let targets: Vec<Value> = self
            .targets
            .iter()
            .map(|target| {
                let ratio = self.ratio(&target.row, &target.of, &target.against);
                let (wanted, verdict) = target.bound.judge(ratio);
                json!({ "work": target.row, "of": target.of, "against": target.against, "ratio": ratio,
                    "target": wanted, "verdict": verdict })
            })
            .collect();
        json!({ "figure": self.figure, "facts": facts, "rows": rows, "server_cpu_s": self.cpu,
            "requests_per_operation": self.requests, "targets": targets, "notes": self.notes })
    }

    /// Writes the table, the raw samples and the charts. Returns the folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn keep(&self, results: &Path) -> Result<PathBuf> {
        let folder = folder_for(results, self.figure);
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let raw = serde_json::to_string_pretty(&self.raw())? + "\n";
        fs::write(folder.join(format!("{}.json", self.figure)), raw).map_err(failed)?;
        let mut text = self.markdown();
        for (file, svg) in self.drawn()? {
            let _ = write!(text, "\n![{file}]({file})\n");
            fs::write(folder.join(&file), svg).map_err(failed)?;
        }
        fs::write(folder.join(format!("{}.md", self.figure)), text).map_err(failed)?;
        index(&folder).map_err(failed)?;
        Ok(folder)
    }

    fn drawn(&self) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for chart in &self.charts {
            match chart {
                Chart::Ratios { of, against } => {
                    let bars = self.bars(of, against);
                    if !bars.rows.is_empty() {
                        let file = format!("{}-{}.svg", self.figure, of.replace(' ', "-"));
                        all.push((file, chart::bars(&bars)?));
                    }
                }
                Chart::Lines { name, lines } => {
                    all.push((format!("{}-{name}.svg", self.figure), chart::lines(lines)?));
                }
            }
        }
        Ok(all)
    }

    /// How many times longer `of` takes. For rates the ratio is inverted.
    fn bars(&self, of: &str, against: &[String]) -> Bars {
        let longer = |row: &Row, other: &String| {
            let ratio = self.ratio(&row.name, of, other)?;
            let rate = row.unit.contains("/s");
            Some(if rate { 1.0 / ratio } else { ratio }).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        };
        let rows = self
            .rows
            .iter()
            .map(|row| (row.name.clone(), against.iter().map(|other| longer(row, other)).collect::<Vec<_>>()))
            .filter(|(_, values)| values.iter().any(Option::is_some))
            .collect();
        Bars {
            title: format!("{}: how many times longer {of} takes than the others", self.title),
            series: against.to_vec(),
            rows,
        }
    }
}

impl Row {
    fn median(&self, place: &str) -> Option<f64> {
        median(self.samples.get(place)?)
    }
}

impl Bound {
    /// The bound as text, and whether a ratio meets it.
    fn judge(self, ratio: Option<f64>) -> (String, String) {
        let (wanted, met) = match self {
            Bound::AtMost(most) => (format!("at most {most}"), ratio.map(|ratio| ratio <= most)),
            Bound::AtLeast(least) => (format!("at least {least}"), ratio.map(|ratio| ratio >= least)),
            Bound::Shown => return ("none".to_owned(), "-".to_owned()),
        };
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        };
        (wanted, verdict.to_owned())
    }
}

/// The median of some values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

/// Three significant digits, or all digits before the point.
fn shown(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn table(head: &[String], lines: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    text
}

/// The first of today's folders that does not have this figure yet.
fn folder_for(results: &Path, figure: &str) -> PathBuf {
    let name = format!("{}-{}", today(), host());
    let mut folder = results.join(&name);
    let mut number = 1;
    while folder.join(format!("{figure}.json")).exists() {
        number += 1;
        folder = results.join(format!("{name}-{number}"));
    }
    folder
}

/// Writes a page with links to all tables of a folder. A page that a person wrote is left alone.
fn index(folder: &Path) -> std::io::Result<()> {
    const HEAD: &str = "# Results\n\nOne page for each figure; beside it every sample, as JSON.\n\n";
    let page = folder.join("README.md");
    if page.exists() && !fs::read_to_string(&page)?.starts_with(HEAD) {
        return Ok(());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".md").filter(|name| *name != "README").map(str::to_owned));
    }
    names.sort();
    let lines: String = names.iter().map(|name| format!("- [{name}]({name}.md)\n")).collect();
    fs::write(page, format!("{HEAD}{lines}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let mut sheet = Sheet::new("test", "A test", vec![("date", "today".to_owned())]);
        sheet.columns(["covey".to_owned(), "ext4".to_owned()]);
        for (place, time, rate) in [("covey", 3.0, 50.0), ("ext4", 2.0, 100.0), ("covey", 5.0, 50.0)] {
            sheet.add("a", place, &[("", "s", time), ("b", "MiB/s", rate)], 0.5);
        }
        sheet
    }

    #[test]
    fn targets_are_judged_by_medians() {
        let mut sheet = sheet();
        sheet.target("a", "covey", "ext4", Bound::AtMost(2.0));
        sheet.target("a", "covey", "ext4", Bound::AtMost(1.9));
        sheet.target("a, b", "covey", "ext4", Bound::AtLeast(0.5));
        sheet.target("a, b", "covey", "ext4", Bound::AtLeast(0.8));
        sheet.target("a", "covey", "null", Bound::AtMost(1.5));
        sheet.target("a", "covey", "ext4", Bound::Shown);
        let verdicts: Vec<String> = sheet
            .target_table()
            .lines()
            .filter(|line| line.starts_with("| a"))
            .filter_map(|line| line.trim_end_matches(" |").rsplit(" | ").next().map(str::to_owned))
            .collect();
        assert_eq!(verdicts, ["met", "not met", "met", "not met", "not measured", "-"]);
    }

    #[test]
    fn requests_are_shown_by_kind() {
        let mut sheet = sheet();
        let requests =
            |lookups| PerOperation::from([("LOOKUP".to_owned(), lookups), ("WRITE".to_owned(), 0.001)]);
        for lookups in [1.0, 2.0, 7.0] {
            sheet.add_requests("a", "covey", requests(lookups));
        }
        assert!(sheet.requests_table().contains("| a | covey | 2.00 | LOOKUP 2.00 |"));
    }

    #[test]
    fn bars_turn_rates_round() {
        let bars = sheet().bars("covey", &["ext4".to_owned(), "null".to_owned()]);
        assert_eq!(bars.rows[0].1, [Some(2.0), None]);
        assert_eq!(bars.rows[1].1, [Some(2.0), None]);
    }

    #[test]
    fn a_second_run_of_a_day_has_its_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut sheet = sheet();
        sheet.chart_ratios("covey", &["ext4"]);
        let first = sheet.keep(folder.path()).unwrap();
        let second = sheet.keep(folder.path()).unwrap();
        assert_ne!(first, second);
        for file in ["README.md", "test.md", "test.json", "test-covey.svg"] {
            assert!(second.join(file).exists(), "{file}");
        }
        let raw: Value = serde_json::from_slice(&fs::read(first.join("test.json")).unwrap()).unwrap();
        assert_eq!(raw["rows"][0]["samples"]["covey"], json!([3.0, 5.0]));
        let page = fs::read_to_string(first.join("README.md")).unwrap();
        assert!(page.contains("[test](test.md)"), "{page}");
    }

    #[test]
    fn medians_of_few() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
