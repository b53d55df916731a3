//! Rows in SQLite: one table, a write-ahead log, one writer and a few readers.
//!
//! ```text
//!   kv(k blob primary key, v blob not null) without rowid      the rows
//!   log(one = 1, id, segment, seq)                             how far the journal's log is applied
//! ```
//!
//! - **Every transaction is durable when it returns** (`synchronous=FULL`). So [`MetaStore::flush`] has
//!   nothing to do, and the journal may free a log segment once [`Sqlite::apply`] has returned. The journal
//!   handles fresh data.
//! - **The log position changes in the transaction that applies the rows.** So after any crash the rows are
//!   exactly those up to the position.
//! - **A reader keeps its transaction open** until rows change, because beginning and ending one costs as
//!   much as reading a row. A change of rows ends all open transactions before it returns. Nothing else waits
//!   for readers.
//! - Memory is bounded: [`WRITER_CACHE_KIB`] and [`READER_CACHE_KIB`] per connection, and no mapping of the
//!   file. (A mapping counts as the process's memory, and a disk error in it is a signal, not an error.)
//! - SQLite's own log is moved into the database when it has [`CHECKPOINT_PAGES`], by the thread that
//!   applies; readers are not stopped. If readers hold it back past [`WAL_MAX`], that thread waits for them
//!   once. So on a full disk it is noticed at once that the database cannot grow, not only when the log has
//!   used up the free space.

mod errors;
mod snapshot;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::resolve;
use crate::key::{Key, KeyRange};
use crate::store::{Commit, CommitError, MetaStore, Rows, Snapshot, StoreError, Value};
use errors::DatabaseFile;

/// The file header's mark of a Covey database: "Covy".
const APPLICATION_ID: i32 = 0x436F_7679;
/// The version of the two tables.
const FORMAT: i32 = 1;
/// Page cache of the connection that writes, in KiB.
const WRITER_CACHE_KIB: u32 = 8 << 10;
/// Page cache of each connection that reads, in KiB.
const READER_CACHE_KIB: u32 = 2 << 10;
/// How many connections read.
const READERS: usize = 4;
/// SQLite's log is moved into the database when it has this many pages of 4 KiB: 4 MiB.
const CHECKPOINT_PAGES: i64 = 1024;
/// SQLite's log is truncated to this size when it restarts, in bytes.
const WAL_KEPT: u64 = 16 << 20;
/// With a log of this size, in bytes, the writer waits for readers so that the log can restart.
const WAL_MAX: u64 = 128 << 20;
/// How long to wait for a lock of the file that another program (such as `sqlite3`) holds.
const BUSY: Duration = Duration::from_secs(5);

const GET: &str = "select v from kv where k = ?1";
const SCAN: &str = "select k, v from kv where k >= ?1 and k < ?2 order by k";
const LAST: &str = "select k from kv where k >= ?1 and k < ?2 order by k desc limit 1";
const PUT: &str = "insert into kv(k, v) values(?1, ?2) on conflict(k) do update set v = excluded.v";
const DELETE: &str = "delete from kv where k = ?1";
const POSITION: &str = "update log set segment = ?1, seq = ?2 where one = 1";

/// Up to where a journal's log is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Segments of the log with a lower number are finished, whatever they hold.
    pub segment: u64,
    /// The last record whose rows are here.
    pub seq: u64,
}

/// Rows in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    log_id: [u8; 16],
    readers: Vec<Mutex<Connection>>,
    /// Declared after the readers, so that it is closed last: the last connection to close moves SQLite's log
    /// into the database.
    writer: Mutex<Connection>,
    next_reader: AtomicUsize,
    /// Snapshots in use. SQLite's log cannot restart while there are any.
    snapshots: Arc<AtomicUsize>,
}

