//! `covey ls`: lists a folder of a published tree or of a volume, without a mount.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use api::text::{Lines, shown, utc};
use base::Ino;
use fs::api::{Attr, FileKind, Filesystem};
use node::errno::errno_failure;
use serde::Serialize;

use crate::reading::{Opened, Way};
use crate::term::Term;

/// The most folders below one another that are listed.
const DEPTH: usize = 1000;

/// Lists a folder of a published tree or of a volume, without a mount
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey ls s3://bucket/prefix@latest:/data\n  covey ls -l s3://bucket/prefix@daily#42:/data/2026\n  \
    covey ls -R /srv/volume:/models --json      of a volume that is not mounted"
)]
pub struct Args {
    /// ORIGIN@NAME, a volume's folder, or one of them and :/PATH
    #[arg(value_name = "TREE:/PATH")]
    path: PathBuf,
    /// Show mode, links, owner, group, size and time too
    #[arg(short, long)]
    long: bool,
    /// List the folders below too
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    way: Way,
}

/// One name. Its path is relative to what was asked for.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(with = "api::raw_path")]
    path: PathBuf,
    kind: &'static str,
    /// Permission bits in octal.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    modified: String,
    inode: u64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let opened = Opened::open(&args.path, &args.way, "ls")?;
    let rows = opened.close(|opened| {
        let found = opened.find()?;
        let mut rows = Vec::new();
        match found.kind {
            FileKind::Dir => list(opened, found.ino, Path::new(""), args.recursive, &mut rows)?,
            _ => {
                let name = opened.inner.file_name().map(PathBuf::from).unwrap_or_default();
                rows.push(row(name, &found));
            }
        }
        Ok(rows)
    })?;
    let line = if args.long { long } else { short };
    term.result(&rows, || rows.iter().map(line).collect::<Vec<_>>().join("\n"));
    Ok(0)
}

/// Adds the entries of a folder in the order of their names, and those below if asked for.
fn list(opened: &Opened, dir: Ino, path: &Path, below: bool, rows: &mut Vec<Row>) -> Result<()> {
    let volume = opened.node.filesystem();
    let failed = |errno| errno_failure(format!("cannot list {}/{}", opened.shown(), path.display()), errno);
    if path.components().count() > DEPTH {
        return Err(Failure::new("damaged", format!("{} is nested too deep", opened.shown()))
            .next("list a folder further down"));
    }
    for (name, ino) in entries(&*volume, dir).map_err(failed)? {
        let attr = volume.getattr(ino).map_err(failed)?;
        let path = path.join(OsStr::from_bytes(&name));
        rows.push(row(path.clone(), &attr));
        if below && attr.kind == FileKind::Dir {
            list(opened, ino, &path, below, rows)?;
        }
    }
    Ok(())
}

fn entries(volume: &dyn Filesystem, dir: Ino) -> fs::api::Result<Vec<(Vec<u8>, Ino)>> {
    let mut found = Vec::new();
    volume.readdir(dir, 0, &mut |entry| {
        if ![&b"."[..], b".."].contains(&entry.name) {
            found.push((entry.name.to_vec(), entry.ino));
        }
        ControlFlow::Continue(())
    })?;
    found.sort();
    Ok(found)
}

fn row(path: PathBuf, attr: &Attr) -> Row {
    let kind = match attr.kind {
        FileKind::File => "file",
        FileKind::Dir => "folder",
        FileKind::Symlink => "link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    };
    Row {
        path,
        kind,
        mode: format!("{:04o}", attr.perm),
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        modified: utc(attr.mtime.seconds()),
        inode: attr.ino.0,
    }
}

fn short(row: &Row) -> String {
    let slash = if row.kind == "folder" { "/" } else { "" };
    format!("{}{slash}", shown(&row.path.to_string_lossy(), Lines::One))
}

fn long(row: &Row) -> String {
    let Row { mode, links, uid, gid, size, modified, .. } = row;
    let first = row.kind.as_bytes().first().map_or('?', |byte| match row.kind {
        "file" => '-',
        "folder" => 'd',
        _ => char::from(*byte),
    });
    format!("{first} {mode} {links:>4} {uid:>6} {gid:>6} {size:>14}  {modified}  {}", short(row))
}
