//! The folder of images on a mount, and the mount of a published tree that has one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::error::{Context, Failure, Result};

use super::images_at;
use super::made::private_folder;
use crate::target::{Target, resolve};

/// The folder of images at a path, which must be on a mount. `more`: arguments for the mount of a tree, which
/// this is not.
pub fn on_mount(text: &Path, more: &[String]) -> Result<PathBuf> {
    if !more.is_empty() {
        return Err(Failure::usage(format!("{} is not mounted by this command", text.display()))
            .next("leave out what follows --, or name a published tree: ORIGIN@NAME"));
    }
    match resolve(text)? {
        Target::Mounted(place) => Ok(images_at(&place.path)),
        Target::Closed { dir, .. } => {
            Err(Failure::new("not-mounted", format!("{} is not mounted", dir.path().display()))
                .next(format!("mount it first: covey mount -d {} MOUNTPOINT", dir.path().display())))
        }
    }
}

/// Mounts a published tree at a folder that only this user may enter. `more`: further arguments for the
/// mount.
pub fn mount(tree: &str, more: &[String], at: &Path) -> Result<()> {
    private_folder(at)?;
    let program = std::env::current_exe().or_fail(|| "cannot find this program".to_owned())?;
    let mut command = Command::new(program);
    command.arg("mount").arg("-d").args(more).arg(tree).arg(at);
    let done = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .or_fail(|| "cannot start covey mount".to_owned())?;
    if done.status.success() {
        return Ok(());
    }
    let _ = fs::remove_dir(at);
    let said = String::from_utf8_lossy(&done.stderr).trim().trim_start_matches("covey: ").to_owned();
    Err(Failure::new("not-mounted", format!("{tree} cannot be mounted")).why(said))
}
