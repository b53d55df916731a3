//! The figures of a remote origin, its cache and its uploads.

use std::time::Duration;

use api::status::remote_side::{
    CacheStatus, RefusalStatus, RemoteStatus, RequestStatus, TroubleStatus, UploadStatus,
};
use api::text::{seconds_since, utc};
use cache::{NodeCache, Uploads};
use origin::Remote;
use origin::remote::{KINDS, Refusal};

use super::waiting;

/// The figures of a cache.
pub fn cache_status(cache: &NodeCache) -> CacheStatus {
    let stats = cache.stats();
    CacheStatus {
        size_bytes: stats.budget,
        floor_bytes: stats.floor,
        blobs: stats.blobs,
        bytes: stats.bytes,
        pinned_blobs: stats.pinned.blobs,
        pinned_bytes: stats.pinned.bytes,
        disk_reads: stats.disk_reads,
        disk_bytes: stats.disk_bytes,
        memory_reads: stats.memory_reads,
        memory_bytes: stats.memory_bytes,
        far_reads: stats.far_reads,
        far_bytes: stats.far_bytes,
        fetched_blobs: stats.whole_fetches,
        fetched_parts: stats.part_fetches,
        fetched_bytes: stats.fetched_bytes,
        evicted_blobs: stats.evicted_blobs,
        evicted_bytes: stats.evicted_bytes,
        damaged: stats.damaged,
        deletions_waiting: stats.removing,
        in_memory_bytes: stats.in_memory_bytes,
        off: stats.off,
        kept_out: stats.kept_out,
    }
}

/// The figures of the requests to an origin.
pub fn request_status(remote: &Remote) -> RequestStatus {
    let stats = remote.stats();
    let refusing: Vec<RefusalStatus> = remote.refusals().iter().map(refusal).collect();
    let of_reads = refusing.iter().find(|refusal| ["everything", "reads"].contains(&&*refusal.what));
    RequestStatus {
        by_kind: KINDS.iter().map(|(kind, name)| ((*name).to_owned(), stats.requests(*kind))).collect(),
        retries: stats.retries,
        errors: stats.errors,
        throttled: stats.throttled,
        refusals: stats.refusals,
        damaged: stats.damaged,
        hedges: stats.hedges,
        in_flight: stats.in_flight,
        received_bytes: stats.received_bytes,
        sent_bytes: stats.sent_bytes,
        read_p50_ms: stats.small_reads.quantile(0.5).map(ms),
        read_p99_ms: stats.small_reads.quantile(0.99).map(ms),
        refused: of_reads.map(RefusalStatus::trouble),
        refusing,
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The figures of uploads.
pub fn upload_status(uploads: &Uploads) -> UploadStatus {
    let stats = uploads.stats();
    UploadStatus {
        blobs: stats.pinned.blobs,
        bytes: stats.pinned.bytes,
        oldest: stats.oldest.map(|at| utc(at.seconds())),
        oldest_seconds: stats.oldest.map_or(0, seconds_since),
        oldest_failure: stats.oldest_failure,
        under_way: stats.under_way,
        unreadable_blobs: stats.unreadable,
        uploaded_blobs: stats.sent_blobs,
        uploaded_bytes: stats.sent_bytes,
        failed_attempts: stats.failures,
        trouble: stats.trouble.map(|trouble| TroubleStatus::of(trouble.why, trouble.since)),
        waiting: waiting::of(uploads),
        writers_waiting: stats.writers_waiting,
        writes_refused: stats.writes_refused,
    }
}

fn refusal(refusal: &Refusal) -> RefusalStatus {
    let TroubleStatus { since, seconds, why } = TroubleStatus::of(refusal.why.clone(), refusal.since);
    let (what, cause) = (refusal.what().to_owned(), refusal.cause().to_owned());
    RefusalStatus { what, cause, since, seconds, why }
}

/// The figures of a cache without uploads, and of the origin behind it if that is remote.
pub fn of_reading(remote: Option<&Remote>, cache: &NodeCache) -> RemoteStatus {
    let spec = remote.map(Remote::spec);
    RemoteStatus {
        endpoint: spec.and_then(|spec| spec.endpoint.clone()),
        region: spec.and_then(|spec| spec.region.clone()),
        uploads: UploadStatus::default(),
        cache: cache_status(cache),
        requests: remote.map(request_status).unwrap_or_default(),
        away: None,
        unsigned: None,
    }
}
