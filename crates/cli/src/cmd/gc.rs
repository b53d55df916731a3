//! `covey gc`: frees unreferenced data now, instead of when the daemon next does it.

use std::path::PathBuf;

use api::answers::GcSummary;
use api::control::Request;
use api::error::Result;
use api::text::{bytes, count};
use node::control;
use node::opened::Node;
use node::options::NodeOptions;

use crate::cmd::clone::show;
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// Frees what nothing refers to any more, and gathers what lies scattered
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey gc /srv/volume\n  covey gc /mnt/covey      a mounted volume: its daemon does it\n\n\
    A mounted volume does this by itself all the time; the command is for not waiting. Of a shared volume it \
    deletes what is due and compacts what is mostly dead, of all nodes, and looks in the origin for blobs that \
    no node knows."
)]
pub struct Args {
    /// A volume's folder, or a path on a mount
    volume: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut progress = term.progress("gc");
    let summary: GcSummary = match resolve_volume(&args.volume)? {
        Target::Mounted(place) => {
            control::ask(&place.address(), &Request::Gc, &mut |tick| show(&mut progress, tick))?
        }
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::writing("gc"))?;
            let summary = node.gc(&mut |tick| show(&mut progress, &tick));
            node.close()?;
            summary?
        }
    };
    progress.done();
    term.result(&summary, || {
        let GcSummary { freed_bytes, stored_bytes, garbage_bytes, blobs, .. } = summary;
        let (freed, stored, dead) = (bytes(freed_bytes), bytes(stored_bytes), bytes(garbage_bytes));
        let mut line =
            format!("Freed {freed}; {stored} are stored in {} blobs, {dead} of it dead.", count(blobs));
        if summary.waiting_bytes > 0 {
            // Of a shared volume.
            line += &format!(
                " {} more are deleted when nothing has referred to them for long enough (-o gc_delay).",
                bytes(summary.waiting_bytes)
            );
        }
        line
    });
    Ok(0)
}
