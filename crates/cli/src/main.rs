//! The covey command: the only program, and the only place where the rooms are put together.
//!
//! ```text
//!   cmd/<name>.rs   one file a command: its arguments, what it does, what it prints
//!   node.rs         the wiring: a volume's folder becomes lock, journal, packs, origin, volume
//!   daemon.rs       a mount from beginning to end: signals, status line, background
//!   control.rs      how other commands talk to it
//!   watch.rs        looking on at a mount: trace, stats, top; metrics.rs: figures for Prometheus
//!   volume_dir.rs   what lies where in a volume's folder; mounts.rs: what is mounted where
//!   import.rs       folders and archives into volumes
//!   error.rs        what happened, why, what to do next; term.rs, table.rs: how things look
//! ```
//!
//! Exit status: 0 done; 1 failed, or damage found; 2 wrong usage.

mod backend;
mod cmd;
mod control;
mod corpus;
mod daemon;
mod error;
mod import;
mod info;
mod log;
mod metrics;
mod mounts;
mod node;
mod options;
mod signals;
mod status;
mod sys;
mod table;
mod target;
mod term;
mod volume_dir;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use crate::error::Result;
use crate::term::Term;

/// A filesystem whose bytes live in an object store and whose cache is every machine that mounts it
#[derive(Debug, Parser)]
#[command(name = "covey", version, arg_required_else_help = true, max_term_width = 100)]
#[command(
    after_help = "Examples:\n  covey up /mnt/covey                     format a volume if there is none, mount it, stay\n  \
    covey format /srv/volume\n  covey mount -d /srv/volume /mnt/covey\n  covey import linux.tar.zst /mnt/covey/linux\n  \
    covey status /mnt/covey\n  covey umount /mnt/covey\n\nExit status: 0 done, 1 failed or damage found, 2 wrong usage."
)]
struct Cli {
    /// Print results as JSON on standard output, and nothing else there
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(cmd::up::Args),
    Format(cmd::format::Args),
    Mount(cmd::mount::Args),
    #[command(alias = "unmount")]
    Umount(cmd::umount::Args),
    Status(cmd::status::Args),
    Df(cmd::df::Args),
    Info(cmd::info::Args),
    Import(cmd::import::Args),
    Clone(cmd::clone::Args),
    Fsck(cmd::fsck::Args),
    Gc(cmd::gc::Args),
    Trace(cmd::trace::Args),
    Stats(cmd::stats::Args),
    Top(cmd::top::Args),
    Bench(cmd::bench::Args),
    Doctor(cmd::doctor::Args),
}

fn main() -> ExitCode {
    log::install_panic_hook();
    let cli = Cli::parse();
    let term = Term::new(cli.json);
    match run(&cli.command, term) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("{failure}");
            if cli.json {
                term.result(&json!({ "error": failure }), String::new);
            }
            ExitCode::from(failure.status)
        }
    }
}

fn run(command: &Command, term: Term) -> Result<u8> {
    match command {
        Command::Up(args) => cmd::up::run(args, term),
        Command::Format(args) => cmd::format::run(args, term),
        Command::Mount(args) => cmd::mount::run(args, term),
        Command::Umount(args) => cmd::umount::run(args, term),
        Command::Status(args) => cmd::status::run(args, term),
        Command::Df(args) => cmd::df::run(args, term),
        Command::Info(args) => cmd::info::run(args, term),
        Command::Import(args) => cmd::import::run(args, term),
        Command::Clone(args) => cmd::clone::run(args, term),
        Command::Fsck(args) => cmd::fsck::run(args, term),
        Command::Gc(args) => cmd::gc::run(args, term),
        Command::Trace(args) => cmd::trace::run(args, term),
        Command::Stats(args) => cmd::stats::run(args, term),
        Command::Top(args) => cmd::top::run(args, term),
        Command::Bench(args) => cmd::bench::run(args, term),
        Command::Doctor(args) => cmd::doctor::run(args, term),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself_with_an_example() {
        for command in Cli::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "covey {} --help shows no example", command.get_name());
            assert!(command.get_about().is_some(), "covey {} says nothing of itself", command.get_name());
        }
    }
}
