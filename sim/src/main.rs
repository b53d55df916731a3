//! `covey-sim`: runs the world and prints the outcome.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use sim::model::{self, Model};
use sim::outcome::Outcome;
use sim::{flash, steady, zipf};

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
    /// All nodes read the same blobs in the same order, cold
    Flash {
        #[command(flatten)]
        common: Common,
        /// How many nodes of a thousand have a link ten times slower
        #[arg(long, default_value_t = 0)]
        slow: u32,
        /// How many nodes of a thousand crash within their first two seconds
        #[arg(long, default_value_t = 0)]
        crash: u32,
    },
    /// Each node reads by Zipf's law, 50 blobs a second, with room for 2,000
    Steady {
        #[command(flatten)]
        common: Common,
        /// How long to run; the second half counts
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// How many depots the zone has
        #[arg(long, default_value_t = 0)]
        depots: u32,
        /// How many blobs a depot has room for
        #[arg(long, default_value_t = 20_000)]
        depot_room: u32,
        /// The cost of fetching a blob again that a node's disk assumes: by the blob's source, or that of the
        /// origin for all
        #[arg(long, default_value = "tier")]
        costs: Costs,
    },
    /// One node's disk, no fleet: its eviction policy beside LRU, FIFO, S3-FIFO and one that knows the future
    Zipf {
        /// How many reads; the first quarter does not count
        #[arg(long, default_value_t = 1_000_000)]
        reads: usize,
        /// The seed of all random choices
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Also write the outcomes to this file, as JSON
        #[arg(long)]
        json: Option<PathBuf>,
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
    /// How nodes find the holders of a blob
    #[arg(long, default_value = "tracker")]
    holders: Holders,
    /// Milliseconds between rounds of gossip
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    gossip_ms: u64,
    /// The capacity of each link in megabits a second, each way
    #[arg(long, default_value_t = 25_000, value_parser = clap::value_parser!(u32).range(1..))]
    mbit: u32,
    /// Give nodes random weights of 50, 100 and 200, instead of equal ones
    #[arg(long)]
    mixed_weights: bool,
    /// The seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the outcomes to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Costs {
    /// By source, as a node does
    Tier,
    /// All as from the origin, for comparison
    Same,
}

#[derive(Clone, Copy, ValueEnum)]
enum Holders {
    /// They ask the blob's tracker
    Tracker,
    /// Every node has a table of all holders, spread by gossip
    Gossip,
    /// The same, and a node is in the table as soon as it begins to fetch
    GossipEarly,
}

impl Holders {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl Common {
    fn model(&self, nodes: u32, blobs: u32) -> Model {
        let gossip = |early| model::Holders::Gossip { period: 1_000 * self.gossip_ms, early };
        let holders = match self.holders {
            Holders::Tracker => model::Holders::Tracker,
            Holders::Gossip => gossip(false),
            Holders::GossipEarly => gossip(true),
        };
        let (link, mixed_weights) = (f64::from(self.mbit) / 8.0, self.mixed_weights);
        Model { holders, link, mixed_weights, ..Model::new(nodes, blobs, self.seed) }
    }

    /// For the title.
    fn said(&self) -> String {
        let holders = match self.holders {
            Holders::Tracker => String::new(),
            _ => format!(", holders by {} every {} ms", self.holders.name(), self.gossip_ms),
        };
        let weights = if self.mixed_weights { ", mixed weights" } else { "" };
        format!("{holders}{weights}")
    }
}

fn main() -> ExitCode {
    match Options::parse().what {
        What::Flash { common, slow, crash } => {
            let said = common.said();
            println!("flash crowd, slow {slow} and crashing {crash} of 1000{said}\n{}", Outcome::head());
            report(&common, 640, |model| {
                let model = Model { slow_per_mille: slow, crash_per_mille: crash, ..model };
                let outcome = flash::run(model);
                println!("{}", outcome.row());
                outcome
            })
        }
        What::Steady { common, seconds, depots, depot_room, costs } => {
            let same_cost = costs == Costs::Same;
            let same = if same_cost { ", all blobs cost the same" } else { "" };
            println!("steady, {seconds} s{}{same}\n{}", common.said(), Outcome::steady_head());
            report(&common, 100_000, |model| {
                let depots = model::Depots { count: depots, room: depot_room };
                let outcome = steady::run(Model { depots, same_cost, ..model }, seconds);
                println!("{}", outcome.steady_row());
                outcome
            })
        }
        What::Zipf { reads, seed, json } => {
            println!("eviction, {reads} reads\n{}", zipf::Row::head());
            let rows = zipf::run(reads, seed, |row| println!("{}", row.line()));
            let rows: Vec<Value> = rows.iter().map(zipf::Row::json).collect();
            keep(json.as_deref(), &json!({ "reads": reads, "seed": seed, "runs": rows }))
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
        rows.push(run(common.model(*nodes, blobs)).json());
    }
    keep(
        common.json.as_deref(),
        &json!({ "holders": common.holders.name(), "gossip_ms": common.gossip_ms, "mbit": common.mbit, "runs": rows }),
    )
}

fn keep(path: Option<&Path>, outcome: &Value) -> ExitCode {
    let Some(path) = path else { return ExitCode::SUCCESS };
    match fs::write(path, format!("{outcome:#}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("covey-sim: cannot write {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
