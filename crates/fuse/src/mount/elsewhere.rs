//! Mounts of this filesystem in other mount namespaces. A container that was started while it was mounted has
//! a copy of every mount.
//!
//! An unmount here leaves the copies, and the kernel ends the connection only with the last one. So the
//! namespaces that still have a mount must be found and named, from what /proc shows of each process. A
//! namespace without a process (one that a file holds open) cannot be seen.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use super::{Mounted, table};

/// A mount in another mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The mount as that namespace sees it.
    pub mount: Mounted,
    /// The first process that was found there.
    pub pid: u32,
    /// The name of that process.
    pub name: String,
}

impl Elsewhere {
    /// The mountpoint as this process reaches it.
    pub fn reached(&self) -> PathBuf {
        let below = self.mount.path.strip_prefix("/").unwrap_or(&self.mount.path);
        PathBuf::from(format!("/proc/{}/root", self.pid)).join(below)
    }
}

/// The mounts in other mount namespaces for which `wanted` holds, one for each namespace. Finds only what
/// this user may see.
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
