//! `covey import`: copies a folder or an archive into a volume, mounted or not.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Failure, Result};
use archive::import::direct::{Direct, NotMounted, To};
use archive::import::folder::Folder;
use archive::import::place::Place;
use archive::import::remote::{Onto, Refused, Remote};
use archive::import::tar::Tar;
use archive::sys;
use archive::transfer::{self, Source, Summary};
use node::opened::Node;
use node::options::NodeOptions;
use node::{control, mounts};
use serde::Serialize;

use crate::copying::{self, Seen};
use crate::target::{self, Target, resolve_new};
use crate::term::Term;

/// Copies a folder or a tar archive (plain, gzip, zstd) into a volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey import /usr/share /mnt/covey/share\n  covey import linux.tar.zst /srv/volume:/linux      a volume that is not mounted\n  \
    xz -dc linux.tar.xz | covey import - /mnt/covey/linux\n\n\
    DEST becomes what SRC is: the folder's contents are found right below it. Modes, times, extended attributes, ACLs, hard\n\
    and symbolic links, holes, and as root owners (by number) and device nodes arrive as they were, as with tar -p. What\n\
    cannot is named, and the exit status is then 1."
)]
pub struct Args {
    /// A folder, a tar archive, or - for an archive on standard input
    src: PathBuf,
    /// A path on a mount, or VOLUME:/PATH; made if it is not there
    dest: PathBuf,
    /// Replace files that are there already; without it the first one ends the import
    #[arg(long)]
    overwrite: bool,
}

#[derive(Debug, Serialize)]
struct Outcome<'a> {
    source: &'a Path,
    destination: &'a Path,
    /// Why the daemon did not do it, if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    through_mount: Option<String>,
    #[serde(flatten)]
    summary: Summary,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let label =
        args.src.file_name().map_or_else(|| "import".to_owned(), |name| name.to_string_lossy().into_owned());
    mounts::check_way(&args.src)?;
    let target = resolve_new(&args.dest)?;
    let stop = copying::stop_by_signal(term)?;
    let seen = Seen { label: &label, term, stop: Some(&stop) };
    let mut through_mount = None;
    let summary = match target {
        Target::Mounted(place) => {
            let source = source(&args.src, Some(place.mount.dev))?;
            match remote(&place, args.overwrite) {
                Ok(mut sink) => seen.watch(|watch| transfer::run(source, &mut sink, watch))?,
                Err(Refused::Failed(failure)) => return Err(failure),
                Err(Refused::UseMount(why)) => {
                    let why = why.line();
                    term.say(format_args!("the files go through the mount, which takes longer: {why}"));
                    through_mount = Some(why);
                    let mut sink = Place::new(&place.path, args.overwrite)?;
                    seen.watch(|watch| transfer::run(source, &mut sink, watch))?
                }
            }
        }
        Target::Closed { dir, inner } => {
            let source = source(&args.src, None)?;
            let node = Arc::new(Node::open(&dir, &NodeOptions::writing("import"))?);
            let outcome = offline(&node, source, &inner, args, seen);
            // Close in any case, so that everything imported so far is kept.
            let closed = node.close();
            let summary = outcome?;
            closed?;
            summary
        }
    };
    Ok(report(args, through_mount, summary, term))
}

/// Asks the daemon of the mount to take the items.
fn remote(place: &target::Place, overwrite: bool) -> std::result::Result<Remote, Refused> {
    let mounts: Vec<PathBuf> = fuse::mount::all().into_iter().map(|mount| mount.path).collect();
    let onto =
        Onto { path: &place.path, mountpoint: &place.mount.path, device: place.mount.dev, mounts: &mounts };
    Remote::open(onto, overwrite, |request| control::begin(&place.address(), request))
}

fn offline(
    node: &Node,
    source: Box<dyn Source>,
    inner: &Path,
    args: &Args,
    seen: Seen<'_>,
) -> Result<Summary> {
    let shown = format!("{}:/{}", node.name(), inner.display());
    let to = To { shown, folder: inner, overwrite: args.overwrite, umask: sys::umask() };
    let mut sink = Direct::new(node.filesystem(), Box::new(NotMounted), to)?;
    seen.watch(|watch| transfer::run(source, &mut sink, watch))
}

fn source(path: &Path, not_into: Option<u64>) -> Result<Box<dyn Source>> {
    if path.is_dir() {
        return Ok(Box::new(Folder::new(path, not_into)?));
    }
    if path == Path::new("-") {
        return Ok(Box::new(Tar::stream("-", Box::new(io::stdin()))?));
    }
    if path.symlink_metadata().is_err() {
        return Err(
            Failure::new("not-found", format!("{} is not there", path.display())).next("check the path")
        );
    }
    Ok(Box::new(Tar::open(path)?))
}

fn report(args: &Args, through_mount: Option<String>, summary: Summary, term: Term) -> u8 {
    let left_out = copying::say_left_out(&summary.skipped, term);
    let outcome = Outcome { source: &args.src, destination: &args.dest, through_mount, summary };
    term.result(&outcome, || copying::in_words("Imported", &outcome.summary));
    u8::from(left_out)
}
