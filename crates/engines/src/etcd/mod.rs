//! Rows in etcd, shared by any number of nodes. [`layout`] says which keys are written.
//!
//! **A commit is one transaction.** Its checks, those of the node's session and of the volume's lock, and all
//! that it writes are one request, whose answer brings the fresh values if a check fails ([`commit`]). A
//! commit that was lost is sent again and not applied twice. It is durable when it returns.
//!
//! **Counters** that are added to are checked to be as they were read or remembered, because etcd cannot add.
//! If only that fails, the commit is sent again with the fresh values. A value that is only raised is
//! compared by the server, inside the transaction.
//!
//! **Large commits.** A transaction has at most 128 checks in a row, and as many operations, but transactions
//! can be nested ([`request`]). So a commit writes thousands of rows at once. One that rests on too many rows
//! takes the volume's lock first ([`locked`]).
//!
//! **Empty ranges** are checked by the transaction itself.
//!
//! **A read is one round trip**, as of one revision, by whichever member of the cluster is asked: it asks the
//! leader first. So a read sees all that was committed before it. Rows that a row leads to
//! ([`MetaStore::get_linked`]) are a second round trip, as of the same revision.
//!
//! etcd keeps every version of a row until it is compacted. So automatic compaction must be turned on.

mod admin;
mod check;
mod commit;
mod errors;
mod incarnation;
mod layout;
mod link;
mod locked;
mod pool;
mod request;
mod secrets;
mod session;
mod snapshot;
mod target;

use std::sync::Arc;

use etcd_client::KeyValue;
use meta::engine::database::Database;
use meta::key::{Key, KeyRange};
use meta::store::{
    Commit, CommitError, Limit, Linked, Looked, MetaStore, Rows, Snapshot, StoreError, Value, linked_keys,
};
use parking_lot::{Mutex, RwLock};

use commit::Values;
use layout::Layout;
use pool::Pool;
use request::{Ask, look, single};
use session::Place;
use snapshot::Revision;

pub use crate::pool::Options;
pub use crate::secrets::Secrets;
pub use meta::engine::database::{
    Checked, Incarnation, Join, Level, Renewed, Session, SessionRow, SetupError,
};
pub use target::{Target, TlsMode};

/// The version of the keys and their values.
pub(crate) const FORMAT: &str = "1";
/// The oldest server.
const SERVER_MIN: (u32, u32) = (3, 4);
/// A longer scan is read in pages.
const SCAN_MAX: usize = 10_000;
/// Commits of this size need no lock and are far below what a request may have by default: 1.5 MiB.
const LIMIT: Limit = Limit { rows: 1_000, bytes: 512 << 10, checks: 48 };

/// Rows of a volume in etcd. See the [module](self). Not for use on threads of a tokio runtime.
pub struct Etcd {
    pool: Pool,
    layout: Layout,
    /// The volume's number in the cluster.
    number: u64,
    uuid: [u8; 16],
    place: RwLock<Option<Place>>,
    /// Identifies the operations of a store without a session: a random name, and its lease.
    own: Mutex<Option<(String, i64)>>,
    /// Counters as they were seen last. Only a guess.
    counters: Mutex<Values>,
}

impl Etcd {
    /// The address.
    pub fn target(&self) -> &Target {
        &self.pool.door.target
    }

    /// The key of the volume's own row.
    fn volume_key(&self) -> Vec<u8> {
        let target = self.target();
        layout::volume(&target.prefix, &target.volume)
    }

    /// Whether this is the row of this volume, and not of another one with its name.
    fn is_mine(&self, row: &[u8]) -> bool {
        row == admin::Found { number: self.number, uuid: self.uuid }.encode().as_bytes()
    }

    fn rows_of(&self, found: Vec<KeyValue>) -> Rows {
        found.iter().map(|row| (self.layout.key_of(row.key()), row.value().into())).collect()
    }

    fn ask(&self, key: &Key) -> Ask {
        Ask::Key(self.layout.row(key))
    }

