//! `covey export`: writes the contents of a volume, mounted or not, to a folder or a tar archive.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Context, Failure, Result};
use node::mounts;
use node::opened::Node;
use node::options::NodeOptions;
use serde::Serialize;

use crate::export::archive::{Archive, Packing};
use crate::export::inside::Inside;
use crate::import::folder::Folder;
use crate::import::place::Place;
use api::answers::Skipped;
use archive::import::Sink;

use crate::import::{self, Seen, Source, Summary};
use crate::target::{Target, resolve};
use crate::term::{Term, files_and_rates};

/// Copies a volume, or a folder of it, to a folder or a tar archive (plain, gzip, zstd)
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey export /srv/volume backup.tar.zst           a volume that is not mounted\n  \
    covey export /srv/volume:/linux /tmp/linux        a folder of it, to a folder\n  \
    covey export /mnt/covey/linux - | ssh host tar -x\n\n\
    An archive is what OUT's name says: .tar, .tar.gz, .tar.zst, or - for a plain one on standard output; else OUT is a\n\
    folder. Modes, owners, times, extended attributes, ACLs, links, devices and holes go along: covey import brings all\n\
    of it back. What cannot be read is named, and the exit status is then 1."
)]
pub struct Args {
    /// A volume, VOLUME:/PATH, a mount or a folder on one
    src: PathBuf,
    /// A folder that is empty or not there yet, or an archive
    out: PathBuf,
    /// Replace the archive, or files in the folder, that are there already
    #[arg(long)]
    overwrite: bool,
}

#[derive(Debug, Serialize)]
struct Outcome<'a> {
    source: &'a Path,
    destination: &'a Path,
    #[serde(flatten)]
    summary: Summary,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if args.out == Path::new("-") && term.is_json() {
        return Err(Failure::usage("the archive and --json both want standard output")
            .next("leave --json out, or name a file"));
    }
    let packing = Packing::of(&args.out)?;
    mounts::check_way(&args.out)?;
    let summary = match resolve(&args.src)? {
        Target::Mounted(place) => {
            if !place.path.is_dir() {
                return Err(Failure::usage(format!("{} is not a folder", place.path.display()))
                    .next("copy a single file with cp"));
            }
            not_on(&args.out, place.mount.dev)?;
            let source = Box::new(Folder::new(&place.path, None)?);
            to_out(source, args, packing, term)?
        }
        Target::Closed { dir, inner } => {
            let node = Arc::new(Node::open(&dir, &NodeOptions::reading("export"))?);
            let outcome = Inside::new(node.filesystem(), &node.name(), &inner)
                .and_then(|source| to_out(Box::new(source), args, packing, term));
            // Nothing was changed, but the volume must be released cleanly.
            let closed = node.close();
            let summary = outcome?;
            closed?;
            summary
        }
    };
    Ok(report(args, summary, term))
}

/// Refuses an output on the volume that is exported, because the export would read its own output.
fn not_on(out: &Path, device: u64) -> Result<()> {
    if out == Path::new("-") {
        return Ok(());
    }
    let absolute = std::path::absolute(out).at("resolve", out)?;
    let there = absolute.ancestors().find_map(|folder| folder.metadata().ok());
    match there {
        Some(meta) if meta.dev() == device => {
            Err(Failure::usage(format!("{} lies on the volume that is exported", out.display()))
                .next("name a place elsewhere; within a volume copy with covey clone"))
        }
        _ => Ok(()),
    }
}

fn to_out(source: Box<dyn Source>, args: &Args, packing: Option<Packing>, term: Term) -> Result<Summary> {
    let label =
        args.out.file_name().map_or_else(|| "export".to_owned(), |name| name.to_string_lossy().into_owned());
    let seen = Seen { label: &label, term, stop: None };
    let Some(packing) = packing else {
        let mut sink = Place::new(&args.out, args.overwrite)?;
        if !args.overwrite && !sink.is_empty()? {
            return Err(Failure::new("exists", format!("the folder {} is not empty", args.out.display()))
                .next("name an empty folder or a new one, or replace what is there with --overwrite"));
        }
        let sink: &mut dyn Sink = &mut sink;
        return import::run(source, sink, seen);
    };
    let mut sink = Archive::create(&args.out, packing, args.overwrite)?;
    match import::run(source, &mut sink, seen) {
        Ok(mut summary) => {
            summary.skipped.extend(only_new(sink.left_out(), &summary.skipped));
            Ok(summary)
        }
        Err(failure) => {
            sink.abandon();
            Err(failure)
        }
    }
}

/// The archive's reports that the source has not made already. Both report a file that could not be read to
/// its end.
fn only_new(left_out: &[Skipped], said: &[Skipped]) -> Vec<Skipped> {
    let is_new = |one: &&Skipped| !said.iter().any(|other| Path::new(&other.path).ends_with(&one.path));
    left_out.iter().filter(is_new).cloned().collect()
}

fn report(args: &Args, summary: Summary, term: Term) -> u8 {
    const SHOWN: usize = 10;
    let left_out = summary.skipped.len();
    for skipped in summary.skipped.iter().take(SHOWN) {
        term.say(format_args!("left out: {} ({})", skipped.path, skipped.why));
    }
    if left_out > SHOWN {
        term.say(format_args!("left out: {} more; --json lists them", left_out - SHOWN));
    }
    let outcome = Outcome { source: &args.src, destination: &args.out, summary };
    let text = || {
        let Summary { files, bytes, seconds, .. } = outcome.summary;
        let took = std::time::Duration::from_secs_f64(seconds);
        let rest = if left_out == 0 { String::new() } else { format!("; {left_out} left out") };
        format!("Exported {} in {seconds:.1} s{rest}", files_and_rates(files, bytes, took))
    };
    // The archive uses standard output.
    match args.out == Path::new("-") {
        true => term.say(text()),
        false => term.result(&outcome, text),
    }
    u8::from(left_out > 0)
}
