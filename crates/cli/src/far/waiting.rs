//! What the origin does not have yet, blob by blob, as `status` shows it.

use base::Timestamp;
use cache::Uploads;
use serde::{Deserialize, Serialize};

use super::UploadStatus;
use crate::table::{bytes, count, span, utc};

/// A status lists no more than so many.
pub const LISTED: usize = 100;
/// The first letters of a name that are shown to a person.
const SHOWN: usize = 16;

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

/// A line for each, for `status -v`; nothing when nothing waits.
pub fn text(uploads: &UploadStatus) -> String {
    if uploads.waiting.is_empty() {
        return String::new();
    }
    let mut text = "not uploaded yet, oldest first:\n".to_owned();
    for waiting in &uploads.waiting {
        let name = waiting.blob.get(..SHOWN).unwrap_or(&waiting.blob);
        let stand = match (&waiting.failure, waiting.under_way) {
            (_, true) => "being sent".to_owned(),
            (Some(why), _) => format!("failed {} times: {why}", count(waiting.attempts.into())),
            (None, _) => "waits".to_owned(),
        };
        let (size, age) = (bytes(waiting.bytes), span(waiting.seconds as f64));
        text.push_str(&format!("  {name}  {size:>10}  for {age:>6}  {stand}\n"));
    }
    let more = uploads.blobs.saturating_sub(uploads.waiting.len() as u64);
    if more > 0 {
        text.push_str(&format!("  and {} more\n", count(more)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_line_and_the_rest_is_counted() {
        let waiting = |failure: Option<&str>, under_way| Waiting {
            blob: "ab".repeat(32),
            bytes: 4 << 20,
            since: String::new(),
            seconds: 90,
            under_way,
            attempts: 2,
            failure: failure.map(str::to_owned),
        };
        let waiting = vec![waiting(None, true), waiting(Some("no answer"), false), waiting(None, false)];
        let shown = text(&UploadStatus { blobs: 7, waiting, ..UploadStatus::default() });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 5, "{shown}");
        assert!(lines[1].contains("abababababababab  ") && lines[1].ends_with("being sent"), "{shown}");
        assert!(lines[2].ends_with("failed 2 times: no answer") && lines[4] == "  and 4 more", "{shown}");
        assert_eq!(text(&UploadStatus::default()), "");
    }
}
