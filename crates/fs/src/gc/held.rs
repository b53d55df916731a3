//! Deletes blobs that a published tree needed, when no tree needs them any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{BlobId, time};
use meta::record::HeldRow;
use meta::store::CommitError;
use meta::{Commit, Expect, Key};

use crate::errno::Error;
use crate::publish::GRACE;
use crate::volume::Core;

/// The interval between two scans of all holds, while some have ended.
const LOOK: Duration = Duration::from_secs(60);

impl Core {
    /// Releases the holds that ended at least [`GRACE`] ago, and deletes the blobs that nothing else needs.
    /// `now`: does not wait for the next scan.
    pub(crate) fn held_round(&self, now: bool) -> Result<(), Error> {
        if !now && !self.held_is_due() {
            return Ok(());
        }
        *self.publishing.looked.lock() = Some(time::monotonic());
        if !self.publishing.ended.swap(false, Ordering::AcqRel) && !now {
            return Ok(());
        }
        let done = self.release_ended();
        if !matches!(done, Ok(false)) {
            self.publishing.ended.store(true, Ordering::Release);
        }
        done.map(drop)
    }

    fn held_is_due(&self) -> bool {
        let looked = *self.publishing.looked.lock();
        self.publishing.ended.load(Ordering::Acquire)
            && looked.is_none_or(|at| time::monotonic().saturating_duration_since(at) >= LOOK)
    }

    /// Releases the holds whose time is over. Returns whether ended holds remain that must stay for a while.
    fn release_ended(&self) -> Result<bool, Error> {
        let now = time::now();
        let mut left = false;
        let mut over = Vec::new();
        self.each_hold(&mut |blob, tree, row| {
            let is_over = match row {
                HeldRow::Held | HeldRow::Pending | HeldRow::KeptAt(_) => return Ok(()),
                HeldRow::Released => true,
                HeldRow::DroppedAt(at) => now.0 - at.0 >= GRACE.as_nanos() as i128,
            };
            left |= !is_over;
            if is_over {
                over.push((blob, String::from_utf8_lossy(tree).into_owned(), row));
            }
            Ok(())
        })?;
        for (blob, tree, row) in over {
            if self.stopping() || !self.release_hold(&blob, &tree, row)? {
                return Ok(true);
            }
        }
        Ok(left)
    }

    /// Ends one hold. Returns false while a publication must be waited for.
    fn release_hold(&self, blob: &BlobId, tree: &str, row: HeldRow) -> Result<bool, Error> {
        let _whole = self.blobs.write();
        if self.publishing.is_paused() {
            return Ok(false);
        }
        // Asked before the row is deleted, too: while it is unknown whether this volume owns the origin, the
        // hold stays.
        self.may_delete()?;
        let key = Key::held(blob, tree);
        let mut commit = Commit::default();
        commit.checks.push((key.clone(), Expect::Is(row.encode())));
        commit.dels.push(key);
        match self.parts.store.commit(commit) {
            Ok(()) => {}
            // Held again since the scan.
            Err(CommitError::Conflict { .. }) => return Ok(true),
            Err(CommitError::Store(error)) => return Err(error.into()),
        }
        if self.names.is_held(blob)? || !self.names.blob_packs(blob)?.is_empty() {
            return Ok(true);
        }
        self.may_delete()?;
        // After the row. If a crash comes in between, `fsck` finds a blob that nothing refers to, and not a
        // tree without its blob.
        self.parts.origin.remove(blob)?;
        Ok(true)
    }
}
