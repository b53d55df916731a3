//! A published tree in a far origin, mounted: its blobs are kept on this node's disk, names as well as bytes.
//!
//! There is no volume whose folder could hold them, so they lie in the user's cache folder, by the id of the volume that was published,
//! and another mount of any of its trees finds them there. Two mounts at the same time cannot share one folder: the second takes the next.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blob::Origin;
use cache::{CacheOptions, NodeCache, NodeParts, StoresNothing};
use peer::fleet::Fleet;
use peer::id::Role;

use super::options::FarOptions;
use crate::error::{Context, Failure, Result};
use crate::fleet::shown::FleetStatus;
use crate::fleet::{self, Joined, Lender, Told};
use crate::frozen::Named;
use crate::log;
use crate::volume_dir::private_folder;

/// So many mounts of one volume's trees can have a cache here.
const SIDE_BY_SIDE: u32 = 64;

/// The cache of one mount.
pub struct TreeCache {
    cache: Arc<NodeCache>,
    /// Of which fleet it is a node.
    fleet: Option<Joined>,
    _lock: File,
}

impl TreeCache {
    /// Puts a cache before an origin, and a fleet between the two if that was asked for. `volume`: whose trees they are.
    pub fn before(
        origin: Arc<dyn Origin>,
        volume: [u8; 16],
        named: &Named,
        options: &FarOptions,
    ) -> Result<TreeCache> {
        let below = named.cache.clone().map_or_else(default_folder, Ok)?;
        let (folder, lock) = take(&below, &::tree::root::hex(&volume))?;
        let join = |fleet| fleet::join(fleet, Role::Node, &folder, volume, origin.clone());
        let joined = named.fleet.as_ref().map(join).transpose()?;
        let remote: Arc<dyn Origin> = match &joined {
            Some(joined) => joined.fleet.clone(),
            None => origin,
        };
        let fits = |size: std::io::Result<u64>| size.at("use", &folder);
        let budget = options.cache_size.map_or_else(|| fits(cache::default_budget(&folder)), Ok)?;
        let floor = options.cache_floor.map_or_else(|| fits(cache::default_floor(&folder)), Ok)?;
        let blobs = folder.join("blobs");
        private_folder(&blobs)?;
        let parts = NodeParts {
            folder: blobs,
            index: folder.join("cache.idx"),
            remote,
            pending: Arc::new(StoresNothing),
            may_delete: None,
            watch: joined.as_ref().map(|joined| watch(&joined.fleet)),
            options: CacheOptions { budget, floor, ..CacheOptions::default() },
            report: log::sink(),
        };
        let cache = Arc::new(NodeCache::open(parts).at("open", &folder)?);
        if let Some(joined) = &joined {
            joined.fleet.lend(Arc::new(Lender(Arc::downgrade(&cache))));
            fleet::tell_free(&joined.fleet, &cache);
        }
        Ok(TreeCache { cache, fleet: joined, _lock: lock })
    }

    /// Of which fleet it is a node, if it is of one.
    pub fn fleet(&self) -> Option<&Joined> {
        self.fleet.as_ref()
    }

    /// What a status says of its fleet.
    pub fn fleet_status(&self) -> Option<FleetStatus> {
        self.fleet.as_ref().map(|joined| FleetStatus::of(&joined.fleet, &self.cache))
    }

    /// The origin, by way of the cache.
    pub fn origin(&self) -> Arc<dyn Origin> {
        self.cache.clone()
    }

    /// Writes down what is kept.
    pub fn close(&self) {
        if let Some(joined) = &self.fleet {
            joined.fleet.close();
        }
        self.cache.close();
    }
}

fn watch(fleet: &Arc<Fleet>) -> Arc<dyn cache::Watch> {
    Arc::new(Told(Arc::downgrade(fleet)))
}

/// The user's cache folder; the system's where there is no user.
fn default_folder() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    Ok(base.unwrap_or_else(|| PathBuf::from("/var/cache")).join("covey/trees"))
}

/// The first folder of this volume that no other mount has.
fn take(below: &Path, volume: &str) -> Result<(PathBuf, File)> {
    for number in 1..=SIDE_BY_SIDE {
        let name = if number == 1 { volume.to_owned() } else { format!("{volume}-{number}") };
        let folder = below.join(name);
        private_folder(&folder)?;
        let lock = folder.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&lock).at("open", &lock)?;
        // SAFETY: flock(2) on a descriptor that `file` keeps open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok((folder, file));
        }
    }
    Err(Failure::new("in-use", format!("{} has no free cache for another mount", below.display()))
        .next("name a folder of its own: --cache DIR"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mounts_have_a_folder_each_and_the_next_finds_the_first() {
        let temp = tempfile::tempdir().unwrap();
        let (first, lock) = take(temp.path(), "ab").unwrap();
        let (second, _other) = take(temp.path(), "ab").unwrap();
        assert_ne!(first, second);
        drop(lock);
        assert_eq!(take(temp.path(), "ab").unwrap().0, first);
    }
}
