//! `covey format`: makes an empty volume.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Failure, Result};
use crate::node;
use crate::term::Term;
use crate::volume_dir::{ORIGIN_INSIDE, VolumeDir};

/// Makes an empty volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey format /srv/volume\n  covey format /ssd/volume --origin file:/big-disk/blobs      names and new bytes on the SSD, blobs on the big disk\n\n\
    A volume in memory needs no format: covey mount mem: MOUNTPOINT"
)]
pub struct Args {
    /// The volume's folder: empty, or not there yet
    volume: PathBuf,
    /// Where blobs live for good: file:DIR, a folder of its own [default: inside the volume]
    #[arg(long, value_name = "file:DIR|mem:")]
    origin: Option<String>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    volume: PathBuf,
    id: String,
    format: u32,
    origin: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let dir = format(&args.volume, args.origin.as_deref())?;
    let outcome = Outcome {
        volume: dir.path().to_owned(),
        id: dir.format().id.clone(),
        format: dir.format().format,
        origin: dir.origin(),
    };
    let shown = outcome.volume.display();
    term.result(&outcome, || format!("Made the volume {shown}. Next: covey mount {shown} MOUNTPOINT"));
    Ok(0)
}

/// Makes a volume.
pub fn format(path: &Path, origin: Option<&str>) -> Result<VolumeDir> {
    if path == Path::new("mem:") {
        return Err(Failure::usage("a volume in memory needs no format").next("covey mount mem: MOUNTPOINT"));
    }
    let origin = match origin {
        None => ORIGIN_INSIDE.to_owned(),
        Some(text) => node::absolute_origin(text)?,
    };
    VolumeDir::create(path, &origin, node::fill).map_err(|failure| match failure.code.as_ref() {
        "disk-full" => failure
            .map_next("a new volume takes 32 MiB for its log and a reserve: free some room on that disk"),
        _ => failure,
    })
}
