//! `covey publish`: stores a volume's names as blobs next to its data, under a name.

use std::path::PathBuf;
use std::time::Duration;

use api::answers::PublishSummary;
use api::control::Request;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use node::control;
use node::opened::Node;
use node::options::NodeOptions;
use node::publish::Wanted;
use node::publisher::check_name;
use node::shared::making;

use crate::cmd::clone::show;
use crate::target::{Target, resolve};
use crate::term::Term;

/// How long to wait until the kernel has handed over what programs wrote.
const HAND_OVER: Duration = Duration::from_secs(5);

/// Publishes a volume, or a folder of it, under a name: others can mount it, and it can be restored
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey publish /srv/volume nightly\n  covey publish /mnt/covey/models models      a folder of a mounted volume\n  \
    covey publish --keep 30 /srv/volume daily      the 30 newest publications can be mounted\n  \
    covey mount -d --publish-every 5m /srv/volume /mnt/covey      again and again, as `latest`\n\n\
    What is published is as it was at one moment; programs go on writing. Publishing again under the name writes only what changed, and\n\
    keeps what the tree before needs for an hour. Mount it anywhere: covey mount ORIGIN@NAME MOUNTPOINT. With --keep 30, the 30 newest\n\
    publications stay: covey mount ORIGIN@NAME#NUMBER MOUNTPOINT shows one of them, whatever is published later."
)]
pub struct Args {
    /// A volume's folder, VOLUME:/PATH, or a path on a mount
    volume: PathBuf,
    /// The name: letters, digits and any of . _ - =
    name: String,
    /// Write all of the tree anew, also what the last one has: mends a damaged tree
    #[arg(long)]
    afresh: bool,
    /// Keep so many publications of the name, this one included, now and later: each can be mounted as
    /// ORIGIN@NAME#NUMBER [default: as many as before, at first 1]
    #[arg(long, value_name = "COUNT")]
    keep: Option<u32>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    check_name(&args.name)?;
    if making::is_address(&args.volume) {
        return Err(Failure::usage("a shared volume is published by a node that has it mounted")
            .next("name a mount of it: covey publish MOUNTPOINT NAME"));
    }
    let mut progress = term.progress("publish");
    let summary: PublishSummary = match resolve(&args.volume)? {
        Target::Mounted(place) => {
            fuse::mount::hand_over(&place.mount.path, HAND_OVER);
            let (path, name) = (place.inner().into(), args.name.clone());
            let request = Request::Publish { path, name, afresh: args.afresh, keep: args.keep };
            control::ask(&place.address(), &request, &mut |tick| show(&mut progress, tick))?
        }
        Target::Closed { dir, inner } => {
            let node = Node::open(&dir, &NodeOptions::writing("publish"))?;
            let (name, afresh, keep) = (args.name.clone(), args.afresh, args.keep);
            let wanted = Wanted { path: inner, name, afresh, keep };
            let done = node.publish(&wanted, &mut |tick| {
                show(&mut progress, &tick);
                true
            });
            let closed = node.close();
            let done = done?;
            closed?;
            done
        }
    };
    progress.done();
    term.result(&summary, || text(&summary));
    Ok(0)
}

fn text(done: &PublishSummary) -> String {
    let PublishSummary { name, sequence, files, seconds, .. } = done;
    if done.unchanged {
        return format!("Nothing has changed: {name} ({sequence}) is as it was ({seconds:.2} s).");
    }
    format!(
        "Published {name} ({sequence}): {} files and folders, {}; wrote {} of {} nodes, {} in {} blobs, in {seconds:.2} s.",
        count(*files),
        bytes(done.bytes),
        count(done.new_nodes),
        count(done.nodes),
        bytes(done.written_bytes),
        count(done.new_blobs),
    )
}
