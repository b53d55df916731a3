//! `covey status`: shows a volume's figures. If it is mounted they come from its daemon, otherwise the volume
//! is opened.

use std::path::{Path, PathBuf};

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use api::status::fleet::LentStatus;
use api::status::{Kind, Served, Status};
use api::text::{bytes, count, span};
use fuse::mount::Mounted;
use node::control;
use node::fleet::lent;
use node::mounts;
use node::opened::Node;
use node::options::NodeOptions;
use serde::Serialize;

use crate::guest_status;
use crate::rows;
use crate::table::Pairs;
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// Shows a volume's figures: files, bytes, what is stored and saved, memory
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey status                     every mounted volume\n  covey status /mnt/covey\n  \
    covey status /srv/volume --json  also one that is not mounted\n  covey status /srv/depot          a depot or a lender, by its folder\n\n\
    On a mount of covey attach it shows the connection to the server, in the guest."
)]
pub struct Args {
    /// A path on a mount, a volume's folder, or a depot's [default: all mounts]
    path: Option<PathBuf>,
    /// Also list what the origin does not have yet, blob by blob
    #[arg(long, short = 'v')]
    verbose: bool,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if let Some(path) = args.path.as_ref().filter(|path| lent::is_one(path)) {
        let status: LentStatus = lent::ask(path, &Request::Status)?;
        term.result(&status, || rows::lent(&status));
        return Ok(0);
    }
    if let Some(guest) = args.path.as_deref().and_then(guest_status::of) {
        term.result(&guest, || guest_status::text(&guest));
        return Ok(0);
    }
    if let Some(path) = &args.path {
        let status = of(path)?;
        term.result(&status, || text(&status, args.verbose));
        return Ok(0);
    }
    let mounts = node::trust::mounts();
    if mounts.is_empty() {
        return Err(Failure::new("not-mounted", "no volume is mounted")
            .next("name a volume: covey status VOLUME")
            .next("or mount one: covey mount VOLUME MOUNTPOINT"));
    }
    // A mount of another user, a dead one, or one that does not answer must not hide the others.
    let (mut all, mut failed) = (Vec::new(), None);
    let ask = |mount: &Mounted| {
        if let Some(guest) = guest_status::of(&mount.path) {
            return Ok(Shown::Guest(Box::new(guest)));
        }
        guest_status::no_guests_mount(mount)?;
        let address = ControlAddress::of_source(Path::new(&mount.source));
        control::ask(&address, &Request::Status, &mut |_| ()).map(|status| Shown::Own(Box::new(status)))
    };
    for (mount, answer) in mounts.iter().zip(mounts::of_each(&mounts, ask)) {
        match answer {
            Ok(status) => all.push(status),
            Err(failure) => {
                term.warn(format_args!("{}: {}", mount.path.display(), failure.line()));
                failed = Some(failure);
            }
        }
    }
    match failed {
        Some(failure) if all.is_empty() => return Err(failure),
        _ => term.result(&all, || {
            all.iter().map(|status| status.text(args.verbose)).collect::<Vec<_>>().join("\n")
        }),
    }
    Ok(0)
}

/// One of the mounts.
#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Own(Box<Status>),
    Guest(Box<guest_status::Shown>),
}

impl Shown {
    fn text(&self, verbose: bool) -> String {
        match self {
            Shown::Own(status) => text(status, verbose),
            Shown::Guest(guest) => guest_status::text(guest),
        }
    }
}

fn of(path: &Path) -> Result<Status> {
    match resolve_volume(path)? {
        Target::Mounted(place) => control::ask(&place.address(), &Request::Status, &mut |_| ()),
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::reading("status"))?;
            let status = node.status();
            node.close()?;
            status
        }
    }
}

/// The transport, as text.
fn way(transport: &str) -> &str {
    if transport == "uring" { "io_uring" } else { "/dev/fuse" }
}

fn requests(served: &Served) -> String {
    let (all, waiting, by) = (count(served.requests), served.waiting, way(&served.transport));
    let lost = match served.replies_lost {
        0 => String::new(),
        lost => format!("; {lost} lost and answered EIO: a fault in Covey, see the log"),
    };
    format!("{all} served, {waiting} waiting, by {by}{lost}")
}

