//! `covey peers`: lists the nodes of a fleet, as one of them sees it. That is a node on this machine, or any
//! node reachable over the network.

use std::path::{Path, PathBuf};

use api::control::Request;
use api::error::{Failure, Result};
use api::status::fleet::{HolderRow, PeerRow};
use api::text::bytes;
use node::control;
use node::fleet::{lent, look};
use node::refused::no_fleet;

use crate::args::fleet::Tls;
use crate::table::Table;
use crate::target::{Target, resolve, resolve_volume};
use crate::term::Term;

/// Shows who is in the fleet, as one of its nodes sees it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey peers /mnt/models\n  covey peers /var/cache/depot --json      a depot or a lender, by its folder\n  \
    covey peers --holding /mnt/models/weights      which nodes have the blobs of a file\n  \
    covey peers --join 10.0.0.1:7171 --secret-file /etc/covey/secret      a fleet that this machine is no part of\n\n\
    A node is silent when it has not answered the one that is asked lately; one that stays away goes from the list within some ten seconds."
)]
pub struct Args {
    /// A mount that is a node of a fleet, or the folder of a depot or lender
    #[arg(conflicts_with = "join")]
    place: Option<PathBuf>,
    /// Ask a node of a fleet from outside: any of these that answers. Nothing is joined by that
    #[arg(long, value_name = "HOST:PORT,...")]
    join: Option<String>,
    /// The file with the fleet's secret
    #[arg(long, value_name = "FILE", env = "COVEY_SECRET_FILE", hide_env = true)]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
    /// How many blobs of this file each node has. The file names its mount, too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "place"])]
    holding: Option<PathBuf>,
    /// Only the nodes of this zone
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let is_wanted = |row: &PeerRow| args.zone.as_ref().is_none_or(|zone| row.zone == *zone);
    if let Some(file) = &args.holding {
        let mut rows = holding(file)?;
        rows.retain(|row| is_wanted(&row.peer));
        term.result(&rows, || holders(&rows));
        return Ok(0);
    }
    let mut rows = match (&args.join, &args.place) {
        (Some(join), _) => look::look(join, args.secret_file.as_deref(), &args.tls.options())?,
        (None, Some(place)) => of(place)?,
        (None, None) => {
            return Err(Failure::usage("no node of a fleet was named")
                .next("name a mount, or the folder of a depot or lender: covey peers PLACE")
                .next("or ask a node from outside: covey peers --join HOST:PORT --secret-file FILE"));
        }
    };
    rows.retain(is_wanted);
    term.result(&rows, || table(&rows));
    Ok(0)
}

fn of(place: &Path) -> Result<Vec<PeerRow>> {
    if lent::is_one(place) {
        return lent::ask(place, &Request::Peers);
    }
    match resolve_volume(place)? {
        Target::Mounted(place) => control::ask(&place.address(), &Request::Peers, &mut |_| ()),
        Target::Closed { .. } => Err(no_fleet(&place.display().to_string())),
    }
}

/// What each node has of a file.
fn holding(file: &Path) -> Result<Vec<HolderRow>> {
    let Target::Mounted(place) = resolve(file)? else {
        return Err(Failure::new("not-mounted", format!("{} is on no mount", file.display()))
            .next("covey df lists the mounts"));
    };
    control::ask(&place.address(), &Request::Holders { path: place.inner().into() }, &mut |_| ())
}

fn holders(rows: &[HolderRow]) -> String {
    let mut table = Table::new(&["NODE", "ADDRESS", "ZONE", "ROLE", "HAS ", "STATE"]);
    for HolderRow { peer, asked, held } in rows {
        let has = held.map_or_else(|| "no answer".to_owned(), |held| format!("{held} of {asked}"));
        let short: String = peer.node.chars().take(8).collect();
        let row =
            [short, peer.address.clone(), peer.zone.clone(), peer.role.clone(), has, peer.state.clone()];
        table.row(row.to_vec());
    }
    table.text()
}

fn table(rows: &[PeerRow]) -> String {
    let mut table =
        Table::new(&["NODE", "ADDRESS", "ZONE", "ROLE", "WEIGHT ", "STARTS ", "FREE ", "TO SEND ", "STATE"]);
    for row in rows {
        let short: String = row.node.chars().take(8).collect();
        table.row(vec![
            short,
            row.address.clone(),
            row.zone.clone(),
            row.role.clone(),
            row.weight.to_string(),
            (row.generation >> 16).to_string(),
            bytes(u64::from(row.free_mib) << 20),
            bytes(u64::from(row.load_mib) << 20),
            row.state.clone(),
        ]);
    }
    table.text()
}
