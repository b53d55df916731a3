//! Checks when a database file is opened: is it a database, is it Covey's, is it whole. Also turns SQLite's
//! errors into messages.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, ffi, params};

use super::{APPLICATION_ID, FORMAT, WAL_KEPT, truncate_wal};
use crate::store::StoreError;

/// A database file that is being opened.
pub(super) struct DatabaseFile<'a> {
    pub(super) path: &'a Path,
}

impl DatabaseFile<'_> {
    /// Classifies an error. There are few kinds, chosen by what the caller does next.
    pub(super) fn error(&self, error: rusqlite::Error) -> StoreError {
        let path = self.path.display();
        let rusqlite::Error::SqliteFailure(cause, _) = &error else {
            return match error {
                // A row that is not what the tables' definitions promise.
                rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::QueryReturnedNoRows => {
                    self.damaged(&format!("holds rows of an unknown shape ({error})"))
                }
                other => StoreError::Unavailable(format!("{path}: {other}")),
            };
        };
        match (cause.code, cause.extended_code) {
            // The second: no space for the index of its log, a file beside it.
            (ErrorCode::DiskFull, _) | (_, ffi::SQLITE_IOERR_SHMSIZE) => StoreError::Full,
            (ErrorCode::NotADatabase, _) => self.damaged("is not a database"),
            (ErrorCode::DatabaseCorrupt, _)
            | (_, ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_CORRUPTFS) => {
                self.damaged(&format!("is damaged ({error})"))
            }
            (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => StoreError::Unavailable(format!(
                "{path} is locked by another program; close it (`fuser -v {path}` shows which) and try again"
            )),
            (ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly, _) => {
                StoreError::Unavailable(format!(
                    "{path} cannot be opened for writing ({error}); check that its folder exists and that you may write to it"
                ))
            }
            _ => StoreError::Unavailable(format!(
                "{path}: {error}; check the disk (`dmesg`), then mount again"
            )),
        }
    }

    /// The file's content is wrong. `what` continues the sentence after the file's name.
    pub(super) fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged(format!(
            "{} {what}. Do not write to the volume: keep a copy of its folder, run `covey fsck` on it, and bring the file back from a backup if that cannot repair it",
            self.path.display()
        ))
    }

    /// Checks that the file is whole and Covey's, and creates the tables of a new one. Returns the log's id.
    pub(super) fn prepare(&self, writer: &mut Connection) -> Result<[u8; 16], StoreError> {
        // Before anything is written: SQLite would extend a truncated file to its old length, with zeros.
        self.check_whole()?;
        let is_new = self.check_owner(writer)?;
        let setup = |writer: &Connection| {
            writer.pragma_update(None, "journal_mode", "wal")?;
            writer.pragma_update(None, "synchronous", "full")?;
            writer.pragma_update(None, "wal_autocheckpoint", 0)?;
            writer.pragma_update(None, "journal_size_limit", WAL_KEPT as i64)
        };
        setup(writer).map_err(|error| self.error(error))?;
        if is_new {
            self.make_tables(writer).map_err(|error| self.error(error))?;
        }
        truncate_wal(writer).map_err(|error| self.error(error))?;
        let id: Vec<u8> = writer
            .query_row("select id from log where one = 1", [], |row| row.get(0))
            .map_err(|error| self.error(error))?;
        id.try_into().map_err(|_| self.damaged("has a log of an unknown kind"))
    }

    /// Whether it is new. An error if it belongs to another program.
    fn check_owner(&self, writer: &Connection) -> Result<bool, StoreError> {
        let number = |name: &str| writer.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let error = |error| self.error(error);
        let tables: i64 =
            writer.query_row("select count(*) from sqlite_schema", [], |row| row.get(0)).map_err(error)?;
        let (owner, format) =
            (number("application_id").map_err(error)?, number("user_version").map_err(error)?);
        if tables == 0 && owner == 0 && format == 0 {
            return Ok(true);
        }
        if owner != APPLICATION_ID {
            return Err(StoreError::Unavailable(format!(
                "{} is another program's database; name the folder of a Covey volume",
                self.path.display()
            )));
        }
        if format != FORMAT {
            return Err(StoreError::Unavailable(format!(
                "{} has format {format} and this program knows {FORMAT}; use the version of covey that wrote it, or a newer one",
                self.path.display()
            )));
        }
        Ok(false)
    }

    fn make_tables(&self, writer: &mut Connection) -> Result<(), rusqlite::Error> {
        // One transaction for the whole database: after a crash it is complete or empty.
        let tx = writer.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.execute_batch(
            "create table kv(k blob primary key, v blob not null) without rowid;
             create table log(one integer primary key check (one = 1), id blob not null, segment integer not null, seq integer not null);",
        )?;
        tx.execute("insert into log values(1, ?1, 0, 0)", params![base::random::id16().as_slice()])?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", FORMAT)?;
        tx.commit()
    }

    /// Notices a truncated file here, not weeks later when a row at its end is read.
    fn check_whole(&self) -> Result<(), StoreError> {
        // With a log beside it, some pages may not be in the file yet. SQLite checks those itself.
        if super::wal_path(self.path).metadata().is_ok_and(|meta| meta.len() > 0) {
            return Ok(());
        }
        let unreadable =
            |error: std::io::Error| StoreError::Unavailable(format!("{}: {error}", self.path.display()));
        let file = match File::open(self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file.map_err(unreadable)?,
        };
        let there = file.metadata().map_err(unreadable)?.len();
        let mut header = [0u8; 32];
        if there > 0 && file.read_exact_at(&mut header, 0).is_ok() && header.starts_with(b"SQLite format 3\0")
        {
            // As in SQLite's description of its file: the page size, where 1 means 65536, and the number of
            // pages.
            let page = u64::from(u16::from_be_bytes([header[16], header[17]]));
            let page = if page == 1 { 65_536 } else { page };
            let pages = u64::from(u32::from_be_bytes([header[28], header[29], header[30], header[31]]));
            if there < page * pages {
                return Err(self.damaged(&format!("is cut short: {there} of {} bytes", page * pages)));
            }
        }
        Ok(())
    }
}
