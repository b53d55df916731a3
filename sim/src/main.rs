//! `covey-sim`: runs the world and prints what came of it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};
use sim::model::Model;
use sim::outcome::Outcome;
use sim::{flash, steady};

#[derive(Parser)]
#[command(
    name = "covey-sim",
    about = "Up to ten thousand nodes with the fleet's own tracker, in one thread, by a seed"
)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// All read the same blobs in the same order, cold
    Flash {
        #[command(flatten)]
        common: Common,
        /// So many nodes of a thousand have a link ten times slower
        #[arg(long, default_value_t = 0)]
        slow: u32,
        /// So many nodes of a thousand crash within their first two seconds
        #[arg(long, default_value_t = 0)]
        crash: u32,
    },
    /// Each reads by Zipf's law, 50 blobs a second, with room for 2,000
    Steady {
        #[command(flatten)]
        common: Common,
        /// How long; the second half counts
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
}

#[derive(Args)]
struct Common {
    /// How many nodes, one run for each
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    nodes: Vec<u32>,
    /// How many blobs of 4 MiB
    #[arg(long)]
    blobs: Option<u32>,
    /// What decides all that is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the outcomes there, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match Options::parse().what {
        What::Flash { common, slow, crash } => {
            println!("flash crowd, slow {slow} and crashing {crash} of 1000\n{}", Outcome::head());
            report(&common, 640, |model| {
                let model = Model { slow_per_mille: slow, crash_per_mille: crash, ..model };
                let outcome = flash::run(model);
                println!("{}", outcome.row());
                outcome
            })
        }
        What::Steady { common, seconds } => {
            println!("steady, {seconds} s\n{}", Outcome::steady_head());
            report(&common, 100_000, |model| {
                let outcome = steady::run(model, seconds);
                println!("{}", outcome.steady_row());
                outcome
            })
        }
    }
}

fn report(common: &Common, blobs: u32, run: impl Fn(Model) -> Outcome) -> ExitCode {
    let blobs = common.blobs.unwrap_or(blobs);
    if blobs == 0 || common.nodes.contains(&0) {
        eprintln!("covey-sim: --nodes and --blobs must be at least 1");
        return ExitCode::FAILURE;
    }
    let mut rows: Vec<Value> = Vec::new();
    for nodes in &common.nodes {
        rows.push(run(Model::new(*nodes, blobs, common.seed)).json());
    }
    let Some(path) = &common.json else { return ExitCode::SUCCESS };
    match fs::write(path, format!("{:#}\n", json!({ "runs": rows }))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("covey-sim: cannot write {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
