//! `covey peers`: who is in the fleet, as one of its nodes sees it.

use std::path::{Path, PathBuf};

use crate::control::{self, Ear, Request};
use crate::error::{Failure, Result};
use crate::fleet::shown::PeerRow;
use crate::table::{Table, bytes};
use crate::target::{Target, resolve};
use crate::term::Term;

/// Shows who is in the fleet, as a node on this machine sees it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey peers /mnt/models\n  covey peers /var/cache/depot --json      a depot, by its folder\n\n\
    A node is silent when it has not answered this one lately; one that stays away goes from the list within some ten seconds."
)]
pub struct Args {
    /// A mount that is a node of a fleet, or a depot's folder
    place: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let rows: Vec<PeerRow> = control::ask(&ear(&args.place)?, &Request::Peers, &mut |_| ())?;
    term.result(&rows, || table(&rows));
    Ok(0)
}

fn ear(place: &Path) -> Result<Ear> {
    if place.join("depot.lock").is_file() {
        return Ok(Ear::of_source(place));
    }
    match resolve(place)? {
        Target::Mounted(place) => Ok(place.ear()),
        Target::Closed { .. } => Err(no_fleet(&place.display().to_string())),
    }
}

/// What is no node of a fleet is told.
pub fn no_fleet(name: &str) -> Failure {
    Failure::new("no-fleet", format!("{name} is no node of a fleet"))
        .next("mount a published tree with --join HOST:PORT, or begin a fleet with --listen ADDRESS:PORT")
}

fn table(rows: &[PeerRow]) -> String {
    let mut table = Table::new(&["NODE", "ADDRESS", "ZONE", "ROLE", "STARTS ", "FREE ", "TO SEND ", "STATE"]);
    for row in rows {
        let short: String = row.node.chars().take(8).collect();
        table.row(vec![
            short,
            row.address.clone(),
            row.zone.clone(),
            row.role.clone(),
            (row.generation >> 16).to_string(),
            bytes(u64::from(row.free_mib) << 20),
            bytes(u64::from(row.load_mib) << 20),
            row.state.clone(),
        ]);
    }
    table.text()
}
