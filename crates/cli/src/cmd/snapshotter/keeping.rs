//! Keeps the mount of a tree while a snapshotter runs: one whose daemon died is mounted again, and one that
//! hangs is passed by.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::error::{Failure, Result};
use base::Deadline;
use fuse::Unmount;
use fuse::mount::{ANSWER_WITHIN, Life};
use node::{log, mounts};
use oci::digest::Digest;
use snapshotter::layers::{InFolder, Layers};
use snapshotter::snapshots::Snapshots;

use crate::images::tree;

/// A folder of images on a mount.
pub struct OnMount {
    folder: InFolder,
    /// Where it is mounted.
    at: Option<PathBuf>,
}

impl OnMount {
    pub fn new(images: PathBuf, at: Option<PathBuf>) -> OnMount {
        OnMount { folder: InFolder(images), at }
    }
}

impl Layers for OnMount {
    fn has(&self, chain: &Digest) -> io::Result<bool> {
        self.folder.has(chain)
    }

    fn check(&self) -> io::Result<()> {
        self.folder.check()
    }

    fn names(&self) -> io::Result<BTreeSet<Digest>> {
        self.folder.names()
    }

    /// A thread that waits for a stopped daemon cannot be killed, and this program could not end. So another
    /// process asks first.
    fn answers(&self, within: Duration) -> bool {
        let Some(at) = &self.at else { return true };
        !matches!(state(at, within), State::Silent)
    }
}

/// What is mounted at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A mount that answers, or one of somebody else.
    Lives,
    /// A mount whose daemon hangs.
    Silent,
    /// A mount whose daemon is dead.
    Dead,
    /// Nothing.
    Gone,
}

/// Looks at a mountpoint, and waits no longer than this for an answer.
pub fn state(at: &Path, within: Duration) -> State {
    let mount = match mounts::at(at) {
        Ok(Some(mount)) => mount,
        Ok(None) => return State::Gone,
        Err(_) => return State::Lives,
    };
    if !mounts::is_covey(&mount) {
        return State::Lives;
    }
    match mount.life(Deadline::after(within)) {
        Life::Lives(_) => State::Lives,
        Life::Silent => State::Silent,
        Life::Dead => State::Dead,
    }
}

/// Detaches a mount whose daemon is dead. Containers that still run on it have lost their layers already.
pub fn detach(at: &Path) -> Result<()> {
    log::warn(&format!("the mount at {} is dead; it is mounted again", at.display()));
    fuse::unmount(at, Unmount::Lazy).map_err(|error| Failure::new("io", error.to_string()))
}

/// The mount that a snapshotter keeps.
pub struct Keeping {
    /// The tree, and where it is mounted, if it is the snapshotter's own mount.
    tree: Option<(String, PathBuf)>,
    more: Vec<String>,
    /// The state of the mount when it was looked at last.
    was: State,
    /// The last attempt to mount it failed, and a line said so.
    failed: bool,
}

impl Keeping {
    pub fn new(tree: Option<(String, PathBuf)>, more: &[String]) -> Keeping {
        Keeping { tree, more: more.to_owned(), was: State::Lives, failed: false }
    }

    /// Looks at the mount. False if a signal ended an attempt to mount it again.
    pub fn look(&mut self, snapshots: &Snapshots) -> bool {
        let is = self.tree.as_ref().map_or(State::Lives, |(_, at)| state(at, ANSWER_WITHIN));
        match (is, &self.tree) {
            (State::Dead | State::Gone, Some((name, at))) => {
                let mounted = match is {
                    State::Dead => detach(at).and_then(|()| tree::mount(name, &self.more, at)),
                    _ => tree::mount(name, &self.more, at),
                };
                match mounted {
                    Ok(()) => log::line(&format!("{name} is mounted again at {}", at.display())),
                    Err(failure) if failure.code == "interrupted" => return false,
                    Err(failure) if !self.failed => log::error(&failure.in_one_line()),
                    Err(_) => {}
                }
                self.failed = !matches!(state(at, ANSWER_WITHIN), State::Lives);
            }
            (State::Silent, Some((_, at))) if self.was != is => {
                let at = at.display();
                log::warn(&format!("the mount at {at} does not answer; only images that need it wait"));
            }
            (State::Silent, _) => {}
            _ => {
                if self.was == State::Silent {
                    log::line("the mount answers again");
                }
                // Otherwise it is asked again at the next look.
                let _ = snapshots.remember();
            }
        }
        self.was = is;
        true
    }
}
