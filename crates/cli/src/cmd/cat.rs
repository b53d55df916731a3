//! `covey cat`: writes files of a published tree or of a volume to standard output, without a mount.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use api::error::{Failure, Result};
use fs::api::{Attr, FileKind};
use node::errno::errno_failure;

use crate::reading::{Opened, Way};
use crate::term::Term;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// Writes a file of a published tree or of a volume to standard output, without a mount
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey cat s3://bucket/prefix@latest:/data/prices.csv | head\n  \
    covey cat /srv/volume:/notes.txt      of a volume that is not mounted")]
pub struct Args {
    /// ORIGIN@NAME or a volume's folder, and :/PATH
    #[arg(value_name = "TREE:/PATH")]
    path: PathBuf,
    #[command(flatten)]
    way: Way,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if term.is_json() {
        return Err(Failure::usage("the file and --json both want standard output")
            .next("leave --json out; covey ls --json shows what a file is"));
    }
    let opened = Opened::open(&args.path, &args.way, "cat")?;
    opened.close(|opened| copy(opened, &opened.find()?, &mut io::stdout().lock()))?;
    Ok(0)
}

/// Writes a whole file. A reader that goes away is no error.
pub fn copy(opened: &Opened, file: &Attr, out: &mut dyn Write) -> Result<()> {
    let failed = |errno| errno_failure(format!("cannot read {}", opened.shown()), errno);
    if file.kind != FileKind::File {
        let shown = opened.shown();
        return Err(Failure::usage(format!("{shown} is not a file")).next(format!("covey ls {shown}")));
    }
    let volume = opened.node.filesystem();
    let mut buf = vec![0; PIECE];
    let mut at = 0;
    loop {
        let len = volume.read(file.ino, at, &mut buf).map_err(failed)?;
        if len == 0 {
            break;
        }
        at += len as u64;
        match out.write_all(&buf[..len]) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            done => done.map_err(|error| cannot_write(&error))?,
        }
    }
    match out.flush() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(cannot_write(&error)),
        _ => Ok(()),
    }
}

fn cannot_write(error: &io::Error) -> Failure {
    Failure::io("cannot write the file's bytes", error)
}
