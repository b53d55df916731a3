//! What a front end asks for that looks on at a mount, and what the daemon sends it.

use serde::{Deserialize, Serialize};

/// What a command wants to see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Wish {
    /// Requests, one by one, and percentiles at the end.
    Trace {
        /// Every so many.
        every: u32,
        /// Only this operation, in lower case.
        op: Option<String>,
        /// Lines only for requests that took at least so long; percentiles count all.
        slow_ns: u64,
    },
    /// Figures of the whole mount, at intervals.
    Stats {
        /// In milliseconds.
        interval_ms: u64,
    },
    /// What keeps it busy, at intervals.
    Top {
        /// In milliseconds.
        interval_ms: u64,
    },
}
