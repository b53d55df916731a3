//! Volumes that are folders of a shared volume.
//!
//! ```text
//!   FOLDER/            mode 0700: only root passes through it, so a pod sees its own volume alone
//!     NAME/            a volume, with a quota
//!     .new-NAME/       one that is being made; it gets its name when it is complete
//!     .removed-HEX/    one that is being removed
//! ```
//!
//! So a volume is there with its quota and its content, or it is not there. What a driver that was killed has
//! left begins with a dot and is no volume. The next call that makes the same volume removes it, or the next
//! one that removes any.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use api::control::Request;
use node::log;
use serde::de::IgnoredAny;

use super::capacity::{self, Size};
use crate::names;
use crate::places::has_inner;
use crate::refuse::{self, Answer};

/// How the names of volumes begin that are being made, and that are being removed.
const NEW: &str = ".new-";
const REMOVED: &str = ".removed-";

/// A volume to make.
pub struct New<'a> {
    /// The folder that the volumes are in.
    pub folder: &'a str,
    /// The volume's own folder.
    pub name: &'a str,
    /// The mode of that.
    pub mode: u32,
    /// The volume's size.
    pub size: Size,
    /// What it begins as a copy of, from the shared volume's root.
    pub from: Option<&'a str>,
}

fn io_failed(verb: &str, path: &Path) -> impl Fn(io::Error) -> tonic::Status {
    let what = format!("cannot {verb} {}", path.display());
    move |error| refuse::io(what.clone(), &error)
}

/// The folder that the volumes are in, if it is a folder and no link. It must be the driver's: others may be
/// able to make folders at the root of the shared volume.
fn top(mount: &Path, folder: &str) -> Answer<Option<PathBuf>> {
    let top = mount.join(folder);
    if !has_inner(mount, Path::new(folder)).map_err(io_failed("open", &top))? {
        return Ok(None);
    }
    let about = fs::symlink_metadata(&top).map_err(io_failed("look at", &top))?;
    if ![0, api::caller::euid()].contains(&about.uid()) || about.mode() & 0o002 != 0 {
        let what = format!("the folder {folder} of the shared volume is not the driver's");
        let why = format!("it belongs to user {}, and has mode {:o}", about.uid(), about.mode() & 0o7777);
        return Err(refuse::invalid(format!("{what}: {why}"), "remove it, or: chown root and chmod 700"));
    }
    Ok(Some(top))
}

/// Makes a volume, unless it is there. Returns its limit in bytes, 0 without one.
pub fn make(mount: &Path, new: &New<'_>) -> Answer<i64> {
    if let Some(capacity) = capacity(mount, new.folder, new.name)? {
        return Ok(capacity);
    }
    let top = mount.join(new.folder);
    match DirBuilder::new().mode(0o700).create(&top) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io_failed("make", &top)(error)),
        _ => {}
    }
    // It may be there since, and be somebody else's.
    self::top(mount, new.folder)?;
    let inner = Path::new(new.folder).join(format!("{NEW}{}", new.name));
    let (making, made) = (mount.join(&inner), top.join(new.name));
    take_away(&making)?;
    if let Err(status) = make_at(mount, &inner, new) {
        // What is left takes room. It is no volume, so another failure is of no account.
        let _ = take_away(&making);
        return Err(status);
    }
    fs::rename(&making, &made).map_err(io_failed("name", &made))?;
    sync(&top)?;
    Ok(new.size.wanted())
}

/// Makes a volume in a folder that has not its name yet.
fn make_at(mount: &Path, inner: &Path, new: &New<'_>) -> Answer<()> {
    let making = mount.join(inner);
    match new.from {
        None => fs::create_dir(&making).map_err(io_failed("make", &making))?,
        Some(from) => {
            if !has_inner(mount, Path::new(from)).map_err(io_failed("open", &mount.join(from)))? {
                let what = format!("the volume that is to be cloned, {from}, is not there");
                return Err(refuse::not_found(what, "check the dataSource"));
            }
            let request = Request::Clone { from: Path::new(from).into(), to: inner.into() };
            capacity::ask::<IgnoredAny>(mount, &request)?;
        }
    }
    fs::set_permissions(&making, Permissions::from_mode(new.mode)).map_err(io_failed("protect", &making))?;
    match new.size.wanted() {
        0 => Ok(()),
        wanted => capacity::limit(mount, inner, wanted),
    }
}

/// The limit of a volume in bytes, 0 without one. None if the volume is not there.
pub fn capacity(mount: &Path, folder: &str, name: &str) -> Answer<Option<i64>> {
    let Some(top) = top(mount, folder)? else { return Ok(None) };
    let inner = Path::new(folder).join(name);
    let there = has_inner(mount, &inner).map_err(io_failed("open", &top))?;
    there.then(|| capacity::limit_of(mount, &inner)).transpose()
}

/// Removes a volume, if it is there, and what earlier calls have left.
pub fn remove(mount: &Path, folder: &str, name: &str) -> Answer<()> {
    let Some(top) = top(mount, folder)? else { return Ok(()) };
    if has_inner(mount, &Path::new(folder).join(name)).map_err(io_failed("open", &top))? {
        let gone = top.join(format!("{REMOVED}{}", names::hash(&format!("{:?}", base::random::id16()))));
        fs::rename(top.join(name), &gone).map_err(io_failed("rename", &top.join(name)))?;
        sync(&top)?;
    }
    let entries = fs::read_dir(&top).map_err(io_failed("list", &top))?;
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(REMOVED)) {
        // The volume itself is gone. What cannot be removed now is removed by a later call.
        if let Err(status) = take_away(&entry.path()) {
            log::warn(status.message());
        }
    }
    Ok(())
}

/// Removes a folder with all that is in it, if it is there.
fn take_away(path: &Path) -> Answer<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_failed("remove", path)(error)),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Answer<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_failed("sync", folder))
}
