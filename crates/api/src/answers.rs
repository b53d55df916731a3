//! The results of long operations, as a daemon reports them. Field names are stable.

use serde::{Deserialize, Serialize};

use crate::raw_path::RawPath;

/// The result of waiting until the origin has everything.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Settled {
    /// Blobs that had to be uploaded.
    pub blobs: u64,
    /// Bytes of the uploaded blobs.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

/// The access hint that applies to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// `normal`, `random` or `stream`.
    pub access: String,
    /// Where that comes from, in words.
    pub why: String,
    /// Whether its blobs are evicted last from this node's disk.
    #[serde(default)]
    pub keep: bool,
    /// Where that comes from, in words. None: no hint says anything about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_why: Option<String>,
    /// Whether it matters: the volume's blobs are in a remote origin.
    pub remote: bool,
}

/// What is published in an origin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published {
    /// The origin, as a mount names it.
    pub origin: String,
    /// The trees, by name, each name from the oldest to the newest.
    pub trees: Vec<PublishedTree>,
}

/// A published tree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PublishedTree {
    /// The tree's name.
    pub name: String,
    /// The error of a tree that cannot be read. The other fields are then empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The number of the publication.
    pub sequence: u64,
    /// When it was published, UTC.
    pub published: String,
    /// Files and folders.
    pub files: u64,
    /// Bytes of the files and folders.
    pub bytes: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// The hash of its root.
    pub root: String,
    /// The key that signed it.
    pub key: String,
    /// The bucket that holds the bytes of its files, if the origin does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The result of indexing a bucket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IndexSummary {
    /// The bucket: `s3://BUCKET/PREFIX`.
    pub source: String,
    /// What was published.
    #[serde(flatten)]
    pub published: PublishSummary,
    /// Objects that are files of the tree.
    pub objects: u64,
    /// Objects that are not in the tree.
    pub left_out: u64,
    /// The first of these.
    pub first_left_out: Vec<Left>,
    /// Wall time of the listing.
    pub listing_seconds: f64,
    /// Wall time of everything.
    #[serde(rename = "total_seconds")]
    pub seconds: f64,
}

/// An object that is not in a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The object's key, below the prefix that was indexed.
    pub key: String,
    /// Why.
    pub why: String,
}

/// The result of an eviction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Evicted {
    /// Blobs.
    pub blobs: u64,
    /// Bytes of the evicted blobs.
    pub bytes: u64,
    /// Blobs that stay because the origin does not have them yet.
    pub not_uploaded_blobs: u64,
    /// Bytes of the blobs that the origin does not have yet.
    pub not_uploaded_bytes: u64,
}

/// At most this many failures are listed one by one.
pub const NAMED: usize = 20;

/// The result of warming.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WarmSummary {
    /// Files examined.
    pub files: u64,
    /// Blobs that hold their data.
    pub blobs: u64,
    /// Of these, blobs that this node or the depot already had.
    pub here_blobs: u64,
    /// Bytes that this node or the depot already had.
    pub here_bytes: u64,
    /// Blobs fetched from the origin or from other nodes of the fleet.
    pub fetched_blobs: u64,
    /// Bytes fetched from the origin or from other nodes of the fleet.
    pub fetched_bytes: u64,
    /// The data that could not be fetched. At most 20 are listed.
    pub failed: Vec<Missed>,
    /// The number of all failures.
    pub failed_count: u64,
    /// Files of a recorded list that are not there any more.
    #[serde(default)]
    pub gone: u64,
    /// Wall time.
    pub seconds: f64,
}

/// Data that could not be fetched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Missed {
    /// A file that needs it.
    pub path: String,
    /// Why.
    pub why: String,
}

impl WarmSummary {
    /// Adds the figures of another summary.
    pub fn add(&mut self, other: WarmSummary) {
        self.files += other.files;
        self.blobs += other.blobs;
        self.here_blobs += other.here_blobs;
        self.here_bytes += other.here_bytes;
        self.fetched_blobs += other.fetched_blobs;
        self.fetched_bytes += other.fetched_bytes;
        self.failed_count += other.failed_count;
        self.gone += other.gone;
        self.seconds += other.seconds;
        self.failed.extend(other.failed);
        self.failed.truncate(NAMED);
    }
}

/// The result of a garbage collection.
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
    /// Of a shared volume: bytes that are deleted when nothing has referred to them for long enough.
    #[serde(default)]
    pub waiting_bytes: u64,
}

/// The quota of a folder, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUse {
    /// The folder, from the volume's root. None: it has no name any more.
    pub path: Option<String>,
    /// Stored bytes below it.
    pub bytes: u64,
    /// The most that may be. None: no limit.
    pub bytes_limit: Option<u64>,
    /// Files and folders below it.
    pub files: u64,
    /// The most that may be. None: no limit.
    pub files_limit: Option<u64>,
    /// `set`, `counting` or `removing`.
    pub state: String,
}

/// How long the trash of a volume is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashKept {
    /// In seconds. None: what is removed is deleted at once.
    pub keep_seconds: Option<u64>,
}

/// A file or folder in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashEntry {
    /// The inode number, by which the file or folder can be restored.
    pub id: u64,
    /// Where it was. If its folder is gone for good: only its name.
    pub path: RawPath,
    /// Whether its folder still exists, or is in the trash too.
    pub has_folder: bool,
    /// `file`, `folder`, `link` or `other`.
    pub kind: String,
    /// The size in bytes.
    pub bytes: u64,
    /// When it was removed, as `2026-11-20T11:30:00Z`.
    pub removed: String,
}

/// What was restored from the trash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashRestored {
    /// Where it was, from the volume's root.
    pub path: RawPath,
    /// How many files and folders were restored.
    pub files: u64,
    /// How many below it stay in the trash: they were removed earlier, or their names are taken.
    pub left: u64,
}

/// What was deleted from the trash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashEmptied {
    /// Files and folders.
    pub files: u64,
    /// The total size of the deleted files and folders, in bytes.
    pub bytes: u64,
}

/// The result of a clone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CloneSummary {
    /// Files and folders created.
    pub files: u64,
    /// Bytes they refer to.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

/// The result of a publication.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublishSummary {
    /// The published name.
    pub name: String,
    /// How often the name has been published, this time included.
    pub sequence: u64,
    /// Whether nothing had changed since the last publication.
    pub unchanged: bool,
    /// The hash of the top tree node. Equal trees have equal hashes.
    pub root: String,
    /// Files, folders and links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Metadata rows.
    pub rows: u64,
    /// Tree nodes.
    pub nodes: u64,
    /// Of these, tree nodes written by this publication.
    pub new_nodes: u64,
    /// Blobs written for them.
    pub new_blobs: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// Blobs that the tree refers to, for its tree nodes and for file data.
    pub blobs: u64,
    /// Wall time.
    pub seconds: f64,
}

/// An item that an import or export left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The item's path.
    pub path: String,
    /// The reason.
    pub why: String,
}

/// The result of an import that the daemon did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Imported {
    /// Items created: files, folders, links, nodes.
    pub files: u64,
    /// Bytes of contents written, holes not counted.
    pub bytes: u64,
    /// What was left out.
    pub skipped: Vec<Skipped>,
}
