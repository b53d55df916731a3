//! `covey sessions`: lists the nodes of a shared volume, as its database knows them.

use std::path::PathBuf;

use api::error::Result;
use node::shared::listed::{self, SessionRow};

use crate::table::Table;
use crate::target::{names_of, not_shared};
use crate::term::Term;

/// Shows which nodes use a shared volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey sessions /mnt/work\n  covey sessions 'postgres://covey@db/covey?volume=work'\n\n\
    A session ends when its node unmounts. The session of a node that died expires by itself."
)]
pub struct Args {
    /// A mount of the volume, a node's folder, or its address: postgres://... or etcd://...
    place: PathBuf,
    /// Also nodes that have left
    #[arg(long)]
    all: bool,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut rows = listed::sessions(&names_of(&args.place)?.ok_or_else(|| not_shared(&args.place))?)?;
    rows.retain(|row| args.all || row.alive);
    term.result(&rows, || table(&rows));
    Ok(0)
}

fn table(rows: &[SessionRow]) -> String {
    let mut table = Table::new(&["NODE ", "HOST", "ADDRESS", "STARTS ", "PROGRAM", "EXPIRES IN ", "STATE"]);
    for row in rows {
        let left = row.expires_in_ms.max(0) / 1000;
        table.row(vec![
            row.number.to_string(),
            row.host.clone(),
            row.address.clone(),
            row.epoch.to_string(),
            if row.program.is_empty() { "-".to_owned() } else { row.program.clone() },
            if row.alive { format!("{left} s") } else { "-".to_owned() },
            if row.alive { "alive".to_owned() } else { "left".to_owned() },
        ]);
    }
    table.text()
}
