//! The figures of a mount, as a daemon reports them. Field names are stable.

pub mod copies;
pub mod fleet;
pub mod remote_side;
pub mod trash;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::source;
use copies::CopiesStatus;
use fleet::FleetStatus;
use remote_side::RemoteStatus;
use trash::TrashStatus;

/// What a mount guarantees about changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All changes come through this mount.
    Exclusive,
    /// Other nodes change it too.
    Shared,
    /// The mount changes nothing.
    ReadOnly,
    /// The tree cannot change.
    Frozen,
}

impl Mode {
    /// Whether changes come through this mount.
    pub fn writes(self) -> bool {
        matches!(self, Mode::Exclusive | Mode::Shared)
    }

    /// The word that commands print.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::ReadOnly => "read-only",
            Mode::Frozen => "frozen",
        }
    }
}

/// A volume's figures. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The volume's folder, or `mem:<id>`.
    pub volume: String,
    /// The volume's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where its blobs are stored permanently.
    pub origin: String,
    /// The published tree, if one is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeInfo>,
    /// What it was opened for.
    pub mode: Mode,
    /// The daemon, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
    /// Inodes in use: files, folders, links.
    pub files: u64,
    /// Bytes of files, holes not counted.
    pub bytes: u64,
    /// Bytes of packs, sealed and open.
    pub stored_bytes: u64,
    /// Of these, bytes that nothing refers to.
    pub garbage_bytes: u64,
    /// Bytes of files that take no space of their own: clones, and equal contents.
    pub saved_bytes: u64,
    /// Of these, bytes found by hash since the volume was opened.
    pub dedup_bytes: u64,
    /// Sealed packs.
    pub blobs: u64,
    /// Packs that are not sealed yet.
    pub open_packs: u64,
    /// Bytes of the metadata: its database on disk, or the rows of a volume in memory.
    pub names_bytes: u64,
    /// Bytes of the redo log on disk. 0 for a volume in memory, which has no log.
    pub log_bytes: u64,
    /// Bytes of rows in memory that are in the log and not yet in the database.
    pub overlay_bytes: u64,
    /// Inodes that the kernel refers to.
    pub held_inodes: u64,
    /// Requests answered with EIO since the volume was opened.
    pub io_errors: u64,
    /// Bytes of memory that the process holds.
    pub memory_bytes: u64,
    /// The peak of that.
    pub memory_peak_bytes: u64,
    /// Acknowledged changes of an earlier process of this node that could not be stored, and where they are
    /// listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// What is wrong with the database of a shared volume, and since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The nodes of a shared volume that this one does not reach: a line for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<String>,
    /// Whether the folder may write to its origin, if it was opened for writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimStatus>,
    /// The figures of a remote origin: uploads, the cache, requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "far")]
    pub remote_side: Option<RemoteStatus>,
    /// The figures of a node of a fleet: the other nodes, and where bytes came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
    /// The copies of packs that the nodes of a shared volume keep of one another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopiesStatus>,
    /// The trash, if the volume keeps what is removed or still has some of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trash: Option<TrashStatus>,
}

/// The kind of thing that is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A volume in a folder.
    Folder,
    /// A volume in memory.
    Memory,
    /// No volume: a corpus.
    Corpus,
    /// A published tree.
    Tree,
}

/// The daemon of a mounted volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// The volume's mountpoint.
    #[serde(with = "crate::raw_path")]
    pub mountpoint: PathBuf,
    /// The daemon's process id.
    pub pid: u32,
    /// How long it has run.
    pub uptime_seconds: u64,
    /// Requests that the kernel sent.
    pub requests: u64,
    /// Requests that the kernel sent, by kind, such as `LOOKUP`. Kinds without requests are left out.
    #[serde(default)]
    pub requests_by_kind: BTreeMap<String, u64>,
    /// Of these, requests that wait at this moment.
    pub waiting: u64,
    /// Requests over io_uring whose replies were lost, and that were answered EIO. More than 0 shows a fault
    /// in Covey; the log says which requests they were.
    #[serde(default)]
    pub replies_lost: u64,
    /// How they arrive: `uring` or `classic`.
    pub transport: String,
    /// The daemon's S3 endpoint, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<Endpoint>,
    /// The URL of its dashboard, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ui: Option<String>,
}

/// An S3 endpoint of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Where it listens, as ADDRESS:PORT.
    pub address: String,
    /// The endpoint's bucket.
    pub bucket: String,
    /// The endpoint's file of keys.
    #[serde(with = "crate::raw_path")]
    pub keys: PathBuf,
    /// Whether it uses TLS.
    pub tls: bool,
}

impl Status {
    /// The kind of the mount, from its name.
    pub fn kind(&self) -> Kind {
        match &self.volume {
            name if name.starts_with(source::MEMORY) => Kind::Memory,
            name if name.starts_with(source::CORPUS) => Kind::Corpus,
            _ if self.tree.is_some() => Kind::Tree,
            _ => Kind::Folder,
        }
    }

    /// A status with all figures 0.
    pub fn empty(volume: String, mode: Mode) -> Status {
        Status {
            origin: volume.clone(),
            volume,
            tree: None,
            id: None,
            mode,
            served: None,
            files: 0,
            bytes: 0,
            stored_bytes: 0,
            garbage_bytes: 0,
            saved_bytes: 0,
            dedup_bytes: 0,
            blobs: 0,
            open_packs: 0,
            names_bytes: 0,
            log_bytes: 0,
            overlay_bytes: 0,
            held_inodes: 0,
            io_errors: 0,
            memory_bytes: 0,
            memory_peak_bytes: 0,
            refused: None,
            database: None,
            unreached: Vec::new(),
            claim: None,
            remote_side: None,
            fleet: None,
            copies: None,
            trash: None,
        }
    }
}

/// What a status says about the claim. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimStatus {
    /// `held`, `waiting` (the origin has not answered yet), `gone` or `lost`.
    pub state: String,
    /// The claim's epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Since when it has been in this state, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The time in seconds since `since`. 0 if that is absent.
    #[serde(default)]
    pub seconds: u64,
    /// The observation behind this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a status says about a published tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeInfo {
    /// The tree's name.
    pub name: String,
    /// How often the name had been published.
    pub sequence: u64,
    /// When, UTC.
    pub published: String,
    /// The hash of the top tree node.
    pub root: String,
    /// Tree nodes.
    pub nodes: u64,
    /// The key that signed it.
    pub key: String,
}
