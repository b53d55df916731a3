//! `covey cp`: copies a file or a folder of a published tree or of a volume, without a mount.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use api::error::{Context, Failure, Result};
use archive::export::inside::Inside;
use archive::export::{self, Out};
use fs::api::{Attr, FileKind};
use serde::Serialize;

use crate::cmd::cat;
use crate::copying::{self, Seen};
use crate::reading::{Opened, Way};
use crate::term::Term;

/// Copies a file or a folder of a published tree or of a volume, without a mount
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey cp s3://bucket/prefix@latest:/data/prices.csv .\n  \
    covey cp -r s3://bucket/prefix@daily#42:/models /tmp/models\n\n\
    As with cp, what is copied to a folder that exists gets its own name there. A file appears whole or not at all.")]
pub struct Args {
    /// ORIGIN@NAME or a volume's folder, and :/PATH
    #[arg(value_name = "TREE:/PATH")]
    from: PathBuf,
    /// Where to on this machine
    to: PathBuf,
    /// Copy a folder and everything below it
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    way: Way,
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(with = "api::raw_path")]
    destination: PathBuf,
    files: u64,
    bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let opened = Opened::open(&args.from, &args.way, "cp")?;
    opened.close(|opened| {
        let found = opened.find()?;
        let to = destination(args, opened)?;
        match found.kind {
            FileKind::Dir if !args.recursive => {
                Err(Failure::usage(format!("{} is a folder", opened.shown()))
                    .next("copy it with covey cp -r"))
            }
            FileKind::Dir => folder(opened, &to, term),
            _ => {
                file(opened, &found, &to)?;
                let outcome = Outcome { destination: to, files: 1, bytes: found.size };
                term.result(&outcome, || format!("Copied {}.", outcome.destination.display()));
                Ok(0)
            }
        }
    })
}

/// Where the copy goes: into a folder that exists, under its own name.
fn destination(args: &Args, opened: &Opened) -> Result<PathBuf> {
    if !args.to.is_dir() {
        return Ok(args.to.clone());
    }
    match opened.inner.file_name() {
        Some(name) => Ok(args.to.join(name)),
        None if args.recursive => Ok(args.to.clone()),
        None => {
            Err(Failure::usage(format!("{} is a folder", opened.shown())).next("copy it with covey cp -r"))
        }
    }
}

fn folder(opened: &Opened, to: &Path, term: Term) -> Result<u8> {
    let source = Inside::new(opened.node.filesystem(), &opened.node.name(), &opened.inner)?;
    let label = to.display().to_string();
    let seen = Seen { label: &label, term, stop: None };
    let summary = seen.watch(|watch| export::run(Box::new(source), Out::Folder(to), true, watch))?;
    let left_out = copying::say_left_out(&summary.skipped, term);
    term.result(&summary, || copying::in_words("Copied", &summary));
    Ok(u8::from(left_out))
}

/// Copies one file. It gets its name when it is whole.
fn file(opened: &Opened, from: &Attr, to: &Path) -> Result<()> {
    let name = to.file_name().ok_or_else(|| {
        Failure::usage(format!("{} is no name of a file", to.display())).next("name the copy, or a folder")
    })?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = std::ffi::OsString::from(".");
    part.push(name);
    part.push(format!(".{:016x}", base::random::u64()));
    let part = folder.join(part);
    let mut out = File::create_new(&part).at("create", &part)?;
    let written = cat::copy(opened, from, &mut out).and_then(|()| {
        out.set_permissions(Permissions::from_mode(u32::from(from.perm & 0o777)))
            .at("set the mode of", &part)?;
        let since = Duration::try_from_secs_f64(from.mtime.seconds() as f64).unwrap_or_default();
        out.set_modified(SystemTime::UNIX_EPOCH + since).at("set the time of", &part)?;
        std::fs::rename(&part, to).at("create", to)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}
