//! Mounts of this filesystem in other mount namespaces: a container that was started meanwhile has a copy of every mount.
//!
//! An unmount here leaves theirs, and the kernel ends the connection only with the last. So what still has a mount must be found and
//! named, from what /proc shows of each process; a namespace that no process is in (one that is held by a file) cannot be seen.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use super::{Mounted, table};

/// A mount in another mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The mount, as that namespace sees it.
    pub mount: Mounted,
    /// A process there: the first that was found.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl Elsewhere {
    /// The mountpoint, as this process reaches it.
    pub fn reached(&self) -> PathBuf {
        let below = self.mount.path.strip_prefix("/").unwrap_or(&self.mount.path);
        PathBuf::from(format!("/proc/{}/root", self.pid)).join(below)
    }
}

/// The mounts in other mount namespaces for which `wanted` holds, as far as this user may see: one for each namespace.
pub fn elsewhere(wanted: impl Fn(&Mounted) -> bool) -> Vec<Elsewhere> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(space) = namespace(&pid.to_string()) else { continue };
        if !seen.insert(space) {
            continue;
        }
        let text = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let mount = table::lines(&text).rfind(&wanted);
        found.extend(mount.map(|mount| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Elsewhere { mount, pid, name: name.trim().to_owned() }
        }));
    }
    found
}
