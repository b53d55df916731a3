//! Cleans up after a crash or a kill: open packs, condemned blobs, and the count of stored bytes.
//!
//! When a volume is opened, its names already are a prefix of the history and refer only to bytes that exist.
//! So an open pack is judged by its row alone:
//!
//! | row | live bytes | what is done |
//! |---|---|---|
//! | none, condemned | | its file is deleted |
//! | open | none | row and file are deleted |
//! | open | some | it is closed as it is, and sealed in the background |
//! | sealed | | it is read from its file until it is sealed again in the background (a power cut may have damaged the origin's copy); then its file is deleted. If its bytes are damaged and the origin has no sound copy, it is read from its file as long as anything refers to it |

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::size::BLOB_MAX;
use base::{BlobId, Deadline, PackNo};
use blob::BlobError;
use hashbrown::HashSet;
use meta::PackRow;
use meta::plan::{Op, Refusal};

use crate::errno::Error;
use crate::packs::seal::is_damage;
use crate::volume::Core;

/// How long the origin may take to say whether its copy of a blob is sound.
const ORIGIN: Duration = Duration::from_secs(5);
/// Pack rows read at a time.
const BATCH: usize = 1024;

impl Core {
    /// Handles the open packs that were found.
    pub(crate) fn adopt_leftovers(&self) -> Result<(), Error> {
        for (pack, len) in self.parts.packs.open_packs()? {
            if self.elsewhere(pack).is_some() {
                // The folder is a copy of another node's, or was another node's.
                continue;
            }
            let len = u32::try_from(len).unwrap_or(u32::MAX).min(BLOB_MAX);
            let adopted = match self.pack_row(pack)? {
                None | Some(PackRow::Condemned { .. }) => {
                    self.sweep.discard(pack);
                    Ok(())
                }
                Some(PackRow::Open) if self.names.pack_live(pack)? == 0 => self.forget_open(pack),
                Some(PackRow::Open) => {
                    self.packs.adopt(pack, len);
                    Ok(())
                }
                Some(PackRow::Sealed { .. }) => Ok(()),
            };
            match adopted {
                Ok(()) => {}
                Err(Error::Blob(error)) => {
                    self.report(&format!("{pack:?}, left open by the last run, stays open: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Finds sealed packs whose files as open packs still exist. Their bytes are read from those files, since
    /// a power cut may have left half of a blob under its name. Also done for a read-only volume.
    pub(crate) fn note_resealing(&self) -> Result<(), Error> {
        for (pack, _) in self.parts.packs.open_packs()? {
            if let Some(PackRow::Sealed { .. }) = self.pack_row(pack)? {
                self.resealing.lock().insert(pack);
            }
        }
        Ok(())
    }

    /// Seals the packs that [`Core::note_resealing`] found once more, so that the origin checks its copy. The
    /// sealer does this in the background. Returns whether all are done. `told`: packs that were reported.
    pub(crate) fn reseal_noted(&self, told: &mut HashSet<PackNo>) -> bool {
        // The sealer also has packs that this run has named and not handed to the origin yet.
        let is_old = |pack: &PackNo| *pack < self.first_pack() && !self.packs.has(*pack);
        let mut noted: Vec<PackNo> = self.resealing.lock().iter().copied().collect();
        noted.retain(is_old);
        noted.sort_unstable();
        let mut is_done = true;
        for pack in noted {
            if self.stopping() {
                return false;
            }
            let Err(error) = self.reseal(pack) else { continue };
            is_done = false;
            if told.insert(pack) {
                self.report(&format!(
                    "{pack:?}, which the last run sealed, cannot be handed to the origin again; this will be repeated, and until then nothing is published and fsync to the origin fails; check this disk and the origin: {error}"
                ));
            }
        }
        is_done
    }

    fn reseal(&self, pack: PackNo) -> Result<(), Error> {
        let Some(PackRow::Sealed { blob, size }) = self.pack_row(pack)? else {
            self.drop_file(pack);
            return Ok(());
        };
        let again = match self.parts.packs.seal(pack, size) {
            Ok(again) if again == blob => {
                self.resealed(pack);
                return Ok(());
            }
            Ok(again) => format!("its bytes are now {again}"),
            Err(error) if is_damage(&error) || is_cut(&error) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        // The bytes here are not the blob's. The origin's copy may be.
        match Deadline::after(ORIGIN).scope(|| self.parts.origin.verify(&blob)) {
            Ok(()) => self.resealed(pack),
            Err(BlobError::Missing(_) | BlobError::Damaged { .. }) => {
                self.report(&format!(
                    "{pack:?} was sealed as {blob}, {again}, and the origin has no sound copy; `covey fsck` says which files it holds"
                ));
                self.packs.lose(pack);
                self.resealing.lock().remove(&pack);
                self.table.drop(pack);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The origin has the pack, and its file is not needed any more.
    fn resealed(&self, pack: PackNo) {
        self.sweep.retire(pack);
        self.table.drop(pack);
        self.resealing.lock().remove(&pack);
    }

    /// Scans the pack table. Condemned packs are queued for deletion, sealed packs are counted, and rows of
    /// open packs without a file and without live bytes are forgotten.
    pub(crate) fn count_packs(&self) -> Result<(), Error> {
        let mut from = PackNo(0);
        loop {
            // While this is held, no pack is condemned or deleted. Packs sealed from now on count themselves.
            // The row read here may be from before or after that.
            let _round = self.sweep.between_rounds();
            let rows = self.names.packs(from, BATCH)?;
            let waiting = self.sweep.condemned_packs();
            for (pack, row) in &rows {
                self.count_pack(*pack, *row, &waiting)?;
                self.sweep.counted_to.store(pack.0.saturating_add(1), Ordering::Release);
                if self.stopping() {
                    return Ok(());
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == BATCH => from = PackNo(last.0 + 1),
                _ => break,
            }
        }
        self.sweep.counted_to.store(u64::MAX, Ordering::Release);
        self.garbage.all_counted();
        Ok(())
    }

    fn count_pack(&self, pack: PackNo, row: PackRow, waiting: &HashSet<PackNo>) -> Result<(), Error> {
        match row {
            PackRow::Condemned { blob, size } if pack < self.first_pack() => {
                self.count_twice(pack, blob, size)?;
                // This run may have condemned it before.
                if !waiting.contains(&pack) {
                    self.sweep.condemned(pack, blob, size);
                }
            }
            PackRow::Sealed { blob, size } if pack < self.first_pack() && !self.packs.was_adopted(pack) => {
                let live = self.names.pack_live(pack)?;
                self.garbage.sealed(pack, size, live);
                self.count_twice(pack, blob, size)?;
                if live == 0 {
                    self.garbage.touch(&[pack]);
                }
            }
            // A pack whose file was lost in a power cut or was never created: nothing can refer to it.
            PackRow::Open if pack < self.first_pack() && !self.packs.has(pack) => {
                if self.names.pack_live(pack)? == 0 {
                    match self.run(&Op::ForgetPack { pack }) {
                        Ok(_) | Err(Error::Refused(Refusal::Busy)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            PackRow::Sealed { .. } | PackRow::Open | PackRow::Condemned { .. } => {}
        }
        Ok(())
    }

    /// Of several packs with the same blob, all but the first are counted as duplicates.
    fn count_twice(&self, pack: PackNo, blob: BlobId, size: u32) -> Result<(), Error> {
        if self.names.blob_packs(&blob)?.first() != Some(&pack) {
            self.garbage.twice(size, true);
        }
        Ok(())
    }

    /// Whether the sums over all packs include this one: it was counted, or sealed by this run.
    pub(super) fn is_counted(&self, pack: PackNo) -> bool {
        pack.0 < self.sweep.counted_to.load(Ordering::Acquire)
            || pack >= self.first_pack()
            || self.packs.was_adopted(pack)
    }

    /// Packs with lower numbers existed when the volume was opened.
    fn first_pack(&self) -> PackNo {
        PackNo(self.first_pack.load(Ordering::Acquire))
    }
}

/// Whether the error says that an open pack's file has lost its end, or is gone.
fn is_cut(error: &BlobError) -> bool {
    let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::NotFound];
    matches!(error, BlobError::Io(error) if kinds.contains(&error.kind()))
}
