//! `covey export`: writes the contents of a volume, mounted or not, to a folder or a tar archive.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Context, Failure, Result};
use archive::export::inside::Inside;
use archive::export::tar::Packing;
use archive::export::{self, Out};
use archive::import::folder::Folder;
use archive::transfer::{Source, Summary};
use node::mounts;
use node::opened::Node;
use node::options::NodeOptions;
use serde::Serialize;

use crate::copying::{self, Seen};
use crate::reading::{self, Opened, Way};
use crate::target::{Target, resolve};
use crate::term::Term;

/// Copies a volume, or a folder of it, to a folder or a tar archive (plain, gzip, zstd)
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey export /srv/volume backup.tar.zst           a volume that is not mounted\n  \
    covey export /srv/volume:/linux /tmp/linux        a folder of it, to a folder\n  \
    covey export /mnt/covey/linux - | ssh host tar -x\n  \
    covey export s3://bucket/prefix@daily#42:/data /tmp/data        of a published tree\n\n\
    An archive is what OUT's name says: .tar, .tar.gz, .tar.zst, or - for a plain one on standard output; else OUT is a\n\
    folder. Modes, owners, times, extended attributes, ACLs, links, devices and holes go along: covey import brings all\n\
    of it back. What cannot be read is named, and the exit status is then 1."
)]
pub struct Args {
    /// A volume, VOLUME:/PATH, a mount or a folder on one, or a published tree: ORIGIN@NAME:/PATH
    src: PathBuf,
    /// A folder that is empty or not there yet, or an archive
    out: PathBuf,
    /// Replace the archive, or files in the folder, that are there already
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    way: Way,
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
    let to_stdout = args.out == Path::new("-");
    if to_stdout && term.is_json() {
        return Err(Failure::usage("the archive and --json both want standard output")
            .next("leave --json out, or name a file"));
    }
    let packing = Packing::of(&args.out)?;
    mounts::check_way(&args.out)?;
    if reading::split(&args.src).is_some() {
        let summary = Opened::open(&args.src, &args.way, "export")?.close(|opened| {
            let source = Inside::new(opened.node.filesystem(), &opened.node.name(), &opened.inner)?;
            to_out(Box::new(source), args, packing, term)
        })?;
        return Ok(report(args, summary, term));
    }
    let summary = match resolve(&args.src)? {
        Target::Mounted(place) => {
            let about = place.path.metadata().at("open", &place.path);
            if !about.map_err(|failure| place.explained(failure))?.is_dir() {
                return Err(Failure::usage(format!("{} is not a folder", place.path.display()))
                    .next("copy a single file with cp"));
            }
            if !to_stdout {
                export::check_not_on(&args.out, place.mount.dev)?;
            }
            let exported = Folder::new(&place.path, None)
                .and_then(|source| to_out(Box::new(source), args, packing, term));
            exported.map_err(|failure| place.explained(failure))?
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

fn to_out(source: Box<dyn Source>, args: &Args, packing: Option<Packing>, term: Term) -> Result<Summary> {
    let label =
        args.out.file_name().map_or_else(|| "export".to_owned(), |name| name.to_string_lossy().into_owned());
    let out = match packing {
        _ if args.out == Path::new("-") => {
            if io::stdout().is_terminal() {
                return Err(Failure::usage("an archive would be written to the terminal")
                    .next("send it on: covey export ... - > FILE.tar, or ... - | ssh HOST tar -x"));
            }
            Out::Stream("-", Box::new(io::stdout()))
        }
        Some(packing) => Out::Archive(&args.out, packing),
        None => Out::Folder(&args.out),
    };
    let seen = Seen { label: &label, term, stop: None };
    seen.watch(|watch| export::run(source, out, args.overwrite, watch))
}

fn report(args: &Args, summary: Summary, term: Term) -> u8 {
    let left_out = copying::say_left_out(&summary.skipped, term);
    let outcome = Outcome { source: &args.src, destination: &args.out, summary };
    let text = || copying::in_words("Exported", &outcome.summary);
    // The archive uses standard output.
    match args.out == Path::new("-") {
        true => term.say(text()),
        false => term.result(&outcome, text),
    }
    u8::from(left_out)
}