fn text(status: &Status, verbose: bool) -> String {
    let mut pairs = Pairs::new();
    pairs.row("volume", &status.volume);
    if let Some(id) = &status.id {
        pairs.row("id", id);
    }
    pairs.row("origin", &status.origin);
    if let Some(tree) = &status.tree {
        pairs
            .row("published", format!("as {} ({}), {}", tree.name, tree.sequence, tree.published))
            .row("signed by", &tree.key);
    }
    match &status.served {
        Some(served) => pairs
            .row("mounted on", format!("{} ({})", served.mountpoint.display(), status.mode.word()))
            .row("up for", span(served.uptime_seconds as f64))
            .row("requests", requests(served)),
        None => pairs.row("mounted on", "-"),
    };
    if let Some(s3) = status.served.as_ref().and_then(|served| served.s3.as_ref()) {
        pairs.row("S3", format!("{}, the bucket {}", s3.address, s3.bucket));
    }
    if let Some(url) = status.served.as_ref().and_then(|served| served.ui.as_ref()) {
        pairs.row("dashboard", url);
    }
    pairs.row("files", count(status.files)).row("bytes", bytes(status.bytes));
    let is_away = status.remote_side.as_ref().is_some_and(|remote_side| remote_side.away.is_some());
    if status.kind() == Kind::Tree && is_away && status.blobs == 0 {
        pairs.row("stored", "not known: the names are not all on this node");
    } else if status.kind() == Kind::Tree {
        pairs.row("stored", format!("{} in {} blobs", bytes(status.stored_bytes), count(status.blobs)));
    } else if status.kind() == Kind::Corpus {
        pairs.row("stored", format!("{} in memory", bytes(status.stored_bytes)));
    } else {
        volume_rows(&mut pairs, status);
    }
    status.claim.iter().for_each(|claim| rows::claim(&mut pairs, claim));
    match &status.remote_side {
        Some(remote_side) if status.kind() == Kind::Tree => rows::reading(&mut pairs, remote_side),
        Some(remote_side) => rows::remote_side(&mut pairs, remote_side),
        None => {}
    }
    if let Some(fleet) = &status.fleet {
        rows::fleet(&mut pairs, fleet);
    }
    status.copies.iter().for_each(|copies| rows::copies(&mut pairs, copies));
    status.trash.iter().for_each(|trash| rows::trash(&mut pairs, trash));
    pairs.row("memory", format!("{} (peak {})", bytes(status.memory_bytes), bytes(status.memory_peak_bytes)));
    if status.io_errors > 0 {
        pairs.row("I/O errors", format!("{}: see the log, then covey fsck", count(status.io_errors)));
    }
    if let Some(database) = &status.database {
        pairs.row("database", database);
    }
    status.unreached.iter().for_each(|line| _ = pairs.row("cannot reach", line));
    if let Some(refused) = &status.refused {
        pairs.row("refused", refused);
    }
    let mut text = pairs.text();
    if let Some(remote_side) = status.remote_side.as_ref().filter(|_| verbose) {
        text.push_str(&rows::waiting(&remote_side.uploads));
    }
    text
}

/// The rows that only a volume has.
fn volume_rows(pairs: &mut Pairs, status: &Status) {
    pairs
        .row(
            "stored",
            format!(
                "{} in {} blobs and {} open packs",
                bytes(status.stored_bytes),
                count(status.blobs),
                count(status.open_packs)
            ),
        )
        .row("saved", format!("{} by clones and by storing equal contents once", bytes(status.saved_bytes)))
        .row("dead", format!("{} that compaction will free", bytes(status.garbage_bytes)));
    if status.kind() == Kind::Memory {
        pairs.row("names", format!("{} in memory", bytes(status.names_bytes))).row("log", "none in memory");
        return;
    }
    pairs.row("names", format!("{} on disk", bytes(status.names_bytes))).row(
        "log",
        format!(
            "{} on disk, {} in memory not yet in the database",
            bytes(status.log_bytes),
            bytes(status.overlay_bytes)
        ),
    );
}
