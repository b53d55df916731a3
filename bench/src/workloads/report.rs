//! The results as a table, raw results and charts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::chart;
use super::monitor::Lines;
use super::place::{Counts, Kind};
use super::steps::Found;
use crate::Result;

/// The longest allowed time of a step relative to ext4. Configuring and building count as one step.
const TARGETS: &[(&str, f64)] = &[
    ("clone", 1.5),
    (BUILT, 1.05),
    ("walk, cold", 1.2),
    ("walk, warm", 1.2),
    ("untar", 2.0),
    ("rm -rf", 2.0),
];
/// The highest allowed memory of the daemon of a volume on disk.
pub const MEMORY_TARGET_BYTES: u64 = 100 << 20;
/// The row that is the sum of two steps.
const BUILT: &str = "configure + build";
/// So many kinds of requests are listed in the table; the raw results have all.
const KINDS_SHOWN: usize = 7;

/// One run of a step on a place.
struct Sample {
    kind: Kind,
    found: Found,
    requests: Counts,
}

/// Facts about a program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// The commit that was built.
    pub commit: String,
    /// Files tracked by git.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Lines of the files that are code.
    pub lines: u64,
}

/// Everything measured so far.
#[derive(Default)]
pub struct Samples {
    /// In the order of the first measurement.
    steps: Vec<(String, &'static str, Vec<Sample>)>,
    /// The programs.
    pub programs: Vec<Program>,
    /// The failures, as sentences.
    pub failures: Vec<String>,
    /// The peak memory of each place's daemon, in bytes.
    pub peaks: BTreeMap<Kind, u64>,
    /// The transports of requests.
    pub transports: BTreeMap<Kind, String>,
}

impl Samples {
    /// Adds the result of one step.
    pub fn add(&mut self, program: &str, step: &'static str, kind: Kind, found: Found, requests: Counts) {
        let sample = Sample { kind, found, requests };
        match self.steps.iter_mut().find(|(name, at, _)| name == program && *at == step) {
            Some((_, _, samples)) => samples.push(sample),
            None => self.steps.push((program.to_owned(), step, vec![sample])),
        }
    }

    /// Compares the output of `git status` after the same builds: it must not depend on the filesystem.
    pub fn compare_git_status(&mut self) {
        let mut differences = Vec::new();
        for (program, step, samples) in &self.steps {
            let mut said: BTreeMap<Kind, &str> = BTreeMap::new();
            for sample in samples {
                if let Some(status) = &sample.found.git_status {
                    said.insert(sample.kind, status);
                }
            }
            let Some(of_ext4) = said.get(&Kind::Ext4) else { continue };
            for (kind, status) in said.iter().filter(|(_, status)| *status != of_ext4) {
                let line = status.lines().find(|line| !of_ext4.lines().any(|other| other == *line));
                let other = of_ext4.lines().find(|line| !status.lines().any(|other| other == *line));
                let kind = kind.name();
                differences.push(format!(
                    "{program}, {step}, on {kind}: git says otherwise than on ext4: here alone {line:?}, there alone {other:?}"
                ));
            }
        }
        self.failures.extend(differences);
    }

    /// Compares the results of walks of one program: names and bytes are the same wherever the commit is
    /// checked out.
    pub fn compare_walks(&mut self) {
        let mut differences = Vec::new();
        for (program, step, samples) in &self.steps {
            // Git's own files differ in size each time, so only the names can be compared.
            let names = |sample: &Sample| sample.found.walked.map(|(names, _)| (names, sample.kind.name()));
            let found: Vec<_> = samples.iter().filter_map(names).collect();
            let (least, most) = (found.iter().min(), found.iter().max());
            if let (Some(least), Some(most)) = (least, most)
                && least.0 != most.0
            {
                differences.push(format!(
                    "{program}, {step}: found {} names on {}, {} on {}",
                    least.0, least.1, most.0, most.1
                ));
            }
        }
        self.failures.extend(differences);
    }

    /// Median seconds of a step; for [`BUILT`], the sum of configuring and building.
    fn seconds(&self, program: &str, step: &str, kind: Kind) -> Option<f64> {
        if step == BUILT {
            return Some(self.seconds(program, "configure", kind)? + self.seconds(program, "build", kind)?);
        }
        let (_, _, samples) = self.steps.iter().find(|(name, at, _)| name == program && *at == step)?;
        let of_kind = samples.iter().filter(|sample| sample.kind == kind);
        median(of_kind.map(|sample| sample.found.spent.as_secs_f64()).collect())
    }

