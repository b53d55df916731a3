//! `covey locks`: lists the locks that programs on the nodes of a shared volume hold, and changes where locks
//! hold.

use std::path::PathBuf;

use api::error::Result;
use fs::api::Locks;
use node::shared::checking::{self, LockRow};
use node::shared::locking;

use crate::table::Table;
use crate::target::{names_of, not_shared};
use crate::term::Term;

/// Shows which locks on files of a shared volume are held, and by which node; sets where they hold
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey locks /mnt/work\n  covey locks 'postgres://covey@db/covey?volume=work'\n  \
    covey locks 'postgres://covey@db/covey?volume=work' --set local\n\n\
    A volume with locks=local has no list: each node keeps its locks to itself. A lock whose session has ended holds\n\
    nobody up: the next program that wants it gets it. --set needs a volume that no node has mounted."
)]
pub struct Args {
    /// A mount of the volume, a node's folder, or its address: postgres://... or etcd://...
    place: PathBuf,
    /// Where locks hold from now on: on all nodes, or on each machine for itself
    #[arg(long, value_name = "WHERE")]
    set: Option<Where>,
}

/// Where locks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    /// On all nodes
    Fleet,
    /// On each machine for itself
    Local,
}

#[derive(serde::Serialize)]
struct Changed {
    before: Option<&'static str>,
    locks: &'static str,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let address = names_of(&args.place)?.ok_or_else(|| not_shared(&args.place))?;
    if let Some(wanted) = args.set {
        let wanted = if wanted == Where::Fleet { Locks::Fleet } else { Locks::Local };
        let before = locking::set(&address, wanted)?.map(locking::word);
        let locks = locking::word(wanted);
        term.result(&Changed { before, locks }, || match before {
            Some(before) => format!("The volume has locks={locks} now. Before, it had locks={before}."),
            None => format!("The volume has locks={locks} now."),
        });
        return Ok(0);
    }
    let rows = checking::locks(&address)?;
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
