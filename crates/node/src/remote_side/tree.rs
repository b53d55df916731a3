//! A mounted published tree in a remote origin. Its blobs are cached on this node's disk, both metadata and
//! file data.
//!
//! A tree has no volume folder to hold the cache. So the cache lies in the user's cache folder, under the id
//! of the published volume, and another mount of any tree of that volume finds it there. Two mounts at the
//! same time cannot share a folder. The second one takes the next folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::answers::Evicted;
use api::error::{Context, Failure, Result};
use api::status::fleet::FleetStatus;
use api::status::remote_side::{RemoteStatus, TroubleStatus};
use base::Deadline;
use base::lock::{self, FileLock};
use base::size::MIB;
use blob::{BlobSource, Origin};
use cache::{Beside, CacheOptions, Evict, NameCache, NodeCache, NodeParts, StoresNothing};
use fetch::Table;
use net::id::Role;
use origin::Remote;

use super::away::Away;
use super::options::RemoteOptions;
use super::status::of_reading;
use crate::fleet::{self, Joined};
use crate::frozen::Named;
use crate::log;
use crate::volume_dir::{cache_folder, private_folder};

/// The largest number of caches for one volume's trees on this machine.
const SIDE_BY_SIDE: u32 = 64;

/// The longest file name, without its suffix.
const NAME_MAX: usize = 200;

/// The largest space for metadata on the disk. It comes on top of the cache's budget and is at most a
/// sixteenth of that.
const NAMES_MAX: u64 = 64 * MIB;

/// Which of a volume's caches a mount takes: the first that no other mount uses.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    /// Only caches with a higher number.
    pub after: u32,
    /// How long to wait for the first of these, which a mount that is ending may still use.
    pub patience: Duration,
    /// Also read what the other caches of the volume have.
    pub beside: bool,
}

/// The cache of one mount.
pub struct TreeCache {
    cache: Arc<NodeCache>,
    /// The other caches of the volume, if they are read too.
    beside: Option<Arc<Beside>>,
    /// The metadata that was read. None if it cannot be kept.
    names: Option<Arc<NameCache>>,
    /// The search for an origin that could not be used when the tree was mounted.
    away: Option<Arc<Away>>,
    /// The endpoint of the tree's bucket, if it gets no keys.
    unsigned: Option<String>,
    next: Option<u32>,
    /// The origin, if it is remote.
    remote: Option<Arc<Remote>>,
    /// The fleet that it has joined, if any.
    fleet: Option<Joined>,
    _lock: FileLock,
}

impl TreeCache {
    /// Puts a cache in front of an origin, and a fleet between the two if that is wanted. `remote` is the
    /// origin without what is around it, if it is remote. `volume` is the volume whose trees they are.
    /// `patience` is the time after which a read fails. `which` chooses one of the volume's caches.
    pub fn before(
        (origin, remote): (Arc<dyn Origin>, Option<Arc<Remote>>),
        volume: [u8; 16],
        named: &Named,
        options: &RemoteOptions,
        patience: Duration,
        which: Which,
    ) -> Result<TreeCache> {
        let below = cache_folder(named.cache.as_deref())?;
        let id = ::tree::root::hex(&volume);
        let (number, lock) = take(&below, &id, which)?;
        let folder = below.join(folder_name(&id, number));
        let verify = named.fleet.as_deref().map(|fleet| fleet.verify).unwrap_or_default();
        let table = Table::new(verify, crate::limits::cache_options().in_flight);
        let join = |fleet| {
            let parts = (origin.clone(), table.clone());
            fleet::join(fleet, Role::Node, false, &folder, volume, parts, patience)
        };
        let joined = named.fleet.as_deref().map(join).transpose()?;
        let fits = |size: std::io::Result<u64>| size.at("use", &folder);
        let floor = options.cache_floor.map_or_else(|| fits(cache::default_floor(&folder)), Ok)?;
        let blobs = folder.join("blobs");
        private_folder(&blobs)?;
        let options = CacheOptions { budget: options.cache_size, floor, ..crate::limits::cache_options() };
        let parts = NodeParts {
            folder: blobs,
            index: folder.join("cache.idx"),
            remote: origin.clone(),
            tier: joined.as_ref().map(Joined::tier),
            table,
            pending: Arc::new(StoresNothing),
            may_delete: None,
            watch: joined.as_ref().map(Joined::watch),
            options,
            report: log::sink(),
        };
        let cache = Arc::new(NodeCache::open(parts).at("open", &folder)?);
        if let Some(joined) = &joined {
            joined.lend(&cache);
            fleet::calm(&joined.fleet);
        }
        let source: Arc<dyn BlobSource> = cache.clone();
        let names_max = NAMES_MAX.min(cache.stats().budget / 16);
        let names = NameCache::open(source, &folder, names_max, log::sink());
        let names = names.map(Arc::new).inspect_err(|error| {
            log::warn(&format!("names are not kept in {}: {error}", folder.display()));
        });
        let next = below.join(folder_name(&id, number + 1)).is_dir().then_some(number);
        let names = names.ok();
        let beside = which.beside.then(|| Arc::new(Beside::new(cache.clone(), &others(&below, &id, number))));
        let (away, unsigned) = (None, None);
        Ok(TreeCache { cache, beside, names, away, unsigned, next, remote, fleet: joined, _lock: lock })
    }

