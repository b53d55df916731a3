//! `covey published`: lists the trees that are published in an origin.

use std::path::PathBuf;

use api::answers::{Published, PublishedTree};
use api::control::Request;
use api::error::Result;
use api::text::{bytes, count};
use node::volume_dir::VolumeDir;
use node::{control, frozen, mounts, origins};
use origin::Access;

use crate::args::Reach;
use crate::table::Table;
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// Lists what is published
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey published /srv/volume\n  covey published file:/srv/volume/blobs --json      without the volume\n  covey published --all /srv/volume      older publications too"
)]
pub struct Args {
    /// A volume's folder, a path on a mount, or an origin
    volume: PathBuf,
    /// List the older publications too that are kept: each can be mounted as ORIGIN@NAME#NUMBER
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let Published { origin, trees } = published(args)?;
    let bad = trees.iter().any(|tree| tree.error.is_some());
    term.result(&trees, || {
        if trees.is_empty() {
            return format!(
                "Nothing is published in {origin}. covey publish VOLUME NAME publishes a volume."
            );
        }
        let one = if args.all { "NAME#NUMBER" } else { "NAME" };
        table(&trees) + &format!("\nMount one: covey mount {origin}@{one} MOUNTPOINT\n")
    });
    Ok(u8::from(bad))
}

fn published(args: &Args) -> Result<Published> {
    let path = &args.volume;
    let home = match path.to_str().filter(|text| api::source::is_origin(text) && !frozen::is_folder(path)) {
        Some(text) => origins::address(text, &args.reach.reach())?,
        None => match resolve_volume(path)? {
            Target::Closed { dir, .. } => dir.home(),
            Target::Mounted(place) => match mounts::volume_of(&place.mount) {
                Some(folder) => match VolumeDir::open(&folder) {
                    Ok(dir) => dir.home(),
                    // Members of the group that may publish cannot enter the folder. Its daemon can.
                    Err(failure) if failure.code == "not-permitted" => {
                        return control::ask(
                            &place.address(),
                            &Request::Published { all: args.all },
                            &mut |_| (),
                        );
                    }
                    Err(failure) => return Err(failure),
                },
                None => match api::source::tree(&place.mount.source).and_then(|tree| tree.rsplit_once('@')) {
                    Some((origin, _)) => origins::address(origin, &args.reach.reach())?,
                    None => return Err(node::refused::not_a_volume(&place.mount.source)),
                },
            },
        },
    };
    let origin = origins::open_origin(&home, Access::ReadOnly)?;
    Ok(Published { trees: node::published::list(&*origin, args.all)?, origin: home.origin })
}

fn table(rows: &[PublishedTree]) -> String {
    let mut table = Table::new(&["Name", "No. ", "Published", "Files ", "Bytes ", "Signed by"]);
    for row in rows {
        let cells = match &row.error {
            None => [
                row.sequence.to_string(),
                row.published.clone(),
                count(row.files),
                bytes(row.bytes),
                match &row.source {
                    None => format!("{}...", &row.key[..16.min(row.key.len())]),
                    Some(source) => format!("{}..., files in {source}", &row.key[..16.min(row.key.len())]),
                },
            ],
            Some(error) => ["-".into(), error.clone(), "-".into(), "-".into(), "-".into()],
        };
        table.row([vec![row.name.clone()], cells.to_vec()].concat());
    }
    table.text()
}
