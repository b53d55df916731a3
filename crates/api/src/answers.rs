//! What comes of long work, as a daemon answers it. Field names are stable.

use serde::{Deserialize, Serialize};

/// What waiting for the origin came to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Settled {
    /// Blobs that had to be uploaded.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

/// What was let go of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Evicted {
    /// Blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs that stay because the origin does not have them yet.
    pub not_uploaded_blobs: u64,
    /// Their bytes.
    pub not_uploaded_bytes: u64,
}

/// So many of what could not be had are named.
pub const NAMED: usize = 20;

/// What warming came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WarmSummary {
    /// Files looked at.
    pub files: u64,
    /// Blobs that they lie in.
    pub blobs: u64,
    /// Of these, here already, or at the depot.
    pub here_blobs: u64,
    /// Their bytes.
    pub here_bytes: u64,
    /// Fetched from the origin, or from others of the fleet.
    pub fetched_blobs: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// What could not be had: at most 20 are named.
    pub failed: Vec<Missed>,
    /// How many.
    pub failed_count: u64,
    /// Wall time.
    pub seconds: f64,
}

/// Something that could not be had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Missed {
    /// A file that needs it.
    pub path: String,
    /// Why.
    pub why: String,
}

impl WarmSummary {
    /// Both together.
    pub fn add(&mut self, other: WarmSummary) {
        self.files += other.files;
        self.blobs += other.blobs;
        self.here_blobs += other.here_blobs;
        self.here_bytes += other.here_bytes;
        self.fetched_blobs += other.fetched_blobs;
        self.fetched_bytes += other.fetched_bytes;
        self.failed_count += other.failed_count;
        self.seconds += other.seconds;
        self.failed.extend(other.failed);
        self.failed.truncate(NAMED);
    }
}

/// What a collection came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GcSummary {
    /// Bytes of packs deleted.
    pub freed_bytes: u64,
    /// Bytes copied for that.
    pub moved_bytes: u64,
    /// Bytes stored now.
    pub stored_bytes: u64,
    /// Of these, bytes that nothing refers to.
    pub garbage_bytes: u64,
    /// Blobs now.
    pub blobs: u64,
}

/// What a clone came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CloneSummary {
    /// Files and folders made.
    pub files: u64,
    /// Bytes they refer to.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

/// What a publication came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublishSummary {
    /// Under which name.
    pub name: String,
    /// How often it was published, this time included.
    pub sequence: u64,
    /// Nothing had changed since the last time.
    pub unchanged: bool,
    /// The top node's hash: equal trees have equal ones.
    pub root: String,
    /// Files, folders and links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Rows of names.
    pub rows: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Of these, written now.
    pub new_nodes: u64,
    /// Blobs written for them.
    pub new_blobs: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// Blobs that the tree refers to: nodes and files.
    pub blobs: u64,
    /// Wall time.
    pub seconds: f64,
}
