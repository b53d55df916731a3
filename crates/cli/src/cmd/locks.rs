//! `covey locks`: lists the locks that programs on the nodes of a shared volume hold.

use std::path::PathBuf;

use api::error::Result;
use node::shared::checking::{self, LockRow};

use crate::table::Table;
use crate::target::{names_of, not_shared};
use crate::term::Term;

/// Shows which locks on files of a shared volume are held, and by which node
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey locks /mnt/work\n  covey locks 'postgres://covey@db/covey?volume=work'\n\n\
    Only locks of nodes that are mounted with -o locks=fleet are listed: other nodes keep theirs to themselves. A lock whose\n\
    session has ended holds nobody up: the next program that wants it gets it."
)]
pub struct Args {
    /// A mount of the volume, a node's folder, or its address: postgres://... or etcd://...
    place: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let rows = checking::locks(&names_of(&args.place)?.ok_or_else(|| not_shared(&args.place))?)?;
    term.result(&rows, || match rows.is_empty() {
        true => "No node holds a lock.".to_owned(),
        false => table(&rows),
    });
    Ok(0)
}

fn table(rows: &[LockRow]) -> String {
    let mut table = Table::new(&[
        "INODE ", "LOCK", "KIND", "RANGE", "NODE ", "HOST", "SESSION ", "PID ", "STATE", "PATH",
    ]);
    for row in rows {
        table.row(vec![
            row.inode.to_string(),
            row.style.to_owned(),
            row.kind.to_owned(),
            range(row),
            row.node.to_string(),
            row.host.clone().unwrap_or_else(|| "-".to_owned()),
            row.session.to_string(),
            row.pid.to_string(),
            if row.alive { "held".to_owned() } else { "session ended".to_owned() },
            row.path.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table.text()
}

fn range(row: &LockRow) -> String {
    match (row.start, row.end) {
        (0, None) => "whole file".to_owned(),
        (start, None) => format!("{start}-"),
        (start, Some(end)) => format!("{start}-{end}"),
    }
}
