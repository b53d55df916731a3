//! The commands of docs/OPERATING.md, which tests run as they are.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::program::{Finished, covey, run};

/// The manual.
pub fn operating() -> String {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPERATING.md");
    std::fs::read_to_string(manual).unwrap()
}

/// The blocks of commands below a heading of the manual, up to the next heading.
pub fn blocks(heading: &str) -> Vec<String> {
    let manual = operating();
    let (_, rest) = manual.split_once(&format!("\n### {heading}\n")).expect("the manual has this heading");
    let text = rest.split("\n##").next().unwrap_or_default();
    text.split("\n```").skip(1).step_by(2).map(str::to_owned).collect()
}

/// Runs commands in bash, until one fails. `covey` is the program under test.
pub fn bash(script: &str, folder: &Path, variables: &[(&str, &str)]) -> Finished {
    let covey = covey();
    let mut bash = Command::new("bash");
    bash.args(["-euc", script]).current_dir(folder).envs(variables.iter().copied());
    bash.envs(covey.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let beside = Path::new(covey.get_program()).parent().unwrap_or(Path::new("/"));
    let path = std::env::var("PATH").unwrap_or_default();
    bash.env("PATH", format!("{}:{path}", beside.display()));
    run(&mut bash, Duration::from_secs(120))
}