    /// Several rows as of one moment, and the revision.
    fn read(&self, keys: &[Key], at: i64) -> Result<(i64, Vec<Option<Value>>), StoreError> {
        if keys.is_empty() {
            return Ok((at, Vec::new()));
        }
        let asks: Vec<Ask> = keys.iter().map(|key| self.ask(key)).collect();
        let (at, found) = look(&self.pool, &asks, at)?;
        Ok((at, found.iter().map(|rows| single(rows).map(|row| row.value().into())).collect()))
    }

    /// What the cluster holds now.
    fn revision(&self) -> Result<Revision, StoreError> {
        let pool = Pool::new(Arc::clone(&self.pool.door), 1, self.pool.patience);
        let layout = Layout::new(&self.target().prefix, self.number);
        let (at, _) = look(&pool, &[Ask::Key(layout.node_count())], 0)?;
        Ok(Revision { pool, layout, at })
    }
}

impl MetaStore for Etcd {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        Ok(self.read(std::slice::from_ref(key), 0)?.1.pop().flatten())
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        Ok(self.read(keys, 0)?.1)
    }

    /// In two round trips, as of one moment.
    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        let first: Vec<Key> = std::iter::once(from).chain(also).cloned().collect();
        let (at, rows) = self.read(&first, 0)?;
        let mut rows = rows.into_iter();
        let from = rows.next().flatten();
        let linked = match &from {
            Some(value) => self.read(&linked_keys(value, tags), at)?.1,
            None => vec![None; tags.len()],
        };
        Ok(Linked { from, also: rows.collect(), linked })
    }

    /// Up to 10,000 rows in one round trip. A longer result is read in pages, as of one moment.
    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        if limit == 0 || range.start >= range.end {
            return Ok(Rows::new());
        }
        let page = limit.min(SCAN_MAX);
        let (at, mut found) = look(&self.pool, &[Ask::Span(self.layout.span(range), page)], 0)?;
        let mut rows = self.rows_of(found.pop().unwrap_or_default());
        let mut is_full = rows.len() == page;
        while is_full && rows.len() < limit {
            let Some((last, _)) = rows.last() else { break };
            let rest = KeyRange { start: last.successor(), end: range.end.clone() };
            let page = SCAN_MAX.min(limit - rows.len());
            let (_, mut more) = look(&self.pool, &[Ask::Span(self.layout.span(&rest), page)], at)?;
            let more = self.rows_of(more.pop().unwrap_or_default());
            is_full = more.len() == page;
            rows.extend(more);
        }
        Ok(rows)
    }

    fn look(&self, keys: &[Key], ranges: &[KeyRange], limit: usize) -> Result<Looked, StoreError> {
        let limit = limit.min(SCAN_MAX);
        let is_asked = |range: &&KeyRange| limit > 0 && range.start < range.end;
        let mut asks: Vec<Ask> = keys.iter().map(|key| self.ask(key)).collect();
        let spans = ranges.iter().filter(is_asked).map(|range| Ask::Span(self.layout.span(range), limit));
        asks.extend(spans);
        if asks.is_empty() {
            return Ok(Looked { rows: Vec::new(), ranges: vec![Rows::new(); ranges.len()] });
        }
        let (_, found) = look(&self.pool, &asks, 0)?;
        let mut found = found.into_iter();
        let mut next = || found.next().unwrap_or_default();
        let rows = keys.iter().map(|_| single(&next()).map(|row| row.value().into())).collect();
        let of = |range: &KeyRange| if is_asked(&range) { self.rows_of(next()) } else { Rows::new() };
        Ok(Looked { rows, ranges: ranges.iter().map(of).collect() })
    }

    fn current_session(&self) -> Option<Session> {
        Database::session(self)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        if commit.is_empty() && commit.checks.is_empty() && commit.empty.is_empty() {
            return Ok(());
        }
        self.apply(&commit)
    }

    fn commit_limit(&self) -> Limit {
        LIMIT
    }

    /// Nothing: a commit is on the disks of most members when it returns.
    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(self.revision()?))
    }
}

/// The volume is not there any more.
fn gone(target: &Target) -> StoreError {
    StoreError::Unavailable(format!("the volume {} was removed from the cluster", target.volume))
}
