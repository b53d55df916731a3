//! The door of a database file: is it one, is it ours, is it whole; and what an error of SQLite's means to a person.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, ffi, params};

use super::{APPLICATION_ID, CHECKPOINT_PAGES, FORMAT, WAL_KEPT, truncate_wal};
use crate::store::StoreError;

/// A database file on its way to being opened.
pub(super) struct Door<'a> {
    pub(super) path: &'a Path,
}

impl Door<'_> {
    /// What an error means: few kinds, chosen by what is done next.
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
            (ErrorCode::DiskFull, _) => StoreError::Full,
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

    /// The file is not what was written. `what` goes on after its name.
    pub(super) fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged(format!(
            "{} {what}. Do not write to the volume: keep a copy of its folder, run `covey fsck` on it, and bring the file back from a backup if that cannot repair it",
            self.path.display()
        ))
    }

    /// Checks whose database it is, makes its tables if it has none, and that it is whole. Returns the log's id.
    pub(super) fn prepare(&self, writer: &mut Connection) -> Result<[u8; 16], StoreError> {
        self.check_owner(writer)?;
        let setup = |writer: &Connection| {
            writer.pragma_update(None, "journal_mode", "wal")?;
            writer.pragma_update(None, "synchronous", "full")?;
            writer.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
            writer.pragma_update(None, "journal_size_limit", WAL_KEPT as i64)
        };
        setup(writer).map_err(|error| self.error(error))?;
        self.make_tables(writer).map_err(|error| self.error(error))?;
        self.check_whole(writer)?;
        let id: Vec<u8> = writer
            .query_row("select id from log where one = 1", [], |row| row.get(0))
            .map_err(|error| self.error(error))?;
        id.try_into().map_err(|_| self.damaged("has a log of an unknown kind"))
    }

    fn check_owner(&self, writer: &Connection) -> Result<(), StoreError> {
        let number = |name: &str| writer.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let error = |error| self.error(error);
        let tables: i64 =
            writer.query_row("select count(*) from sqlite_schema", [], |row| row.get(0)).map_err(error)?;
        let (owner, format) =
            (number("application_id").map_err(error)?, number("user_version").map_err(error)?);
        if tables == 0 && owner == 0 && format == 0 {
            return Ok(());
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
        Ok(())
    }

    fn make_tables(&self, writer: &mut Connection) -> Result<(), rusqlite::Error> {
        // A whole database in one transaction: after a crash it is there with everything or not at all.
        let tx = writer.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.execute_batch(
            "create table if not exists kv(k blob primary key, v blob not null) without rowid;
             create table if not exists log(one integer primary key check (one = 1), id blob not null, segment integer not null, seq integer not null);",
        )?;
        tx.execute(
            "insert or ignore into log values(1, ?1, 0, 0)",
            params![base::random::id16().as_slice()],
        )?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", FORMAT)?;
        tx.commit()
    }

    /// A file that was cut short is noticed here, not weeks later when a row at its end is asked for.
    fn check_whole(&self, writer: &Connection) -> Result<(), StoreError> {
        // After this every page is in the file itself, if no other program reads it at this moment.
        truncate_wal(writer).map_err(|error| self.error(error))?;
        let number = |name: &str| writer.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let whole = number("page_count").and_then(|pages| Ok(pages as u64 * number("page_size")? as u64));
        let whole = whole.map_err(|error| self.error(error))?;
        let there = self.path.metadata().map_or(0, |meta| meta.len());
        if there < whole && !super::wal_path(self.path).metadata().is_ok_and(|meta| meta.len() > 0) {
            return Err(self.damaged(&format!("is cut short: {there} of {whole} bytes")));
        }
        Ok(())
    }
}
