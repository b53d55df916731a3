//! What the origin does not have yet, blob by blob, as `status` shows it.

use api::status::far::Waiting;
use api::text::{seconds_since, utc};
use cache::Uploads;

/// A status lists no more than so many.
pub const LISTED: usize = 100;

/// The oldest of them.
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
