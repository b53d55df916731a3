//! A remote origin: the node's cache in front of it, and the uploads beside it.
//!
//! ```text
//!   Volume ──► NodeCache ──► VOLUME/blobs            what this node has
//!                  │ note
//!                  ├──────► Uploads (VOLUME/upload) ──►┐   what the origin does not have yet
//!                  └── miss, delete ──────────────────►└── Remote (s3://, gs://, az://)
//! ```
//!
//! This module holds the wiring and the figures of the three. A volume with a local origin has none of it.

pub mod away;
pub mod options;
pub mod ranges;
pub mod status;
pub mod tree;
pub mod waiting;
pub mod warm;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::answers::{Evicted, Settled};
use api::control::Tick;
use api::error::{Context, Failure, Result};
use api::status::remote_side::RemoteStatus;
use api::text::{bytes, count};
use base::Deadline;
use blob::{Origin, PackStore};
use cache::{
    CacheOptions, DiskPacks, Evict, NodeCache, NodeParts, Pending, Pinned, SharedDisk, UploadOptions, Uploads,
};
use fetch::{Table, Verify};
use fs::volume::Options;
use meta::{MetaStore, Names};
use origin::{Access, Environment, Limits, Mistake, OriginError, Remote, RemoteSpec};

use crate::claim::{self, Writer, not_this_volume};
use crate::fleet::{Join, Joined};
use crate::log;
use crate::options::NodeOptions;
use crate::volume_dir::VolumeDir;
use away::Away;
use options::RemoteOptions;
use status::{cache_status, request_status, upload_status};

/// A pack of small files stays open for this long before it is uploaded half empty, because each upload is a
/// request.
const SEAL_SMALL: Duration = Duration::from_secs(60);
/// In a shared volume, a pack of small files stays open for this long.
const SEAL_SHARED: Duration = Duration::from_secs(5);
/// The time limit for the upload of one blob. The upload is then repeated. So an outage is noticed, and a
/// slow connection carries only a few blobs at a time.
const UPLOAD_DEADLINE: Duration = Duration::from_secs(60);
/// A read from the origin times out after this many twelfths of the mount's deadline. So it can report its
/// reason before the deadline ends it without one.
const READ_TWELFTHS: u32 = 10;
/// How long opening a volume waits for the origin. A store that works needs only a few round trips.
pub const ORIGIN_ASKED: Duration = Duration::from_secs(2);
/// How long closing waits for uploads that are under way.
const LAST_UPLOADS: Duration = Duration::from_secs(2);

/// The remote side of a volume: cache, uploads and origin.
pub struct RemoteSide {
    cache: Arc<NodeCache>,
    uploads: Arc<Uploads>,
    remote: Arc<Remote>,
    spec: RemoteSpec,
    floor: u64,
    /// The search for an origin that could not be used when the volume was opened.
    away: Option<Arc<Away>>,
    /// The claim, if the volume is open for writing.
    writer: Option<Writer>,
    /// The fleet that it has joined, if any.
    fleet: Option<Box<Joined>>,
}

impl RemoteSide {
    /// Opens the remote side of a volume. `join`: the fleet that its cache takes part in.
    pub fn open(
        dir: &VolumeDir,
        spec: &RemoteSpec,
        options: &NodeOptions,
        join: Option<Join<'_>>,
    ) -> Result<RemoteSide> {
        let read_only = options.read_only || options.frozen;
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        // One time limit for all questions before the volume is open. Most of a volume works without the
        // origin.
        let reached = || reach(dir, spec, access, limits(&options.remote_side, options.deadline));
        let (remote, trouble) = Deadline::after(ORIGIN_ASKED).scope(reached)?;
        let remote = Arc::new(remote);
        // The names' database decides about the writers of a shared volume.
        let claims = !read_only && !dir.is_shared();
        let writer = claims.then(|| Writer::remote(dir, remote.clone(), options.take_over));
        match &writer {
            Some(writer) if trouble.is_none() => writer.open()?,
            Some(_) if options.take_over => return Err(claim::not_now(dir)),
            // The thread that checks the claim makes it when the origin answers.
            _ => {}
        }
        let mut remote_side =
            RemoteSide::before(dir, (remote, writer), read_only, &options.remote_side, join)?;
        let uploads = Arc::downgrade(&remote_side.uploads);
        let back = move || uploads.upgrade().iter().for_each(|uploads| uploads.hurry());
        remote_side.away = trouble.map(|why| Away::look(&remote_side.remote, why, back));
        Ok(remote_side)
    }

    /// Creates the origin of a new volume.
    pub fn format(dir: &VolumeDir, spec: &RemoteSpec) -> Result<RemoteSide> {
        let options = RemoteOptions::default();
        let limits = limits(&options, crate::options::DEADLINE);
        let made = Remote::format(spec, &Environment::process(), limits, &dir.format().id);
        let remote = Arc::new(made.map_err(crate::origins::origin_failure)?);
        RemoteSide::before(dir, (remote, None), false, &options, None)
    }

