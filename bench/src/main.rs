//! The published figures: what work costs on Covey, and on the systems that it is compared with.
//!
//! ```text
//! make bench                                             all of it
//! cargo run --release -p covey-bench -- operations --rounds 9
//! ```
//!
//! All places are measured in one run, in turns ([`run`]). A figure is the median of its rounds, and a ratio
//! is one of two medians. The ext4 is a new one in an image file, on the disk that also holds Covey's volume.
//! All bytes are new random ones, so a store that keeps equal blobs once gains nothing. Targets are printed
//! with whether they are met, and never asserted.
//!
//! - A figure each: [`basic`], [`tail`] (F1), [`parallel`] (F2), [`operations`] (F3), [`writes`] (F4),
//!   [`workloads`] (F5), [`peers`] (F6), [`metadata`] (F7), [`origin`] (over an S3 store), [`fleet`] (P3, P4,
//!   P5, P7: several nodes in network namespaces), [`gateway`] (the S3 gateway beside MinIO).
//! - [`sort`]: a sort over several nodes, through their mounts.
//! - [`lobster`]: synthetic market data, for demonstrations and tests.
//! - [`zipf`] (P6): charts of the simulation's results.
//! - [`cells`]: work that several of them use.
//! - [`place`], [`peer`], [`store`]: the systems that are measured. [`relay`]: the requests to a store.
//!   [`process`]: the resources that servers use. [`interrupt`]: Ctrl-C.
//! - [`sheet`], [`chart`], [`machine`]: tables, targets, charts, and raw results, saved in `bench/results`.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod basic;
mod cells;
mod chart;
mod fleet;
mod gateway;
mod interrupt;
mod lobster;
mod machine;
mod metadata;
mod operations;
mod origin;
mod parallel;
mod peer;
mod peers;
mod place;
mod process;
mod relay;
mod run;
mod sheet;
mod sort;
mod store;
mod tail;
mod transport;
mod work;
mod workloads;
mod writes;
mod zipf;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An error ends the run with a message.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures Covey, ext4, tmpfs, an empty FUSE filesystem and peers, and saves the raw results
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    figure: Figure,
}

#[derive(Debug, Subcommand)]
enum Figure {
    Basic(basic::Args),
    Parallel(parallel::Args),
    Operations(operations::Args),
    Writes(writes::Args),
    Tail(tail::Args),
    Metadata(metadata::Args),
    Peers(peers::Args),
    Origin(origin::Args),
    Fleet(fleet::Args),
    Workloads(workloads::Args),
    Transport(transport::Args),
    ZipfChart(zipf::Args),
    Lobster(lobster::Args),
    S3(gateway::Args),
    Sort(sort::Args),
    #[command(hide = true)]
    SortWorker(sort::worker::Args),
    #[command(hide = true)]
    TransportServe(transport::ServeArgs),
    #[command(hide = true)]
    TransportAsk(transport::AskArgs),
    /// Serves the empty filesystem until it is unmounted (used by the bench itself)
    #[command(hide = true)]
    ServeNull {
        mountpoint: PathBuf,
        #[arg(long, default_value_t = fuse::Transport::Auto)]
        transport: fuse::Transport,
        #[arg(long, default_value_t = 0)]
        readers: usize,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().figure {
        Figure::Basic(args) => basic::run(&args),
        Figure::Parallel(args) => parallel::run(&args),
        Figure::Operations(args) => operations::run(&args),
        Figure::Writes(args) => writes::run(&args),
        Figure::Tail(args) => tail::run(&args),
        Figure::Metadata(args) => metadata::run(&args),
        Figure::Peers(args) => peers::run(&args),
        Figure::Origin(args) => origin::run(&args),
        Figure::Fleet(args) => fleet::run(&args),
        Figure::Workloads(args) => workloads::run(&args),
        Figure::Transport(args) => transport::run(&args),
        Figure::ZipfChart(args) => zipf::run(&args),
        Figure::Lobster(args) => lobster::run(&args),
        Figure::S3(args) => gateway::run(&args),
        Figure::Sort(args) => sort::run(&args),
        Figure::SortWorker(args) => sort::worker::run(&args),
        Figure::TransportServe(args) => transport::serve(&args),
        Figure::TransportAsk(args) => transport::ask(&args),
        Figure::ServeNull { mountpoint, transport, readers } => {
            place::serve_null(&mountpoint, transport, readers)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("covey-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
