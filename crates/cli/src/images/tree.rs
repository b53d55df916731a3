//! The folder of images on a mount, and the mount of a published tree that has one.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use api::error::{Context, Failure, Result};
use node::{mounts, signals};
use rustix::process::{Pid, Signal, kill_process};

use super::images_at;
use super::made::private_folder;
use crate::target::{Target, resolve};

/// How often to look whether the mount is there.
const LOOK: Duration = Duration::from_millis(5);

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
/// mount. If it follows a name, the layers that containers use stay. Signals must be blocked: one ends this,
/// and nothing is mounted then.
pub fn mount(tree: &str, more: &[String], at: &Path) -> Result<()> {
    private_folder(at)?;
    let program = std::env::current_exe().or_fail(|| "cannot find this program".to_owned())?;
    let mut command = Command::new(program);
    command.arg("mount").arg("-d").args(more);
    if !more.iter().any(|word| word == "--keep-removed") {
        command.arg("--keep-removed");
    }
    command.arg(tree).arg(at);
    // A group of its own: Ctrl-C on a terminal comes to this process, which passes one signal on.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let cannot = || "cannot start covey mount".to_owned();
    let mut child = command.spawn().or_fail(cannot)?;
    let mut asked = false;
    while child.try_wait().or_fail(cannot)?.is_none() {
        if signals::next_within(Some(LOOK)) && !std::mem::replace(&mut asked, true) {
            let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let _ = id.map(|id| kill_process(id, Signal::TERM));
        }
    }
    let done = child.wait_with_output().or_fail(cannot)?;
    if done.status.success() && !asked {
        return Ok(());
    }
    if let Some(mount) = mounts::at(at)?.filter(|_| done.status.success()) {
        crate::cmd::umount::end_idle(&mount)?;
    }
    let _ = fs::remove_dir(at);
    let said = String::from_utf8_lossy(&done.stderr).trim().trim_start_matches("covey: ").to_owned();
    let failure = Failure::new("not-mounted", format!("{tree} cannot be mounted")).why(said);
    Err(if asked { interrupted(tree) } else { failure })
}

fn interrupted(tree: &str) -> Failure {
    let failure = Failure::new("interrupted", "interrupted").why(format!("{tree} is not mounted"));
    Failure { status: 130, ..failure.next("start it again") }
}