    /// Puts the cache and the uploads in front of an origin.
    fn before(
        dir: &VolumeDir,
        (remote, writer): (Arc<Remote>, Option<Writer>),
        read_only: bool,
        options: &RemoteOptions,
        join: Option<Join<'_>>,
    ) -> Result<RemoteSide> {
        let bare: Arc<dyn Origin> = remote.clone();
        let origin = writer.as_ref().map_or(bare, Writer::origin);
        let default = |size: io::Result<u64>| size.or_fail(|| format!("cannot use {}", dir.path().display()));
        let budget = options.cache_size.or(dir.format().cache_size);
        let for_uploads = budget.map_or_else(|| default(cache::default_budget(dir.path())), Ok)?;
        let floor = options.cache_floor.map_or_else(|| default(cache::default_floor(dir.path())), Ok)?;
        let upload = UploadOptions {
            workers: if read_only { 0 } else { options.uploads },
            budget: for_uploads,
            // Below the cache's floor. So the cache first evicts blobs that the origin has.
            floor: floor / 2,
            patience: options.timeout,
        };
        let folder = dir.uploads();
        let uploads = Uploads::open(&folder, origin.clone(), upload, log::sink()).at("open", &folder)?;
        let uploads = Arc::new(uploads);
        let pending: Arc<dyn Pending> = uploads.clone();
        let options = CacheOptions { budget, floor, ..crate::limits::cache_options() };
        let table = Table::new(Verify::default(), options.in_flight);
        let fleet = join.and_then(|join| join(origin.clone(), table.clone())).map(Box::new);
        let parts = NodeParts {
            folder: dir.blobs(),
            index: dir.cache_index(),
            may_delete: None,
            watch: fleet.as_ref().map(|joined| joined.watch()),
            remote: origin,
            tier: fleet.as_ref().map(|joined| joined.tier()),
            table,
            pending,
            options,
            report: log::sink(),
        };
        let cache = Arc::new(NodeCache::open(parts).at("open", &dir.blobs())?);
        fleet.iter().for_each(|fleet| fleet.lend(&cache));
        let spec = remote.spec().clone();
        Ok(RemoteSide { cache, uploads, remote, spec, floor, away: None, writer, fleet })
    }

    /// The fleet that it has joined, if any.
    pub fn fleet(&self) -> Option<&Joined> {
        self.fleet.as_deref()
    }

    /// The origin for the volume.
    pub fn origin(&self) -> Arc<dyn Origin> {
        self.cache.clone()
    }

    /// The node's open packs, on the disk that they share with the cache.
    pub fn packs(&self, packs: DiskPacks) -> Arc<dyn PackStore> {
        Arc::new(SharedDisk::new(packs, self.cache.clone(), self.floor))
    }

    /// Whether a blob waits to be uploaded.
    pub fn is_pending(&self, blob: &base::BlobId) -> bool {
        self.uploads.is_pending(blob)
    }

    /// The claim on the origin.
    pub fn writer(&self) -> Option<&Writer> {
        self.writer.as_ref()
    }

