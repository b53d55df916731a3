//! `covey info`: shows what a file consists of, and where its data is.

use std::path::PathBuf;

use api::control::Request;
use api::error::Result;
use api::info::Info;
use api::text::{bytes, count};
use node::control;
use node::opened::Node;
use node::options::NodeOptions;

use crate::table::{Pairs, Table};
use crate::target::{Target, resolve};
use crate::term::Term;

/// Shows what a file is made of, and where that is: inode, extents, packs, blobs
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey info /mnt/covey/usr/bin/git\n  covey info /srv/volume:/usr/bin/git      a volume that is not mounted\n  \
    covey info /mnt/covey/data.bin --extents --json\n\n\
    Where a pack is: open here (still being written), here (on this machine), here, not uploaded (the origin does not have it\n\
    yet), origin (there only; a read fetches it), another node (which writes it, and has the volume mounted), absent node (it had the\n\
    bytes, and has not the volume mounted: reads fail), lost (damage: see covey fsck)."
)]
pub struct Args {
    /// A path on a mount, or VOLUME:/PATH
    path: PathBuf,
    /// List every pack, however many there are
    #[arg(long)]
    all: bool,
    /// List every extent: where in the file, how long, where in which pack
    #[arg(long)]
    extents: bool,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let info: Info = match resolve(&args.path)? {
        Target::Mounted(place) => {
            let request = Request::Info { path: place.inner().into(), list: args.extents };
            control::ask(&place.address(), &request, &mut |_| ())?
        }
        Target::Closed { dir, inner } => {
            let node = Node::open(&dir, &NodeOptions::reading("info"))?;
            let info = node.info(&inner, args.extents);
            node.close()?;
            info?
        }
    };
    term.result(&info, || text(&info, if args.all { usize::MAX } else { 20 }));
    Ok(0)
}

fn text(info: &Info, most: usize) -> String {
    let mut pairs = Pairs::new();
    pairs
        .row("inode", info.inode.to_string())
        .row("kind", &info.kind)
        .row("mode", format!("{:04o}", info.mode & 0o7777))
        .row("owner", format!("{}:{}", info.uid, info.gid))
        .row("links", count(u64::from(info.links)))
        .row("size", format!("{} ({})", bytes(info.size), count(info.size)))
        .row("stored", bytes(info.stored_bytes))
        .row("modified", &info.modified);
    match info.inline {
        true => pairs.row("bytes", "kept among the names"),
        false => {
            pairs.row("extents", format!("{} in {} pages of 4 MiB", count(info.extents), count(info.pages)))
        }
    };
    let mut text = pairs.text();
    if info.packs.is_empty() {
        return text;
    }
    let mut table = Table::new(&["pack ", "state", "where", "extents ", "bytes ", "blob"]);
    for pack in info.packs.iter().take(most) {
        let blob = pack.blob.clone().unwrap_or_else(|| "-".to_owned());
        table.row(vec![
            pack.pack.to_string(),
            pack.state.clone(),
            pack.place.clone(),
            count(pack.extents),
            bytes(pack.bytes),
            blob,
        ]);
    }
    text.push('\n');
    text.push_str(&table.text());
    if info.packs.len() > most {
        text.push_str(&format!("and {} more: covey info --all\n", info.packs.len() - most));
    }
    if !info.extent_list.is_empty() {
        text.push('\n');
        text.push_str(&extents(info));
    }
    text
}

fn extents(info: &Info) -> String {
    let mut table = Table::new(&["at ", "bytes ", "pack ", "offset "]);
    for extent in &info.extent_list {
        let numbers = [extent.at, u64::from(extent.len), extent.pack, u64::from(extent.offset)];
        table.row(numbers.map(|number| number.to_string()).into());
    }
    let mut text = table.text();
    let more = info.extents.saturating_sub(info.extent_list.len() as u64);
    if more > 0 {
        text.push_str(&format!("and {} more, which are not listed\n", count(more)));
    }
    text
}
