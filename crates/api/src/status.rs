//! The figures of what is mounted, as a daemon answers them. Field names are stable.

pub mod far;
pub mod fleet;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::source;
use far::FarStatus;
use fleet::FleetStatus;

/// What a mount promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All changes come through this mount.
    Exclusive,
    /// The mount changes nothing.
    ReadOnly,
    /// Nothing changes at all.
    Frozen,
}

impl Mode {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::ReadOnly => "read-only",
            Mode::Frozen => "frozen",
        }
    }
}

/// A volume's figures. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its folder, or `mem:<id>`.
    pub volume: String,
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where its blobs live.
    pub origin: String,
    /// What was published, of a mounted tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeInfo>,
    /// What it was opened for.
    pub mode: Mode,
    /// The daemon, where there is one.
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
    /// Bytes of files that take no room of their own: clones, and equal contents.
    pub saved_bytes: u64,
    /// Of these, found by hash since the volume was opened.
    pub dedup_bytes: u64,
    /// Sealed packs.
    pub blobs: u64,
    /// Packs in the making.
    pub open_packs: u64,
    /// Bytes of the names: their database on disk, or the rows of a volume in memory.
    pub names_bytes: u64,
    /// Bytes of the redo log on disk; a volume in memory has no log.
    pub log_bytes: u64,
    /// Bytes of rows in memory that are in the log and not yet in the database.
    pub overlay_bytes: u64,
    /// Inodes that the kernel refers to.
    pub held_inodes: u64,
    /// Requests answered with EIO since the volume was opened.
    pub io_errors: u64,
    /// Bytes of memory that the process holds.
    pub memory_bytes: u64,
    /// The most it ever held.
    pub memory_peak_bytes: u64,
    /// Whether it may write to its origin, where it was opened for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimStatus>,
    /// What only a far origin has: uploads, the cache, requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<FarStatus>,
    /// What only a node of a fleet has: who is there, and where bytes came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
}

/// What kind of thing a status is of.
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
    /// Where.
    #[serde(with = "crate::raw_path")]
    pub mountpoint: PathBuf,
    /// Its process.
    pub pid: u32,
    /// Since when.
    pub uptime_seconds: u64,
    /// Requests that the kernel sent.
    pub requests: u64,
    /// The same by kind, `LOOKUP` and so on; kinds that never came are left out.
    #[serde(default)]
    pub requests_by_kind: BTreeMap<String, u64>,
    /// Of these, waiting at the moment.
    pub waiting: u64,
    /// How they come: `uring` or `classic`.
    pub transport: String,
}

impl Status {
    /// What it is of: its name tells.
    pub fn kind(&self) -> Kind {
        match &self.volume {
            name if name.starts_with(source::MEMORY) => Kind::Memory,
            name if name.starts_with(source::CORPUS) => Kind::Corpus,
            _ if self.tree.is_some() => Kind::Tree,
            _ => Kind::Folder,
        }
    }

    /// All figures 0.
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
            claim: None,
            far: None,
            fleet: None,
        }
    }
}

/// What a status says of the claim. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimStatus {
    /// `held`, `waiting` (the origin has not answered yet), `gone` or `lost`.
    pub state: String,
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Since when it is so, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The same in seconds until now.
    #[serde(default)]
    pub seconds: u64,
    /// What was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a status says of a published tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeInfo {
    /// Its name.
    pub name: String,
    /// How often the name had been published.
    pub sequence: u64,
    /// When, UTC.
    pub published: String,
    /// The top node's hash.
    pub root: String,
    /// Nodes.
    pub nodes: u64,
    /// Who signed it.
    pub key: String,
}
