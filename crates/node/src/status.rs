//! A volume's figures: what `status` shows, from a daemon or from a volume that is opened for it.

use api::error::{Failure, Result};
use api::status::Status;
use base::PackNo;
use meta::key::tags;
use meta::store::StoreError;
use meta::{Key, Names, PackRow};

use crate::claim;
use crate::far::Far;
use crate::far::tree::TreeCache;
use crate::opened::Node;
use crate::sys::Memory;
use crate::volume_dir::VolumeDir;

impl Node {
    /// The figures now.
    pub fn status(&self) -> Result<Status> {
        let damaged = |why: String| {
            let fsck = format!("unmount it and check it: covey fsck {}", self.name());
            Failure::new("damaged", "the volume's figures cannot be read").why(why).next(fsck)
        };
        let mut stats = self.shown().stats().map_err(|error| damaged(error.to_string()))?;
        let names = Names::new(self.store());
        let twice = Twice::count(&names).map_err(|error| damaged(error.to_string()))?;
        if !stats.counted {
            count_packs(&names, &mut stats).map_err(|error| damaged(error.to_string()))?;
            stats.stored_bytes = stats.stored_bytes.saturating_sub(twice.bytes);
        }
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
            claim: self.writer().and_then(|writer| claim::status(writer.keeper().standing())),
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

/// Bytes of the names' database on disk, SQLite's own log included.
fn names_bytes(dir: &VolumeDir) -> u64 {
    let files = std::fs::read_dir(dir.meta()).into_iter().flatten().flatten();
    let ours = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("names.db"));
    ours.map(|entry| entry.metadata().map_or(0, |meta| meta.len())).sum()
}
