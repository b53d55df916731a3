//! A sort over several nodes, in two phases as 3FS's GraySort: a shuffle by prefixes of keys, then a sort of
//! each part. Each node has a volume of its own and a process of its own. It publishes what it wrote for the
//! others, and mounts what they wrote for it. So all data goes through mounts, and nothing but the nodes
//! touches it.
//!
//! | step | what each node does |
//! |---|---|
//! | generate | makes its records, in its volume |
//! | partition | splits them by key into parts, in its volume |
//! | exchange | publishes its parts, then mounts those of all other nodes |
//! | sort | reads the parts of its share from all nodes, sorts each, writes it, and makes it durable |
//!
//! A step takes as long as its slowest node. At the end, not timed, the order, the number of records and the
//! sum of their CRC-32 are compared with the input ([`check`]). It is a sort of the shape of GraySort, not a
//! result of that benchmark, which begins at 100 TB.

mod check;
mod cluster;
mod others;
mod phases;
mod records;
mod show;
pub mod worker;

use std::path::PathBuf;
use std::time::Duration;

use base::time::monotonic;

use self::check::Summary;
use self::cluster::Cluster;
use self::records::Form;
use self::show::Show;
use crate::Result;
use crate::run::{Bench, Common};
use crate::sheet::{Bound, Sheet};

/// A part is sorted in memory, so it has at most about as many MiB.
const PART_MIB: u64 = 128;
const COVEY: &str = "Covey";
const LIMIT: &str = "limit";
/// FasterFS.
const SEED: &str = "seed";
const STEPS: [&str; 4] = ["generate", "partition", "exchange", "sort"];
/// Partition and exchange: what a sort needs before it can begin to sort.
const SHUFFLE: &str = "partition and exchange";
const TOTAL: &str = "all steps";

/// Sorts records over several nodes, each with its own volume
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The number of nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// MB of records of each node [default: 50; with --quick 5]
    #[arg(long)]
    mb: Option<u64>,
    /// The records: plain (64 bytes with a key of 8), or gensort (100 bytes with a key of 10)
    #[arg(long, value_enum, default_value = "plain")]
    form: Form,
    /// The bandwidth of each node's link in Mbit/s [default: as fast as this machine]
    #[arg(long)]
    mbit: Option<u64>,
    /// With gensort records: sort the same ones with GNU sort on this machine's disk, too
    #[arg(long)]
    gnu: bool,
    /// With gensort records: a Python that has duckdb, to sort the same ones with it, too
    #[arg(long, value_name = "PROGRAM")]
    duckdb: Option<PathBuf>,
}

/// Runs it.
///
/// # Errors
/// This machine has no namespaces, a node failed, or what was sorted is wrong.
pub fn run(args: &Args) -> Result<()> {
    let others = usize::from(args.gnu) + usize::from(args.duckdb.is_some());
    let mut show = Show::new(args.common.rounds() * (2 + STEPS.len() + others));
    let done = measure(args, &mut show);
    show.end(&done);
    done
}

fn measure(args: &Args, show: &mut Show) -> Result<()> {
    if args.form == Form::Plain && (args.gnu || args.duckdb.is_some()) {
        return Err("GNU sort and DuckDB sort lines: add --form gensort".into());
    }
    let bench = Bench::begin(&args.common)?;
    if let Some(lacking) = nets::lacking() {
        return Err(format!("this machine lacks {lacking}, which network namespaces need").into());
    }
    nets::use_program(bench.covey.clone());
    let mb = args.mb.unwrap_or(args.common.size(50, 5));
    let records = mb * 1_000_000 / args.form.size() as u64;
    let parts = mb.div_ceil(PART_MIB).max(1) as usize;
    let mut sheet = bench.sheet("sort", "A sort over several nodes, through their mounts");
    sheet.fact("nodes", &args.nodes.to_string());
    sheet.fact("records", &format!("{records} of {} bytes on each node", args.form.size()));
    sheet.fact(
        "links",
        &args.mbit.map_or("as fast as this machine".to_owned(), |mbit| format!("{mbit} Mbit/s")),
    );
    sheet.columns([COVEY.to_owned()]);
    for round in 0..bench.common.rounds() {
        covey(args, records, parts, round, &mut sheet, show)?;
        others::measure(args, &bench, records * u64::from(args.nodes), &mut sheet, show)?;
        crate::interrupt::check()?;
    }
    let (gnu, duckdb) = (args.gnu.then_some(others::GNU), args.duckdb.is_some().then_some(others::DUCKDB));
    sheet.chart_ratios(COVEY, &gnu.into_iter().chain(duckdb).collect::<Vec<_>>());
    if (args.form, args.nodes, mb) == (Form::Plain, 2, 50) {
        compare(&mut sheet);
    }
    let (head, rows) = sheet.cells();
    show.table(&head, &rows);
    bench.finish(sheet, Vec::new())
}

