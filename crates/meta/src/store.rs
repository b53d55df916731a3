//! The trait below the planner: rows under ordered keys, read singly or in ranges, changed by conditional
//! commits.
//!
//! An engine knows nothing of files. It promises:
//!
//! - **Atomic, ordered commits.** A commit is applied whole or not at all, after every commit that returned
//!   before it began.
//! - **Conflicts carry the fresh values**, so that a retry need not read.
//! - **[`MetaStore::flush`]**: what was committed before it began survives a power cut once it returns. A
//!   commit alone survives a kill of the process (engines on disk).
//!
//! Checks compare values, not versions. The planner is a function of the values, so equal values mean an
//! equal plan.

use std::sync::Arc;
use std::time::Duration;

use base::PackNo;

use crate::key::{Key, KeyRange};

/// A row's value. Cheap to clone.
pub type Value = Arc<[u8]>;

/// What a commit expects of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The row has exactly this value.
    Is(Value),
    /// The row is absent.
    Absent,
    /// The row is present, with any value. Any number of commits may share this check.
    Exists,
}

/// Bytes of an open pack that a commit is the first to mention. A journal uses it to know what must be
/// durable with the commit. After a crash it uses it to find out whether it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshData {
    /// The pack.
    pub pack: PackNo,
    /// The offset of the bytes in the pack.
    pub offset: u32,
    /// The number of bytes.
    pub len: u32,
    /// The CRC32C of the bytes.
    pub crc: u32,
}

/// A place in a shared volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The node's number in the volume, from 1.
    pub number: i64,
    /// How often the node has joined.
    pub epoch: i64,
}

/// A change: applied if every check holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The expected values of single rows.
    pub checks: Vec<(Key, Expect)>,
    /// Ranges that must hold no row.
    pub empty: Vec<KeyRange>,
    /// Rows to write. A key occurs at most once in `puts`, `dels`, `adds` and `maxs` together.
    pub puts: Vec<(Key, Value)>,
    /// Rows to remove. An absent one is not an error.
    pub dels: Vec<Key>,
    /// Signed 64-bit big-endian counters to add to; an absent one counts as 0. A sum of 0 removes the row.
    pub adds: Vec<(Key, i64)>,
    /// Unsigned 64-bit big-endian values to raise; an absent one counts as 0.
    pub maxs: Vec<(Key, u64)>,
    /// Bytes that the rows mention for the first time.
    pub fresh: Vec<FreshData>,
    /// The session in which it was decided: a store that has another one by now refuses it. `None`: the one
    /// that the store has when it gets the commit. An engine of one node has no sessions.
    pub session: Option<Session>,
}

impl Commit {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.dels.is_empty() && self.adds.is_empty() && self.maxs.is_empty()
    }
}

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("no space left for the volume's names")]
    Full,
    /// The database of a shared volume has no space. Nothing was changed, and it can still be read. The words
    /// name the server and say what to do.
    #[error("{NO_SPACE}: {0}")]
    NoSpace(String),
    /// What is stored differs from what was written; `fsck` gives details.
    #[error("the volume's names are damaged: {0}")]
    Damaged(String),
    /// The log in front of the engine lost something durable; nothing was changed. `fsck --salvage` recovers
    /// the rest.
    #[error("the log of the volume's names is damaged: {0}")]
    DamagedLog(String),
    /// The engine is unreachable or refused; nothing is known to have changed.
    #[error("the volume's names cannot be reached: {0}")]
    Unavailable(String),
    /// The answer takes longer than this thread may wait ([`base::thread::may_wait`]). Nothing was changed:
    /// ask again on another thread.
    #[error("this must be asked on a thread that may wait")]
    Waits,
    /// The node lost its place in the volume: its session expired, or another process took it over. Nothing
    /// was changed, and no later change of this node is accepted.
    #[error("this node may no longer change the volume: {0}")]
    Fenced(String),
}

/// How the words of [`StoreError::NoSpace`] begin.
const NO_SPACE: &str = "the volume's database has no space";

impl StoreError {
    /// The failure that another node has met, if what it answered says that the database has no space.
    pub fn no_space_in(answer: &str) -> Option<StoreError> {
        let (_, why) = answer.split_once(NO_SPACE)?;
        Some(StoreError::NoSpace(why.trim_start_matches(": ").to_owned()))
    }
}

/// Asks whether the work of this thread may still change something ([`base::Deadline::current`]). After its
/// time the caller was answered an error, and may have changed the same since.
///
/// # Errors
/// The time is over.
pub(crate) fn in_time() -> Result<(), StoreError> {
    match base::Deadline::current().is_over() {
        false => Ok(()),
        true => Err(StoreError::Unavailable("the time for this operation is over".to_owned())),
    }
}

/// Why a commit was not applied.
#[derive(Debug)]
pub enum CommitError {
    /// Nothing was changed. Holds the present values of the rows whose checks failed, and whether a range was
    /// not empty.
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

/// How large a commit should be. A larger one may take the store longer, or be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many rows it writes.
    pub rows: usize,
    /// The bytes of their keys and values.
    pub bytes: usize,
    /// How many rows it rests on: those that it checks, and the counters that it adds to.
    pub checks: usize,
}

