//! Content rows whose packs are gone.
//!
//! A content row says where a small file's content is, so that the next file with the same content need not
//! be stored. When the pack is deleted, the row stays, because finding it would cost every deletion a scan. A
//! stale row only costs a failed lookup, and its space. So all rows are scanned when so many packs were
//! forgotten that half of the rows may be stale.

use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use meta::key::tags;
use meta::record::ContentRow;
use meta::store::CommitError;
use meta::{Commit, Expect, Key, PackRow, Value};

use crate::errno::Error;
use crate::volume::Core;

/// Rows read at a time.
const BATCH: usize = 1024;
/// A scan is not worth it for fewer forgotten packs than this.
const FORGOTTEN_MIN: u64 = 64;

impl Core {
    /// Removes the stale rows, if there may be many.
    pub(crate) fn contents_round(&self) -> Result<(), Error> {
        let forgotten = self.sweep.forgotten.load(Ordering::Acquire);
        if forgotten < FORGOTTEN_MIN.max(self.garbage.totals().packs / 2) {
            return Ok(());
        }
        self.sweep.forgotten.store(0, Ordering::Release);
        self.sweep_contents().map(drop)
    }

    /// Removes all stale rows. Returns how many.
    pub(crate) fn sweep_contents(&self) -> Result<u64, Error> {
        let mut range = Key::kind(tags::CONTENT);
        let mut removed = 0;
        loop {
            let rows = self.parts.store.scan(&range, BATCH)?;
            let Some((last, _)) = rows.last() else { return Ok(removed) };
            range.start = last.successor();
            removed += self.drop_stale(rows)?;
            if self.stopping() {
                return Ok(removed);
            }
        }
    }

    fn drop_stale(&self, rows: Vec<(Key, Value)>) -> Result<u64, Error> {
        let mut packs: HashMap<u64, Option<Value>> = HashMap::new();
        let mut commit = Commit::default();
        for (key, row) in rows {
            let pack = ContentRow::decode(&row)?.pack;
            if !packs.contains_key(&pack.0) {
                packs.insert(pack.0, self.parts.store.get(&Key::pack(pack))?);
            }
            let usable = match packs.get(&pack.0) {
                Some(Some(row)) => PackRow::decode(row)?.is_usable(),
                _ => false,
            };
            if !usable {
                // A pack that is gone or condemned never comes back, so only the row itself needs to be as it
                // was.
                commit.checks.push((key.clone(), Expect::Is(row)));
                commit.dels.push(key);
            }
        }
        let count = commit.dels.len() as u64;
        if count == 0 {
            return Ok(0);
        }
        match self.parts.store.commit(commit) {
            Ok(()) => Ok(count),
            // One of the contents was stored anew. The other rows are found by the next scan.
            Err(CommitError::Conflict { .. }) => Ok(0),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }
}