/// Adds what this sort is compared with.
fn compare(sheet: &mut Sheet) {
    sheet.columns([LIMIT.to_owned(), SEED.to_owned()]);
    for (row, limit) in [(TOTAL, 1.5), (SHUFFLE, 0.5)] {
        sheet.add(row, LIMIT, &[("", "s", limit)], 0.0);
        sheet.target(row, COVEY, LIMIT, Bound::AtMost(1.0));
    }
    for (row, seconds) in [("partition", 13.69), (TOTAL, 15.18)] {
        sheet.add(row, SEED, &[("", "s", seconds)], 0.0);
    }
    sheet.chart_ratios(COVEY, &[LIMIT, SEED]);
    sheet.note("The seed is FasterFS, a prototype in Python. It states its figures for its own machines.");
}

/// One round: all steps on new nodes.
fn covey(
    args: &Args,
    records: u64,
    parts: usize,
    round: usize,
    sheet: &mut Sheet,
    show: &mut Show,
) -> Result<()> {
    show.step(&format!("round {}: starting the nodes", round + 1));
    let mut cluster = Cluster::start(args, records, parts)?;
    rustix::fs::sync();
    let (mut total, mut shuffle, mut cpu) = (Duration::ZERO, Duration::ZERO, cluster.cpu_seconds());
    for step in STEPS {
        crate::interrupt::check()?;
        show.step(&format!("round {}: {step}", round + 1));
        let begun = monotonic();
        let each: Vec<f64> = match step {
            "exchange" => cluster.exchange()?,
            step => cluster.step(step)?.into_iter().map(|(_, seconds)| seconds).collect(),
        };
        let took = begun.elapsed();
        for (node, seconds) in each.into_iter().enumerate() {
            show.point(step, node + 1, seconds);
        }
        total += took;
        if matches!(step, "partition" | "exchange") {
            shuffle += took;
        }
        let now = cluster.cpu_seconds();
        sheet.add(step, COVEY, &[("", "s", took.as_secs_f64())], now - cpu);
        cpu = now;
    }
    sheet.add(SHUFFLE, COVEY, &[("", "s", shuffle.as_secs_f64())], 0.0);
    sheet.add(TOTAL, COVEY, &[("", "s", total.as_secs_f64())], 0.0);
    let bytes = records * u64::from(args.nodes) * args.form.size() as u64;
    sheet.add("rate of all steps", COVEY, &[("", "MB/s", bytes as f64 / 1e6 / total.as_secs_f64())], 0.0);
    let from_store = cluster.bytes_from_store() as f64 / 1e6;
    sheet.add("bytes from the store", COVEY, &[("", "MB", from_store)], 0.0);
    show.step(&format!("round {}: checking", round + 1));
    let (mut input, mut sorted) = (Summary::new(args.form), Summary::new(args.form));
    for (found, _) in cluster.step("summary")? {
        input.join(&Summary::from_json(args.form, &found["input"])?);
        sorted.join(&Summary::from_json(args.form, &found["sorted"])?);
    }
    sorted.must_be_sorted_from(&input)?;
    if sorted.records() != records * u64::from(args.nodes) {
        return Err(format!("{} records were made, not {records} on each node", sorted.records()).into());
    }
    sheet.fact("checksum of the records", &format!("{:x}, before and after", sorted.checksum()));
    cluster.end()
}
