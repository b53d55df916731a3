//! The covey command: the interface of [`node`] for people and scripts.
//!
//! ```text
//!   cmd/<name>.rs   one file per command: its arguments, its work, its output
//!   args.rs         arguments that several commands share
//!   daemon.rs       a mount as a command: signals, status line, background; lending.rs: a lent disk
//!   looking.rs      watching a mount: trace, stats, top
//!   reading.rs      what ls, cat and cp read without a mount
//!   target.rs       what a path on the command line means: a mount or a volume's folder
//!   copying.rs      imports and exports: progress and Ctrl-C; the work is in the crate archive
//!   images.rs       container images: imports, and mounts as overlays; the formats are in the crate oci
//!   config.rs       configuration files, as defaults of the command line
//!   dashboard.rs    the mounts of this machine, for the dashboard
//!   buckets.rs      mounts and volumes as buckets of the S3 gateway
//!   beside.rs       what a daemon serves beside its mount: S3, the dashboard
//!   parts.rs        parts that a program may be built without
//!   helper.rs       the same program as mount.covey, for mount(8)
//!   bundle.rs       the contents of a bug report, without secrets
//!   term.rs, table.rs, rows.rs: formatting of output
//! ```
//!
//! Exit status: 0 done; 1 failed, or damage found; 2 wrong usage. As mount.covey, the exit status of
//! mount(8).

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

mod args;
mod beside;
#[cfg(feature = "s3")]
mod buckets;
mod bundle;
mod cmd;
mod config;
mod copying;
mod daemon;
#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(feature = "guests")]
mod guest_status;
#[cfg(not(feature = "guests"))]
#[path = "no_guests.rs"]
mod guest_status;
#[cfg(feature = "guests")]
mod guest_trace;
mod helper;
#[cfg(feature = "containers")]
mod images;
#[cfg(test)]
mod inputs;
mod lending;
mod looking;
mod parts;
mod reading;
mod rows;
mod table;
mod target;
mod term;

use std::ffi::OsString;
use std::process::ExitCode;

use api::error::{Failure, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use node::{limits, log};
use serde_json::json;

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
    /// Read this configuration file and no other; an empty name: none
    #[arg(long, global = true, value_name = "FILE", env = "COVEY_CONFIG", hide_env = true)]
    config: Option<OsString>,
    /// How much a mount says: error, warn, info or debug
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "COVEY_LOG",
        hide_env = true,
        hide_possible_values = true,
        default_value = "info"
    )]
    log_level: args::Level,
    /// What its lines look like: text, or json for one object a line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        env = "COVEY_LOG_FORMAT",
        hide_env = true,
        hide_possible_values = true,
        default_value = "text"
    )]
    log_format: args::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(cmd::up::Args),
    Format(cmd::format::Args),
    Mount(Box<cmd::mount::Args>),
    #[command(alias = "unmount")]
    Umount(cmd::umount::Args),
    Status(cmd::status::Args),
    Df(cmd::df::Args),
    Info(cmd::info::Args),
    Ls(cmd::ls::Args),
    Cat(cmd::cat::Args),
    Cp(cmd::cp::Args),
    Import(cmd::import::Args),
    Image(cmd::image::Args),
    Snapshotter(cmd::snapshotter::Args),
    Export(cmd::export::Args),
    Clone(cmd::clone::Args),
    Fsck(cmd::fsck::Args),
    Gc(cmd::gc::Args),
    Publish(cmd::publish::Args),
    Index(cmd::index::Args),
    Published(cmd::published::Args),
    Unpublish(cmd::unpublish::Args),
    Restore(cmd::restore::Args),
    Promote(cmd::promote::Args),
    Detach(cmd::detach::Args),
    Origin(cmd::origin::Args),
    Flush(cmd::flush::Args),
    Cache(cmd::cache::Args),
    Warm(cmd::warm::Args),
    Heat(cmd::heat::Args),
    Ui(cmd::ui::Args),
    Hint(cmd::hint::Args),
    Trace(cmd::trace::Args),
    Stats(cmd::stats::Args),
    Top(cmd::top::Args),
    Watch(cmd::watch::Args),
    Bench(cmd::bench::Args),
    Peers(cmd::peers::Args),
    Sessions(cmd::sessions::Args),
    Upgrade(cmd::upgrade::Args),
    Locks(cmd::locks::Args),
    Quota(cmd::quota::Args),
    Trash(cmd::trash::Args),
    Depot(Box<cmd::depot::Args>),
    Lend(Box<cmd::lend::Args>),
    Fleet(cmd::fleet::Args),
    S3(Box<cmd::s3::Args>),
    Serve(Box<cmd::serve::Args>),
    Attach(cmd::attach::Args),
    MemoryServer(Box<cmd::memory_server::Args>),
    Csi(cmd::csi::Args),
    Doctor(cmd::doctor::Args),
    Config(cmd::config::Args),
    Bundle(cmd::bundle::Args),
    Generate(cmd::generate::Args),
}

fn main() -> ExitCode {
    log::install_panic_hook();
    log::clear_with(term::clear_if_terminal);
    limits::lift();
    let words: Vec<OsString> = std::env::args_os().collect();
    ExitCode::from(match helper::is_called(&words) {
        true => helper::run(&words, |words, aloud| perform(&words, !aloud)),
        false => perform(&words, false),
    })
}

