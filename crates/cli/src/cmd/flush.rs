//! `covey flush`: waits until everything written so far is in the origin.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::answers::Settled;
use api::control::{ControlAddress, Request, Tick};
use api::error::Result;
use api::text::{bytes, count};
use base::Deadline;
use fuse::mount::Mounted;
use node::control;
use node::opened::Node;
use node::options::NodeOptions;

use crate::cmd::clone::show;
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// How long to wait until the kernel has handed over what programs wrote.
pub const HAND_OVER: Duration = Duration::from_secs(5);

/// Waits until everything written so far is in the origin
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey flush /mnt/covey\n  covey flush --timeout 60 /srv/volume      a volume that is not mounted, for at most a minute\n\n\
    With a remote origin, what is written is kept on this node's disk and uploaded behind; covey status says how much is not\n\
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
    let deadline = Deadline::after_if(args.timeout.map(Duration::from_secs));
    let settled = match deadline.scope(|| resolve_volume(&args.volume))? {
        Target::Mounted(place) => mounted(&place.mount, deadline, &mut |tick| show(&mut progress, tick))?,
        Target::Closed { dir, .. } => {
            // Opening and closing the volume count towards the time limit.
            deadline.scope(|| {
                let node = Node::open(&dir, &NodeOptions::writing("flush"))?;
                closed(&node, deadline, &mut |tick| show(&mut progress, &tick))
            })?
        }
    };
    progress.done();
    term.result(&settled, || text(&settled));
    Ok(0)
}

/// The additional time that the daemon has to report the outcome after its own limit.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Asks the daemon of a mount to flush, with a deadline.
pub fn mounted(mount: &Mounted, deadline: Deadline, tick: &mut dyn FnMut(&Tick)) -> Result<Settled> {
    // Data that programs wrote may still be only in the kernel.
    fuse::mount::hand_over(&mount.path, deadline.within(HAND_OVER).left());
    // The daemon counts whole seconds, so a fraction is rounded up.
    let seconds = deadline.is_bounded().then(|| deadline.left().as_secs_f64().ceil() as u64);
    let address = ControlAddress::of_source(Path::new(&mount.source));
    let answer = Deadline::after_if(deadline.is_bounded().then(|| deadline.left() + LAST_WORD));
    answer.scope(|| control::ask(&address, &Request::Settle { seconds }, tick))
}

/// Flushes a volume that was opened for this, and closes it.
pub fn closed(node: &Node, deadline: Deadline, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
    let settled = node.settle(deadline.is_bounded().then(|| deadline.left()), tick);
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
