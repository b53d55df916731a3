//! Draws what `make sim` wrote: `cargo run --release --package covey-sim --example charts -- FOLDER`.
//!
//! It is an example, so that the simulation itself draws nothing and is quick to build. The drawing code is
//! that of the benches. If an outcome is missing, it is left out of its chart.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

// The benches need more of it.
#[allow(dead_code)]
#[path = "../../bench/src/chart.rs"]
mod chart;

use chart::Lines;

/// Errors are shown to the caller.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What is shown of a run.
#[derive(Clone, Copy)]
enum Of {
    /// A figure, and its divisor.
    Figure(&'static str, f64),
    /// How many of 100 reads are these.
    Reads(&'static [&'static str]),
}

impl Of {
    fn value(self, run: &Value) -> Option<f64> {
        let figure = |name: &str| run.get(name)?.as_f64();
        match self {
            Of::Figure(name, by) => Some(figure(name)? / by),
            Of::Reads(names) => {
                let counts: Option<Vec<f64>> = names.iter().map(|name| figure(name)).collect();
                Some(100.0 * counts?.iter().sum::<f64>() / figure("reads")?)
            }
        }
    }
}

/// A line's name, the file of its outcome, and what it shows.
type Line = (&'static str, &'static str, Of);

/// A file's name, the title of the chart, and what it counts.
type Head = (&'static str, &'static str, &'static str);

const SECONDS: Of = Of::Figure("seconds_whole_links", 1.0);
const GETS: Of = Of::Figure("gets_per_blob", 1.0);
const COORDINATION: Of = Of::Figure("coordination_bytes_per_node_s", 1e3);
const OWN: Of = Of::Reads(&["local"]);
const OTHERS: Of = Of::Reads(&["from_peers", "streamed"]);
const DEPOTS: Of = Of::Reads(&["from_depots"]);
const ORIGIN: Of = Of::Reads(&["from_origin"]);

/// Lines that show the same for several outcomes.
fn each(of: Of, lines: &[(&'static str, &'static str)]) -> Vec<Line> {
    lines.iter().map(|(name, file)| (*name, *file, of)).collect()
}

fn charts() -> Vec<(Head, Vec<Line>)> {
    let crowds = |of| {
        each(
            of,
            &[
                ("320 blobs", "flash.json"),
                ("64 blobs", "flash-64.json"),
                ("320 blobs, one node of 20 is slow", "flash-slow.json"),
                ("320 blobs, and one of 10 crashes", "flash-faults.json"),
                ("64 blobs, slow nodes and crashes", "flash-faults-64.json"),
            ],
        )
    };
    let holders = |of| {
        each(
            of,
            &[
                ("tracker", "holders-tracker.json"),
                ("table, every 200 ms", "holders-gossip.json"),
                ("the same, in it from the beginning", "holders-gossip-early.json"),
                ("the same, every 20 ms", "holders-gossip-early-20ms.json"),
            ],
        )
    };
    let tiers = vec![
        ("own disk", "steady-long.json", OWN),
        ("other nodes", "steady-long.json", OTHERS),
        ("origin", "steady-long.json", ORIGIN),
        ("own disk, all cost the same", "steady-same.json", OWN),
        ("other nodes, all cost the same", "steady-same.json", OTHERS),
        ("origin, all cost the same", "steady-same.json", ORIGIN),
    ];
    let depot = vec![
        ("own disk", "steady-depot.json", OWN),
        ("other nodes", "steady-depot.json", OTHERS),
        ("depot", "steady-depot.json", DEPOTS),
        ("own disk, all cost the same", "steady-depot-same.json", OWN),
        ("other nodes, all cost the same", "steady-depot-same.json", OTHERS),
        ("depot, all cost the same", "steady-depot-same.json", DEPOTS),
    ];
    let kb = "kB a node and second";
    vec![
        (
            ("flash-seconds.svg", "P4, simulated: the last node with a whole link is done", "s"),
            crowds(SECONDS),
        ),
        (("flash-gets.svg", "P4, simulated: GETs for a blob", "GETs"), crowds(GETS)),
        (("flash-coordination.svg", "P4, simulated: coordination", kb), crowds(COORDINATION)),
        (("holders-gets.svg", "A crowd that reads 64 blobs: GETs for a blob", "GETs"), holders(GETS)),
        (
            ("holders-coordination.svg", "A crowd that reads 64 blobs: coordination", kb),
            holders(COORDINATION),
        ),
        (("tiers.svg", "P6, simulated: where reads find their blob, without depots", "% of reads"), tiers),
        (("tiers-depot.svg", "P6, simulated: the same with one depot", "% of reads"), depot),
    ]
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("charts: which folder? The one that make sim wrote");
        return ExitCode::FAILURE;
    };
    for (head, lines) in charts() {
        if let Err(error) = draw(Path::new(&folder), head, &lines) {
            eprintln!("charts: {}: {error}", head.0);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn draw(folder: &Path, (name, title, counts): Head, lines: &[Line]) -> Result<()> {
    let mut series = Vec::new();
    for (line, file, of) in lines {
        let path = folder.join(file);
        if path.exists() {
            series.push(((*line).to_owned(), points(&path, *of)?));
        }
    }
    if series.is_empty() {
        return Ok(());
    }
    let axes = ("nodes".to_owned(), counts.to_owned());
    let path = folder.join(name);
    std::fs::write(&path, chart::lines(&Lines { title: title.to_owned(), axes, series })?)?;
    println!("{}", path.display());
    Ok(())
}

/// By the number of nodes. A value of 0 cannot be shown on a logarithmic axis.
fn points(path: &Path, of: Of) -> Result<Vec<(f64, f64)>> {
    let outcome: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let runs = outcome.get("runs").and_then(Value::as_array);
    let runs = runs.ok_or_else(|| format!("{}: not what covey-sim writes", path.display()))?;
    let point = |run: &Value| Some((run.get("nodes")?.as_f64()?, of.value(run)?));
    Ok(runs.iter().filter_map(point).filter(|(_, value)| *value > 0.0).collect())
}
