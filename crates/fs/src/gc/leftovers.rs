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
//! | sealed | | it is read from its file until it is sealed again in the background (a power cut may have damaged the origin's copy); then its file is deleted |

use std::sync::atomic::Ordering;

use base::size::BLOB_MAX;
use base::{BlobId, PackNo};
use meta::PackRow;
use meta::plan::{Op, Refusal};

use crate::errno::Error;
use crate::packs::seal::is_damage;
use crate::volume::Core;

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
    /// sealer does this in the background.
    pub(crate) fn reseal_noted(&self) -> Result<(), Error> {
        let mut noted: Vec<PackNo> = self.resealing.lock().iter().copied().collect();
        noted.sort_unstable();
        for pack in noted {
            if self.stopping() {
                break;
            }
            self.reseal(pack)?;
            self.table.drop(pack);
            self.resealing.lock().remove(&pack);
        }
        Ok(())
    }

    fn reseal(&self, pack: PackNo) -> Result<(), Error> {
        let Some(PackRow::Sealed { blob, size }) = self.pack_row(pack)? else {
            return Ok(());
        };
        let again = match self.parts.packs.seal(pack, size) {
            Ok(again) if again == blob => {
                self.sweep.retire(pack);
                return Ok(());
            }
            Ok(again) => format!("its bytes are now {again}"),
            Err(error) if is_damage(&error) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        // The bytes here are not the blob's. The origin's copy may be.
        match self.parts.origin.verify(&blob) {
            Ok(()) => self.sweep.retire(pack),
            Err(_) => self.report(&format!(
                "{pack:?} was sealed as {blob}, {again}, and the origin has no sound copy; `covey fsck` says which files it holds"
            )),
        }
        Ok(())
    }

    /// Scans the pack table. Condemned packs are queued for deletion, sealed packs are counted, and rows of
    /// open packs without a file and without live bytes are forgotten.
    pub(crate) fn count_packs(&self) -> Result<(), Error> {
        let mut from = PackNo(0);
        loop {
            // Packs sealed from now on count themselves. The row read here may be from before or after that.
            let rows = self.names.packs(from, BATCH)?;
            for (pack, row) in &rows {
                self.count_pack(*pack, *row)?;
                if self.stopping() {
                    return Ok(());
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == BATCH => from = PackNo(last.0 + 1),
                _ => break,
            }
        }
        self.garbage.all_counted();
        Ok(())
    }

    fn count_pack(&self, pack: PackNo, row: PackRow) -> Result<(), Error> {
        match row {
            PackRow::Condemned { blob, size } if pack < self.first_pack() => {
                self.count_twice(pack, blob, size)?;
                self.sweep.condemned(pack, blob, size);
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

    /// Packs with lower numbers existed when the volume was opened.
    fn first_pack(&self) -> PackNo {
        PackNo(self.first_pack.load(Ordering::Acquire))
    }
}
