//! A bucket that others fill, with this node's disk as its cache, and a fleet beside it if that is wanted.
//!
//! Bytes are blobs that are named by bucket, key, ETag and size ([`origin::foreign`]), and go the way of
//! every blob: memory, disk, fleet, store. What is written is not kept here: requests are passed on to the
//! store.
//!
//! A blob's name does not say where its object is. So each read first says so ([`Locations`]), within a
//! bound.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::fleet::node::Fleet;
use api::error::{Context, Failure, Result};
use base::lock::FileLock;
use base::{BlobId, Deadline, ForeignObject};
use blob::{BlobError, BlobSource, Origin};
use cache::{CacheOptions, NodeCache, NodeParts, StoresNothing};
use fetch::{Table, Tier};
use net::id::Role;
use origin::foreign::{PART, range_of};
use origin::remote::Forward;
use origin::{Bucket, Environment, ForeignOrigin, Locate, Location, RemoteSpec};
use parking_lot::Mutex;

use crate::fleet::options::FleetOptions;
use crate::fleet::{self, CacheEvents, Joined};
use crate::log;
use crate::origins::Reach;
use crate::remote_side::tree::hold_soon;
use crate::volume_dir::{cache_folder, private_folder};

/// The most locations in each of the two halves.
const HALF: usize = 32_768;

/// How a bucket is read.
#[derive(Clone, Debug)]
pub struct ReadThroughOptions {
    /// Where the store is, if it is not the cloud's own.
    pub reach: Reach,
    /// The folder of the cache. None: the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Bytes of the disk for blobs. None: a part of what is free.
    pub cache_size: Option<u64>,
    /// The fleet to join.
    pub fleet: Option<FleetOptions>,
    /// When a read fails at the latest.
    pub deadline: Duration,
}

/// Where the objects are that are being read.
#[derive(Default)]
struct Locations(Mutex<[HashMap<ForeignObject, Location>; 2]>);

impl Locations {
    /// Remembers a location. When the first half is full, what is in the second is forgotten.
    fn know(&self, object: ForeignObject, location: impl FnOnce() -> Location) {
        let [young, old] = &mut *self.0.lock();
        if young.contains_key(&object) {
            return;
        }
        let location = old.remove(&object).unwrap_or_else(location);
        if young.len() >= HALF {
            *old = std::mem::take(young);
        }
        young.insert(object, location);
    }
}

impl Locate for Locations {
    fn locate(&self, object: ForeignObject) -> std::result::Result<Option<Location>, BlobError> {
        let halves = self.0.lock();
        Ok(halves.iter().find_map(|half| half.get(&object)).cloned())
    }
}

/// A bucket with a cache. See the [module](self).
pub struct ReadThrough {
    forward: Forward,
    locations: Arc<Locations>,
    cache: Arc<NodeCache>,
    fleet: Option<Joined>,
    deadline: Duration,
    _lock: FileLock,
}

/// Why bytes of a version cannot be had.
#[derive(Debug)]
pub enum Unread {
    /// The object is another version now, or is gone.
    Stale,
    /// The bytes cannot be had now, for this reason.
    Away(String),
}

impl ReadThrough {
    /// Whether a text on the command line means such a bucket: a store, and no published tree in it.
    pub fn claims(text: &str) -> bool {
        RemoteSpec::claims(text) && !text.contains('@')
    }

