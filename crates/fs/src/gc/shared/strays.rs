//! Blobs that are in the origin and that no row names: a node uploaded them after their packs were forgotten,
//! or was killed between the steps of a deletion by an older program.
//!
//! They are searched for only on request, because the whole origin has to be listed. A blob is deleted by a
//! search that begins at least `delay` after the first one that found it. It is doomed like any other, so a
//! node that names it meanwhile keeps it.

use base::{BlobId, time};
use hashbrown::HashMap;
use meta::Key;
use meta::plan::{Refusal, op::Unkept};

use super::delete::{Doomed, Present};
use crate::errno::Error;
use crate::shared::Sharing;
use crate::volume::Core;

/// Blobs whose rows are looked up together.
const BATCH: usize = 256;
/// So many strays are remembered. The others are found by a later search.
const MOST: usize = 1 << 18;

impl Core {
    /// Searches the origin. Returns how many bytes of blobs that no row names are left.
    pub(super) fn delete_strays(&self, sharing: &Sharing, present: &Present) -> Result<u64, Error> {
        let (began, mut found, mut batch) = (time::monotonic(), Vec::new(), Vec::new());
        let mut looked = Ok(());
        self.parts.origin.list(&mut |blob, size| {
            batch.push((blob, size));
            if batch.len() == BATCH {
                looked = self.unnamed(&mut batch, &mut found);
            }
            looked.is_ok() && found.len() < MOST && !self.stopping()
        })?;
        looked?;
        self.unnamed(&mut batch, &mut found)?;
        let due: Vec<(BlobId, u64)> = {
            let mut state = self.deletions.state.lock();
            let before = std::mem::take(&mut state.strays);
            let since = |blob: &BlobId| before.get(blob).copied().unwrap_or(began);
            state.strays = found.iter().map(|(blob, _)| (*blob, since(blob))).collect::<HashMap<_, _>>();
            let age = |blob: &BlobId| began.saturating_duration_since(since(blob));
            let is_due = |blob: &BlobId| before.contains_key(blob) && age(blob) >= sharing.delay;
            found.iter().filter(|(blob, _)| is_due(blob)).copied().collect()
        };
        let mut left: u64 = found.iter().map(|(_, size)| size).sum();
        for due in due.chunks(BATCH) {
            left = left.saturating_sub(self.delete_some(present, due)?);
        }
        Ok(left)
    }

    /// Moves from `batch` to `found` the blobs that no row names.
    fn unnamed(&self, batch: &mut Vec<(BlobId, u64)>, found: &mut Vec<(BlobId, u64)>) -> Result<(), Error> {
        let keys: Vec<Key> = batch.iter().map(|(blob, _)| Key::doomed(blob)).collect();
        let ranges: Vec<_> =
            batch.iter().flat_map(|(blob, _)| [Key::blob_packs(blob), Key::holders(blob)]).collect();
        let rows = self.parts.store.look(&keys, &ranges, 1)?;
        let named = rows.ranges.chunks(2).map(|ranges| ranges.iter().any(|rows| !rows.is_empty()));
        let unnamed = named.zip(&rows.rows).map(|(named, doomed)| !named && doomed.is_none());
        found.extend(batch.drain(..).zip(unnamed).filter(|(_, unnamed)| *unnamed).map(|(blob, _)| blob));
        Ok(())
    }

    fn delete_some(&self, present: &Present, due: &[(BlobId, u64)]) -> Result<u64, Error> {
        let _round = self.sweep.between_rounds();
        let mut doomed = Doomed::new();
        for (blob, size) in due {
            match self.doom(present, *blob, Unkept::Stray) {
                Ok(true) => doomed.push((*blob, u32::try_from(*size).unwrap_or(u32::MAX))),
                Ok(false) => {}
                // A node publishes. Another search finds the rest.
                Err(Error::Refused(Refusal::Busy)) => break,
                Err(error) => return Err(error),
            }
        }
        self.delete_doomed(present, &doomed)?;
        Ok(doomed.iter().map(|(_, size)| u64::from(*size)).sum())
    }
}
