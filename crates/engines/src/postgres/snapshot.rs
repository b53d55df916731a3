//! A snapshot: a connection of its own, inside a transaction that sees the rows as of its beginning.
//!
//! The server keeps the old versions of rows that it may read, so keep it short.

use std::time::Duration;

use meta::key::{Key, KeyRange};
use meta::store::{Snapshot, StoreError, Value};
use parking_lot::Mutex;
use tokio_postgres::types::Type;

use super::commit::unread;
use super::link::{Door, Link};
use super::{GET, SCAN};

/// A statement after `begin` fixes the moment.
const BEGIN: &str = "begin isolation level repeatable read read only; select 1 from covey_schema";
/// So many rows are fetched at first, and so many at a time after that.
const PAGE_FIRST: i64 = 1_024;
const PAGE: i64 = 4_096;

/// See the module.
pub(super) struct PgSnapshot {
    volume: i32,
    link: Mutex<Link>,
    /// The limit of each request.
    limit: Duration,
}

impl PgSnapshot {
    /// A snapshot of what the database holds now.
    pub(super) fn take(door: &Door, volume: i32, limit: Duration) -> Result<PgSnapshot, super::Failure> {
        let mut link = Link::open(door, limit)?;
        link.run(limit, async |client| client.batch_execute(BEGIN).await)?;
        Ok(PgSnapshot { volume, link: Mutex::new(link), limit })
    }
}

impl Snapshot for PgSnapshot {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        let key = key.as_bytes();
        let row = self.link.lock().run(self.limit, async |client| {
            client.query_typed_opt(GET, &[(&self.volume, Type::INT4), (&key, Type::BYTEA)]).await
        });
        let row = row.map_err(super::Failure::into_store)?;
        row.map(|row| row.try_get::<_, &[u8]>(0).map(Value::from)).transpose().map_err(unread)
    }

    fn each(&self, range: &KeyRange, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError> {
        let (mut from, end) = (range.start.clone(), range.end.as_bytes());
        // The caller may want only a few.
        let mut page = PAGE_FIRST;
        while from.as_bytes() < end {
            let start = from.as_bytes();
            let rows = self.link.lock().run(self.limit, async |client| {
                let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] = [
                    (&self.volume, Type::INT4),
                    (&start, Type::BYTEA),
                    (&end, Type::BYTEA),
                    (&page, Type::INT8),
                ];
                client.query_typed(SCAN, &args).await
            });
            let rows = rows.map_err(super::Failure::into_store)?;
            for row in &rows {
                let (key, value) = (row.try_get(0).map_err(unread)?, row.try_get(1).map_err(unread)?);
                if !each(key, value) {
                    return Ok(());
                }
            }
            let Some(last) = rows.last().filter(|_| rows.len() as i64 == page) else { break };
            from = Key::from_bytes(last.try_get(0).map_err(unread)?).successor();
            page = PAGE;
        }
        Ok(())
    }
}
