//! P6: charts of the output of `covey-sim zipf`. For each kind of reads: hits by the size of a node's disk,
//! with a line for each eviction policy.
//!
//! The simulation itself draws nothing, so that it stays fast to build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Result;
use crate::chart::{self, Lines};

/// P6: charts of the output of `covey-sim zipf --json FILE`, written beside that file
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The JSON file
    file: PathBuf,
}

/// Points by policy.
type ByPolicy<'t> = BTreeMap<&'t str, Vec<(f64, f64)>>;

/// Draws them.
///
/// # Errors
/// The file is not the simulation's output, or its folder cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", args.file.display());
    let text = std::fs::read(&args.file).map_err(|error| named(&error))?;
    let outcome: Value = serde_json::from_slice(&text).map_err(|error| named(&error))?;
    let charts = charts(&outcome).ok_or_else(|| named(&"not what covey-sim zipf --json writes"))?;
    let folder = args.file.parent().unwrap_or(Path::new("."));
    for (name, lines) in charts {
        let path = folder.join(name);
        std::fs::write(&path, chart::lines(&lines)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// A file name and its chart for each kind of reads, in order; none if data is missing.
fn charts(outcome: &Value) -> Option<Vec<(String, Lines)>> {
    let mut kinds: Vec<(&str, ByPolicy<'_>)> = Vec::new();
    for run in outcome.get("runs")?.as_array()? {
        let (kind, room) = (run.get("trace")?.as_str()?, run.get("room_percent")?.as_f64()?);
        if kinds.last().is_none_or(|(last, _)| *last != kind) {
            kinds.push((kind, BTreeMap::new()));
        }
        for (policy, score) in run.get("policies")?.as_object()? {
            let point = (room, 100.0 * score.get("hits")?.as_f64()?);
            kinds.last_mut()?.1.entry(policy).or_default().push(point);
        }
    }
    let chart = |(kind, lines): (&str, ByPolicy<'_>)| {
        let axes = ("room, % of all blobs' bytes".to_owned(), "hits, % of reads".to_owned());
        let series = lines.into_iter().map(|(policy, points)| (policy.to_owned(), points)).collect();
        (file(kind), Lines { title: format!("P6, {kind}: hits on a node's own disk"), axes, series })
    };
    Some(kinds.into_iter().map(chart).collect())
}

/// `zipf-0.9-scans.svg` for "Zipf 0.9, scans".
fn file(kind: &str) -> String {
    let word = |c: char| if c.is_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { ' ' };
    let words: String = kind.chars().map(word).collect();
    format!("{}.svg", words.split_whitespace().collect::<Vec<_>>().join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_for_each_kind_of_reads() {
        let run = |kind: &str, room: u64| {
            serde_json::json!({ "trace": kind, "room_percent": room,
                "policies": { "LRU": { "hits": 0.25 }, "covey": { "hits": 0.5 } } })
        };
        let runs = [run("Zipf 0.9", 1), run("Zipf 0.9", 5), run("Zipf 0.9, scans", 1)];
        let charts = charts(&serde_json::json!({ "runs": runs })).unwrap();
        let names: Vec<&str> = charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["zipf-0.9.svg", "zipf-0.9-scans.svg"]);
        assert_eq!(charts[0].1.series[0], ("LRU".to_owned(), vec![(1.0, 25.0), (5.0, 25.0)]));
        assert!(super::charts(&serde_json::json!({ "runs": [{}] })).is_none());
    }
}
