//! The basic figures: what everyday work costs on Covey, on ext4, on tmpfs and on a FUSE filesystem that does nothing.
//!
//! ```text
//! make bench-basic                                       all of it, five rounds; root
//! cargo run --release -p covey-bench -- --only untar --rounds 9
//! ```
//!
//! All places are measured in one run, in turns, each cell once a round, so that whatever else the machine does hits them
//! alike; a figure is the median of its rounds and a ratio is one of two medians. The order of the places changes from round
//! to round. Ext4 is a fresh one in an image file on the disk that also holds Covey's volume. Bytes are fresh random ones:
//! a store that keeps equal blobs once gets nothing for free.
//!
//! - [`place`]: what is measured on.
//! - [`cells`]: what is measured.
//! - [`workloads`]: `covey-bench workloads`, six real programs.
//! - [`report`]: the table, and the raw results kept in `bench/results`.

mod cells;
mod place;
mod report;
mod work;
mod workloads;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use cells::{CELLS, Inputs};
use place::{Kind, Place, Switch};
use report::Samples;

/// What goes wrong ends the run with a sentence.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures Covey beside ext4, tmpfs and an empty FUSE filesystem, and keeps the raw results
#[derive(Debug, Parser)]
struct Args {
    /// The program to measure
    #[arg(long, default_value = "target/release/covey")]
    covey: PathBuf,
    /// How often each cell is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only cells whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Options for `covey mount -o`
    #[arg(long)]
    options: Option<String>,
    /// How the kernel's requests reach Covey and the empty filesystem: uring, classic or auto
    #[arg(long, default_value_t = fuse::Transport::Uring)]
    transport: fuse::Transport,
    /// Where to work; its disk is the one that is measured
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Where raw results go, in a folder of their own; `none` keeps none
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
    /// A tree to pack and to clone
    #[arg(long, default_value = "/usr/include")]
    tree: PathBuf,
    /// Size of the large file in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Serves the empty filesystem here until it is unmounted (the bench starts itself so)
    #[arg(long, hide = true)]
    serve_null: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.peek().is_some_and(|word| word == "workloads") {
        return workloads::main(words);
    }
    let args = Args::parse();
    let done = match &args.serve_null {
        Some(mountpoint) => place::serve_null(mountpoint, args.transport),
        None => run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("covey-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("it mounts an ext4 and a tmpfs to compare with: run it as root".into());
    }
    let covey = args
        .covey
        .canonicalize()
        .map_err(|error| format!("{}: {error}; run `make build` first", args.covey.display()))?;
    let below = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = tempfile::Builder::new().prefix("covey-bench-").tempdir_in(below)?;
    let inputs = Inputs::make(scratch.path(), &args.tree, args.mib)?;
    let switch = Switch::as_it_is();
    let mut places = Vec::new();
    for kind in Kind::ALL {
        places.push(Place::set_up(kind, scratch.path(), &covey, (args.options.as_deref(), args.transport))?);
    }
    let mut samples = Samples::default();
    let terminal = std::io::stderr().is_terminal();
    for round in 0..args.rounds {
        for cell in CELLS
            .iter()
            .filter(|cell| args.only.as_ref().is_none_or(|only| cell.name.contains(only.as_str())))
        {
            let count = places.len();
            for turn in 0..count {
                let place = &mut places[(turn + round) % count];
                if !cell.runs_on(place.kind) {
                    continue;
                }
                if terminal {
                    eprint!(
                        "\r\x1b[Kround {} of {}: {} on {}",
                        round + 1,
                        args.rounds,
                        cell.name,
                        place.kind.name()
                    );
                }
                let cpu = place.cpu_seconds();
                let figures = cell.measure(place, &inputs)?;
                samples.add(cell.name, place.kind, &figures, place.cpu_seconds() - cpu);
            }
        }
    }
    if terminal {
        eprintln!("\r\x1b[K");
    }
    for place in places {
        place.tear_down()?;
    }
    drop(switch);
    let report = samples.report(args.rounds, &covey, args.transport)?;
    println!("{}", report.markdown);
    if args.results.as_os_str() != "none" {
        println!("kept in {}", report.keep(&args.results)?.display());
    }
    Ok(())
}
