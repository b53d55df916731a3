//! `covey clone`: copies a file or a whole tree by copying its names. No data moves. Later changes of one do
//! not affect the other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::answers::CloneSummary;
use api::control::{ControlAddress, Request, Tick};
use api::error::{Failure, Result};
use api::text::count;
use node::control;
use node::opened::Node;
use node::options::NodeOptions;

use crate::target::{Place, Target, resolve, resolve_new};
use crate::term::{Progress, Term};

/// How long to wait until the kernel has handed over what programs wrote.
const HAND_OVER: Duration = Duration::from_secs(5);

/// Copies a file or a tree within a volume by names only: at once, and without taking room
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey clone /mnt/covey/model /mnt/covey/model-before\n  covey clone /srv/volume:/a /srv/volume:/b      a volume that is not mounted"
)]
pub struct Args {
    /// A file or folder: a path on a mount, or VOLUME:/PATH
    src: PathBuf,
    /// Where the copy goes, in the same volume; must not be there yet
    dest: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut progress = term.progress("clone");
    let mut tick = |tick: &Tick| show(&mut progress, tick);
    let summary = match (resolve(&args.src)?, resolve_new(&args.dest)?) {
        (Target::Mounted(src), Target::Mounted(dest)) => mounted(&src, &dest, &mut tick)?,
        (Target::Closed { dir, inner }, Target::Closed { dir: other, inner: to })
            if dir.path() == other.path() =>
        {
            let node = Node::open(&dir, &NodeOptions::writing("clone"))?;
            let cloned = node.clone_tree(&inner, &to, &mut |now| tick(&now));
            node.close()?;
            cloned?.summary
        }
        _ => return Err(two_volumes(args)),
    };
    progress.done();
    term.result(&summary, || {
        format!(
            "Cloned {} files and folders in {:.2} s; no data was copied.",
            count(summary.files),
            summary.seconds
        )
    });
    Ok(0)
}

fn mounted(src: &Place, dest: &Place, tick: &mut dyn FnMut(&Tick)) -> Result<CloneSummary> {
    if src.mount.dev != dest.mount.dev {
        return Err(Failure::usage(format!(
            "{} and {} are on different volumes",
            src.path.display(),
            dest.path.display()
        ))
        .next("copy between volumes with cp -a or covey import"));
    }
    // Data that programs wrote may still be only in the kernel. The daemon must have it before it copies
    // names. If programs keep writing, the wait ends after its limit. What they wrote before has arrived by
    // then.
    fuse::mount::hand_over(&src.mount.path, HAND_OVER);
    let address: ControlAddress = src.address();
    let request = Request::Clone { from: src.inner().into(), to: dest.inner().into() };
    control::ask(&address, &request, tick)
}

fn two_volumes(args: &Args) -> Failure {
    let (src, dest): (&Path, &Path) = (&args.src, &args.dest);
    Failure::usage(format!("{} and {} are not in the same volume", src.display(), dest.display()))
        .next("copy between volumes with covey import")
}

/// Shows the progress that a daemon reports.
pub fn show(progress: &mut Progress, tick: &Tick) {
    if tick.of > 0 {
        progress.total(tick.of);
    }
    progress.set(tick.done, |_| tick.what.clone());
}
