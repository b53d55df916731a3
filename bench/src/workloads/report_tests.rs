//! Tests of the table's arithmetic, and that saved results can be read.

use std::time::Duration;

use super::*;

fn found(seconds: f64) -> Found {
    Found { spent: Duration::from_secs_f64(seconds), ..Found::default() }
}

fn some() -> Samples {
    let mut samples = Samples::default();
    let (name, commit) = ("redis".to_owned(), "0123".to_owned());
    samples.programs.push(Program { name, commit, files: 3, bytes: 10, lines: 2 });
    for (kind, clone, configure, build) in [(Kind::Ext4, 1.0, 1.0, 9.0), (Kind::Covey, 1.4, 2.0, 10.0)] {
        for wobble in [-0.1, 0.0, 0.2] {
            let counts =
                if kind == Kind::Covey { Counts::from([("LOOKUP".to_owned(), 7)]) } else { Counts::new() };
            samples.add("redis", "clone", kind, found(clone + wobble), counts);
        }
        samples.add("redis", "configure", kind, found(configure), Counts::new());
        samples.add("redis", "build", kind, found(build), Counts::new());
    }
    samples.peaks.insert(Kind::Covey, 120 << 20);
    samples
}

#[test]
fn the_table_holds_medians_ratios_and_verdicts() {
    let text = some().markdown(&[("date", "2026-11-21".to_owned())]).unwrap();
    for line in [
        "| redis | clone | 1.000 | 1.400 | - | 1.40 | - | 1.50 | met |",
        "| redis | configure + build | 10.000 | 12.000 | - | 1.20 | - | 1.05 | missed |",
        "| all | clone | 1.000 | 1.400 | - | 1.40 | - | 1.50 | met |",
        "| covey |  | 120.0 | 100 | missed |",
        "| redis | clone | 7 | LOOKUP 7 |",
        "Nothing failed.",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn another_git_status_than_on_ext4_is_a_failure() {
    let mut samples = Samples::default();
    for (kind, said) in [(Kind::Ext4, "?? a\n"), (Kind::Covey, "?? a\n"), (Kind::Mem, "?? a\n M b\n")] {
        let found = Found { git_status: Some(said.to_owned()), ..Found::default() };
        samples.add("redis", "git status, built", kind, found, Counts::new());
    }
    samples.compare_git_status();
    assert_eq!(samples.failures.len(), 1, "{:?}", samples.failures);
    assert!(samples.failures[0].contains("on mem") && samples.failures[0].contains(" M b"));
}

#[test]
fn what_is_kept_can_be_read_and_nothing_is_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let facts = [("date", "2026-11-21".to_owned()), ("host", "here".to_owned())];
    let line = vec![(0.0, 1 << 20), (1.0, 5 << 20)];
    let lines = Lines {
        memory: BTreeMap::from([(Kind::Covey, line.clone())]),
        stored: BTreeMap::from([(Kind::Ext4, line.clone()), (Kind::Covey, line)]),
        marks: vec![(0.0, "redis".to_owned())],
    };
    let first = some().keep(scratch.path(), &facts, &lines).unwrap();
    let second = some().keep(scratch.path(), &facts, &lines).unwrap();
    assert_ne!(first, second);
    let raw: Value = serde_json::from_slice(&fs::read(first.join("workloads.json")).unwrap()).unwrap();
    assert_eq!(raw["steps"][0]["samples"].as_array().unwrap().len(), 6);
    for (name, words) in [("times.svg", "redis"), ("memory.svg", "covey")] {
        let svg = fs::read_to_string(first.join(name)).unwrap();
        assert!(svg.contains("<svg") && svg.contains(words), "{name}");
    }
}
