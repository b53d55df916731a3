//! The figures of a far origin, its cache and its uploads, and how they are shown.

use std::time::Duration;

use cache::{NodeCache, Uploads};
use origin::Remote;
use origin::remote::{KINDS, Refusal};
use serde::{Deserialize, Serialize};

use super::waiting::{self, Waiting};
use crate::table::{Pairs, bytes, count, span, utc};

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

/// What was asked of an origin.
pub fn request_status(remote: &Remote) -> RequestStatus {
    let stats = remote.stats();
    let refusing: Vec<RefusalStatus> = remote.refusals().iter().map(RefusalStatus::of).collect();
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
    /// The oldest of the blobs, at most [`waiting::LISTED`] of them.
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
        TroubleStatus { since: utc(since.seconds()), seconds: waiting::seconds(since), why }
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
    fn of(refusal: &Refusal) -> RefusalStatus {
        let TroubleStatus { since, seconds, why } = TroubleStatus::of(refusal.why.clone(), refusal.since);
        let (what, cause) = (refusal.what().to_owned(), refusal.cause().to_owned());
        RefusalStatus { what, cause, since, seconds, why }
    }

    fn trouble(&self) -> TroubleStatus {
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

/// The figures of uploads.
pub fn upload_status(uploads: &Uploads) -> UploadStatus {
    let stats = uploads.stats();
    UploadStatus {
        blobs: stats.pinned.blobs,
        bytes: stats.pinned.bytes,
        oldest: stats.oldest.map(|at| utc(at.seconds())),
        oldest_seconds: stats.oldest.map_or(0, waiting::seconds),
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

/// The rows of `covey status` that only a far origin has.
pub fn rows(pairs: &mut Pairs, far: &FarStatus) {
    upload_rows(pairs, &far.uploads);
    rows_of_reading(pairs, far);
}

/// The same of what is only read: a published tree.
pub fn rows_of_reading(pairs: &mut Pairs, far: &FarStatus) {
    cache_rows(pairs, far);
    let requests = &far.requests;
    let named = requests.by_kind.iter().filter(|(_, n)| **n > 0);
    let kinds: Vec<String> = named.map(|(kind, n)| format!("{} {kind}", count(*n))).collect();
    let kinds = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
    let (sent, received) = (bytes(requests.sent_bytes), bytes(requests.received_bytes));
    pairs.row("origin asked", format!("{kinds}; {sent} sent, {received} received"));
    if let Some(away) = &far.away {
        let why = format!("not seen for {}, and looked for: {}", span(away.seconds as f64), away.why);
        pairs.row("origin away", why);
    }
    for refusal in &requests.refusing {
        let why = format!("for {} ({}): {}", span(refusal.seconds as f64), refusal.cause, refusal.why);
        pairs.row(&format!("{} refused", refusal.what), why);
    }
    if requests.errors > 0 {
        let throttled = match requests.throttled {
            0 => String::new(),
            n => format!(", {} of them because it was busy", count(n)),
        };
        pairs.row("origin errors", format!("{} requests failed{throttled}", count(requests.errors)));
    }
}

fn upload_rows(pairs: &mut Pairs, uploads: &UploadStatus) {
    let waits = match uploads.blobs {
        0 => "nothing: everything sealed is in the origin".to_owned(),
        n => format!(
            "{} blobs, {}, the oldest for {}; {} under way",
            count(n),
            bytes(uploads.bytes),
            span(uploads.oldest_seconds as f64),
            uploads.under_way
        ),
    };
    pairs.row("not uploaded", waits);
    match (&uploads.trouble, &uploads.oldest_failure) {
        (Some(trouble), _) => {
            pairs.row("uploads fail", format!("for {}: {}", span(trouble.seconds as f64), trouble.why));
        }
        (None, Some(why)) => drop(pairs.row("the oldest failed", why)),
        (None, None) => {}
    }
    if uploads.unreadable_blobs > 0 {
        let what = format!("{} blobs are damaged on this disk: see the log", count(uploads.unreadable_blobs));
        pairs.row("unreadable", what);
    }
    if uploads.writers_waiting > 0 {
        let what = format!("{} writers wait: what is not uploaded fills the disk", uploads.writers_waiting);
        pairs.row("writes wait", what);
    }
}

/// The rows of `covey cache status`.
pub fn cache_rows(pairs: &mut Pairs, far: &FarStatus) {
    let cache = &far.cache;
    let kept =
        format!("{} in {} blobs, of {}", bytes(cache.bytes), count(cache.blobs), bytes(cache.size_bytes));
    let off = cache.off.as_ref().map_or_else(String::new, |why| format!("; off: {why}"));
    let floor = if cache.kept_out {
        format!("; keeps nothing: less than {} is free on its disk (cache_floor)", bytes(cache.floor_bytes))
    } else {
        String::new()
    };
    pairs.row("cache", kept + &off + &floor);
    let hits = cache.disk_reads + cache.memory_reads;
    let rate = match hits + cache.far_reads {
        0 => "nothing was read yet".to_owned(),
        all => format!("{:.1} % of {} reads", hits as f64 * 100.0 / all as f64, count(all)),
    };
    pairs.row("cache hits", format!("{rate}; {} fetched", bytes(cache.fetched_bytes)));
    if cache.evicted_blobs > 0 {
        pairs.row("let go", format!("{} blobs, {}", count(cache.evicted_blobs), bytes(cache.evicted_bytes)));
    }
    if cache.damaged > 0 {
        pairs.row("damaged here", format!("{} copies, fetched anew", count(cache.damaged)));
    }
}
