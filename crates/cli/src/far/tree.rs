//! A published tree in a far origin, mounted: its blobs are kept on this node's disk, names as well as bytes.
//!
//! There is no volume whose folder could hold them, so they lie in the user's cache folder, by the id of the volume that was published,
//! and another mount of any of its trees finds them there. Two mounts at the same time cannot share one folder: the second takes the next.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::Deadline;
use base::size::MIB;
use blob::{BlobSource, Origin};
use cache::{CacheOptions, Evict, NameCache, NodeCache, NodeParts, StoresNothing};
use origin::Remote;
use peer::fleet::Fleet;
use peer::id::Role;

use super::away::Away;
use super::options::FarOptions;
use super::status::TroubleStatus;
use super::{Evicted, FarStatus, UploadStatus, cache_status, request_status};
use crate::error::{Context, Failure, Result};
use crate::fleet::shown::FleetStatus;
use crate::fleet::{self, Joined, Lender, Told};
use crate::frozen::Named;
use crate::log;
use crate::volume_dir::private_folder;

/// So many mounts of one volume's trees can have a cache here.
const SIDE_BY_SIDE: u32 = 64;

/// No file's name is longer, with what stands behind it.
const NAME_MAX: usize = 200;

/// What names take on the disk at most, beside the cache's own budget, of which it is at most a sixteenth.
const NAMES_MAX: u64 = 64 * MIB;

/// Which of a volume's caches a mount takes: the first that no other mount has.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    /// Of those with a higher number.
    pub after: u32,
    /// The first of these is waited for so long: a mount that ends may have it still.
    pub patience: Duration,
}

/// The cache of one mount.
pub struct TreeCache {
    cache: Arc<NodeCache>,
    /// What was read of names; none where they cannot be kept.
    names: Option<Arc<NameCache>>,
    /// Of an origin that could not be used when the tree was mounted.
    away: Option<Arc<Away>>,
    next: Option<u32>,
    remote: Arc<Remote>,
    /// Of which fleet it is a node.
    fleet: Option<Joined>,
    _lock: File,
}

impl TreeCache {
    /// Puts a cache before an origin, and a fleet between the two if that was asked for. `volume`: whose trees they are.
    /// `patience`: a reader has an error after this; `which`: of the caches of this volume.
    pub fn before(
        store: Arc<Remote>,
        volume: [u8; 16],
        named: &Named,
        options: &FarOptions,
        (patience, which): (Duration, Which),
    ) -> Result<TreeCache> {
        let below = cache_folder(named.cache.as_deref())?;
        let id = ::tree::root::hex(&volume);
        let (number, lock) = take(&below, &id, which)?;
        let folder = below.join(folder_name(&id, number));
        let join = |fleet| fleet::join(fleet, Role::Node, false, &folder, volume, store.clone(), patience);
        let joined = named.fleet.as_deref().map(join).transpose()?;
        let remote: Arc<dyn Origin> = match &joined {
            Some(joined) => joined.fleet.clone(),
            None => store.clone(),
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
            options: CacheOptions { budget, floor, ..crate::limits::cache_options() },
            report: log::sink(),
        };
        let cache = Arc::new(NodeCache::open(parts).at("open", &folder)?);
        if let Some(joined) = &joined {
            joined.fleet.lend(Arc::new(Lender(Arc::downgrade(&cache))));
            let keeper: Arc<dyn Origin> = cache.clone();
            joined.fleet.fill_from(&keeper);
            fleet::tell_free(&joined.fleet, &cache);
            fleet::calm(&joined.fleet);
        }
        let source: Arc<dyn BlobSource> = cache.clone();
        let names = NameCache::open(source, &folder, NAMES_MAX.min(budget / 16), log::sink());
        let names = names.map(Arc::new).inspect_err(|error| {
            log::warn(&format!("names are not kept in {}: {error}", folder.display()));
        });
        let next = below.join(folder_name(&id, number + 1)).is_dir().then_some(number);
        let names = names.ok();
        Ok(TreeCache { cache, names, away: None, next, remote: store, fleet: joined, _lock: lock })
    }

    /// After which number another cache of this volume is, if there is one.
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    /// The origin could not be used: it is looked for from now on. `back` is called once when it was seen.
    pub fn look_for(&mut self, why: String, back: impl FnOnce(&Remote) + Send + 'static) {
        let remote = Arc::downgrade(&self.remote);
        let back = move || {
            if let Some(remote) = remote.upgrade() {
                back(&remote);
            }
        };
        self.away = Some(Away::look(&self.remote, why, back));
    }