    /// Opens a bucket and its cache. Sends no request yet.
    ///
    /// # Errors
    /// The place is badly named, there are no keys, or the cache or the fleet cannot be used.
    pub fn open(text: &str, options: &ReadThroughOptions) -> Result<ReadThrough> {
        // The keys are loaded into this process's memory.
        crate::secrets::keep_from_dumps();
        let (endpoint, region) = (options.reach.endpoint.as_deref(), options.reach.region.as_deref());
        let bucket = Bucket::open(text, endpoint, region, &Environment::process());
        let bucket = bucket.map_err(crate::origins::origin_failure)?;
        let forward = bucket.forward().ok_or_else(|| {
            Failure::usage(format!("{text} cannot be served: its store does not speak S3"))
                .next("name a bucket of an S3 store, s3://BUCKET[/PREFIX], and --endpoint URL if it is not Amazon's")
        })?;
        let (_, prefix) = forward.place();
        if !prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)) {
            return Err(Failure::usage(format!("the prefix {prefix} cannot be served"))
                .next("use letters, digits, - _ . and / in it, or serve the whole bucket"));
        }
        // The nodes of a fleet that serve the same bucket have the same id.
        let id = forward.identity("", "", 0);
        let volume: [u8; 16] = std::array::from_fn(|at| id.0[at]);
        let folder =
            cache_folder(options.cache.as_deref())?.join(format!("bucket-{}", ::tree::root::hex(&volume)));
        private_folder(&folder)?;
        let lock = hold_soon(&folder.join("lock"))?.ok_or_else(|| {
            Failure::new("in-use", format!("another process uses {} for this bucket", folder.display()))
                .next("name a folder of its own: --cache DIR")
        })?;
        let locations = Arc::new(Locations::default());
        let inner: Arc<dyn Origin> = Arc::new(origin::Memory::new());
        let store: Arc<dyn Origin> = Arc::new(ForeignOrigin::new(inner, bucket, locations.clone()));
        let verify = options.fleet.as_ref().map(|fleet| fleet.verify).unwrap_or_default();
        let table = Table::new(verify, crate::limits::cache_options().in_flight);
        let join = |fleet| {
            let parts = (store.clone(), table.clone());
            fleet::join(fleet, Role::Node, false, &folder, volume, parts, options.deadline)
        };
        let joined = options.fleet.as_ref().map(join).transpose()?;
        let cache = Arc::new(cached(&folder, options.cache_size, store, table, joined.as_ref())?);
        if let Some(joined) = &joined {
            joined.lend(&cache);
            fleet::calm(&joined.fleet);
        }
        Ok(ReadThrough { forward, locations, cache, fleet: joined, deadline: options.deadline, _lock: lock })
    }

    /// The bytes that are fetched together.
    pub fn piece(&self) -> u64 {
        u64::from(PART)
    }

    /// The way of requests to the store.
    pub fn forward(&self) -> &Forward {
        &self.forward
    }

    /// Fills `buf` with bytes of a version of an object, from `offset` on.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn read(
        &self,
        (key, etag, size): (&str, &str, u64),
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<(), Unread> {
        let object = self.forward.identity(key, etag, size);
        let location = || Location { key: key.to_owned(), etag: etag.to_owned(), size };
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let part = u32::try_from(at / u64::from(PART)).ok();
            let range = part.and_then(|part| Some((part, range_of(part, size)?)));
            let Some((part, range)) = range else {
                return Err(Unread::Away("the object has no such bytes".to_owned()));
            };
            let len = (range.end - at).min((buf.len() - done) as u64) as usize;
            let id = BlobId::foreign(object, part);
            // Before each read: it may have been forgotten for others.
            self.locations.know(object, location);
            let piece = &mut buf[done..done + len];
            let read = || self.cache.read_at(&id, (at - range.start) as u32, piece);
            Deadline::current().within(self.deadline).scope(read).map_err(|error| match error {
                BlobError::Stale(_) | BlobError::Missing(_) => Unread::Stale,
                other => Unread::Away(other.to_string()),
            })?;
            done += len;
        }
        Ok(())
    }

    /// Stores the index of the cache, and leaves the fleet.
    pub fn close(&self) {
        if let Some(joined) = &self.fleet {
            joined.fleet.close();
        }
        self.cache.close();
    }
}

fn cached(
    folder: &std::path::Path,
    size: Option<u64>,
    store: Arc<dyn Origin>,
    table: Arc<Table>,
    joined: Option<&Joined>,
) -> Result<NodeCache> {
    let fits = |size: std::io::Result<u64>| size.at("use", folder);
    let floor = fits(cache::default_floor(folder))?;
    let blobs = folder.join("blobs");
    private_folder(&blobs)?;
    let watch = |joined: &Joined| -> Arc<dyn cache::Watch> {
        let fleet: &Arc<Fleet> = &joined.fleet;
        Arc::new(CacheEvents(Arc::downgrade(fleet)))
    };
    let parts = NodeParts {
        folder: blobs,
        index: folder.join("cache.idx"),
        remote: store,
        tier: joined.map(|joined| Arc::clone(&joined.fleet) as Arc<dyn Tier>),
        table,
        pending: Arc::new(StoresNothing),
        may_delete: None,
        watch: joined.map(watch),
        options: CacheOptions { budget: size, floor, ..crate::limits::cache_options() },
        report: log::sink(),
    };
    NodeCache::open(parts).at("open", folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_bounded_and_those_in_use_stay() {
        let locations = Locations::default();
        let object = |n: usize| ForeignObject(std::array::from_fn(|at| (n >> (8 * (at % 4))) as u8));
        let location = |n: usize| Location { key: format!("{n}"), etag: "e".to_owned(), size: 1 };
        for n in 0..3 * HALF {
            locations.know(object(n), || location(n));
            locations.know(object(0), || location(0));
            assert_eq!(locations.locate(object(n)).unwrap(), Some(location(n)));
        }
        assert!(locations.0.lock().iter().all(|half| half.len() <= HALF));
        assert_eq!(locations.locate(object(0)).unwrap(), Some(location(0)));
        assert_eq!(locations.locate(object(1)).unwrap(), None);
    }

    #[test]
    fn a_bucket_is_told_from_a_tree() {
        assert!(ReadThrough::claims("s3://b/p") && ReadThrough::claims("gs://b"));
        assert!(!ReadThrough::claims("s3://b/p@latest") && !ReadThrough::claims("/srv/v"));
    }
}
