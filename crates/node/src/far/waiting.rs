//! What the origin does not have yet, blob by blob, as `status` shows it.

use api::text::utc;
use base::Timestamp;
use cache::Uploads;
use serde::{Deserialize, Serialize};

/// A status lists no more than so many.
pub const LISTED: usize = 100;

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

/// Seconds until now; 0 for what is yet to come.
pub fn seconds(since: Timestamp) -> u64 {
    u64::try_from(base::time::now().seconds() - since.seconds()).unwrap_or(0)
}

/// The oldest of them.
pub fn of(uploads: &Uploads) -> Vec<Waiting> {
    let told = |waiting: cache::Waiting| Waiting {
        blob: waiting.id.to_string(),
        bytes: waiting.size,
        since: utc(waiting.since.seconds()),
        seconds: seconds(waiting.since),
        under_way: waiting.under_way,
        attempts: waiting.attempts,
        failure: waiting.failure,
    };
    uploads.waiting(LISTED).into_iter().map(told).collect()
}
