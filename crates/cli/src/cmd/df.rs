//! `covey df`: the mounted volumes and their room, as df(1) shows filesystems.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fuse::mount::Mounted;
use serde::Serialize;

use crate::error::{Failure, Result};
use crate::mounts;
use crate::table::{Table, bytes, count};
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
    mountpoint: PathBuf,
    alive: bool,
    size_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mounts = match args.paths.as_slice() {
        [] => crate::trust::mounts(),
        paths => paths.iter().map(|path| the_mount(path)).collect::<Result<_>>()?,
    };
    let rows: Vec<Row> = mounts.iter().map(row).collect();
    term.result(&rows, || text(&rows));
    Ok(0)
}

fn the_mount(path: &Path) -> Result<Mounted> {
    mounts::covey_of(path)?.ok_or_else(|| {
        Failure::new("not-mounted", format!("{} is on no mount of Covey's", path.display()))
            .next("covey df without a path lists all mounts; covey status VOLUME shows a volume that is not mounted")
    })
}

fn row(mount: &Mounted) -> Row {
    let room = mount.answers().then(|| room(&mount.path)).flatten();
    let (size, free, available, inodes) = room.unwrap_or_default();
    Row {
        volume: mount.source.clone(),
        mountpoint: mount.path.clone(),
        alive: room.is_some(),
        size_bytes: size,
        used_bytes: size.saturating_sub(free),
        available_bytes: available,
        inodes,
    }
}

/// Size, free, available, inodes in use. None when nobody answers.
fn room(path: &Path) -> Option<(u64, u64, u64, u64)> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros is a value of statvfs, which is plain numbers.
    let mut room: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `name` ends with NUL and lives through the call, as does `room`.
    let status = unsafe { libc::statvfs(name.as_ptr(), &mut room) };
    let unit = room.f_frsize;
    let used = room.f_files.saturating_sub(room.f_ffree);
    (status == 0).then(|| (room.f_blocks * unit, room.f_bfree * unit, room.f_bavail * unit, used))
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
            let place = format!("{place} (dead: covey umount {place})");
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
