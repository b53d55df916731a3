//! The seam below the planner: rows under ordered keys, read one by one or in ranges, changed by conditional commits.
//!
//! An engine knows nothing of files. It promises:
//!
//! - **Atomic, ordered commits.** A commit is applied whole or not at all, after every commit that returned before it began.
//! - **Conflicts carry the fresh values**, so that a retry need not read.
//! - **[`MetaStore::flush`]**: what was committed before it began survives a power cut once it returns. A commit
//!   alone survives a kill of the process (engines on disk).
//!
//! Checks compare values, not versions: the planner is a function of the values, so equal values mean an equal plan.

use std::sync::Arc;

use base::PackNo;

use crate::key::{Key, KeyRange};

/// A row's value. Cheap to clone.
pub type Value = Arc<[u8]>;

/// What a commit expects of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It has exactly this value.
    Is(Value),
    /// It is not there.
    Absent,
    /// It is there, with whatever value. Any number of commits may share this check.
    Exists,
}

/// Bytes of an open pack that a commit is the first to mention. A journal uses it to know what must be durable with
/// the commit, and after a crash to find whether it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshData {
    /// The pack.
    pub pack: PackNo,
    /// Where the bytes begin in it.
    pub offset: u32,
    /// How many.
    pub len: u32,
    /// Their CRC32C.
    pub crc: u32,
}

/// A change: applied if every check holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// What single rows must be.
    pub checks: Vec<(Key, Expect)>,
    /// Ranges that must hold no row.
    pub empty: Vec<KeyRange>,
    /// Rows to write. A key stands at most once in `puts`, `dels`, `adds` and `maxs` together.
    pub puts: Vec<(Key, Value)>,
    /// Rows to remove; one that is not there is no error.
    pub dels: Vec<Key>,
    /// Signed 64-bit big-endian counters to add to; an absent one counts as 0. A sum of 0 removes the row.
    pub adds: Vec<(Key, i64)>,
    /// Unsigned 64-bit big-endian values to raise; an absent one counts as 0.
    pub maxs: Vec<(Key, u64)>,
    /// Bytes that the rows mention for the first time.
    pub fresh: Vec<FreshData>,
}

impl Commit {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.dels.is_empty() && self.adds.is_empty() && self.maxs.is_empty()
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("no space left for the volume's names")]
    Full,
    /// What is stored is not what was written; `fsck` says more.
    #[error("the volume's names are damaged: {0}")]
    Damaged(String),
    /// The log in front of the engine lost something that was durable; nothing was changed. `fsck --salvage` brings in the rest.
    #[error("the log of the volume's names is damaged: {0}")]
    DamagedLog(String),
    /// The engine cannot be reached or refused; nothing is known to have changed.
    #[error("the volume's names cannot be reached: {0}")]
    Unavailable(String),
}

/// What became of a commit.
#[derive(Debug)]
pub enum CommitError {
    /// Nothing was changed. The rows whose checks failed, as they are now; and whether a range was not empty.
    Conflict {
        /// Fresh values.
        rows: Vec<(Key, Option<Value>)>,
        /// A range that should have been empty was not.
        not_empty: bool,
    },
    /// See [`StoreError`].
    Store(StoreError),
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> Self {
        CommitError::Store(error)
    }
}

/// All rows as they were at one moment, whatever was committed since. It is for reading much and costs the store room as long as it
/// lives, so it should not live long.
pub trait Snapshot: Send {
    /// One row.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError>;

    /// Calls `each` with the rows of a range, in key order, until it answers false.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn each(&self, range: &KeyRange, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError>;
}

/// Rows of a scan, in key order.
pub type Rows = Vec<(Key, Value)>;

/// An engine, or the journal in front of one.
pub trait MetaStore: Send + Sync {
    /// One row.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError>;

    /// Whether [`get`](MetaStore::get) would answer without waiting for another machine. Quick.
    fn is_at_hand(&self, key: &Key) -> bool;

    /// Several rows as of one moment, in the order asked.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError>;

    /// At most `limit` rows of a range, in key order, as of one moment.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError>;

    /// Applies a change whose checks hold.
    ///
    /// # Errors
    /// `Conflict` if one does not; see [`CommitError`].
    fn commit(&self, commit: Commit) -> Result<(), CommitError>;

    /// Makes everything committed before survive a power cut, and the fresh data that it mentions.
    ///
    /// # Errors
    /// See [`StoreError`]. Nothing is then known of what is durable.
    fn flush(&self) -> Result<(), StoreError>;

    /// The rows as of now, to be read at leisure: everything committed before this call, and of what is committed
    /// meanwhile a prefix. Commits go on.
    ///
    /// # Errors
    /// See [`StoreError`]; a store that has no snapshots says so.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Err(StoreError::Unavailable("this store gives no snapshots".to_owned()))
    }
}
