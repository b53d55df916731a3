//! A snapshot of the database: a separate connection whose transaction stays open while others write.
//!
//! SQLite's log keeps what the snapshot needs, so it grows as long as the snapshot lives.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::{Connection, OpenFlags};

use super::errors::DatabaseFile;
use super::{READER_CACHE_KIB, connect, each_row, read};
use crate::key::{Key, KeyRange};
use crate::store::{Snapshot, StoreError, Value};

/// See the module.
pub(super) struct SqliteSnapshot {
    path: PathBuf,
    connection: Connection,
    /// The number of live snapshots.
    count: Arc<AtomicUsize>,
}

impl SqliteSnapshot {
    /// A snapshot of what the database holds now.
    pub(super) fn take(path: &Path, count: Arc<AtomicUsize>) -> Result<SqliteSnapshot, StoreError> {
        let file = DatabaseFile { path };
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, READER_CACHE_KIB);
        let connection = connection.map_err(|error| file.error(error))?;
        // Counted first, so that a writer that checks in between does not wait for it. The first read fixes
        // the moment.
        count.fetch_add(1, Ordering::AcqRel);
        let snapshot = SqliteSnapshot { path: path.to_owned(), connection, count };
        let fixed = snapshot.connection.execute_batch("begin; select segment from log where one = 1");
        fixed.map_err(|error| snapshot.error(error))?;
        Ok(snapshot)
    }

    fn error(&self, error: rusqlite::Error) -> StoreError {
        DatabaseFile { path: &self.path }.error(error)
    }
}

impl Snapshot for SqliteSnapshot {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        read(&self.connection, key).map_err(|error| self.error(error))
    }

    fn each(&self, range: &KeyRange, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError> {
        if range.start >= range.end {
            return Ok(());
        }
        each_row(&self.connection, range, each).map_err(|error| self.error(error))
    }
}

impl Drop for SqliteSnapshot {
    fn drop(&mut self) {
        // Closing the connection, which follows, ends the transaction anyway. Nothing can be lost.
        let _ = self.connection.execute_batch("rollback");
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
