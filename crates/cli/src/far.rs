//! The far side of a node: an origin behind a network, with the node's cache before it and the uploads beside it.
//!
//! ```text
//!   Volume ──► NodeCache ──► VOLUME/blobs            what this node has
//!                  │ note
//!                  ├──────► Uploads (VOLUME/upload) ──►┐   what the origin does not have yet
//!                  └── miss, delete ──────────────────►└── Remote (s3://, gs://, az://)
//! ```
//!
//! This is wiring, and the figures of the three in words. With a local origin there is none of it.

pub mod away;
pub mod options;
pub mod status;
pub mod tree;
pub mod waiting;
pub mod warm;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::Deadline;
use blob::{Origin, PackStore};
use cache::{
    CacheOptions, DiskPacks, Evict, NodeCache, NodeParts, Pending, Pinned, Roomy, UploadOptions, Uploads,
};
use fs::volume::{Fsync, Options};
use meta::{Journal, Names};
use origin::{Access, Environment, Limits, Mistake, OriginError, Remote, RemoteSpec};
use serde::{Deserialize, Serialize};

use crate::claim::{self, Writer, not_this_volume};
use crate::control::Tick;
use crate::error::{Context, Failure, Result};
use crate::log;
use crate::node::NodeOptions;
use crate::table::{bytes, count};
use crate::volume_dir::VolumeDir;
use away::Away;
use options::FarOptions;
use status::upload_status;
pub use status::{FarStatus, UploadStatus, cache_rows, cache_status, request_status, rows, rows_of_reading};

/// A pack of small files is kept open for so long before it is uploaded half empty: each upload is a request.
const SEAL_SMALL: Duration = Duration::from_secs(60);
/// A request for one blob's upload ends by then, and is made again: so an outage is noticed, and a thin line carries a few blobs at a time.
const UPLOAD_DEADLINE: Duration = Duration::from_secs(60);
/// A read ends with the reason before the mount's own deadline ends it without: by so many twelfths of it.
const READ_TWELFTHS: u32 = 10;
/// The origin is asked for so long before a volume is opened without its answer: a store that is there needs a few round trips.
pub const ORIGIN_ASKED: Duration = Duration::from_secs(2);
/// Closing waits so long for uploads that are under way.
const LAST_UPLOADS: Duration = Duration::from_secs(2);

/// What only a volume with a far origin has.
pub struct Far {
    cache: Arc<NodeCache>,
    uploads: Arc<Uploads>,
    remote: Arc<Remote>,
    spec: RemoteSpec,
    floor: u64,
    /// Of an origin that could not be used when the volume was opened.
    away: Option<Arc<Away>>,
    /// Of a volume that is opened for writing.
    writer: Option<Writer>,
}

impl Far {
    /// Opens the far side of a volume.
    pub fn open(dir: &VolumeDir, spec: &RemoteSpec, options: &NodeOptions) -> Result<Far> {
        let read_only = options.read_only || options.frozen;
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        // One bound for what is asked before the volume is open: most of it works without the origin.
        let reached = || reach(dir, spec, access, limits(&options.far, options.deadline));
        let (remote, trouble) = Deadline::after(ORIGIN_ASKED).scope(reached)?;
        let remote = Arc::new(remote);
        let writer = (!read_only).then(|| Writer::far(dir, remote.clone(), options.take_over));
        match &writer {
            Some(writer) if trouble.is_none() => writer.open()?,
            Some(_) if options.take_over => return Err(claim::not_now(dir)),
            // Its look-out claims the origin when that answers.
            _ => {}
        }
        let mut far = Far::before(dir, remote, writer, read_only, &options.far)?;
        let uploads = Arc::downgrade(&far.uploads);
        let back = move || uploads.upgrade().iter().for_each(|uploads| uploads.hurry());
        far.away = trouble.map(|why| Away::look(&far.remote, why, back));
        Ok(far)
    }

    /// Makes the origin of a new volume.
    pub fn format(dir: &VolumeDir, spec: &RemoteSpec) -> Result<Far> {
        let options = FarOptions::default();
        let limits = limits(&options, crate::options::DEADLINE);
        let made = Remote::format(spec, &Environment::process(), limits, &dir.format().id);
        let remote = Arc::new(made.map_err(crate::origins::origin_failure)?);
        Far::before(dir, remote, None, false, &options)
    }

    /// Puts cache and uploads before an origin.
    fn before(
        dir: &VolumeDir,
        remote: Arc<Remote>,
        writer: Option<Writer>,
        read_only: bool,
        options: &FarOptions,
    ) -> Result<Far> {
        let bare: Arc<dyn Origin> = remote.clone();
        let origin = writer.as_ref().map_or(bare, Writer::origin);
        let default = |size: io::Result<u64>| size.or_fail(|| format!("cannot use {}", dir.path().display()));
        let budget = options.cache_size.or(dir.format().cache_size);
        let budget = budget.map_or_else(|| default(cache::default_budget(dir.path())), Ok)?;
        let floor = options.cache_floor.map_or_else(|| default(cache::default_floor(dir.path())), Ok)?;
        let upload = UploadOptions {
            workers: if read_only { 0 } else { options.uploads },
            budget,
            // Below the cache's own: it makes room first, from what the origin has.
            floor: floor / 2,
            patience: options.timeout,
        };
        let folder = dir.uploads();
        let uploads = Uploads::open(&folder, origin.clone(), upload, log::sink()).at("open", &folder)?;
        let uploads = Arc::new(uploads);
        let pending: Arc<dyn Pending> = uploads.clone();
        let parts = NodeParts {
            folder: dir.blobs(),
            index: dir.cache_index(),
            may_delete: None,
            watch: None,
            remote: origin,
            pending,
            options: CacheOptions { budget, floor, ..crate::limits::cache_options() },
            report: log::sink(),
        };
        let cache = NodeCache::open(parts).at("open", &dir.blobs())?;
        let spec = remote.spec().clone();
        Ok(Far { cache: Arc::new(cache), uploads, remote, spec, floor, away: None, writer })
    }

