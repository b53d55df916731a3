//! A volume's figures, as `status` shows them: from a daemon, or from a volume that is opened for it.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use api::error::{Failure, Result};
use api::status::Status;
use base::{Deadline, PackNo};
use fs::volume::Volume;
use meta::key::tags;
use meta::store::StoreError;
use meta::{Key, Names, PackRow};
use tree::Root;

use crate::claim;
use crate::memory::Memory;
use crate::opened::Node;
use crate::remote_side::RemoteSide;
use crate::remote_side::tree::TreeCache;
use crate::shared::{Shared, resuming};
use crate::volume_dir::VolumeDir;

/// The time limit for counting a tree's metadata.
const FIGURES: Duration = Duration::from_secs(8);
/// The time limit for counting a tree's metadata while the tree's origin cannot be used.
const FIGURES_AWAY: Duration = Duration::from_secs(1);

/// The figures that are counted from the metadata.
struct Figures {
    stats: fs::stats::Stats,
    twice: Twice,
}

impl Figures {
    /// Counts. The error explains the problem.
    fn of(volume: &Volume) -> std::result::Result<Figures, String> {
        let stats = volume.stats().map_err(|error| error.to_string())?;
        let names = Names::new(volume.parts().store.clone());
        match count(&names, stats) {
            Ok(figures) => Ok(figures),
            // What waits to be stored cannot be counted.
            Err(StoreError::NoSpace(_)) => Ok(Figures { stats, twice: Twice::default() }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Counts a tree, whose metadata may have to be fetched. If that takes too long, uses the figures in the
    /// root.
    fn of_tree(volume: Arc<Volume>, root: &Root, is_away: bool) -> Figures {
        let patience = if is_away { FIGURES_AWAY } else { FIGURES };
        let (done, result) = mpsc::sync_channel(1);
        // A separate thread, because a read may join one that has a later deadline.
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
    /// Whether this is a published tree whose origin could not be used and has not been reached since.
    fn tree_away(&self) -> bool {
        self.tree_cache().is_some_and(|cache| cache.away().is_some())
    }

    /// The figures now.
    pub fn status(&self) -> Result<Status> {
        let what = "the volume's figures cannot be read";
        if self.shared().is_some_and(Shared::is_away) {
            // An attempt may take as long as a command waits for the answer.
            return Err(Failure::new("no-database", what).next("run the same command again"));
        }
        let figures = match self.root() {
            Some(root) => Figures::of_tree(self.shown(), &root, self.tree_away()),
            None => Figures::of(&self.shown()).map_err(|why| {
                match self.dir().and_then(|dir| dir.format().names.as_ref()) {
                    Some(names) => Failure::new("no-database", what).why(why).next(format!(
                        "check the database: covey doctor '{names}'; the mount goes on when it answers"
                    )),
                    None => Failure::new("damaged", what)
                        .why(why)
                        .next(format!("unmount it and check it: covey fsck {}", self.name())),
                }
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
            refused: self.dir().and_then(resuming::refused),
            database: self.shared().and_then(Shared::trouble),
            unreached: self.shared().map(Shared::unreached).unwrap_or_default(),
            claim: self.writer().and_then(|writer| claim::status(writer.keeper().standing())),
            remote_side: self
                .remote_side()
                .map(RemoteSide::status)
                .or_else(|| self.tree_cache().map(TreeCache::status)),
            fleet: self.fleet_status(),
            copies: self.shared().map(Shared::copies),
            trash: self.trash_status(),
        })
    }
}

/// Counts what the volume's own figures lack.
fn count(names: &Names, mut stats: fs::stats::Stats) -> std::result::Result<Figures, StoreError> {
    let twice = Twice::count(names)?;
    if !stats.counted {
        count_packs(names, &mut stats)?;
        stats.stored_bytes = stats.stored_bytes.saturating_sub(twice.bytes);
    }
    Ok(Figures { stats, twice })
}

/// Counts sealed packs and their dead bytes. The volume's own background count may not be complete, or may
/// not run.
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

/// Packs with the same bytes as another pack. Both are one blob, which is stored once.
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

/// Bytes of the metadata database on disk, SQLite's log included.
fn names_bytes(dir: &VolumeDir) -> u64 {
    let files = std::fs::read_dir(dir.meta()).into_iter().flatten().flatten();
    let ours = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("names.db"));
    ours.map(|entry| entry.metadata().map_or(0, |meta| meta.len())).sum()
}