    /// Why the origin cannot be used, of one that could not when the tree was mounted, until it has been
    /// seen.
    pub fn away(&self) -> Option<TroubleStatus> {
        self.away.as_ref()?.trouble()
    }

    /// Where names are read: by way of what is kept of them.
    pub fn names(&self) -> Arc<dyn BlobSource> {
        match &self.names {
            Some(names) => names.clone(),
            None => self.cache.clone(),
        }
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<NodeCache> {
        &self.cache
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

    /// The figures now; nothing of them is about uploads.
    pub fn status(&self) -> FarStatus {
        FarStatus { away: self.away(), ..FarStatus::of_reading(Some(&self.remote), &self.cache) }
    }

    /// Lets go of cached blobs: of all, or until no more than this is kept.
    pub fn evict(&self, to: Option<u64>) -> Evicted {
        let evicted = self.cache.evict(to.map_or(Evict::All, Evict::To));
        if let (None, Some(Err(error))) = (to, self.names.as_ref().map(|names| names.clear())) {
            log::warn(&format!("not all that is kept of names could be removed: {error}"));
        }
        Evicted { blobs: evicted.blobs, bytes: evicted.bytes, not_uploaded_blobs: 0, not_uploaded_bytes: 0 }
    }

    /// Writes down what is kept.
    pub fn close(&self) {
        self.away.iter().for_each(|away| away.stop());
        if let Some(joined) = &self.fleet {
            joined.fleet.close();
        }
        self.cache.close();
    }
}

impl FarStatus {
    /// The figures of a cache that nothing is uploaded from, and of the origin behind it, if that is behind a network.
    pub fn of_reading(remote: Option<&Remote>, cache: &NodeCache) -> FarStatus {
        let spec = remote.map(Remote::spec);
        FarStatus {
            endpoint: spec.and_then(|spec| spec.endpoint.clone()),
            region: spec.and_then(|spec| spec.region.clone()),
            uploads: UploadStatus::default(),
            cache: cache_status(cache),
            requests: remote.map(request_status).unwrap_or_default(),
            away: None,
        }
    }
}

/// Where a mount of a tree in the background writes: beside the caches, a file for each tree. `below`: where, if somebody said.
pub fn log(below: Option<&Path>, tree: &str) -> Option<PathBuf> {
    let below = cache_folder(below).ok()?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._@-".contains(c) { c } else { '-' };
    let name: String = tree.chars().map(plain).take(NAME_MAX).collect();
    Some(below.join("log").join(format!("{name}.log")))
}

fn watch(fleet: &Arc<Fleet>) -> Arc<dyn cache::Watch> {
    Arc::new(Told(Arc::downgrade(fleet)))
}

/// Where mounts of trees keep what they fetch, and what they know of origins: the folder that somebody named, else in the user's cache folder; the
/// system's where there is no user.
pub fn cache_folder(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    Ok(base.unwrap_or_else(|| PathBuf::from("/var/cache")).join("covey/trees"))
}

fn folder_name(volume: &str, number: u32) -> String {
    if number <= 1 { volume.to_owned() } else { format!("{volume}-{number}") }
}

/// The first folder of this volume that no other mount has, by its number.
fn take(below: &Path, volume: &str, which: Which) -> Result<(u32, File)> {
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

/// A file's lock, as long as what is returned lives; `None` when somebody else has it.
pub fn hold(path: &Path) -> Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(path).at("open", path)?;
    // SAFETY: flock(2) on a descriptor that `file` keeps open.
    let is_held = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    Ok(is_held.then_some(file))
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
        let which = |after| Which { after, patience: Duration::ZERO };
        let (first, lock) = take(temp.path(), "ab", which(0)).unwrap();
        let (second, _other) = take(temp.path(), "ab", which(0)).unwrap();
        assert_ne!(first, second);
        drop(lock);
        let (again, lock) = take(temp.path(), "ab", which(0)).unwrap();
        assert_eq!(again, first);
        assert_eq!(take(temp.path(), "ab", which(1)).unwrap().0, 3);
        // A mount that is about to end is waited for, if that was asked for.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                drop(lock);
            });
            let patient = Which { after: 0, patience: Duration::from_secs(20) };
            assert_eq!(take(temp.path(), "ab", patient).unwrap().0, 1);
        });
    }
}
