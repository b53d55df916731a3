//! `covey promote`: makes a shared volume of a volume of one node.
//!
//! The work is in [`node::shared::promoting`].

use std::path::PathBuf;

use api::control::Tick;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use node::shared::making;
use node::shared::promoting::{self, Promoted};
use node::volume_dir::VolumeDir;
use serde::Serialize;

use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// Moves the names of a volume into a database, so that many machines can write to it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey promote /srv/volume 'postgres://covey@db/covey?volume=work'\n  \
    covey mount -d /srv/volume /mnt/work                                  then on this machine\n  \
    covey mount -d 'postgres://covey@db/covey?volume=work' /mnt/work      and on every other one\n\n\
    The volume must not be mounted, and its origin must be one that all machines reach. No blob is copied. Inode numbers, times and\n\
    published trees stay. Until the last step the volume is as it was; an interrupted command can be run again. There is no way back\n\
    but publishing the shared volume and restoring that into a folder.")]
pub struct Args {
    /// The volume's folder. It becomes the folder of this node
    folder: PathBuf,
    /// Where the names go: postgres://USER@HOST/DATABASE?volume=NAME. The name must be free
    #[arg(value_name = "ADDRESS")]
    address: PathBuf,
}

#[derive(Debug, Serialize)]
struct Outcome {
    /// The address of the shared volume.
    volume: String,
    #[serde(with = "api::raw_path")]
    folder: PathBuf,
    id: String,
    origin: String,
    /// Rows of names that were copied.
    rows: u64,
    /// Rows that a shared volume does not have.
    left_out: u64,
    /// Blobs that the names need, which are all in the origin.
    blobs: u64,
    blob_bytes: u64,
    /// An earlier promotion was interrupted after its last step but one, and only that step was left.
    was_finished: bool,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let started = base::time::monotonic();
    if !making::is_address(&args.address) {
        return Err(Failure::usage(format!("{} is no address of a shared volume", args.address.display()))
            .next("write postgres://USER@HOST/DATABASE?volume=NAME"));
    }
    let dir = closed(args)?;
    let mut progress = term.progress("promote");
    let mut tick = |tick: Tick| crate::cmd::clone::show(&mut progress, &tick);
    let done = promoting::promote(&dir, &args.address, &mut tick);
    progress.done();
    let Promoted { made, rows, left_out, blobs, blob_bytes, was_finished } = done?;
    let outcome = Outcome {
        volume: made.names,
        folder: dir.path().to_owned(),
        id: made.id,
        origin: made.origin,
        rows,
        left_out,
        blobs,
        blob_bytes,
        was_finished,
        seconds: (base::time::monotonic() - started).as_secs_f64(),
    };
    term.result(&outcome, || text(&outcome));
    Ok(0)
}

/// The volume's folder, which must not be mounted.
fn closed(args: &Args) -> Result<VolumeDir> {
    if making::is_address(&args.folder) {
        return Err(Failure::usage("the names of that volume are in a database already")
            .next("name the folder of a volume first, then the address"));
    }
    match resolve_volume(&args.folder)? {
        Target::Closed { dir, inner } if inner.as_os_str().is_empty() => Ok(dir),
        Target::Closed { dir, .. } => Err(Failure::usage("a volume is promoted as a whole")
            .next(format!("name its folder: {}", dir.path().display()))),
        Target::Mounted(place) => {
            let (source, point) = (&place.mount.source, place.mount.path.display());
            Err(Failure::new("in-use", format!("{source} is mounted at {point}"))
                .why("its names cannot move while programs change them")
                .next(format!("unmount it first: covey umount {point}")))
        }
    }
}

fn text(outcome: &Outcome) -> String {
    let (folder, address) = (outcome.folder.display(), &outcome.volume);
    let done = match outcome.was_finished {
        true => format!("Finished the promotion of {folder}, which had been interrupted."),
        false => format!(
            "Promoted {folder} in {:.1} s: {} rows of names; {} blobs ({}) stay in {}.",
            outcome.seconds,
            count(outcome.rows),
            count(outcome.blobs),
            bytes(outcome.blob_bytes),
            outcome.origin
        ),
    };
    format!(
        "{done}\nNext, here: covey mount {folder} MOUNTPOINT; on other machines: covey mount '{address}' MOUNTPOINT"
    )
}
