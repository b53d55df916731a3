//! The blobs that the origin does not have yet, one by one, as `status` shows them.

use api::status::remote_side::Waiting;
use api::text::{seconds_since, utc};
use cache::Uploads;

/// The largest number of blobs in a status.
pub const LISTED: usize = 100;

/// The oldest of the blobs.
pub fn of(uploads: &Uploads) -> Vec<Waiting> {
    let told = |waiting: cache::Waiting| Waiting {
        blob: waiting.id.to_string(),
        bytes: waiting.size,
        since: utc(waiting.since.seconds()),
        seconds: seconds_since(waiting.since),
        under_way: waiting.under_way,
        attempts: waiting.attempts,
        failure: waiting.failure,
    };
    uploads.waiting(LISTED).into_iter().map(told).collect()
}