    /// The origin, as the volume sees it.
    pub fn origin(&self) -> Arc<dyn Origin> {
        self.cache.clone()
    }

    /// The node's open packs, on the disk that they share with the cache.
    pub fn packs(&self, packs: DiskPacks) -> Arc<dyn PackStore> {
        Arc::new(Roomy::new(packs, self.cache.clone(), self.floor))
    }

    /// The claim on it.
    pub fn writer(&self) -> Option<&Writer> {
        self.writer.as_ref()
    }

    /// Tries everything that waits to be uploaded now.
    pub fn hurry(&self) {
        self.uploads.hurry();
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<NodeCache> {
        &self.cache
    }

    /// How a volume before this is opened.
    pub fn volume_options(&self, far: &FarOptions, options: Options) -> Options {
        Options {
            near: false,
            seal_small: SEAL_SMALL,
            fsync: if far.fsync_origin { Fsync::Origin(far.timeout) } else { Fsync::Here },
            gate: self.uploads.clone(),
            ..options
        }
    }

    /// The volume is open: from now on it can be told whether a blob is anybody's.
    pub fn opened(&self, journal: &Arc<Journal>) {
        // The journal holds the packs, and these hold the uploads: not the other way round as well.
        let journal = Arc::downgrade(journal);
        let packs = move |id: &base::BlobId| Names::new(journal.upgrade()?).blob_packs(id).ok();
        // What cannot be told counts as needed.
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

    /// Lets go of cached blobs: of all, or until no more than this is kept.
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

    /// Ends it; what is not uploaded stays and is said.
    pub fn close(&self) {
        self.away.iter().for_each(|away| away.stop());
        let left = self.uploads.close(LAST_UPLOADS);
        self.cache.close();
        if left.blobs > 0 {
            log::line(&not_uploaded(left.blobs, left.bytes));
        }
    }

    /// The figures now.
    pub fn status(&self) -> FarStatus {
        FarStatus {
            endpoint: self.spec.endpoint.clone(),
            region: self.spec.region.clone(),
            uploads: upload_status(&self.uploads),
            cache: cache_status(&self.cache),
            requests: request_status(&self.remote),
            away: self.away.as_ref().and_then(|away| away.trouble()),
        }
    }
}

/// What an origin may take, as the mount's options say; `deadline`: a read fails after this.
pub fn limits(options: &FarOptions, deadline: Duration) -> Limits {
    Limits {
        max_requests: options.max_requests.map(u64::from),
        max_bandwidth: options.max_bandwidth,
        read_deadline: deadline * READ_TWELFTHS / 12,
        write_deadline: UPLOAD_DEADLINE,
        ..Limits::default()
    }
}

/// Opens the origin of a volume that is there. One that cannot be used at the moment is no reason not to open it: what is on this node can be
/// read, and what is written is uploaded when the origin serves again. Then the second value says why, and the origin is looked at before anything in
/// it is changed.
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
                "the origin cannot be used now: {what}; going on with what is on this node; it is looked for, and used when it serves again"
            ));
            Ok((remote, Some(what)))
        }
        Err(error) => Err(crate::origins::of_volume(dir, error)),
    }
}

/// Whether a volume is opened although its origin does not serve it. A bucket that is not there is a
/// mistake in where the volume's blobs are; what is on this node can be read all the same.
fn may_be_unseen(mistake: Mistake, access: Access) -> bool {
    let of_the_place =
        matches!(mistake, Mistake::Bucket | Mistake::Region | Mistake::NotAnOrigin | Mistake::Other);
    passes(mistake) || of_the_place && access == Access::ReadOnly
}

/// Whether a mistake is an outage, or what a person mends while a volume is used: no reason not to go on
/// with what is on this node.
pub fn passes(mistake: Mistake) -> bool {
    match mistake {
        Mistake::Busy | Mistake::Endpoint | Mistake::Tls | Mistake::NotAStore | Mistake::Full => true,
        Mistake::AccessKey | Mistake::Secret | Mistake::NoKeys | Mistake::Expired => true,
        Mistake::Denied | Mistake::Clock => true,
        Mistake::Taken | Mistake::Bucket | Mistake::Region | Mistake::NotAnOrigin | Mistake::Other => false,
    }
}

/// What is said of what is not uploaded yet, when a volume is closed.
pub fn not_uploaded(blobs: u64, size: u64) -> String {
    format!(
        "{} blobs ({}) are not uploaded yet; they stay on this node's disk, and uploading goes on at the next mount (covey flush waits for it)",
        count(blobs),
        bytes(size)
    )
}

/// What waiting for the origin came to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Settled {
    /// Blobs that had to be uploaded.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

/// What was let go of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Evicted {
    /// Blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs that stay because the origin does not have them yet.
    pub not_uploaded_blobs: u64,
    /// Their bytes.
    pub not_uploaded_bytes: u64,
}
