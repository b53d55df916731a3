//! What a mount of an image consists of, so that its unmount undoes exactly that.
//!
//! ```text
//!   /run/covey-images/HASH.json            one mount: this record. HASH is of the mountpoint
//!   /run/covey-images/trees/HASH/          where a published tree is mounted for images. HASH is of its name
//!   /var/lib/covey/images/HASH/            what is written (upper), and what overlayfs needs beside it,
//!                                          unless --upper names another folder
//! ```
//!
//! One command at a time changes this ([`lock`]). While a store is asked for a tree, only those that want the
//! same tree wait ([`lock_tree`], in the file `trees/HASH.lock`).

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::error::{Context, Failure, Result};
use base::lock::FileLock;
use node::signals;
use oci::digest::Digest;
use serde::{Deserialize, Serialize};

/// Where records and trees are. Only root may enter it, so it is not below `/run/covey`: there, other users
/// find the sockets of daemons.
const RUN: &str = "/run/covey-images";
/// Where is written.
const UPPERS: &str = "/var/lib/covey/images";
/// How often a command that waits for another one looks again.
const LOOK: Duration = Duration::from_millis(20);

/// One mount of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// 1.
    pub version: u32,
    /// The image's name.
    pub image: String,
    /// The digest of its manifest.
    pub manifest: Digest,
    /// Where it is mounted.
    #[serde(with = "api::raw_path")]
    pub mountpoint: PathBuf,
    /// What --volume said.
    #[serde(with = "api::raw_path")]
    pub volume: PathBuf,
    /// The folder with `upper` and `work`.
    #[serde(with = "api::raw_path")]
    pub upper: PathBuf,
    /// Whether that folder is removed with the mount.
    pub upper_is_ours: bool,
    /// Where the published tree was mounted for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<PathBuf>,
    /// Whether the mountpoint was made for it.
    pub made_mountpoint: bool,
}

/// Sixteen digits that stand for a path or a name.
fn hash(of: &Path) -> String {
    Digest::of(of.as_os_str().as_bytes()).hex()[..16].to_owned()
}

/// Makes a folder that only this user may enter, with its parents.
pub fn private_folder(path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).at("make", path)
}

/// Where a published tree is mounted for images.
pub fn tree_at(tree: &Path) -> PathBuf {
    Path::new(RUN).join("trees").join(hash(tree))
}

/// Where is written, for a mountpoint, unless the user names a place.
pub fn upper_of(mountpoint: &Path) -> PathBuf {
    Path::new(UPPERS).join(hash(mountpoint))
}

/// Keeps other commands from changing the same. It ends with the lock. Says which process it waits for.
///
/// # Errors
/// A signal came meanwhile, or the system's error.
pub fn lock(say: &dyn Fn(&str)) -> Result<FileLock> {
    private_folder(Path::new(RUN))?;
    lock_file(&Path::new(RUN).join("lock"), say)
}

/// Keeps other commands from changing one published tree, so that a store that does not answer holds up only
/// those that want the same tree. Whatever takes this lock and that of [`lock`] takes this one first.
///
/// # Errors
/// As [`lock`].
pub fn lock_tree(at: &Path, say: &dyn Fn(&str)) -> Result<FileLock> {
    private_folder(&Path::new(RUN).join("trees"))?;
    lock_file(&at.with_extension("lock"), say)
}

fn lock_file(path: &Path, say: &dyn Fn(&str)) -> Result<FileLock> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let mut lock = FileLock::new(options.open(path).at("open", path)?);
    let mut told = false;
    while !lock.try_exclusive().at("lock", path)? {
        if !std::mem::replace(&mut told, true) {
            let mut pid = String::new();
            let _ = (&*lock).read_to_string(&mut pid);
            say(&format!("Waiting for process {}, which mounts or unmounts an image ...", pid.trim()));
        }
        if signals::next_within(Some(LOOK)) {
            let failure = Failure::new("interrupted", "interrupted").why("nothing was changed");
            return Err(Failure { status: 130, ..failure.next("start it again") });
        }
    }
    // For those that wait. The lock itself does not need it.
    let text = format!("{}\n", std::process::id());
    let _ = lock.set_len(0).and_then(|()| lock.write_all_at(text.as_bytes(), 0));
    Ok(lock)
}

fn record(mountpoint: &Path) -> PathBuf {
    Path::new(RUN).join(format!("{}.json", hash(mountpoint)))
}

/// The record of a mountpoint. None: no image was mounted there.
pub fn of(mountpoint: &Path) -> Result<Option<Made>> {
    read(&record(mountpoint))
}

fn read(path: &Path) -> Result<Option<Made>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.at("read", path)?,
    };
    let made = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::new("damaged", format!("{} cannot be understood", path.display())).why(error.to_string())
    })?;
    Ok(Some(made))
}

/// All records, by mountpoint.
pub fn all() -> Result<Vec<Made>> {
    let folder = Path::new(RUN);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.at("list", folder)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.at("list", folder)?.path();
        if path.extension().is_some_and(|kind| kind == "json") {
            all.extend(read(&path)?);
        }
    }
    all.sort_by(|one, other| one.mountpoint.cmp(&other.mountpoint));
    Ok(all)
}

impl Made {
    /// Writes the record.
    pub fn keep(&self) -> Result<()> {
        let path = record(&self.mountpoint);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Failure::new("io", "cannot write the record").why(error.to_string()))?;
        write(&path, &text)
    }

    /// Removes the record, and what was written if that is temporary.
    pub fn forget(&self) -> Result<()> {
        if self.upper_is_ours {
            remove_tree(&self.upper)?;
        }
        if self.made_mountpoint {
            // Something else may be in it by now. Then it stays.
            let _ = fs::remove_dir(&self.mountpoint);
        }
        let path = record(&self.mountpoint);
        fs::remove_file(&path).at("remove", &path)
    }
}

/// Writes a file, whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    let written =
        fs::write(&new, bytes).at("write", &new).and_then(|()| fs::rename(&new, path).at("rename", &new));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

/// Removes a folder with everything in it, if it is there.
pub fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.at("remove", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only root may enter the folder. Below `/run/covey` it would shut others out of the daemons' sockets.
    #[test]
    fn regression_the_records_are_apart_from_the_sockets_of_daemons() {
        assert!(!Path::new(RUN).starts_with("/run/covey"));
    }
}
