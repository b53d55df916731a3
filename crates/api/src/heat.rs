//! Which parts of which files are read most, and why Covey says so.

use serde::{Deserialize, Serialize};

use crate::raw_path::RawPath;

/// What counts accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// eBPF programs on the mount. They also see reads that the page cache answers.
    Kernel,
    /// The daemon's own counters. They see only the requests that the kernel sends.
    Daemon,
}

/// The answer to a request for the heat of a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// What counts accesses.
    pub view: View,
    /// Lines that say what is not seen, and why.
    pub unseen: Vec<String>,
    /// A chunk is hot from this score on.
    pub hot_from: f64,
    /// An access counts half after this many seconds.
    pub half_life_s: f64,
    /// The hottest chunks, hottest first.
    pub chunks: Vec<Chunk>,
    /// Chunks that were accessed, also those that are not listed.
    pub known: u64,
    /// Chunks that are hot now.
    pub hot: u64,
    /// Chunks that became hot, since the beginning.
    pub events: u64,
    /// The longest time until the daemon learned that a chunk had become hot, in microseconds.
    #[serde(default)]
    pub delay_us: u64,
    /// Accesses and events that did not fit into the tables.
    pub lost: u64,
    /// Blobs that stay on this node's disk longer because they are hot, counted each time.
    pub protected: u64,
    /// Blobs that were wanted ahead of readers whose reads the page cache answered, counted each time.
    #[serde(default)]
    pub ahead: u64,
    /// The cost of each eBPF program.
    pub programs: Vec<Program>,
}

/// One MiB of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// The file, relative to the root of the mount. `None` if it was removed or renamed.
    pub path: Option<RawPath>,
    /// The file's inode number.
    pub inode: u64,
    /// Which MiB, from 0 on.
    pub mib: u32,
    /// The number of accesses, where older ones count less.
    pub score: f64,
    /// Whether it is hot.
    pub hot: bool,
    /// Reads by system calls. Seen only by the kernel.
    pub reads: u64,
    /// Groups of pages that mappings found in the page cache. Seen only by the kernel.
    pub maps: u64,
    /// Page faults. Seen only by the kernel.
    pub faults: u64,
    /// Read requests that reached the daemon. Counted only by the daemon.
    pub requests: u64,
    /// Pages that are in the page cache. Seen only by the kernel.
    pub pages: u64,
    /// Why it is hot or cold, in words.
    pub why: String,
}

/// What an eBPF program costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The program's name.
    pub name: String,
    /// How often it ran while it was measured, which is one second in ten.
    pub runs: u64,
    /// For how long, in nanoseconds. 0 if the kernel does not measure it.
    pub ns: u64,
}
