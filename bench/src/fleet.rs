//! The fleet: several nodes on this machine, each a `covey` process in a network namespace of its own, on one
//! S3 server ([`nets`]).
//!
//! - *flash* (P4): 1, 2, 4, 8 nodes start to read the same tree at once, cold. How often is the store asked
//!   for a blob, and when is the last node done, compared with a single node?
//! - *scale* (P5): the same data set, and each node starts at a different place in it: the total rate against
//!   one node's.
//! - *tiers* (P3): cold reads of 128 KiB, 1 to 256 readers per node, from a peer, from the depot, from a
//!   depot 1 ms away, and from the store. The first three need a program that knows `--join`.
//! - *start* (P7): a container starts from a published root, on 1 and on 8 nodes, compared with unpacking a
//!   tar of it first.
//!
//! Links have a limited rate, because eight nodes on one machine share its processors: with links slower than
//! those, a figure shows the protocol and not the processors. The store answers after a lognormal time
//! (median 30 ms) and sends 100 MB/s per request. The machine's one disk holds the caches of all nodes, or
//! each cache is in memory (`--caches memory`), because the nodes of a real fleet do not share a disk. Each
//! part is a figure of its own in the results.

mod crowd;
mod start;
mod tiers;

use std::path::PathBuf;
use std::time::Duration;

use nets::{Fleet, How, Tree};

use crate::Result;
use crate::run::{Bench, Common};

/// A typical program: an interpreter that reads a few hundred small files before it prints anything.
const START: &str =
    "exec python3 -c 'import asyncio, email, http.client, json, sqlite3, ssl, xml.dom.minidom; print(42)'";
/// The median time to the store's first byte.
const FIRST_BYTE: Duration = Duration::from_millis(30);

/// As large as a disk, because caches keep a part of it free. Only the contents use memory.
const ROOM: u64 = 64 << 30;

/// P3, P4, P5, P7: several nodes in network namespaces
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Which parts: flash, scale, tiers, start
    #[arg(long, value_delimiter = ',', default_value = "flash,scale,tiers,start")]
    part: Vec<Part>,
    /// Numbers of nodes that read at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8], value_parser = clap::value_parser!(u8).range(1..=32))]
    nodes: Vec<u8>,
    /// Concurrent readers on each node, of the part tiers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256])]
    readers: Vec<u64>,
    /// Size of the tree in MiB [default: 1024; with --quick 64]
    #[arg(long)]
    mib: Option<u64>,
    /// The bandwidth of each node's link in Mbit/s [default: 200]
    #[arg(long, default_value_t = 200)]
    mbit: u64,
    /// Where each node's cache is, in the parts flash and scale: disk (one disk of this machine), or memory
    /// (a tmpfs each)
    #[arg(long, value_enum, default_value = "disk")]
    caches: Caches,
    /// The root to start from, in the part start; scripts/start-root makes one
    #[arg(long)]
    root: Option<PathBuf>,
    /// The command to start in it: a line for its shell that prints something
    #[arg(long, default_value = START)]
    start: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Flash,
    Scale,
    Tiers,
    Start,
}

/// Where nodes keep their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Caches {
    /// Folders of one disk.
    Disk,
    /// A tmpfs each, as if each node had a disk of its own that is faster than its link.
    Memory,
}

impl Caches {
    /// The text in results.
    fn words(self) -> &'static str {
        match self {
            Caches::Disk => "on this machine's disk, one for all",
            Caches::Memory => "a tmpfs for each node",
        }
    }
}

/// Measures the selected parts.
///
/// # Errors
/// This machine has no namespaces, a node failed, or the results cannot be kept.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    if let Some(lacking) = nets::lacking() {
        return Err(format!("this machine lacks {lacking}, which network namespaces need").into());
    }
    nets::use_program(bench.covey.clone());
    let tree = std::cell::OnceCell::new();
    let tree = || *tree.get_or_init(|| crowd::tree(args));
    for part in &args.part {
        match part {
            Part::Flash => crowd::flash(args, &bench, tree())?,
            Part::Scale => crowd::scale(args, &bench, tree())?,
            Part::Tiers => tiers::run(args, &bench, tree())?,
            Part::Start => start::run(args, &bench)?,
        }
    }
    Ok(())
}

/// The column's name for a number of nodes.
fn column(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

/// Running nodes with limited links, on a store with realistic delays that has had no request yet.
fn started(args: &Args, tree: &'static Tree, nodes: usize, seed: u64) -> Fleet {
    let mut how = How::default();
    if let Some(options) = &args.common.options {
        how = how.with(options);
    }
    let mut fleet = Fleet::joined(tree, nodes, seed, &how);
    fleet.store.be_like_a_store(FIRST_BYTE);
    if args.caches == Caches::Memory {
        fleet.nodes.iter().for_each(|node| node.cache_on_tmpfs(ROOM));
    }
    fleet.start();
    for node in &fleet.nodes {
        node.port.shape(Some(args.mbit * 1_000_000));
    }
    fleet.store.forget();
    // Data written so far (a tree of 1 GiB) must not be flushed to the disk during the measurement.
    rustix::fs::sync();
    fleet
}

/// Adds the facts that every table of a fleet has.
fn facts(args: &Args, sheet: &mut crate::sheet::Sheet) {
    sheet.fact("links", &format!("{} Mbit/s each way", args.mbit));
    sheet.fact("nodes know one another", "yes");
}
