//! `covey attach`: mounts what a server serves. The same code is the small program `covey-attach`.

use std::path::PathBuf;
use std::time::Duration;

use api::error::{Failure, Result};
use base::secret::Secret;
use node::{limits, log, notify};
use serde::Serialize;
use stream::address::Address;
use stream::attach::device::Flags;
use stream::attach::{AttachError, Options, command};

use crate::term::Term;

/// Mounts what covey serve serves on another machine, or on the host of this one; stays until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey attach vsock:5001 /mnt      the host of this virtual machine\n  \
    covey attach unix:/run/covey.sock /mnt\n  \
    covey attach --secret-file secret --wait 300 tcp:10.0.0.1:7200 /mnt\n\n\
    It runs as root. While no server answers, requests wait up to --wait, and fail with EIO after that.")]
pub struct Args {
    /// The server: unix:PATH, tcp:HOST:PORT, vsock:PORT (the host of this guest) or vsock:CID:PORT
    address: String,
    /// An existing folder
    mountpoint: PathBuf,
    /// Mount options: ro, nosuid, nodev, noexec
    #[arg(short = 'o', value_name = "LIST", value_delimiter = ',')]
    options: Vec<String>,
    /// The secret that both ends know; needed where the server has one
    #[arg(long, value_name = "FILE", env = "COVEY_SECRET_FILE", hide_env = true)]
    secret_file: Option<PathBuf>,
    /// Threads that read requests from /dev/fuse [default: one per core, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    readers: Option<u32>,
    /// Connections to the server
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    connections: u32,
    /// How long requests wait while no server answers
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
    /// Say of every Nth request where its time went, and percentiles at the end
    #[arg(long, value_name = "N", env = command::TRACE_RATE, hide_env = true, default_value_t = 0)]
    trace: u32,
}

#[derive(Serialize)]
struct Attached {
    address: String,
    mountpoint: PathBuf,
    source: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    command::block_signals();
    limits::check(limits::For::Daemon)?;
    let address: Address = args.address.parse().map_err(|error| Failure::usage(format!("{error}")))?;
    let secret = args.secret_file.as_deref().map(Secret::from_file).transpose();
    let options = Options {
        address,
        secret: secret.map_err(|error| Failure::usage(error.to_string()))?,
        readers: args.readers.unwrap_or(0) as usize,
        connections: args.connections as usize,
        wait: Duration::from_secs(args.wait),
        flags: flags(&args.options)?,
        trace: args.trace,
    };
    let ready = |source: &str| {
        let line = format!("{source} is mounted on {}", args.mountpoint.display());
        notify::ready(&line);
        if term.is_json() {
            let (address, mountpoint) = (args.address.clone(), args.mountpoint.clone());
            term.result(&Attached { address, mountpoint, source: source.to_owned() }, String::new);
        } else {
            log::line(&format!("{line}; Ctrl-C ends it"));
        }
    };
    let ended = command::run(options, &args.mountpoint, log::line, ready).map_err(failure)?;
    match command::complaint(ended) {
        None => Ok(0),
        Some(line) => Err(Failure::new("not-synced", line)),
    }
}

fn failure(error: AttachError) -> Failure {
    let kind = match error {
        AttachError::Server { .. } => "no-server",
        AttachError::Mount(_) => "mount",
        AttachError::Thread(_) => "thread",
        AttachError::Stopped(_) => {
            let failure = Failure::new("interrupted", format!("cannot attach: {error}"));
            return Failure { status: command::INTERRUPTED, ..failure };
        }
    };
    Failure::new(kind, format!("cannot attach: {error}"))
}

fn flags(options: &[String]) -> Result<Flags> {
    let mut flags = Flags::default();
    for option in options {
        match option.as_str() {
            "ro" => flags.read_only = true,
            "rw" => flags.read_only = false,
            "nosuid" => flags.nosuid = true,
            "nodev" => flags.nodev = true,
            "noexec" => flags.noexec = true,
            _ => {
                return Err(Failure::usage(format!("there is no mount option {option}"))
                    .next("ro, nosuid, nodev and noexec exist here"));
            }
        }
    }
    Ok(flags)
}
