//! `covey df`: lists the mounted volumes and their space, as df(1) lists filesystems.

use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use api::text::{bytes, count};
use base::Deadline;
use fuse::mount::{ANSWER_WITHIN, Life, Mounted, Room};
use node::mounts;
use serde::Serialize;

use crate::table::Table;
use crate::term::Term;

/// Lists mounted volumes and their room
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey df\n  covey df /mnt/covey --json")]
pub struct Args {
    /// Paths on mounts; all mounts by default
    paths: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    volume: String,
    #[serde(with = "api::raw_path")]
    mountpoint: PathBuf,
    alive: bool,
    /// Whether the daemon runs, and does not answer.
    silent: bool,
    size_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mounts = match args.paths.as_slice() {
        [] => node::trust::mounts(),
        paths => paths.iter().map(|path| the_mount(path)).collect::<Result<_>>()?,
    };
    let rows = mounts::of_each(&mounts, row);
    term.result(&rows, || text(&rows));
    Ok(0)
}

fn the_mount(path: &Path) -> Result<Mounted> {
    let found = match mounts::covey_of(path) {
        // The row itself says that the daemon does not answer.
        Err(failure) if failure.code == "silent" => mounts::entered(path).map(|(mount, _)| mount),
        found => found?,
    };
    found.ok_or_else(|| {
        Failure::new("not-mounted", format!("{} is on no mount of Covey's", path.display()))
            .next("covey df without a path lists all mounts; covey status VOLUME shows a volume that is not mounted")
    })
}

fn row(mount: &Mounted) -> Row {
    let life = mount.life(Deadline::current().within(ANSWER_WITHIN));
    let room = if let Life::Lives(room) = life { room } else { Room::default() };
    Row {
        volume: mount.source.clone(),
        mountpoint: mount.path.clone(),
        alive: matches!(life, Life::Lives(_)),
        silent: life == Life::Silent,
        size_bytes: room.size,
        used_bytes: room.size.saturating_sub(room.free),
        available_bytes: room.available,
        inodes: room.inodes,
    }
}

fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "No volume is mounted. covey mount VOLUME MOUNTPOINT mounts one; covey up starts from nothing.".to_owned();
    }
    let mut table = Table::new(&["Volume", "Size ", "Used ", "Avail ", "Use% ", "Inodes ", "Mounted on"]);
    for row in rows {
        let place = row.mountpoint.display();
        if !row.alive {
            let dash = || "-".to_owned();
            let place = match row.silent {
                true => format!("{place} (does not answer: covey status {place} says more)"),
                false => format!("{place} (dead: covey umount {place})"),
            };
            table.row(vec![row.volume.clone(), dash(), dash(), dash(), dash(), dash(), place]);
            continue;
        }
        let reach = row.used_bytes + row.available_bytes;
        let percent = if reach == 0 { 0 } else { (row.used_bytes * 100).div_ceil(reach) };
        table.row(vec![
            row.volume.clone(),
            bytes(row.size_bytes),
            bytes(row.used_bytes),
            bytes(row.available_bytes),
            format!("{percent}%"),
            count(row.inodes),
            place.to_string(),
        ]);
    }
    table.text()
}