    /// Sets the endpoint of the tree's bucket, for one that gets no keys.
    #[must_use]
    pub fn unsigned(self, endpoint: Option<String>) -> TreeCache {
        TreeCache { unsigned: endpoint, ..self }
    }

    /// The endpoint of the tree's bucket, if it gets no keys.
    pub fn endpoint_without_keys(&self) -> Option<&str> {
        self.unsigned.as_deref()
    }

    /// The number after which to look for another cache of this volume, if there is one.
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    /// Starts trying to reach an origin that could not be used. `back` is called once when that succeeds.
    pub fn look_for(&mut self, why: String, back: impl FnOnce(&Remote) + Send + 'static) {
        let Some(remote) = &self.remote else { return };
        let weak = Arc::downgrade(remote);
        let back = move || {
            if let Some(remote) = weak.upgrade() {
                back(&remote);
            }
        };
        self.away = Some(Away::look(remote, why, back));
    }

    /// Why the origin could not be used when the tree was mounted. None once it has been reached.
    pub fn away(&self) -> Option<TroubleStatus> {
        self.away.as_ref()?.trouble()
    }

    /// The source of metadata: a cache in front of the origin, if there is one.
    pub fn names(&self) -> Arc<dyn BlobSource> {
        match &self.names {
            Some(names) => names.clone(),
            None => self.cache.clone(),
        }
    }

    /// The source of the bytes of files.
    pub fn bytes(&self) -> Arc<dyn BlobSource> {
        match &self.beside {
            Some(beside) => beside.clone(),
            None => self.cache.clone(),
        }
    }

