//! Volumes in a folder of this node: each is a whole volume of Covey's, with its blobs inside.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use node::volume_dir::VolumeDir;

use super::capacity::{self, Size};
use crate::Driver;
use crate::mount::Source;
use crate::names;
use crate::program;
use crate::refuse::{self, Answer};
use crate::secrets::Secrets;

/// The longest time to make a volume.
const FORMAT: Duration = Duration::from_secs(60);

impl Driver {
    /// Makes a volume. One that was made half is made again; one that is complete stays.
    pub(super) fn make_exclusive(&self, name: &str, mode: u32, size: Size) -> Answer<i64> {
        let folder = self.exclusive(name)?;
        if !is_volume(&folder) {
            take_away(&folder)?;
            let args = ["format".as_ref(), "--".as_ref(), folder.as_os_str()];
            program::run(&args, &Secrets::default(), FORMAT).map_err(|failed| failed.status)?;
        }
        let source = Source::exclusive(&folder, "");
        let done = || {
            let held = self.mounts.hold(&source, &Secrets::default())?;
            let before = capacity::limit_of(held.place())?;
            fs::set_permissions(held.place(), Permissions::from_mode(mode))
                .map_err(|error| refuse::io(format!("cannot protect the volume {name}"), &error))?;
            if before == 0 && size.wanted() > 0 {
                capacity::limit(held.place(), size.wanted())?;
                return Ok(size.wanted());
            }
            Ok(before)
        };
        let done = done();
        self.mounts.release(&source.key())?;
        done
    }

    /// Raises the limit of a volume, which may be mounted.
    pub(super) fn grow_exclusive(&self, name: &str, node: &str, size: Size) -> Answer<i64> {
        let folder = self.on_this_node(name, node)?;
        if !is_volume(&folder) {
            return Err(super::missing(name));
        }
        let before = match VolumeDir::open(&folder).ok().and_then(|dir| node::mounts::of_volume(dir.path())) {
            Some(mount) => mount.path,
            None => folder,
        };
        capacity::grow(&before, capacity::limit_of(&before)?, size)
    }

    /// Removes a volume that nothing uses.
    pub(super) fn remove_exclusive(&self, name: &str, node: &str) -> Answer<()> {
        let folder = self.on_this_node(name, node)?;
        if let Ok(dir) = VolumeDir::open(&folder)
            && let Ok(Some(holder)) = dir.holder()
        {
            let what = format!("the process {} uses the volume {name}", holder.pid);
            return Err(refuse::precondition(what, "unmount it"));
        }
        // A volume that is removed half is none.
        let gone = folder.with_file_name(format!(".removed-{}", names::hash(name)));
        match fs::rename(&folder, &gone) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(refuse::io(format!("cannot rename {}", folder.display()), &error));
            }
            _ => {}
        }
        take_away(&gone)
    }

    fn on_this_node(&self, name: &str, node: &str) -> Answer<std::path::PathBuf> {
        if node != self.options.node {
            let what = format!("the volume {name} is on the node {node}, and this is {}", self.options.node);
            return Err(refuse::precondition(what, "send the call to the driver of that node"));
        }
        self.exclusive(name)
    }
}

fn is_volume(folder: &Path) -> bool {
    folder.join("covey.json").is_file()
}

fn take_away(folder: &Path) -> Answer<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(refuse::io(format!("cannot remove {}", folder.display()), &error))
        }
        _ => Ok(()),
    }
}
