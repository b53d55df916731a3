//! `covey unpublish`: removes a published tree.

use std::path::PathBuf;

use api::control::Request;
use api::error::Result;
use node::control;
use node::opened::Node;
use node::options::NodeOptions;
use node::publisher::check_name;
use serde::Serialize;

use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// Takes a published tree away; the room that only it needed is free after the next collection
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey unpublish /srv/volume nightly\n  covey unpublish /mnt/covey nightly && covey gc /mnt/covey\n\n\
    Publications of the name that were kept go too. A node that still mounts the tree loses what only it needs."
)]
pub struct Args {
    /// A volume's folder, or a path on a mount
    volume: PathBuf,
    /// The name
    name: String,
}

#[derive(Debug, Serialize)]
struct Outcome<'a> {
    name: &'a str,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    check_name(&args.name)?;
    match resolve_volume(&args.volume)? {
        Target::Mounted(place) => {
            let request = Request::Unpublish { name: args.name.clone() };
            control::ask::<()>(&place.address(), &request, &mut |_| ())?;
        }
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::writing("unpublish"))?;
            let done = node.unpublish(&args.name);
            let closed = node.close();
            done?;
            closed?;
        }
    }
    term.result(&Outcome { name: &args.name }, || {
        format!("{} is not published any more; covey gc frees what only it needed.", args.name)
    });
    Ok(0)
}
