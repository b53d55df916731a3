//! A volume's figures: what `status` shows, from a daemon or from a volume that is opened for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::{Deadline, PackNo};
use fs::volume::Volume;
use meta::key::tags;
use meta::store::StoreError;
use meta::{Key, Names, PackRow};
use serde::{Deserialize, Serialize};
use tree::Root;

use crate::claim::ClaimStatus;
use crate::error::{Failure, Result};
use crate::far::tree::TreeCache;
use crate::far::{Far, FarStatus};
use crate::fleet::shown::FleetStatus;
use crate::frozen::TreeInfo;
use crate::node::Node;
use crate::volume_dir::VolumeDir;

/// What is counted in a tree's names is waited for so long.
const FIGURES: Duration = Duration::from_secs(8);
/// The same while its origin cannot be used.
const FIGURES_AWAY: Duration = Duration::from_secs(1);

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
            name if name.starts_with("mem:") => Kind::Memory,
            name if name.starts_with(corpus::spec::PREFIX) => Kind::Corpus,
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

/// What is counted in the names.
struct Figures {
    stats: fs::stats::Stats,
    twice: Twice,
}

impl Figures {
    /// The error is what is wrong, in words.
    fn of(volume: &Volume) -> std::result::Result<Figures, String> {
        let mut stats = volume.stats().map_err(|error| error.to_string())?;
        let names = Names::new(volume.parts().store.clone());
        let twice = Twice::count(&names).map_err(|error| error.to_string())?;
        if !stats.counted {
            count_packs(&names, &mut stats).map_err(|error| error.to_string())?;
            stats.stored_bytes = stats.stored_bytes.saturating_sub(twice.bytes);
        }
        Ok(Figures { stats, twice })
    }

    /// Of a tree, whose names may have to be fetched: what the root says, if they are not had soon.
    fn of_tree(volume: Arc<Volume>, root: &Root, is_away: bool) -> Figures {
        let patience = if is_away { FIGURES_AWAY } else { FIGURES };
        let (done, result) = mpsc::sync_channel(1);
        // A thread of its own: a read may join one that somebody with more patience waits for.
        let count = move || {
            let figures = Deadline::after(patience).scope(|| Figures::of(&volume).ok());
            let _ = done.send(figures);
        };
        let began = base::thread::spawn("covey-figures", count);
        let counted = began.ok().and_then(|_| result.recv_timeout(patience).ok().flatten());
        counted.unwrap_or_else(|| {
            let stats =
                fs::stats::Stats { inodes: root.inodes, logical_bytes: root.bytes, ..Default::default() };
            Figures { stats, twice: Twice::default() }
        })
    }
}

impl Node {
    /// Whether it is a published tree whose origin could not be used and has not been seen since.
    fn tree_away(&self) -> bool {
        self.tree_cache().is_some_and(|cache| cache.away().is_some())
    }

    /// The figures now.
    pub fn status(&self) -> Result<Status> {
        let figures = match self.root() {
            Some(root) => Figures::of_tree(self.shown(), &root, self.tree_away()),
            None => Figures::of(&self.shown()).map_err(|why| {
                let fsck = format!("unmount it and check it: covey fsck {}", self.name());
                Failure::new("damaged", "the volume's figures cannot be read").why(why).next(fsck)
            })?,
        };
        let Figures { stats, twice } = figures;
        let memory = Memory::now();
        let journal = self.journal().map(|journal| journal.stats()).unwrap_or_default();
        let stored = stats.stored_bytes + stats.open_bytes;
        Ok(Status {
            volume: self.name(),
            id: self.dir().map(|dir| dir.format().id.clone()),
            origin: match (self.dir(), self.tree()) {
                (Some(dir), _) => dir.origin(),
                (None, Some((_, origin))) => origin,
                (None, None) => "mem:".to_owned(),
            },
            tree: self.tree().map(|(tree, _)| tree),
            mode: self.mode(),
            served: None,
            files: stats.inodes,
            bytes: stats.logical_bytes,
            stored_bytes: stored,
            garbage_bytes: stats.garbage_bytes,
            saved_bytes: stats.logical_bytes.saturating_sub(stored.saturating_sub(stats.garbage_bytes)),
            dedup_bytes: stats.dedup_bytes,
            blobs: stats.sealed_packs.saturating_sub(twice.packs),
            open_packs: stats.open_packs,
            names_bytes: self.rows_bytes().unwrap_or_else(|| self.dir().map_or(0, names_bytes)),
            log_bytes: journal.log_file_bytes,
            overlay_bytes: journal.overlay_bytes,
            held_inodes: stats.held_inodes,
            io_errors: stats.io_errors,
            memory_bytes: memory.now,
            memory_peak_bytes: memory.peak,
            claim: self.writer().and_then(|writer| ClaimStatus::of(writer.keeper().standing())),
            far: self.far().map(Far::status).or_else(|| self.tree_cache().map(TreeCache::status)),
            fleet: self.fleet_status(),
        })
    }
}

/// What the volume's own count, which goes on behind or not at all, has not come to yet: sealed packs, and what is dead in them.
fn count_packs(names: &Names, stats: &mut fs::stats::Stats) -> std::result::Result<(), StoreError> {
    (stats.stored_bytes, stats.garbage_bytes, stats.sealed_packs) = (0, 0, 0);
    let mut from = PackNo(0);
    loop {
        let rows = names.packs(from, 1024)?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        from = PackNo(last.0 + 1);
        for (pack, row) in rows {
            if let PackRow::Sealed { size, .. } = row {
                let size = u64::from(size);
                stats.sealed_packs += 1;
                stats.stored_bytes += size;
                stats.garbage_bytes += size.saturating_sub(names.pack_live(pack)?);
            }
        }
    }
}

/// Packs whose bytes are another pack's as well: both are one blob, stored once.
#[derive(Default)]
struct Twice {
    packs: u64,
    bytes: u64,
}

impl Twice {
    fn count(names: &Names) -> std::result::Result<Twice, StoreError> {
        let mut twice = Twice::default();
        let mut range = Key::kind(tags::BLOB_PACK);
        let mut last = None;
        loop {
            let rows = names.store().scan(&range, 4096)?;
            let Some((key, _)) = rows.last() else { return Ok(twice) };
            range.start = key.successor();
            for (blob, pack) in rows.iter().filter_map(|(key, _)| key.as_blob_pack()) {
                if last == Some(blob)
                    && let Some(PackRow::Sealed { size, .. }) = names.pack(pack)?
                {
                    twice.packs += 1;
                    twice.bytes += u64::from(size);
                }
                last = Some(blob);
            }
        }
    }
}

/// This process's memory, in bytes.
pub struct Memory {
    /// Held now.
    pub now: u64,
    /// The most ever held.
    pub peak: u64,
}

impl Memory {
    /// As the kernel counts it.
    pub fn now() -> Memory {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
        };
        Memory { now: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

/// Bytes of the names' database on disk, SQLite's own log included.
fn names_bytes(dir: &VolumeDir) -> u64 {
    let files = std::fs::read_dir(dir.meta()).into_iter().flatten().flatten();
    let ours = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("names.db"));
    ours.map(|entry| entry.metadata().map_or(0, |meta| meta.len())).sum()
}
