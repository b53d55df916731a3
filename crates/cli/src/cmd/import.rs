//! `covey import`: copies a folder or an archive into a volume, mounted or not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Failure, Result};
use archive::import::direct::{Direct, NotMounted, To};
use node::opened::Node;
use node::options::NodeOptions;
use node::{mounts, sys};
use serde::Serialize;

use crate::import::folder::Folder;
use crate::import::place::Place;
use crate::import::remote::{Refused, Remote};
use crate::import::stop::Stop;
use crate::import::tar::Tar;
use crate::import::{self, Seen, Source, Summary};
use crate::target::{Target, resolve_new};
use crate::term::{Term, files_and_rates};

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
    let stop = Stop::by_signal(term)?;
    let seen = Seen { label: &label, term, stop: Some(&stop) };
    let mut through_mount = None;
    let summary = match target {
        Target::Mounted(place) => {
            let source = source(&args.src, Some(place.mount.dev))?;
            match Remote::open(&place, args.overwrite) {
                Ok(mut sink) => import::run(source, &mut sink, seen)?,
                Err(Refused::Failed(failure)) => return Err(failure),
                Err(Refused::UseMount(why)) => {
                    let why = why.line();
                    term.say(format_args!("the files go through the mount, which takes longer: {why}"));
                    through_mount = Some(why);
                    import::run(source, &mut Place::new(&place.path, args.overwrite)?, seen)?
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
    import::run(source, &mut sink, seen)
}

fn source(path: &Path, not_into: Option<u64>) -> Result<Box<dyn Source>> {
    if path.is_dir() {
        return Ok(Box::new(Folder::new(path, not_into)?));
    }
    if path != Path::new("-") && path.symlink_metadata().is_err() {
        return Err(
            Failure::new("not-found", format!("{} is not there", path.display())).next("check the path")
        );
    }
    Ok(Box::new(Tar::open(path)?))
}

fn report(args: &Args, through_mount: Option<String>, summary: Summary, term: Term) -> u8 {
    const SHOWN: usize = 10;
    for skipped in summary.skipped.iter().take(SHOWN) {
        term.say(format_args!("left out: {} ({})", skipped.path, skipped.why));
    }
    let left_out = summary.skipped.len();
    if left_out > SHOWN {
        term.say(format_args!("left out: {} more; --json lists them", left_out - SHOWN));
    }
    let outcome = Outcome { source: &args.src, destination: &args.dest, through_mount, summary };
    term.result(&outcome, || {
        let Summary { files, bytes, seconds, .. } = outcome.summary;
        let took = std::time::Duration::from_secs_f64(seconds);
        let rest = if left_out == 0 { String::new() } else { format!("; {left_out} left out") };
        format!("Imported {} in {seconds:.1} s{rest}", files_and_rates(files, bytes, took))
    });
    u8::from(left_out > 0)
}
