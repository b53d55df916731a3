//! `covey flush`: waits until everything written so far is in the origin.

use std::path::PathBuf;
use std::time::Duration;

use crate::cmd::clone::show;
use crate::control::{self, Request, Tick};
use crate::error::Result;
use crate::far::Settled;
use crate::node::{Node, NodeOptions};
use crate::table::{bytes, count};
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// How long what programs wrote is waited for, until the kernel has handed it over.
pub const HAND_OVER: Duration = Duration::from_secs(5);

/// Waits until everything written so far is in the origin
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey flush /mnt/covey\n  covey flush --timeout 60 /srv/volume      a volume that is not mounted, for at most a minute\n\n\
    With a far origin, what is written is kept on this node's disk and uploaded behind; covey status says how much is not\n\
    uploaded yet. Exit status: 0 when all of it is in the origin, 1 otherwise."
)]
pub struct Args {
    /// A volume's folder, or a path on a mount
    volume: PathBuf,
    /// Give up after so many seconds; what is not uploaded then stays where it is [default: never]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut progress = term.progress("flush");
    let settled = match resolve_volume(&args.volume)? {
        Target::Mounted(place) => {
            // What programs wrote may still be in the kernel only.
            fuse::mount::hand_over(&place.mount.path, HAND_OVER);
            let request = Request::Settle { seconds: args.timeout };
            control::ask(&place.ear(), &request, &mut |tick| show(&mut progress, tick))?
        }
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::writing("flush"))?;
            closed(&node, args.timeout, &mut |tick| show(&mut progress, &tick))?
        }
    };
    progress.done();
    term.result(&settled, || text(&settled));
    Ok(0)
}

/// Flushes a volume that was opened for it, and closes it.
pub fn closed(node: &Node, seconds: Option<u64>, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
    let settled = node.settle(seconds.map(Duration::from_secs), tick);
    node.close()?;
    settled
}

/// The outcome in words.
fn text(settled: &Settled) -> String {
    if settled.blobs == 0 {
        return "Everything is in the origin.".to_owned();
    }
    let (blobs, size) = (count(settled.blobs), bytes(settled.bytes));
    format!("Everything is in the origin; {blobs} blobs ({size}) were waited for, {:.1} s.", settled.seconds)
}