    /// The rows of the table: program and step.
    fn rows(&self) -> Vec<(String, &'static str)> {
        let mut rows = Vec::new();
        for (program, step, _) in &self.steps {
            rows.push((program.clone(), *step));
            if *step == "build" {
                rows.push((program.clone(), BUILT));
            }
        }
        rows
    }

    /// Median seconds of a step for each program that has it on all of these places.
    pub fn bars(&self, step: &str, kinds: &[Kind]) -> Vec<(String, Vec<f64>)> {
        let of = |program: &Program| {
            let seconds: Option<Vec<f64>> =
                kinds.iter().map(|kind| self.seconds(&program.name, step, *kind)).collect();
            Some((program.name.clone(), seconds?))
        };
        self.programs.iter().filter_map(of).collect()
    }

    fn times(&self, table: &mut String) -> Result<()> {
        table.push_str(
            "| program | step | ext4, s | covey, s | mem, s | covey : ext4 | mem : ext4 | target | |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---|\n",
        );
        let mut rows = self.rows();
        for (step, _) in TARGETS {
            rows.push(("all".to_owned(), step));
        }
        for (program, step) in rows {
            let seconds = |kind| match program.as_str() {
                "all" => {
                    let bars = self.bars(step, &[Kind::Ext4, kind]);
                    (!bars.is_empty()).then(|| bars.iter().map(|(_, seconds)| seconds[1]).sum())
                }
                _ => self.seconds(&program, step, kind),
            };
            let [ext4, covey, mem]: [Option<f64>; 3] = [Kind::Ext4, Kind::Covey, Kind::Mem].map(seconds);
            let ratio = |of: Option<f64>| Some(of? / ext4?);
            let target = TARGETS.iter().find(|(name, _)| *name == step).map(|(_, target)| *target);
            let verdict = match (ratio(covey), target) {
                (Some(ratio), Some(target)) if ratio <= target => "met",
                (Some(_), Some(_)) => "missed",
                _ => "",
            };
            let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
            let exact = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
            writeln!(
                table,
                "| {program} | {step} | {} | {} | {} | {} | {} | {} | {verdict} |",
                exact(ext4),
                exact(covey),
                exact(mem),
                shown(ratio(covey)),
                shown(ratio(mem)),
                shown(target)
            )?;
        }
        table.push_str(
            "\nMedians of the rounds; \"all\" adds up the programs that were measured on both places.\n",
        );
        Ok(())
    }

    fn facts_of_programs(&self, text: &mut String) -> Result<()> {
        text.push_str("\n| program | commit | files | bytes | lines of code |\n|---|---|---:|---:|---:|\n");
        for Program { name, commit, files, bytes, lines } in &self.programs {
            writeln!(text, "| {name} | {commit} | {files} | {bytes} | {lines} |")?;
        }
        text.push_str("\n| place | requests come by | daemon's peak memory, MiB | target | |\n|---|---|---:|---:|---|\n");
        for (kind, peak) in &self.peaks {
            let (target, verdict) = match kind {
                Kind::Covey if *peak <= MEMORY_TARGET_BYTES => ("100", "met"),
                Kind::Covey => ("100", "missed"),
                _ => ("", "what is stored is in it"),
            };
            let transport = self.transports.get(kind).map_or("", String::as_str);
            writeln!(text, "| {} | {transport} | {:.1} | {target} | {verdict} |", kind.name(), mib(*peak))?;
        }
        Ok(())
    }

    fn requests(&self, text: &mut String) -> Result<()> {
        text.push_str("\nFUSE requests on the volume on disk, in the last round (one STATFS each is the question itself):\n\n| program | step | requests | the most frequent |\n|---|---|---:|---|\n");
        for (program, step, samples) in &self.steps {
            let Some(sample) = samples.iter().rev().find(|sample| sample.kind == Kind::Covey) else {
                continue;
            };
            let mut kinds: Vec<_> = sample.requests.iter().collect();
            kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let shown: Vec<_> =
                kinds.iter().take(KINDS_SHOWN).map(|(kind, count)| format!("{kind} {count}")).collect();
            let all: u64 = sample.requests.values().sum();
            writeln!(text, "| {program} | {step} | {all} | {} |", shown.join(", "))?;
        }
        Ok(())
    }

