//! The quotas of a volume, read from its rows.

use base::Ino;

use super::{Names, bad_key, damaged};
use crate::key::Key;
use crate::quota::{QuotaRow, Quotas};
use crate::record::decode_i64;
use crate::store::{Commit, CommitError, Expect, StoreError};

impl Names {
    /// The quotas, as [`Names::read_quotas`] found them. Until it is called, nothing is limited.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Reads the quotas, and how much of them is used.
    ///
    /// # Errors
    /// See [`StoreError`]. The quotas that were read before stay in force.
    pub fn read_quotas(&self) -> Result<(), StoreError> {
        self.quotas.read(&*self.store, !self.shared)
    }

    /// The row of a directory's quota.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn quota_row(&self, dir: Ino) -> Result<Option<QuotaRow>, StoreError> {
        let row = self.store.get(&Key::quota(dir))?;
        row.map(|row| QuotaRow::decode(&row)).transpose().map_err(damaged)
    }

    /// Removes the counters of a quota that was removed, if their sums are 0.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn forget_quota(&self, dir: Ino) -> Result<(), StoreError> {
        self.store.flush()?;
        let rows = self.store.scan(&Key::quota_uses(dir), usize::MAX)?;
        let mut sums = [0i64; 2];
        for (key, row) in &rows {
            let Some((_, what)) = key.as_quota_used() else { return Err(bad_key(key)) };
            sums[what as usize] += decode_i64(Some(row)).map_err(damaged)?;
        }
        if rows.is_empty() || sums != [0, 0] {
            return Ok(());
        }
        let (checks, dels) = rows.into_iter().map(|(key, row)| ((key.clone(), Expect::Is(row)), key)).unzip();
        match self.store.commit(Commit { checks, dels, ..Commit::default() }) {
            // Something else counts for it meanwhile: it stays, and adds nothing to a quota.
            Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }
}
