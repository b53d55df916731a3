//! `covey sessions`: lists the nodes of a shared volume, as its database knows them.

use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use node::shared::listed::{self, SessionRow};

use crate::table::Table;
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// Shows which nodes use a shared volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey sessions /mnt/work\n  covey sessions 'postgres://covey@db/covey?volume=work'\n\n\
    A session ends when its node unmounts. The session of a node that died expires by itself."
)]
pub struct Args {
    /// A mount of the volume, a node's folder, or postgres://USER@HOST/DATABASE?volume=NAME
    place: PathBuf,
    /// Also nodes that have left
    #[arg(long)]
    all: bool,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut rows = listed::sessions(&address(&args.place)?)?;
    rows.retain(|row| args.all || row.alive);
    term.result(&rows, || table(&rows));
    Ok(0)
}

/// The address of the volume's names.
fn address(place: &Path) -> Result<String> {
    if node::shared::making::is_address(place) {
        return Ok(place.to_string_lossy().into_owned());
    }
    let dir = match resolve_volume(place)? {
        Target::Mounted(place) => node::volume_dir::VolumeDir::open(Path::new(&place.mount.source)).ok(),
        Target::Closed { dir, .. } => Some(dir),
    };
    dir.and_then(|dir| dir.format().names.clone()).ok_or_else(|| {
        Failure::new("not-shared", format!("{} is no shared volume", place.display()))
            .why("one process uses it at a time")
            .next("covey format postgres://USER@HOST/DATABASE?volume=NAME --origin URL makes a shared one")
    })
}

fn table(rows: &[SessionRow]) -> String {
    let mut table = Table::new(&["NODE ", "HOST", "ADDRESS", "STARTS ", "EXPIRES IN ", "STATE"]);
    for row in rows {
        let left = row.expires_in_ms.max(0) / 1000;
        table.row(vec![
            row.number.to_string(),
            row.host.clone(),
            row.address.clone(),
            row.epoch.to_string(),
            if row.alive { format!("{left} s") } else { "-".to_owned() },
            if row.alive { "alive".to_owned() } else { "left".to_owned() },
        ]);
    }
    table.text()
}
