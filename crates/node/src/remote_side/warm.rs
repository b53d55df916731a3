//! Warming: fetches the blobs of files and folders before they are read, into this node's cache or into its
//! zone's depots.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::answers::{Missed, WarmSummary};
use api::control::Tick;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use base::{BlobId, Ino, PackNo};
use blob::BlobSource;
use cache::{NodeCache, Warmed};
use fleet::node::Fleet;
use fs::volume::Volume;
use meta::store::StoreError;
use meta::{Names, PackRow};
use net::transport::Filled;
use parking_lot::Mutex;

use crate::fleet::Joined;
use crate::refused::{no_cache, no_fleet};

/// The number of parallel fetches.
const HANDS: usize = 16;
/// The interval between progress messages.
const TICK: Duration = Duration::from_millis(250);
/// The interval between checks whether it is done.
const LOOK: Duration = Duration::from_millis(5);

/// A blob to fetch.
struct WantedBlob {
    id: BlobId,
    /// The blob's size in bytes.
    size: u32,
    /// A file that needs it, for messages.
    path: String,
    /// Whether it is to stay on this machine.
    keep: bool,
}

/// The blobs to fetch.
struct Wanted {
    names: Names,
    volume: Arc<Volume>,
    blobs: Vec<WantedBlob>,
    /// The place of a pack's blob in `blobs`. None: it has none.
    packs: HashMap<PackNo, Option<usize>>,
    ids: HashMap<BlobId, usize>,
    files: u64,
    failed: Vec<Missed>,
    failed_count: u64,
}

impl Wanted {
    fn fail(&mut self, path: &Path, why: impl Into<String>) {
        self.failed_count += 1;
        if self.failed.len() < api::answers::NAMED {
            self.failed.push(Missed { path: shown(path), why: why.into() });
        }
    }

    /// Adds everything at and below a path.
    fn walk(&mut self, path: &Path, tick: &mut dyn FnMut(Tick)) {
        match self.find(path) {
            Err(error) => self.fail(path, error.to_string()),
            Ok(None) => self.fail(path, "it is not there"),
            Ok(Some((ino, kind))) => {
                let mut rest = vec![(ino, kind, path.to_owned())];
                while let Some((ino, kind, path)) = rest.pop() {
                    if let Err(error) = self.visit(ino, kind, &path, &mut rest) {
                        self.fail(&path, error.to_string());
                    }
                    if self.files.is_multiple_of(1024) {
                        tick(Tick { done: 0, of: 0, what: format!("{} files looked at", count(self.files)) });
                    }
                }
            }
        }
    }

    fn find(&self, path: &Path) -> std::result::Result<Option<(Ino, u32)>, StoreError> {
        let (mut ino, mut kind) = (Ino::ROOT, libc::S_IFDIR);
        for part in path.components() {
            if let Component::Normal(name) = part {
                match self.names.lookup(ino, name.as_bytes())? {
                    Some(found) => (ino, kind) = (found.ino, found.kind),
                    None => return Ok(None),
                }
            }
        }
        Ok(Some((ino, kind)))
    }

    fn visit(
        &mut self,
        ino: Ino,
        kind: u32,
        path: &Path,
        rest: &mut Vec<(Ino, u32, PathBuf)>,
    ) -> std::result::Result<(), StoreError> {
        match kind & libc::S_IFMT {
            libc::S_IFDIR => {
                let mut position = 0;
                loop {
                    let listed = self.names.readdir(ino, position, 1024)?;
                    let Some(last) = listed.last() else { return Ok(()) };
                    position = last.position + 1;
                    for entry in &listed {
                        let name = std::ffi::OsStr::from_bytes(&entry.name);
                        rest.push((entry.dentry.ino, entry.dentry.kind, path.join(name)));
                    }
                }
            }
            libc::S_IFREG => {
                self.files += 1;
                let keep = self.volume.is_kept(ino);
                let mut from = 0;
                loop {
                    let pages = self.names.extent_pages(ino, from, 256)?;
                    let Some((last, _)) = pages.last() else { return Ok(()) };
                    let next = last.checked_add(1);
                    for extent in pages.iter().flat_map(|(_, page)| page.extents()) {
                        self.want(extent.pack, path, keep)?;
                    }
                    match next {
                        Some(next) => from = next,
                        None => return Ok(()),
                    }
                }
            }
            _ => Ok(()),
        }
    }

    fn want(&mut self, pack: PackNo, path: &Path, keep: bool) -> std::result::Result<(), StoreError> {
        let place = match self.packs.get(&pack) {
            Some(place) => *place,
            None => {
                let place = match self.names.pack(pack)? {
                    Some(PackRow::Sealed { blob, size }) => Some(self.place_of(blob, size, path)),
                    _ => None,
                };
                self.packs.insert(pack, place);
                place
            }
        };
        if let Some(place) = place {
            self.blobs[place].keep |= keep;
        }
        Ok(())
    }

    fn place_of(&mut self, id: BlobId, size: u32, path: &Path) -> usize {
        let next = self.blobs.len();
        let place = *self.ids.entry(id).or_insert(next);
        if place == next {
            self.blobs.push(WantedBlob { id, size, path: shown(path), keep: false });
        }
        place
    }
}

fn shown(path: &Path) -> String {
    format!("/{}", path.display())
}

