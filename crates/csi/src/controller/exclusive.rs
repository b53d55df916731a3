//! Volumes in a folder of this node: each is a whole volume of Covey's, with its blobs inside.
//!
//! ```text
//!   FOLDER/NAME            a volume
//!   FOLDER/.new-NAME       one that is being made; it gets its name when it is complete
//!   FOLDER/.removed-HEX    one that is being removed
//! ```
//!
//! A driver that was killed leaves what it was making, perhaps mounted. It is removed when the next driver
//! starts, and before the same volume is made again; not while a process uses it.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use node::log;
use node::volume_dir::VolumeDir;
use tonic::Code;

use super::capacity::{self, Size};
use crate::mount::Source;
use crate::names::{self, Id};
use crate::program;
use crate::refuse::{self, Answer};
use crate::secrets::Secrets;
use crate::{Driver, Services};

/// How the name of a volume begins that is being made.
const NEW: &str = ".new-";
/// The longest time to make a volume.
const FORMAT: Duration = Duration::from_secs(60);
/// The longest time to copy one.
const COPYING: Duration = Duration::from_secs(3600);

impl Driver {
    /// Makes a volume, unless it is there. It gets its name when it is complete.
    pub(super) fn make_exclusive(
        &self,
        name: &str,
        mode: u32,
        size: Size,
        from: Option<&str>,
    ) -> Answer<i64> {
        let folder = self.exclusive(name)?;
        if is_volume(&folder) {
            return self.mounted(&folder, |place| capacity::limit_of(place, Path::new("")));
        }
        let new = folder.with_file_name(format!("{NEW}{name}"));
        self.take_half_made(&new)?;
        let made = self.make_at(&new, name, mode, size, from);
        // What a full disk has stopped would keep it full. A mount that does not end keeps its volume.
        if made.is_err() && node::mounts::of_volume(&new).is_none() {
            let _ = take_away(&new);
        }
        made?;
        fs::rename(&new, &folder)
            .map_err(|error| refuse::io(format!("cannot name the volume {name}"), &error))?;
        Ok(size.wanted())
    }

    /// Removes what earlier drivers were making when they were killed. What is in use stays until the next
    /// time.
    pub(crate) fn tidy_up(&self) {
        if self.options.services == Services::Node {
            // The driver that makes volumes is another process.
            return;
        }
        let entries = self.options.folder.iter().filter_map(|folder| fs::read_dir(folder).ok());
        for entry in entries.flatten().flatten() {
            let name = entry.file_name().into_string().ok();
            let Some(name) = name.as_deref().and_then(|name| name.strip_prefix(NEW)) else { continue };
            let id = Id::Exclusive { name: name.to_owned(), node: self.options.node.clone() };
            // A call of this driver may be making it.
            let Some(_alone) = self.alone_at_once(&id.to_string()) else { continue };
            match self.take_half_made(&entry.path()) {
                Ok(()) => log::line(&format!(
                    "removed {}, which a driver that was killed had left",
                    entry.path().display()
                )),
                // It is in use.
                Err(status) if status.code() == Code::FailedPrecondition => {}
                Err(status) => log::warn(status.message()),
            }
        }
    }

    /// Removes a volume that is not complete, if it is there. Nothing but this driver may be making it.
    fn take_half_made(&self, new: &Path) -> Answer<()> {
        if !new.exists() {
            return Ok(());
        }
        self.mounts.release(&Source::exclusive(new, "").key())?;
        let holder = VolumeDir::open(new).ok().and_then(|dir| dir.holder().ok().flatten());
        if holder.is_some() || node::mounts::of_volume(new).is_some() {
            let by = holder.map_or_else(String::new, |holder| format!(" by the process {}", holder.pid));
            let what = format!("{} is not complete, and is used{by}", new.display());
            return Err(refuse::precondition(what, "end that process, or wait for its end"));
        }
        take_away(new)
    }

    /// Makes a volume in a folder that has not its name yet.
    fn make_at(&self, new: &Path, name: &str, mode: u32, size: Size, from: Option<&str>) -> Answer<()> {
        let args = ["format".as_ref(), "--".as_ref(), new.as_os_str()];
        program::run(&args, &Secrets::default(), FORMAT).map_err(|failed| failed.status)?;
        self.mounted(new, |place| {
            fs::set_permissions(place, Permissions::from_mode(mode))
                .map_err(|error| refuse::io(format!("cannot protect the volume {name}"), &error))?;
            match size.wanted() {
                0 => Ok(()),
                wanted => capacity::limit(place, Path::new(""), wanted),
            }?;
            from.map_or(Ok(()), |from| self.copy_exclusive(from, place))
        })
    }

    /// Copies the files of a volume into a new one.
    fn copy_exclusive(&self, from: &str, place: &Path) -> Answer<()> {
        let source = self.exclusive(from)?;
        if !is_volume(&source) {
            return Err(refuse::not_found(
                format!("there is no volume {from} on this node"),
                "check the dataSource",
            ));
        }
        self.mounted(&source, |source| {
            let args = ["import".as_ref(), "--".as_ref(), source.as_os_str(), place.as_os_str()];
            program::run(&args, &Secrets::default(), COPYING).map(drop).map_err(|failed| failed.status)
        })
    }

    /// Works on the mount of a volume; mounts it meanwhile, if it is not mounted.
    fn mounted<T>(&self, folder: &Path, work: impl FnOnce(&Path) -> Answer<T>) -> Answer<T> {
        if let Some(mount) = node::mounts::of_volume(folder) {
            return work(&mount.path);
        }
        let source = Source::exclusive(folder, "");
        let done = self.mounts.hold(&source, &Secrets::default()).and_then(|held| work(held.place()));
        // The first failure is the cause of the second.
        let ended = self.mounts.release(&source.key());
        done.and_then(|done| ended.map(|()| done))
    }

    /// Raises the limit of a volume, which may be mounted.
    pub(super) fn grow_exclusive(&self, name: &str, node: &str, size: Size) -> Answer<i64> {
        let folder = self.on_this_node(name, node)?;
        if !is_volume(&folder) {
            return Err(super::missing(name));
        }
        self.mounted(&folder, |place| capacity::grow(place, Path::new(""), size))
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
        // An earlier volume of that name.
        take_away(&gone)?;
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