/// Runs a command line and returns the exit status. `quiet`: results are not printed, failures are.
fn perform(words: &[OsString], quiet: bool) -> u8 {
    let typed = match Cli::command().try_get_matches_from(words) {
        Ok(typed) => typed,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let term = Term::new(typed.get_flag("json"), quiet);
    let outcome = read(words, typed).and_then(|cli| {
        log::configure(cli.log_level.into(), cli.log_format.into());
        run(&cli, term)
    });
    outcome.unwrap_or_else(|failure| {
        match log::configured().1 {
            log::Format::Text => base::out::complaint(&failure),
            log::Format::Json => log::error(&failure.to_string()),
        }
        if term.is_json() {
            term.result(&json!({ "error": failure }), String::new);
        }
        failure.status
    })
}

/// Parses the command line, with the configuration files as defaults.
fn read(words: &[OsString], typed: clap::ArgMatches) -> Result<Cli> {
    let wrong = |error: clap::Error| Failure::usage(error.to_string().trim_end().to_owned());
    args::unused::check(&typed)?;
    let matches = match config::beneath(Cli::command(), words, &typed)? {
        Some(command) => command.try_get_matches_from(words).map_err(wrong)?,
        None => typed,
    };
    Cli::from_arg_matches(&matches).map_err(wrong)
}

fn run(cli: &Cli, term: Term) -> Result<u8> {
    match &cli.command {
        Command::Up(args) => cmd::up::run(args, term),
        Command::Format(args) => cmd::format::run(args, term),
        Command::Mount(args) => cmd::mount::run(args, term),
        Command::Umount(args) => cmd::umount::run(args, term),
        Command::Status(args) => cmd::status::run(args, term),
        Command::Df(args) => cmd::df::run(args, term),
        Command::Info(args) => cmd::info::run(args, term),
        Command::Ls(args) => cmd::ls::run(args, term),
        Command::Cat(args) => cmd::cat::run(args, term),
        Command::Cp(args) => cmd::cp::run(args, term),
        Command::Import(args) => cmd::import::run(args, term),
        Command::Image(args) => cmd::image::run(args, term),
        Command::Snapshotter(args) => cmd::snapshotter::run(args, term),
        Command::Export(args) => cmd::export::run(args, term),
        Command::Clone(args) => cmd::clone::run(args, term),
        Command::Fsck(args) => cmd::fsck::run(args, term),
        Command::Gc(args) => cmd::gc::run(args, term),
        Command::Publish(args) => cmd::publish::run(args, term),
        Command::Index(args) => cmd::index::run(args, term),
        Command::Published(args) => cmd::published::run(args, term),
        Command::Unpublish(args) => cmd::unpublish::run(args, term),
        Command::Restore(args) => cmd::restore::run(args, term),
        Command::Promote(args) => cmd::promote::run(args, term),
        Command::Detach(args) => cmd::detach::run(args, term),
        Command::Origin(args) => cmd::origin::run(args, term),
        Command::Flush(args) => cmd::flush::run(args, term),
        Command::Cache(args) => cmd::cache::run(args, term),
        Command::Warm(args) => cmd::warm::run(args, term),
        Command::Heat(args) => cmd::heat::run(args, term),
        Command::Ui(args) => cmd::ui::run(args, term),
        Command::Hint(args) => cmd::hint::run(args, term),
        Command::Trace(args) => cmd::trace::run(args, term),
        Command::Stats(args) => cmd::stats::run(args, term),
        Command::Top(args) => cmd::top::run(args, term),
        Command::Watch(args) => cmd::watch::run(args, term),
        Command::Bench(args) => cmd::bench::run(args, term),
        Command::Peers(args) => cmd::peers::run(args, term),
        Command::Sessions(args) => cmd::sessions::run(args, term),
        Command::Upgrade(args) => cmd::upgrade::run(args, term),
        Command::Locks(args) => cmd::locks::run(args, term),
        Command::Quota(args) => cmd::quota::run(args, term),
        Command::Trash(args) => cmd::trash::run(args, term),
        Command::Depot(args) => cmd::depot::run(args, term),
        Command::Lend(args) => cmd::lend::run(args, term),
        Command::Fleet(args) => cmd::fleet::run(args, term),
        Command::S3(args) => cmd::s3::run(args, term),
        Command::Serve(args) => cmd::serve::run(args, term),
        Command::Attach(args) => cmd::attach::run(args, term),
        Command::MemoryServer(args) => cmd::memory_server::run(args, term),
        Command::Csi(args) => cmd::csi::run(args, term),
        Command::Doctor(args) => cmd::doctor::run(args, cli.config.as_ref(), term),
        Command::Config(args) => cmd::config::run(args, cli.config.as_ref(), term),
        Command::Bundle(args) => cmd::bundle::run(args, cli.config.as_ref(), term),
        Command::Generate(args) => cmd::generate::run(args, term),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_readme_names_every_command() {
        let page = include_str!("../../../README.md");
        let rows = page.lines().skip_while(|line| *line != "| command | what it does |");
        let words: Vec<&str> = rows
            .take_while(|line| line.starts_with('|'))
            .filter_map(|line| line.split('|').nth(1))
            .flat_map(|cell| cell.split(['`', ',', ' ']))
            .collect();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(words.contains(&command.get_name()), "the table has no `{}`", command.get_name());
        }
    }
}
