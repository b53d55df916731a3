//! `covey watch redirect`: connections of a cgroup to the store go to this node's S3 gateway.

use std::net::SocketAddr;
use std::path::PathBuf;

use api::error::Result;
use api::text::count;
use serde::Serialize;
use watch::Cost;
use watch::redirect::{Redirect, Redirected};

use super::{Rhythm, cost_text, failure};
use crate::term::Term;

/// Sends connections of a cgroup to this node's S3 gateway instead of the store, until it ends
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey s3 --listen 127.0.0.1:9878 ...\n  \
    covey watch redirect /sys/fs/cgroup/job --store 10.0.0.2:9000 --gateway 127.0.0.1:9878\n\n\
    The clients stay as they are. The gateway checks their signatures, so it needs their keys. When it does not listen,\n\
    connections go to the store. TLS to the store cannot be redirected.")]
pub struct Args {
    /// The folder of a cgroup of version 2
    cgroup: PathBuf,
    /// The store's address
    #[arg(long, value_name = "ADDRESS:PORT")]
    store: SocketAddr,
    /// The address at which the gateway listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    gateway: SocketAddr,
    #[command(flatten)]
    rhythm: Rhythm,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    counts: Redirected,
    costs: Vec<Cost>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let redirect = Redirect::attach(&args.cgroup, args.store, args.gateway).map_err(failure)?;
    let _measured = watch::object::measure().map_err(failure)?;
    term.say(format_args!("{} goes to {} while this runs", args.store, args.gateway));
    let step = |left| {
        std::thread::sleep(left);
        Ok(())
    };
    let show = || {
        let shown = Shown { counts: redirect.counts().map_err(failure)?, costs: redirect.costs() };
        term.line(Some(&shown), || {
            let Redirected { redirected, direct } = shown.counts;
            format!(
                "connections: {} to the gateway, {} to the store because the gateway did not listen\n{}",
                count(redirected),
                count(direct),
                cost_text(&shown.costs)
            )
        });
        Ok(())
    };
    args.rhythm.run(step, show)?;
    Ok(0)
}