    /// The complete report as Markdown.
    ///
    /// # Errors
    /// Never in practice: writing to a string cannot fail.
    pub fn markdown(&self, facts: &[(&'static str, String)]) -> Result<String> {
        let mut text = String::from("# Six workloads\n\n");
        for (name, value) in facts {
            writeln!(text, "- {name}: {value}")?;
        }
        text.push('\n');
        for failure in &self.failures {
            writeln!(text, "- **failed**: {}", failure.replace('\n', " / "))?;
        }
        if self.failures.is_empty() {
            text.push_str("Nothing failed.\n");
        }
        text.push('\n');
        self.times(&mut text)?;
        self.facts_of_programs(&mut text)?;
        self.requests(&mut text)?;
        Ok(text)
    }

    fn raw(&self, facts: &[(&'static str, String)], lines: &Lines) -> Value {
        let facts: BTreeMap<_, _> = facts.iter().map(|(name, value)| (*name, value)).collect();
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|(program, step, samples)| {
                let samples: Vec<_> = samples.iter().map(raw_sample).collect();
                json!({ "program": program, "step": step, "samples": samples })
            })
            .collect();
        let programs: Vec<_> = self
            .programs
            .iter()
            .map(|p| json!({ "name": p.name, "commit": p.commit, "files": p.files, "bytes": p.bytes, "lines_of_code": p.lines }))
            .collect();
        let named = |of: &BTreeMap<Kind, Vec<(f64, u64)>>| -> BTreeMap<&'static str, Value> {
            let rounded = |line: &Vec<(f64, u64)>| {
                line.iter().map(|(at, bytes)| json!([(at * 100.0).round() / 100.0, bytes])).collect()
            };
            of.iter().map(|(kind, line)| (kind.name(), Value::Array(rounded(line)))).collect()
        };
        let peaks: BTreeMap<_, _> = self.peaks.iter().map(|(kind, bytes)| (kind.name(), bytes)).collect();
        json!({
            "facts": facts, "programs": programs, "failures": self.failures, "steps": steps, "peak_memory_bytes": peaks,
            "memory_bytes_at_s": named(&lines.memory), "stored_bytes_at_s": named(&lines.stored), "marks_at_s": lines.marks,
        })
    }

    /// Writes the table, the raw results and the charts into a separate folder. Returns the folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn keep(&self, results: &Path, facts: &[(&'static str, String)], lines: &Lines) -> Result<PathBuf> {
        let fact =
            |wanted| facts.iter().find(|(name, _)| *name == wanted).map_or("unknown", |(_, value)| value);
        let stem = format!("{}-{}", fact("date"), fact("host"));
        let (mut folder, mut number) = (results.join(&stem), 1);
        while folder.join("workloads.json").exists() || folder.join("README.md").exists() {
            number += 1;
            folder = results.join(format!("{stem}-{number}"));
        }
        fs::create_dir_all(&folder)?;
        let mut text = self.markdown(facts)?;
        let kinds: Vec<Kind> = [Kind::Ext4, Kind::Covey, Kind::Mem]
            .into_iter()
            .filter(|kind| self.steps.iter().any(|(_, _, samples)| samples.iter().any(|s| s.kind == *kind)))
            .collect();
        let steps: Vec<_> = TARGETS.iter().map(|(step, _)| (*step, self.bars(step, &kinds))).collect();
        if chart::times(&folder.join("times.svg"), &kinds, &steps)? {
            text.push_str("\n![Seconds for each step](times.svg)\n");
        }
        if chart::memory(&folder.join("memory.svg"), lines, MEMORY_TARGET_BYTES)? {
            text.push_str("\n![Memory and bytes on disk over time](memory.svg)\n");
        }
        fs::write(folder.join("README.md"), text)?;
        fs::write(folder.join("workloads.json"), serde_json::to_string(&self.raw(facts, lines))? + "\n")?;
        Ok(folder)
    }
}

fn raw_sample(sample: &Sample) -> Value {
    let Sample { kind, found, requests } = sample;
    let mut raw = json!({ "place": kind.name(), "seconds": found.spent.as_secs_f64() });
    if !requests.is_empty() {
        raw["requests"] = json!(requests);
    }
    if let Some((names, bytes)) = found.walked {
        raw["names"] = json!(names);
        raw["bytes"] = json!(bytes);
    }
    if let Some(said) = &found.git_status {
        raw["git_status_lines"] = json!(said.lines().count());
    }
    raw
}

/// The conditions of the run.
pub fn facts(covey: &Path, more: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
    };
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<_> =
        cpus.lines().filter_map(|line| line.strip_prefix("model name")?.split_once(": ")).collect();
    let mut facts = vec![
        ("date", said("date", &["-u", "+%F"])),
        ("host", said("uname", &["-n"])),
        ("kernel", said("uname", &["-srm"])),
        ("cpu", format!("{} x {}", models.len(), models.first().map_or("unknown", |(_, model)| model))),
        ("commit", said("git", &["describe", "--always", "--dirty", "--abbrev=12"])),
        ("version", said(&covey.to_string_lossy(), &["--version"])),
        ("load", fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()),
    ];
    facts.extend(more);
    facts
}

/// Bytes in MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
