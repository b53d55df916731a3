//! Exports from a volume: further sources and sinks for [`crate::transfer`], and the whole of an export.
//!
//! ```text
//!   import::folder  (a path on a mount) ────┐                        ┌── import::place  (a folder)
//!                                           ├── items, with contents ┤
//!   inside          (a volume not mounted) ─┘                        └── tar  (plain or compressed)
//! ```
//!
//! An export followed by an import preserves everything: names of any bytes, modes, owners, times to the
//! nanosecond, extended attributes and ACLs, hard and symbolic links, device nodes, holes.

pub mod inside;
pub mod tar;

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use api::answers::Skipped;
use api::error::{Context, Failure, Result};

use crate::import::place::Place;
use crate::transfer::{self, Source, Summary, Watch};

use tar::{Archive, Packing};

/// Where an export goes.
pub enum Out<'a> {
    /// A folder. It is created if its parent exists.
    Folder(&'a Path),
    /// An archive at this path.
    Archive(&'a Path, Packing),
    /// An archive without compression, to a stream that has a name for people.
    Stream(&'a str, Box<dyn Write>),
}

/// Copies everything from the source. `overwrite` replaces the archive, or files in the folder.
///
/// # Errors
/// Something is there already and must not be replaced, or the source or the destination failed.
pub fn run(source: Box<dyn Source>, out: Out<'_>, overwrite: bool, watch: Watch<'_>) -> Result<Summary> {
    let mut sink = match out {
        Out::Folder(path) => {
            let mut sink = Place::new(path, overwrite)?;
            if !overwrite && !sink.is_empty()? {
                return Err(Failure::new("exists", format!("the folder {} is not empty", path.display()))
                    .next("name an empty folder or a new one, or replace what is there with --overwrite"));
            }
            return transfer::run(source, &mut sink, watch);
        }
        Out::Archive(path, packing) => Archive::create(path, packing, overwrite)?,
        Out::Stream(name, to) => Archive::stream(name, to, Packing::Plain)?,
    };
    match transfer::run(source, &mut sink, watch) {
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

/// Refuses an output on the device of the volume that is exported, because the export would read its own
/// output.
///
/// # Errors
/// The output lies there.
pub fn check_not_on(out: &Path, device: u64) -> Result<()> {
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

/// The archive's reports that the source has not made already. Both report a file that could not be read to
/// its end.
fn only_new(left_out: &[Skipped], said: &[Skipped]) -> Vec<Skipped> {
    let is_new = |one: &&Skipped| !said.iter().any(|other| Path::new(&other.path).ends_with(&one.path));
    left_out.iter().filter(is_new).cloned().collect()
}
