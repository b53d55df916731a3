//! The figures of an origin behind a network, of its cache and its uploads.

use serde::{Deserialize, Serialize};

use crate::text::{seconds_since, utc};

/// The figures of a far origin. Field names are stable.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FarStatus {
    /// Where the object store is, if not the cloud's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The bucket's region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// What is on its way there.
    pub uploads: UploadStatus,
    /// What is kept here.
    pub cache: CacheStatus,
    /// What was asked of it since the volume was opened.
    pub requests: RequestStatus,
    /// Why it could not be used when the volume was opened, until it has been seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away: Option<TroubleStatus>,
}

/// What the origin does not have yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UploadStatus {
    /// Blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Since when the oldest of them waits, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<String>,
    /// The same in seconds until now.
    pub oldest_seconds: u64,
    /// Why its last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_failure: Option<String>,
    /// Blobs being sent.
    pub under_way: u64,
    /// Blobs that cannot be read on this disk.
    pub unreadable_blobs: u64,
    /// Since the volume was opened: blobs sent.
    pub uploaded_blobs: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// What is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<TroubleStatus>,
    /// The oldest of the blobs, at most a hundred of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// Writers that wait for room.
    pub writers_waiting: u64,
    /// Writes refused for want of it.
    pub writes_refused: u64,
}

/// What the origin does not do, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TroubleStatus {
    /// Since when, UTC.
    pub since: String,
    /// The same in seconds until now.
    pub seconds: u64,
    /// What was said last.
    pub why: String,
}

impl TroubleStatus {
    /// Of what was said last.
    pub fn of(why: String, since: base::Timestamp) -> TroubleStatus {
        TroubleStatus { since: utc(since.seconds()), seconds: seconds_since(since), why }
    }
}

/// Something that the origin refuses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// `everything`, `reads`, `writes`, `deletes` or `listings`.
    pub what: String,
    /// `credentials`, `clock` or `rights`.
    pub cause: String,
    /// Since when, UTC.
    pub since: String,
    /// The same in seconds until now.
    pub seconds: u64,
    /// What was said last.
    pub why: String,
}

impl RefusalStatus {
    /// Why reads are refused, without what is.
    pub fn trouble(&self) -> TroubleStatus {
        TroubleStatus { since: self.since.clone(), seconds: self.seconds, why: self.why.clone() }
    }
}

/// What this node keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CacheStatus {
    /// What it may take.
    pub size_bytes: u64,
    /// What it leaves free of the disk.
    pub floor_bytes: u64,
    /// Blobs kept.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, blobs that stay because the origin does not have them yet.
    pub pinned_blobs: u64,
    /// Their bytes.
    pub pinned_bytes: u64,
    /// Reads answered from this disk.
    pub disk_reads: u64,
    /// Their bytes.
    pub disk_bytes: u64,
    /// Reads answered from parts in memory.
    pub memory_reads: u64,
    /// Their bytes.
    pub memory_bytes: u64,
    /// Reads that waited for the origin.
    pub far_reads: u64,
    /// Their bytes.
    pub far_bytes: u64,
    /// Whole blobs fetched.
    pub fetched_blobs: u64,
    /// Parts of blobs fetched.
    pub fetched_parts: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Blobs let go of.
    pub evicted_blobs: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Copies here, and parts in memory, that were damaged.
    pub damaged: u64,
    /// Blobs that wait to be deleted in the origin.
    pub deletions_waiting: u64,
    /// Bytes of far blobs in memory.
    pub in_memory_bytes: u64,
    /// Why nothing more is kept for now: the disk fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<String>,
    /// Nothing is kept because the disk has less free than the floor, and nothing is left to go for it.
    #[serde(default)]
    pub kept_out: bool,
}

/// Requests to the origin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RequestStatus {
    /// How many, by kind.
    pub by_kind: std::collections::BTreeMap<String, u64>,
    /// Sent again after a failure.
    pub retries: u64,
    /// Failed.
    pub errors: u64,
    /// Of these, because the store was busy.
    pub throttled: u64,
    /// Calls refused for a key, a right or a clock, with those that were not made because of that.
    #[serde(default)]
    pub refusals: u64,
    /// Answers that were not the blob's bytes.
    pub damaged: u64,
    /// Second GETs because the first took long.
    pub hedges: u64,
    /// Under way.
    pub in_flight: u64,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that went.
    pub sent_bytes: u64,
    /// Half of the small reads took no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_p50_ms: Option<f64>,
    /// 99 of 100 did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_p99_ms: Option<f64>,
    /// Reads are refused: a key, a right, a clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<TroubleStatus>,
    /// All that is refused, each kind by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusing: Vec<RefusalStatus>,
}

/// A blob that the origin does not have yet. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// Its name.
    pub blob: String,
    /// Its bytes.
    pub bytes: u64,
    /// Since when it waits, UTC.
    pub since: String,
    /// The same in seconds until now.
    pub seconds: u64,
    /// It is being sent.
    pub under_way: bool,
    /// Attempts that failed.
    pub attempts: u32,
    /// Why the last one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