    /// Retries all pending uploads now.
    pub fn hurry(&self) {
        self.uploads.hurry();
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<NodeCache> {
        &self.cache
    }

    /// The options for opening a volume with this origin.
    pub fn volume_options(&self, remote_side: &RemoteOptions, options: Options) -> Options {
        Options {
            local: false,
            // Until a pack is uploaded, only this node has its bytes.
            seal_small: if options.shared.is_some() { SEAL_SHARED } else { SEAL_SMALL },
            fsync: remote_side.fsync(options.shared.is_some()),
            gate: self.uploads.clone(),
            ..options
        }
    }

    /// Call this when the volume is open. From then on uploads can find out whether a blob is still needed.
    pub fn opened(&self, store: &Arc<dyn MetaStore>) {
        // The store owns the packs, and these own the uploads. A strong reference back would be a cycle.
        let store = Arc::downgrade(store);
        let packs = move |id: &base::BlobId| Names::new(store.upgrade()?).blob_packs(id).ok();
        // If that cannot be determined, the blob counts as needed.
        self.uploads.ask_whether_needed(move |id| packs(id).is_none_or(|packs| !packs.is_empty()));
    }

    /// Waits until everything that was handed over is in the origin.
    pub fn settle(&self, patience: Option<Duration>, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
        let began = base::time::monotonic();
        let total = self.uploads.stats().pinned;
        self.uploads.hurry();
        let mut told = |left: Pinned| tick(self.tick(total, left));
        let patience = patience.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
        self.uploads.wait(patience, &mut told).map_err(|error| {
            Failure::new("not-uploaded", "not everything is in the origin")
                .why(error.to_string())
                .next("nothing is lost: it stays on this node's disk and is uploaded when that is possible")
                .next("covey status shows how far it is and what is in the way")
        })?;
        let seconds = (base::time::monotonic() - began).as_secs_f64();
        Ok(Settled { blobs: total.blobs, bytes: total.bytes, seconds })
    }

    fn tick(&self, total: Pinned, left: Pinned) -> Tick {
        let done = total.bytes.saturating_sub(left.bytes);
        let mut what = format!("{} of {}", bytes(done), bytes(total.bytes.max(left.bytes)));
        if let Some(trouble) = self.uploads.stats().trouble {
            what += &format!(", {}", trouble.why);
        }
        Tick { done, of: total.bytes, what }
    }

    /// Evicts cached blobs: all, or until at most this many bytes are cached.
    pub fn evict(&self, to: Option<u64>) -> Result<Evicted> {
        let evicted = self.cache.evict(to.map_or(Evict::All, Evict::To));
        let pinned = self.uploads.stats().pinned;
        Ok(Evicted {
            blobs: evicted.blobs,
            bytes: evicted.bytes,
            not_uploaded_blobs: pinned.blobs,
            not_uploaded_bytes: pinned.bytes,
        })
    }

    /// Closes it. Logs what is not uploaded; that stays on this node.
    pub fn close(&self) {
        self.away.iter().for_each(|away| away.stop());
        let left = self.uploads.close(LAST_UPLOADS);
        self.fleet.iter().for_each(|joined| joined.fleet.close());
        self.cache.close();
        if left.blobs > 0 {
            log::line(&not_uploaded(left.blobs, left.bytes));
        }
    }

    /// The current figures.
    pub fn status(&self) -> RemoteStatus {
        RemoteStatus {
            endpoint: self.spec.endpoint.clone(),
            region: self.spec.region.clone(),
            uploads: upload_status(&self.uploads),
            cache: cache_status(&self.cache),
            requests: request_status(&self.remote),
            away: self.away.as_ref().and_then(|away| away.trouble()),
            unsigned: None,
        }
    }
}

/// The limits for an origin, from the mount's options. `deadline` is the time after which a read fails.
pub fn limits(options: &RemoteOptions, deadline: Duration) -> Limits {
    Limits {
        max_requests: options.max_requests.map(u64::from),
        max_bandwidth: options.max_bandwidth,
        read_deadline: deadline * READ_TWELFTHS / 12,
        write_deadline: UPLOAD_DEADLINE,
        ..Limits::default()
    }
}

/// Opens the origin of an existing volume. If it cannot be used at the moment, the volume opens all the same:
/// data on this node can be read, and written data is uploaded when the origin works again. Then the second
/// value says why. The origin is checked before anything in it is changed.
fn reach(
    dir: &VolumeDir,
    spec: &RemoteSpec,
    access: Access,
    limits: Limits,
) -> Result<(Remote, Option<String>)> {
    let environment = Environment::process();
    match Remote::open(spec, &environment, limits, access) {
        Ok(remote) => {
            let owner = remote.volume();
            if owner == dir.format().id { Ok((remote, None)) } else { Err(not_this_volume(dir, owner)) }
        }
        Err(OriginError::Remote { mistake, what, .. }) if may_be_unseen(mistake, access) => {
            let unseen = Remote::open_unseen(spec, &environment, limits, access, &dir.format().id);
            let remote = unseen.map_err(crate::origins::origin_failure)?;
            log::warn(&format!(
                "the origin cannot be used now: {what}; the mount works with what is on this node, and Covey keeps trying"
            ));
            Ok((remote, Some(what)))
        }
        Err(error) => Err(crate::origins::of_volume(dir, error)),
    }
}

/// Whether a volume opens although its origin cannot serve it. A missing bucket means that the location of
/// the volume's blobs is wrong. Even then, data on this node can be read.
fn may_be_unseen(mistake: Mistake, access: Access) -> bool {
    let of_the_place =
        matches!(mistake, Mistake::Bucket | Mistake::Region | Mistake::NotAnOrigin | Mistake::Other);
    passes(mistake) || of_the_place && access == Access::ReadOnly
}

/// Whether a mistake is an outage, or something that a person can correct while a volume is in use. Then the
/// volume works with the data on this node.
pub fn passes(mistake: Mistake) -> bool {
    match mistake {
        Mistake::Busy | Mistake::Endpoint | Mistake::Tls | Mistake::NotAStore | Mistake::Full => true,
        Mistake::AccessKey | Mistake::Secret | Mistake::NoKeys | Mistake::Expired => true,
        Mistake::Denied | Mistake::Clock => true,
        Mistake::Taken | Mistake::Bucket | Mistake::Region | Mistake::NotAnOrigin | Mistake::Other => false,
    }
}

/// The message about pending uploads when a volume is closed.
pub fn not_uploaded(blobs: u64, size: u64) -> String {
    format!(
        "{} blobs ({}) are not uploaded yet; they stay on this node's disk, and uploading goes on at the next mount (covey flush waits for it)",
        count(blobs),
        bytes(size)
    )
}