    /// Bytes that were read from the other caches of the volume.
    pub fn beside_bytes(&self) -> u64 {
        self.beside.as_ref().map_or(0, |beside| beside.read_bytes())
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<NodeCache> {
        &self.cache
    }

    /// The fleet that it has joined, if any.
    pub fn fleet(&self) -> Option<&Joined> {
        self.fleet.as_ref()
    }

    /// The figures of its fleet.
    pub fn fleet_status(&self) -> Option<FleetStatus> {
        self.fleet.as_ref().map(|joined| joined.status(&self.cache))
    }

    /// The origin, through the cache.
    pub fn origin(&self) -> Arc<dyn Origin> {
        self.cache.clone()
    }

    /// The current figures, without those about uploads.
    pub fn status(&self) -> RemoteStatus {
        let of_reading = of_reading(self.remote.as_deref(), &self.cache);
        RemoteStatus { away: self.away(), unsigned: self.unsigned.clone(), ..of_reading }
    }

    /// Evicts cached blobs: all, or until at most this many bytes are cached.
    pub fn evict(&self, to: Option<u64>) -> Evicted {
        let evicted = self.cache.evict(to.map_or(Evict::All, Evict::To));
        if let (None, Some(Err(error))) = (to, self.names.as_ref().map(|names| names.clear())) {
            log::warn(&format!("not all that is kept of names could be removed: {error}"));
        }
        Evicted { blobs: evicted.blobs, bytes: evicted.bytes, not_uploaded_blobs: 0, not_uploaded_bytes: 0 }
    }

    /// Stores the index of the cache.
    pub fn close(&self) {
        self.away.iter().for_each(|away| away.stop());
        if let Some(joined) = &self.fleet {
            joined.fleet.close();
        }
        self.cache.close();
    }
}

/// The log of a tree's mount in the background: beside the caches, one file for each tree. `below` is the
/// folder, if the user named one.
pub fn log(below: Option<&Path>, tree: &str) -> Option<PathBuf> {
    let below = cache_folder(below).ok()?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._@-".contains(c) { c } else { '-' };
    let name: String = tree.chars().map(plain).take(NAME_MAX).collect();
    Some(below.join("log").join(format!("{name}.log")))
}

fn folder_name(volume: &str, number: u32) -> String {
    if number <= 1 { volume.to_owned() } else { format!("{volume}-{number}") }
}

/// The folders of blobs of the volume's other caches.
fn others(below: &Path, volume: &str, own: u32) -> Vec<PathBuf> {
    let numbers = (1..=SIDE_BY_SIDE).filter(|number| *number != own);
    let folders = numbers.map(|number| below.join(folder_name(volume, number)).join("blobs"));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// Takes the first folder of this volume that no other mount uses. Returns its number and its lock.
fn take(below: &Path, volume: &str, which: Which) -> Result<(u32, FileLock)> {
    let until = Deadline::after(which.patience);
    for number in which.after + 1..=SIDE_BY_SIDE {
        let folder = below.join(folder_name(volume, number));
        private_folder(&folder)?;
        let lock = folder.join("lock");
        loop {
            if let Some(file) = hold(&lock)? {
                return Ok((number, file));
            }
            if until.is_over() || number > which.after + 1 {
                break;
            }
            until.sleep(Duration::from_millis(20));
        }
    }
    Err(Failure::new("in-use", format!("{} has no free cache for another mount", below.display()))
        .next("name a folder of its own: --cache DIR"))
}

/// Locks a file until the returned value is dropped. `None` if another process holds the lock.
pub fn hold(path: &Path) -> Result<Option<FileLock>> {
    let file = File::options().create(true).truncate(false).write(true).open(path).at("open", path)?;
    let mut lock = FileLock::new(file);
    Ok(lock.try_exclusive().unwrap_or(false).then_some(lock))
}

/// Locks a file as [`hold`] does, for a caller that fails without the lock. Tries for a moment, because a
/// process that was killed may still have the lock.
pub fn hold_soon(path: &Path) -> Result<Option<FileLock>> {
    lock::retry(lock::moment(), || hold(path), |held| matches!(held, Ok(None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tree_has_a_log() {
        let at = |tree: &str| log(Some(Path::new("/c")), tree).unwrap();
        assert_eq!(at("s3://b/p@latest"), Path::new("/c/log/s3---b-p@latest.log"));
        assert!(at(&"x".repeat(5000)).file_name().unwrap().len() < 255);
    }

    #[test]
    fn two_mounts_have_a_folder_each_and_the_next_finds_the_first() {
        let temp = tempfile::tempdir().unwrap();
        let which = |after| Which { after, patience: Duration::ZERO, beside: false };
        let (first, lock) = take(temp.path(), "ab", which(0)).unwrap();
        let (second, _other) = take(temp.path(), "ab", which(0)).unwrap();
        assert_ne!(first, second);
        // The lock ends also if a process was just forked.
        let _child = base::trial::Forked::new().unwrap();
        drop(lock);
        let (again, lock) = take(temp.path(), "ab", which(0)).unwrap();
        assert_eq!(again, first);
        assert_eq!(take(temp.path(), "ab", which(1)).unwrap().0, 3);
        // With patience, a mount waits for another one that is about to end.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                drop(lock);
            });
            let patient = Which { after: 0, patience: Duration::from_secs(20), beside: false };
            assert_eq!(take(temp.path(), "ab", patient).unwrap().0, 1);
        });
    }
}
