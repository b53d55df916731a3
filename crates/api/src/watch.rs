//! What a front end asks for that looks on at a mount, and what the daemon sends it.

use std::collections::BTreeMap;

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

/// Reads answered from one kind of place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// Ranges read.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatsLine {
    /// How long it was.
    pub seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Of these, by main kinds: read, write, lookup, attr, list, make, remove, sync, other.
    pub kinds: BTreeMap<String, u64>,
    /// Of these, answered with an error.
    pub errors: u64,
    /// Bytes answered to reads.
    pub read_bytes: u64,
    /// Bytes taken from writes.
    pub written_bytes: u64,
    /// What was read, by where the bytes were: names (inline), cache (this node's disk), origin.
    pub sources: BTreeMap<String, Hits>,
    /// The daemon's time for a request: the median, in nanoseconds.
    pub p50_ns: u64,
    /// And what one in a hundred exceeds.
    pub p99_ns: u64,
    /// Requests that wait at the moment.
    pub waiting: u64,
}

/// One row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Busy {
    /// An operation, a caller, a file.
    pub name: String,
    /// Requests.
    pub requests: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// The daemon's time for them.
    pub ns: u64,
}

/// One interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TopTable {
    /// How long it was.
    pub seconds: f64,
    /// Requests seen.
    pub requests: u64,
    /// Requests too fast to be seen.
    pub lost: u64,
    /// Operations.
    pub operations: Vec<Busy>,
    /// Threads that asked.
    pub callers: Vec<Busy>,
    /// Files and folders.
    pub files: Vec<Busy>,
}

/// What no request is slower than, in nanoseconds: lines of none are shown.
pub const NEVER: u64 = u64::MAX;

/// One request. Times in nanoseconds; what cannot be known is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLine {
    /// The operation.
    pub op: String,
    /// The inode.
    pub inode: u64,
    /// Who asked: the thread's number, 0 for the kernel itself.
    pub pid: u32,
    /// Its name.
    pub caller: String,
    /// Bytes read or written.
    pub bytes: u32,
    /// The error number that was answered; 0: none.
    pub error: u32,
    /// From the kernel's queue to the kernel's having the answer; without its word, from the daemon's having the request.
    pub total_ns: u64,
    /// In the kernel's queue, until the daemon had it.
    pub queue_ns: Option<u64>,
    /// The daemon's time: names, blob, cache, peer, origin, waiting and own together.
    pub srv_ns: u64,
    /// Rows, the planner, the log.
    pub names_ns: u64,
    /// Hashes and checksums.
    pub blob_ns: u64,
    /// The node's disk.
    pub cache_ns: u64,
    /// Other nodes.
    pub peer_ns: u64,
    /// The origin.
    pub origin_ns: u64,
    /// Waiting for a worker of the daemon's.
    pub wait_ns: u64,
    /// What is left of the daemon's time.
    pub own_ns: u64,
    /// From the answer to the kernel's having it.
    pub return_ns: Option<u64>,
}

/// What is sent at a time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// Requests, in the order in which they ended on their threads.
    pub lines: Vec<TraceLine>,
    /// Left out because they were too many to be shown.
    pub hidden: u64,
    /// Something that a person should know, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// The spread of one part of the time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "what they are is their name")]
pub struct Percentiles {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

/// One operation in the summary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpSummary {
    /// The operation.
    pub op: String,
    /// Requests seen.
    pub count: u64,
    /// Of these, answered with an error.
    pub errors: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// The spread of each part, by its name; without those of which nothing is known.
    pub parts: BTreeMap<String, Percentiles>,
}

/// What a trace came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceSummary {
    /// How long it took.
    pub seconds: f64,
    /// Requests seen.
    pub requests: u64,
    /// Requests that were too many and too fast to be seen.
    pub lost: u64,
    /// Why the kernel's part is not seen, or not of all requests.
    pub kernel: Option<String>,
    /// By operation, the one that took most time first.
    pub operations: Vec<OpSummary>,
}
