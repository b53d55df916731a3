//! A snapshot: a revision of etcd, which keeps the rows as they were then until it compacts them.
//!
//! A cluster compacts by itself, often everything that is older than five minutes. A read of a revision that
//! is gone is an error that says so.

use meta::key::{Key, KeyRange};
use meta::store::{Snapshot, StoreError, Value};

use super::layout::Layout;
use super::pool::Pool;
use super::request::{Ask, look, single};

/// So many rows are fetched at first, and so many at a time after that. etcd counts the rest of the range for
/// each page, so pages are large.
const PAGE_FIRST: usize = 1_024;
const PAGE: usize = 8_192;

/// See the module.
pub(super) struct Revision {
    pub(super) pool: Pool,
    pub(super) layout: Layout,
    pub(super) at: i64,
}

impl Revision {
    fn read(&self, ask: Ask) -> Result<Vec<etcd_client::KeyValue>, StoreError> {
        let (_, mut rows) = look(&self.pool, &[ask], self.at)?;
        Ok(rows.pop().unwrap_or_default())
    }
}

impl Snapshot for Revision {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        let rows = self.read(Ask::Key(self.layout.row(key)))?;
        Ok(single(&rows).map(|row| row.value().into()))
    }

    fn each(&self, range: &KeyRange, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError> {
        let mut rest = range.clone();
        // The caller may want only a few.
        let mut page = PAGE_FIRST;
        while rest.start < rest.end {
            let rows = self.read(Ask::Span(self.layout.span(&rest), page))?;
            for row in &rows {
                if !each(self.layout.key_of(row.key()).as_bytes(), row.value()) {
                    return Ok(());
                }
            }
            let Some(last) = rows.last().filter(|_| rows.len() == page) else { break };
            rest.start = self.layout.key_of(last.key()).successor();
            page = PAGE;
        }
        Ok(())
    }
}
