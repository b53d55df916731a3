//! What a front end that watches a mount asks for, and what the daemon sends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reads::ReadRange;

/// What a command wants to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Wish {
    /// Requests, one by one, and percentiles at the end.
    Trace {
        /// Only every n-th request.
        every: u32,
        /// Only this operation, in lower case.
        op: Option<String>,
        /// Print only requests that took at least this long. Percentiles count all of them.
        slow_ns: u64,
    },
    /// What is read, for a list: first reads of ranges, in order. Notes are [`Recorded`], the end a
    /// [`RecordSummary`].
    Record,
    /// Figures of the whole mount, at intervals.
    Stats {
        /// In milliseconds.
        interval_ms: u64,
    },
    /// The busiest operations, callers and files, at intervals.
    Top {
        /// In milliseconds.
        interval_ms: u64,
    },
}

/// Reads answered from one kind of source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// Ranges read.
    pub count: u64,
    /// Bytes of the ranges read.
    pub bytes: u64,
}

/// One interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatsLine {
    /// The length of the interval.
    pub seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Requests by kind: read, write, lookup, attr, list, make, remove, sync, other.
    pub kinds: BTreeMap<String, u64>,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Bytes answered to reads.
    pub read_bytes: u64,
    /// Bytes taken from writes.
    pub written_bytes: u64,
    /// What was read, by source: names (inline), cache (this node's disk), origin.
    pub sources: BTreeMap<String, Hits>,
    /// The daemon's time for a request: the median, in nanoseconds.
    pub p50_ns: u64,
    /// The daemon's time for a request: the 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// Requests that wait at this moment.
    pub waiting: u64,
}

/// One row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Busy {
    /// The name of an operation, a caller or a file.
    pub name: String,
    /// Requests.
    pub requests: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// The daemon's time for them.
    pub ns: u64,
}

/// A part of a recorded list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Recorded {
    /// Ranges, in the order in which they were read first.
    pub reads: Vec<ReadRange>,
}

/// The end of a recording.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RecordSummary {
    /// Files that were read.
    pub files: u64,
    /// Ranges that were recorded.
    pub ranges: u64,
    /// Bytes of the recorded ranges.
    pub bytes: u64,
    /// Requests that were missed because they came too fast, or were too many.
    pub lost: u64,
    /// Files that were read and have no name that is found.
    pub unnamed: u64,
    /// The length of the recording.
    pub seconds: f64,
}

/// One interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TopTable {
    /// The length of the interval.
    pub seconds: f64,
    /// Requests seen.
    pub requests: u64,
    /// Requests that were missed because they came too fast.
    pub lost: u64,
    /// Operations.
    pub operations: Vec<Busy>,
    /// Threads that sent requests.
    pub callers: Vec<Busy>,
    /// Files and folders.
    pub files: Vec<Busy>,
}

/// Sentinel, in nanoseconds: no request is slower, so none is printed.
pub const NEVER: u64 = u64::MAX;

/// One request. Times are in nanoseconds. A time that cannot be known is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLine {
    /// The operation.
    pub op: String,
    /// The inode.
    pub inode: u64,
    /// The caller's thread id. 0 for the kernel itself.
    pub pid: u32,
    /// The name of that thread.
    pub caller: String,
    /// Bytes read or written.
    pub bytes: u32,
    /// The errno that was answered. 0 if there was none.
    pub error: u32,
    /// From the kernel's queue until the kernel has the answer. Without the kernel's events, from the moment
    /// the daemon has the request.
    pub total_ns: u64,
    /// Time in the kernel's queue, until the daemon has the request.
    pub queue_ns: Option<u64>,
    /// The daemon's time: the sum of names, blob, cache, peer, origin, wait and own.
    pub srv_ns: u64,
    /// Time for metadata: rows, the planner, the log.
    pub names_ns: u64,
    /// Time for hashes and checksums.
    pub blob_ns: u64,
    /// Time for this node's disk.
    pub cache_ns: u64,
    /// Time for other nodes.
    pub peer_ns: u64,
    /// Time for the origin.
    pub origin_ns: u64,
    /// Time spent waiting for a worker of the daemon.
    pub wait_ns: u64,
    /// The rest of the daemon's time.
    pub own_ns: u64,
    /// From the answer until the kernel has it.
    pub return_ns: Option<u64>,
}

/// What the daemon sends at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// Requests, in the order in which they ended on their threads.
    pub lines: Vec<TraceLine>,
    /// Requests left out because there were too many to print.
    pub hidden: u64,
    /// A remark for the user, sent once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// The distribution of one part of the time, in nanoseconds.
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
    /// The distribution of each part, by its name. Parts without data are absent.
    pub parts: BTreeMap<String, Percentiles>,
}

/// The result of a trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceSummary {
    /// The length of the trace.
    pub seconds: f64,
    /// Requests seen.
    pub requests: u64,
    /// Requests that were missed because they were too many and too fast.
    pub lost: u64,
    /// Why the kernel's times are missing, for some requests or for all.
    pub kernel: Option<String>,
    /// By operation. The one that took the most time comes first.
    pub operations: Vec<OpSummary>,
}