impl Sqlite {
    /// Opens the database at `path`. Creates it if the file is missing, or empty (a crash during creation
    /// leaves an empty file).
    ///
    /// # Errors
    /// `Damaged` for a file that is not a database of this program, or is truncated. `Unavailable` for one of
    /// a newer format, and when the system refuses. The message says what to do next.
    pub fn open(path: &Path) -> Result<Sqlite, StoreError> {
        let file = DatabaseFile { path };
        let writer = connect(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            WRITER_CACHE_KIB,
        );
        let mut writer = writer.map_err(|error| file.error(error))?;
        let log_id = file.prepare(&mut writer)?;
        let readers = (0..READERS).map(|_| {
            let reader = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, READER_CACHE_KIB);
            reader.map(Mutex::new).map_err(|error| file.error(error))
        });
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        Ok(Sqlite {
            path: path.to_owned(),
            log_id,
            writer: Mutex::new(writer),
            readers,
            next_reader: AtomicUsize::new(0),
            snapshots: Arc::default(),
        })
    }

    /// Writes final values (none: the row is removed) and the log position that they belong to, in one
    /// durable transaction. Until it returns, one reader may see the new rows and the next reader the old
    /// ones. The journal's overlay hides them that long.
    ///
    /// # Errors
    /// See [`StoreError`]: all of it was written, or nothing. Exception: `Full` is also returned if
    /// everything was written and the disk has no space for the database to grow by what its log holds. See
    /// [`Sqlite::checkpoint`].
    pub fn apply<'a>(
        &self,
        rows: impl IntoIterator<Item = (&'a Key, &'a Option<Value>)>,
        position: Position,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        self.transaction(&mut writer, |tx| {
            write(tx, rows)?;
            let (segment, seq) = (position.segment as i64, position.seq as i64);
            tx.prepare_cached(POSITION)?.execute(params![segment, seq]).map(drop)
        })?;
        drop(self.idle_readers()?);
        self.limit_wal(&writer)
    }

    /// The log position of the rows.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn applied(&self) -> Result<Position, StoreError> {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let row = self.writer.lock().query_row("select segment, seq from log where one = 1", [], read);
        let (segment, seq) = row.map_err(|error| self.error(error))?;
        Ok(Position { segment: segment as u64, seq: seq as u64 })
    }

    /// The id that marks the segments of this database's log: random, created with the database.
    pub fn log_id(&self) -> [u8; 16] {
        self.log_id
    }

    /// Moves SQLite's log into the database and empties it.
    ///
    /// # Errors
    /// See [`StoreError`]. If readers prevent it, that is not an error.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        let writer = self.writer.lock();
        let _idle = self.idle_readers()?;
        truncate_wal(&writer).map_err(|error| self.error(error))
    }

    /// Bytes on disk: the database and its log.
    pub fn disk_bytes(&self) -> u64 {
        let len = |path: &Path| path.metadata().map_or(0, |meta| meta.len());
        len(&self.path) + len(&wal_path(&self.path))
    }

    /// Free bytes inside the database, left by removed rows. New rows use them before the file grows.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn free_bytes(&self) -> Result<u64, StoreError> {
        let writer = self.writer.lock();
        let number = |name: &str| writer.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let free = number("freelist_count").and_then(|pages| Ok(pages * number("page_size")?));
        free.map(|bytes| bytes as u64).map_err(|error| self.error(error))
    }

    /// Checks the whole file for damage: pages, their order, keys. Returns SQLite's messages; none if the
    /// file is sound. Reads everything once: for `fsck`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn integrity(&self) -> Result<Vec<String>, StoreError> {
        let reader = self.reader()?;
        let found = (|| {
            let mut statement = reader.prepare("pragma integrity_check(100)")?;
            statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()
        })();
        match found.map_err(|error| self.error(error)) {
            Ok(lines) => Ok(lines.into_iter().filter(|line| line != "ok").collect()),
            Err(StoreError::Damaged(what)) => Ok(vec![what]),
            Err(other) => Err(other),
        }
    }

    /// Calls `each` with the rows of a range, in key order and as of one moment, until it returns false.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn each(&self, range: &KeyRange, each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError> {
        if range.start >= range.end {
            return Ok(());
        }
        each_row(&*self.reader()?, range, each).map_err(|error| self.error(error))
    }

    /// The last key of a range that has a row.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn last_key(&self, range: &KeyRange) -> Result<Option<Key>, StoreError> {
        let reader = self.reader()?;
        let bounds = params![range.start.as_bytes(), range.end.as_bytes()];
        let found = reader.query_row(LAST, bounds, |row| Ok(Key::from_bytes(row.get_ref(0)?.as_blob()?)));
        found.optional().map_err(|error| self.error(error))
    }

    /// Rows as of one moment.
    pub(crate) fn read_rows(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, StoreError> {
        let reader = self.reader()?;
        keys.iter().map(|key| read(&reader, key)).collect::<Result<_, _>>().map_err(|error| self.error(error))
    }

    /// Limits the database to this many pages, or its present size if that is more. To SQLite that is a full
    /// disk.
    #[cfg(test)]
    pub(crate) fn limit_pages(&self, pages: i64) {
        self.writer.lock().pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
    }

    fn error(&self, error: rusqlite::Error) -> StoreError {
        DatabaseFile { path: &self.path }.error(error)
    }

    /// A free connection; if all are in use, the next one in turn. It is inside a transaction: what it reads
    /// is of one moment.
    fn reader(&self) -> Result<MutexGuard<'_, Connection>, StoreError> {
        let free = self.readers.iter().find_map(|reader| reader.try_lock());
        let reader = free.unwrap_or_else(|| {
            let turn = self.next_reader.fetch_add(1, Ordering::Relaxed);
            self.readers[turn % self.readers.len()].lock()
        });
        if reader.is_autocommit() {
            reader.execute_batch("begin").map_err(|error| self.error(error))?;
        }
        Ok(reader)
    }

    fn read_once<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, StoreError> {
        let reader = self.reader()?;
        let done = work(&reader);
        let ended = if reader.is_autocommit() { Ok(()) } else { reader.execute_batch("commit") };
        done.and_then(|done| ended.map(|()| done)).map_err(|error| self.error(error))
    }

    /// Locks all readers and ends their transactions, so that later reads see the present rows.
    fn idle_readers(&self) -> Result<Vec<MutexGuard<'_, Connection>>, StoreError> {
        let readers: Vec<_> = self.readers.iter().map(|reader| reader.lock()).collect();
        for reader in readers.iter().filter(|reader| !reader.is_autocommit()) {
            reader.execute_batch("commit").map_err(|error| self.error(error))?;
        }
        Ok(readers)
    }

    fn transaction<T>(
        &self,
        writer: &mut Connection,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, StoreError> {
        let run = || {
            // Rolls back when dropped before the commit.
            let tx = writer.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let done = work(&tx)?;
            tx.commit()?;
            Ok(done)
        };
        run().map_err(|error| self.error(error))
    }

    /// Keeps SQLite's log short.
    fn limit_wal(&self, writer: &Connection) -> Result<(), StoreError> {
        let waiting = |mode: &str| {
            let count = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
            writer
                .query_row(&format!("pragma wal_checkpoint({mode})"), [], count)
                .map(|(all, moved)| all - moved)
        };
        let run = || {
            if waiting("noop")? >= CHECKPOINT_PAGES {
                waiting("passive")?;
            }
            Ok(())
        };
        run().map_err(|error| self.error(error))?;
        // With a snapshot open it would wait in vain, and block all readers meanwhile.
        let may_begin_anew = self.snapshots.load(Ordering::Acquire) == 0;
        if may_begin_anew && wal_path(&self.path).metadata().is_ok_and(|meta| meta.len() > WAL_MAX) {
            let _idle = self.idle_readers()?;
            truncate_wal(writer).map_err(|error| self.error(error))?;
        }
        Ok(())
    }
}

fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

fn connect(path: &Path, how: OpenFlags, cache_kib: u32) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open_with_flags(path, how | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(16);
    connection.pragma_update(None, "cache_size", -i64::from(cache_kib))?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    Ok(connection)
}

fn truncate_wal(writer: &Connection) -> Result<(), rusqlite::Error> {
    writer.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
}

fn write<'a>(
    tx: &Connection,
    rows: impl IntoIterator<Item = (&'a Key, &'a Option<Value>)>,
) -> Result<(), rusqlite::Error> {
    let mut put = tx.prepare_cached(PUT)?;
    let mut delete = tx.prepare_cached(DELETE)?;
    for (key, value) in rows {
        match value {
            Some(value) => put.execute(params![key.as_bytes(), &**value])?,
            None => delete.execute(params![key.as_bytes()])?,
        };
    }
    Ok(())
}

fn read(connection: &Connection, key: &Key) -> Result<Option<Value>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(GET)?;
    statement.query_row(params![key.as_bytes()], |row| Ok(Arc::from(row.get_ref(0)?.as_blob()?))).optional()
}

fn each_row(
    connection: &Connection,
    range: &KeyRange,
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), rusqlite::Error> {
    let mut statement = connection.prepare_cached(SCAN)?;
    let mut rows = statement.query(params![range.start.as_bytes(), range.end.as_bytes()])?;
    while let Some(row) = rows.next()? {
        if !each(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?) {
            break;
        }
    }
    Ok(())
}

/// Without a journal in front, a reader must never see older rows after newer ones. So here each read is a
/// transaction of its own.
impl MetaStore for Sqlite {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.read_once(|reader| read(reader, key))
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        true
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.read_once(|reader| keys.iter().map(|key| read(reader, key)).collect())
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        let mut rows = Rows::new();
        if limit == 0 || range.start >= range.end {
            return Ok(rows);
        }
        self.read_once(|reader| {
            each_row(reader, range, |key, value| {
                rows.push((Key::from_bytes(key), value.into()));
                rows.len() < limit
            })
        })?;
        Ok(rows)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        let mut writer = self.writer.lock();
        let tx = writer.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate);
        let tx = tx.map_err(|error| self.error(error))?;
        let one = |key: &Key| read(&tx, key).map_err(|error| self.error(error));
        let occupied = |range: &KeyRange| {
            let mut any = false;
            let found = each_row(&tx, range, |_, _| {
                any = true;
                false
            });
            found.map(|()| any).map_err(|error| self.error(error))
        };
        let rows = resolve(commit, one, occupied)?;
        let done = write(&tx, rows.iter().map(|(key, value)| (key, value)));
        done.and_then(|()| tx.commit()).map_err(|error| self.error(error))?;
        // The commit is done. If this step fails, the next commit meets the same error.
        let _ = self.limit_wal(&writer);
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(snapshot::SqliteSnapshot::take(&self.path, self.snapshots.clone())?))
    }
}
