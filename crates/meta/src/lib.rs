//! Names: directories, inodes, attributes, and which extents make up a file.
//!
//! Three layers:
//!
//! ```text
//!   names      runs an operation: read what the plan needs, plan, commit; on a conflict, again
//!   plan       what an operation means: pure, no I/O, no clock, no randomness
//!   store      the trait of the engines: rows under ordered keys, conditional commits
//!     engine/memory, engine/sqlite, and the databases of the crate `engines`
//!                engines; journal (overlay + redo log) stands in front of SQLite
//! ```
//!
//! [`quota`] is what a directory may hold, [`trash`] what was removed and can come back. [`shared`] and
//! [`lease`] are what a node of a shared volume puts in front of an engine. [`key`] and [`record`] define the
//! bytes of a row. docs/FORMAT.md describes them. [`audit`] checks that the rows agree with one another, for
//! `covey fsck`.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod audit;
pub mod engine;
pub mod journal;
pub mod key;
pub mod lease;
pub mod names;
pub mod plan;
pub mod quota;
pub mod record;
pub mod shared;
pub mod store;
pub mod trash;

pub use engine::{Memory, Sqlite};
pub use journal::Journal;
pub use key::Key;
pub use names::{Names, NamesError};
pub use record::{Dentry, InodeRecord, PackRow};
pub use store::{Commit, Expect, MetaStore, Snapshot, Value};
