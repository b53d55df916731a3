//! `covey published`: lists the trees that are published in an origin.

use std::path::PathBuf;
use std::sync::Arc;

use api::error::Result;
use api::text::{bytes, count, utc};
use blob::Origin;
use node::frozen;
use node::mounts;
use node::origins;
use node::publisher::failure;
use node::volume_dir::VolumeDir;
use origin::Access;
use serde::Serialize;
use tree::TreeError;
use tree::history;
use tree::root::{self, Root, hex};

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

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// The error of a tree that cannot be read. The other fields are then empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    sequence: u64,
    published: String,
    files: u64,
    bytes: u64,
    nodes: u64,
    root: String,
    key: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let (origin, text) = origin_of(args)?;
    let names = root::names(&*origin).map_err(|error| failure("cannot list what is published", error))?;
    let mut rows = Vec::new();
    for name in names {
        if args.all {
            let kept = history::sequences(&*origin, &name);
            for sequence in kept.map_err(|error| failure("cannot list what is kept", error))? {
                rows.push(row(name.clone(), sequence, history::read(&*origin, &name, sequence, None)));
            }
        }
        let newest = Root::read(&*origin, &name, None);
        // A publication is kept before it is replaced. If that was interrupted, it is both.
        rows.pop_if(|last| {
            newest.as_ref().is_ok_and(|root| (&last.name, last.sequence) == (&name, root.sequence))
        });
        rows.push(row(name, 0, newest));
    }
    let bad = rows.iter().any(|row| row.error.is_some());
    term.result(&rows, || {
        if rows.is_empty() {
            return format!("Nothing is published in {text}. covey publish VOLUME NAME publishes a volume.");
        }
        let one = if args.all { "NAME#NUMBER" } else { "NAME" };
        table(&rows) + &format!("\nMount one: covey mount {text}@{one} MOUNTPOINT\n")
    });
    Ok(u8::from(bad))
}

/// The origin, and its address as text.
fn origin_of(args: &Args) -> Result<(Arc<dyn Origin>, String)> {
    let path = &args.volume;
    let home = match path.to_str().filter(|text| api::source::is_origin(text) && !frozen::is_folder(path)) {
        Some(text) => origins::address(text, &args.reach.reach())?,
        None => match resolve_volume(path)? {
            Target::Closed { dir, .. } => dir.home(),
            Target::Mounted(place) => match mounts::volume_of(&place.mount) {
                Some(folder) => VolumeDir::open(&folder)?.home(),
                None => match api::source::tree(&place.mount.source).and_then(|tree| tree.rsplit_once('@')) {
                    Some((origin, _)) => origins::address(origin, &args.reach.reach())?,
                    None => return Err(node::refused::not_a_volume(&place.mount.source)),
                },
            },
        },
    };
    Ok((origins::open_origin(&home, Access::ReadOnly)?, home.origin))
}

/// `sequence`: the number of a tree that cannot be read.
fn row(name: String, sequence: u64, root: std::result::Result<Root, TreeError>) -> Row {
    match root {
        Ok(root) => Row {
            name,
            error: None,
            sequence: root.sequence,
            published: utc(root.moment.seconds()),
            files: root.inodes,
            bytes: root.bytes,
            nodes: root.nodes,
            root: hex(&root.top.hash),
            key: hex(&root.key),
        },
        Err(error) => Row {
            name,
            error: Some(error.to_string()),
            sequence,
            published: String::new(),
            files: 0,
            bytes: 0,
            nodes: 0,
            root: String::new(),
            key: String::new(),
        },
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&["Name", "No. ", "Published", "Files ", "Bytes ", "Signed by"]);
    for row in rows {
        let cells = match &row.error {
            None => [
                row.sequence.to_string(),
                row.published.clone(),
                count(row.files),
                bytes(row.bytes),
                format!("{}...", &row.key[..16.min(row.key.len())]),
            ],
            Some(error) => ["-".into(), error.clone(), "-".into(), "-".into(), "-".into()],
        };
        table.row([vec![row.name.clone()], cells.to_vec()].concat());
    }
    table.text()
}