/// The destination of the blobs.
#[derive(Clone)]
pub enum To {
    /// Into this node's cache.
    Here(Arc<NodeCache>),
    /// The depots of its zone. The bytes do not pass through this node.
    Depots(Arc<Fleet>),
}

impl To {
    /// The destination for a mount of this name. Only mounts with a remote origin and published trees can be
    /// warmed.
    pub fn of(
        name: &str,
        cache: Option<&Arc<NodeCache>>,
        joined: Option<&Joined>,
        depot: bool,
    ) -> Result<To> {
        if !depot {
            return cache.cloned().map(To::Here).ok_or_else(|| no_cache(name));
        }
        let fleet = joined.map(|joined| &joined.fleet).ok_or_else(|| no_fleet(name))?;
        if fleet.depots() == 0 {
            let zone = fleet.zone();
            return Err(Failure::new("no-depot", format!("no depot is in this node's zone, {zone}"))
                .next(format!("start one: covey depot --zone {zone} --join HOST:PORT ..."))
                .next("or fetch into this node's own cache: covey warm PATH"));
        }
        Ok(To::Depots(fleet.clone()))
    }

    fn fetch(&self, blob: &WantedBlob) -> std::result::Result<Filled, String> {
        match self {
            To::Here(cache) => {
                let warmed = cache.warm(&blob.id).map_err(|error| error.to_string())?;
                if blob.keep {
                    cache.evict_last(&blob.id);
                }
                match warmed {
                    Warmed::Here => Ok(Filled::Here),
                    Warmed::Fetched(_) => Ok(Filled::Fetched),
                }
            }
            To::Depots(fleet) => fleet.warm_depot(&blob.id).map_err(|error| error.to_string()),
        }
    }
}

/// The progress of the fetches.
#[derive(Default)]
struct Progress {
    done: AtomicU64,
    here: (AtomicU64, AtomicU64),
    fetched: (AtomicU64, AtomicU64),
    failed: Mutex<(u64, Vec<Missed>)>,
    ended: AtomicBool,
}

impl Progress {
    fn fetch(&self, to: &To, blob: &WantedBlob) {
        let size = u64::from(blob.size);
        let add = |counts: &(AtomicU64, AtomicU64)| {
            counts.0.fetch_add(1, Ordering::Relaxed);
            counts.1.fetch_add(size, Ordering::Relaxed);
        };
        match to.fetch(blob) {
            Ok(Filled::Here) => add(&self.here),
            Ok(Filled::Fetched) => add(&self.fetched),
            Err(why) => {
                let mut failed = self.failed.lock();
                failed.0 += 1;
                if failed.1.len() < api::answers::NAMED {
                    failed.1.push(Missed { path: blob.path.clone(), why });
                }
            }
        }
        self.done.fetch_add(size, Ordering::Relaxed);
    }
}

/// Fetches the data of the files at and below these paths, which are relative to the root.
pub fn warm(
    to: To,
    volume: Arc<Volume>,
    names: Names,
    paths: &[PathBuf],
    tick: &mut dyn FnMut(Tick),
) -> Result<WarmSummary> {
    let started = base::time::monotonic();
    let (blobs, packs, ids) = (Vec::new(), HashMap::new(), HashMap::new());
    let (failed, failed_count) = (Vec::new(), 0);
    let mut wanted = Wanted { names, volume, blobs, packs, ids, files: 0, failed, failed_count };
    paths.iter().for_each(|path| wanted.walk(path, tick));
    let Wanted { blobs, files, mut failed, mut failed_count, .. } = wanted;
    let total: u64 = blobs.iter().map(|blob| u64::from(blob.size)).sum();
    let of_blobs = blobs.len() as u64;
    let progress = Arc::new(Progress::default());
    let theirs = progress.clone();
    let work = move || {
        let fetch = |blob: &WantedBlob| {
            theirs.fetch(&to, blob);
            Ok::<(), ()>(())
        };
        let _ = base::thread::for_each("covey-warm", HANDS, &blobs, fetch);
        theirs.ended.store(true, Ordering::Release);
    };
    let worker = base::thread::spawn("covey-warm", work)
        .map_err(|error| Failure::io("cannot start a thread to fetch with", &error))?;
    let mut told = base::time::monotonic();
    while !progress.ended.load(Ordering::Acquire) && !worker.is_finished() {
        std::thread::sleep(LOOK);
        if told.elapsed() >= TICK {
            told = base::time::monotonic();
            let done = progress.done.load(Ordering::Relaxed);
            tick(Tick { done, of: total, what: format!("{} of {}", bytes(done), bytes(total)) });
        }
    }
    if worker.join().is_err() {
        return Err(Failure::new("io", "fetching ended by a panic").next("look at the log of the mount"));
    }
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (missed, more) = std::mem::take(&mut *progress.failed.lock());
    failed_count += missed;
    failed.extend(more);
    failed.truncate(api::answers::NAMED);
    Ok(WarmSummary {
        files,
        blobs: of_blobs,
        here_blobs: get(&progress.here.0),
        here_bytes: get(&progress.here.1),
        fetched_blobs: get(&progress.fetched.0),
        fetched_bytes: get(&progress.fetched.1),
        failed,
        failed_count,
        gone: 0,
        seconds: (base::time::monotonic() - started).as_secs_f64(),
    })
}
