//! `covey cache`: shows what a node's disk holds of a remote origin, and evicts from it.

use std::path::{Path, PathBuf};

use api::answers::Evicted;
use api::control::Request;
use api::error::{Failure, Result};
use api::status::Status;
use api::status::fleet::LentStatus;
use api::status::remote_side::RemoteStatus;
use api::text::{bytes, count};
use clap::Subcommand;
use node::control;
use node::fleet::lent;
use node::opened::Node;
use node::options::NodeOptions;
use node::refused::no_cache;
use node::remote_side::options::parse_size;

use crate::rows;
use crate::table::Pairs;
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// Shows what this node's disk keeps of a remote origin, or lets go of it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey cache status /mnt/covey\n  covey cache evict --to 10G /mnt/covey\n  covey cache evict --all /srv/volume      also one that is not mounted\n  \
    covey cache status /srv/depot            a depot or a lender, by its folder\n\n\
    What the origin does not have yet is never let go of: covey flush brings it there."
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show how much is kept, and how often it was what was asked for
    ///
    /// Example: covey cache status /mnt/covey
    Status {
        /// A path on a mount, a volume's folder, or a depot's
        volume: PathBuf,
    },
    /// Let go of blobs that the origin has
    ///
    /// Example: covey cache evict --to 10G /mnt/covey
    Evict {
        /// All of them
        #[arg(long, required_unless_present = "to", conflicts_with = "to")]
        all: bool,
        /// The blobs wanted least, until no more than this is kept: 10G, 512M
        #[arg(long, value_name = "SIZE")]
        to: Option<String>,
        /// A path on a mount, a volume's folder, or a depot's
        volume: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    match &args.what {
        What::Status { volume } => {
            let (name, remote_side) = status(volume)?;
            term.result(&remote_side.cache, || {
                let mut pairs = Pairs::new();
                pairs.row(if lent::is_one(volume) { "folder" } else { "volume" }, &name);
                rows::cache(&mut pairs, &remote_side);
                pairs.text()
            });
        }
        What::Evict { to, volume, .. } => {
            let bytes_left = match to {
                None => None,
                Some(text) => Some(parse_size(text).ok_or_else(|| {
                    Failure::usage(format!("--to {text} is no size")).next("write one like 10G or 512M")
                })?),
            };
            let evicted = evict(volume, bytes_left)?;
            term.result(&evicted, || {
                format!("Let go of {} blobs, {}.", count(evicted.blobs), bytes(evicted.bytes))
            });
        }
    }
    Ok(0)
}

fn status(volume: &Path) -> Result<(String, RemoteStatus)> {
    if lent::is_one(volume) {
        let status: LentStatus = lent::ask(volume, &Request::Status)?;
        return Ok((status.folder.display().to_string(), status.remote_side));
    }
    let status: Status = match resolve_volume(volume)? {
        Target::Mounted(place) => control::ask(&place.address(), &Request::Status, &mut |_| ())?,
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::reading("cache status"))?;
            let status = node.status();
            node.close()?;
            status?
        }
    };
    match status.remote_side {
        Some(remote_side) => Ok((status.volume, remote_side)),
        None => Err(no_cache(&status.volume)),
    }
}

fn evict(volume: &Path, to: Option<u64>) -> Result<Evicted> {
    if lent::is_one(volume) {
        return lent::ask(volume, &Request::Evict { to });
    }
    match resolve_volume(volume)? {
        Target::Mounted(place) => control::ask(&place.address(), &Request::Evict { to }, &mut |_| ()),
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::reading("cache evict"))?;
            let evicted = node.evict(to);
            node.close()?;
            evicted
        }
    }
}
