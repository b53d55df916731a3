//! The rows of this node's packs, which the engine may forget.
//!
//! Batches that are sent once more ([`super::forgot`]) name bytes in packs, and the rows of these packs are
//! commits of their own. So this node remembers what it wrote to the pack table. Where the engine lacks it,
//! this node puts it back before it sends the batches. Without the row of an open pack, other nodes cannot
//! read its bytes. Without that of a sealed one, nobody knows its blob.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use base::PackNo;

use super::Core;
use crate::key::{Key, tags};
use crate::plan::nothing;
use crate::record::PackRow;
use crate::store::{Commit, CommitError, Expect, StoreError};

/// Sealed packs are remembered for so long, as batches are, and no more of them than this.
const KEEP: Duration = Duration::from_secs(600);
const KEEP_MAX: usize = 100_000;
/// Rows that are looked at together.
const AT_ONCE: usize = 256;

/// What this node has written to the pack table and not removed.
#[derive(Default)]
pub(super) struct OwnPacks {
    rows: BTreeMap<Key, PackRow>,
    sealed: VecDeque<(Instant, Key)>,
}

impl OwnPacks {
    /// The engine has confirmed this commit of this node.
    pub fn note(&mut self, commit: &Commit) {
        for (key, value) in commit.puts.iter().filter(|(key, _)| key.tag() == tags::PACK) {
            match PackRow::decode(value) {
                Ok(row @ PackRow::Open) => _ = self.rows.insert(key.clone(), row),
                Ok(row @ PackRow::Sealed { .. }) => {
                    self.rows.insert(key.clone(), row);
                    self.sealed.push_back((base::time::monotonic(), key.clone()));
                }
                _ => _ = self.rows.remove(key),
            }
        }
        commit.dels.iter().for_each(|key| _ = self.rows.remove(key));
        while self.sealed.front().is_some_and(|(at, _)| self.sealed.len() > KEEP_MAX || at.elapsed() > KEEP) {
            self.sealed.pop_front().iter().for_each(|(_, key)| _ = self.rows.remove(key));
        }
    }
}

/// The commit that puts a row back. `None`: the engine has it, or a later one.
fn put_back(key: &Key, row: PackRow, found: Option<&crate::store::Value>) -> Option<Commit> {
    let has = found.map(|found| PackRow::decode(found).ok());
    if !matches!((row, has), (_, None) | (PackRow::Sealed { .. }, Some(Some(PackRow::Open)))) {
        return None;
    }
    let expect = found.cloned().map_or(Expect::Absent, Expect::Is);
    let mut commit = Commit {
        checks: vec![(key.clone(), expect)],
        puts: vec![(key.clone(), row.encode())],
        ..Commit::default()
    };
    if let (PackRow::Sealed { blob, .. }, Some(number)) = (row, key.number()) {
        commit.checks.push((Key::doomed(&blob), Expect::Absent));
        commit.puts.push((Key::blob_pack(&blob, PackNo(number)), nothing()));
    }
    Some(commit)
}

impl Core {
    /// Puts the rows of this node's packs back that the engine has lost.
    ///
    /// # Errors
    /// The engine does not answer. It may have some of the rows.
    pub(super) fn put_packs_back(&self) -> Result<(), StoreError> {
        let own: Vec<(Key, PackRow)> =
            self.state.lock().own_packs.rows.iter().map(|(key, row)| (key.clone(), *row)).collect();
        let mut count = 0;
        for part in own.chunks(AT_ONCE) {
            let keys: Vec<Key> = part.iter().map(|(key, _)| key.clone()).collect();
            let found = self.inner.get_many(&keys)?;
            for ((key, row), found) in part.iter().zip(found) {
                let Some(commit) = put_back(key, *row, found.as_ref()) else { continue };
                match self.inner.commit(commit) {
                    Ok(()) => count += 1,
                    // The sealer was faster, or the blob is being deleted.
                    Err(CommitError::Conflict { .. }) => {}
                    Err(CommitError::Store(error)) => return Err(error),
                }
            }
        }
        if count > 0 {
            self.nodes.report(&format!(
                "the database had lost the rows of {count} packs of this node; it has them again"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::BlobId;

    use super::*;

    #[test]
    fn what_is_put_back_is_the_last_state_that_this_node_wrote() {
        let (key, mut own) = (Key::pack(PackNo(7)), OwnPacks::default());
        let put = |row: PackRow| Commit { puts: vec![(key.clone(), row.encode())], ..Commit::default() };
        let sealed = PackRow::Sealed { blob: BlobId([3; 32]), size: 9 };
        let condemned = PackRow::Condemned { blob: BlobId([3; 32]), size: 9 };
        own.note(&put(PackRow::Open));
        assert_eq!(own.rows[&key], PackRow::Open);
        assert!(put_back(&key, PackRow::Open, None).is_some());
        assert!(put_back(&key, PackRow::Open, Some(&sealed.encode())).is_none(), "that is later");
        own.note(&put(sealed));
        assert_eq!(own.rows[&key], sealed);
        let commit = put_back(&key, sealed, Some(&PackRow::Open.encode())).unwrap();
        assert_eq!((commit.checks.len(), commit.puts.len()), (2, 2));
        assert!(put_back(&key, sealed, Some(&sealed.encode())).is_none());
        assert!(put_back(&key, sealed, Some(&condemned.encode())).is_none(), "that is later");
        own.note(&put(condemned));
        assert!(own.rows.is_empty());
        own.note(&put(PackRow::Open));
        own.note(&Commit { dels: vec![key.clone()], ..Commit::default() });
        assert!(own.rows.is_empty());
    }
}