impl Limit {
    /// Any size.
    pub const NONE: Limit = Limit { rows: usize::MAX, bytes: usize::MAX, checks: usize::MAX };
}

/// All rows as they were at one moment, whatever was committed since. It is for bulk reads. It costs the
/// store space as long as it lives, so keep it short.
pub trait Snapshot: Send {
    /// One row.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError>;

    /// Calls `each` with the rows of a range, in key order, until it returns false.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn each(&self, range: &KeyRange, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError>;
}

/// Rows of a scan, in key order.
pub type Rows = Vec<(Key, Value)>;

/// The result of [`MetaStore::look`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// The rows, in the order of their keys.
    pub rows: Vec<Option<Value>>,
    /// The rows of each range.
    pub ranges: Vec<Rows>,
}

/// The result of [`MetaStore::get_linked`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linked {
    /// The row that was followed.
    pub from: Option<Value>,
    /// The rows that were asked for beside it, in their order.
    pub also: Vec<Option<Value>>,
    /// The rows that it leads to, in the order of the tags. All absent if the first row is.
    pub linked: Vec<Option<Value>>,
}

/// The keys that a row leads to: each tag, followed by the first 8 bytes of the row's value.
pub fn linked_keys(value: &[u8], tags: &[u8]) -> Vec<Key> {
    let id = value.get(..8).unwrap_or_default();
    tags.iter().map(|tag| Key::from_bytes(&[&[*tag], id].concat())).collect()
}

/// An engine, or the journal in front of one.
pub trait MetaStore: Send + Sync {
    /// One row.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError>;

    /// Whether [`get`](MetaStore::get) would return without waiting for another machine. This call itself
    /// does not block.
    fn is_at_hand(&self, key: &Key) -> bool;

    /// Whether a commit that writes this row would return without waiting for another machine. This call
    /// itself does not block.
    fn is_changeable(&self, key: &Key) -> bool {
        self.is_at_hand(key)
    }

    /// Several rows as of one moment, in the order of `keys`.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError>;

    /// Reads several rows as [`get_many`](MetaStore::get_many) does, but as the engine has them: no lease is
    /// taken for them, and changes that are not stored yet are not seen. So whatever is decided by these rows
    /// must be checked again by the commit.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn peek(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.get_many(keys)
    }

    /// Which of these inodes this node may change without disturbing another one: no other node has the
    /// lease, or the lease has not changed hands for `quiet`. It may be otherwise right afterwards.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn are_free(&self, inos: &[base::Ino], _quiet: Duration) -> Result<Vec<bool>, StoreError> {
        Ok(vec![true; inos.len()])
    }

    /// The row `from`, some others, and the rows whose keys are one of `tags` followed by the first 8 bytes
    /// of the value of `from`. An engine on another machine gives all of it in one round trip, as of one
    /// moment.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        let first: Vec<Key> = std::iter::once(from).chain(also).cloned().collect();
        let mut rows = self.get_many(&first)?.into_iter();
        let from = rows.next().flatten();
        let linked = match &from {
            Some(value) => self.get_many(&linked_keys(value, tags))?,
            None => vec![None; tags.len()],
        };
        Ok(Linked { from, also: rows.collect(), linked })
    }

    /// At most `limit` rows of a range, in key order, as of one moment.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError>;

    /// Several rows, and at most `limit` rows of each of these ranges, in their order. An engine on another
    /// machine gives all of it in one round trip, as of one moment.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn look(&self, keys: &[Key], ranges: &[KeyRange], limit: usize) -> Result<Looked, StoreError> {
        let rows = self.get_many(keys)?;
        let ranges = ranges.iter().map(|range| self.scan(range, limit)).collect::<Result<_, _>>()?;
        Ok(Looked { rows, ranges })
    }

    /// Reads ahead what is asked of the directories in this one, if the store is on another machine.
    ///
    /// # Errors
    /// See [`StoreError`]. Nothing depends on it.
    fn prefetch(&self, _: base::Ino) -> Result<(), StoreError> {
        Ok(())
    }

    /// Applies a change whose checks hold.
    ///
    /// # Errors
    /// `Conflict` if one does not; see [`CommitError`].
    fn commit(&self, commit: Commit) -> Result<(), CommitError>;

    /// The session of this node, if the store is shared and has joined.
    fn current_session(&self) -> Option<Session> {
        None
    }

    /// How large a commit that joins several changes should be.
    fn commit_limit(&self) -> Limit {
        Limit::NONE
    }

    /// Makes everything committed before it survive a power cut, with the fresh data that it mentions.
    ///
    /// # Errors
    /// See [`StoreError`]. It is then unknown what is durable.
    fn flush(&self) -> Result<(), StoreError>;

    /// Whether acknowledged changes of an inode were lost since this was asked last: the session in which
    /// they were made has ended.
    fn take_lost(&self, _: base::Ino) -> bool {
        false
    }

    /// The rows as of now, for a long read: everything committed before this call, and a prefix of what is
    /// committed during it. Commits continue.
    ///
    /// # Errors
    /// See [`StoreError`]. A store without snapshots returns an error.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Err(StoreError::Unavailable("this store gives no snapshots".to_owned()))
    }
}
