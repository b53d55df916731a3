//! `covey upgrade`: raises the version of what a database holds of shared volumes.

use std::path::PathBuf;

use api::error::Result;
use node::shared::listed;
use serde::Serialize;

use crate::target::{names_of, not_shared};
use crate::term::Term;

/// Prepares the database of shared volumes for this version of covey
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  covey upgrade 'postgres://covey@db/covey?volume=work'\n\n\
    All volumes in the database are upgraded. Nodes that are mounted go on, also older ones. An older\n\
    covey cannot mount the volumes any more. The volume of one machine needs no such command.")]
pub struct Args {
    /// The address of a volume: postgres://... or etcd://..., a mount of it, or a node's folder
    place: PathBuf,
}

#[derive(Debug, Serialize)]
struct Outcome {
    from: String,
    to: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let done = listed::upgrade(&names_of(&args.place)?.ok_or_else(|| not_shared(&args.place))?)?;
    let outcome = Outcome { from: done.from, to: done.to };
    term.result(&outcome, || match outcome.from == outcome.to {
        true => format!("The database has version {} already.", outcome.to),
        false => format!("The database was upgraded from version {} to {}.", outcome.from, outcome.to),
    });
    Ok(0)
}
