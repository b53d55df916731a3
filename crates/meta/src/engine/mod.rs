//! Engines store rows. None of them knows what a row means.
//!
//! - [`memory`]: an ordered set in memory, for in-memory volumes and for tests.
//! - [`sqlite`]: the default on disk. The journal stands in front of it.
//! - PostgreSQL and etcd, in the crate `engines`: databases that several nodes share. Nothing stands in front
//!   of them. What a node needs of such a database beside its rows is [`database`].
//! - [`moment`]: what a shared volume held at one moment, for a check or a publication. It takes no commits.
//!
//! [`resolve`] is the part that all engines and the journal share. It turns a conditional commit and the rows
//! that it depends on into the list of rows to write. So an engine decides only where rows are and in which
//! order commits happen.

pub mod database;
pub mod memory;
pub mod moment;
pub mod sqlite;

use crate::key::{Key, KeyRange};
use crate::record::{decode_i64, decode_u64, encode_i64, encode_u64};
use crate::store::{Commit, CommitError, Expect, StoreError, Value};

pub use memory::Memory;
pub use sqlite::Sqlite;

/// The longest key that engines take, in bytes. The volume's own are at most 280.
pub const KEY_MAX: usize = u16::MAX as usize;

/// A row's final value; none: the row is to be removed.
pub type Final = (Key, Option<Value>);

/// Checks a commit and computes what it writes.
///
/// `read` returns one row. It is called for the keys of [`read_keys`], once each and in that order.
/// `occupied` says whether a range holds a row. The caller ensures that nothing changes until the result is
/// applied.
///
/// # Errors
/// `Conflict` if checks fail, with the rows that these read, or if a range is not empty. `Store` if a counter
/// is damaged, a key is longer than [`KEY_MAX`], or a row cannot be read.
pub fn resolve(
    commit: Commit,
    mut read: impl FnMut(&Key) -> Result<Option<Value>, StoreError>,
    mut occupied: impl FnMut(&KeyRange) -> Result<bool, StoreError>,
) -> Result<Vec<Final>, CommitError> {
    let mut failed = Vec::new();
    for (key, expected) in &commit.checks {
        let row = read(key)?;
        let holds = match expected {
            Expect::Is(value) => row.as_deref() == Some(&**value),
            Expect::Absent => row.is_none(),
            Expect::Exists => row.is_some(),
        };
        if !holds {
            failed.push((key.clone(), row));
        }
    }
    let mut not_empty = false;
    for range in &commit.empty {
        not_empty |= occupied(range)?;
    }
    if !failed.is_empty() || not_empty {
        return Err(CommitError::Conflict { rows: failed, not_empty });
    }
    let mut sums = Vec::with_capacity(commit.adds.len() + commit.maxs.len());
    for (key, delta) in commit.adds {
        let row = read(&key)?;
        let sum = counter(&key, decode_i64(row.as_deref()))?.checked_add(delta);
        let sum = sum.ok_or_else(|| {
            StoreError::Damaged(format!("the counter {key:?} overflowed; run `covey fsck`"))
        })?;
        sums.push((key, (sum != 0).then(|| encode_i64(sum))));
    }
    for (key, least) in commit.maxs {
        let row = read(&key)?;
        if counter(&key, decode_u64(row.as_deref()))? < least {
            sums.push((key, Some(encode_u64(least))));
        }
    }
    // A key is in only one of the four lists, so their relative order does not matter.
    let mut rows: Vec<Final> = commit.puts.into_iter().map(|(key, value)| (key, Some(value))).collect();
    rows.extend(commit.dels.into_iter().map(|key| (key, None)));
    rows.append(&mut sums);
    if let Some((key, _)) = rows.iter().find(|(key, _)| key.as_bytes().len() > KEY_MAX) {
        let len = key.as_bytes().len();
        return Err(
            StoreError::Unavailable(format!("a key of {len} bytes is longer than any engine takes")).into()
        );
    }
    Ok(rows)
}

/// Returns the keys whose rows [`resolve`] reads, in its order.
pub fn read_keys(commit: &Commit) -> impl Iterator<Item = &Key> {
    let checks = commit.checks.iter().map(|(key, _)| key);
    checks.chain(commit.adds.iter().map(|(key, _)| key)).chain(commit.maxs.iter().map(|(key, _)| key))
}

fn counter<T>(key: &Key, row: Result<T, crate::record::BadRecord>) -> Result<T, StoreError> {
    row.map_err(|_| StoreError::Damaged(format!("the counter {key:?} is not 8 bytes; run `covey fsck`")))
}
