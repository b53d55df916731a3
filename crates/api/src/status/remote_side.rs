//! The figures of a remote origin, of its cache and of the uploads to it.

use serde::{Deserialize, Serialize};

use crate::text::{seconds_since, utc};

/// The figures of a remote origin. Field names are stable.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RemoteStatus {
    /// The address of the object store, if it is not the cloud's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The bucket's region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Blobs that the origin does not have yet.
    pub uploads: UploadStatus,
    /// The cache of this node.
    pub cache: CacheStatus,
    /// Requests to the origin since the volume was opened.
    pub requests: RequestStatus,
    /// Why the origin could not be used when the volume was opened. Absent once the origin has been reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away: Option<TroubleStatus>,
    /// The endpoint of the tree's bucket, if requests to it are not signed: only the tree names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsigned: Option<String>,
}

/// The blobs that the origin does not have yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UploadStatus {
    /// Blobs.
    pub blobs: u64,
    /// Bytes of the blobs that the origin does not have yet.
    pub bytes: u64,
    /// Since when the oldest of them has waited, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<String>,
    /// The time in seconds that the oldest blob has waited.
    pub oldest_seconds: u64,
    /// Why its last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_failure: Option<String>,
    /// Blobs being sent.
    pub under_way: u64,
    /// Blobs that cannot be read on this disk.
    pub unreadable_blobs: u64,
    /// Blobs sent since the volume was opened.
    pub uploaded_blobs: u64,
    /// Bytes of the blobs sent since the volume was opened.
    pub uploaded_bytes: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Why uploads fail at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<TroubleStatus>,
    /// The oldest of the blobs, at most a hundred of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// Writers that wait for space.
    pub writers_waiting: u64,
    /// Writes refused because there was no space.
    pub writes_refused: u64,
}

/// A problem with the origin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TroubleStatus {
    /// Since when, UTC.
    pub since: String,
    /// The time in seconds since the problem began.
    pub seconds: u64,
    /// The latest error message.
    pub why: String,
}

impl TroubleStatus {
    /// From the latest error message.
    pub fn of(why: String, since: base::Timestamp) -> TroubleStatus {
        TroubleStatus { since: utc(since.seconds()), seconds: seconds_since(since), why }
    }
}

/// A kind of request that the origin refuses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// `everything`, `reads`, `writes`, `deletes` or `listings`.
    pub what: String,
    /// `credentials`, `clock` or `rights`.
    pub cause: String,
    /// Since when, UTC.
    pub since: String,
    /// The time in seconds since the origin began to refuse.
    pub seconds: u64,
    /// The latest error message.
    pub why: String,
}

impl RefusalStatus {
    /// Only when and why, without the kind.
    pub fn trouble(&self) -> TroubleStatus {
        TroubleStatus { since: self.since.clone(), seconds: self.seconds, why: self.why.clone() }
    }
}

/// The cache of this node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CacheStatus {
    /// The space that it may take.
    pub size_bytes: u64,
    /// The space that it leaves free on the disk.
    pub floor_bytes: u64,
    /// Blobs kept.
    pub blobs: u64,
    /// Bytes of the kept blobs.
    pub bytes: u64,
    /// Of these, blobs that stay because the origin does not have them yet.
    pub pinned_blobs: u64,
    /// Bytes of the blobs that the origin does not have yet.
    pub pinned_bytes: u64,
    /// Reads answered from this disk.
    pub disk_reads: u64,
    /// Bytes of the reads answered from this disk.
    pub disk_bytes: u64,
    /// Reads answered from parts in memory.
    pub memory_reads: u64,
    /// Bytes of the reads answered from parts in memory.
    pub memory_bytes: u64,
    /// Reads that waited for the origin.
    pub far_reads: u64,
    /// Bytes of the reads that waited for the origin.
    pub far_bytes: u64,
    /// Whole blobs fetched.
    pub fetched_blobs: u64,
    /// Parts of blobs fetched.
    pub fetched_parts: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Blobs evicted.
    pub evicted_blobs: u64,
    /// Bytes of the evicted blobs.
    pub evicted_bytes: u64,
    /// Copies on disk, and parts in memory, that were found damaged.
    pub damaged: u64,
    /// Blobs that wait for their deletion in the origin.
    pub deletions_waiting: u64,
    /// Bytes of remote blobs in memory.
    pub in_memory_bytes: u64,
    /// Why nothing is added at the moment: the disk fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<String>,
    /// Nothing is added because the disk has less free space than the floor, and no blob is left to evict.
    #[serde(default)]
    pub kept_out: bool,
}

/// Requests to the origin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RequestStatus {
    /// The number of requests, by kind.
    pub by_kind: std::collections::BTreeMap<String, u64>,
    /// Sent again after a failure.
    pub retries: u64,
    /// Failed.
    pub errors: u64,
    /// Of these, because the store was busy.
    pub throttled: u64,
    /// Calls refused because of a key, a permission or a clock. Includes calls that were not made for that
    /// reason.
    #[serde(default)]
    pub refusals: u64,
    /// Answers that were not the blob's bytes.
    pub damaged: u64,
    /// Second GETs, sent because the first took long.
    pub hedges: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Latency of small reads, median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_p50_ms: Option<f64>,
    /// Latency of small reads, 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_p99_ms: Option<f64>,
    /// Why reads are refused: a key, a permission or a clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<TroubleStatus>,
    /// Every kind of request that is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusing: Vec<RefusalStatus>,
}

/// A blob that the origin does not have yet. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// The blob's name.
    pub blob: String,
    /// The blob's size in bytes.
    pub bytes: u64,
    /// Since when it has waited, UTC.
    pub since: String,
    /// The time in seconds that the blob has waited.
    pub seconds: u64,
    /// Whether it is being sent.
    pub under_way: bool,
    /// Attempts that failed.
    pub attempts: u32,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
